package plan

import (
	"cmp"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"

	"vkattn/attention/score"
	"vkattn/internal/arith"
	"vkattn/internal/dispatch"
	"vkattn/internal/problem"
	"vkattn/internal/tensors"
	"vkattn/shaders"
	"vkattn/vk"
)

// Options are the options of a call as far as a kernel depends on them. They are part
// of a pipeline's key. The zero value selects the dense kernel, a module of its own that
// pays for no option; any other value selects the general kernel.
//
// A row says all that plans do with an option. The tag const names the specialization constant that the
// field becomes, or adds to. The tag cuda names an option that the kernels of tier cuda refuse, backward one that its
// backward kernels alone refuse, and forward one that its forward kernels take. The tag vulkan, in place of const, names an
// option that all SPIR-V kernels refuse. The kernels of tier cubin take lengths, a window and pages, and with quantized K and V what notInDecode says.
type Options struct {
	bias         uint32         `const:"BIAS" backward:"bias" forward:"bias"` // biasF16 and so on; 0: none
	mask         bool           `const:"MASK" backward:"mask" forward:"mask"`
	mapRows      uint32         `const:"SPARSE_BLOCK_Q" cuda:"block bitmap"`     // rows of a block
	mapKeys      uint32         `const:"SPARSE_BLOCK_K"`                         // and keys
	sparseTokens uint32         `const:"SPARSE_TOKENS" cuda:"sparse tokens"`     // sum of sparseLists and so on; 0: none
	alibi        uint32         `const:"ALIBI" backward:"ALiBi" forward:"ALiBi"` // 2: of each sequence; 0: none
	sinks        bool           `const:"SINKS" backward:"sinks" forward:"sinks"`
	chunk        uint32         `const:"WINDOW" cuda:"attention chunks"` // windowChunk, or 0
	dropout      bool           `const:"DROPOUT" backward:"dropout" forward:"dropout"`
	dropoutState bool           `vulkan:"dropout state" backward:"dropout" forward:"dropout state"`
	maxLogits    bool           `vulkan:"MaxLogits" forward:"MaxLogits"`    // an output of Forward: gradients do without
	scoreMod     uint32         `const:"SCORE_EXPR" cuda:"score modifiers"` // modOfSlot or modOfTile; Variant.modifiers has the expression
	maskMod      bool           `const:"MASK_EXPR" cuda:"mask modifiers"`   // likewise
	Lengths      uint32         `const:"VARLEN" forward:"lengths"`          // sum of LengthCuQ and so on
	pageSize     uint32         `const:"PAGE_SIZE" forward:"pages"`         // no tier computes its gradients
	window       uint32         `const:"WINDOW" forward:"window"`           // sum of windowLeft and windowRight
	softcap      bool           `const:"SOFTCAP" forward:"softcap"`
	KV           problem.KVType `const:"K_TYPE" cuda:"quantized K and V"` // no tier computes its gradients; of K, KVSame if V is stored as Q
	valueType    problem.KVType `const:"V_TYPE"`
	kvBlock      uint32         `const:"KV_SCALE_BLOCK"`

	// How the call is computed.
	packRows    uint32 `const:"PACK_GQA"`                  // query heads of a group that are packed as consecutive rows; 0: not packed
	split       bool   `const:"SPLIT" cuda:"O of float32"` // the kernel writes the state of a split
	Combined    bool   `const:"COMBINE"`                   // the same kernel combines the splits
	CombinedLSE bool   `const:"COMBINE"`                   // it stores LSE too

	tileMap       uint32 `const:"TILE_MAP"`        // mapAtMask or mapAtBias; 0: the kernel takes no map of its KV tiles
	lastRowsFirst bool   `const:"LAST_ROWS_FIRST"` // with a map: of a mask that leaves later rows more keys

	decodePartRows uint32 `const:"DECODE_PART_ROWS"` // sequences of at most this many rows run in the decode kernel's own dispatch; 0: all run in one
	isDecodePart   bool   `const:"IS_DECODE_PART"`   // this kernel is that dispatch
}

const (
	LengthCuQ = 1 << iota
	LengthUsedQ
	lengthCuK
	lengthUsedK
)

const (
	sparseLists  = 1 << iota
	sparsePerRow // each query row has a list
	sparseTopK   // lists have the same length
)

const (
	windowLeft = 1 << iota
	windowRight
	windowChunk // the left bound is the start of a chunk of windowLeft keys
)

// What a score modifier reads: Options.scoreMod.
const (
	modOfSlot = 1 + iota // the row, the key or the head
	modOfTile            // what is the same for all slots of a tile
)

func scoreModOf(e score.Expr) uint32 {
	switch {
	case !e.Given():
		return 0
	case slices.ContainsFunc([]score.Expr{score.I, score.J, score.Row, score.Head}, e.Reads):
		return modOfSlot
	}
	return modOfTile
}

// Any reports whether the call runs the general kernel.
func (f Options) Any() bool { return f != Options{} }

// OptionsOf returns the options that a call asks for. Row packing and splits are decided
// later, with the tile.
func OptionsOf(a *problem.Args, cfg *problem.Config) (f Options) {
	if w := cfg.Window; w.Given() {
		f.window = windowLeft*dispatch.BoolConstant(w.Left() >= 0) + windowRight*dispatch.BoolConstant(w.Right() >= 0)
	}
	f.chunk = windowChunk * dispatch.BoolConstant(cfg.AttentionChunk != 0)
	f.softcap, f.dropout = cfg.Softcap != 0, cfg.Dropout != 0
	f.scoreMod, f.maskMod = scoreModOf(cfg.ScoreMod), cfg.MaskMod.Given()
	f.split = cfg.OType() != cfg.DType // O of a split is float32, and so is what combine.comp makes of it
	if !tensors.HasOptions(a, cfg) {
		return f
	}
	if v := a.Varlen; v != nil {
		f.Lengths = LengthCuQ*dispatch.BoolConstant(v.CuQ.Given()) + LengthUsedQ*dispatch.BoolConstant(v.UsedQ.Given()) +
			lengthCuK*dispatch.BoolConstant(v.CuK.Given()) + lengthUsedK*dispatch.BoolConstant(v.UsedK.Given())
	}
	if a.Pages != nil {
		f.pageSize = uint32(a.Pages.PageSize)
	}
	if k := a.SparseTokens; k != nil {
		f.sparseTokens = sparseLists + sparsePerRow*dispatch.BoolConstant(k.PerRow) + sparseTopK*dispatch.BoolConstant(k.TopK != 0)
	}
	if a.Blocks != nil {
		f.mapRows, f.mapKeys = uint32(a.Blocks.BlockQ), uint32(a.Blocks.BlockK)
	}
	f.dropoutState, f.maxLogits = a.DropoutState.Given(), a.MaxLogits.Given()
	if a.ALiBi.Given() {
		f.alibi = 1 + dispatch.BoolConstant(a.ALiBiPerSequence)
	}
	f.sinks, f.mask = a.Sinks.Given(), a.Mask != nil
	if a.Bias != nil {
		f.bias = 1 + uint32(a.Bias.DType)
	}
	if f.KV, f.valueType = cfg.KeyType, cfg.ValueType; f.KV.Scaled() {
		f.kvBlock = max(uint32(cfg.KVBlock), 1) // those that are no numbers of keys as they are in kv_quant.glsl
	}
	return f
}

// BackwardOptionsOf is OptionsOf for gradients.
func BackwardOptionsOf(a *problem.Args, cfg *problem.Config) Options {
	f := OptionsOf(a, cfg)
	f.maxLogits = false
	return f
}

// optionFields are the fields of Options with their constants.
var optionFields = sync.OnceValue(func() (list []optionField) {
	for i, f := range reflect.VisibleFields(reflect.TypeFor[Options]()) {
		o := optionField{index: i, vulkan: f.Tag.Get("vulkan"), cuda: f.Tag.Get("cuda"), backward: f.Tag.Get("backward"), forward: f.Tag.Get("forward")}
		var ok bool
		if o.id, ok = shaders.ConstantID(f.Tag.Get("const")); ok == (o.vulkan != "") {
			panic("plan: want a specialization constant or a refusal of " + f.Name) // a test reads every tag
		}
		list = append(list, o)
	}
	return list
})

type optionField struct {
	index int
	id    uint32
	// What messages call an option that SPIR-V kernels do not take, that the kernels of tier cuda do not take, that its backward kernels do not take, and
	// that its forward kernels take.
	vulkan, cuda, backward, forward string
}

// constants adds the specialization constants of the options to c.
func (f Options) constants(c map[uint32]uint32) {
	v := reflect.ValueOf(f)
	for _, o := range optionFields() {
		if o.vulkan == "" {
			c[o.id] = 0
		}
	}
	for _, o := range optionFields() {
		if o.vulkan != "" {
			continue
		}
		if x := v.Field(o.index); x.Kind() == reflect.Bool {
			c[o.id] += dispatch.BoolConstant(x.Bool())
		} else {
			c[o.id] += uint32(x.Uint())
		}
	}
	c[shaders.ConstKvScaleBlock] = max(c[shaders.ConstKvScaleBlock], 1)
}

// notInVulkan says why SPIR-V kernels refuse a call with an option, "" if they take all.
func (f Options) notInVulkan() string {
	if option := f.first(func(o *optionField) string { return o.vulkan }); option != "" {
		return "its kernels take no " + option
	}
	return ""
}

// notInCUDABackward names an option that the backward kernels of tier cuda do not take, "" if they take all.
func (f Options) notInCUDABackward() string {
	return f.first(func(o *optionField) string { return cmp.Or(o.cuda, o.backward) })
}

// notInCUDA names an option that the forward kernels of tier cuda do not take, "" if they take all.
func (f Options) notInCUDA() string { return f.first(func(o *optionField) string { return o.cuda }) }

// first is the first name that is not empty of the options of the call.
func (f Options) first(name func(o *optionField) string) string {
	v := reflect.ValueOf(f)
	for _, o := range optionFields() {
		if n := name(&o); n != "" && !v.Field(o.index).IsZero() {
			return n
		}
	}
	return ""
}

// inCUDA names the options that the general forward kernels of tier cuda take; "" for a dense call.
func (f Options) inCUDA() string {
	v, names := reflect.ValueOf(f), []string(nil)
	for _, o := range optionFields() {
		if o.forward != "" && !v.Field(o.index).IsZero() {
			names = append(names, o.forward)
		}
	}
	return strings.Join(names, ", ")
}

// ofSlots reports whether the call has options that a row has for each key.
func (f Options) ofSlots() bool { return f.bias != 0 || f.mask || f.dropout }

// notLatent names an option that the forward kernels of tier cuda take, but not those of latent attention.
func (f Options) notLatent() string { return f.otherThan("lengths", "pages") }

// notSequences names one that they take, other than lengths and a window.
func (f Options) notSequences() string { return f.otherThan("lengths", "window") }

// otherThan names an option that the forward kernels of tier cuda take and that is none of some; "" if there is none.
func (f Options) otherThan(some ...string) string {
	return f.first(func(o *optionField) string {
		if slices.Contains(some, o.forward) {
			return ""
		}
		return o.forward
	})
}

// withoutLatentTokens returns the options without lists of sparse tokens, if kernels of latent attention on tier cuda take them: each
// query row has one. vInK: V is in K.
func (f Options) withoutLatentTokens(vInK bool) (rest Options, tokens bool) {
	if tokens = vInK && f.sparseTokens&^sparseTopK == sparseLists+sparsePerRow; tokens {
		f.sparseTokens = 0
	}
	return f, tokens
}

// listOffsets reports whether lists of sparse tokens have offsets in place of one length.
func (f Options) listOffsets() bool { return f.sparseTokens != 0 && f.sparseTokens&sparseTopK == 0 }

// PackRows returns the query heads of a group that are packed as consecutive rows; 0: not packed.
func (f Options) PackRows() uint32 { return f.packRows }

// listPerRow reports whether each query row has a list of sparse tokens. A row block then has rows of one query, so that a
// call is planned as one of that many sequences of one row.
func (f Options) listPerRow() bool { return f.sparseTokens&sparsePerRow != 0 }

// Split reports whether the kernel writes states, which a combine turns into O.
func (f Options) Split() bool { return f.split }

// modifies reports whether scores are more than scaled products.
func (f Options) modifies() bool { return f.softcap || f.alibi != 0 || f.bias != 0 || f.scoreMod != 0 }

// Natural reports whether scores are natural exponents rather than exponents of two.
func (f Options) Natural() bool { return f.alibi != 0 || f.bias != 0 || f.scoreMod != 0 }

// DensePushBytes is the size of the parameters of dense modules, DenseBindings the number
// of tensors.
const (
	DensePushBytes = 120
	DenseBindings  = 5
)

// Parameters and bindings of general modules. With addresses the parameters are push
// constants, with descriptors a binding, which has the sizes of the tables of modifiers too. Tables
// have the bindings behind it.
const (
	GeneralPushBytes  = 256
	GeneralParamBytes = GeneralPushBytes + 16*score.MaxTables
	ParamsBinding     = shaders.ParamsBinding
	GeneralBindings   = ParamsBinding + 1
	MostBindings      = GeneralBindings + score.MaxTables
)

// PushTooSmall reports whether general modules cannot use addresses, as their parameters
// exceed the push constants. Before 1.4 Vulkan guarantees only 128 bytes of them.
func PushTooSmall(l *vk.Limits) bool { return l.MaxPushConstantBytes < GeneralPushBytes }

// ChooseAccess fills in how kernels reach tensors that have device addresses.
func (r *Request) ChooseAccess(caps *vk.Caps, cfg *problem.Config) {
	if r.Access = cfg.Access; r.Access != problem.AccessAuto {
		return
	}
	r.Access = problem.AccessDescriptors
	if caps.BufferDeviceAddress && !(PushTooSmall(&caps.Limits) && (r.Options.Any() || Decodes(caps, cfg, r) || LeavesCores(caps, cfg, r))) {
		r.Access = problem.AccessAddresses
	}
}

// BackwardAccess is ChooseAccess for gradients, whose kernels have the parameters of general ones.
func BackwardAccess(caps *vk.Caps, cfg *problem.Config) problem.Access {
	switch {
	case cfg.Access != problem.AccessAuto:
		return cfg.Access
	case len(tensors.Tables(cfg)) > 0: // not timed with addresses
		return problem.AccessDescriptors
	case caps.BufferDeviceAddress && !PushTooSmall(&caps.Limits):
		return problem.AccessAddresses
	}
	return problem.AccessDescriptors
}

// generalFits reports why general modules do not fit a device's limits; "" if they do.
func generalFits(l *vk.Limits, cfg *problem.Config, access problem.Access) string {
	bindings := uint32(GeneralBindings + len(tensors.Tables(cfg)))
	instead := "; buffers with device addresses need none"
	if PushTooSmall(l) {
		if access == problem.AccessAddresses {
			return fmt.Sprintf("the device has %d bytes of push constants, the general kernel takes %d with addresses; with descriptors it takes none",
				l.MaxPushConstantBytes, GeneralPushBytes)
		}
		instead = ""
	}
	if access == problem.AccessAddresses { // tables and their sizes
		bindings, instead = bindings-ParamsBinding, ""
	}
	if bindings > 1 && l.MaxStorageBuffers < bindings {
		return fmt.Sprintf("the device binds %d buffers, the general kernel takes %d%s", l.MaxStorageBuffers, bindings, instead)
	}
	return ""
}

// maxGeneralLength bounds Sq and Sk of calls with options, so that sums of positions and
// windows fit 32 bits.
const maxGeneralLength = 1 << 30

// maxWindow is the widest side of a window. It excludes no key of a sequence of up to
// maxGeneralLength keys, and its sum with a position fits 32 bits.
const maxWindow = maxGeneralLength - 1

// Numbers are the parameters of kernels, forward and backward, that follow from a Config.
type Numbers struct {
	CausalOffset            int32 // 1: rows are aligned with the last keys; the dense kernel takes Sk - Sq in its place
	WindowLeft, WindowRight int32 // with an AttentionChunk WindowLeft is its keys
}

// NumbersOf returns the numbers of a Config.
func NumbersOf(cfg *problem.Config) (n Numbers) {
	if problem.Alignment(cfg) == problem.BottomRight {
		n.CausalOffset = 1
	}
	if w := cfg.Window; w.Given() {
		n.WindowLeft, n.WindowRight = int32(min(w.Left(), maxWindow)), int32(min(w.Right(), maxWindow))
	}
	if cfg.AttentionChunk != 0 {
		n.WindowLeft = int32(min(cfg.AttentionChunk, maxGeneralLength))
	}
	return n
}

// Factors returns the factors for the unit of the call's scores.
func (f Options) Factors(s *ScoreFactors) *factors {
	if f.Natural() {
		return &s.Natural
	}
	return &s.Products
}

// CheckLimits refuses calls whose sizes exceed the 32-bit numbers of general kernels.
func (f Options) CheckLimits(a *problem.Args, splits, dv int) error {
	batches, rows := tensors.QueryExtent(a)
	all, ok := arith.Product(batches, a.Hq, rows)
	switch {
	case a.Sq > maxGeneralLength || a.Sk > maxGeneralLength:
		return fmt.Errorf("%w: Sq %d and Sk %d: the call's options allow at most 2^30", problem.ErrUnsupported, a.Sq, a.Sk)
	case !ok || all > math.MaxUint32/int64(max(splits, 1)):
		return fmt.Errorf("%w: %d x %d x %d rows in %d splits: the call's options allow fewer than 2^32 rows in all", problem.ErrUnsupported, batches, a.Hq, rows, splits)
	case f.split && all*int64(dv) > math.MaxUint32:
		return fmt.Errorf("%w: %d rows of %d elements: split keys allow fewer than 2^32 elements", problem.ErrUnsupported, all, dv)
	}
	return CheckSlots(a)
}

// CheckSlots refuses sparse tokens whose number, and a bias or a mask whose offsets exceed the 32-bit numbers of kernels.
func CheckSlots(a *problem.Args) error {
	if a.SparseTokens != nil && tensors.SparseTotal(a) > maxGeneralLength {
		return fmt.Errorf("%w: %d sparse tokens, at most 2^30 are possible", problem.ErrUnsupported, tensors.SparseTotal(a))
	}
	if a.Bias != nil {
		if err := below32("Bias", tensors.BiasStrides(a.Bias, a.Shape), [3]int{a.B, a.Hq, a.Sq}, a.Sk); err != nil {
			return err
		}
	}
	if a.Mask != nil {
		if err := below32("Mask", tensors.MaskStrides(a.Mask, a.Shape), [3]int{a.B, a.Hq, a.Sq}, a.Sk); err != nil {
			return err
		}
	}
	return nil
}

// below32 refuses a tensor whose element offsets do not fit 32 bits.
func below32(field string, steps [3]int64, counts [3]int, dim int) error {
	end := int64(dim)
	for i, n := range counts {
		far, ok := arith.Mul(int64(n-1), steps[i])
		if ok {
			end, ok = arith.Add(end, far)
		}
		if !ok || end > math.MaxUint32 {
			return fmt.Errorf("%w: %s spans 2^32 elements or more", problem.ErrUnsupported, field)
		}
	}
	return nil
}
