package plan

import (
	"sort"

	"vkattn/internal/problem"
)

// Decoding brings a new Sk with every step. A plan depends on Sk by a few comparisons and by the number of splits.
// Make notes the comparisons as a range of Sk, and the splits as a Splitting, so that a cache finds the plan of a new
// length without making one. A choice of a kernel or a tile compares Sk by skAtLeast or keysAtLeast, or narrows the
// range itself.

// KeyRange is a range of Sk.
type KeyRange struct{ From, Below int }

// Holds reports whether the range has sk.
func (k KeyRange) Holds(sk int) bool { return k.From <= sk && sk < k.Below }

// and is what both ranges have.
func (k KeyRange) and(other KeyRange) KeyRange {
	return KeyRange{max(k.From, other.From), min(k.Below, other.Below)}
}

// skAtLeast reports whether Sk is n or more.
func (r *Request) skAtLeast(n int) bool {
	yes := r.Shape.Sk >= n
	switch {
	case r.seen == nil:
	case yes:
		r.seen.From = max(r.seen.From, n)
	default:
		r.seen.Below = min(r.seen.Below, n)
	}
	return yes
}

// keysAtLeast reports whether a row attends to n keys or more.
func (r *Request) keysAtLeast(n int) bool {
	if r.Options.sparseTokens != 0 {
		return r.SparseTokens >= n
	}
	return r.skAtLeast(n)
}

// shortRows reports whether a query sees at most shortKeys keys on average, by a window, by chunks or, up to some Sk, by a
// causal mask.
func (r *Request) shortRows(cfg *problem.Config, causal bool) bool {
	left, right := cfg.Window.Left(), cfg.Window.Right()
	if causal {
		right = 0
	}
	inWindow := left >= 0 && right >= 0 && uint64(left)+uint64(right) < shortKeys
	inChunk := cfg.AttentionChunk != 0 && cfg.AttentionChunk <= 2*shortKeys
	return inWindow || inChunk || causal && r.shortCausal(cfg.Causal)
}

// shortCausal reports whether a query sees at most shortKeys keys on average, which holds up to some Sk.
func (r *Request) shortCausal(causal problem.Causal) bool {
	s := r.Shape
	return !r.skAtLeast(sort.Search(problem.MaxLength+1, func(sk int) bool {
		s.Sk = sk
		return s.Cells(causal) > shortKeys*uint64(s.Sq)
	}))
}
