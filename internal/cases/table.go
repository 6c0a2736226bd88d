package cases

import (
	"slices"
	"sync"

	"vkattn/internal/problem"
)

// Values that every tier must compute correctly. Dims are (HeadDim, HeadDimV).
var (
	Dims = [][2]int{
		{1, 1}, {8, 8}, {31, 31}, {32, 32}, {40, 40}, {59, 59}, {64, 64}, {72, 72}, {80, 80}, {96, 96},
		{111, 111}, {128, 128}, {160, 160}, {192, 192}, {256, 256},
		{192, 128}, {128, 64}, {320, 256}, {512, 512}, {576, 512},
	}
	lengths  = []int{1, 2, 7, 31, 33, 64, 127, 128, 129, 239, 512, 1023}
	heads    = [][2]int{{1, 1}, {6, 6}, {32, 8}, {8, 1}} // (Hq, Hkv)
	batches  = []int{1, 2, 3}
	Causals  = []problem.Causal{problem.CausalNone, problem.TopLeft, problem.BottomRight}
	Scales   = []problem.Scale{{}, problem.ScaleOf(0), problem.ScaleOf(-0.31), problem.ScaleOf(0.7)}
	Accesses = []problem.Access{problem.AccessAddresses, problem.AccessDescriptors}
)

// Indices of the factors of the table.
const (
	fDims = iota
	fSq
	fSk
	fHeads
	fBatch
	fCausal
	fScale
	fLayout
	fData
	fLSE
	fAccess
)

// tableFactors are how many values the factors take.
var tableFactors = []int{
	fDims: len(Dims), fSq: len(lengths), fSk: len(lengths), fHeads: len(heads), fBatch: len(batches), fCausal: len(Causals),
	fScale: len(Scales), fLayout: int(layoutKinds), fData: int(DataKinds), fLSE: 2, fAccess: len(Accesses),
}

// caseOf is a row of the table.
func caseOf(row []int) Case {
	return Case{
		D: Dims[row[fDims]][0], Dv: Dims[row[fDims]][1],
		Causal: Causals[row[fCausal]], Scale: Scales[row[fScale]],
		Shape: problem.Shape{
			B: batches[row[fBatch]], Hq: heads[row[fHeads]][0], Hkv: heads[row[fHeads]][1],
			Sq: lengths[row[fSq]], Sk: lengths[row[fSk]],
		},
		Layout: LayoutKind(row[fLayout]), Data: DataKind(row[fData]), LSE: row[fLSE] == 1, Access: Accesses[row[fAccess]],
	}
}

func every(p pair) (pair, bool) { return p, true }

func rowCost(row []int) int64 { return caseOf(row).Cost() }

// All is the whole table of shapes: every pair of values of any two factors, corner cases,
// and problems of realistic size. It suits a GPU; [Brief] suits a driver on the CPU.
func All() []Case { return slices.Concat(pairwise(), notable, realistic()) }

// pairwise has every pair of values of any two factors.
var pairwise = sync.OnceValue(func() []Case {
	var all []Case
	for _, row := range cover(tableFactors, every, rowCost, 1e9) {
		all = append(all, caseOf(row))
	}
	return all
})

// Notable are corner cases that the covering design meets only by chance.
func Notable() []Case { return slices.Clone(notable) }

var notable = []Case{
	// Nothing to attend to but for the last key.
	{D: 64, Dv: 64, Causal: problem.BottomRight, Shape: problem.Shape{B: 1, Hq: 2, Sq: 239, Sk: 1}, LSE: true},
	// Whole tiles of rows with nothing, then the diagonal.
	{D: 64, Dv: 64, Causal: problem.BottomRight, Shape: problem.Shape{B: 1, Hq: 2, Sq: 512, Sk: 129}, Layout: Odd, LSE: true},
	// Whole tiles of keys that no row sees.
	{D: 64, Dv: 64, Causal: problem.TopLeft, Shape: problem.Shape{B: 2, Hq: 2, Sq: 33, Sk: 512}, LSE: true},
	// One query against a cache of keys, latent and grouped.
	{D: 576, Dv: 512, Shape: problem.Shape{B: 1, Hq: 8, Hkv: 1, Sq: 1, Sk: 100}, Layout: Packed},
	{D: 128, Dv: 128, Causal: problem.BottomRight, Shape: problem.Shape{B: 2, Hq: 8, Hkv: 2, Sq: 1, Sk: 239}, Layout: BSHD},
	// The smallest problem there is.
	{D: 1, Dv: 1, Shape: problem.Shape{B: 1, Hq: 1, Sq: 1, Sk: 1}, LSE: true},
	// Different dims in both orders, multiples of nothing.
	{D: 3, Dv: 200, Shape: problem.Shape{B: 1, Hq: 3, Sq: 65, Sk: 63}, Layout: Even, LSE: true},
	{D: 200, Dv: 3, Causal: problem.TopLeft, Shape: problem.Shape{B: 1, Hq: 3, Sq: 63, Sk: 65}, Layout: Odd, LSE: true},
	// The maximum moves at every key, down and up, with large scores.
	{D: 128, Dv: 128, Shape: problem.Shape{B: 1, Hq: 2, Sq: 129, Sk: 239}, Data: Rising, LSE: true},
	{D: 64, Dv: 64, Causal: problem.BottomRight, Shape: problem.Shape{B: 1, Hq: 2, Sq: 129, Sk: 239}, Data: Falling, LSE: true},
	{D: 64, Dv: 64, Scale: problem.ScaleOf(-0.125), Shape: problem.Shape{B: 1, Hq: 2, Sq: 129, Sk: 239}, Data: Large, LSE: true},
	// Verified by a sample of its rows, as the realistic ones are.
	{D: 64, Dv: 64, Causal: problem.TopLeft, Shape: problem.Shape{B: 2, Hq: 2, Sq: 300, Sk: 300}, Layout: BSHD, LSE: true, SampleMax: 64},
	// Scale 0 under a mask: each row the mean of what it sees.
	{D: 64, Dv: 64, Causal: problem.BottomRight, Scale: problem.ScaleOf(0), Shape: problem.Shape{B: 1, Hq: 1, Sq: 129, Sk: 127}, LSE: true},
}

// realistic are problems of realistic size, verified by sampled rows.
func realistic() []Case {
	var all []Case
	for i, d := range [][2]int{{64, 64}, {128, 128}, {192, 128}, {256, 256}} {
		for j, s := range []problem.Shape{
			{B: 1, Hq: 8, Hkv: 2, Sq: 4096, Sk: 4096},
			{B: 1, Hq: 4, Sq: 2049, Sk: 8191},
			{B: 2, Hq: 16, Hkv: 2, Sq: 17, Sk: 16384},
		} {
			all = append(all, Case{
				D: d[0], Dv: d[1], Causal: Causals[(i+j)%len(Causals)], Shape: s, LSE: true,
				Layout: []LayoutKind{Packed, BSHD, Tight}[j], SampleMax: 512,
			})
		}
	}
	return append(all, Case{
		D: 576, Dv: 512, Causal: problem.BottomRight, Shape: problem.Shape{B: 2, Hq: 128, Hkv: 1, Sq: 2, Sk: 8192},
		Layout: Packed, LSE: true, SampleMax: 512,
	})
}

// A driver on the CPU takes milliseconds to compute a case and seconds to compile a
// pipeline. So the brief table has few pipelines and several problems for each. Factors
// that do not change the pipeline are covered pair by pair (every Sq with every Sk, for
// example); each row of that cover goes to one of the pipelines that it can run on. Every
// head dimension has a pipeline. Its mask, alignment, LSE and access differ between the
// storage types.

// pipelineKey holds the properties of a problem that choose its pipeline in this table.
type pipelineKey struct {
	masked bool
	align  int // of the layout: 8, 2 or 1 elements
	rows   int // class of Sq: a kernel's tile has no more rows than there are
}

type pipelineRow struct {
	pipelineKey
	dims   [2]int
	lse    bool
	Access problem.Access
	used   int
}

// layoutAlign is the alignment that a layout allows, if the head dimensions do too.
var layoutAlign = [layoutKinds + 1]int{
	Tight: 8, Packed: 8, BSHD: 8, Padded: 8, Woven: 8, Broadcast: 8, Window: 8, Even: 2, Odd: 1, Fused: 8,
}

func rowClass(sq int) int {
	switch {
	case sq <= 8:
		return 8
	case sq <= 32:
		return 32
	}
	return 64
}

// briefPipelines are one for each head dimension, and some for short queries.
func briefPipelines(rotation int) []pipelineRow {
	var all []pipelineRow
	add := func(d [2]int, i, rows int) {
		all = append(all, pipelineRow{
			pipelineKey: pipelineKey{masked: i%2 == 0, align: alignments[i/2%3], rows: rows},
			dims:        d, lse: i/6%2 == 0, Access: Accesses[(i+i/6)%2],
		})
	}
	for i, d := range Dims {
		add(d, 5*i+rotation, 64)
	}
	for i := range 6 {
		if align := alignments[i/2]; align != alignments[1] {
			add(Dims[(3*i+7*rotation)%len(Dims)], i, 8)
		}
		if align := alignments[i/2]; align != alignments[2] {
			add(Dims[(3*i+7*rotation+1)%len(Dims)], i, 32)
		}
	}
	return all
}

var alignments = [3]int{8, 2, 1}

// shortLayout uses one odd layout instead of two for few rows. The two differ in how
// elements are read, not in the number of rows.
func shortLayout(c Case) LayoutKind {
	switch class := rowClass(c.Shape.Sq); {
	case class == 8 && c.Layout == Even:
		return Odd
	case class == 32 && c.Layout == Odd:
		return Even
	}
	return c.Layout
}

// Factors that do not change a pipeline, and those that select one.
var briefFactors = []int{fSq, fSk, fHeads, fBatch, fCausal, fScale, fLayout, fData}

const (
	briefLimit = 48e6 // cost of a case
	briefLeast = 3    // cases of a pipeline
)

// Brief is the table for drivers on the CPU. rotation chooses its pipelines: tables of
// different rotations, one for each storage type, cover more of them together.
func Brief(rotation int) []Case {
	pipelines := briefPipelines(rotation)
	var factors []int
	for _, f := range briefFactors {
		factors = append(factors, tableFactors[f])
	}
	caseIn := func(row []int, p *pipelineRow) Case {
		wide := make([]int, len(tableFactors))
		for i, f := range briefFactors {
			wide[f] = row[i]
		}
		c := caseOf(wide)
		c.Layout = shortLayout(c)
		if p != nil {
			c.D, c.Dv, c.LSE, c.Access = p.dims[0], p.dims[1], p.lse, p.Access
		}
		return c
	}
	merge := func(p pair) (pair, bool) {
		// Lengths are paired with layouts, data and heads by the class of their size.
		a, b := briefFactors[p.a], briefFactors[p.b]
		if (a == fSq || a == fSk) && (b == fLayout || b == fData || b == fHeads) {
			p.av = lengthClass[p.av]
		}
		return p, true
	}
	cost := func(row []int) int64 { return caseIn(row, nil).Cost() }
	keyOf := func(row []int) pipelineKey {
		c := caseIn(row, nil)
		return pipelineKey{c.Causal != problem.CausalNone, layoutAlign[c.Layout], rowClass(c.Shape.Sq)}
	}
	var all []Case
	rows := cover(factors, merge, cost, briefLimit/24)
	for _, row := range rows {
		p := choose(pipelines, keyOf(row), func(p *pipelineRow) int64 { return caseIn(row, p).Cost() })
		p.used++
		all = append(all, caseIn(row, p))
	}
	// Large head dimensions are seldom chosen, so they also get rows of other pipelines.
	for i := range pipelines {
		p := &pipelines[i]
		for _, row := range rows {
			c := caseIn(row, p)
			if p.used < briefLeast && keyOf(row) == p.pipelineKey && c.Cost() <= briefLimit && !slices.ContainsFunc(all, func(x Case) bool { return x.String() == c.String() }) {
				p.used++
				all = append(all, c)
			}
		}
	}
	return all
}

// lengthClass groups lengths by the tiles they fill.
var lengthClass = []int{0, 0, 0, 3, 3, 5, 6, 6, 6, 9, 9, 9}

// choose returns the pipeline of a key with the fewest cases so far, among those that keep
// the case within the limit, or the cheapest if none does.
func choose(pipelines []pipelineRow, key pipelineKey, cost func(*pipelineRow) int64) *pipelineRow {
	var fit []*pipelineRow
	for i := range pipelines {
		if pipelines[i].pipelineKey == key {
			fit = append(fit, &pipelines[i])
		}
	}
	cheap := slices.MinFunc(fit, func(a, b *pipelineRow) int { return int(cost(a) - cost(b)) })
	fit = slices.DeleteFunc(fit, func(p *pipelineRow) bool { return cost(p) > briefLimit })
	if len(fit) == 0 {
		return cheap
	}
	return slices.MinFunc(fit, func(a, b *pipelineRow) int { return a.used - b.used })
}
