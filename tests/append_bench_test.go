package tests

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/attention/kvcache"
	"vkattn/internal/testdevice"
	"vkattn/vk"
)

// BenchmarkAppend measures appends of K, V and Q with rotary embedding on a device, one
// after another: the time of one, and the rate of the bytes that it moves (new rows read,
// rows of the cache and of Q written).
func BenchmarkAppend(b *testing.B) {
	s := openDevice(b)
	for _, c := range []struct {
		b, rows int
		kv      attention.KVType
	}{
		{1, 1, attention.KVSame},
		{64, 1, attention.KVSame},
		{64, 1, attention.KVInt8},
		{1, 8192, attention.KVSame},
		{1, 8192, attention.KVFP8},
		{1, 8192, attention.KVQ8_0},
		{1, 8192, attention.KVQ4_0},
	} {
		const hq, hkv, dim, perSubmit = 32, 8, 128, 16
		if s.dev.Info().Type == vk.DeviceCPU && c.rows > 1 {
			continue
		}
		b.Run(fmt.Sprintf("f16.%v.d%d.B%d.H%d-%d.N%d", c.kv, dim, c.b, hq, hkv, c.rows), func(b *testing.B) {
			stream := testdevice.Stream(b, s.dev, "append")
			buffer := func(bytes int, word uint32) *vk.Buffer {
				buf := testdevice.Buffer(b, s.dev, uint64(bytes))
				require.NoError(b, stream.Fill(vk.BufferRange{Buffer: buf}, word))
				return buf
			}
			tensor := func(bytes int) attention.Tensor { return attention.Tensor{Buffer: buffer(bytes, 0x3c003a00)} }
			vector := func(n int, word uint32) attention.Vector { return attention.Vector{Buffer: buffer(4*n, word)} }
			cfg := kvcache.AppendConfig{HeadDim: dim, KeyType: c.kv, ValueType: c.kv, Rotary: kvcache.Rotary{Dim: dim, Style: kvcache.RotaryHalfSplit}}
			news, cache := c.b*hkv*c.rows, c.b*hkv*c.rows*c.kv.RowBytes(cfg.DType, dim)
			a := kvcache.AppendArgs{B: c.b, Hkv: hkv, Hq: hq, New: c.rows, Capacity: c.rows, Positions: c.rows,
				K: tensor(news * dim * 2), V: tensor(news * dim * 2), KCache: tensor(cache), VCache: tensor(cache),
				Q: tensor(news / hkv * hq * dim * 2), QOut: tensor(news / hkv * hq * dim * 2), Used: vector(c.b, 0),
				Cos: vector(c.rows*dim/2, 0x3f000000), Sin: vector(c.rows*dim/2, 0x3f400000)}
			if c.kv.Scaled() {
				a.KScale, a.VScale = vector(news, 0), vector(news, 0)
			}
			p, err := kvcache.NewAppend(attention.On(s.dev), cfg)
			require.NoError(b, err)
			defer p.Close()
			benchmarkCalls(b, stream, perSubmit, func() error { return p.Forward(attention.OnStream(stream), a) })
			appends := float64(b.N) * perSubmit
			b.ReportMetric(b.Elapsed().Seconds()*1e6/appends, "us/append")
			b.ReportMetric(float64(2*news*dim*2+2*cache+2*news/hkv*hq*dim*2)*appends/b.Elapsed().Seconds()/1e9, "GB/s")
		})
	}
}

// benchmarkCalls measures calls of which each waits for the one before.
func benchmarkCalls(b *testing.B, stream *vk.Stream, perSubmit int, call func() error) {
	run := func() {
		for range perSubmit {
			if err := stream.Barrier(); err != nil {
				b.Fatal(err)
			}
			if err := call(); err != nil {
				b.Fatal(err)
			}
		}
		if err := stream.Wait(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
	run()
	for b.Loop() {
		run()
	}
}
