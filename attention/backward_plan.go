package attention

import (
	"fmt"
	"strings"

	"vkattn/vk"
)

// BackwardPlan says how the gradients of a problem will be computed and why.
type BackwardPlan struct {
	Tier     Tier         `json:"tier"`
	Kernels  []PlanKernel `json:"kernels"` // in the order in which they are recorded; empty for TierCPU
	Access   Access       `json:"-"`
	Reason   string       `json:"reason"`             // why this tier
	Rejected []Rejection  `json:"rejected,omitempty"` // better tiers and what they lack

	Flops uint64 `json:"flops"` // 2.5 times forward's, whatever the kernels compute twice
	Bytes uint64 `json:"bytes"` // of the tensors, each once

	// ScratchBytes is the device memory that a call takes in addition to its tensors: four
	// numbers for each row. The device keeps it and lends it to the next call.
	ScratchBytes uint64 `json:"scratch_bytes"`
}

// PlanKernel is one kernel of a [BackwardPlan].
type PlanKernel struct {
	Outputs     string `json:"outputs"` // "stats", "LSE", "dQ", "dK dV", "dBias" or "dSinks"
	Kernel      string `json:"kernel"`  // name of the SPIR-V module
	Tile        string `json:"tile"`    // query rows x keys; empty for kernels without tiles
	SharedBytes uint64 `json:"shared_bytes"`
	Workgroups  uint64 `json:"workgroups"`

	variant backwardVariant
	groups  [3]uint32
}

// String returns one line: what runs, and why the better tiers do not.
func (p BackwardPlan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "tier %v", p.Tier)
	for i, k := range p.Kernels {
		open := ", "
		if i == 0 {
			open = " ("
		}
		fmt.Fprintf(&b, "%s%s: %s", open, k.Outputs, strings.TrimSpace(k.Kernel+" "+k.Tile))
	}
	if len(p.Kernels) > 0 {
		b.WriteString(")")
	}
	fmt.Fprintf(&b, ": %s", p.Reason)
	for _, r := range p.Rejected {
		fmt.Fprintf(&b, "; not %v: %s", r.Tier, r.Reason)
	}
	return b.String()
}

// backwardRequest is all that a backward plan depends on.
type backwardRequest struct {
	shape          Shape
	access         Access // AccessAddresses or AccessDescriptors, never AccessAuto
	align          [backwardTensors]uint32
	want           gradientSet
	dLSE           bool
	accumulate     bool
	options        options
	totalQ, totalK int    // packed rows and keys; 0: not packed
	bias           [3]int // sizes of the bias, with want.bias
}

// statRows returns the rows that have statistics.
func (r *backwardRequest) statRows() uint64 {
	if r.totalQ > 0 {
		return uint64(r.shape.Hq) * uint64(r.totalQ)
	}
	return uint64(r.shape.B) * uint64(r.shape.Hq) * uint64(r.shape.Sq)
}

// backwardTier is a tier of backward kernels: how it computes each gradient on a device.
type backwardTier struct {
	tier    Tier
	missing string // why the tier computes no gradients; "" if it does
}

// backwardTiers are the tiers of a Vulkan device, best first.
var backwardTiers = []backwardTier{
	{TierCoopMat2, "it has no backward kernels yet"},
	{TierCoopMat, "it has no backward kernels yet"},
	{TierScalar, ""},
}

// makeBackwardPlan decides how a backward request is computed. A nil dev selects the CPU
// tier. A tier that the Config asks for and that has no backward kernels is rejected in
// favour of the next one.
func makeBackwardPlan(dev *vk.Device, cfg *Config, r *backwardRequest) (BackwardPlan, error) {
	plan := BackwardPlan{Access: r.access, Flops: flops(*cfg, r.shape) / 2 * 5, Bytes: backwardBytesOf(cfg, r)}
	switch {
	case dev == nil && cfg.Tier != TierAuto && cfg.Tier != TierCPU:
		return plan, fmt.Errorf("%w: tier %v needs a Vulkan device", ErrUnsupported, cfg.Tier)
	case dev == nil:
		plan.Tier, plan.Reason = TierCPU, "no Vulkan device was given"
		return plan, nil
	case cfg.Tier == TierCPU:
		return plan, fmt.Errorf("%w: tier cpu computes on host memory: make the operation without a device", ErrUnsupported)
	case cfg.Tier == TierCUDA:
		return plan, fmt.Errorf("%w: tier cuda computes no gradients", ErrUnsupported)
	case cfg.mayCUDA():
		plan.Rejected = append(plan.Rejected, Rejection{TierCUDA, "it computes no gradients"})
	}
	plan.ScratchBytes = r.statRows() * 2 * statBytes
	asked := cfg.Tier == TierAuto
	for _, t := range backwardTiers {
		if asked = asked || cfg.Tier == t.tier; !asked {
			continue
		}
		reason := t.missing
		if reason == "" {
			if reason = plan.chooseKernels(dev, cfg, t.tier, r); reason == "" {
				plan.Tier, plan.Reason = t.tier, "best tier that computes gradients on the device"
				if cfg.Tier == t.tier {
					plan.Reason = "asked for"
				}
				return plan, nil
			}
		}
		plan.Rejected = append(plan.Rejected, Rejection{t.tier, reason})
	}
	var why []string
	for _, x := range plan.Rejected {
		why = append(why, fmt.Sprintf("%v: %s", x.Tier, x.Reason))
	}
	return plan, fmt.Errorf("%w: gradients of %v %v on %s: %s", ErrUnsupported, *cfg, r.shape, dev.Info().Name, strings.Join(why, "; "))
}

// statBytes are the bytes of a row's LSE and delta. Behind those of all rows, scratch memory
// holds two more numbers for each; see shaders/backward_stats.glsl.
const statBytes = 8

// chooseKernels fills in the kernels of a tier, or returns the reason why it cannot run.
func (plan *BackwardPlan) chooseKernels(dev *vk.Device, cfg *Config, tier Tier, r *backwardRequest) (reason string) {
	caps := dev.Caps()
	if reason := backwardFits(&caps.Limits, r.access); reason != "" {
		return reason
	}
	if r.access == AccessAddresses && !caps.BufferDeviceAddress {
		return "the device has no buffer device addresses"
	}
	v := backwardVariant{
		onCPU: dev.Info().Type == vk.DeviceCPU, dtype: cfg.DType, headDim: uint32(cfg.HeadDim), headDimV: uint32(cfg.ValueDim()),
		causal: cfg.Causal != CausalNone, align: r.align, dLSE: r.dLSE, accumulate: r.accumulate,
		dK: r.want.k, dV: r.want.v, fourStats: true, sumQueries: r.want.bias && r.bias[2] == 1 && r.shape.Sq > 1, options: r.options,
	}
	if g := r.shape.Group(); g > 1 {
		v.options.packRows = uint32(g)
	}
	kernels := []PlanKernel(nil)
	for _, k := range []struct {
		wanted  bool
		kernel  backwardKernel
		outputs string
		table   []backwardTile
	}{
		{true, kernelStats, "stats", nil},
		{true, kernelLSE, "LSE", backwardRowTiles},
		{r.want.q, kernelDQ, "dQ", backwardRowTiles},
		{r.want.k || r.want.v, kernelDKDV, dKdV(r.want), backwardKeyTiles},
		{r.want.bias, kernelDBias, "dBias", backwardRowTiles},
		{r.want.sinks, kernelDSinks, "dSinks", nil},
	} {
		if !k.wanted {
			continue
		}
		one := PlanKernel{Outputs: k.outputs, variant: v.forKernel(k.kernel)}
		if reason = one.choose(&caps.Limits, tier, k.table, r); reason != "" {
			return k.outputs + ": " + reason
		}
		kernels = append(kernels, one)
	}
	plan.Kernels = kernels
	return ""
}

func dKdV(want gradientSet) string {
	switch {
	case !want.v:
		return "dK"
	case !want.k:
		return "dV"
	}
	return "dK dV"
}

// choose fills in the module, the first tile of the table that is within the device's
// limits, and the grid, or returns the reason why there is none.
func (k *PlanKernel) choose(limits *vk.Limits, tier Tier, table []backwardTile, r *backwardRequest) (reason string) {
	v := &k.variant
	name := "backward_" + backwardKernelNames[v.kernel]
	if table != nil {
		name = fmt.Sprintf("backward_%v_%s", tier, backwardKernelNames[v.kernel])
		if paramsInBuffer(limits) {
			name += "_params"
		}
	}
	v.module = moduleName(name, r.access)
	k.Kernel = v.module
	tiles := []backwardTile{{}}
	if table != nil {
		tiles = backwardTiles(limits, table, max(v.headDim, v.headDimV))
	}
	reason = "no tile is within the device's invocations"
	for _, t := range tiles {
		v.tile = t
		shared, err := v.sharedBytes()
		switch {
		case err != nil:
			return err.Error()
		case shared > uint64(limits.MaxSharedBytes):
			reason = fmt.Sprintf("tile %v needs %d bytes of shared memory, the device has %d", t, shared, limits.MaxSharedBytes)
			continue
		}
		if k.Tile = ""; v.tiled() {
			k.Tile = t.String()
		}
		k.SharedBytes = shared
		return k.setGrid(limits, r)
	}
	return reason
}

// setGrid fills in the workgroups, or returns the limit that they exceed. The kernel of row
// statistics takes as many dispatches as its rows need.
func (k *PlanKernel) setGrid(limits *vk.Limits, r *backwardRequest) (reason string) {
	v, s := &k.variant, &r.shape
	blocks := func(n int, of uint32) uint64 { return ceilDiv64(uint64(n), uint64(of)) }
	var grid [3]uint64
	switch v.kernel {
	case kernelStats:
		k.Workgroups = ceilDiv64(r.statRows(), uint64(backwardLocal/v.lanesPerRow()))
		return ""
	case kernelLSE, kernelDQ:
		packed := max(1, int(v.options.packRows))
		grid = [3]uint64{blocks(s.Sq*packed, v.tile.QTile), uint64(s.Hq / packed), uint64(s.B)}
		if r.totalQ > 0 {
			grid[0], grid[2] = uint64(r.totalQ*packed)/uint64(v.tile.QTile)+uint64(s.B), 1
		}
	case kernelDKDV:
		grid = [3]uint64{blocks(s.Sk, v.tile.KVTile), uint64(s.KVHeads()), uint64(s.B)}
		if r.totalK > 0 {
			grid[0], grid[2] = uint64(r.totalK)/uint64(v.tile.KVTile)+uint64(s.B), 1
		}
	case kernelDBias:
		grid = [3]uint64{blocks(r.bias[2], v.tile.QTile) * blocks(s.Sk, v.tile.KVTile), uint64(r.bias[1]), uint64(r.bias[0])}
	case kernelDSinks:
		grid = [3]uint64{uint64(s.Hq), 1, 1}
	}
	for i, n := range grid {
		if n > uint64(limits.MaxWorkGroupCount[i]) {
			return fmt.Sprintf("a grid of %v workgroups, the device dispatches %v", grid, limits.MaxWorkGroupCount)
		}
		k.groups[i] = uint32(n)
	}
	k.Workgroups = grid[0] * grid[1] * grid[2]
	return ""
}

// backwardFits reports why backward modules do not fit a device's limits; "" if they do.
func backwardFits(l *vk.Limits, access Access) string {
	bindings := uint32(backwardBindings)
	if paramsInBuffer(l) {
		if access == AccessAddresses {
			return fmt.Sprintf("the device has %d bytes of push constants, backward kernels take %d with addresses; with descriptors they take none",
				l.MaxPushConstantBytes, backwardPushBytes)
		}
		bindings++
	}
	if access == AccessDescriptors && l.MaxStorageBuffers < bindings {
		return fmt.Sprintf("the device binds %d buffers, backward kernels take %d", l.MaxStorageBuffers, bindings)
	}
	return ""
}

// backwardBytesOf returns the bytes of the tensors that a backward call reads and writes.
func backwardBytesOf(cfg *Config, r *backwardRequest) uint64 {
	s := &r.shape
	rows, keys := uint64(s.Rows()), uint64(s.B)*uint64(s.KVHeads())*uint64(s.Sk)
	d, dv, size := uint64(cfg.HeadDim), uint64(cfg.ValueDim()), uint64(cfg.DType.Size())
	elements := rows*(d+2*dv) + keys*(d+dv)
	for _, out := range []struct {
		wanted bool
		n      uint64
	}{{r.want.q, rows * d}, {r.want.k, keys * d}, {r.want.v, keys * dv}} {
		if out.wanted {
			elements += out.n
		}
	}
	return elements*size + 4*rows
}
