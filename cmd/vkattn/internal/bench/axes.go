package bench

import (
	"fmt"
	"slices"
	"strings"

	"vkattn/attention"
	"vkattn/attention/score"
	"vkattn/cmd/vkattn/internal/flagtext"
	"vkattn/cmd/vkattn/internal/sweep"
	"vkattn/internal/problem"
)

// Axis is a property of problems: a flag, the values that its text has, and the field of a problem that they
// set. An option of a call is one row of Axes: flags, suites, presets and the texts of rows iterate over it.
type Axis struct {
	Flag, Usage string // without Usage it has no flag, but suites and presets have it
	Kind        string // the name of a value in help texts, if Usage does not give one
	Alone       string // the value of the flag without one
	InRun       string // the usage of the flag in `vkattn run`, where it has one value; empty: it has none there
	Single      bool   // one value for all problems, not a list
	Repeats     bool   // the flag may be given several times; its texts are joined by commas
	Field       string // of Config or Args, which an error about it names; empty: several flags have it, or none
	value

	check func(score.Expr) error // of a modifier

	label string               // of an option: how it is named in rows, with its value
	text  func(Problem) string // of an option, in place of label

	inSuites inSuites
	ranks    bool // several ranks take the option
	verified bool // vkattn verify takes the option
	plain    bool // of an option: peers take the problem
}

// inSuites is what the values of an axis do with the problems of a suite.
type inSuites uint8

const (
	refused inSuites = iota // the suite says it
	narrows                 // they select problems
	crosses                 // each problem has each value
)

// value gives access to the field of an axis.
type value struct {
	parse func(string) ([]any, error)
	get   func(*Problem) any
	set   func(*Problem, any)
	zero  any
}

// field is the value of a field of a problem. What follows from it is set by then.
func field[T comparable](parse func(string) ([]T, error), of func(*Problem) *T, then ...func(*Problem)) value {
	var zero T
	return value{
		parse: anys(parse),
		get:   func(p *Problem) any { return *of(p) },
		set: func(p *Problem, v any) {
			*of(p) = v.(T)
			for _, f := range then {
				f(p)
			}
		},
		zero: zero,
	}
}

func anys[T any](parse func(string) ([]T, error)) func(string) ([]any, error) {
	return func(text string) (list []any, err error) {
		values, err := parse(text)
		for _, v := range values {
			list = append(list, v)
		}
		return list, err
	}
}

// words parses a list by the parser of its items, one a single value.
func words[T comparable](parse func(string) (T, error)) func(string) ([]T, error) {
	return func(list string) ([]T, error) { return sweep.Words(list, parse) }
}

func one[T comparable](parse func(string) (T, error)) func(string) ([]T, error) {
	return func(text string) ([]T, error) {
		v, err := parse(text)
		return []T{v}, err
	}
}

// Usages of flags that `vkattn run` has too.
const (
	KVLayoutUsage = "layout of a page: nhd [page size, Hkv, D] or hnd [Hkv, page size, D]"
	windowUsage   = "keys left,right of its own position that a row attends to; -1: no limit"
	chunkUsage    = "a causal row attends to the keys of its own chunk of `n` keys, as in Llama 4 (8192 there)"
	softcapUsage  = "scores become softcap * tanh(score / softcap)"
	tableUsage    = "`name=file` of a table of --score-mod and --mask-mod, integers or floats with 1 to 3 axes, or name=16x32 " +
		"for random floats of these sizes; once for each"
	scoreUsage = "what a score s becomes: an expression of s b h hkv i j row sq sk and tables, such as " +
		"'s - 0.1 * float(i - j)' (docs/modifiers.md)"
	maskUsage    = "whether a row attends to a key: an expression such as 'j <= i && i - j < 128'"
	dropoutUsage = "probability with which a weight is dropped, below 1; the others are multiplied by 1 / (1 - `p`)"
)

// parseKVBlock parses who shares a scale: the elements of a key, of a head or of the tensor.
func parseKVBlock(s string) (int, error) {
	for _, block := range []int{1, attention.KVBlockHead, attention.KVBlockTensor} {
		if s == problem.KVBlockName(block) {
			return min(block, 0), nil // 1 is the default, 0
		}
	}
	return 0, fmt.Errorf("%q is neither 1, head nor tensor", s)
}

// namedByKV is the text of options that kv-dtype names.
func namedByKV(Problem) string { return "" }

// Axes lists the axes in the order of help texts. The values of the last vary fastest.
var Axes = []*Axis{
	{Flag: "layers", value: field(sweep.Ints, func(p *Problem) *int { return &p.Layers })},
	{Flag: "dtype", Field: "DType", Usage: "`list` of storage types: f16, bf16, f32",
		InRun: "storage `type`: f16, bf16 or f32 (default: the type of the files, f32 if they differ)", inSuites: narrows, ranks: true,
		value: field(words(attention.ParseDType), func(p *Problem) *attention.DType { return &p.Config.DType })},
	{Flag: "headdim", Usage: "`list` of head dims of Q and K", inSuites: narrows, ranks: true,
		value: field(sweep.Ints, func(p *Problem) *int { return &p.Config.HeadDim },
			func(p *Problem) { p.Config.HeadDimV = p.Config.HeadDim })},
	{Flag: "headdim-v", Usage: "`list` of head dims of V and O (default: as --headdim)", inSuites: narrows, ranks: true,
		value: field(sweep.Ints, func(p *Problem) *int { return &p.Config.HeadDimV })},
	{Flag: "causal", Field: "Causal", Usage: "`list` of causal masks: none, top-left, bottom-right",
		InRun: "causal `mask`: none, top-left (col <= row) or bottom-right (col <= row + Sk - Sq)", inSuites: narrows, ranks: true,
		value: field(words(attention.ParseCausal), func(p *Problem) *attention.Causal { return &p.Config.Causal })},
	{Flag: "batch-size", Usage: "`list` of batch sizes", inSuites: narrows, ranks: true,
		value: field(sweep.Ints, func(p *Problem) *int { return &p.Shape.B })},
	{Flag: "nheads", Usage: "`list` of query head counts", inSuites: narrows, ranks: true,
		value: field(sweep.Ints, func(p *Problem) *int { return &p.Shape.Hq },
			func(p *Problem) { p.Shape.Hkv = p.Shape.Hq })},
	{Flag: "nheads-kv", Usage: "`list` of key/value head counts (default: as --nheads)", inSuites: narrows, ranks: true,
		value: field(sweep.Ints, func(p *Problem) *int { return &p.Shape.Hkv })},
	{Flag: "seqlen", Usage: "`list` of query lengths", inSuites: narrows, ranks: true,
		value: field(sweep.Ints, func(p *Problem) *int { return &p.Shape.Sq }, func(p *Problem) { p.Shape.Sk = p.Shape.Sq })},
	{Flag: "seqlen-k", Usage: "`list` of key lengths (default: as --seqlen)", inSuites: narrows, ranks: true,
		value: field(sweep.Ints, func(p *Problem) *int { return &p.Shape.Sk })},

	{Flag: "kv-dtype",
		Usage: "`list` of storage types of K and V: " + problem.ListKVTypes(problem.KVType.Valid), text: func(p Problem) string {
			return "kv " + problem.KVName(p.Config.KeyType, p.Config.ValueType)
		},
		InRun: "storage `type` of K and V: " + problem.ListKVTypes(problem.KVType.Valid) + " (default same)", inSuites: narrows,
		value: field(words(attention.ParseKVType), func(p *Problem) *attention.KVType { return &p.Config.KeyType },
			func(p *Problem) { p.Config.ValueType = p.Config.KeyType })},
	{Flag: "k-dtype", Field: "KeyType", Usage: "`list` of storage types of K (default: as --kv-dtype)", text: namedByKV,
		InRun: "storage `type` of K (default: as --kv-dtype)", inSuites: narrows,
		value: field(words(attention.ParseKVType), func(p *Problem) *attention.KVType { return &p.Config.KeyType })},
	{Flag: "v-dtype", Field: "ValueType", Usage: "`list` of storage types of V (default: as --kv-dtype)", text: namedByKV,
		InRun: "storage `type` of V (default: as --kv-dtype); K and V are both floats, or " +
			"both " + problem.ListKVTypes(problem.KVType.Scaled) + ", or both of blocks",
		inSuites: narrows,
		value:    field(words(attention.ParseKVType), func(p *Problem) *attention.KVType { return &p.Config.ValueType })},
	{Flag: "kv-block", Field: "KVBlock", Usage: "`list` of keys that share a scale of int8 and float8: 1, head or tensor",
		text:     func(p Problem) string { return "a scale per " + problem.KVBlockName(p.Config.KVBlock) },
		inSuites: narrows,
		value: field(words(parseKVBlock), func(p *Problem) *int { return &p.Config.KVBlock },
			func(p *Problem) {
				if !p.Config.KeyType.Scaled() {
					p.Config.KVBlock = 0
				}
			})},
	{Flag: "window", Field: "Window",
		Usage: windowUsage, InRun: windowUsage, Kind: "left,right", Single: true, label: "window %v",
		ranks: true,
		value: field(one(ParseWindow), func(p *Problem) *attention.Window { return &p.Config.Window },
			(*Problem).needAlignment)},
	{Flag: "attention-chunk", Field: "AttentionChunk",
		Usage: chunkUsage, InRun: chunkUsage, Single: true, label: "chunk %v",
		value: field(one(sweep.UpTo(attention.MaxLength)), func(p *Problem) *int { return &p.Config.AttentionChunk })},
	{Flag: "softcap", Field: "Softcap",
		Usage: softcapUsage, InRun: softcapUsage, Kind: "float", Single: true, label: "softcap %v",
		ranks: true,
		value: field(one(sweep.Positive), func(p *Problem) *float32 { return &p.Config.Softcap })},
	{Flag: "table", Usage: tableUsage, InRun: tableUsage,
		Single: true, Repeats: true, label: "table %v", verified: true,
		value: field(one(ParseTables), func(p *Problem) *Tables { return &p.Tables })},
	{Flag: "score-mod", Field: "ScoreMod",
		Usage: scoreUsage, InRun: scoreUsage, Kind: "expression", Single: true, label: "score-mod %v", check: score.Expr.CheckScore, verified: true,
		value: field(one(parseModifier), func(p *Problem) *score.Expr { return &p.Config.ScoreMod })},
	{Flag: "mask-mod", Field: "MaskMod",
		Usage: maskUsage, InRun: maskUsage, Kind: "expression", Single: true, label: "mask-mod %v", check: score.Expr.CheckMask, verified: true,
		value: field(one(parseModifier), func(p *Problem) *score.Expr { return &p.Config.MaskMod })},
	{Flag: "dropout", Field: "Dropout",
		Usage: dropoutUsage, InRun: dropoutUsage, Single: true, label: "dropout %v", ranks: true,
		value: field(one(sweep.Probability), func(p *Problem) *float32 { return &p.Config.Dropout })},
	{Flag: "fixed-split", Field: "FixedSplit",
		Usage: "`list` of fixed numbers of splits of the keys; 0: chosen for the device",
		InRun: "fixed `number` of splits of the keys of every sequence, 1 to 256 (default: chosen for the device)",
		label: "split %v", ranks: true, plain: true,
		value: field(words(sweep.UpTo(attention.MaxStates)), func(p *Problem) *int { return &p.Config.FixedSplit })},
	{Flag: "varlen", Usage: "`list` of sequences: KEYS, ROWS/KEYS, or N*ROWS/KEYS for N equal ones; without ROWS a " +
		"sequence has --seqlen rows, or as many as keys",
		Kind: "list", Single: true, value: field(one(func(text string) (Lengths, error) { return ParseLengths(text, 0) }),
			func(p *Problem) *Lengths { return &p.Lengths }, (*Problem).pack),
		text: func(p Problem) string {
			if p.Packed {
				return "packed " + string(p.Lengths)
			}
			return "lengths " + string(p.Lengths)
		}},
	{Flag: "padded", Usage: "pad the sequences of --varlen to the longest (default: packed)", Kind: "bool", Alone: "true",
		Single: true,
		value: value{anys(one(sweep.Bool)), func(*Problem) any { return false },
			func(p *Problem, v any) { p.Packed = p.Packed && !v.(bool) }, false}},
	{Flag: "page-size", Usage: "`list` of page sizes of a paged KV cache; the pages lie in random order; 0: " +
		"contiguous K and V", inSuites: narrows,
		value: field(words(sweep.UpTo(attention.MaxLength)), func(p *Problem) *int { return &p.PageSize }),
		text: func(p Problem) string {
			if p.HND {
				return fmt.Sprintf("pages of %d hnd", p.PageSize)
			}
			return fmt.Sprintf("pages of %d", p.PageSize)
		}},
	{Flag: "kv-layout", Usage: KVLayoutUsage + " (default nhd)", Kind: "layout", Single: true,
		value: field(one(ParseHND), func(p *Problem) *bool { return &p.HND },
			func(p *Problem) { p.HND = p.HND && p.PageSize > 0 })},
	{Flag: "sparse-ratio", Usage: "`list` of ratios of sparse tokens: the share of the tokens of a sequence that a " +
		"KV head attends to, such as 0.02; 1 is all",
		label: "sparse %v", inSuites: narrows,
		value: field(words(sweep.Share), func(p *Problem) *float64 { return &p.Options.SparseRatio })},
	{Flag: "sparse-topk", Usage: "`list` of numbers of sparse tokens of each row: how many tokens a query row and KV head " +
		"attend to, such as 2048, of those that --causal and --window leave to the row; 0 is all",
		label: "topk %v", inSuites: narrows,
		value: field(words(sweep.UpTo(attention.MaxLength)), func(p *Problem) *int { return &p.Options.SparseTopK })},
	{Flag: "block-ratio", Usage: "`list` of ratios of a block mask: the share of the blocks of keys that a block of " +
		"rows attends to; 1 is all",
		value: field(words(sweep.Share), func(p *Problem) *float64 { return &p.Blocks },
			func(p *Problem) { p.setBlock([2]int{64, 64}) }),
		text: func(p Problem) string { return fmt.Sprintf("%g of blocks %dx%d", p.Blocks, p.BlockQ, p.BlockK) }},
	{Flag: "block-size", Usage: "rows,keys of a block of --block-ratio, powers of two from 16 (default 64,64)",
		Kind: "rows,keys", Single: true,
		value: value{anys(one(sweep.Pair(1))), func(p *Problem) any { return [2]int{p.BlockQ, p.BlockK} },
			func(p *Problem, v any) { p.setBlock(v.([2]int)) }, [2]int{}}},
	{Flag: "shared-kv", Usage: "V is the first part of each row of K, as in multi-head latent attention (--headdim " +
		"576 --headdim-v 512)", Kind: "bool", Alone: "true",
		Single: true, label: "V in K", value: field(one(sweep.Bool), func(p *Problem) *bool { return &p.SharedKV })},
	{Flag: "sinks", Field: "Sinks",
		Usage: "one attention sink per head: a logit in the row sum, without a value", Kind: "bool",
		Alone: "true", Single: true, label: "sinks",
		value: field(one(sweep.Bool), func(p *Problem) *bool { return &p.Sinks })},
	{Flag: "alibi", Field: "ALiBi", Usage: "ALiBi slopes", Kind: "bool", Alone: "true", Single: true, label: "alibi",
		value: field(one(sweep.Bool), func(p *Problem) *bool { return &p.ALiBi }, (*Problem).needAlignment)},
	{Flag: "align", Field: "Align",
		Usage: "alignment of rows with keys for --window, --alibi, --score-mod and --mask-mod without a causal mask: " +
			"top-left or bottom-right (default bottom-right)",
		InRun: "alignment of rows with keys: top-left or bottom-right; required for --window and --alibi without a " +
			"causal mask",
		Kind: "causal", Single: true, ranks: true, verified: true,
		value: value{anys(one(attention.ParseCausal)), func(p *Problem) any { return p.Config.Align },
			func(p *Problem, v any) {
				aligned := p.Config.Align != attention.CausalNone || p.Modified() && p.Config.Causal == attention.CausalNone
				if aligned && v != attention.CausalNone {
					p.Config.Align = v.(attention.Causal)
				}
			}, attention.CausalNone}},

	{Flag: "pass", Usage: "`list` of what to time: fwd, bwd or fwdbwd; bwd: dQ, dK and dV, from O and LSE of a forward pass; " +
		"one row each (default: as the suite says, else fwd)",
		inSuites: crosses, ranks: true, value: field(words(ParsePass), func(p *Problem) *Pass { return &p.Pass })},
	{Flag: "lse", Usage: "`list` of false and true: whether forward calls also return LSE, as training and merging " +
		"need it; --lse is --lse=true; --lse=false,true is " +
		"a row of each. Calls with LSE have other tiles. Rows of other passes always have LSE", Alone: "true", label: "LSE",
		inSuites: crosses, plain: true,
		value: field(words(sweep.Bool), func(p *Problem) *bool { return &p.LSE })},
}

func init() {
	for _, a := range Axes {
		if a.Field != "" {
			flagtext.Name(a.Field, a.Flag)
		}
	}
}

// parseModifier reads an expression without tables. Parse reads those with tables.
func parseModifier(text string) (score.Expr, error) { return score.Parse(text) }

// AxisOf is the axis of a flag.
func AxisOf(flag string) *Axis {
	return Axes[slices.IndexFunc(Axes, func(a *Axis) bool { return a.Flag == flag })]
}

// needAlignment aligns the rows of a window or of ALiBi with the keys where no causal mask does.
func (p *Problem) needAlignment() {
	if p.Config.Causal == attention.CausalNone && (p.Config.Window.Given() || p.ALiBi) {
		p.Config.Align = attention.BottomRight
	}
}

func (p *Problem) pack() {
	p.Packed = true
	p.Lengths.bound(&p.Shape)
}

func (p *Problem) setBlock(size [2]int) {
	if p.Blocks > 0 {
		p.BlockQ, p.BlockK = size[0], size[1]
	}
}

// Shapes reports whether the axis is one of the sizes, the mask and the storage type, which every command
// that takes sweeps has.
func (a *Axis) Shapes() bool { return a.inSuites == narrows && !a.isOption() }

func (a *Axis) isOption() bool { return a.label != "" || a.text != nil }

// Names reports whether the axis is an option of calls, which rows name.
func (a *Axis) Names() bool { return a.isOption() }

// Modified reports whether a problem has a score or a mask modifier.
func (p *Problem) Modified() bool { return p.Config.ScoreMod.Given() || p.Config.MaskMod.Given() }

// Verified reports whether vkattn verify takes the axis, which is an option.
func (a *Axis) Verified() bool { return a.verified }

// OnRanks reports whether several ranks take the axis.
func (a *Axis) OnRanks() bool { return a.ranks }

// option is the option in words, empty if a problem does not have it.
func (a *Axis) option(p Problem) string {
	v := a.get(&p)
	switch {
	case !a.isOption(), v == a.zero:
		return ""
	case a.text != nil:
		return a.text(p)
	case strings.Contains(a.label, "%"):
		return fmt.Sprintf(a.label, v)
	}
	return a.label
}

// Set gives a problem a value.
func (a *Axis) Set(p *Problem, v any) { a.set(p, v) }

// Parse parses the text of the flag. Modifiers read the tables of a sweep that has them.
func (a *Axis) Parse(text string, with Sweep) ([]any, error) {
	if a.check == nil {
		return a.parse(text)
	}
	var declared []score.Table
	for _, t := range ListOf[Tables](with, "table") {
		declared = t.declared()
	}
	e, err := score.Parse(text, declared...)
	if err == nil {
		err = a.check(e)
	}
	return []any{e}, err
}

// OptionText names the options of a problem, including the options of its Config and the
// LSE of a forward pass.
func (p Problem) OptionText() string {
	var parts []string
	for _, a := range Axes {
		if text := a.option(p); text != "" {
			parts = append(parts, text)
		}
	}
	return strings.Join(parts, ", ")
}

func (f Options) String() string { return Problem{Options: f}.OptionText() }

// Plain reports whether a problem is without options, causal masks and LSE aside: attention
// that every peer knows. Peers compute LSE whether they return it or not.
func (p Problem) Plain() bool {
	for _, a := range Axes {
		if a.isOption() && !a.plain && a.get(&p) != a.zero {
			return false
		}
	}
	return true
}

// ParseWindow parses the keys left and right of a row that it attends to.
func ParseWindow(text string) (attention.Window, error) {
	n, err := sweep.Pair(-1)(text)
	return attention.WindowOf(n[0], n[1]), err
}

// ParseHND parses the layout of a page: true is [Hkv, page size, D].
func ParseHND(text string) (bool, error) {
	return sweep.Either(text, "layout", "nhd", "hnd")
}
