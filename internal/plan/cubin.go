package plan

import (
	"fmt"
	"slices"
	"sync/atomic"

	"vkattn/internal/problem"
	"vkattn/vk"
)

// Tier cubin in the plan: the registered backend, what it refuses and why.

var cubins atomic.Pointer[problem.Cubins]

// RegisterCubins makes tier cubin available; package cudapath calls it. A later
// registration replaces an earlier one.
func RegisterCubins(c problem.Cubins) {
	if c == nil {
		cubins.Store(nil)
		return
	}
	cubins.Store(&c)
}

// registeredCubins returns the registered backend, or nil.
func registeredCubins() problem.Cubins {
	if p := cubins.Load(); p != nil {
		return *p
	}
	return nil
}

// noCubin is the reason why tier cubin does not compute a problem.
type noCubin string

func (e noCubin) Error() string { return string(e) }
func (noCubin) Unwrap() error   { return problem.ErrUnsupported }

// planCubin fills in plan for tier cubin, or reports why it cannot.
func planCubin(plan *chosen, dev *vk.Device, cfg *problem.Config, r *Request) error {
	if err := checkCubin(dev, dev.Info(), cfg, r); err != nil {
		return err
	}
	choice, err := registeredCubins().Choose(dev, problem.CUDAProblem{Shape: r.Shape, DType: cfg.DType, HeadDim: cfg.HeadDim, HeadDimV: cfg.ValueDim(),
		Causal: cfg.Causal != problem.CausalNone, Align: slices.Min(r.Align[:]), LSE: r.LSE})
	if err != nil {
		return err
	}
	if choice.Slow && cfg.Tier == problem.TierAuto {
		return noCubin("cooperative matrices are faster than its kernels for this architecture")
	}
	plan.Tier, plan.Kernel, plan.Tile = problem.TierCubin, choice.Name, fmt.Sprintf("%dx%d", choice.Rows, choice.Cols)
	plan.SharedBytes, plan.Workgroups, plan.Cubin = choice.SharedBytes, choice.Workgroups, choice.Kernel
	plan.Reason, plan.family, plan.rows = "asked for", "", choice.Rows
	return nil
}

// checkCubin reports why tier cubin cannot compute a request on a device, as far as that is known without its
// kernels. dev is nil if the device is not open.
func checkCubin(dev *vk.Device, info *vk.DeviceInfo, cfg *problem.Config, r *Request) error {
	c := registeredCubins()
	switch {
	case c == nil:
		return noCubin("it is not part of this program: import vkattn/cudapath")
	case r.Experiment != (problem.Experiment{}):
		return noCubin("variants and ablations are those of the cooperative-matrix kernels")
	case cfg.OType() != cfg.DType:
		return noCubin(noF32Outputs)
	case r.Options.Any() || cfg.FixedSplit != 0:
		return noCubin(denseOnly)
	}
	if err := c.Check(dev, info, cfg.DType); err != nil {
		return err
	}
	if r.Access != problem.AccessAddresses {
		return noCubin("its kernels take device addresses, not descriptors")
	}
	return nil
}
