package attention_test

import (
	"bytes"
	"errors"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/attention/kvcache"
	"vkattn/internal/testdevice"
	"vkattn/vk"
)

var testRotary = kvcache.Rotary{Dim: 8, First: 2, Style: kvcache.RotaryHalfSplit}

// goodAppend is an append that is accepted: f16, B2 H4/2, 3 new rows of 16 columns to
// a cache of 8 that is empty, with queries.
func goodAppend() (kvcache.AppendConfig, kvcache.AppendArgs) {
	rows := func(heads, seq int) attention.Tensor {
		return attention.Tensor{Host: make([]byte, 2*heads*seq*16*2)}
	}
	words := func(n int) attention.Vector { return attention.Vector{Host: make([]byte, 4*n)} }
	return kvcache.AppendConfig{HeadDim: 16, Rotary: testRotary}, kvcache.AppendArgs{
		B: 2, Hkv: 2, Hq: 4, New: 3, K: rows(2, 3), V: rows(2, 3), Q: rows(4, 3), QOut: rows(4, 3),
		KCache: rows(2, 8), VCache: rows(2, 8), Capacity: 8, Used: words(2),
		Cos: words(8 * 4), Sin: words(8 * 4), Positions: 8,
	}
}

// pagedAppend replaces the cache by pages of 3 keys, with a block table of 3 for each sequence.
func pagedAppend(a *kvcache.AppendArgs) {
	a.Pages = &attention.Pages{Table: attention.Vector{Host: make([]byte, 4*2*3)}, PageSize: 3, Count: 5}
}

func doAppend(cfg kvcache.AppendConfig, a kvcache.AppendArgs) error {
	p, err := kvcache.NewAppend(nil, cfg)
	if err != nil {
		return err
	}
	defer p.Close()
	return p.Forward(nil, a)
}

func TestAppendAccepts(t *testing.T) {
	type (
		config = *kvcache.AppendConfig
		args   = *kvcache.AppendArgs
	)
	for name, change := range map[string]func(config, args){
		"packed tensors":      func(config, args) {},
		"no Used":             func(_ config, a args) { a.Used = attention.Vector{} },
		"no V":                func(_ config, a args) { a.V, a.VCache = attention.Tensor{}, attention.Tensor{} },
		"no Q":                func(_ config, a args) { a.Q, a.QOut, a.Hq = attention.Tensor{}, attention.Tensor{}, 0 },
		"Q in place":          func(_ config, a args) { a.QOut = a.Q },
		"Q named in two ways": func(_ config, a args) { a.QOut = a.Q; a.QOut.Strides = attention.BHSD(4, 3, 16) },
		"pages":               func(_ config, a args) { pagedAppend(a); a.Capacity = 8 },
		"pages by stride":     func(_ config, a args) { pagedAppend(a); a.Pages.Stride, a.Capacity = 3, 0 },
		"counted":             func(_ config, a args) { a.UsedNew.Host = make([]byte, 8) },
		"packed sequences":    func(_ config, a args) { a.CuNew.Host, a.TotalNew, a.New = make([]byte, 12), 6, 0 },
		"fewer positions":     func(_ config, a args) { a.Positions, a.Shard = 1, true },
		"Q of other rows": func(_ config, a args) {
			a.Q, a.QOut, a.RowsQ = attention.Tensor{Host: make([]byte, 2*4*2*16*2)}, attention.Tensor{Host: make([]byte, 2*4*2*16*2)}, 2
		},
		"Q past the cache": func(_ config, a args) { a.Used, a.QAtUsed = vectorI32(5, 5), true },
		"cosines of the type": func(c config, a args) {
			c.CosSinOfDType, a.Cos.Host, a.Sin.Host = true, a.Cos.Host[:64], a.Sin.Host[:64]
		},
		"no rotary": func(c config, a args) {
			c.Rotary = kvcache.Rotary{}
			a.Q, a.QOut, a.Cos, a.Sin = attention.Tensor{}, attention.Tensor{}, attention.Vector{}, attention.Vector{}
		},
		"int8": func(c config, a args) {
			c.KeyType, c.ValueType, a.KScale.Host, a.VScale.Host = attention.KVInt8, attention.KVInt8, make([]byte, 4*32), make([]byte, 4*32)
		},
		"q8_0": func(c config, a args) {
			c.KeyType, c.ValueType, c.HeadDim = attention.KVQ8_0, attention.KVQ8_0, 32
			for _, x := range []*attention.Tensor{&a.K, &a.V, &a.Q, &a.QOut, &a.KCache, &a.VCache} {
				x.Host = make([]byte, 2*len(x.Host))
			}
		},
		"caches one behind the other in every page": func(_ config, a args) {
			pagedAppend(a)
			a.KCache.Host = make([]byte, 5*2*2*3*16*2)
			a.KCache.Strides = attention.Strides{Batch: 2 * 2 * 3 * 16, Head: 16, Seq: 2 * 16}
			a.VCache = a.KCache
			a.VCache.Offset = 2 * 3 * 16
		},
	} {
		cfg, a := goodAppend()
		change(&cfg, &a)
		require.NoError(t, doAppend(cfg, a), name)
	}
}

// In host memory a row without a place in the cache is an error, and nothing is written, unless the
// cache is a shard.
func TestAppendRefusesNumbers(t *testing.T) {
	type (
		config = *kvcache.AppendConfig
		args   = *kvcache.AppendArgs
	)
	for name, x := range map[string]struct {
		says   string
		change func(config, args)
	}{
		"a full cache":     {"Used[1] is 6, want at least 0, and room for 3 new rows in 8 positions", func(_ config, a args) { a.Used = vectorI32(5, 6) }},
		"a negative place": {"Used[0] is -1", func(_ config, a args) { a.Used = vectorI32(-1, 0) }},
		"few positions":    {"room for 3 new rows in 1 positions", func(_ config, a args) { a.Positions = 1 }},
		"far rows of Q": {"Used[1] is 5, want room for 4 rows of Q in 8 positions", func(_ config, a args) {
			a.Used, a.RowsQ = vectorI32(4, 5), 4
			a.Q.Host, a.QOut.Host = make([]byte, 2*4*4*16*2), make([]byte, 2*4*4*16*2)
		}},
		"too many rows":  {"UsedNew[1] is 4, want 0 to 3", func(_ config, a args) { a.UsedNew = vectorI32(0, 4) }},
		"falling starts": {"CuNew[2] is 1, want 2 to 6", func(_ config, a args) { a.CuNew, a.TotalNew, a.New = vectorI32(0, 2, 1), 6, 0 }},
		"no such page": {"Pages.Table[3] is 5, want 0 to 4", func(_ config, a args) {
			pagedAppend(a)
			a.Pages.Table = vectorI32(0, 1, 9, 5, 3, 9)
		}},
	} {
		cfg, a := goodAppend()
		x.change(&cfg, &a)
		before := bytes.Clone(a.KCache.Host)
		err := doAppend(cfg, a)
		require.ErrorIs(t, err, attention.ErrInvalid, name)
		require.ErrorContains(t, err, x.says, name)
		require.Equal(t, before, a.KCache.Host)
		a.Shard = true
		require.NoError(t, doAppend(cfg, a), name)
	}
}

func TestAppendRefusesByFieldName(t *testing.T) {
	type (
		config = *kvcache.AppendConfig
		args   = *kvcache.AppendArgs
	)
	short := func(b *[]byte) { *b = (*b)[:len(*b)-1] }
	for name, c := range map[string]struct {
		field  string
		change func(config, args)
	}{
		"dtype":            {"DType", func(c config, _ args) { c.DType = 9 }},
		"head dim":         {"HeadDim/HeadDimV", func(c config, _ args) { c.HeadDim = 257 }},
		"kv":               {"KeyType", func(c config, _ args) { c.KeyType = 99 }},
		"blocks":           {"HeadDim/HeadDimV", func(c config, _ args) { c.KeyType, c.ValueType = attention.KVQ4_0, attention.KVQ4_0 }},
		"odd rotary":       {"Rotary.Dim", func(c config, _ args) { c.Rotary.Dim = 7 }},
		"wide rotary":      {"Rotary.Dim", func(c config, _ args) { c.Rotary.Dim = 16 }},
		"rotary first":     {"Rotary.First", func(c config, _ args) { c.Rotary.First = 17 }},
		"rotary style":     {"Rotary.Style", func(c config, _ args) { c.Rotary.Style = 2 }},
		"access":           {"Access", func(c config, _ args) { c.Access = 7 }},
		"batch":            {"B", func(_ config, a args) { a.B = -1 }},
		"heads":            {"Hkv", func(_ config, a args) { a.Hkv = -1 }},
		"query heads":      {"Hq", func(_ config, a args) { a.Hq = 0 }},
		"group":            {"Hkv", func(_ config, a args) { a.Hq = 3 }},
		"rows":             {"New", func(_ config, a args) { a.New = math.MaxInt }},
		"packed rows":      {"TotalNew", func(_ config, a args) { a.CuNew.Host, a.TotalNew = make([]byte, 12), -1 }},
		"lengths twice":    {"UsedNew", func(_ config, a args) { a.CuNew.Host, a.UsedNew.Host = make([]byte, 12), make([]byte, 8) }},
		"capacity":         {"Capacity", func(_ config, a args) { a.Capacity = 0 }},
		"positions":        {"Positions", func(_ config, a args) { a.Positions = 0 }},
		"page size":        {"Pages.PageSize", func(_ config, a args) { pagedAppend(a); a.Pages.PageSize = 0 }},
		"pages":            {"Pages.Count", func(_ config, a args) { pagedAppend(a); a.Pages.Count = -1 }},
		"page stride":      {"Pages.Stride", func(_ config, a args) { pagedAppend(a); a.Pages.Stride = -1 }},
		"pages of nothing": {"Pages.Stride", func(_ config, a args) { pagedAppend(a); a.Capacity = 0 }},
		"no K":             {"K", func(_ config, a args) { a.K = attention.Tensor{} }},
		"no cache":         {"KCache", func(_ config, a args) { a.KCache = attention.Tensor{} }},
		"V alone":          {"VCache", func(_ config, a args) { a.VCache = attention.Tensor{} }},
		"V's cache alone":  {"V", func(_ config, a args) { a.V = attention.Tensor{} }},
		"Q alone":          {"QOut", func(_ config, a args) { a.QOut = attention.Tensor{} }},
		"no cosines":       {"Cos", func(_ config, a args) { a.Cos = attention.Vector{} }},
		"no sines":         {"Sin", func(_ config, a args) { a.Sin = attention.Vector{} }},
		"idle rows of Q":   {"Q", func(_ config, a args) { a.Q, a.QOut, a.RowsQ = attention.Tensor{}, attention.Tensor{}, 2 }},
		"rows of Q":        {"RowsQ", func(_ config, a args) { a.RowsQ = -1 }},
		"packed rows of Q": {"RowsQ", func(_ config, a args) { a.CuNew.Host, a.TotalNew, a.RowsQ = make([]byte, 12), 6, 2 }},
		"short rows of Q":  {"Q", func(_ config, a args) { a.RowsQ = 4 }},
		"idle cosine type": {"CosSinOfDType", func(c config, _ args) { c.Rotary, c.CosSinOfDType = kvcache.Rotary{}, true }},
		"short cosines":    {"Cos", func(c config, a args) { c.CosSinOfDType = true; a.Cos.Host = a.Cos.Host[:63] }},
		"no table":         {"Pages.Table", func(_ config, a args) { pagedAppend(a); a.Pages.Table = attention.Vector{} }},
		"idle Q":           {"Q", func(c config, _ args) { c.Rotary = kvcache.Rotary{} }},
		"idle cosines": {"Cos", func(c config, a args) {
			c.Rotary = kvcache.Rotary{}
			a.Q, a.QOut = attention.Tensor{}, attention.Tensor{}
		}},
		"idle scale":      {"KScale", func(_ config, a args) { a.KScale.Host = make([]byte, 4*32) }},
		"no scale":        {"KScale", func(c config, _ args) { c.KeyType, c.ValueType = attention.KVFP8, attention.KVFP8 }},
		"scale of blocks": {"KVBlock", func(c config, _ args) { c.KeyType, c.ValueType, c.KVBlock = attention.KVFP8, attention.KVFP8, 2 }},
		"short scales of heads": {"KScale", func(c config, a args) {
			c.KeyType, c.ValueType, c.KVBlock = attention.KVInt8, attention.KVInt8, attention.KVBlockHead
			a.KScale.Host, a.VScale.Host = make([]byte, 7), make([]byte, 8)
		}},
		"given scale in a cache": {"KCache", func(c config, a args) {
			c.KeyType, c.ValueType, c.KVBlock = attention.KVInt8, attention.KVInt8, attention.KVBlockTensor
			a.KScale.Host, a.VScale.Host = a.KCache.Host, make([]byte, 4)
		}},
		"short K":       {"K", func(_ config, a args) { short(&a.K.Host) }},
		"short cache":   {"VCache", func(_ config, a args) { short(&a.VCache.Host) }},
		"short Used":    {"Used", func(_ config, a args) { short(&a.Used.Host) }},
		"short sines":   {"Sin", func(_ config, a args) { short(&a.Sin.Host) }},
		"short table":   {"Pages.Table", func(_ config, a args) { pagedAppend(a); short(&a.Pages.Table.Host) }},
		"short starts":  {"CuNew", func(_ config, a args) { a.CuNew.Host, a.TotalNew = make([]byte, 11), 3 }},
		"vector offset": {"Used.Offset", func(_ config, a args) { a.Used.Offset = -1 }},
		"strides":       {"KCache.Strides.Head", func(_ config, a args) { a.KCache.Strides.Head = -1 }},
		"rows overlap":  {"KCache.Strides", func(_ config, a args) { a.KCache.Strides = attention.BHSD(2, 8, 15) }},
		"half a block": {"VCache.Offset", func(c config, a args) {
			c.KeyType, c.ValueType, c.HeadDim, a.VCache.Offset = attention.KVQ8_0, attention.KVQ8_0, 32, 16
		}},
		"block strides": {"KCache.Strides.Seq", func(c config, a args) {
			c.KeyType, c.ValueType, c.HeadDim = attention.KVQ8_0, attention.KVQ8_0, 32
			a.KCache.Strides = attention.Strides{Batch: 1024, Head: 512, Seq: 48}
		}},
		"caches overlap":  {"VCache", func(_ config, a args) { a.VCache = a.KCache }},
		"K in its cache":  {"KCache", func(_ config, a args) { a.K.Host = a.KCache.Host }},
		"QOut near Q":     {"QOut", func(_ config, a args) { a.QOut, a.QOut.Strides = a.Q, attention.BSHD(4, 3, 16) }},
		"QOut in K":       {"QOut", func(_ config, a args) { a.K.Host = a.QOut.Host }},
		"Used in a cache": {"KCache", func(_ config, a args) { a.Used.Host = a.KCache.Host }},
		"scale in a cache": {"KScale", func(c config, a args) {
			c.KeyType, c.ValueType, a.KScale.Host, a.VScale.Host = attention.KVInt8, attention.KVInt8, a.KCache.Host, make([]byte, 4*32)
		}},
		"rows woven too tight": {"VCache", func(_ config, a args) {
			pagedAppend(a)
			a.KCache.Host = make([]byte, 5*2*2*3*16*2)
			a.KCache.Strides = attention.Strides{Batch: 2 * 2 * 3 * 16, Head: 16, Seq: 2 * 16}
			a.VCache = a.KCache
			a.VCache.Offset = 2*3*16 - 1
		}},
	} {
		cfg, a := goodAppend()
		c.change(&cfg, &a)
		before := bytes.Clone(a.KCache.Host)
		err := doAppend(cfg, a)
		var shape *attention.ShapeError
		require.True(t, errors.As(err, &shape), "%s: %v", name, err)
		require.Equal(t, c.field, shape.Field, "%s: %v", name, err)
		require.Equal(t, before, a.KCache.Host, name)
	}
}

func TestAppendOnTheCPUTakesNoStream(t *testing.T) {
	cfg, a := goodAppend()
	p, err := kvcache.NewAppend(nil, cfg)
	require.NoError(t, err)
	require.Equal(t, cfg, p.Config())
	require.NoError(t, p.Prepare())
	require.Error(t, p.Forward(attention.OnStream(&vk.Stream{}), a))
	require.ErrorIs(t, p.Record(&vk.Commands{}, a), attention.ErrUnsupported)
	require.NoError(t, p.Close())
	require.NoError(t, p.Close())
	require.ErrorIs(t, p.Forward(nil, a), vk.ErrClosed)
}

func TestRotaryStyleNames(t *testing.T) {
	for _, s := range []kvcache.RotaryStyle{kvcache.RotaryInterleaved, kvcache.RotaryHalfSplit} {
		var parsed kvcache.RotaryStyle
		require.NoError(t, parsed.Set(s.String()))
		require.Equal(t, s, parsed)
	}
	_, err := kvcache.ParseRotaryStyle("circular")
	require.Error(t, err)
}

// recordedAppend appends to the recording's K and V, on top of the one row there is.
func recordedAppend(t testing.TB, r *recording, access attention.Access) (*kvcache.Append, kvcache.AppendArgs) {
	p, err := kvcache.NewAppend(attention.On(r.dev), kvcache.AppendConfig{HeadDim: 8, Rotary: kvcache.Rotary{Dim: 8}, Access: access})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	require.NoError(t, p.Prepare())
	buffer := func() *vk.Buffer {
		b := testdevice.Buffer(t, r.dev, 16)
		require.NoError(t, r.stream.Fill(vk.BufferRange{Buffer: b}, 0))
		return b
	}
	k, v, cos, sin := buffer(), buffer(), buffer(), buffer()
	return p, kvcache.AppendArgs{B: 1, Hkv: 1, Hq: 1, New: 1, K: attention.Tensor{Buffer: k}, V: attention.Tensor{Buffer: v},
		Q: r.args.Q, QOut: r.args.Q, KCache: r.args.K, VCache: r.args.V, Capacity: 1,
		Cos: attention.Vector{Buffer: cos}, Sin: attention.Vector{Buffer: sin}, Positions: 1}
}

func TestAppendsAllocateNothing(t *testing.T) {
	forwardsAllocateNothing(t, func(t testing.TB, r *recording, access attention.Access) func() error {
		p, a := recordedAppend(t, r, access)
		return func() error { return p.Forward(attention.OnStream(r.stream), a) }
	})
}

// An append that a device cannot compute is refused before anything is recorded.
func TestAppendRefusesOnADevice(t *testing.T) {
	r := newRecording(t, attention.AccessDescriptors)
	p, good := recordedAppend(t, r, attention.AccessAuto)
	host := good
	host.Sin = attention.Vector{Host: make([]byte, 16)}
	refusesOnADevice(t, r, p, good, map[string]kvcache.AppendArgs{"Sin": host}, func(dev *attention.Device) (*kvcache.Append, error) {
		return kvcache.NewAppend(dev, p.Config())
	})
}

func BenchmarkAppendRecord(b *testing.B) {
	benchmarkRecord(b, func(t testing.TB, r *recording, access attention.Access) func(*vk.Commands) error {
		p, a := recordedAppend(t, r, access)
		return func(c *vk.Commands) error { return p.Record(c, a) }
	})
}
