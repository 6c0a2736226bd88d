package cases

import (
	"math/rand/v2"
	"slices"
)

// pair is a value of each of two factors, a < b.
type pair struct{ a, av, b, bv int }

// cover lists rows, one value for each factor, which takes that many, so that every pair of values occurs in some
// row. merge maps a pair to its representative: the pair itself if it matters, or a
// coarser pair if, for example, one length of several is enough. ok is false for pairs
// that need no row.
//
// It is the greedy method of AETG (Cohen et al., 1997) with a fixed seed, so that the rows
// are the same on every run. It avoids rows of a cost over limit; a pair that occurs in
// no cheaper row gets the cheapest row found.
func cover(factors []int, merge func(pair) (p pair, ok bool), cost func(row []int) int64, limit int64) [][]int {
	g := &coverer{factors: factors, merge: merge, Cost: cost, rng: rand.New(rand.NewPCG(1, 2))}
	g.collect()
	var rows [][]int
	for len(g.open) > 0 {
		row := g.best(limit)
		g.each(row, func(p pair) { delete(g.missing, p) })
		g.open = slices.DeleteFunc(g.open, func(p pair) bool { return !g.missing[p] })
		rows = append(rows, row)
	}
	return rows
}

type coverer struct {
	factors []int
	merge   func(pair) (pair, bool)
	Cost    func([]int) int64
	rng     *rand.Rand
	missing map[pair]bool
	open    []pair // missing, in a fixed order
}

// collect lists the pairs to cover.
func (g *coverer) collect() {
	g.missing = map[pair]bool{}
	for b := range g.factors {
		for a := range b {
			for av := range g.factors[a] {
				for bv := range g.factors[b] {
					if p, ok := g.merge(pair{a, av, b, bv}); ok && !g.missing[p] {
						g.missing[p] = true
						g.open = append(g.open, p)
					}
				}
			}
		}
	}
}

// each visits the pairs of a row that need a row.
func (g *coverer) each(row []int, visit func(pair)) {
	for b := range row {
		for a := range b {
			if p, ok := g.merge(pair{a, row[a], b, row[b]}); ok {
				visit(p)
			}
		}
	}
}

const candidates = 24

// best tries some rows around the first missing pair. It returns the row that covers most
// missing pairs, and of several the cheapest.
func (g *coverer) best(limit int64) []int {
	must := g.open[0]
	var best, cheap []int
	bestGain, bestCost, leastCost := -1, int64(0), int64(0)
	for try := 0; try < candidates || best == nil && try < 20*candidates; try++ {
		row := g.candidate(must)
		cost := g.Cost(row)
		if cheap == nil || cost < leastCost {
			cheap, leastCost = row, cost
		}
		if cost > limit {
			continue
		}
		gain := 0
		g.each(row, func(p pair) {
			if g.missing[p] {
				gain++
			}
		})
		if gain > bestGain || gain == bestGain && cost < bestCost {
			best, bestGain, bestCost = row, gain, cost
		}
	}
	if best == nil {
		return cheap
	}
	return best
}

// candidate fills a row around a pair. It takes the factors in random order and gives each
// the value that covers most missing pairs.
func (g *coverer) candidate(must pair) []int {
	row := make([]int, len(g.factors))
	set := []int{must.a, must.b}
	row[must.a], row[must.b] = must.av, must.bv
	for _, f := range g.rng.Perm(len(g.factors)) {
		if f == must.a || f == must.b {
			continue
		}
		most, from := -1, g.rng.IntN(g.factors[f])
		for i := range g.factors[f] {
			v := (from + i) % g.factors[f]
			gain := 0
			for _, o := range set {
				p := pair{f, v, o, row[o]}
				if o < f {
					p = pair{o, row[o], f, v}
				}
				if p, ok := g.merge(p); ok && g.missing[p] {
					gain++
				}
			}
			if gain > most {
				row[f], most = v, gain
			}
		}
		set = append(set, f)
	}
	return row
}
