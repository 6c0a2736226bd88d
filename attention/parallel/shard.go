package parallel

// A KV cache that is too large for one rank is sharded by tokens: blocks of Config.Block
// consecutive tokens of a sequence go to the ranks in turn, so that the ranks stay equally full
// while a sequence grows. A rank's cache has its tokens in order.

// DefaultBlock is Config.Block where that is 0.
const DefaultBlock = 64

// Shard says which tokens of a sequence each of some ranks holds.
type Shard struct {
	Block int // consecutive tokens on a rank
	Ranks int
}

// valid reports whether the fields make sense.
func (s Shard) valid() bool { return s.Block > 0 && s.Ranks > 0 }

// Owner is the rank that holds a token; -1 if there is none.
func (s Shard) Owner(token int) int {
	if !s.valid() || token < 0 {
		return -1
	}
	return token / s.Block % s.Ranks
}

// Slot is the row of a token in the cache of its owner; -1 if there is none.
func (s Shard) Slot(token int) int {
	if !s.valid() || token < 0 {
		return -1
	}
	return token/s.Block/s.Ranks*s.Block + token%s.Block
}

// Count is the number of the first tokens of a sequence that a rank holds.
func (s Shard) Count(rank, tokens int) int {
	if !s.valid() || tokens <= 0 || rank < 0 || rank >= s.Ranks {
		return 0
	}
	blocks := tokens / s.Block // full ones
	n := blocks / s.Ranks * s.Block
	switch last := blocks % s.Ranks; {
	case rank < last:
		n += s.Block
	case rank == last:
		n += tokens % s.Block
	}
	return n
}

// held lists the spans of new tokens first to first+n-1 that a rank holds: consecutive in the
// sequence and in the rank's cache.
func (s Shard) held(rank, first, n int) (spans []Span) {
	for at := first; at < first+n; {
		end := min((at/s.Block+1)*s.Block, first+n)
		if s.Owner(at) == rank {
			spans = append(spans, Span{at, end - at})
		}
		at = end
	}
	return spans
}
