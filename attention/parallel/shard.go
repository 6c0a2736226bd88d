package parallel

import (
	"fmt"

	"vkattn/attention"
	"vkattn/attention/kvcache"
)

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

// AppendArgs are the tensors of one append. Cache differs from rank to rank, the rest is the
// same on every rank.
type AppendArgs struct {
	B, Hkv int
	New    int              // new tokens of each sequence
	Tokens []int            // of each sequence before the call, in the cache of all ranks
	NewK   attention.Tensor // [B, Hkv, New, dim]
	NewV   attention.Tensor
	Cache
}

// Append writes those new tokens into this rank's cache that the rank owns. It exchanges
// nothing: every rank calls it with all new tokens, before Decode. K is stored as it is: a
// rotary embedding is applied before. On a device it records its work into the stream, behind
// a barrier; Decode in the same stream comes after it.
func (op *Op) Append(s *attention.Stream, a AppendArgs) error {
	if err := op.usable(); err != nil {
		return err
	}
	if err := checkTokens(a.Tokens, a.B); err != nil {
		return err
	}
	if n := op.cfg.KVBlock; n < 0 || n > 1 {
		return fmt.Errorf("%w: an append over ranks finds a scale of each row, KVBlock is %d", attention.ErrUnsupported, n)
	}
	cfg := kvcache.AppendConfig{DType: op.cfg.DType, HeadDim: op.cfg.HeadDim, HeadDimV: op.cfg.HeadDimV,
		KeyType: op.cfg.KeyType, ValueType: op.cfg.ValueType, Access: op.cfg.Access}
	if err := op.checkStream(s); err != nil {
		return err
	}
	cache, err := kvcache.NewAppend(attention.On(op.dev), cfg)
	if err != nil {
		return err
	}
	defer cache.Close()
	shard, rank := op.Shard(), op.group.Rank()
	for b, n := range a.Tokens {
		if held := shard.Count(rank, n+a.New); a.New < 0 || held > a.Capacity {
			return &attention.ShapeError{Field: "Capacity", Got: a.Capacity, Want: fmt.Sprintf("at least %d for sequence %d", held, b)}
		}
	}
	local := kvcache.AppendArgs{B: a.B, Hkv: a.Hkv, New: a.New, K: a.NewK, V: a.NewV, KCache: a.K, VCache: a.V,
		Capacity: a.Capacity, Pages: a.Pages,
		KScale: a.KScale, VScale: a.VScale, Shard: true}
	m := op.newSide(s)
	defer m.close() // the stream holds what it uses
	forward := func(a kvcache.AppendArgs, used []int) error {
		a.Used = m.vector(used)
		if !m.ordered() {
			return m.err
		}
		return cache.Forward(s, a)
	}
	used := make([]int, max(a.B, 0)) // rows at negative positions are skipped
	for b := range used {
		used[b] = -1
	}
	if a.New == 1 || a.B < 1 {
		for b, n := range a.Tokens {
			if shard.Owner(n) == rank {
				used[b] = shard.Slot(n)
			}
		}
		return forward(local, used)
	}
	// Check the arguments once, before anything is written.
	if err := forward(local, used); err != nil {
		return err
	}
	for b, n := range a.Tokens {
		for _, s := range shard.held(rank, n, a.New) {
			one := local
			one.B, one.New = 1, s.N
			at := func(t *attention.Tensor, heads, rows, dim, row int) {
				t.Strides = t.Strides.Resolve(heads, rows, dim)
				t.Offset += int64(b)*t.Strides.Batch + int64(row)*t.Strides.Seq
			}
			at(&one.K, a.Hkv, a.New, cfg.HeadDim, s.First-n)
			at(&one.V, a.Hkv, a.New, op.cfg.ValueDim(), s.First-n)
			if a.Pages == nil {
				at(&one.KCache, a.Hkv, a.Capacity, cfg.HeadDim, 0)
				at(&one.VCache, a.Hkv, a.Capacity, op.cfg.ValueDim(), 0)
				if scales := int64(b) * int64(a.Hkv) * int64(a.Capacity); op.cfg.KeyType.Scaled() {
					one.KScale.Offset, one.VScale.Offset = one.KScale.Offset+scales, one.VScale.Offset+scales
				}
			} else {
				p := *a.Pages
				stride := p.Stride
				if stride == 0 {
					stride = (a.Capacity + p.PageSize - 1) / p.PageSize
				}
				p.Table.Offset, p.Stride = p.Table.Offset+int64(b)*int64(stride), stride
				one.Pages = &p
			}
			if err := forward(one, []int{shard.Slot(s.First)}); err != nil {
				return err
			}
		}
	}
	return nil
}
