package problem

import (
	"fmt"
	"math"
	"slices"
	"strconv"

	"vkattn/attention/score"
	"vkattn/internal/errs"
	"vkattn/internal/quant"
)

// Config is attention.Config, which documents its fields; the two convert into each other.
type Config struct {
	DType                     DType
	HeadDim, HeadDimV         int
	Causal                    Causal
	Scale                     Scale
	Tier                      Tier
	Access                    Access
	Tuning                    Tuning
	Window                    Window
	AttentionChunk            int
	Align                     Causal
	Softcap                   float32
	ScoreMod, MaskMod         score.Expr
	Dropout                   float32
	KeyType, ValueType        KVType
	KVBlock, FixedSplit       int
	F32O, F32Gradients, Check bool
	Kernel                    string
}

// MaxFastScore is attention.MaxFastScore.
const MaxFastScore = 1 << 24

// MaxHeadDim is attention.MaxHeadDim.
const MaxHeadDim = 256

// wideHeadDims are the (HeadDim, HeadDimV) pairs accepted beyond MaxHeadDim.
var wideHeadDims = [][2]int{{320, 256}, {512, 512}, {576, 512}}

// ValueDim is HeadDimV, or HeadDim if HeadDimV is 0.
func (c Config) ValueDim() int {
	if c.HeadDimV == 0 {
		return c.HeadDim
	}
	return c.HeadDimV
}

// OType is the storage type of O: DType, or F32 with F32O.
func (c Config) OType() DType {
	if c.F32O {
		return F32
	}
	return c.DType
}

// GradientType is the storage type of DQ, DK and DV: DType, or F32 with F32Gradients.
func (c Config) GradientType() DType {
	if c.F32Gradients {
		return F32
	}
	return c.DType
}

// ScaleValue is the factor on Q Kᵀ.
func (c Config) ScaleValue() float32 { return c.Scale.Value(c.HeadDim) }

// KVName names the types of K and V.
func (c Config) KVName() string { return KVName(c.KeyType, c.ValueType) }

// Validate reports the first field that no tier accepts, as a *ShapeError. Fields that no tier
// computes together match [ErrUnsupported] too.
func (c Config) Validate() error {
	switch {
	case !c.DType.Valid():
		return &ShapeError{"DType", c.DType, "f16, bf16 or f32"}
	case !c.Causal.Valid():
		return &ShapeError{"Causal", c.Causal, "none, top-left or bottom-right"}
	case !c.Tier.Valid():
		return &ShapeError{"Tier", c.Tier, "auto, no-cuda, cpu, scalar, coopmat, coopmat2, cubin or cuda"}
	case !c.Access.Valid():
		return &ShapeError{"Access", c.Access, "auto, addresses or descriptors"}
	case !c.Tuning.Valid():
		return &ShapeError{"Tuning", c.Tuning, "auto, off or on"}
	case !slices.Contains(cudaKernels, c.Kernel):
		return &ShapeError{"Kernel", c.Kernel, "fa3, fa2, ref or empty"}
	case c.Kernel != "" && c.Tier != TierCUDA:
		return &ShapeError{"Kernel", c.Kernel + " with tier " + c.Tier.String(), "a kernel of tier cuda only with that tier"}
	case c.HeadDim < 1:
		return &ShapeError{"HeadDim", c.HeadDim, "at least 1"}
	case c.HeadDimV < 0:
		return &ShapeError{"HeadDimV", c.HeadDimV, Phrase("at least 1, or 0 for ${HeadDim}")}
	case !c.Align.Valid():
		return &ShapeError{"Align", c.Align, "none, top-left or bottom-right"}
	case c.Align != CausalNone && c.Causal != CausalNone && c.Align != c.Causal:
		return &ShapeError{"Align", c.Align, Phrase(fmt.Sprintf("%v, as ${Causal} has it, or none", c.Causal))}
	case c.Window.Given() && c.Causal == CausalNone && c.Align == CausalNone:
		return &ShapeError{"Align", c.Align, Phrase("top-left or bottom-right for a ${Window} without a causal mask")}
	case c.AttentionChunk < 0 || c.AttentionChunk > MaxLength:
		return &ShapeError{"AttentionChunk", c.AttentionChunk, fmt.Sprintf("1 to %d, or 0 for no chunks", MaxLength)}
	case c.AttentionChunk != 0 && c.Causal == CausalNone:
		return &ShapeError{"AttentionChunk", fmt.Sprintf("%d without a causal mask", c.AttentionChunk),
			Phrase("${Causal} top-left or bottom-right")}
	case c.AttentionChunk != 0 && c.Window.Given():
		got := Phrase(fmt.Sprintf("%d together with ${Window}", c.AttentionChunk))
		return errs.Refuse(&ShapeError{"AttentionChunk", got, "one of them"})
	case !(c.Softcap >= 0) || math.IsInf(float64(c.Softcap), 1):
		return &ShapeError{"Softcap", c.Softcap, "a finite number above 0, or 0 for none"}
	case c.ScoreMod.Given() && c.ScoreMod.CheckScore() != nil:
		return &ShapeError{"ScoreMod", c.ScoreMod, c.ScoreMod.CheckScore().Error()}
	case c.MaskMod.Given() && c.MaskMod.CheckMask() != nil:
		return &ShapeError{"MaskMod", c.MaskMod, c.MaskMod.CheckMask().Error()}
	case tablesOf(&c) != nil:
		return &ShapeError{"ScoreMod", c.ScoreMod, tablesOf(&c).Error()}
	case !(c.Dropout >= 0 && c.Dropout < 1):
		return &ShapeError{"Dropout", c.Dropout, "a probability of at least 0 and below 1"}
	case !c.KeyType.Valid():
		return &ShapeError{"KeyType", c.KeyType, ListKVTypes(KVType.Valid)}
	case !c.ValueType.Valid():
		return &ShapeError{"ValueType", c.ValueType, ListKVTypes(KVType.Valid)}
	case !c.KeyType.PairedWith(c.ValueType):
		return errs.Refuse(&ShapeError{"ValueType", Phrase(fmt.Sprintf("%v with ${KeyType} %v", c.ValueType, c.KeyType)),
			ListKVTypes(c.KeyType.PairedWith)})
	case c.KeyType.Latent() && (c.HeadDim != quant.LatentElements || c.ValueDim() != quant.LatentValues):
		return &ShapeError{"HeadDim/HeadDimV", fmt.Sprintf("%d/%d", c.HeadDim, c.ValueDim()), fmt.Sprintf("576/512 for %v", c.KVName())}
	case c.KeyType.Blocked() && !c.KeyType.Latent() && (c.HeadDim%quant.BlockElements != 0 || c.ValueDim()%quant.BlockElements != 0):
		return &ShapeError{"HeadDim/HeadDimV", fmt.Sprintf("%d/%d", c.HeadDim, c.ValueDim()), fmt.Sprintf("multiples of 32 for %v", c.KVName())}
	case c.KeyType != KVSame && c.Dropout != 0:
		return errs.Refuse(&ShapeError{"Dropout", fmt.Sprintf("%v with K and V of type %v", c.Dropout, c.KVName()), "K and V of the storage type"})
	case c.KVBlock < KVBlockTensor || c.KVBlock > MaxLength:
		return &ShapeError{"KVBlock", c.KVBlock, "a number of keys, 0 for 1, -1 for the keys of a head, or -2 for all"}
	case c.KVBlock != 0 && c.KVBlock != 1 && !c.KeyType.Scaled():
		return &ShapeError{"KVBlock", c.KVBlock, "0 without " + ListKVTypes(KVType.Scaled)}
	case c.FixedSplit < 0 || c.FixedSplit > MaxStates:
		return &ShapeError{"FixedSplit", c.FixedSplit, fmt.Sprintf("1 to %d, or 0 for a number that suits the device", MaxStates)}
	case !c.Scale.finite():
		return &ShapeError{"Scale", c.Scale, "a finite number"}
	}
	if c.HeadDim <= MaxHeadDim && c.ValueDim() <= MaxHeadDim {
		return nil
	}
	for _, p := range wideHeadDims {
		if c.HeadDim == p[0] && c.ValueDim() == p[1] {
			return nil
		}
	}
	return &ShapeError{"HeadDim/HeadDimV", fmt.Sprintf("%d/%d", c.HeadDim, c.ValueDim()),
		"each at most 256, or 320/256, 512/512 or 576/512"}
}

// ConfigOption is an option of a call that is a field of Config.
type ConfigOption struct {
	Name  string // in messages
	Given func(*Config) bool
	// Ranks says why several ranks do not compute the option; empty: they do.
	Ranks string

	text func(*Config) string // in Config.String
}

// ConfigOptions are the options of a Config in the order of its text.
var ConfigOptions = []ConfigOption{
	{Name: "window", Given: func(c *Config) bool { return c.Window.Given() },
		text: func(c *Config) string { return "window " + c.Window.String() }},
	{Name: "attention chunks", Given: func(c *Config) bool { return c.AttentionChunk != 0 },
		Ranks: "the keys of a rank follow causal masks and windows",
		text:  func(c *Config) string { return fmt.Sprintf("chunk %d", c.AttentionChunk) }},
	{Name: "alignment", Given: func(c *Config) bool { return c.Align != CausalNone && c.Align != c.Causal },
		text: func(c *Config) string { return "align " + c.Align.String() }},
	{Name: "softcap", Given: func(c *Config) bool { return c.Softcap != 0 },
		text: func(c *Config) string { return fmt.Sprintf("softcap %v", c.Softcap) }},
	{Name: "score modifier", Given: func(c *Config) bool { return c.ScoreMod.Given() }, Ranks: noRanks,
		text: func(c *Config) string { return "score-mod '" + c.ScoreMod.String() + "'" }},
	{Name: "mask modifier", Given: func(c *Config) bool { return c.MaskMod.Given() }, Ranks: noRanks,
		text: func(c *Config) string { return "mask-mod '" + c.MaskMod.String() + "'" }},
	{Name: "dropout", Given: func(c *Config) bool { return c.Dropout != 0 }, Ranks: "its mask counts rows and keys of one device",
		text: func(c *Config) string { return fmt.Sprintf("dropout %v", c.Dropout) }},
	{Name: "type of K and V", Given: func(c *Config) bool { return c.KeyType != KVSame }, text: func(c *Config) string {
		if c.KVBlock == 0 || c.KVBlock == 1 {
			return "kv " + c.KVName()
		}
		return fmt.Sprintf("kv %v/%s", c.KVName(), KVBlockName(c.KVBlock))
	}},
	{Name: "fixed split", Given: func(c *Config) bool { return c.FixedSplit != 0 },
		text: func(c *Config) string { return fmt.Sprintf("split %d", c.FixedSplit) }},
}

// noRanks is why several ranks have no modifiers.
const noRanks = "its heads, rows and keys are those of one device"

// tablesOf reports what is wrong with the tables of both modifiers together.
func tablesOf(c *Config) error {
	_, err := score.TablesOf(c.ScoreMod, c.MaskMod)
	return err
}

// Alignment says how a Config aligns rows with keys.
func Alignment(c *Config) Causal {
	switch {
	case c == nil:
		return CausalNone
	case c.Causal != CausalNone:
		return c.Causal
	case c.Align == CausalNone && (c.ScoreMod.Given() || c.MaskMod.Given()):
		return BottomRight
	}
	return c.Align
}

// Span is the range of keys [first, end) that the causal mask and the options of a Config leave to the row at position
// `at` among that many keys.
func Span(c *Config, at, keys int64) (first, end int64) {
	end = keys
	if c == nil {
		return 0, max(end, 0)
	}
	if c.Causal != CausalNone {
		end = min(end, at+1)
	}
	if w := c.Window; w.Given() {
		if w.Left() >= 0 {
			first = max(first, at-int64(w.Left()))
		}
		if w.Right() >= 0 {
			end = min(end, at+int64(w.Right())+1)
		}
	}
	if c.AttentionChunk != 0 && at > 0 {
		first = at - at%int64(c.AttentionChunk)
	}
	first = min(first, keys)
	return first, max(first, end)
}

// String is a short form for logs, for example "f16 d128/64 top-left scale 0.5 scalar".
func (c Config) String() string {
	s := fmt.Sprintf("%v d%d", c.DType, c.HeadDim)
	if v := c.ValueDim(); v != c.HeadDim {
		s += fmt.Sprintf("/%d", v)
	}
	if c.Causal != CausalNone {
		s += " " + c.Causal.String()
	}
	if !c.Scale.IsDefault() {
		s += " scale " + c.Scale.String()
	}
	for _, o := range ConfigOptions {
		if o.Given(&c) {
			s += " " + o.text(&c)
		}
	}
	if c.F32O {
		s += " O f32"
	}
	if c.F32Gradients {
		s += " gradients f32"
	}
	if c.Tier != TierAuto {
		s += " " + c.Tier.String()
	}
	if c.Kernel != "" {
		s += "/" + c.Kernel
	}
	if c.Tuning != TuningAuto {
		s += " tuning " + c.Tuning.String()
	}
	return s
}

// cudaKernels are the families of Config.Kernel.
var cudaKernels = []string{"", "fa3", "fa2", "ref"}

// CUDAKernels lists the families of kernels of tier cuda, the fastest first.
func CUDAKernels() []string { return slices.Clone(cudaKernels[1:]) }

// Scale is attention.Scale, whose comment documents it.
type Scale struct {
	set bool
	v   float32
}

// ScaleOf is attention.ScaleOf.
func ScaleOf(v float32) Scale { return Scale{set: true, v: v} }

// IsDefault reports whether s is the zero value, 1/sqrt(HeadDim).
func (s Scale) IsDefault() bool { return !s.set }

// Value is the factor for a head dimension of Q and K.
func (s Scale) Value(headDim int) float32 {
	if s.set {
		return s.v
	}
	return float32(1 / math.Sqrt(float64(headDim)))
}

// String is "default" or the number.
func (s Scale) String() string {
	if !s.set {
		return "default"
	}
	return strconv.FormatFloat(float64(s.v), 'g', -1, 32)
}

func (s Scale) finite() bool {
	return !math.IsNaN(float64(s.v)) && !math.IsInf(float64(s.v), 0)
}
