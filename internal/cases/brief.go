package cases

import (
	"slices"

	"vkattn/internal/problem"
)

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
