package plan

import (
	"errors"
	"fmt"
	"math"
	"strings"

	"vkattn/attention/score"
	"vkattn/internal/arith"
	"vkattn/internal/dispatch"
	"vkattn/internal/hostmem"
	"vkattn/internal/problem"
	"vkattn/vk"
)

// chosen is a Plan with what an operation needs to compute it.
type chosen struct {
	problem.Plan
	Variant    Variant
	DecodePart *Variant           // for the decode part of a mixed batch; nil in most plans
	CUDA       problem.CUDAKernel // for TierCUDA
	family     string             // of the kernels of tiers cuda and cubin, and the rows of their tile
	rows       uint32
	Cubin      problem.CubinKernel // for TierCubin
	Conversion Conversion          // of quantized K and V in front of the call, which the rest then computes on the converted ones

	Range     KeyRange  // requests that differ in Sk alone have the same plan in this range, but for the splits,
	Splitting Splitting // which this gives
}

// Request is all that a plan depends on.
type Request struct {
	Shape      problem.Shape
	Align      [4]uint32      // of Q, K, V, O in elements
	Access     problem.Access // AccessAddresses or AccessDescriptors, never AccessAuto
	LSE        bool
	Experiment problem.Experiment

	AnyArgs bool // stands for calls with any Args: nothing that depends on their options is refused

	CUDARefusal cudaRefusal // 0 unless the Config allows tier cuda

	Options      Options        // the options that the call asks for
	SparseTokens int            // with Options.sparseTokens: mean length of a list
	TotalQ       int            // with LengthCuQ in Options.Lengths: rows of all sequences
	Plain        bool           // a call without options runs the dense kernel: packed rows and splits do not pay
	operands     decodeOperands // whether the decode kernel may run, and with which operands

	BlockMap bool // the call brings its map of tiles

	seen *KeyRange // where comparisons of Sk are noted; nil: nowhere

	VInK bool // one KV head, and V is the first columns of K, in the same memory

	FarKV bool // K or V has a stride of rows or pages of 2^32 bytes or more, which decode kernels of tier cuda do not take

	SeparateCombine bool // a dispatch of its own combines the splits, never the decode kernel
}

// deviceTiers are the tiers that run on a Vulkan device, best first on a GPU.
var deviceTiers = []problem.Tier{problem.TierCoopMat2, problem.TierCoopMat, problem.TierScalar}

// onCPUTiers are those tiers in the order of a driver of the CPU, which emulates cooperative
// matrices: 32 decode steps took 0.61 s on tier scalar and 5.0 on coopmat2 (lavapipe 26.2,
// two cores).
var onCPUTiers = []problem.Tier{problem.TierScalar, problem.TierCoopMat2, problem.TierCoopMat}

// tiersOf lists the tiers of a Vulkan device to try, the one that the Config names or all,
// best first. reason is why a plan takes the first that can compute it.
func tiersOf(dev *vk.DeviceInfo, named problem.Tier) (tiers []problem.Tier, reason string) {
	switch {
	case !named.Auto():
		return []problem.Tier{named}, "asked for"
	case dev.Type == vk.DeviceCPU:
		return onCPUTiers, "best tier on a driver of the CPU"
	}
	return deviceTiers, "best tier the device supports"
}

// notFaster gives the reasons against the other tiers where tier scalar is taken before them.
func notFaster(caps *vk.Caps, cfg *problem.Config, taken problem.Tier, others []problem.Tier, halfTerms bool) (list []problem.Rejection) {
	if taken != problem.TierScalar {
		return nil
	}
	for _, tier := range others {
		pick := pickFragment
		if cfg.DType == problem.F32 {
			pick = func(caps *vk.Caps, tier problem.Tier, _ problem.DType) (fragment, string) {
				return pickTerms(caps, tier, halfTerms)
			}
		}
		_, reason := pick(caps, tier, cfg.DType)
		if reason == "" {
			reason = "tier scalar is faster on a driver of the CPU"
		}
		list = append(list, problem.Rejection{Tier: tier, Reason: reason})
	}
	return list
}

// noDevice is why tier cpu computes a call.
const noDevice = "no Vulkan device was given"

// checkDevice reports whether a tier can be taken with a device, or with none.
func checkDevice(dev *vk.Device, tier problem.Tier) error {
	switch {
	case dev == nil && !tier.Auto() && tier != problem.TierCPU:
		return fmt.Errorf("%w: tier %v needs a Vulkan device", problem.ErrUnsupported, tier)
	case dev != nil && tier == problem.TierCPU:
		return fmt.Errorf("%w: tier cpu computes on host memory: make the operation without a device", problem.ErrUnsupported)
	}
	return nil
}

// Make decides how a request is computed: the tier, its kernel and tile, and the splits
// of the keys. A nil dev selects the CPU tier. If pick is given, it may replace the
// heuristic's tile. Quantized K and V are converted in front of the call where that takes less time.
func Make(dev *vk.Device, cfg problem.Config, r Request, pick TilePicker) (chosen, error) {
	if dev == nil || cfg.KeyType == problem.KVSame {
		r.Experiment.ConvertKV = 0
		return makeStored(dev, cfg, r, pick)
	}
	return makeQuantized(dev, cfg, r, pick)
}

// makeStored is Make for kernels that read K and V as they are stored.
func makeStored(dev *vk.Device, cfg problem.Config, r Request, pick TilePicker) (chosen, error) {
	plan := chosen{Plan: problem.Plan{Access: r.Access, Flops: Flops(cfg, r.Shape), Bytes: tensorBytes(cfg, r.Shape, r.LSE)},
		Range: KeyRange{1, math.MaxInt}, Splitting: SplittingOf(1)}
	if cfg.ScoreMod.Given() {
		plan.ScoreMod = cfg.ScoreMod.String()
	}
	if cfg.MaskMod.Given() {
		plan.MaskMod = cfg.MaskMod.String()
	}
	if err := checkDevice(dev, cfg.Tier); err != nil {
		return plan, err
	}
	if dev == nil {
		plan.Tier, plan.Reason = problem.TierCPU, noDevice
		return plan, nil
	}
	for _, x := range withoutSPIRV {
		if cfg.Tier != x.tier {
			continue
		}
		r.seen = &plan.Range
		err := x.plan(&plan, dev, &cfg, &r)
		switch {
		case errors.Is(err, vk.ErrUnsupported):
			err = fmt.Errorf("%w: tier %v: %w", problem.ErrUnsupported, x.tier, err)
		case err != nil:
			err = fmt.Errorf("attention: tier %v: %w", x.tier, err)
		}
		return plan, err
	}
	vulkan, err := makeVulkan(plan, dev, cfg, r, pick)
	if cfg.Tier != problem.TierAuto || r.AnyArgs {
		return vulkan, err
	}
	return fastest(plan, vulkan, err, dev, &cfg, &r)
}

// makeVulkan is Make for tiers of a Vulkan pipeline. plan is the plan so far.
func makeVulkan(plan chosen, dev *vk.Device, cfg problem.Config, r Request, pick TilePicker) (chosen, error) {
	r.seen = &plan.Range
	tiers, best := tiersOf(dev.Info(), cfg.Tier)
	if cfg.FixedSplit > 0 && cfg.Tier.Auto() {
		var tier problem.Tier
		tier, plan.Rejected = fixedTier(dev.Caps(), &cfg, tiers)
		tiers = []problem.Tier{tier}
	}
	for i, tier := range tiers {
		shared, reason := plan.chooseTile(dev, &cfg, tier, &r, pick)
		if reason != "" {
			plan.Rejected = append(plan.Rejected, problem.Rejection{Tier: tier, Reason: reason})
			continue
		}
		if !plan.chooseSplits(dev, &cfg, tier, &r, shared) {
			r.Plain = true // few rows but also few keys: plan again for the dense kernel
			if shared, reason = plan.chooseTile(dev, &cfg, tier, &r, pick); reason != "" {
				plan.Rejected = append(plan.Rejected, problem.Rejection{Tier: tier, Reason: reason})
				continue
			}
		}
		v := &plan.Variant
		plan.Tier, plan.Kernel, plan.Tile, plan.SharedBytes = tier, v.module, v.Tile.String(), shared
		plan.Reason = best
		plan.Rejected = append(plan.Rejected, notFaster(dev.Caps(), &cfg, tier, tiers[i+1:], r.Experiment.HalfTerms)...)
		return plan, nil
	}
	var why []string
	for _, x := range plan.Rejected {
		why = append(why, fmt.Sprintf("%v: %s", x.Tier, x.Reason))
	}
	what := cfg.String()
	if !r.AnyArgs { // the shape is that of a call
		what += " " + r.Shape.String()
	}
	return plan, fmt.Errorf("%w: %s on %s: %s", problem.ErrUnsupported, what, dev.Info().Name, strings.Join(why, "; "))
}

// chooseTile fills in the kernel and tile of a tier, or returns the reason why the tier
// cannot run. With FixedSplit it also fills in the kernel of the short sequences, if they
// have a dispatch of their own. shared is the shared memory of a workgroup in bytes.
func (plan *chosen) chooseTile(dev *vk.Device, cfg *problem.Config, tier problem.Tier, r *Request, pick TilePicker) (shared uint64, reason string) {
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
	v.askDevice(dev)
	if t, ok := v.Tile.(f32Tile); ok {
		of := termType(r.Experiment.HalfTerms)
		v.ordered = accumulatorIsOperandA(dev, of, t.fragment) &&
			(!hasPairs(dev.Caps(), tier, t.fragment) || accumulatorIsOperandA(dev, problem.F16, t.fragment))
		plan.Notes = append(plan.Notes, termsNote(of))
	}
	plan.DecodePart = nil
	if twoClasses {
		if plan.DecodePart, reason = fixedDecodePart(dev, cfg, tier, &v, r); reason != "" {
			return 0, reason
		}
	}
	plan.Tuning = problem.TileHeuristic
	if pick != nil && !v.Options.Any() && cfg.FixedSplit == 0 {
		r.seeClass(cfg.Causal)
		var notes []string
		v.Tile, shared, plan.Tuning, notes = picked(dev.Caps(), pick, v, shared, *cfg, *r)
		if r.Experiment.Tile != "" && plan.Tuning != problem.TileNamed {
			return 0, notes[len(notes)-1]
		}
		plan.Notes = append(plan.Notes, notes...)
	}
	if why := v.whyNotDecode(&of, noDecodeKernel); why != "" {
		plan.Notes = append(plan.Notes, "the decode kernel is not used: "+why)
	}
	plan.Variant, plan.Workgroups, plan.Splits, plan.WorkspaceBytes = v, workgroups(v, r.Shape), 1, 0
	return shared, ""
}

// chooseSplits fills in the splits of the general or decode kernel, and the decode part of
// a mixed batch. It returns false if one workgroup computes all keys of a row and the call
// has no options: the dense kernel is then faster.
func (plan *chosen) chooseSplits(dev *vk.Device, cfg *problem.Config, tier problem.Tier, r *Request, shared uint64) bool {
	v := &plan.Variant
	if !v.Options.Any() {
		return true
	}
	plan.Splitting = splittingOf(dev.Caps(), cfg, v, r, shared)
	splits := plan.Splitting.Of(r)
	plan.Splits = splits * v.Tile.Splits()
	v.Options.split = plan.Splits > 1 || r.Options.split
	v.Options.Combined = plan.DecodePart == nil && !r.Options.split && v.combines(r, plan.Splits)
	v.Options.CombinedLSE = v.Options.Combined && r.LSE
	v.lse = v.lse || v.Options.split
	v.chooseMap(cfg, r)
	if !v.Options.Any() || plan.Splits == 1 && LeavesCores(dev.Caps(), cfg, r) && !r.Options.Any() {
		return false
	}
	plan.Workgroups, plan.WorkspaceBytes = v.workgroups(r, splits), plan.workspace(cfg, r, splits)
	if plan.DecodePart == nil {
		plan.DecodePart = decodePartVariant(dev, cfg, tier, v, r)
	}
	if short := plan.DecodePart; short != nil {
		v.Options.decodePartRows = short.Options.decodePartRows
		short.lse, short.Options.split = v.lse, v.Options.split
		plan.DecodeTile = short.Tile.String()
		plan.Workgroups += short.workgroups(r, splits)
	}
	return true
}

// picked returns the tile that pick chooses for v, its shared memory and its source. v has
// the heuristic's tile, which stays if pick has none that fits.
func picked(caps *vk.Caps, pick TilePicker, v Variant, shared uint64, cfg problem.Config, r Request) (t tile, bytes uint64, source string, notes []string) {
	heuristic := v.Tile
	t, source, notes = pick(v, cfg, r)
	if source == "" {
		return heuristic, shared, problem.TileHeuristic, notes
	}
	v.Tile = t
	bytes, reason := Fits(caps, v, r.Shape)
	if reason != "" {
		if source == problem.TileNamed {
			return heuristic, shared, problem.TileHeuristic, append(notes, reason)
		}
		return heuristic, shared, problem.TileHeuristic, append(notes, "the tuned tile of this class is ignored: "+reason)
	}
	return t, bytes, source, notes
}

// noF32Outputs is what CUDA's kernels lack for Config.F32O and F32Gradients, and noF32O what
// the kernels of gradients lack for Config.F32O.
const (
	noF32Outputs = "O and gradients have the storage type of Q"
	noF32O       = "gradients of an O that has not the storage type of Q"
)

// chooseVariant picks the first tile of a tier that is within the device's limits, or
// returns the reason why there is none.
func chooseVariant(caps *vk.Caps, cfg problem.Config, tier problem.Tier, r Request) (v Variant, shared uint64, reason string) {
	v = Variant{
		dtype:   cfg.DType,
		headDim: uint32(cfg.HeadDim), headDimV: uint32(cfg.ValueDim()),
		causal: cfg.Causal != problem.CausalNone, lse: r.LSE, align: r.Align, Experiment: r.Experiment, Options: r.Options,
		modifiers: score.Modifiers{Score: cfg.ScoreMod, Mask: cfg.MaskMod},
	}
	if why := r.Options.notInVulkan(); why != "" {
		return v, 0, why
	}
	if r.Access == problem.AccessAddresses && !caps.BufferDeviceAddress {
		return v, 0, caps.Without(append(tierNeeds(tier, cfg.DType), dispatch.NeedAddresses)...)
	}
	if cfg.DType == problem.F32 && tier != problem.TierScalar {
		if reason := f32Refusal(&cfg, &v, &r); reason != "" {
			return v, 0, reason
		}
		if cfg.Tier.Auto() && Decodes(caps, &cfg, &r) {
			return v, 0, "few query rows: tier scalar splits their keys"
		}
	} else if v.Options.Any() || Decodes(caps, &cfg, &r) || LeavesCores(caps, &cfg, &r) {
		if r.Experiment != (problem.Experiment{}) {
			return v, 0, "only dense kernels have variants and ablations"
		}
		if reason := generalFits(&caps.Limits, &cfg, r.Access); reason != "" {
			return v, 0, reason
		}
		if g := r.Shape.Group(); g > 1 {
			v.Options.packRows = uint32(g)
		}
		v.Options.split = true // the tile must fit with the shared memory of a split; chooseSplits decides
	}
	tiles, reason := tilesOf(caps, &cfg, tier, &v, &r)
	if reason != "" {
		return v, 0, reason
	}
	reason = "no tile fits the shape"
	for _, t := range tiles {
		v.Tile = t
		if v.IsDecode() {
			v.Options.packRows = max(v.Options.packRows, 1) // the decode kernel packs rows even of a single head
		}
		v.module = dispatch.ModuleName(kernelName(tier, cfg.DType)+v.family(), r.Access)
		if shared, reason = Fits(caps, v, r.Shape); reason == "" {
			return v, shared, ""
		}
	}
	return v, 0, reason
}

// tilesOf lists a tier's tiles for a request, best first, or returns what the tier lacks.
func tilesOf(caps *vk.Caps, cfg *problem.Config, tier problem.Tier, v *Variant, r *Request) (list []tile, reason string) {
	rows := uint32(r.queries()) // rows of a sequence and head, or of a packed group
	if v.Options.packRows != 0 {
		rows = r.decodeRows()
	}
	if tier == problem.TierScalar {
		if r.Experiment != (problem.Experiment{Tile: r.Experiment.Tile}) {
			return nil, "only cooperative-matrix kernels have variants and ablations"
		}
		return scalarTiles(&caps.Limits, v.headDimV, rows), ""
	}
	half := r.Experiment.HalfTerms
	var f fragment
	switch {
	case cfg.DType == problem.F32:
		f, reason = pickTerms(caps, tier, half)
	case half:
		reason = "only float32 has terms"
	default:
		f, reason = pickFragment(caps, tier, cfg.DType)
	}
	if reason != "" {
		return nil, reason
	}
	if s := cfg.ScaleValue(); math.Abs(float64(s)) > maxFastScale && !r.AnyArgs && !v.Options.modifies() {
		return nil, fmt.Sprintf("a scale of %g takes scores over %d, see MaxFastScore", s, problem.MaxFastScore)
	}
	if cfg.DType == problem.F32 {
		return f32Tiles(f, v, rows, caps.Limits.MaxInvocations, hasPairs(caps, tier, f)), ""
	}
	fixed := cfg.FixedSplit > 0
	if fixed {
		of := r.anyLength() // the same tile for every bound of the lengths
		r = &of
	}
	if v.Options.Any() {
		list = decodeTiles(caps, f, v, r, fixed)
		if rows <= fewRows*f.M {
			return append(list, splitKVTiles(caps, f, v, r, fixed)...), ""
		}
	}
	few := !fixed && r.blocks() <= uint64(caps.ShaderCores)
	best := chooseCoopmatTile(caps, tier, v, r, cfg, few)
	return append(list, coopmatTiles(f, best, v, rows, caps.Limits.MaxInvocations)...), ""
}

// Fits checks a variant against the device's limits before anything is compiled. It
// returns the shared memory of a workgroup in bytes, or the reason why a limit is exceeded.
func Fits(caps *vk.Caps, v Variant, s problem.Shape) (shared uint64, reason string) {
	if t, ok := v.Tile.(f32Tile); ok && t.PairTile > 0 && !hasPairs(caps, problem.TierCoopMat, t.fragment) {
		return 0, fmt.Sprintf("tile %v needs fragments of float16 of the same size", t)
	}
	if reason := shapeFits(caps, v, s); reason != "" && !v.Options.Any() { // the grid of a call with options: see prepared.grid
		return 0, reason
	}
	shared, err := v.sharedBytes()
	switch {
	case err != nil:
		return 0, err.Error()
	case shared > uint64(caps.Limits.MaxSharedBytes):
		return 0, fmt.Sprintf("tile %v needs %d bytes of shared memory, the device has %d", v.Tile, shared, caps.Limits.MaxSharedBytes)
	}
	return shared, ""
}

// shapeFits is the part of fits that does not read the SPIR-V.
func shapeFits(caps *vk.Caps, v Variant, s problem.Shape) string {
	l, t := &caps.Limits, v.Tile
	n, subgroup := t.LocalSize(), t.SubgroupSize()
	switch {
	case n > l.MaxInvocations || n > l.MaxWorkGroupSize[0]:
		return fmt.Sprintf("tile %v needs %d invocations, the device has %d", t, n, min(l.MaxInvocations, l.MaxWorkGroupSize[0]))
	case subgroup != 0 && l.MaxSubgroupsPerWorkgroup != 0 && n/subgroup > l.MaxSubgroupsPerWorkgroup:
		return fmt.Sprintf("tile %v needs %d subgroups, the device has %d", t, n/subgroup, l.MaxSubgroupsPerWorkgroup)
	}
	return gridFits(caps, v, s)
}

// gridFits checks the limit of the grid that holds even if heads and batches are divided
// among several dispatches.
func gridFits(caps *vk.Caps, v Variant, s problem.Shape) string {
	if n := arith.CeilDiv32(uint32(s.Sq), v.Tile.Rows()); n > caps.Limits.MaxWorkGroupCount[0] {
		return fmt.Sprintf("%d row blocks, the device dispatches %d", n, caps.Limits.MaxWorkGroupCount[0])
	}
	return ""
}

// kernelName returns the name of a tier's dense kernel, without the access.
func kernelName(tier problem.Tier, t problem.DType) string {
	if tier == problem.TierScalar {
		return "scalar" // one module for all three storage types
	}
	return fmt.Sprintf("%v_%v", tier, t)
}

// family returns the part of a module's name that distinguishes the kernels of a tier,
// "" for the dense kernel: scalar_ssbo, scalar_general_ssbo, coopmat_f16_decode_ssbo.
func (v *Variant) family() string {
	switch {
	case v.IsDecode():
		return "_decode"
	case v.Experiment.HalfTerms:
		return termsName(true)
	case v.Options.Any():
		return "_general"
	}
	return ""
}

// workgroups returns the number of workgroups of a dense dispatch.
func workgroups(v Variant, s problem.Shape) uint64 {
	return uint64(arith.CeilDiv32(uint32(s.Sq), v.Tile.Rows())) * uint64(s.Hq) * uint64(s.B) * uint64(v.Slices())
}

// Slices returns how many workgroups share the columns of O of a row block.
func (v Variant) Slices() uint32 { return arith.CeilDiv32(v.headDimV, v.Tile.columns()) }

// Flops, like every size of a plan, saturates: a shape may be larger than any memory.
func Flops(cfg problem.Config, s problem.Shape) uint64 {
	return hostmem.Product(2, uint64(s.B), uint64(s.Hq), uint64(cfg.HeadDim+cfg.ValueDim()), s.Cells(cfg.Causal))
}

func tensorBytes(cfg problem.Config, s problem.Shape, lse bool) uint64 {
	rows, keys := uint64(s.Rows()), hostmem.Product(s.B, s.KVHeads(), s.Sk)
	d, dv, size := uint64(cfg.HeadDim), uint64(cfg.ValueDim()), uint64(cfg.DType.Size())
	n := hostmem.Sum(hostmem.Product(rows, d*size+dv*uint64(cfg.OType().Size())), hostmem.Product(keys, (d+dv)*size))
	if lse {
		n = hostmem.Sum(n, hostmem.Product(rows, 4))
	}
	return n
}

// whyNotDecode returns the reason why a call with few rows on a tier of cooperative
// matrices does not run the decode kernel. It is "" if it does run it, and for all other
// calls. device is the reason that chooseOperands returned.
func (v *Variant) whyNotDecode(r *Request, device string) string {
	t, ok := v.Tile.(coopmatTile)
	switch {
	case !ok, !v.Options.Any(), r.decodeRows() > fewRows*t.M:
		return ""
	case device != "":
		return device
	}
	return "no tile of it is within the device's limits"
}
