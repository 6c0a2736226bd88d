package attention_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/half"
	"vkattn/internal/inputs"
)

// Calls read what EncodeKV writes: attention over it equals attention over the elements
// that DecodeKV returns, and these are near the original elements.
func TestEncodedKVIsReadAsDecoded(t *testing.T) {
	const b, h, keys, d = 2, 3, 50, 64
	random := func(seed uint64) []float32 {
		x := make([]float32, b*h*keys*d)
		half.DecodeF32(x, inputs.New(int64(len(x)), attention.F32, inputs.Normal, seed))
		return x
	}
	near := map[attention.KVType]float64{attention.KVInt8: 0.03, attention.KVFP8: 0.2, attention.KVQ8_0: 0.03, attention.KVQ4_0: 0.8,
		attention.KVFP8E5M2: 0.4, attention.KVQ4_1: 0.35, attention.KVQ5_0: 0.4, attention.KVQ5_1: 0.2, attention.KVIQ4NL: 0.6}
	for _, kv := range attention.KVTypes()[1:] {
		if kv.Latent() {
			continue // below
		}
		for _, block := range []int{0, 1, 7, 64, attention.KVBlockHead, attention.KVBlockTensor} {
			if kv.Blocked() && block != 0 && block != 1 {
				continue
			}
			cfg := attention.Config{DType: attention.F32, HeadDim: d, KeyType: kv, ValueType: kv, KVBlock: block}
			a := attention.Args{Shape: attention.Shape{B: b, Hq: h, Sq: 4, Sk: keys}}
			a.Q.Host = inputs.New(b*h*4*d, attention.F32, inputs.Normal, 3)
			plain := a
			for _, x := range []struct {
				seed    uint64
				to, ref *attention.Tensor
				scales  *attention.Vector
			}{{1, &a.K, &plain.K, &a.KScale}, {2, &a.V, &plain.V, &a.VScale}} {
				in := random(x.seed)
				var err error
				x.to.Host, x.scales.Host, err = attention.EncodeKV(kv, block, b, h, keys, d, in)
				require.NoError(t, err)
				require.Equal(t, kv.Scaled(), x.scales.Given())
				out, err := attention.DecodeKV(kv, block, b, h, keys, d, x.to.Host, x.scales.Host)
				require.NoError(t, err)
				for i := range in {
					require.InDelta(t, in[i], out[i], near[kv], "%v", kv)
				}
				x.ref.Host = make([]byte, 4*len(out))
				half.EncodeF32(x.ref.Host, out)
			}
			o, lse, err := attention.Reference(cfg, a)
			require.NoError(t, err)
			cfg.KeyType, cfg.ValueType, cfg.KVBlock = attention.KVSame, attention.KVSame, 0
			want, wantLSE, err := attention.Reference(cfg, plain)
			require.NoError(t, err)
			for i := range want {
				require.InDelta(t, want[i], o[i], 1e-6, "%v", kv) // the product with the scale is rounded in one
			}
			for i := range wantLSE {
				require.InDelta(t, wantLSE[i], lse[i], 1e-6, "%v", kv)
			}
		}
	}
}

// The same of latent attention, whose V is in the rows of K, packed by strides of 0 too.
func TestEncodedLatentKVIsReadAsDecoded(t *testing.T) {
	const kv, b, h, keys, d, dv = attention.KVFP8DSMLA, 2, 5, 50, 576, 512
	in := make([]float32, b*keys*d)
	half.DecodeF32(in, inputs.New(int64(len(in)), attention.F32, inputs.Normal, 1))
	cfg := attention.Config{DType: attention.F32, HeadDim: d, HeadDimV: dv, KeyType: kv, ValueType: kv}
	a := attention.Args{Shape: attention.Shape{B: b, Hq: h, Hkv: 1, Sq: 4, Sk: keys}}
	a.Q.Host = inputs.New(b*h*4*d, attention.F32, inputs.Normal, 3)
	plain := a
	rows, scales, err := attention.EncodeKV(kv, 0, b, 1, keys, d, in)
	require.NoError(t, err)
	require.Nil(t, scales)
	require.Len(t, rows, b*keys*656)
	out, err := attention.DecodeKV(kv, 0, b, 1, keys, d, rows, nil)
	require.NoError(t, err)
	for i := range in {
		require.InDelta(t, in[i], out[i], 0.2, i)
	}
	a.K.Host, a.V.Host = rows, rows
	plain.K.Host = make([]byte, 4*len(out))
	half.EncodeF32(plain.K.Host, out)
	plain.V = attention.Tensor{Host: plain.K.Host, Strides: attention.BHSD(1, keys, d)}
	o, lse, err := attention.Reference(cfg, a)
	require.NoError(t, err)
	cfg.KeyType, cfg.ValueType = attention.KVSame, attention.KVSame
	want, wantLSE, err := attention.Reference(cfg, plain)
	require.NoError(t, err)
	require.InDeltaSlice(t, want, o, 1e-6)
	require.InDeltaSlice(t, wantLSE, lse, 1e-6)
}

func TestEncodeKVRefuses(t *testing.T) {
	for _, c := range []struct {
		field                            string
		t                                attention.KVType
		block, b, h, keys, dim, elements int
	}{
		{"KV", attention.KVSame, 0, 1, 1, 1, 32, 32},
		{"dim", attention.KVQ8_0, 0, 1, 1, 1, 33, 33},
		{"dim", attention.KVInt8, 0, 1, 1, 1, 0, 0},
		{"dim", attention.KVFP8DSMLA, 0, 1, 1, 1, 512, 512},
		{"batches", attention.KVInt8, 0, 0, 1, 1, 1, 0},
		{"block", attention.KVInt8, -3, 1, 1, 1, 1, 1},
		{"elements", attention.KVInt8, 0, 2, 2, 2, 2, 15},
		{"elements", attention.KVInt8, 0, math.MaxInt32, math.MaxInt32, math.MaxInt32, 1, 0},
	} {
		_, _, err := attention.EncodeKV(c.t, c.block, c.b, c.h, c.keys, c.dim, make([]float32, c.elements))
		var shape *attention.ShapeError
		require.ErrorAs(t, err, &shape)
		require.Equal(t, c.field, shape.Field, "%v", err)
	}
	_, err := attention.DecodeKV(attention.KVInt8, 0, 1, 1, 2, 2, make([]byte, 4), make([]byte, 7))
	require.ErrorContains(t, err, "scales is 7 bytes, want 8")
	_, err = attention.DecodeKV(attention.KVInt8, 0, 1, 1, 2, 2, make([]byte, 3), make([]byte, 8))
	require.ErrorContains(t, err, "data is 3 bytes, want 4")
}
