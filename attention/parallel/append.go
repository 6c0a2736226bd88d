package parallel

import (
	"encoding/binary"
	"fmt"

	"vkattn/attention"
)

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
// rotary embedding is applied before.
func (op *Op) Append(a AppendArgs) error {
	if err := op.usable(); err != nil {
		return err
	}
	if err := checkTokens(a.Tokens, a.B); err != nil {
		return err
	}
	cfg := attention.AppendConfig{DType: op.cfg.DType, HeadDim: op.cfg.HeadDim, HeadDimV: op.cfg.HeadDimV, KV: op.cfg.KV, Access: op.cfg.Access}
	cache, err := attention.NewAppend(nil, cfg)
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
	local := attention.AppendArgs{B: a.B, Hkv: a.Hkv, New: a.New, K: a.NewK, V: a.NewV, KCache: a.K, VCache: a.V, Capacity: a.Capacity, Pages: a.Pages,
		KScale: a.KScale, VScale: a.VScale}
	positions := func(n int) attention.Vector { return attention.Vector{Host: make([]byte, 4*n)} }
	set := func(v attention.Vector, i, x int) { binary.LittleEndian.PutUint32(v.Host[4*i:], uint32(int32(x))) }
	if a.New == 1 || a.B < 1 {
		// One call for all sequences. Rows at negative positions are skipped.
		local.Used = positions(max(a.B, 0))
		for b, n := range a.Tokens {
			if set(local.Used, b, -1); shard.Owner(n) == rank {
				set(local.Used, b, shard.Slot(n))
			}
		}
		return cache.Forward(nil, local)
	}
	// Check the arguments once, before anything is written.
	local.Used = positions(a.B)
	for b := range a.B {
		set(local.Used, b, -1)
	}
	if err := cache.Forward(nil, local); err != nil {
		return err
	}
	for b, n := range a.Tokens {
		for _, s := range shard.held(rank, n, a.New) {
			one := local
			one.B, one.New, one.Used = 1, s.N, positions(1)
			set(one.Used, 0, shard.Slot(s.First))
			at := func(t *attention.Tensor, heads, rows, dim, row int) {
				t.Strides = t.Strides.Resolve(heads, rows, dim)
				t.Offset += int64(b)*t.Strides.Batch + int64(row)*t.Strides.Seq
			}
			at(&one.K, a.Hkv, a.New, cfg.HeadDim, s.First-n)
			at(&one.V, a.Hkv, a.New, op.cfg.ValueDim(), s.First-n)
			if a.Pages == nil {
				at(&one.KCache, a.Hkv, a.Capacity, cfg.HeadDim, 0)
				at(&one.VCache, a.Hkv, a.Capacity, op.cfg.ValueDim(), 0)
				if scales := int64(b) * int64(a.Hkv) * int64(a.Capacity); op.cfg.KV.Scaled() {
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
			if err := cache.Forward(nil, one); err != nil {
				return err
			}
		}
	}
	return nil
}
