package cases

import "vkattn/internal/problem"

// CompactOptions is a table of all options with as few pipelines as possible: for kernels
// that a driver on the CPU takes seconds to compile. The options of a pipeline are ones
// that people combine. Problems that differ in nothing that changes the pipeline share it.
func CompactOptions() []Case {
	var all []Case
	add := func(c Case, changes ...func(*Case)) {
		all = append(all, c)
		for _, change := range changes {
			all = append(all, c.with(change))
		}
	}
	small := func(c Case) Case { c.D, c.Dv = 32, 32; return c }
	topLeft := func(c *Case) { c.Causal = problem.TopLeft }

	// Rows of many sequences, short and long, causal, with a window.
	add(small(prefill("compact-window")).with(func(c *Case) {
		c.Seqs, c.PackedQ, c.PackedK, c.Causal = crowdSeqs, true, true, problem.BottomRight
		c.Window, c.ALiBi, c.Sinks = problem.WindowOf(40, 0), true, true
	}), topLeft, func(c *Case) { c.Window = problem.WindowOf(0, 3) },
		func(c *Case) { c.Window = problem.WindowOf(100, 5) })
	// Pages with softcap and bias, no mask.
	add(small(prefill("compact-paged")).with(func(c *Case) {
		c.Seqs, c.LooseQ, c.PageSize, c.Prefix = mixedSeqs, true, 16, 48
		c.Softcap, c.Bias = 5, BiasKind{Spread{true, true, true, true}, problem.F16}
	}), func(c *Case) { c.Bias.Heads, c.Bias.Rows, c.Softcap = false, false, 50 },
		func(c *Case) { c.Bias.Spread, c.Prefix, c.Layout = Spread{On: true, Rows: true}, 0, BSHD })
	// Pages of quantized rows, with K and V of different lengths and tiles that a bitmap excludes; and pages as long as a tile.
	add(small(prefill("compact-paged")).with(func(c *Case) {
		c.Dv, c.Seqs, c.PackedQ, c.PageSize, c.Causal = 48, mixedSeqs, true, 16, problem.BottomRight
		c.KV, c.KVBlock, c.BlockQ, c.BlockK, c.Blocks = problem.KVInt8, 16, 16, 64, Spread{On: true, Batches: true, Heads: true}
	}), topLeft, func(c *Case) { c.Seqs, c.Blocks.Heads = equal(2, 12, 900), false })
	add(small(prefill("compact-paged")).with(func(c *Case) {
		c.Seqs, c.PackedQ, c.PageSize, c.Prefix, c.Causal = mixedSeqs, true, 64, 64, problem.BottomRight
	}), topLeft)
	// A mask, and quantized keys.
	add(small(prefill("compact-mask")).with(func(c *Case) {
		c.Mask, c.KV, c.KVBlock = Spread{true, true, true, true}, problem.KVInt8, 16
	}), func(c *Case) { c.Mask.Heads = false }, func(c *Case) { c.Mask = Spread{On: true, Heads: true} },
		func(c *Case) { c.Mask.Batches, c.Layout = false, BSHD })
	// A bitmap of blocks under a causal mask.
	add(small(prefill("compact-blocks")).with(func(c *Case) {
		c.BlockQ, c.BlockK, c.Blocks, c.Causal = 32, 64, Spread{On: true, Batches: true, Heads: true}, problem.BottomRight
		c.Seqs = equal(2, 150, 333)
	}), topLeft, func(c *Case) { c.Blocks.Heads, c.Seqs = false, equal(3, 170, 700) },
		func(c *Case) { c.Blocks.Batches, c.Seqs = false, equal(2, 140, 2200) })
	// Decoding: few rows, keys split.
	add(decode("compact-decode").with(func(c *Case) { c.FixedSplit = 3 }),
		func(c *Case) { c.FixedSplit = 7 }, func(c *Case) { c.FixedSplit, c.Seqs = 2, equal(2, 2, 700) },
		func(c *Case) { c.Hq, c.Hkv, c.PageSize = 7, 1, 48 })
	add(decode("compact-serving").with(func(c *Case) {
		c.Seqs, c.PackedQ, c.PageSize, c.Prefix, c.Causal, c.Sinks = decodeSeqs, true, 5, 64, problem.BottomRight, true
		c.FixedSplit = 3
	}), func(c *Case) { c.FixedSplit = 2 }, topLeft)
	// Pages whose keys do not run over a fragment: subgroups have an even or an odd number of tiles.
	add(decode("compact-pages").with(func(c *Case) {
		c.D, c.Dv, c.PageSize, c.FixedSplit = 72, 72, 5, 1
		c.Seqs = seqsOf([2]int{1, 40}, [2]int{1, 100}, [2]int{1, 170}, [2]int{1, 235}, [2]int{1, 300}, [2]int{1, 420})
	}))
	add(decode("compact-sparse").with(func(c *Case) { c.SparseRatio, c.Shuffled, c.PageSize = 0.3, true, 16 }),
		func(c *Case) { c.SparseRatio, c.Shuffled = 0.02, false }, func(c *Case) { c.SparseRatio = 1 },
		func(c *Case) { c.Hq, c.Hkv = 10, 2 })
	// Tiles full of keys that some rows may not see.
	add(decode("compact-sparse").with(func(c *Case) {
		c.SparseRatio, c.Hq, c.Hkv, c.Seqs, c.Causal = 1, 4, 2, equal(3, 2, 304), problem.BottomRight
	}), topLeft, func(c *Case) { c.SparseRatio = 0.5 })
	add(decode("compact-blocks").with(func(c *Case) {
		c.BlockQ, c.BlockK, c.Blocks, c.Seqs, c.PageSize = 16, 16, Spread{On: true, Heads: true}, equal(2, 1, 1100), 16
	}), func(c *Case) { c.Blocks.Batches = true })
	// Rows of 256 columns, which subgroups share: of a list, of pages, with masks.
	add(decode("compact-wide").with(func(c *Case) {
		c.D, c.Dv, c.Seqs, c.Causal, c.FixedSplit = 256, 256, equal(2, 2, 333), problem.BottomRight, 2
		c.SparseRatio, c.PageSize = 0.3, 16
	}), topLeft, func(c *Case) { c.SparseRatio, c.Seqs = 1, equal(2, 1, 700) }, func(c *Case) { c.SparseRatio = 0.02 })
	add(decode("compact-mask").with(func(c *Case) {
		c.Mask, c.Bias = Spread{true, true, true, true}, BiasKind{Spread{true, true, true, true}, problem.F32}
	}), func(c *Case) { c.Mask.Batches, c.Bias.Heads = false, false })
	// Dropout of packed rows of several lengths, with all keys and with lists.
	add(small(prefill("compact-dropout")).with(func(c *Case) {
		c.Dropout, c.Seqs, c.PackedQ, c.PackedK, c.Causal = 0.25, crowdSeqs, true, true, problem.BottomRight
	}), topLeft, func(c *Case) { c.Dropout = 0.9 })
	add(decode("compact-dropout").with(func(c *Case) { c.Dropout, c.FixedSplit, c.SparseRatio, c.Seqs = 0.5, 3, 0.5, equal(2, 2, 304) }),
		func(c *Case) { c.SparseRatio = 1 })
	for _, kv := range []problem.KVType{problem.KVFP8, problem.KVQ8_0, problem.KVQ4_0} {
		add(decode("compact-quant").with(func(c *Case) { c.KV = kv }),
			func(c *Case) { c.Seqs = equal(2, 2, 330) })
	}
	all = append(all, latentCases()[0])
	for _, o := range options {
		if o.compact != nil {
			all = append(all, o.compact()...)
		}
	}
	return all
}

// CompactGradients has the options that CompactOptions has only with pages or quantized K and
// V, which have no gradients.
func CompactGradients() []Case {
	return []Case{prefill("compact-gradients").with(func(c *Case) {
		c.D, c.Dv, c.Softcap, c.ALiBi, c.Align, c.Window = 32, 32, 3, true, problem.BottomRight, problem.WindowOf(50, 20)
	})}
}
