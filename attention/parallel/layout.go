package parallel

import "vkattn/attention"

// layout is how the ranks share a call in one mode.
type layout struct {
	Problem
	cfg          attention.Config
	see          sight
	all          []sequence
	mode         Mode
	ranks        int
	inner, outer int   // ranks that share heads, and groups of them that share the sequence
	rows, keys   Split // of ranks
	groupRows    Split // of groups of inner ranks
	groupKeys    Split

	ringRows                    []ringRows // of groups of ranks that a ring joins
	forwardHeads, backwardHeads int        // key heads that a ring takes at a time
	lseHeads                    int        // forwardHeads of a gather if a rank asks for LSE
	gathers                     bool       // the forward pass gathers K and V of some key heads, and then computes

	reach   uint64 // bytes of a tensor that the kernels of every rank reach
	calls   int    // of attention in the largest step of a ring
	members bool   // ulysses computes the rows of each rank where they arrive
}

// newLayout lays out a checked problem. The mode suits it, but for what refusal finds.
func newLayout(cfg *Config, p Problem, mode Mode, ranks, inner int, reach uint64) *layout {
	l := &layout{Problem: p, cfg: cfg.Config, see: sightOf(&cfg.Config), all: p.sequences(), mode: mode, ranks: ranks,
		inner: inner, outer: ranks / inner, reach: reach}
	rows, keys := p.extent()
	l.rows = p.Rows
	if l.rows == nil {
		l.rows = cfg.order().split(rows, ranks)
	}
	l.keys = p.Keys
	if l.keys == nil {
		l.keys = cfg.order().split(keys, ranks)
	}
	l.groupRows, l.groupKeys = l.rows.by(inner), l.keys.by(inner)
	l.members = l.fitsMembers()
	l.chooseHeads()
	return l
}

// innerFits reports why n ranks cannot share the heads; "" if they can.
func innerFits(s *attention.Shape, n int) string {
	switch {
	case s.Hq%n != 0:
		return "the ranks that share heads do not divide Hq"
	case s.KVHeads()%n != 0 && n%s.KVHeads() != 0:
		return "Hkv and the ranks that share heads: neither divides the other"
	}
	return ""
}

// rankHeads are the numbers of query heads and of key heads of a rank.
func (l *layout) rankHeads() (hq, kv int) { return l.Hq / l.inner, max(1, l.KVHeads()/l.inner) }

// heads are the query heads of a rank that shares heads, member u of its group.
func (l *layout) heads(u int) (first, n int) {
	n, _ = l.rankHeads()
	return u * n, n
}

// kvHeads are the key heads of a rank. Ranks share a head if there are fewer heads than
// ranks.
func (l *layout) kvHeads(u int) (first, n int) {
	_, n = l.rankHeads()
	return u * l.KVHeads() / l.inner, n
}

// sharers is the number of ranks of a group that compute with the same key head.
func (l *layout) sharers() int { return max(1, l.inner/l.KVHeads()) }

// runs are the runs of group g over the keys of group source.
func (l *layout) runs(g, source int) []run {
	return runsOf(l.see, l.all, l.groupRows[g], l.groupKeys[source])
}

// wholeRuns are the runs of some rows over all keys in their order.
func (l *layout) wholeRuns(rows []Span) []run {
	_, keys := l.extent()
	return runsOf(l.see, l.all, rows, []Span{{0, keys}})
}
