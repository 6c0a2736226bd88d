package cases

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"vkattn/internal/problem"
)

// Case is a problem without tier and storage type. A case without options has a Shape
// and no Seqs: all of its sequences have Sq rows and Sk keys.
type Case struct {
	Name          string // of the table's row; "" in the table of shapes
	D, Dv         int    // elements per row of Q and K, and of V and O
	problem.Shape        // bounds of the sequences; with Seqs, B is not used, and Sq and Sk of 0 follow from the lengths
	Causal        problem.Causal
	Scale         problem.Scale
	Layout        LayoutKind // cases with Seqs: Tight, Packed, BSHD, Padded or Odd
	Data          DataKind
	LSE           bool
	Access        problem.Access // devices only
	Seed          uint64         // 0: from the name
	SampleMax     int            // about how many rows are judged; 0: all

	// Sequences with lengths of their own; nil: Shape.B sequences of Sq rows and Sk keys.
	// Packed ones lie one after another, by cumulative lengths. The others lie each at the
	// start of a range as long as the longest. Loose ones have gaps behind them, packed
	// or not, and lengths in use.
	Seqs             []Seq
	PackedQ, PackedK bool
	LooseQ, LooseK   bool

	Align          problem.Causal
	Window         problem.Window
	AttentionChunk int // with a causal mask and no window
	Softcap        float32
	Dropout        float32 // not with KV; seed and offset follow from SeedValue

	PageSize         int     // keys per page; 0: no pages
	Prefix           int     // keys at the start that all sequences share, with the pages they fill
	SparseRatio      float64 // ratio of tokens listed; 0: no lists
	Shuffled         bool    // lists in no order, with some tokens twice, some past the end and some before the start
	PerRow           bool    // each query row has lists of its own; no gradients
	TopK             bool    // lists have the same length: entries of -1 fill them
	BlockQ           int     // rows and keys of a block; 0: no bitmap
	BlockK           int
	Blocks           Spread // with BlockQ; each row of blocks has bits of its own
	Bias             BiasKind
	Mask             Spread
	Ones             bool // mask and bitmap exclude nothing
	ALiBi            bool
	ALiBiPerSequence bool
	Sinks            bool

	KeyType    problem.KVType
	ValueType  problem.KVType // KVSame: as KeyType
	KVBlock    int
	VInK       bool // V is the first Dv elements of K's rows, in the same memory
	FixedSplit int

	Mods int // draws score and mask modifiers; 0: none

	Modifiers *Modifiers // given ones, in place of drawn ones; nil: none

	Extremes Extremes

	seed uint64 // SeedValue, of a problem's case
}

// Seq is one sequence of a [Case]. Its numbers follow from ID alone, so that the same
// sequence can be part of another batch.
type Seq struct {
	ID         int
	Rows, Keys int
}

// Spread says in which dimensions a mask, a bias or a bitmap has its own entries. In the
// others one entry serves all. The zero value means that there is none.
type Spread struct {
	On                   bool
	Batches, Heads, Rows bool
}

func (s Spread) String() string {
	name := ""
	for _, f := range []struct {
		on   bool
		name string
	}{{s.Batches, "b"}, {s.Heads, "h"}, {s.Rows, "r"}} {
		if f.on {
			name += f.name
		}
	}
	if name == "" {
		return "one"
	}
	return name
}

// sizes are the sizes in problem.Bias and Mask: 1 for one entry, 0 for all.
func (s Spread) sizes() (batches, heads, rows int) {
	one := func(each bool) int {
		if each {
			return 0
		}
		return 1
	}
	return one(s.Batches), one(s.Heads), one(s.Rows)
}

// extent are the entries in each dimension.
func (s Spread) extent(shape problem.Shape) (batches, heads, rows int) {
	batches, heads, rows = s.sizes()
	if s.Batches {
		batches = shape.B
	}
	if s.Heads {
		heads = shape.Hq
	}
	if s.Rows {
		rows = shape.Sq
	}
	return batches, heads, rows
}

// Set sets the dimensions by the letters of String.
func (s *Spread) Set(letters string) error {
	*s = Spread{true, strings.Contains(letters, "b"), strings.Contains(letters, "h"), strings.Contains(letters, "r")}
	if s.String() != letters {
		return fmt.Errorf("%q is none of the dimensions b, h and r", letters)
	}
	return nil
}

// BiasKind is a bias and its type.
type BiasKind struct {
	Spread
	DType problem.DType
}

// String is such as "f16-hr".
func (k BiasKind) String() string { return fmt.Sprintf("%v-%v", k.DType, k.Spread) }

// Set is the inverse of String.
func (k *BiasKind) Set(s string) error {
	dtype, letters, _ := strings.Cut(s, "-")
	return errors.Join(k.DType.Set(dtype), k.Spread.Set(letters))
}

// option is an option of a case: all that names, tables and random compositions have to know of it. What the option
// means is in attends.go, and its memory in modifiers.go and sequences.go.
type option struct {
	words  []word                                // its fields, in names and tables of cases
	kernel func(c *Case) any                     // what a pipeline depends on; nil: nothing
	facets func(c *Case, f *facets)              // what the option exercises; nil: nothing
	span   func(c *Case, at int) (from, end int) // keys that a row at a position may attend to; nil: all
	draw   func(c *Case, r draws)                // draws it in a random composition; nil: it is in none
	small  SmallConfig                           // of an option that leaves keys to rows by their positions; nil: of none

	table   string // its cases, also for drivers that compile slowly
	order   int    // of its table among the tables, by which cases are dealt to storage types
	compact string // its cases in the smallest table; "": the combinations there have the option
}

// draws are the random draws of a composition.
type draws struct{ *rand.Rand }

func (r draws) chance(of int) bool { return r.IntN(of) == 0 }

func (r draws) spread() Spread { return Spread{true, r.chance(2), r.chance(2), r.chance(2)} }

var pageSizes = []int{1, 5, 16, 64, 256}

// forever is past every position.
const forever = 1 << 40

// options are the options in the order of names, on which the numbers of a case depend, and of draws.
var options = []option{
	{
		words: []word{
			{"packedq", func(c *Case) any { return &c.PackedQ }}, {"packedk", func(c *Case) any { return &c.PackedK }},
			{"looseq", func(c *Case) any { return &c.LooseQ }}, {"loosek", func(c *Case) any { return &c.LooseK }},
		},
		kernel: func(c *Case) any {
			usedQ, usedK := c.usedLengths()
			return [4]bool{c.PackedQ, c.PackedK, usedQ, usedK}
		},
		facets: (*Case).lengthFacets, table: varlenLines, order: 0,
	},
	{
		words:  []word{{"page", func(c *Case) any { return &c.PageSize }}, {"prefix", func(c *Case) any { return &c.Prefix }}},
		kernel: func(c *Case) any { return c.PageSize },
		facets: func(c *Case, f *facets) {
			f.also(c.PageSize > 0, "pages of %d", c.PageSize)
			f.also(c.PageSize > 0 && f.varlen, "pages of %d, varlen", c.PageSize)
			f.also(c.Prefix > 0 && c.PageSize > 0, "shared pages")
		},
		draw: func(c *Case, r draws) {
			if r.chance(2) {
				c.PageSize, c.PackedK = pageSizes[r.IntN(len(pageSizes))], false
				c.Prefix = r.IntN(2) * r.IntN(150)
			}
		},
		table: pagedLines, order: 1,
	},
	{
		words: []word{{"sparse", func(c *Case) any { return &c.SparseRatio }}, {"shuffled", func(c *Case) any { return &c.Shuffled }},
			{"perrow", func(c *Case) any { return &c.PerRow }}, {"topk", func(c *Case) any { return &c.TopK }}},
		kernel: func(c *Case) any { return [3]bool{c.SparseRatio > 0, c.PerRow, c.TopK} },
		facets: func(c *Case, f *facets) {
			f.option(c.SparseRatio > 0, "sparse tokens")
			f.also(c.Shuffled, "sparse tokens, in any order")
			f.also(c.PerRow, "sparse tokens of each row")
			f.also(c.TopK, "sparse tokens, lists of one length")
			f.also(c.SparseRatio > 0 && c.SparseRatio < 0.05, "few sparse tokens")
		},
		draw: func(c *Case, r draws) {
			switch r.IntN(6) { // of these one at most
			case 0:
				c.SparseRatio, c.Shuffled = []float64{0.02, 0.2, 0.7, 1}[r.IntN(4)], r.chance(2)
				c.PerRow, c.TopK = r.chance(2), r.chance(2)
			case 1:
				c.BlockQ, c.BlockK, c.Blocks = 16<<r.IntN(4), 16<<r.IntN(4), Spread{true, r.chance(2), r.chance(2), false}
			case 2:
				c.Mask = r.spread()
			}
		},
		table: sparseLines, order: 2,
	},
	{
		words:  []word{{"blocks", func(c *Case) any { return c }}},
		kernel: func(c *Case) any { return [2]int{c.BlockQ, c.BlockK} },
		facets: func(c *Case, f *facets) { f.option(c.BlockQ > 0, "blocks") },
		table:  blocksLines, order: 3,
	},
	{
		words:  []word{{"window", func(c *Case) any { return &c.Window }}},
		kernel: func(c *Case) any { return [2]bool{c.Window.Left() >= 0, c.Window.Right() >= 0} },
		facets: func(c *Case, f *facets) {
			f.option(c.Window.Left() >= 0, "window to the left, %v", c.Causal)
			f.option(c.Window.Right() >= 0, "window to the right, %v", c.Causal)
		},
		span: func(c *Case, at int) (from, end int) {
			from, end = 0, forever
			if c.Window.Given() && c.Window.Left() >= 0 {
				from = at - c.Window.Left()
			}
			if c.Window.Given() && c.Window.Right() >= 0 {
				end = at + c.Window.Right() + 1
			}
			return from, end
		},
		draw: func(c *Case, r draws) {
			if r.chance(3) {
				c.Window = problem.WindowOf(r.IntN(90)-1, r.IntN(90)-1)
			}
		},
		small: func(cfg *problem.Config, most int, pick func(n int) int) {
			if cfg.Causal == problem.CausalNone && cfg.Align == problem.CausalNone {
				cfg.Align = problem.TopLeft
			}
			cfg.Window = problem.WindowOf(pick(most+2)-1, pick(most+2)-1)
		},
		table: windowLines, order: 4,
	},
	{
		words:  []word{{"softcap", func(c *Case) any { return &c.Softcap }}},
		kernel: func(c *Case) any { return c.Softcap != 0 },
		facets: func(c *Case, f *facets) { f.option(c.Softcap != 0, "softcap") },
		draw: func(c *Case, r draws) {
			if r.chance(3) {
				c.Softcap = []float32{50, 3}[r.IntN(2)]
			}
		},
		table: softcapLines, order: 5,
	},
	{
		words:  []word{{"dropout", func(c *Case) any { return &c.Dropout }}},
		kernel: func(c *Case) any { return c.Dropout != 0 },
		facets: func(c *Case, f *facets) { f.option(c.Dropout != 0, "dropout") },
		table:  dropoutLines, order: 13,
	},
	{
		words:  []word{{"bias-", func(c *Case) any { return &c.Bias }}},
		kernel: func(c *Case) any { return [2]int{cond(c.Bias.On), int(c.Bias.DType)} },
		facets: func(c *Case, f *facets) {
			f.option(c.Bias.On, "bias %v", c.Bias.DType)
			f.also(c.Bias.On, "bias of %v", c.Bias.Spread)
		},
		draw: func(c *Case, r draws) {
			if r.chance(3) {
				c.Bias = BiasKind{r.spread(), problem.DTypes()[r.IntN(3)]}
			}
		},
		table: biasLines, order: 8,
	},
	{
		words:  []word{{"mask-", func(c *Case) any { return &c.Mask }}, {"ones", func(c *Case) any { return &c.Ones }}},
		kernel: func(c *Case) any { return c.Mask.On },
		facets: func(c *Case, f *facets) {
			f.option(c.Mask.On, "mask")
			f.also(c.Mask.On, "mask of %v", c.Mask)
		},
		table: maskLines, order: 9,
	},
	{
		words:  []word{{"alibi", func(c *Case) any { return &c.ALiBi }}, {"alibi-b", func(c *Case) any { return &c.ALiBiPerSequence }}},
		kernel: func(c *Case) any { return [2]bool{c.ALiBi, c.ALiBiPerSequence} },
		facets: func(c *Case, f *facets) {
			f.option(c.ALiBi, "ALiBi")
			f.also(c.ALiBi, "ALiBi, %v", max(c.Causal, c.Align))
			f.also(c.ALiBiPerSequence, "ALiBi of each sequence")
		},
		draw:  func(c *Case, r draws) { c.ALiBi = r.chance(3) },
		table: alibiLines, order: 6,
	},
	{
		words:  []word{{"sinks", func(c *Case) any { return &c.Sinks }}},
		kernel: func(c *Case) any { return c.Sinks },
		facets: func(c *Case, f *facets) { f.option(c.Sinks, "sinks") },
		draw:   func(c *Case, r draws) { c.Sinks = r.chance(3) },
		table:  sinksLines, order: 7,
	},
	{
		words: []word{{"", func(c *Case) any { return &c.KeyType }}, {"v-", func(c *Case) any { return &c.ValueType }},
			{"scale", func(c *Case) any { return &c.KVBlock }}},
		kernel: func(c *Case) any { return [3]int{int(c.KeyType), int(c.valueType()), c.KVBlock} },
		facets: func(c *Case, f *facets) {
			f.option(c.KeyType != problem.KVSame, "%v", problem.KVName(c.KeyType, c.valueType()))
			f.also(c.KVBlock > 1, "%v, scales of blocks", problem.KVName(c.KeyType, c.valueType()))
			f.also(c.KVBlock < 0, "%v, a scale of a %s", problem.KVName(c.KeyType, c.valueType()), problem.KVBlockName(c.KVBlock))
		},
		draw: func(c *Case, r draws) {
			if !r.chance(3) {
				return
			}
			types := slices.DeleteFunc(problem.KVTypes()[1:], problem.KVType.Latent) // of one head dim
			c.KeyType = types[r.IntN(len(types))]
			types = slices.DeleteFunc(types, func(t problem.KVType) bool { return !t.PairedWith(c.KeyType) })
			if v := types[r.IntN(len(types))]; v != c.KeyType {
				c.ValueType = v
			}
			if c.KeyType.Scaled() && r.chance(2) {
				c.KVBlock = []int{2, 16, 100, problem.KVBlockHead, problem.KVBlockTensor}[r.IntN(5)]
			}
			if c.KeyType.Blocked() {
				c.D, c.Dv = []int{32, 64, 128}[r.IntN(3)], []int{32, 64, 96}[r.IntN(3)]
			}
		},
		table: quantLines(), order: 10,
	},
	{
		words:  []word{{"vink", func(c *Case) any { return &c.VInK }}},
		facets: func(c *Case, f *facets) { f.also(c.VInK, "V in K") },
		table:  latentLines, order: 12,
	},
	{
		words:  []word{{"split", func(c *Case) any { return &c.FixedSplit }}},
		kernel: func(c *Case) any { return c.FixedSplit > 1 },
		facets: func(c *Case, f *facets) { f.option(c.FixedSplit > 1, "fixed split") },
		draw: func(c *Case, r draws) {
			if r.chance(3) {
				c.FixedSplit = []int{1, 2, 3, 7}[r.IntN(4)]
			}
		},
		table: splitLines, order: 11,
	},
	{
		words:  []word{{"chunk", func(c *Case) any { return &c.AttentionChunk }}},
		kernel: func(c *Case) any { return c.AttentionChunk > 0 },
		facets: func(c *Case, f *facets) { f.option(c.AttentionChunk > 0, "attention chunks, %v", c.Causal) },
		span: func(c *Case, at int) (from, end int) {
			if n := c.AttentionChunk; n > 0 && at >= 0 {
				return at / n * n, at/n*n + n
			}
			return 0, forever
		},
		draw: func(c *Case, r draws) {
			if r.chance(6) && c.Causal != problem.CausalNone {
				c.Window, c.AttentionChunk = problem.Window{}, []int{1, 7, 16, 64, 100, 1 << 30}[r.IntN(6)]
			}
		},
		small: func(cfg *problem.Config, most int, pick func(n int) int) {
			cfg.Causal, cfg.Align, cfg.Window = problem.BottomRight, problem.CausalNone, problem.Window{}
			cfg.AttentionChunk = 1 + pick(most)
		},
		table: chunkLines, order: 14, compact: chunkCompactLines,
	},
	{
		words:  []word{{"mods", func(c *Case) any { return &c.Mods }}},
		kernel: func(c *Case) any { return c.Mods },
		facets: func(c *Case, f *facets) {
			s, mask := c.modifiers()
			f.option(s.Given(), "score modifier")
			f.option(mask.Given(), "mask modifier")
			f.also(c.Mods != 0 && c.modifiersHaveTables(), "tables of modifiers")
		},
		draw: func(c *Case, r draws) {
			if r.chance(4) {
				c.Mods = 1 + r.IntN(1<<16)
			}
		},
		table: modsLines, order: 15, compact: modsCompactLines,
	},
}

// SmallConfig gives a Config an option whose distances are at most `most`. pick returns a number below n.
type SmallConfig func(cfg *problem.Config, most int, pick func(n int) int)

// SmallConfigs are the options that leave keys to rows by their positions, for tests that make calls of their own.
func SmallConfigs() (list []SmallConfig) {
	for _, o := range options {
		if o.small != nil {
			list = append(list, o.small)
		}
	}
	return list
}

// cond is 1 if x.
func cond(x bool) int {
	if x {
		return 1
	}
	return 0
}

// optionTables are the tables of each option; wide ones take more pipelines.
func optionTables(wide bool) (all []Case) {
	sorted := slices.Clone(options)
	slices.SortStableFunc(sorted, func(a, b option) int { return a.order - b.order })
	for _, o := range sorted {
		all = append(all, lines(o.table, wide)...)
	}
	return all
}
