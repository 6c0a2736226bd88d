package cases

import (
	"slices"

	"vkattn/internal/problem"
)

// AllOptions is the whole table: the tables of all options, each also at the other head
// dimensions, mixed batches as servers have them, and many compositions. It suits a GPU.
func AllOptions() []Case {
	all := optionTables(true)
	all = append(all, otherDims(all)...)
	all = append(all, servingCases()...)
	all = append(all, crowdCases()...)
	for n := range fullCompositions {
		all = append(all, RandomOptions(n))
	}
	return all
}

const fullCompositions = 160

// otherDims has one case of each option's table at each head dimension that the table
// lacks, in turn. Odd head dimensions come with odd layouts.
func otherDims(tables []Case) []Case {
	byName := map[string][]Case{}
	var names []string
	for _, c := range tables {
		if c.D != 64 || c.Dv != 64 {
			continue
		}
		if byName[c.Name] == nil {
			names = append(names, c.Name)
		}
		byName[c.Name] = append(byName[c.Name], c)
	}
	var all []Case
	for n, name := range names {
		for i, d := range [][2]int{{128, 128}, {96, 96}, {256, 256}, {32, 64}, {128, 64}, {192, 128}, {80, 80}, {40, 40}, {111, 111}, {7, 7}} {
			even := d[0]%32 == 0 && d[1]%32 == 0
			from := slices.DeleteFunc(slices.Clone(byName[name]), func(c Case) bool { return c.KV.Blocked() && !even })
			// The step has no factor in common with the lengths of most tables.
			all = append(all, from[(7*i+n)%len(from)].with(func(c *Case) {
				c.D, c.Dv = d[0], d[1]
				if !even {
					c.Layout, c.LSE, c.Access = Odd, i%3 != 0, Accesses[i%2]
				}
			}))
		}
	}
	return all
}

// servingCases are the batches of a server, judged by a sample of rows.
func servingCases() []Case {
	lengths := seqsOf([2]int{1, 1}, [2]int{235, 235}, [2]int{13353, 13353})
	base := Case{
		Name: "serving", D: 128, Dv: 128, Shape: problem.Shape{Hq: 4, Hkv: 1}, LSE: true, Layout: BSHD, SampleMax: 400,
		Causal: problem.BottomRight, PackedQ: true,
	}
	// 600 decodes and 5 long prefills among them.
	var crowd []Seq
	for i := range 605 {
		s := Seq{i, 1, 1 + (i*37)%900}
		if i%121 == 60 {
			s.Rows, s.Keys = 1500+i, 2000+i
		}
		crowd = append(crowd, s)
	}
	var decodes []Seq
	for i := range 600 {
		decodes = append(decodes, Seq{i, 1, 1 + (i*41)%1500})
	}
	each := func(f func(*Case)) Case { return base.with(f) }
	all := []Case{
		each(func(c *Case) { c.Seqs, c.PackedK = lengths, true }),
		each(func(c *Case) { c.Seqs, c.PageSize = lengths, 16 }),
		each(func(c *Case) { c.Seqs, c.PackedK, c.D, c.Dv = lengths, true, 64, 64 }),
		each(func(c *Case) {
			c.Seqs, c.PageSize, c.Window, c.D, c.Dv = lengths, 64, problem.WindowOf(1023, 0), 64, 64
		}),
		each(func(c *Case) { c.Seqs, c.PageSize = crowd, 16 }),
		each(func(c *Case) { c.Seqs, c.PageSize, c.Prefix, c.D, c.Dv = crowd, 64, 256, 64, 64 }),
		each(func(c *Case) { c.Seqs, c.PackedK, c.D, c.Dv = crowd, true, 64, 64 }),
		each(func(c *Case) { c.Seqs, c.PageSize, c.FixedSplit = crowd, 16, 3 }),
		each(func(c *Case) { c.Seqs, c.PageSize, c.PackedQ = decodes, 1, false }),
		each(func(c *Case) { c.Seqs, c.PageSize, c.PackedQ, c.KV = decodes, 16, false, problem.KVFP8 }),
		each(func(c *Case) {
			c.Seqs, c.PackedQ, c.SparseRatio, c.Hq, c.Hkv, c.D, c.Dv, c.Causal = equal(1, 1, 32000), false, 0.02, 32, 8, 256, 256, problem.CausalNone
		}),
		each(func(c *Case) {
			c.Seqs, c.PackedQ, c.SparseRatio, c.PageSize, c.Causal = equal(4, 1, 32000), false, 0.05, 5, problem.CausalNone
		}),
		each(func(c *Case) {
			c.Seqs, c.PackedQ, c.PageSize, c.D, c.Dv, c.Hq, c.VInK, c.SampleMax = equal(4, 1, 5000), false, 64, 576, 512, 128, true, 100
		}),
	}
	// Every row of the smaller ones.
	for i, seqs := range [][]Seq{decodes[:100], crowd[:100]} {
		all = append(all, each(func(c *Case) {
			c.Name, c.Seqs, c.PageSize, c.SampleMax = []string{"serving-decodes", "serving-crowd"}[i], slices.Clone(seqs), 16, 4000
		}))
	}
	return all
}

// crowdCases are packed batches of many short sequences and some long ones. The two kinds
// get separate dispatches if there are enough short ones for a device's cores.
func crowdCases() []Case {
	var seqs []Seq
	for i := range 144 {
		s := crowdSeqs[i%len(crowdSeqs)]
		if i >= len(crowdSeqs) && s.Rows > 5 {
			s.Rows = 1 + i%2
		}
		seqs = append(seqs, Seq{i, s.Rows, s.Keys})
	}
	base := prefill("crowd").with(func(c *Case) {
		c.Seqs, c.PackedQ, c.PackedK, c.Causal = seqs, true, true, problem.BottomRight
	})
	paged := func(c *Case, size int) { c.PackedK, c.PageSize = false, size }
	return []Case{
		base,
		base.with(func(c *Case) { paged(c, 16); c.LSE = false }),
		base.with(func(c *Case) { paged(c, 1); c.Causal, c.Window = problem.TopLeft, problem.WindowOf(40, 0) }),
		base.with(func(c *Case) { c.LooseQ, c.LooseK, c.Causal = true, true, problem.CausalNone }),
		base.with(func(c *Case) { c.Hq, c.Hkv, c.D, c.Dv = 8, 1, 128, 128 }),
		base.with(func(c *Case) { c.Hq, c.Hkv, c.Sinks, c.Softcap = 2, 2, true, 5 }),
		base.with(func(c *Case) { c.ALiBi, c.D, c.Dv, c.Prefix = true, 96, 96, 64; paged(c, 64) }),
		base.with(func(c *Case) {
			c.Mask, c.Bias = Spread{true, true, true, true}, BiasKind{Spread{true, true, true, true}, problem.F16}
		}),
		base.with(func(c *Case) { c.KV, c.KVBlock = problem.KVInt8, 16; paged(c, 16) }),
		base.with(func(c *Case) { c.KV = problem.KVQ4_0 }),
		base.with(func(c *Case) { c.D, c.Dv = 256, 256; paged(c, 5) }),
		base.with(func(c *Case) {
			c.BlockQ, c.BlockK, c.Blocks = 16, 64, Spread{On: true, Batches: true, Heads: true}
			paged(c, 16)
		}),
		base.with(func(c *Case) { // all rows of a fragment are a query's
			c.D, c.Dv, c.Hq, c.Hkv, c.VInK = 576, 512, 16, 1, true
			paged(c, 64)
		}),
	}
}
