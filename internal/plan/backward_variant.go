package plan

import (
	"fmt"
	"math"

	"vkattn/attention/score"
	"vkattn/internal/dispatch"
	"vkattn/internal/problem"
	"vkattn/internal/tensors"
	"vkattn/shaders"
	"vkattn/vk"
)

// backwardKernel is one of the kernels of a backward call.
type backwardKernel uint8

// The kernels, in the order in which they are recorded.
const (
	KernelStats    backwardKernel = iota // LSE and delta of each row
	KernelLSE                            // the rests of LSE: what float32 rounds off
	KernelDQ                             // dQ
	KernelScores                         // P and dS of a chunk of heads, see backward_f32.go
	KernelDV                             // dV = P^T dO of a chunk
	KernelDK                             // dK = dS^T Q of a chunk
	KernelDKDV                           // dK and dV
	KernelDSK                            // dQ = dS K
	KernelDBias                          // dBias
	KernelDSinks                         // dSinks
	KernelDTable                         // sums for a table of the score modifier, of each workgroup
	KernelTableSum                       // and their sum
	backwardKernels
)

// rareWork says, with KernelDKDV, which part of the workgroups a dispatch computes
// (shaders/backward_coopmat_kv.comp).
type rareWork uint8

const (
	noRareWork   rareWork = iota // one dispatch computes all
	markRareWork                 // it marks those with rare inputs and leaves them out
	onlyRareWork                 // it computes the marked ones
)

// backwardKernelNames are the parts of module names that name the kernels.
var backwardKernelNames = [backwardKernels]string{"delta", "lse", "q", "scores", "dv", "dk", "kv", "add", "bias", "sinks", "table", "sum"}

// BackwardLocal is the workgroup size of the kernels of row statistics, of dSinks and of the sums of
// tables, which every device has.
const BackwardLocal = 128

// BackwardVariant is everything that a backward pipeline depends on, as a value.
type BackwardVariant struct {
	Kernel      backwardKernel
	module      string
	onCPU       bool                // as Variant.onCPU
	inRegisters bool                // the device's order lets P and dS become operands in registers
	Tile        backwardTile        // of the scalar kernels; zero: the kernel has none
	Coopmat     backwardCoopmatTile // of the coopmat kernels; zero: as Tile
	F32         backwardF32Tile     // of the coopmat kernels of float32; zero: as Tile
	halfTerms   bool                // with F32: the terms are float16
	dtype       problem.DType
	headDim     uint32
	headDimV    uint32
	causal      bool
	align       [tensors.BackwardCount]uint32 // in elements; 0 of tensors that the kernel does not reach
	dLSE        bool
	accumulate  bool
	f32         bool // dQ, dK and dV are float32, whatever dtype
	dK, dV      bool // with KernelDKDV, KernelDK and KernelDV: the outputs
	storeDS     bool // with kernels that own keys: dS is in scratch memory
	stages      bool // with kernels of float32: KernelScores stores P and dS, see backward_f32.go
	rareWork    rareWork
	sumQueries  bool         // with KernelDBias: the bias has one row
	table       tableVariant // with KernelDTable
	dLSEInDelta bool         // with KernelStats: see shaders/backward_interface.glsl
	Options     Options
	modifiers   score.Modifiers // in place of the module's own
}

// tile is the tile of v, nil if it has none.
func (v *BackwardVariant) tile() tile {
	switch {
	case v.Tile != backwardTile{}:
		return v.Tile
	case v.Coopmat != backwardCoopmatTile{}:
		return v.Coopmat
	case v.F32 != backwardF32Tile{}:
		return v.F32
	}
	return nil
}

// localSize returns the workgroup size.
func (v *BackwardVariant) localSize() uint32 {
	if t := v.tile(); t != nil {
		return t.LocalSize()
	}
	return BackwardLocal
}

// OwnedRows returns the rows, or the keys of the kernel of dK and dV, that a workgroup owns.
func (v *BackwardVariant) OwnedRows() uint32 {
	switch {
	case v.Coopmat != backwardCoopmatTile{}:
		return v.Coopmat.Rows()
	case v.F32 != backwardF32Tile{} && v.Kernel == KernelLSE:
		return v.F32.RowTile
	case v.F32 != backwardF32Tile{}:
		return v.F32.Rows()
	case v.ownsKeys():
		return v.Tile.KVTile
	}
	return v.Tile.QTile
}

// TileRows returns the most query rows that a workgroup addresses from one position.
func (v *BackwardVariant) TileRows() uint32 {
	return max(v.Tile.QTile, v.Coopmat.Rows(), v.Coopmat.RowTile, v.F32.Rows(), v.F32.RowTile)
}

// TileKeys returns the most keys that a workgroup addresses from one position: none in the
// scalar kernels, which compute the position of each key.
func (v *BackwardVariant) TileKeys() uint32 {
	return max(v.Coopmat.Rows(), v.Coopmat.keys(), v.F32.Rows(), v.F32.keys())
}

// LanesPerRow returns how many invocations of the kernel of row statistics share a row:
// each has eight columns, so that their sums are added in the order of the tile product.
func (v *BackwardVariant) LanesPerRow() uint32 {
	n := uint32(1)
	for n*8 < v.headDimV {
		n *= 2
	}
	return n
}

// constants returns the specialization constants of a variant. No other code makes them.
func (v *BackwardVariant) constants() map[uint32]uint32 {
	c := map[uint32]uint32{shaders.ConstLocalSize: v.localSize()}
	if t := v.tile(); t != nil {
		tileConstants(t, c)
	}
	switch {
	case v.Coopmat.Subgroup != 0, v.F32.Subgroup != 0:
		c[shaders.ConstSubgroupBarrier] = dispatch.BoolConstant(!v.onCPU)
	default:
		c[shaders.ConstDtype] = uint32(v.dtype)
	}
	v.Options.constants(c)
	align := func(id uint32, tensor int) {
		if v.align[tensor] != 0 {
			c[id] = v.align[tensor]
		}
	}
	align(shaders.ConstAlignQ, tensors.BackwardQ)
	align(shaders.ConstAlignK, tensors.BackwardK)
	align(shaders.ConstAlignV, tensors.BackwardV)
	align(shaders.ConstAlignO, tensors.BackwardO)
	align(shaders.ConstAlignDo, tensors.BackwardDO)
	align(shaders.ConstAlignDv, tensors.BackwardDV)
	align(shaders.ConstAlignDx, tensors.BackwardDQ)
	align(shaders.ConstAlignDx, tensors.BackwardDK)
	c[shaders.ConstHeadDim], c[shaders.ConstHeadDimV] = v.headDim, v.headDimV
	c[shaders.ConstCausal] = dispatch.BoolConstant(v.causal)
	c[shaders.ConstStatLanes] = v.LanesPerRow()
	c[shaders.ConstHasDlse] = dispatch.BoolConstant(v.dLSE)
	c[shaders.ConstAccumulate] = dispatch.BoolConstant(v.accumulate)
	c[shaders.ConstF32Gradients] = dispatch.BoolConstant(v.f32)
	c[shaders.ConstHasDk], c[shaders.ConstHasDv] = dispatch.BoolConstant(v.dK), dispatch.BoolConstant(v.dV)
	c[shaders.ConstRareWork] = uint32(v.rareWork)
	c[shaders.ConstStoreDs] = dispatch.BoolConstant(v.storeDS)
	c[shaders.ConstSumQueries] = dispatch.BoolConstant(v.sumQueries)
	c[shaders.ConstTablePlaces], c[shaders.ConstTableEntries] = v.table.places, v.table.entries
	c[shaders.ConstDlseInDelta] = dispatch.BoolConstant(v.dLSEInDelta)
	return c
}

// code returns the SPIR-V of v.
func (v *BackwardVariant) code() (*shaders.Module, error) {
	m, err := codeOf(v.module, v.onCPU)
	if err == nil {
		m, err = m.Modified(v.modifiers)
	}
	return m, err
}

// Bindings returns the bindings of a module of the gradient kernels with descriptors.
func (v *BackwardVariant) Bindings(cfg *problem.Config) int {
	if v.modifiers == (score.Modifiers{}) {
		return BackwardBindings
	}
	return BackwardBindings + len(tensors.Tables(cfg))
}

// sharedBytes computes from the SPIR-V how much shared memory a workgroup of v takes.
func (v *BackwardVariant) sharedBytes() (uint64, error) {
	m, err := v.code()
	if err != nil {
		return 0, err
	}
	return sharedBytesOf(m, v.constants())
}

// Pipeline describes v to package vk.
func (v BackwardVariant) Pipeline(*problem.Config) (*vk.PipelineDesc, error) {
	m, err := v.code()
	if err != nil {
		return nil, err
	}
	desc, err := dispatch.DescribeKernel(m, v.localSize(), v.constants())
	if err != nil {
		return nil, err
	}
	desc.Name = fmt.Sprintf("%s %v d%d/%d", v.module, v.dtype, v.headDim, v.headDimV)
	if t := v.tile(); t != nil {
		desc.Name += " " + t.String()
		desc.SubgroupSize = t.SubgroupSize()
		desc.FullSubgroups = desc.SubgroupSize != 0
	}
	return desc, nil
}

// forKernel returns v for one kernel of its call. It keeps only the fields that the kernel
// depends on, so that calls share pipelines.
func (v BackwardVariant) forKernel(k backwardKernel) BackwardVariant {
	v.Kernel = k
	sinks := v.Options.sinks
	v.Options.sinks = false // they are in LSE
	keep := func(list ...int) {
		var align [tensors.BackwardCount]uint32
		for _, t := range list {
			align[t] = v.align[t]
		}
		v.align = align
	}
	if k != KernelStats {
		v.dLSE, v.dLSEInDelta = false, false
	}
	if k != KernelDQ && !v.ownsKeys() && k != KernelDSK || k == KernelScores {
		v.accumulate, v.f32 = false, false
	}
	if k != KernelDKDV {
		v.dK, v.dV, v.rareWork = k == KernelDK, k == KernelDV, noRareWork
	}
	if !v.ownsKeys() {
		v.storeDS, v.stages = false, v.stages && (k == KernelLSE || k == KernelDSK)
	}
	if k != KernelDBias {
		v.sumQueries = false
	}
	if k == KernelStats || k == KernelDSK || k == KernelDSinks || k == KernelTableSum { // they compute no scores
		v.modifiers, v.Options.scoreMod, v.Options.maskMod = score.Modifiers{}, 0, false
	}
	switch k {
	case KernelStats:
		keep(tensors.BackwardO, tensors.BackwardDO)
		v.causal, v.Options, v.headDim = false, Options{dropout: v.Options.dropout}, v.headDimV
	case KernelLSE:
		keep(tensors.BackwardQ, tensors.BackwardK, tensors.BackwardV, tensors.BackwardDO)
		v.Options.sinks = sinks
	case KernelScores:
		keep(tensors.BackwardQ, tensors.BackwardK, tensors.BackwardV, tensors.BackwardDO)
	case KernelDQ:
		keep(tensors.BackwardQ, tensors.BackwardK, tensors.BackwardV, tensors.BackwardDO, tensors.BackwardDQ)
	case KernelDSK:
		keep(tensors.BackwardK, tensors.BackwardDQ)
	case KernelDK:
		keep(tensors.BackwardQ, tensors.BackwardDK)
	case KernelDV:
		keep(tensors.BackwardDO, tensors.BackwardDV)
	case KernelDKDV:
		dX, dV := v.align[tensors.BackwardDK], v.align[tensors.BackwardDV]
		keep(tensors.BackwardQ, tensors.BackwardK, tensors.BackwardV, tensors.BackwardDO)
		if v.dK {
			v.align[tensors.BackwardDK] = dX
		}
		if v.dV {
			v.align[tensors.BackwardDV] = dV
		}
	case KernelDBias, KernelDTable:
		keep(tensors.BackwardQ, tensors.BackwardK, tensors.BackwardV, tensors.BackwardDO)
		v.Options.packRows = 0
	case KernelTableSum:
		keep()
		v.causal, v.dtype, v.headDim, v.headDimV, v.Options = false, 0, 1, 1, Options{}
	case KernelDSinks:
		keep()
		v.causal, v.dtype, v.headDim, v.headDimV = false, 0, 1, 1
		v.Options = Options{Lengths: v.Options.Lengths & (LengthCuQ | LengthUsedQ)}
	}
	return v
}

// backwardVariantOf is what all kernels of a request have in common on a tier. useFragments adds
// what depends on the fragments of the device.
func backwardVariantOf(on *backwardDevice, cfg *problem.Config, tier problem.Tier, r *BackwardRequest) BackwardVariant {
	v := BackwardVariant{
		onCPU: on.onCPU, dtype: cfg.DType, headDim: uint32(cfg.HeadDim), headDimV: uint32(cfg.ValueDim()),
		causal: cfg.Causal != problem.CausalNone, align: r.Align, dLSE: r.DLSE, accumulate: r.Accumulate, f32: cfg.GradientType() != cfg.DType,
		dK: r.Want.K, dV: r.Want.V, dLSEInDelta: tier != problem.TierScalar, sumQueries: r.Want.Bias && r.Bias[2] == 1 && r.Shape.Sq > 1, Options: r.Options,
		modifiers: score.Modifiers{Score: cfg.ScoreMod, Mask: cfg.MaskMod},
	}
	if g := r.Shape.Group(); g > 1 {
		v.Options.packRows = uint32(g)
	}
	return v
}

// ownsKeys reports whether workgroups own keys and loop over rows.
func (v *BackwardVariant) ownsKeys() bool { return v.Kernel >= KernelScores && v.Kernel <= KernelDKDV }

// ofTerms reports whether the kernels of a tier multiply float32 as sums of terms.
func (v *BackwardVariant) ofTerms(tier problem.Tier) bool {
	return v.dtype == problem.F32 && tier != problem.TierScalar
}

// useFragments picks the fragments of a coopmat tier and fills in what depends on them, or returns
// the reason why the tier does not compute the request.
func (v *BackwardVariant) useFragments(on *backwardDevice, cfg *problem.Config, tier problem.Tier, r *BackwardRequest) (f fragment, reason string) {
	storage := cfg.DType
	if v.ofTerms(tier) {
		f, reason = pickTerms(on.caps, tier, r.HalfTerms)
		storage, v.halfTerms, v.dLSEInDelta = termType(r.HalfTerms), r.HalfTerms, false
		if reason == "" {
			reason = backwardF32Refusal(cfg, f, r)
		}
	} else {
		f, reason = pickFragment(on.caps, tier, cfg.DType)
	}
	switch {
	case reason != "":
		return f, reason
	case r.Options.sparseTokens != 0:
		return f, "it computes no gradients with sparse tokens"
	case math.Abs(float64(cfg.ScaleValue())) > maxFastScale && !r.Options.modifies():
		return f, fmt.Sprintf("a scale of %g takes scores over %d, see MaxFastScore", cfg.ScaleValue(), problem.MaxFastScore)
	case cfg.DType == problem.BF16:
		if why := on.caps.Without(dispatch.NeedInt16); why != "" {
			return f, why
		}
	}
	// Tier coopmat2 converts fragments of float16 in registers on every device.
	v.inRegisters = tier == problem.TierCoopMat2 && cfg.DType == problem.F16 || on.accumulatorIsOperandA(storage, f)
	return f, ""
}
