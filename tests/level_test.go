package tests

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"vkattn/attention"
	"vkattn/internal/cases"
	"vkattn/internal/testlevel"
)

// make test computes a first share of each table and make test-full the others. A CPU
// driver spends seconds on each pipeline and milliseconds on each case, so the shares divide
// pipelines, each with all of its cases.

// full reports whether this run has the larger tables.
func full() bool { return testlevel.IsExhaustive() }

// tableCase is a case of a table, as far as the shares look at it.
type tableCase interface {
	Pipeline() string
	Dims() int
}

// levelShare selects the cases of some that this level computes; some is a part of the
// table. The first share of the table shows each facet at least once. If targets divide
// the table, they divide that share too. make test gets every of-th pipeline of the first
// share.
func levelShare[C tableCase](some, table []C, facets func(C) []string, which, of int) []C {
	if l := testlevel.Get(); l == testlevel.All || l == testlevel.Exhaustive {
		return some
	}
	return takeShare(some, firstPipelines(table, facets), which, of)
}

// levelShareOf is levelShare for tiers that compute the whole table each, from one source: the
// tiers and drivers take turns in the first share (see firstShare), and the rest of the table
// is the other share of each. The tiers with cooperative matrices take turns in the rest too:
// a pipeline takes 9 s on a driver on the CPU.
func (s *session) levelShareOf(tt cases.Target, all []cases.Case) []cases.Case {
	if l := testlevel.Get(); l == testlevel.All || l == testlevel.Exhaustive {
		return all
	}
	which, of := s.firstShare(tt)
	first := firstPipelines(optionTable(tt), optionFacets)
	if onMatrices(tt) && s.name == "lavapipe" {
		return matrixShare(all, first, which, of, 6) // lavapipe-old shows every option in make test
	}
	return takeShare(all, first, which, of)
}

// matrixShare is the share of a tier with cooperative matrices, the which-th of several that
// take turns in all pipelines. make test has every makeTest-th pipeline of the tier's turn of
// the first share, make test-full the others.
func matrixShare[C tableCase](all []C, first []string, which, tiers, makeTest int) (some []C) {
	number := map[string]int{}
	for i, p := range first {
		number[p] = i
	}
	for _, c := range all {
		i, known := number[c.Pipeline()]
		if !known {
			i = len(number)
			number[c.Pipeline()] = i
		}
		if i%tiers == which && testlevel.Share(i < len(first) && i/tiers%makeTest == 0) {
			some = append(some, c)
		}
	}
	return some
}

func takeShare[C tableCase](all []C, pipelines []string, which, of int) []C {
	first := map[string]bool{}
	for i, p := range pipelines {
		first[p] = i%of == which
	}
	return slices.DeleteFunc(slices.Clone(all), func(c C) bool { return !testlevel.Share(first[c.Pipeline()]) })
}

// firstPipelines chooses pipelines that show every facet of a table. It is the greedy cover:
// each time the pipeline that shows most new facets for its cost, which grows with the head
// dimensions.
func firstPipelines[C tableCase](all []C, facets func(C) []string) (first []string) {
	type pipeline struct {
		name  string
		cost  int
		shows map[string]bool
	}
	var open []*pipeline
	known := map[string]*pipeline{}
	for _, c := range all {
		p := known[c.Pipeline()]
		if p == nil {
			p = &pipeline{name: c.Pipeline(), cost: 64 + c.Dims(), shows: map[string]bool{}}
			known[p.name], open = p, append(open, p)
		}
		for _, f := range facets(c) {
			p.shows[f] = true
		}
	}
	for {
		best := slices.MaxFunc(open, func(a, b *pipeline) int { return cmp.Compare(len(a.shows)*b.cost, len(b.shows)*a.cost) })
		if len(best.shows) == 0 {
			return first
		}
		first = append(first, best.name)
		shown := best.shows
		best.shows = nil
		for _, p := range open {
			for f := range shown {
				delete(p.shows, f)
			}
		}
	}
}

// caseFacets are what a case of the dense table shows.
func caseFacets(c cases.Case) []string {
	dims := "head dimensions up to 64"
	switch {
	case max(c.D, c.Dv) > 256:
		dims = "head dimensions over 256"
	case max(c.D, c.Dv) > 128:
		dims = "head dimensions up to 256"
	case max(c.D, c.Dv) > 64:
		dims = "head dimensions up to 128"
	}
	return []string{
		dims,
		fmt.Sprint("masked ", c.Causal != attention.CausalNone, ", LSE ", c.LSE),
		fmt.Sprint("access ", c.Access),
		fmt.Sprint("layout ", c.Layout),
		fmt.Sprint("data ", c.Data),
		fmt.Sprint("rows up to 8: ", c.Shape.Sq <= 8),
	}
}

// optionFacets are what a case of the tables of options shows: each option, without
// its combinations.
func optionFacets(c cases.Case) []string {
	return slices.DeleteFunc(c.Facets(), func(f string) bool {
		return strings.Contains(f, ", ") || strings.HasPrefix(f, "head dimensions") || strings.HasPrefix(f, "pages of")
	})
}
