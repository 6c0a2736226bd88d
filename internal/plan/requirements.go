package plan

import (
	"errors"
	"fmt"

	"vkattn/internal/problem"
	"vkattn/internal/tensors"
	"vkattn/vk"
)

// What a tier needs of a device, from the functions that plan its calls.

// Requirements is attention.Requirements, which documents it.
func Requirements(tier problem.Tier, cfg problem.Config) (vk.Requirements, error) {
	cfg.Tier = tier
	if err := cfg.Validate(); err != nil {
		return vk.Requirements{}, err
	}
	switch tier {
	case problem.TierScalar, problem.TierCoopMat, problem.TierCoopMat2, problem.TierCubin:
	default:
		return vk.Requirements{}, fmt.Errorf("%w: requirements of tier %v: name one of scalar, coopmat, coopmat2 and cubin", problem.ErrUnsupported, tier)
	}
	var noGradients *string // why there are none on any device, "" if there are; nil: not known yet
	r, err := vk.Require(func(caps *vk.Caps) ([]*vk.PipelineDesc, string) {
		list, why := forwardPipelines(caps, &cfg)
		if why != "" || tier == problem.TierCubin {
			return list, why
		}
		gradients, why := gradientPipelines(caps, &cfg)
		if noGradients == nil { // the first device has everything
			noGradients = &why
		}
		if *noGradients != "" {
			return list, ""
		}
		return append(list, gradients...), why
	})
	if errors.Is(err, vk.ErrUnsupported) {
		err = fmt.Errorf("%w: %v: %w", problem.ErrUnsupported, cfg, err)
	}
	return r, err
}

// forwardPipelines lists the dense kernel and the general one of few rows, or says why a device does not run
// them.
func forwardPipelines(caps *vk.Caps, cfg *problem.Config) (list []*vk.PipelineDesc, why string) {
	d, dv := tensors.LargestAlignment(uint64(cfg.HeadDim)), tensors.LargestAlignment(uint64(cfg.ValueDim()))
	for _, rows := range []int{1024, 1} {
		s := problem.Shape{B: 1, Hq: 1, Hkv: 1, Sq: rows, Sk: 1024}
		r := Request{Shape: s, Align: [4]uint32{d, d, dv, dv}, LSE: true, AnyArgs: true, Options: OptionsOf(&problem.Args{Shape: s}, cfg)}
		r.ChooseAccess(caps, cfg)
		if cfg.Tier == problem.TierCubin {
			if err := checkCubin(nil, &vk.DeviceInfo{Caps: *caps}, cfg, &r); err != nil {
				return nil, err.Error()
			}
			continue
		}
		v, _, why := chooseVariant(caps, *cfg, cfg.Tier, r)
		if why != "" {
			return nil, why
		}
		p, err := v.Pipeline(cfg)
		if err != nil {
			return nil, err.Error()
		}
		list = append(list, p)
	}
	return list, ""
}

// gradientPipelines is forwardPipelines for gradients.
func gradientPipelines(caps *vk.Caps, cfg *problem.Config) (list []*vk.PipelineDesc, why string) {
	s := problem.Shape{B: 1, Hq: 1, Hkv: 1, Sq: 1024, Sk: 1024}
	r := BackwardRequest{Shape: s, Want: tensors.GradientSet{Q: true, K: true, V: true}, Access: BackwardAccess(caps, cfg), Options: OptionsOf(&problem.Args{Shape: s}, cfg)}
	for i := range r.Align {
		r.Align[i] = 1
	}
	on := backwardDevice{caps: caps, accumulatorIsOperandA: func(problem.DType, fragment) bool { return false }}
	var plan chosenBackward
	if why := plan.chooseKernels(&on, cfg, cfg.Tier, &r, nil); why != "" {
		return nil, why
	}
	for i := range plan.Kernels {
		p, err := plan.Kernels[i].Variant.Pipeline(cfg)
		if err != nil {
			return nil, err.Error()
		}
		list = append(list, p)
	}
	return list, ""
}
