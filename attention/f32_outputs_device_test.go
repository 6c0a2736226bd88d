package attention_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/attention/merge"
	"vkattn/internal/accuracy"
	"vkattn/internal/inputs"
	"vkattn/internal/problem"
	"vkattn/internal/testdevice"
	"vkattn/vk"
)

// toDevice copies host memory to a new buffer.
func toDevice(t *testing.T, dev *vk.Device, s *vk.Stream, host []byte) attention.Tensor {
	b := testdevice.Buffer(t, dev, uint64(len(host)))
	require.NoError(t, s.Upload(b, 0, host))
	return attention.Tensor{Buffer: b}
}

// On every tier of a device, O of Config.F32O is attention, is not rounded to the storage type,
// and a Merge with F32States rounds it.
func TestF32OOnDevices(t *testing.T) {
	dev := testdevice.Open(t)
	s := testdevice.Stream(t, dev, "f32 outputs")
	ctx := context.Background()
	for _, tier := range []attention.Tier{attention.TierScalar, attention.TierCoopMat, attention.TierCoopMat2} {
		for _, x := range []struct {
			name string
			attention.Shape
			cfg attention.Config
			cu  []uint32
		}{
			{"causal", attention.Shape{B: 2, Hq: 4, Hkv: 2, Sq: 37, Sk: 90}, attention.Config{DType: attention.F16, HeadDim: 24, Causal: attention.BottomRight}, nil},
			{"one row", attention.Shape{B: 1, Hq: 4, Hkv: 1, Sq: 1, Sk: 300}, attention.Config{DType: attention.F16, HeadDim: 64}, nil},
			{"odd rows", attention.Shape{B: 1, Hq: 2, Sq: 5, Sk: 20}, attention.Config{DType: attention.BF16, HeadDim: 7}, nil},
			{"packed", attention.Shape{B: 2, Hq: 2, Sq: 20, Sk: 20}, attention.Config{DType: attention.F16, HeadDim: 16, Causal: attention.TopLeft}, []uint32{0, 20, 33}},
		} {
			if tier == attention.TierCoopMat && x.name == "packed" || tier == attention.TierCoopMat2 && x.name != "packed" {
				continue // a pipeline takes seconds on the CPU, and the two have the same epilogue
			}
			t.Run(tier.String()+"/"+x.name, func(t *testing.T) {
				cfg, shape := x.cfg, x.Shape
				cfg.Tier, cfg.F32O = tier, true
				op, err := attention.New(attention.On(dev), cfg)
				if err != nil {
					t.Skip(err)
				}
				defer op.Close()
				batch, rows, keys := shape.B, shape.Sq, shape.Sk
				if x.cu != nil {
					batch, rows, keys = 1, int(x.cu[2]), int(x.cu[2])
				}
				size := func(heads, seq int) int64 { return int64(batch * heads * seq * cfg.HeadDim) }
				host := attention.Args{Shape: shape,
					Q:   attention.Tensor{Host: inputs.New(size(shape.Hq, rows), cfg.DType, inputs.Normal, 1)},
					K:   attention.Tensor{Host: inputs.New(size(shape.KVHeads(), keys), cfg.DType, inputs.Normal, 2)},
					V:   attention.Tensor{Host: inputs.New(size(shape.KVHeads(), keys), cfg.DType, inputs.Normal, 3)},
					O:   attention.Tensor{Host: bytes.Repeat([]byte{0xff}, int(size(shape.Hq, rows))*4)},
					LSE: attention.Tensor{Host: make([]byte, batch*shape.Hq*rows*4)}}
				a := attention.Args{Shape: shape, Q: toDevice(t, dev, s, host.Q.Host), K: toDevice(t, dev, s, host.K.Host), V: toDevice(t, dev, s, host.V.Host),
					O: toDevice(t, dev, s, host.O.Host), LSE: toDevice(t, dev, s, host.LSE.Host)}
				if x.cu != nil {
					var cu []byte
					for _, n := range x.cu {
						cu = binary.LittleEndian.AppendUint32(cu, n)
					}
					v := attention.Vector{Host: cu}
					host.Varlen = &attention.Varlen{CuQ: v, CuK: v, TotalQ: rows, TotalK: keys}
					v = attention.Vector{Buffer: toDevice(t, dev, s, cu).Buffer}
					a.Varlen = &attention.Varlen{CuQ: v, CuK: v, TotalQ: rows, TotalK: keys}
				}
				require.NoError(t, s.Barrier())
				if err := op.Forward(attention.OnStream(s), a); err != nil {
					require.ErrorIs(t, err, attention.ErrUnsupported)
					t.Skip(err)
				}
				require.NoError(t, s.Barrier())
				merger, err := merge.NewMerge(attention.On(dev), merge.MergeConfig{DType: cfg.DType, HeadDim: cfg.HeadDim, F32States: true})
				require.NoError(t, err)
				defer merger.Close()
				out := toDevice(t, dev, s, make([]byte, int(size(shape.Hq, rows))*cfg.DType.Size()))
				require.NoError(t, s.Barrier())
				require.NoError(t, merger.Forward(attention.OnStream(s), merge.MergeArgs{Shape: attention.Shape{B: batch, Hq: shape.Hq, Sq: rows},
					First: merge.States{O: a.O, LSE: a.LSE}, O: out}))
				require.NoError(t, s.Download(ctx, host.O.Host, a.O.Buffer, 0))
				require.NoError(t, s.Download(ctx, host.LSE.Host, a.LSE.Buffer, 0))
				once := make([]byte, out.Buffer.Size())
				require.NoError(t, s.Download(ctx, once, out.Buffer, 0))
				v, err := accuracy.Verify(problem.Config(cfg), host, accuracy.Options{})
				require.NoError(t, err)
				require.True(t, v.Pass(), "%v", v)
				require.Equal(t, rounded(cfg.DType, host.O.Host), once)
				again := make([]float32, len(once)/cfg.DType.Size())
				cfg.DType.Decode(again, once)
				widened := make([]byte, len(host.O.Host))
				attention.F32.Encode(widened, again)
				require.NotEqual(t, widened, host.O.Host)
			})
		}
	}
}
