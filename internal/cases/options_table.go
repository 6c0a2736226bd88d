package cases

import (
	"fmt"
	"slices"

	"vkattn/internal/problem"
)

// BriefOptions is a table for each option, with few pipelines, and some compositions, for
// drivers on the CPU. [AllOptions] is the whole table.
func BriefOptions() []Case { return withCompositions(optionTables(false), 6) }

// WideOptions is BriefOptions with any number of pipelines: for the CPU tier, which
// compiles none.
func WideOptions() []Case { return withCompositions(optionTables(true), 20) }

func withCompositions(all []Case, count int) []Case {
	for n := range count {
		all = append(all, RandomOptions(n))
	}
	return all
}

// cut drops the cases that only wide tables have.
func cut(all []Case, wide bool, of func(i int) bool) []Case {
	if wide {
		return all
	}
	var some []Case
	for i, c := range all {
		if of(i) {
			some = append(some, c)
		}
	}
	return some
}

// seqsOf numbers sequences of (rows, keys).
func seqsOf(sizes ...[2]int) []Seq {
	var list []Seq
	for i, s := range sizes {
		list = append(list, Seq{i, s[0], s[1]})
	}
	return list
}

// equal are n sequences of one length.
func equal(n, rows, keys int) []Seq {
	var list []Seq
	for i := range n {
		list = append(list, Seq{i, rows, keys})
	}
	return list
}

var (
	mixedSeqs = seqsOf([2]int{1, 235}, [2]int{0, 17}, [2]int{33, 0}, [2]int{65, 65}, [2]int{7, 129}, [2]int{130, 64})
	// Packed: most have few rows. Of a group of two 8 rows are 4 queries, and one more is too many.
	crowdSeqs = seqsOf([2]int{1, 235}, [2]int{2, 100}, [2]int{0, 17}, [2]int{150, 333}, [2]int{4, 64}, [2]int{5, 64}, [2]int{1, 1},
		[2]int{1, 0}, [2]int{37, 90}, [2]int{3, 5}, [2]int{1, 129}, [2]int{9, 2})
	decodeSeqs = seqsOf([2]int{1, 235}, [2]int{4, 64}, [2]int{0, 5}, [2]int{8, 0}, [2]int{7, 100}, [2]int{1, 1})
)

// prefill and decode are the cases that the tables vary.
func prefill(name string) Case {
	return Case{Name: name, D: 64, Dv: 64, Shape: problem.Shape{Hq: 4, Hkv: 2}, LSE: true, Layout: Packed, Seqs: equal(2, 70, 133)}
}

func decode(name string) Case {
	return Case{Name: name, D: 64, Dv: 64, Shape: problem.Shape{Hq: 8, Hkv: 2}, LSE: true, Layout: Packed, Seqs: equal(3, 1, 301)}
}

// with returns a changed copy of a case.
func (c Case) with(change func(*Case)) Case {
	c.Seqs = slices.Clone(c.Seqs)
	change(&c)
	return c
}

func varlenCases(wide bool) []Case {
	var all []Case
	layouts := []LayoutKind{Packed, BSHD, Tight, Padded}
	for i, causal := range Causals {
		for j, how := range []func(*Case){
			func(c *Case) { c.PackedQ, c.PackedK = true, true },
			func(c *Case) { c.PackedQ, c.PackedK, c.LooseQ, c.LooseK = true, true, true, true },
			func(c *Case) { c.LooseQ, c.LooseK = true, true },
			func(c *Case) { c.PackedQ = true }, // a batch of caches
			func(c *Case) { c.PackedK, c.LooseK = true, true },
		} {
			all = append(all, prefill("varlen").with(func(c *Case) {
				c.Seqs, c.Causal, c.Layout = mixedSeqs, causal, layouts[(i+j)%len(layouts)]
				how(c)
			}))
		}
	}
	// One of the lengths without a mask; those with one share pipelines.
	all = cut(all, wide, func(i int) bool { return i >= 5 || i == 1 })
	return append(all,
		// All rows there are, of keys in use; and the reverse.
		prefill("varlen").with(func(c *Case) {
			c.Seqs, c.Causal = seqsOf([2]int{70, 133}, [2]int{70, 0}, [2]int{70, 31}), problem.BottomRight
		}),
		prefill("varlen").with(func(c *Case) {
			c.Seqs, c.Causal = seqsOf([2]int{70, 133}, [2]int{0, 133}, [2]int{31, 133}), problem.TopLeft
		}),
		// Nothing at all but one row.
		prefill("varlen").with(func(c *Case) {
			c.Seqs, c.PackedQ, c.PackedK = seqsOf([2]int{0, 0}, [2]int{1, 1}, [2]int{0, 0}), true, true
		}),
		decode("varlen").with(func(c *Case) {
			c.Seqs, c.PackedQ, c.Causal = decodeSeqs, true, problem.BottomRight
		}),
	)
}

var pageSizes = []int{1, 5, 16, 64, 256}

func pagedCases(wide bool) []Case {
	var all []Case
	for i, size := range pageSizes {
		layout := []LayoutKind{Packed, BSHD, Tight, Padded, BSHD}[i]
		all = append(all,
			prefill("paged").with(func(c *Case) {
				c.Seqs, c.PackedQ, c.PageSize, c.Prefix = mixedSeqs, true, size, 40
				c.Causal, c.Layout = problem.BottomRight, layout
			}),
			prefill("paged").with(func(c *Case) { // of one length: no lengths are given
				c.PageSize, c.Layout = size, layout
			}),
			decode("paged").with(func(c *Case) {
				c.Seqs, c.PackedQ, c.PageSize, c.Prefix = decodeSeqs, true, size, 64
				c.Causal, c.Layout = problem.BottomRight, layout
			}),
		)
	}
	all = cut(all, wide, func(i int) bool { return i%3 == 0 || i == 3*3+1 || i == 1*3+2 || i == 2*3+2 })
	return append(all,
		// Pages of a prefix that all sequences share, and little else.
		decode("paged").with(func(c *Case) {
			c.Seqs, c.PageSize, c.Prefix = equal(5, 1, 290), 16, 272
			c.Causal = problem.BottomRight
		}),
		// No power of two.
		decode("paged").with(func(c *Case) { c.Seqs, c.PageSize = equal(2, 2, 301), 48 }),
		prefill("paged").with(func(c *Case) { c.PageSize, c.Causal = 48, problem.TopLeft }),
		// Rows of K and of V of different lengths; what invocations carry is no whole number of tiles.
		prefill("paged").with(func(c *Case) {
			c.D, c.Dv, c.Seqs, c.PackedQ, c.PageSize, c.Causal = 96, 64, mixedSeqs, true, 16, problem.BottomRight
		}),
		prefill("paged").with(func(c *Case) { c.D, c.Dv, c.PageSize = 80, 48, 64 }),
		// Quantized, and with tiles that a bitmap leaves out.
		prefill("paged").with(func(c *Case) {
			c.KV, c.KVBlock, c.Seqs, c.PackedQ, c.PageSize = problem.KVInt8, 16, mixedSeqs, true, 16
		}),
		prefill("paged").with(func(c *Case) {
			c.BlockQ, c.BlockK, c.Blocks, c.Seqs = 16, 64, Spread{On: true, Batches: true, Heads: true}, equal(2, 70, 900)
			c.PageSize, c.Causal = 16, problem.BottomRight
		}),
	)
}

func sparseCases() []Case {
	var all []Case
	for _, ratio := range []float64{0.02, 0.3, 1} {
		for _, size := range []int{0, 16} {
			all = append(all,
				decode("sparse").with(func(c *Case) { c.SparseRatio, c.PageSize = ratio, size }),
				decode("sparse").with(func(c *Case) {
					c.Seqs, c.LooseK, c.SparseRatio, c.PageSize, c.Shuffled = decodeSeqs, true, ratio, size, true
					c.Causal, c.PackedQ = problem.BottomRight, true
				}),
			)
		}
	}
	return append(all,
		decode("sparse").with(func(c *Case) { c.SparseRatio, c.PageSize, c.Seqs = 0.1, 5, equal(1, 1, 1500) }),
		// Tiles full of keys that some rows may not see.
		decode("sparse").with(func(c *Case) {
			c.SparseRatio, c.Seqs, c.Causal = 1, equal(3, 2, 304), problem.BottomRight
		}),
		decode("sparse").with(func(c *Case) {
			c.SparseRatio, c.Seqs, c.Causal = 0.5, equal(3, 2, 304), problem.TopLeft
		}),
		prefill("sparse").with(func(c *Case) { c.SparseRatio, c.Shuffled, c.Causal = 0.25, true, problem.TopLeft }),
	)
}

func blockCases(wide bool) []Case {
	var all []Case
	each := Spread{On: true, Batches: true, Heads: true}
	for i, size := range [][2]int{{16, 16}, {64, 64}, {32, 128}, {128, 16}} {
		all = append(all,
			prefill("blocks").with(func(c *Case) {
				c.BlockQ, c.BlockK, c.Blocks, c.Causal = size[0], size[1], each, Causals[i%len(Causals)]
				c.Seqs = equal(2, 150, 333)
			}),
			prefill("blocks").with(func(c *Case) {
				c.BlockQ, c.BlockK, c.Seqs, c.LooseQ, c.LooseK = size[0], size[1], mixedSeqs, true, true
				c.Causal, c.Layout = problem.BottomRight, Tight
			}),
		)
	}
	all = cut(all, wide, func(i int) bool { return i == 0 || i == 3 || i == 4 || i == 7 })
	return append(all,
		// More than a word of bits.
		decode("blocks").with(func(c *Case) {
			c.BlockQ, c.BlockK, c.Blocks, c.Seqs = 16, 16, Spread{On: true, Heads: true}, equal(2, 1, 1100)
		}),
		decode("blocks").with(func(c *Case) {
			c.BlockQ, c.BlockK, c.Blocks, c.Seqs, c.PageSize = 16, 32, Spread{On: true, Batches: true}, equal(2, 1, 1100), 16
		}),
	)
}

func windowCases(wide bool) []Case {
	var all []Case
	for i, w := range [][2]int{{17, 0}, {40, 40}, {-1, 9}, {0, 0}, {64, -1}} {
		for j, at := range [][2]problem.Causal{
			{problem.TopLeft, 0}, {problem.BottomRight, 0}, {0, problem.TopLeft}, {0, problem.BottomRight},
		} {
			c := prefill("window").with(func(c *Case) {
				c.Window, c.Causal, c.Align = problem.WindowOf(w[0], w[1]), at[0], at[1]
			})
			switch {
			case (i+j)%3 == 1: // more rows than keys: some see nothing
				c.Seqs = equal(2, 133, 70)
			case (i+j)%3 == 2 && (wide || j < 2 && i > 1):
				c.Seqs, c.PackedQ, c.PackedK = mixedSeqs, true, true
			}
			all = append(all, c)
		}
	}
	return append(all,
		// Whole tiles to either side of the window.
		prefill("window").with(func(c *Case) {
			c.Window, c.Causal, c.Seqs = problem.WindowOf(100, 0), problem.BottomRight, equal(1, 300, 700)
		}),
		decode("window").with(func(c *Case) {
			c.Window, c.Causal, c.Seqs = problem.WindowOf(100, 0), problem.BottomRight, equal(2, 1, 700)
		}),
		decode("window").with(func(c *Case) {
			c.Window, c.Causal, c.Seqs, c.PackedQ, c.PageSize = problem.WindowOf(50, 0), problem.BottomRight, decodeSeqs, true, 16
		}),
	)
}

func softcapCases() []Case {
	var all []Case
	for i, limit := range []float32{50, 5, 0.7} {
		all = append(all,
			prefill("softcap").with(func(c *Case) { c.Softcap, c.Causal = limit, []problem.Causal{0, problem.BottomRight, 0}[i] }),
			decode("softcap").with(func(c *Case) { c.Softcap = limit }),
		)
	}
	return append(all, prefill("softcap").with(func(c *Case) { c.Softcap, c.Data = 30, Large }))
}

func alibiCases(wide bool) []Case {
	var all []Case
	for _, at := range [][2]problem.Causal{{problem.TopLeft, 0}, {problem.BottomRight, 0}, {0, problem.TopLeft}, {0, problem.BottomRight}} {
		all = append(all,
			prefill("alibi").with(func(c *Case) { c.ALiBi, c.Causal, c.Align = true, at[0], at[1] }),
			prefill("alibi").with(func(c *Case) {
				c.ALiBi, c.Causal, c.Align, c.Seqs, c.PackedQ, c.PackedK = true, at[0], at[1], mixedSeqs, true, true
			}),
		)
	}
	all = cut(all, wide, func(i int) bool { return i%2 == 0 || i == 1 || i == 3 })
	return append(all, decode("alibi").with(func(c *Case) { c.ALiBi, c.Causal = true, problem.BottomRight }))
}

func sinkCases() []Case {
	return []Case{
		prefill("sinks").with(func(c *Case) { c.Sinks = true }),
		prefill("sinks").with(func(c *Case) { // rows with nothing but the sink
			c.Sinks, c.Causal, c.Seqs = true, problem.BottomRight, equal(2, 133, 70)
		}),
		prefill("sinks").with(func(c *Case) {
			c.Sinks, c.Causal, c.Seqs, c.PackedQ, c.PackedK = true, problem.BottomRight, mixedSeqs, true, true
		}),
		decode("sinks").with(func(c *Case) { c.Sinks = true }),
		decode("sinks").with(func(c *Case) { c.Sinks, c.FixedSplit, c.Seqs = true, 3, equal(2, 1, 700) }),
	}
}

func spreads() []Spread {
	return []Spread{
		{true, false, false, false}, {true, false, false, true}, {true, false, true, false}, {true, true, false, false},
		{true, true, true, true}, {true, false, true, true},
	}
}

func biasCases(wide bool) []Case {
	var all []Case
	for i, s := range spreads() {
		for j, dtype := range problem.DTypes() {
			all = append(all, prefill("bias").with(func(c *Case) {
				c.Bias = BiasKind{s, dtype}
				c.Layout = []LayoutKind{Packed, Tight, Padded}[(i+j)%3]
				if (i+j)%2 == 1 && (wide || j == 0) {
					c.Seqs, c.LooseQ, c.LooseK = mixedSeqs, true, true
				}
			}))
		}
	}
	return append(all,
		decode("bias").with(func(c *Case) { c.Bias = BiasKind{Spread{true, true, true, true}, problem.F32} }),
		decode("bias").with(func(c *Case) {
			c.Bias, c.PageSize = BiasKind{Spread{true, true, false, false}, problem.F32}, 16
		}),
		prefill("bias").with(func(c *Case) {
			c.Bias, c.Layout, c.Seqs = BiasKind{Spread{true, true, true, true}, problem.F16}, Odd, equal(2, 65, 77)
		}),
	)
}

func maskCases(wide bool) []Case {
	var all []Case
	for i, s := range spreads() {
		all = append(all,
			prefill("mask").with(func(c *Case) {
				c.Mask = s
				if wide {
					c.Causal = Causals[i%len(Causals)]
				}
				c.Layout = []LayoutKind{Packed, Tight, Padded}[i%3]
			}),
			prefill("mask").with(func(c *Case) {
				c.Mask, c.Seqs, c.LooseQ, c.LooseK, c.Causal = s, mixedSeqs, true, true, problem.BottomRight
			}),
		)
	}
	return append(all,
		decode("mask").with(func(c *Case) { c.Mask = Spread{true, true, true, true} }),
		decode("mask").with(func(c *Case) { c.Mask, c.PageSize = Spread{true, true, false, false}, 16 }),
	)
}

func quantCases(wide bool) []Case {
	var all []Case
	for n, kv := range problem.KVTypes()[1:] {
		blocks := []int{0}
		if kv.Scaled() {
			blocks = []int{0, 16}
		}
		for i, block := range blocks {
			table := []Case{
				prefill("quant").with(func(c *Case) { c.KV, c.KVBlock, c.Layout = kv, block, []LayoutKind{Tight, BSHD}[i] }),
				decode("quant").with(func(c *Case) { c.KV, c.KVBlock = kv, block }),
				decode("quant").with(func(c *Case) {
					c.KV, c.KVBlock, c.PageSize, c.Seqs, c.PackedQ = kv, block, []int{16, 5}[i], decodeSeqs, true
					c.Causal = problem.BottomRight
				}),
			}
			// A type with scales has one size of blocks for prefill and the other for decoding.
			all = append(all, cut(table, wide, func(j int) bool { return len(blocks) == 1 && j < 2 || len(blocks) == 2 && (j == 0) == (i == 1) })...)
		}
		if !wide && n%2 == 1 {
			continue
		}
		all = append(all, prefill("quant").with(func(c *Case) {
			c.KV, c.Seqs, c.PackedQ, c.PackedK, c.LooseQ, c.LooseK = kv, mixedSeqs, true, true, true, true
			if kv.Scaled() {
				c.KVBlock = 16 // blocks of the packed tensor, which sequences begin and end within
			}
		}))
	}
	return all
}

func splitCases() []Case {
	var all []Case
	for _, split := range []int{1, 2, 3, 7} {
		all = append(all,
			decode("split").with(func(c *Case) { c.FixedSplit = split }),
			decode("split").with(func(c *Case) {
				c.FixedSplit, c.Seqs, c.PackedQ, c.Causal = split, decodeSeqs, true, problem.BottomRight
			}),
			decode("split").with(func(c *Case) {
				c.FixedSplit, c.Seqs, c.PackedQ, c.PageSize, c.Causal = split, decodeSeqs, true, 16, problem.BottomRight
			}),
		)
	}
	return append(all,
		prefill("split").with(func(c *Case) { c.FixedSplit, c.Seqs = 3, equal(1, 70, 400) }),
		prefill("split").with(func(c *Case) { // most parts of most rows are empty
			c.FixedSplit, c.Seqs, c.Causal = 7, equal(1, 150, 90), problem.BottomRight
		}),
		// As many parts as the device likes.
		decode("split").with(func(c *Case) { c.Seqs = equal(1, 1, 3000) }),
		decode("split").with(func(c *Case) { c.Seqs, c.Causal = equal(1, 4, 2999), problem.BottomRight }),
		decode("split").with(func(c *Case) { c.FixedSplit, c.SparseRatio = 3, 0.3 }),
	)
}

func decodeCases() []Case {
	var all []Case
	for i, rows := range []int{1, 2, 3, 5, 8, 13, 16} {
		for j, heads := range [][2]int{{2, 2}, {8, 2}, {8, 1}, {10, 2}, {7, 1}} {
			if (i+j)%2 == 1 && rows != 1 {
				continue
			}
			all = append(all, decode("decode").with(func(c *Case) {
				c.Hq, c.Hkv, c.Seqs, c.Causal = heads[0], heads[1], equal(2, rows, 203+i), Causals[(i+j)%len(Causals)]
				c.Layout = []LayoutKind{Packed, BSHD, Tight}[(i+j)%3]
			}))
		}
	}
	return append(all,
		decode("decode").with(func(c *Case) { c.Layout, c.Seqs = Odd, equal(2, 3, 131) }),
		decode("decode").with(func(c *Case) { c.D, c.Dv, c.Causal = 128, 128, problem.BottomRight }),
	)
}

func dropoutCases(wide bool) []Case {
	all := []Case{
		prefill("dropout").with(func(c *Case) { c.Dropout = 0.1 }),
		prefill("dropout").with(func(c *Case) { c.Dropout, c.Causal, c.LSE = 0.5, problem.BottomRight, false }),
		prefill("dropout").with(func(c *Case) {
			c.Dropout, c.Causal, c.Seqs, c.PackedQ, c.PackedK, c.Sinks = 0.25, problem.BottomRight, mixedSeqs, true, true, true
		}),
		decode("dropout").with(func(c *Case) { c.Dropout, c.FixedSplit = 0.9, 3 }),
		decode("dropout").with(func(c *Case) { c.Dropout, c.SparseRatio, c.Shuffled, c.PageSize = 0.1, 0.3, true, 16 }),
		prefill("dropout").with(func(c *Case) {
			c.Dropout, c.Softcap, c.Bias, c.Seqs, c.LooseQ, c.LooseK = 0.2, 5, BiasKind{Spread{true, true, true, true}, problem.F32}, mixedSeqs, true, true
		}),
		prefill("dropout").with(func(c *Case) { c.Dropout, c.SparseRatio, c.Shuffled = 0.3, 0.5, true }),
	}
	all = cut(all, wide, func(i int) bool { return i >= 1 && i <= 4 })
	if wide {
		for n := range 6 {
			all = append(all, randomDropout(n))
		}
	}
	return all
}

// randomDropout is a random composition with dropout, which quantized K and V exclude.
func randomDropout(n int) Case {
	c := RandomOptions(5000 + n)
	c.Name, c.KV, c.KVBlock, c.Dropout = fmt.Sprintf("random-dropout-%d", n), problem.KVSame, 0, []float32{0.1, 0.5, 0.75, 1e-3}[n%4]
	return c
}

func latentCases() []Case {
	latent := Case{Name: "latent", D: 576, Dv: 512, Shape: problem.Shape{Hq: 8, Hkv: 1}, VInK: true, LSE: true, Layout: Packed, Seqs: equal(2, 1, 130)}
	return []Case{
		latent,
		latent.with(func(c *Case) {
			c.Seqs, c.PackedQ, c.PageSize, c.Causal = seqsOf([2]int{1, 130}, [2]int{2, 64}, [2]int{0, 3}), true, 64, problem.BottomRight
		}),
		latent.with(func(c *Case) { c.FixedSplit, c.Layout = 2, BSHD }),
		prefill("latent").with(func(c *Case) {
			c.D, c.Dv, c.Hkv, c.Seqs, c.PackedQ, c.PackedK, c.Causal = 192, 128, 4, mixedSeqs, true, true, problem.BottomRight
		}),
	}
}
