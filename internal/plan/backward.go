package plan

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"vkattn/attention/score"
	"vkattn/internal/arith"
	"vkattn/internal/dispatch"
	"vkattn/internal/grid"
	"vkattn/internal/hostmem"
	"vkattn/internal/problem"
	"vkattn/internal/tensors"
	"vkattn/shaders"
	"vkattn/vk"
)

// BackwardKernel is a kernel of a plan with what an operation needs to run it.
type BackwardKernel struct {
	problem.PlanKernel
	Variant BackwardVariant
	Groups  [3]uint32
	Table   int // of tensors.Tables, whose gradient it computes
	MapSize problem.MapSize
	Map     MapVariant // makes its map of tiles, see TakesMap
}

// chosenBackward is a BackwardPlan with what an operation needs to compute it. Kernels
// shadows the list of the plan.
type chosenBackward struct {
	problem.BackwardPlan
	Kernels []BackwardKernel
	Chunks  BackwardChunks
	CUDA    problem.CUDABackward // for TierCUDA, which uses none of the fields above

	modifierNotes []string
}

// BackwardRequest is all that a backward plan depends on.
type BackwardRequest struct {
	Shape          problem.Shape
	Access         problem.Access // AccessAddresses or AccessDescriptors, never AccessAuto
	Align          [tensors.BackwardCount]uint32
	Want           tensors.GradientSet
	DLSE           bool
	Accumulate     bool
	PartialKeys    bool // LSE is of more keys, so it has no rests
	Options        Options
	TotalQ, TotalK int    // packed rows and keys
	Bias           [3]int // sizes of the bias, with Want.Bias
	Tables         [score.MaxTables]TableRequest
	CUDARefusal    string // what keeps tier cuda from a call, other than the problem; "": nothing
	MaxDSBytes     uint64 // most bytes of dS in scratch; 0: maxDSBytes
	HalfTerms      bool   // see problem.Experiment
	BlockMap       bool   // the call brings maps of tiles
	Maps           MapsPer
	NoMaps         bool // no kernel takes a map; tests set it
}

// packed reports whether the call has cumulative lengths: LengthCuQ or lengthCuK.
func (r *BackwardRequest) packed(lengths uint32) bool { return r.Options.Lengths&lengths != 0 }

// StatRows returns the rows that have statistics.
func (r *BackwardRequest) StatRows() uint64 {
	if r.packed(LengthCuQ) {
		return hostmem.Product(r.Shape.Hq, r.TotalQ)
	}
	return uint64(r.Shape.Rows())
}

// MakeBackward decides how a backward request is computed. A nil dev selects the CPU
// tier. A tier that the Config asks for is the only one: what it does not compute is
// refused.
//
// If pick is given, it may replace the tile of a kernel.
func MakeBackward(dev *vk.Device, cfg *problem.Config, r *BackwardRequest, pick BackwardPicker) (chosenBackward, error) {
	plan := chosenBackward{BackwardPlan: problem.BackwardPlan{Access: r.Access, Flops: hostmem.Product(Flops(*cfg, r.Shape)/2, 5), Bytes: backwardBytesOf(cfg, r)}}
	plan.setModifiers(cfg, r)
	if err := checkDevice(dev, cfg.Tier); err != nil {
		return plan, err
	}
	switch {
	case dev == nil:
		plan.Tier, plan.Reason = problem.TierCPU, noDevice
		return plan, nil
	case cfg.Tier == problem.TierCubin:
		return plan, fmt.Errorf("%w: gradients of %v %v: tier cubin has none", problem.ErrUnsupported, *cfg, r.Shape)
	case MayCUDA(cfg):
		err := planBackwardCUDA(&plan, dev, cfg, r)
		switch {
		case err == nil:
			return plan, nil
		case !errors.Is(err, vk.ErrUnsupported):
			return plan, err
		case cfg.Tier == problem.TierCUDA:
			return plan, fmt.Errorf("%w: gradients of %v %v: %v", problem.ErrUnsupported, *cfg, r.Shape, err)
		}
		plan.Rejected = append(plan.Rejected, problem.Rejection{Tier: problem.TierCUDA, Reason: err.Error()})
	}
	on := backwardDevice{
		caps: dev.Caps(), onCPU: dev.Info().Type == vk.DeviceCPU,
		accumulatorIsOperandA: func(t problem.DType, f fragment) bool { return accumulatorIsOperandA(dev, t, f) },
	}
	tiers, best := tiersOf(dev.Info(), cfg.Tier)
	for i, tier := range tiers {
		reason := plan.chooseKernels(&on, cfg, tier, r, pick)
		if reason == "" {
			plan.Tier, plan.Reason = tier, best
			plan.Rejected = append(plan.Rejected, notFaster(on.caps, cfg, tier, tiers[i+1:], r.HalfTerms)...)
			return plan, nil
		}
		plan.Rejected = append(plan.Rejected, problem.Rejection{Tier: tier, Reason: reason})
	}
	var why []string
	for _, x := range plan.Rejected {
		why = append(why, fmt.Sprintf("%v: %s", x.Tier, x.Reason))
	}
	return plan, fmt.Errorf("%w: gradients of %v %v on %s: %s", problem.ErrUnsupported, *cfg, r.Shape, dev.Info().Name, strings.Join(why, "; "))
}

// setModifiers fills in the texts of the modifiers, and a note on the derivatives that are taken for 0.
func (plan *chosenBackward) setModifiers(cfg *problem.Config, r *BackwardRequest) {
	plan.modifierNotes = nil
	if cfg.MaskMod.Given() {
		plan.MaskMod = cfg.MaskMod.String()
	}
	if cfg.ScoreMod.Given() {
		plan.ScoreMod = cfg.ScoreMod.String()
		if steps := cfg.ScoreMod.Steps(wantedTablesOf(cfg, r)...); len(steps) > 0 {
			plan.modifierNotes = []string{"the score modifier has steps: the derivative of " + strings.Join(steps, ", ") + " is taken for 0"}
		}
	}
	plan.Notes = plan.modifierNotes
}

// Parameters and bindings of the kernels of gradients. With addresses the parameters are push
// constants, with descriptors a binding, which has the sizes of the tables of modifiers too. Tables
// have the bindings behind it.
const (
	BackwardPushBytes     = GeneralPushBytes
	BackwardParamBytes    = BackwardPushBytes + 16*score.MaxTables
	BackwardParamsBinding = shaders.BackwardParamsBinding
	BackwardBindings      = BackwardParamsBinding + 1
	MostBackwardBindings  = BackwardBindings + score.MaxTables
)

// StatBytes is the size of a row's LSE and delta in bytes. Behind the LSE and delta of all
// rows, scratch memory holds two more numbers per row; see shaders/backward_interface.glsl.
const StatBytes = 8

// StatsBytes returns the bytes of the statistics of all rows.
func (r *BackwardRequest) StatsBytes() uint64 { return hostmem.Product(r.StatRows(), 2*StatBytes) }

// dropoutBytes are the bytes of the dropout mask behind the statistics, see
// shaders/dropout.glsl.
const dropoutBytes = 16

// DSOffset returns where dS begins in scratch memory: behind the statistics and the dropout
// mask.
func (r *BackwardRequest) DSOffset() uint64 {
	if r.Options.dropout {
		return hostmem.Sum(r.StatsBytes(), dropoutBytes)
	}
	return r.StatsBytes()
}

// backwardDevice is what the kernels of a plan depend on.
type backwardDevice struct {
	caps                  *vk.Caps
	onCPU                 bool
	accumulatorIsOperandA func(problem.DType, fragment) bool
}

// chooseKernels fills in the kernels of a tier, or returns the reason why it cannot run.
func (plan *chosenBackward) chooseKernels(on *backwardDevice, cfg *problem.Config, tier problem.Tier, r *BackwardRequest, pick BackwardPicker) (reason string) {
	caps := on.caps
	if why := r.Options.notInVulkan(); why != "" {
		return why
	}
	if reason := backwardFits(&caps.Limits, cfg, r.Access); reason != "" {
		return reason
	}
	if r.Access == problem.AccessAddresses && r.WantsTables() {
		return "gradients of tables take descriptors"
	}
	if r.Access == problem.AccessAddresses && !caps.BufferDeviceAddress {
		return caps.Without(append(tierNeeds(tier, cfg.DType), dispatch.NeedAddresses)...)
	}
	if cfg.OType() != cfg.DType {
		return noF32O
	}
	v := backwardVariantOf(on, cfg, tier, r)
	var f fragment
	if tier != problem.TierScalar {
		if f, reason = v.useFragments(on, cfg, tier, r); reason != "" {
			return reason
		}
	}
	plan.Notes = slices.Clone(plan.modifierNotes)
	mapAt := r.mapPlace(cfg, on.onCPU)
	ofTerms := v.ofTerms(tier)
	if ofTerms {
		v.stages = v.inStages(cfg, r, pick)
		if r.Want.K && r.Want.V && !v.stages { // NVIDIA's compiler drops stores of elements of dK next to vectors of dV (docs/log/backward.md, 19)
			least := min(v.align[tensors.BackwardDK], v.align[tensors.BackwardDV])
			v.align[tensors.BackwardDK], v.align[tensors.BackwardDV] = least, least
		}
		plan.Chunks = f32ChunksOf(v.stages, f, r, dsBudget(caps, r))
		plan.Notes = append(plan.Notes, termsNote(termType(r.HalfTerms)))
	} else if mapAt == 0 { // with a map no dS of the tiles that it leaves out would be stored
		plan.Chunks = chunksOf(&v, tier, f, r, dsBudget(caps, r))
	}
	chunked := plan.Chunks.Heads > 0
	v.storeDS = chunked
	if chunked && !ofTerms && !v.causal && r.Options == (Options{}) {
		v.rareWork = markRareWork
	}
	kernels := []BackwardKernel(nil)
	for _, k := range append(wantedKernels(caps, tier, r, chunked, mapAt != 0, v.stages), wantedTables(cfg, r)...) {
		one := BackwardKernel{PlanKernel: problem.PlanKernel{Outputs: k.outputs}, Variant: v.forKernel(k.kernel), Table: k.table}
		if k.kernel == KernelDTable {
			one.Variant.ofTable(cfg, r, k.table)
		}
		if reason = one.choose(&caps.Limits, tier, f, k.scalar, k.coopmat, r); reason == "" {
			var notes []string
			if notes, reason = one.replaceTile(&caps.Limits, cfg, r, pick); reason == "" {
				reason = one.setGrid(&caps.Limits, r)
			}
			for _, n := range notes {
				if !slices.Contains(plan.Notes, n) { // a note on the cache is of all kernels
					plan.Notes = append(plan.Notes, n)
				}
			}
		}
		if reason != "" {
			return k.outputs + ": " + reason
		}
		one.chooseMap(cfg, r, mapAt)
		kernels = append(kernels, one)
	}
	if !ofTerms {
		plan.Chunks.balance(caps, kernels, r)
	}
	plan.Chunks.leaveRareWork(kernels)
	plan.ScratchBytes = hostmem.Sum(r.DSOffset(), plan.Chunks.DSBytes, plan.Chunks.MarkBytes)
	for i := range kernels {
		plan.ScratchBytes = hostmem.Sum(plan.ScratchBytes, kernels[i].TableBytes(), kernels[i].MapBytes())
	}
	plan.Kernels, plan.BackwardPlan.Kernels = kernels, nil
	for _, k := range kernels {
		plan.BackwardPlan.Kernels = append(plan.BackwardPlan.Kernels, k.PlanKernel)
	}
	return ""
}

// choose fills in the module and the first tile of the tier's table that is within the
// device's limits, or returns the reason why there is none.
func (k *BackwardKernel) choose(limits *vk.Limits, tier problem.Tier, f fragment, scalar []backwardTile, coopmat []backwardTableTile, r *BackwardRequest) (reason string) {
	v := &k.Variant
	name := "backward_" + backwardKernelNames[v.Kernel]
	tiles := []tile{nil} // the kernel has no tile
	switch {
	case coopmat != nil && tier != problem.TierScalar && v.dtype == problem.F32:
		name = fmt.Sprintf("backward_%v_f32%s_%s", tier, termsName(v.halfTerms), v.f32Module())
		tiles = tiles[:0]
		for _, t := range v.f32Tiles(limits, f) {
			if v.onCPU {
				t = t.shortened()
			}
			tiles = append(tiles, t)
		}
	case coopmat != nil && tier != problem.TierScalar:
		name = fmt.Sprintf("backward_%v_%v_%s", tier, v.dtype, backwardKernelNames[v.Kernel])
		tiles = tiles[:0]
		for _, t := range backwardCoopmatTiles(limits, coopmat, f, v.headDim, v.headDimV, v.inRegisters) {
			if v.onCPU {
				t = t.shortened()
			}
			tiles = append(tiles, t)
		}
	case scalar != nil:
		name = fmt.Sprintf("backward_%v_%s", problem.TierScalar, backwardKernelNames[v.Kernel])
		tiles = tiles[:0]
		for _, t := range backwardTiles(limits, scalar, v.dim()) {
			tiles = append(tiles, t)
		}
	}
	if v.Kernel == KernelTableSum {
		name = "backward_table_sum"
	}
	v.module = dispatch.ModuleName(name, r.Access)
	k.Kernel = v.module
	reason = fmt.Sprintf("no tile of head dims %d and %d is within the device's invocations", v.headDim, v.headDimV)
	if f.M != 0 {
		reason += fmt.Sprintf(", with fragments of %dx%d", f.M, f.N)
	}
	for _, t := range tiles {
		v.setTile(t)
		if k.SharedBytes, reason = v.fits(limits); reason == "" {
			k.nameTile()
			return ""
		}
	}
	return reason
}

// nameTile fills in the text of the tile.
func (k *BackwardKernel) nameTile() {
	k.Tile = ""
	if k.Variant.tile() != nil {
		k.Tile = k.Variant.tile().String()
	}
}

// replaceTile asks pick for a tile in place of the table's. A tile that cannot run is ignored
// with a note, or refused if pick insists on it.
func (k *BackwardKernel) replaceTile(limits *vk.Limits, cfg *problem.Config, r *BackwardRequest, pick BackwardPicker) (notes []string, reason string) {
	if k.Variant.tile() == nil {
		return nil, ""
	}
	k.Tuning = problem.TileHeuristic
	if pick == nil {
		return nil, ""
	}
	p := pick(k.Variant, cfg, r)
	if p.Source == "" || p.Refuse != "" {
		return p.Notes, p.Refuse
	}
	v := k.Variant
	v.setTile(p.Tile)
	shared, reason := v.fits(limits)
	if reason == "" {
		on := *k
		on.Variant = v
		reason = on.setGrid(limits, r)
	}
	switch {
	case reason == "":
		k.Variant, k.SharedBytes, k.Tuning = v, shared, p.Source
		k.nameTile()
	case p.Only:
		return p.Notes, reason
	default:
		p.Notes = append(p.Notes, fmt.Sprintf("the tuned tile of %s is ignored: %s", k.Outputs, reason))
	}
	return p.Notes, ""
}

// setGrid fills in the workgroups, or returns the limit that they exceed. Row statistics, heads
// and batches take as many dispatches as they need.
func (k *BackwardKernel) setGrid(limits *vk.Limits, r *BackwardRequest) (reason string) {
	v, s := &k.Variant, &r.Shape
	blocks := func(n int, of uint32) uint64 { return arith.CeilDiv64(uint64(n), uint64(of)) }
	var groups [3]uint64
	switch v.Kernel {
	case KernelStats:
		k.Workgroups = arith.CeilDiv64(r.StatRows(), uint64(BackwardLocal/v.LanesPerRow()))
		return ""
	case KernelLSE, KernelDQ, KernelDSK:
		packed := max(1, int(v.Options.packRows))
		groups = [3]uint64{blocks(s.Sq*packed, v.OwnedRows()), uint64(s.Hq / packed), uint64(s.B)}
		if r.packed(LengthCuQ) {
			groups[0], groups[2] = packedBlocks(uint64(r.TotalQ*packed), v.OwnedRows(), s.B), 1
		}
	case KernelScores, KernelDV, KernelDK, KernelDKDV:
		groups = [3]uint64{blocks(s.Sk, v.OwnedRows()), uint64(s.KVHeads()), uint64(s.B)}
		if r.packed(lengthCuK) {
			groups[0], groups[2] = packedBlocks(uint64(r.TotalK), v.OwnedRows(), s.B), 1
		}
	case KernelDBias:
		groups = [3]uint64{blocks(r.Bias[2], v.Tile.QTile) * blocks(s.Sk, v.Tile.KVTile), uint64(r.Bias[1]), uint64(r.Bias[0])}
	case KernelDSinks:
		groups = [3]uint64{uint64(s.Hq), 1, 1}
	case KernelDTable:
		groups = r.tableGroups(v.Tile.QTile)
	case KernelTableSum:
		t := r.Tables[k.Table]
		groups = [3]uint64{blocks(t.Entries, BackwardLocal), min(uint64(t.Heads), uint64(limits.MaxWorkGroupCount[1])), 1}
	}
	for i, n := range groups {
		k.Groups[i] = uint32(min(n, math.MaxUint32))
		if n <= uint64(limits.MaxWorkGroupCount[i]) {
			continue
		}
		reason := fmt.Sprintf("a grid of %v workgroups, the device dispatches %v at once: ", groups, limits.MaxWorkGroupCount)
		switch {
		case v.Kernel == KernelDSinks:
		case i == 0:
			return reason + "row blocks are not divided"
		case v.Kernel == KernelDBias:
			return reason + "a bias has its gradient from one dispatch"
		case v.Kernel == KernelDTable:
			return reason + "a table has its gradient from one dispatch"
		case r.Options.dropout:
			return reason + OneDropout
		case r.Options.scoreMod != 0 || r.Options.maskMod:
			return reason + OneModified
		case r.Options.sparseTokens&sparseTopK != 0:
			return reason + OneTopK
		}
	}
	depth := v.GridDepth(s)
	if depth > limits.MaxWorkGroupCount[2] {
		return fmt.Sprintf("%d row tiles of scores, the device dispatches %v at once: row tiles are not divided", depth, limits.MaxWorkGroupCount)
	}
	k.Workgroups = groups[0] * groups[1] * groups[2] * uint64(depth)
	return ""
}

// Why a grid is not divided over several dispatches: with dropout, lists of one length, modifiers.
const (
	OneDropout  = "dropout numbers the heads of a dispatch"
	OneTopK     = "sparse tokens without offsets are not divided"
	OneModified = "a modifier takes the heads and batches of the whole call"
)

// Parts divides the grid of a kernel over dispatches. perY is the number of query heads at a
// place along y.
func (k *BackwardKernel) Parts(limits *vk.Limits, s *problem.Shape) (parts grid.Parts, perY int) {
	perY, group := max(1, int(k.Variant.Options.packRows)), s.Group()
	if k.Variant.ownsKeys() {
		perY = group
	}
	return grid.Parts{Heads: int(k.Groups[1]), Batches: int(k.Groups[2]), Group: max(1, group/perY),
		MostHeads: int(limits.MaxWorkGroupCount[1]), MostBatches: int(limits.MaxWorkGroupCount[2])}, perY
}

// backwardFits reports why backward modules do not fit a device's limits; "" if they do.
func backwardFits(l *vk.Limits, cfg *problem.Config, access problem.Access) string {
	bindings := uint32(BackwardBindings + len(tensors.Tables(cfg)))
	if access == problem.AccessAddresses { // tables and their sizes
		bindings -= BackwardParamsBinding
	}
	switch {
	case access == problem.AccessAddresses && PushTooSmall(l):
		return fmt.Sprintf("the device has %d bytes of push constants, backward kernels take %d with addresses; with descriptors they take none",
			l.MaxPushConstantBytes, BackwardPushBytes)
	case bindings > 1 && l.MaxStorageBuffers < bindings:
		return fmt.Sprintf("the device binds %d buffers, backward kernels take %d", l.MaxStorageBuffers, bindings)
	}
	return ""
}

// backwardBytesOf returns the bytes of the tensors that a backward call reads and writes.
func backwardBytesOf(cfg *problem.Config, r *BackwardRequest) uint64 {
	s := &r.Shape
	rows, keys := uint64(s.Rows()), hostmem.Product(s.B, s.KVHeads(), s.Sk)
	d, dv, size := uint64(cfg.HeadDim), uint64(cfg.ValueDim()), uint64(cfg.DType.Size())
	bytes := hostmem.Sum(hostmem.Product(hostmem.Sum(rows, keys), (d+dv)*size), hostmem.Product(rows, dv*uint64(cfg.OType().Size())+4))
	for _, out := range []struct {
		wanted bool
		n, dim uint64
	}{{r.Want.Q, rows, d}, {r.Want.K, keys, d}, {r.Want.V, keys, dv}} {
		if out.wanted {
			bytes = hostmem.Sum(bytes, hostmem.Product(out.n, out.dim, uint64(cfg.GradientType().Size())))
		}
	}
	return bytes
}
