package cases

import (
	"fmt"
	"slices"
	"strings"

	"vkattn/internal/problem"
)

// On a device a table costs the time to compile its pipelines, and the kernels of a tier's
// storage types differ little: in how elements are read and written. So the types share
// the pipelines of a table, in such a way that each type meets every option, alone and with
// what it interacts with.

// facets are the names of the options that a case exercises: each one, and each combined
// with pages and with lengths of sequences.
type facets struct {
	list          []string
	paged, varlen bool
}

func (f *facets) also(on bool, format string, args ...any) {
	if on {
		f.list = append(f.list, fmt.Sprintf(format, args...))
	}
}

func (f *facets) option(on bool, format string, args ...any) {
	name := fmt.Sprintf(format, args...)
	f.also(on, "%s", name)
	f.also(on && f.paged, "%s, paged", name)
	f.also(on && f.varlen, "%s, varlen", name)
}

// Facets are the facets of a case.
func (c Case) Facets() []string {
	rows := c.Bounds().Sq
	usedQ, usedK := c.usedLengths()
	f := &facets{paged: c.PageSize > 0, varlen: c.PackedQ || c.PackedK || usedQ || usedK}
	for _, o := range options {
		if o.facets != nil {
			o.facets(&c, f)
		}
	}
	f.also(rows <= 16, "decode, group of %d", min(c.Group(), 8))
	f.also(rows <= 16 && rows > 1, "decode of several rows")
	f.also(c.Layout == Odd, "odd offsets")
	f.also(c.Access == problem.AccessDescriptors, "descriptors")
	f.also(strings.HasPrefix(c.Name, "random"), "random composition")
	f.also(true, "head dimensions %d and %d", c.D, c.Dv)
	return f.list
}

// lengthFacets are the facets of lengths of sequences.
func (c *Case) lengthFacets(f *facets) {
	rows := c.Bounds().Sq
	usedQ, usedK := c.usedLengths()
	f.also(c.PackedQ, "packed rows")
	f.also(c.PackedK, "packed keys")
	f.also(usedQ && !c.PackedQ, "padded rows")
	f.also(usedK && !c.PackedK, "padded keys")
	f.also(c.PackedQ && c.LooseQ, "packed rows with gaps")
	f.also(c.PackedK && c.LooseK, "packed keys with gaps")
	f.also(f.varlen, "varlen, %v", c.Causal)
	f.also(slices.ContainsFunc(c.Seqs, func(s Seq) bool { return s.Rows == 0 || s.Keys == 0 }), "empty sequences")
	f.also(slices.ContainsFunc(c.Seqs, func(s Seq) bool { return s.Keys > 10000 }) && len(c.Seqs) > 1, "short and very long sequences")
	f.also(len(c.Seqs) >= 600 && rows > 1000, "600 decodes and long prefills")
	f.also(len(c.Seqs) >= 600 && rows < 16, "600 decodes")
	f.also(c.Name == "crowd", "short and long sequences")
}

// ShareOptions deals a table out to n storage types so that each type meets every facet.
func ShareOptions(list []Case, n int) [][]Case {
	d := newDealer(list, n)
	d.dealPipelines()
	for t := range n {
		d.complete(t)
	}
	return d.shares()
}

// DealOptions deals a table out to n storage types so that each case is computed once. Not
// every type meets the facets that have few pipelines.
func DealOptions(list []Case, n int) [][]Case {
	d := newDealer(list, n)
	d.dealPipelines()
	return d.shares()
}

// dealer records which cases of a list each storage type has. Cases are indices.
type dealer struct {
	list      []Case
	facets    [][]string
	chosen    []map[int]bool
	met       []map[string]bool
	pipelines []int // how many each type has
}

func newDealer(list []Case, n int) *dealer {
	d := &dealer{list: list, pipelines: make([]int, n)}
	for _, c := range list {
		d.facets = append(d.facets, c.Facets())
	}
	for range n {
		d.chosen, d.met = append(d.chosen, map[int]bool{}), append(d.met, map[string]bool{})
	}
	return d
}

// dealPipelines gives the cases of each pipeline to the type for which they add most
// facets, or to the one with the fewest pipelines.
func (d *dealer) dealPipelines() {
	var groups [][]int
	number := map[string]int{}
	for i, c := range d.list {
		g, known := number[c.Pipeline()]
		if !known {
			g = len(groups)
			number[c.Pipeline()] = g
			groups = append(groups, nil)
		}
		groups[g] = append(groups[g], i)
	}
	for _, g := range groups {
		best := 0
		for t := range d.pipelines {
			a, b := d.gain(t, g...), d.gain(best, g...)
			if a > b || a == b && d.pipelines[t] < d.pipelines[best] {
				best = t
			}
		}
		d.add(best, g...)
	}
}

// complete adds cases until a type meets all facets: each time the case that adds most,
// and of several the cheapest.
func (d *dealer) complete(t int) {
	for {
		best, most := -1, 0
		for i := range d.list {
			if d.chosen[t][i] {
				continue
			}
			if n := d.gain(t, i); n > most || n == most && n > 0 && d.list[i].Flops() < d.list[best].Flops() {
				best, most = i, n
			}
		}
		if best < 0 {
			return
		}
		d.add(t, best)
	}
}

func (d *dealer) add(t int, indices ...int) {
	for _, i := range indices {
		d.chosen[t][i] = true
		for _, f := range d.facets[i] {
			d.met[t][f] = true
		}
	}
	d.pipelines[t]++
}

// gain is the number of facets that cases add to a type.
func (d *dealer) gain(t int, indices ...int) int {
	fresh := map[string]bool{}
	for _, i := range indices {
		for _, f := range d.facets[i] {
			if !d.met[t][f] {
				fresh[f] = true
			}
		}
	}
	return len(fresh)
}

// shares are the cases of each type, in the order of the list.
func (d *dealer) shares() [][]Case {
	all := make([][]Case, len(d.chosen))
	for t, chosen := range d.chosen {
		for i, c := range d.list {
			if chosen[i] {
				all[t] = append(all[t], c)
			}
		}
	}
	return all
}
