package attention

import (
	"errors"
	"fmt"
	"math"
	"strings"

	"vkattn/vk"
)

// Plan says how a problem will be computed and why.
type Plan struct {
	Tier   Tier   `json:"tier"`
	Kernel string `json:"kernel"` // name of the SPIR-V module, or of the entry point for TierCUDA; empty for TierCPU
	Tile   string `json:"tile"`   // query rows x keys of a workgroup, and its division
	// DecodeTile is the tile of the decode kernel if it computes the decode part of a mixed
	// batch; empty otherwise.
	DecodeTile string `json:"decode_tile,omitempty"`

	Access   Access      `json:"-"`
	Tuning   string      `json:"tuning,omitempty"`   // source of the tile: TileHeuristic, TileCached or TileTuned; empty for TierCPU and TierCUDA
	Reason   string      `json:"reason"`             // why this tier
	Rejected []Rejection `json:"rejected,omitempty"` // better tiers and what they lack; for TierCUDA also its better kernels
	Notes    []string    `json:"notes,omitempty"`    // why the tuning cache was ignored, or why decode runs without the decode kernel

	Flops       uint64 `json:"flops"`        // 2*B*Hq*(Dqk+Dv)*unmasked cells
	Bytes       uint64 `json:"bytes"`        // of Q, K, V, O and LSE, each once
	SharedBytes uint64 `json:"shared_bytes"` // shared memory of a workgroup
	Workgroups  uint64 `json:"workgroups"`

	// Splits is the number of splits of each row's keys, whose states are then combined; 1
	// if one workgroup computes all keys of a row.
	Splits int `json:"splits"`

	variant    variant
	decodePart *variant   // for the decode part of a mixed batch; nil in most plans
	cuda       CUDAKernel // for TierCUDA
}

// Tiles lists the tiles of all kernels of the plan.
func (p Plan) Tiles() string {
	if p.DecodeTile == "" {
		return p.Tile
	}
	return p.Tile + " + " + p.DecodeTile
}

// Rejection is a tier that was not used.
type Rejection struct {
	Tier   Tier   `json:"tier"`
	Reason string `json:"reason"`
}

// String returns one line: what runs, and why the better tiers do not.
func (p Plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "tier %v", p.Tier)
	if p.Kernel != "" {
		fmt.Fprintf(&b, " (%s, tile %s, %d workgroups)", p.Kernel, strings.TrimSpace(p.Tiles()+" "+p.Tuning), p.Workgroups)
	}
	fmt.Fprintf(&b, ": %s", p.Reason)
	for _, r := range p.Rejected {
		fmt.Fprintf(&b, "; not %v: %s", r.Tier, r.Reason)
	}
	for _, n := range p.Notes {
		fmt.Fprintf(&b, "; note: %s", n)
	}
	return b.String()
}

// request is all that a plan depends on.
type request struct {
	shape      Shape
	align      [4]uint32 // of Q, K, V, O in elements
	access     Access    // AccessAddresses or AccessDescriptors, never AccessAuto
	lse        bool
	experiment Experiment

	anyArgs bool // stands for calls with any Args: nothing that depends on their options is refused

	bar cudaBar // 0 unless the Config allows tier cuda

	options      options        // the options that the call asks for
	sparseTokens int            // with options.sparseTokens: mean sparse tokens per sequence and KV head
	totalQ       int            // with lengthCuQ in options.lengths: rows of all sequences
	plain        bool           // a call without options runs the dense kernel: packed rows and splits do not pay
	operands     decodeOperands // whether the decode kernel may run, and with which operands

	separateCombine bool // a dispatch of its own combines the splits, never the decode kernel
}

// deviceTiers are the tiers that run on a Vulkan device, best first.
var deviceTiers = []Tier{TierCoopMat2, TierCoopMat, TierScalar}

// makePlan decides how a request is computed: the tier, its kernel and tile, and the splits
// of the keys. A nil dev selects the CPU tier. If pick is given, it may replace the
// heuristic's tile.
func makePlan(dev *vk.Device, cfg Config, r request, pick tilePicker) (Plan, error) {
	plan := Plan{Access: r.access, Flops: flops(cfg, r.shape), Bytes: tensorBytes(cfg, r.shape, r.lse)}
	if done, err := plan.chooseCPUOrCUDA(dev, &cfg, &r); done || err != nil {
		return plan, err
	}
	for _, tier := range deviceTiers {
		if cfg.Tier != TierAuto && cfg.Tier != tier {
			continue
		}
		shared, reason := plan.chooseTile(dev, &cfg, tier, &r, pick)
		if reason != "" {
			plan.Rejected = append(plan.Rejected, Rejection{tier, reason})
			continue
		}
		if !plan.chooseSplits(dev, &cfg, tier, &r, shared) {
			r.plain = true // few rows but also few keys: plan again for the dense kernel
			if shared, reason = plan.chooseTile(dev, &cfg, tier, &r, pick); reason != "" {
				plan.Rejected = append(plan.Rejected, Rejection{tier, reason})
				continue
			}
		}
		v := &plan.variant
		plan.Tier, plan.Kernel, plan.Tile, plan.SharedBytes = tier, v.module, v.tile.String(), shared
		plan.Reason = "best tier the device supports"
		if cfg.Tier != TierAuto {
			plan.Reason = "asked for"
		}
		return plan, nil
	}
	var why []string
	for _, x := range plan.Rejected {
		why = append(why, fmt.Sprintf("%v: %s", x.Tier, x.Reason))
	}
	return plan, fmt.Errorf("%w: %v %v on %s: %s", ErrUnsupported, cfg, r.shape, dev.Info().Name, strings.Join(why, "; "))
}

// chooseCPUOrCUDA fills in the plan if the tier runs no Vulkan kernel; done reports that.
func (plan *Plan) chooseCPUOrCUDA(dev *vk.Device, cfg *Config, r *request) (done bool, err error) {
	switch {
	case dev == nil && cfg.Tier != TierAuto && cfg.Tier != TierCPU:
		return false, fmt.Errorf("%w: tier %v needs a Vulkan device", ErrUnsupported, cfg.Tier)
	case dev == nil:
		plan.Tier, plan.Reason = TierCPU, "no Vulkan device was given"
		return true, nil
	case cfg.Tier == TierCPU:
		return false, fmt.Errorf("%w: tier cpu computes on host memory: make the operation without a device", ErrUnsupported)
	case !cfg.mayCUDA():
		return false, nil
	}
	err = planCUDA(plan, dev, cfg, r)
	switch {
	case err == nil:
		return true, nil
	case cfg.Tier == TierCUDA && errors.Is(err, vk.ErrUnsupported):
		return false, fmt.Errorf("%w: tier cuda: %w", ErrUnsupported, err)
	case cfg.Tier == TierCUDA:
		return false, fmt.Errorf("attention: tier cuda: %w", err)
	}
	plan.Rejected = append(plan.Rejected, Rejection{TierCUDA, err.Error()})
	return false, nil
}

// chooseTile fills in the kernel and tile of a tier, or returns the reason why the tier
// cannot run. With FixedSplit it also fills in the kernel of the short sequences, if they
// have a dispatch of their own. shared is the shared memory of a workgroup in bytes.
func (plan *Plan) chooseTile(dev *vk.Device, cfg *Config, tier Tier, r *request, pick tilePicker) (shared uint64, reason string) {
	of, twoClasses := *r, false // the request that picks the tile; whether a second class needs another one
	if cfg.FixedSplit > 0 {
		of, twoClasses = r.fixedClasses()
	}
	noDecodeKernel := of.chooseOperands(dev, cfg, tier)
	v, shared, reason := chooseVariant(dev.Caps(), *cfg, tier, of)
	if reason != "" {
		return 0, reason
	}
	v.onCPU = dev.Info().Type == vk.DeviceCPU
	plan.decodePart = nil
	if twoClasses {
		if plan.decodePart, reason = fixedDecodePart(dev, cfg, tier, &v, r); reason != "" {
			return 0, reason
		}
	}
	plan.Tuning = TileHeuristic
	if pick != nil && !v.options.any() && cfg.FixedSplit == 0 {
		var notes []string
		v.tile, shared, plan.Tuning, notes = picked(dev.Caps(), pick, v, shared, *cfg, *r)
		plan.Notes = append(plan.Notes, notes...)
	}
	if why := v.whyNotDecode(&of, noDecodeKernel); why != "" {
		plan.Notes = append(plan.Notes, "the decode kernel is not used: "+why)
	}
	plan.variant, plan.Workgroups, plan.Splits = v, workgroups(v, r.shape), 1
	return shared, ""
}

// chooseSplits fills in the splits of the general or decode kernel, and the decode part of
// a mixed batch. It returns false if one workgroup computes all keys of a row and the call
// has no options: the dense kernel is then faster.
func (plan *Plan) chooseSplits(dev *vk.Device, cfg *Config, tier Tier, r *request, shared uint64) bool {
	v := &plan.variant
	if !v.options.any() {
		return true
	}
	splits := splitsOf(dev.Caps(), cfg, v, r, shared)
	plan.Splits = splits * v.tile.splits()
	v.options.split = plan.Splits > 1
	v.options.combined = plan.decodePart == nil && v.combines(r, plan.Splits)
	v.lse = v.lse || plan.Splits > 1
	if !v.options.any() {
		return false
	}
	plan.Workgroups = v.workgroups(r, splits)
	if plan.decodePart == nil {
		plan.decodePart = decodePartVariant(dev, cfg, tier, v, r)
	}
	if short := plan.decodePart; short != nil {
		v.options.decodePartRows = short.options.decodePartRows
		short.lse, short.options.split = v.lse, v.options.split
		plan.DecodeTile = short.tile.String()
		plan.Workgroups += short.workgroups(r, splits)
	}
	return true
}

// picked returns the tile that pick chooses for v, its shared memory and its source. v has
// the heuristic's tile, which stays if pick has none that fits.
func picked(caps *vk.Caps, pick tilePicker, v variant, shared uint64, cfg Config, r request) (t tile, bytes uint64, source string, notes []string) {
	heuristic := v.tile
	t, source, notes = pick(v, cfg, r)
	if source == "" {
		return heuristic, shared, TileHeuristic, notes
	}
	v.tile = t
	bytes, reason := fits(caps, v, r.shape)
	if reason != "" {
		return heuristic, shared, TileHeuristic, append(notes, "the tuned tile of this class is ignored: "+reason)
	}
	return t, bytes, source, notes
}

// chooseVariant picks the first tile of a tier that is within the device's limits, or
// returns the reason why there is none.
func chooseVariant(caps *vk.Caps, cfg Config, tier Tier, r request) (v variant, shared uint64, reason string) {
	v = variant{
		dtype:   cfg.DType,
		headDim: uint32(cfg.HeadDim), headDimV: uint32(cfg.ValueDim()),
		causal: cfg.Causal != CausalNone, lse: r.lse, align: r.align, experiment: r.experiment, options: r.options,
	}
	if r.access == AccessAddresses && !caps.BufferDeviceAddress {
		return v, 0, "the device has no buffer device addresses"
	}
	if v.options.any() || decodes(caps, &cfg, &r) {
		if r.experiment != (Experiment{}) {
			return v, 0, "variants and ablations are those of the dense kernels"
		}
		if reason := generalFits(&caps.Limits, r.access); reason != "" {
			return v, 0, reason
		}
		if g := r.shape.Group(); g > 1 {
			v.options.packRows = uint32(g)
		}
		v.options.split = true // the tile must fit with the shared memory of a split; chooseSplits decides
	}
	tiles, reason := tilesOf(caps, &cfg, tier, &v, &r)
	if reason != "" {
		return v, 0, reason
	}
	reason = "no tile fits the shape"
	for _, t := range tiles {
		v.tile = t
		if v.isDecode() {
			v.options.packRows = max(v.options.packRows, 1) // the decode kernel packs rows even of a single head
		}
		v.module = moduleName(kernelName(tier, cfg.DType)+v.family(), r.access)
		if shared, reason = fits(caps, v, r.shape); reason == "" {
			return v, shared, ""
		}
	}
	return v, 0, reason
}

// tilesOf lists a tier's tiles for a request, best first, or returns what the tier lacks.
func tilesOf(caps *vk.Caps, cfg *Config, tier Tier, v *variant, r *request) (list []tile, reason string) {
	rows := uint32(r.shape.Sq) // rows of a sequence and head, or of a packed group
	if v.options.packRows != 0 {
		rows = r.decodeRows()
	}
	if tier == TierScalar {
		if r.experiment != (Experiment{}) {
			return nil, "variants and ablations are those of the cooperative-matrix kernels"
		}
		return scalarTiles(&caps.Limits, v.headDimV, rows), ""
	}
	f, reason := pickFragment(caps, tier, cfg.DType)
	if reason != "" {
		return nil, reason
	}
	if s := cfg.ScaleValue(); math.Abs(float64(s)) > maxFastScale && !r.anyArgs && !v.options.modifies() {
		return nil, fmt.Sprintf("a scale of %g takes scores over %d, see MaxFastScore", s, MaxFastScore)
	}
	fixed, shape := cfg.FixedSplit > 0, r.shape
	if fixed {
		shape.Sk = maxGeneralLength // the same tile for every bound of the lengths
	}
	if v.options.any() {
		list = decodeTiles(caps, f, v, r, fixed)
		if rows <= fewRows*f.M {
			return append(list, splitKVTiles(caps, f, v, r, fixed)...), ""
		}
	}
	best := chooseCoopmatTile(tier, v, shape, cfg.Causal)
	return append(list, coopmatTiles(f, best, v, rows, caps.Limits.MaxInvocations)...), ""
}

// fits checks a variant against the device's limits before anything is compiled. It
// returns the shared memory of a workgroup in bytes, or the reason why a limit is exceeded.
func fits(caps *vk.Caps, v variant, s Shape) (shared uint64, reason string) {
	if reason := shapeFits(caps, v, s); reason != "" && !v.options.any() { // the grid of a call with options: see prepared.grid
		return 0, reason
	}
	shared, err := v.sharedBytes()
	switch {
	case err != nil:
		return 0, err.Error()
	case shared > uint64(caps.Limits.MaxSharedBytes):
		return 0, fmt.Sprintf("tile %v needs %d bytes of shared memory, the device has %d", v.tile, shared, caps.Limits.MaxSharedBytes)
	}
	return shared, ""
}

// shapeFits is the part of fits that does not read the SPIR-V.
func shapeFits(caps *vk.Caps, v variant, s Shape) string {
	l, t := &caps.Limits, v.tile
	n, subgroup := t.invocations(), t.subgroupSize()
	switch {
	case n > l.MaxInvocations || n > l.MaxWorkGroupSize[0]:
		return fmt.Sprintf("tile %v needs %d invocations, the device has %d", t, n, min(l.MaxInvocations, l.MaxWorkGroupSize[0]))
	case subgroup != 0 && l.MaxSubgroupsPerWorkgroup != 0 && n/subgroup > l.MaxSubgroupsPerWorkgroup:
		return fmt.Sprintf("tile %v needs %d subgroups, the device has %d", t, n/subgroup, l.MaxSubgroupsPerWorkgroup)
	}
	return gridFits(caps, v, s)
}

// gridFits checks the limits of the grid that hold even if the batches are divided among
// several dispatches.
func gridFits(caps *vk.Caps, v variant, s Shape) string {
	if n := ceilDiv(uint32(s.Sq), v.tile.rows()); n > caps.Limits.MaxWorkGroupCount[0] {
		return fmt.Sprintf("%d row blocks, the device dispatches %d", n, caps.Limits.MaxWorkGroupCount[0])
	}
	if uint32(s.Hq) > caps.Limits.MaxWorkGroupCount[1] {
		return fmt.Sprintf("%d heads, the device dispatches %d", s.Hq, caps.Limits.MaxWorkGroupCount[1])
	}
	return ""
}

// kernelName returns the name of a tier's dense kernel, without the access.
func kernelName(tier Tier, t DType) string {
	if tier == TierScalar {
		return "scalar" // one module for all three storage types
	}
	return fmt.Sprintf("%v_%v", tier, t)
}

// family returns the part of a module's name that distinguishes the kernels of a tier,
// "" for the dense kernel: scalar_ssbo, scalar_general_ssbo, coopmat_f16_decode_ssbo.
func (v *variant) family() string {
	switch {
	case v.isDecode():
		return "_decode"
	case v.options.any():
		return "_general"
	}
	return ""
}

// workgroups returns the number of workgroups of a dense dispatch.
func workgroups(v variant, s Shape) uint64 {
	return uint64(ceilDiv(uint32(s.Sq), v.tile.rows())) * uint64(s.Hq) * uint64(s.B) * uint64(v.slices())
}

// slices returns how many workgroups share the columns of O of a row block.
func (v variant) slices() uint32 { return ceilDiv(v.headDimV, v.tile.columns()) }

func flops(cfg Config, s Shape) uint64 {
	return 2 * uint64(s.B) * uint64(s.Hq) * uint64(cfg.HeadDim+cfg.ValueDim()) * s.Cells(cfg.Causal)
}

func tensorBytes(cfg Config, s Shape, lse bool) uint64 {
	rows, keys := uint64(s.Rows()), uint64(s.B)*uint64(s.KVHeads())*uint64(s.Sk)
	n := (rows + keys) * uint64(cfg.HeadDim+cfg.ValueDim()) * uint64(cfg.DType.Size())
	if lse {
		n += 4 * rows
	}
	return n
}

// whyNotDecode returns the reason why a call with few rows on a tier of cooperative
// matrices does not run the decode kernel. It is "" if it does run it, and for all other
// calls. device is the reason that chooseOperands returned.
func (v *variant) whyNotDecode(r *request, device string) string {
	t, ok := v.tile.(coopmatTile)
	switch {
	case !ok, !v.options.any(), r.decodeRows() > fewRows*t.M:
		return ""
	case device != "":
		return device
	}
	return "no tile of it is within the device's limits"
}
