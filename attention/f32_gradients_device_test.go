package attention_test

import (
	"bytes"
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/attention/merge"
	"vkattn/internal/accuracy"
	"vkattn/internal/inputs"
	"vkattn/internal/problem"
	"vkattn/internal/testdevice"
	"vkattn/internal/testlevel"
	"vkattn/vk"
)

// On every tier of a device, gradients of Config.F32Gradients are those of the storage type
// before they are rounded: a Sum rounds them to the same bits. Accumulate adds to them without
// rounding, and a Sum of two of them gives the same bits as that.
func TestF32GradientsOnDevices(t *testing.T) {
	dev := testdevice.Open(t)
	s := testdevice.Stream(t, dev, "f32 gradients")
	ctx := context.Background()
	shape := attention.Shape{B: 1, Hq: 4, Hkv: 2, Sq: 21, Sk: 37}
	const batch = 1
	for _, x := range []struct {
		tier  attention.Tier
		dtype attention.DType
		d     int
		first bool // in the first share of the table
		gpus  bool // at level all alone
	}{
		{attention.TierScalar, attention.F16, 24, true, false},
		{attention.TierScalar, attention.BF16, 7, true, false},  // rows share words
		{attention.TierCoopMat, attention.F16, 7, false, false}, // 30 s of compilation on the CPU
		{attention.TierCoopMat2, attention.F16, 16, false, false},
		{attention.TierCoopMat, attention.F16, 16, false, true},
		{attention.TierCoopMat, attention.BF16, 16, false, false},
	} {
		all := testlevel.Get() == testlevel.All || testlevel.IsExhaustive()
		if !testlevel.Share(x.first) || x.gpus && !all {
			continue
		}
		t.Run(x.tier.String()+"/"+x.dtype.String(), func(t *testing.T) {
			cfg := attention.Config{DType: x.dtype, HeadDim: x.d, Causal: attention.BottomRight, Tier: x.tier}
			wide := cfg
			wide.F32Gradients = true
			bytesOf := func(heads, seq, size int) int { return batch * heads * seq * x.d * size }
			in := func(heads, seq int, seed uint64) attention.Tensor {
				return attention.Tensor{Host: inputs.New(int64(bytesOf(heads, seq, 1)), x.dtype, inputs.Normal, seed)}
			}
			out := func(heads, seq int, size int) attention.Tensor {
				return attention.Tensor{Host: bytes.Repeat([]byte{0xff}, bytesOf(heads, seq, size))}
			}
			size := x.dtype.Size()
			host := attention.BackwardArgs{Args: attention.Args{Shape: shape, Q: in(shape.Hq, shape.Sq, 1), K: in(shape.Hkv, shape.Sk, 2), V: in(shape.Hkv, shape.Sk, 3),
				O: out(shape.Hq, shape.Sq, size), LSE: attention.Tensor{Host: make([]byte, 4*batch*shape.Hq*shape.Sq)}}, DO: in(shape.Hq, shape.Sq, 4)}
			cpu := cfg
			cpu.Tier = attention.TierAuto
			forward, err := attention.New(nil, cpu)
			require.NoError(t, err)
			require.NoError(t, forward.Forward(nil, host.Args))

			gradients := func(op *attention.Op, accumulate, size int) (on attention.BackwardArgs, err error) {
				on = host
				for _, x := range []*attention.Tensor{&on.Q, &on.K, &on.V, &on.O, &on.LSE, &on.DO} {
					*x = toDevice(t, dev, s, x.Host)
				}
				on.DQ, on.DK, on.DV = toDevice(t, dev, s, out(shape.Hq, shape.Sq, size).Host), toDevice(t, dev, s, out(shape.Hkv, shape.Sk, size).Host), toDevice(t, dev, s, out(shape.Hkv, shape.Sk, size).Host)
				for n := range 1 + accumulate {
					on.Accumulate = n > 0
					require.NoError(t, s.Barrier())
					if err := op.Backward(attention.OnStream(s), on); err != nil {
						return on, err
					}
				}
				return on, s.Wait(ctx)
			}
			list := func(a attention.BackwardArgs) []attention.Tensor { return []attention.Tensor{a.DQ, a.DK, a.DV} }
			download := func(b *vk.Buffer) []byte {
				host := make([]byte, b.Size())
				require.NoError(t, s.Download(ctx, host, b, 0))
				return host
			}
			narrowOp, err := attention.New(attention.On(dev), cfg)
			if err != nil {
				require.ErrorIs(t, err, attention.ErrUnsupported)
				t.Skip(err)
			}
			defer narrowOp.Close()
			stored, err := gradients(narrowOp, 0, size)
			if err != nil {
				require.ErrorIs(t, err, attention.ErrUnsupported)
				t.Skip(err)
			}
			wideOp, err := attention.New(attention.On(dev), wide) // for both calls: drivers on the CPU compile for seconds
			require.NoError(t, err)
			defer wideOp.Close()
			once, err := gradients(wideOp, 0, 4)
			require.NoError(t, err)
			twice, err := gradients(wideOp, 1, 4)
			require.NoError(t, err)

			round, err := merge.NewSum(attention.On(dev), merge.MergeConfig{DType: x.dtype, HeadDim: x.d, F32States: true})
			require.NoError(t, err)
			defer round.Close()
			add, err := merge.NewSum(attention.On(dev), merge.MergeConfig{DType: attention.F32, HeadDim: x.d, F32States: true})
			require.NoError(t, err)
			defer add.Close()
			for i, g := range list(once) {
				sizes := attention.Shape{B: batch, Hq: shape.Hq, Sq: shape.Sq}
				if i > 0 {
					sizes.Hq, sizes.Sq = shape.Hkv, shape.Sk
				}
				to := toDevice(t, dev, s, make([]byte, int(g.Buffer.Size())/4*size))
				require.NoError(t, s.Barrier())
				require.NoError(t, round.Forward(attention.OnStream(s), merge.SumArgs{Shape: sizes, First: g, Out: to}))
				require.NoError(t, add.Forward(attention.OnStream(s), merge.SumArgs{Shape: sizes, First: g, Second: g, Out: toDevice(t, dev, s, download(g.Buffer))}))
				require.Equal(t, download(list(stored)[i].Buffer), download(to.Buffer), "gradient %d", i)
				require.Equal(t, rounded(x.dtype, download(g.Buffer)), download(to.Buffer))
				require.NoError(t, s.Barrier())
				require.NoError(t, add.Forward(attention.OnStream(s), merge.SumArgs{Shape: sizes, First: g, Second: g, Out: g})) // in place
				require.Equal(t, download(list(twice)[i].Buffer), download(g.Buffer), "gradient %d", i)
			}

			host.DQ, host.DK, host.DV = attention.Tensor{Host: download(stored.DQ.Buffer)}, attention.Tensor{Host: download(stored.DK.Buffer)}, attention.Tensor{Host: download(stored.DV.Buffer)}
			v, err := accuracy.VerifyBackward(problem.Config(cpu), host, accuracy.Options{})
			require.NoError(t, err)
			require.True(t, v.Pass(), "%v", v)
		})
	}
}
