package attention_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/attention/merge"
	"vkattn/internal/inputs"
	"vkattn/internal/testlevel"
)

// f32Call is a call with grouped heads and room for outputs of any type.
func f32Call(t attention.DType) attention.BackwardArgs {
	s := attention.Shape{B: 2, Hq: 4, Hkv: 2, Sq: 21, Sk: 70}
	const d = 24
	in := func(heads, seq int, seed uint64) attention.Tensor {
		return attention.Tensor{Host: inputs.New(int64(s.B*heads*seq*d), t, inputs.Normal, seed)}
	}
	out := func(heads, seq int) attention.Tensor {
		return attention.Tensor{Host: make([]byte, s.B*heads*seq*d*4)}
	}
	return attention.BackwardArgs{
		Args: attention.Args{Shape: s, Q: in(s.Hq, s.Sq, 1), K: in(s.Hkv, s.Sk, 2), V: in(s.Hkv, s.Sk, 3), O: out(s.Hq, s.Sq),
			LSE: attention.Tensor{Host: make([]byte, s.B*s.Hq*s.Sq*4)}},
		DO: in(s.Hq, s.Sq, 4), DQ: out(s.Hq, s.Sq), DK: out(s.Hkv, s.Sk), DV: out(s.Hkv, s.Sk),
	}
}

// rounded converts float32 elements to a storage type.
func rounded(t attention.DType, f32 []byte) []byte {
	values := make([]float32, len(f32)/4)
	attention.F32.Decode(values, f32)
	out := make([]byte, len(values)*t.Size())
	t.Encode(out, values)
	return out
}

// O and the gradients in float32 are those of the storage type before they are rounded, O in bfloat16 but for the
// rounding of P.
func TestF32OutputsRoundToThoseOfTheStorageType(t *testing.T) {
	testlevel.HostOnly(t)
	for _, dtype := range attention.DTypes() {
		cfg := attention.Config{DType: dtype, HeadDim: 24, Causal: attention.BottomRight}
		stored, partial := f32Call(dtype), f32Call(dtype)
		op, err := attention.New(nil, cfg)
		require.NoError(t, err)
		require.NoError(t, op.Forward(nil, stored.Args))
		require.NoError(t, op.Backward(nil, stored))

		cfg.F32O = true
		op, err = attention.New(nil, cfg)
		require.NoError(t, err)
		require.NoError(t, op.Forward(nil, partial.Args))
		n := len(stored.O.Host) / 4 * dtype.Size()
		if dtype == attention.BF16 {
			x, y := make([]float32, n/2), make([]float32, n/2)
			dtype.Decode(x, stored.O.Host[:n])
			attention.F32.Decode(y, partial.O.Host)
			require.InDeltaSlice(t, y, x, 0x1p-8)
		} else {
			require.Equal(t, stored.O.Host[:n], rounded(dtype, partial.O.Host))
		}
		require.Equal(t, stored.LSE.Host, partial.LSE.Host)

		cfg.F32O, cfg.F32Gradients = false, true
		op, err = attention.New(nil, cfg)
		require.NoError(t, err)
		partial.O = stored.O
		require.NoError(t, op.Backward(nil, partial))
		for _, x := range [][2][]byte{{stored.DQ.Host, partial.DQ.Host}, {stored.DK.Host, partial.DK.Host}, {stored.DV.Host, partial.DV.Host}} {
			require.Equal(t, x[0][:len(x[0])/4*dtype.Size()], rounded(dtype, x[1]))
		}
	}
}

// A merge of one float32 state rounds it once.
func TestMergeRoundsF32States(t *testing.T) {
	testlevel.HostOnly(t)
	for _, dtype := range attention.DTypes() {
		const rows, dim = 7, 24
		o := inputs.New(rows*dim, attention.F32, inputs.Normal, 5)
		out := attention.Tensor{Host: make([]byte, rows*dim*dtype.Size())}
		lse := attention.Tensor{Host: inputs.New(rows, attention.F32, inputs.Normal, 6)}
		m, err := merge.NewMerge(nil, merge.MergeConfig{DType: dtype, HeadDim: dim, F32States: true})
		require.NoError(t, err)
		args := merge.MergeArgs{Shape: attention.Shape{B: 1, Hq: 1, Sq: rows},
			First: merge.States{O: attention.Tensor{Host: o}, LSE: lse}, O: out}
		require.NoError(t, m.Forward(nil, args))
		require.Equal(t, rounded(dtype, o), out.Host)

		args.O = args.First.O
		err = m.Forward(nil, args)
		if dtype == attention.F32 {
			require.NoError(t, err, "the result may be the state if the types are the same")
		} else {
			require.ErrorIs(t, err, attention.ErrInvalid)
		}
	}
}
