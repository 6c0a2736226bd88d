package parallel

import (
	"bytes"
	"context"
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"vkattn/attention"
	"vkattn/attention/kvcache"
	"vkattn/internal/accuracy"
	"vkattn/internal/inputs"
	"vkattn/internal/problem"
	"vkattn/internal/testlevel"
)

// Every token has one owner and one slot, and the slots of a rank have no gaps.
func TestShardsHoldEveryTokenOnce(t *testing.T) {
	testlevel.HostOnly(t)
	for ranks := 1; ranks <= 5; ranks++ {
		for block := 1; block <= 4; block++ {
			s := Shard{block, ranks}
			next := make([]int, ranks)
			for token := range 60 {
				r := s.Owner(token)
				require.Equal(t, next[r], s.Slot(token))
				next[r]++
				for r := range ranks {
					require.Equal(t, next[r], s.Count(r, token+1), "%+v rank %d", s, r)
				}
			}
		}
	}
	require.Equal(t, -1, Shard{}.Owner(3))
	require.Equal(t, -1, Shard{1, 2}.Slot(-1))
	require.Zero(t, Shard{1, 2}.Count(2, 9))
}

// sharded is a cache that tests fill, over all ranks or whole on one.
type sharded struct {
	Cache
	k, v []byte
}

// newSharded makes an empty cache, with pages in some order if pageSize is not 0.
func newSharded(cfg attention.Config, batch, heads, capacity, pageSize int, rng *rand.Rand) *sharded {
	c := &sharded{Cache: Cache{Capacity: capacity}}
	count, rows := batch, capacity
	if pageSize > 0 {
		per := (capacity + pageSize - 1) / pageSize
		count, rows = batch*per, pageSize
		var table []byte
		for _, page := range rng.Perm(count) {
			table = binary.LittleEndian.AppendUint32(table, uint32(page))
		}
		c.Pages = &attention.Pages{Table: attention.Vector{Host: table}, PageSize: pageSize, Count: count}
	}
	garbage := func(n int) []byte { return bytes.Repeat([]byte{0xff}, n) }
	c.k = garbage(count * heads * rows * int(cfg.KeyType.RowBytes(cfg.DType, cfg.HeadDim)))
	c.v = garbage(count * heads * rows * int(cfg.ValueType.RowBytes(cfg.DType, cfg.ValueDim())))
	c.K, c.V = attention.Tensor{Host: c.k}, attention.Tensor{Host: c.v}
	if cfg.KeyType.Scaled() {
		c.KScale, c.VScale = attention.Vector{Host: garbage(4 * count * heads * rows)}, attention.Vector{Host: garbage(4 * count * heads * rows)}
	}
	return c
}

// Decoding over a sharded cache is decoding over the whole cache, on every rank with the same
// bits, while the cache grows by any number of tokens.
func TestDecodeOverAShardedCache(t *testing.T) {
	testlevel.HostOnly(t)
	rapid.Check(t, func(t *rapid.T) {
		ranks := rapid.SampledFrom([]int{1, 2, 3, 4, 8}).Draw(t, "ranks")
		cfg := Config{Block: rapid.IntRange(1, 5).Draw(t, "block")}
		cfg.DType = rapid.SampledFrom(attention.DTypes()).Draw(t, "dtype")
		cfg.KeyType = rapid.SampledFrom(attention.KVTypes()).Filter(func(kv attention.KVType) bool { return !kv.Latent() }).Draw(t, "type of K")
		cfg.ValueType = rapid.SampledFrom(attention.KVTypes()).Filter(cfg.KeyType.PairedWith).Draw(t, "type of V")
		cfg.HeadDim = 8
		if cfg.KeyType.Blocked() {
			cfg.HeadDim = 32
		} else if rapid.Bool().Draw(t, "other dv") {
			cfg.HeadDimV = 12
		}
		dv := cfg.ValueDim()
		cfg.Causal = rapid.SampledFrom([]attention.Causal{attention.CausalNone, attention.BottomRight}).Draw(t, "causal")
		batch, hkv, group := rapid.IntRange(1, 3).Draw(t, "B"), rapid.IntRange(1, 2).Draw(t, "Hkv"), rapid.IntRange(1, 3).Draw(t, "group")
		const most = 60
		pageSize := rapid.SampledFrom([]int{0, 1, 4}).Draw(t, "page size")
		seed := rapid.Uint64().Draw(t, "seed")
		rng := rand.New(rand.NewPCG(seed, 1))
		groups := ranksOf(t, ranks)
		whole := newSharded(cfg.Config, batch, hkv, most, pageSize, rng)
		parts, ops := make([]*sharded, ranks), make([]*Op, ranks)
		for r := range parts {
			var err error
			ops[r], err = New(groups[r], nil, cfg)
			require.NoError(t, err)
			parts[r] = newSharded(cfg.Config, batch, hkv, max(1, ops[r].Shard().Count(r, most)), pageSize, rng)
		}
		one, err := kvcache.NewAppend(nil, kvcache.AppendConfig{DType: cfg.DType, HeadDim: cfg.HeadDim, HeadDimV: cfg.HeadDimV, KeyType: cfg.KeyType, ValueType: cfg.ValueType})
		require.NoError(t, err)
		tokens := make([]int, batch)
		for step := 0; step < 3; step++ {
			n := rapid.IntRange(1, 18).Draw(t, "new tokens")
			in := func(heads, dim int) attention.Tensor {
				seed++
				return attention.Tensor{Host: inputs.New(int64(batch*heads*n*dim), cfg.DType, inputs.Normal, seed)}
			}
			k, v, q := in(hkv, cfg.HeadDim), in(hkv, dv), in(hkv*group, cfg.HeadDim)
			var used, total []byte
			for _, x := range tokens {
				used = binary.LittleEndian.AppendUint32(used, uint32(x))
				total = binary.LittleEndian.AppendUint32(total, uint32(x+n))
			}
			require.NoError(t, one.Forward(nil, kvcache.AppendArgs{B: batch, Hkv: hkv, New: n, K: k, V: v, KCache: whole.K, VCache: whole.V,
				Capacity: most, Pages: whole.Pages, Used: attention.Vector{Host: used}, KScale: whole.KScale, VScale: whole.VScale}))
			size := batch * hkv * group * n
			outs := make([]DecodeArgs, ranks)
			before := append([]int(nil), tokens...)
			for b := range tokens {
				tokens[b] += n
			}
			for r, err := range onAll(groups, func(r int, _ *Group) error {
				if err := ops[r].Append(nil, AppendArgs{B: batch, Hkv: hkv, New: n, Tokens: before, NewK: k, NewV: v, Cache: parts[r].Cache}); err != nil {
					return err
				}
				outs[r] = DecodeArgs{B: batch, Hq: hkv * group, Hkv: hkv, Sq: n, Tokens: tokens, Q: q, Cache: parts[r].Cache,
					O:   attention.Tensor{Host: make([]byte, size*dv*cfg.DType.Size())},
					LSE: attention.Tensor{Host: make([]byte, size*4)}}
				return ops[r].Decode(context.Background(), nil, outs[r])
			}) {
				require.NoError(t, err, "rank %d", r)
				require.Equal(t, outs[0].O.Host, outs[r].O.Host)
				require.Equal(t, outs[0].LSE.Host, outs[r].LSE.Host)
			}
			all := attention.Args{Shape: attention.Shape{B: batch, Hq: hkv * group, Hkv: hkv, Sq: n, Sk: most}, Q: q, K: whole.K, V: whole.V,
				O: outs[0].O, LSE: outs[0].LSE, Pages: whole.Pages, KScale: whole.KScale, VScale: whole.VScale,
				Varlen: &attention.Varlen{UsedK: attention.Vector{Host: total}}}
			verdict, err := accuracy.Verify(problem.Config(cfg.Config), all, accuracy.Options{})
			require.NoError(t, err)
			require.True(t, verdict.Pass(), "%v", verdict)
		}
	})
}

// What a sharded cache cannot do is refused by name, and lengths are compared.
func TestDecodeRefuses(t *testing.T) {
	testlevel.HostOnly(t)
	good := Config{Config: attention.Config{HeadDim: 8, Causal: attention.BottomRight}}
	args := func() DecodeArgs {
		tensor := func(n int) attention.Tensor { return attention.Tensor{Host: make([]byte, n*8*2)} }
		return DecodeArgs{B: 1, Hq: 2, Hkv: 1, Sq: 1, Tokens: []int{70}, Q: tensor(2), O: tensor(2), Cache: Cache{K: tensor(64), V: tensor(64), Capacity: 64}}
	}
	for name, x := range map[string]struct {
		change func(*Config, *DecodeArgs)
		want   error
	}{
		"window":   {func(c *Config, _ *DecodeArgs) { c.Window = attention.WindowOf(4, 0) }, attention.ErrUnsupported},
		"top-left": {func(c *Config, _ *DecodeArgs) { c.Causal = attention.TopLeft }, attention.ErrUnsupported},
		"capacity": {func(_ *Config, a *DecodeArgs) { a.Tokens = []int{200} }, attention.ErrInvalid},
		"tokens":   {func(_ *Config, a *DecodeArgs) { a.Tokens = nil }, attention.ErrInvalid},
		"O":        {func(_ *Config, a *DecodeArgs) { a.O = attention.Tensor{} }, attention.ErrInvalid},
	} {
		groups := ranksOf(t, 2)
		for _, err := range onAll(groups, func(_ int, g *Group) error {
			cfg, a := good, args()
			x.change(&cfg, &a)
			op, err := New(g, nil, cfg)
			if err != nil {
				return err
			}
			return op.Decode(context.Background(), nil, a)
		}) {
			require.ErrorIs(t, err, x.want, name)
		}
	}
	groups := ranksOf(t, 2)
	for _, err := range onAll(groups, func(r int, g *Group) error {
		op, err := New(g, nil, good)
		require.NoError(t, err)
		a := args()
		a.Tokens[0] -= r
		return op.Decode(context.Background(), nil, a)
	}) {
		require.EqualError(t, err, "parallel: rank 1: "+ErrMismatch.Error()+" on the cu_seqlens or lengths")
	}
	// 0 key heads are Hq, as in other calls.
	for _, err := range onAll(ranksOf(t, 2), func(r int, g *Group) error {
		op, err := New(g, nil, good)
		require.NoError(t, err)
		a := args()
		a.Hq, a.Hkv = 1, r
		return op.Decode(context.Background(), nil, a)
	}) {
		require.NoError(t, err)
	}
	op, err := New(groups[0], nil, good)
	require.NoError(t, err)
	require.ErrorIs(t, op.Append(nil, AppendArgs{B: 1, Hkv: 1, New: 3, Tokens: []int{500}, Cache: args().Cache}), attention.ErrInvalid)
	require.ErrorIs(t, op.Append(nil, AppendArgs{B: 1, Hkv: 1, New: 3, Tokens: []int{5}, Cache: args().Cache}), attention.ErrInvalid)
}

// A shape that was planned once is not planned again; a shape that is refused is refused each time, and a
// closed operation takes none.
func TestTakesRemembersShapes(t *testing.T) {
	testlevel.HostOnly(t)
	op, err := New(ranksOf(t, 1)[0], nil, Config{Config: attention.Config{HeadDim: 8}})
	require.NoError(t, err)
	good, bad := attention.Shape{B: 1, Hq: 2, Hkv: 1, Sq: 1, Sk: 9}, attention.Shape{B: 1, Hq: 3, Hkv: 2, Sq: 1, Sk: 9}
	for range 2 {
		require.NoError(t, op.takes(op.cfg.Config, good))
		require.ErrorIs(t, op.takes(op.cfg.Config, bad), attention.ErrInvalid)
		require.Len(t, op.taken, 1)
	}
	for n := range 2 * maxPlans {
		good.Sk = 10 + n
		require.NoError(t, op.takes(op.cfg.Config, good))
		require.LessOrEqual(t, len(op.taken), maxPlans)
	}
	require.NoError(t, op.Close())
	require.ErrorIs(t, op.takes(op.cfg.Config, good), errClosed)
}
