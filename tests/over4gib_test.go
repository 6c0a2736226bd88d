package tests

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/cases"
	"vkattn/internal/inputs"
	"vkattn/internal/testdevice"
	"vkattn/internal/testdevices"
	"vkattn/vk"
)

// Batch and head strides may be over 4 GiB, and over 2^32 elements: no offset of a row may
// be limited to 32 bits.
func TestBuffersOver4GiB(t *testing.T) {
	s := openDevice(t)
	if !full() {
		t.Skip("large buffers are for VKATTN_TEST_LEVEL=exhaustive")
	}
	ran := false
	for _, x := range []struct {
		name   string
		shape  attention.Shape
		stride func(far int64) attention.Strides // of K and O
		far    int64                             // elements
	}{
		{"batch stride 5 GiB", attention.Shape{B: 2, Hq: 1, Sq: 70, Sk: 70},
			func(far int64) attention.Strides { return attention.Strides{Batch: far, Head: 70 * 64, Seq: 64} }, 5 << 29},
		{"head stride 5 GiB", attention.Shape{B: 1, Hq: 2, Sq: 70, Sk: 70},
			func(far int64) attention.Strides { return attention.Strides{Batch: 2 * far, Head: far, Seq: 64} }, 5 << 29},
		{"batch stride over 2^32 elements", attention.Shape{B: 2, Hq: 1, Sq: 70, Sk: 70},
			func(far int64) attention.Strides { return attention.Strides{Batch: far, Head: 70 * 64, Seq: 64} }, 1<<32 + 1<<20},
	} {
		bytes := uint64(2 * (x.far + 70*64))
		if bytes > s.dev.Caps().Limits.MaxBufferBytes || !s.dev.Caps().BufferDeviceAddress {
			t.Logf("%s: a buffer holds %d bytes here", x.name, s.dev.Caps().Limits.MaxBufferBytes)
			continue
		}
		for _, tt := range s.available() {
			if tt.Tier == attention.TierCPU || tt.DType == attention.F32 {
				continue
			}
			ran = true
			t.Run(fmt.Sprintf("%s/%v", x.name, tt), func(t *testing.T) {
				c := cases.Case{D: 64, Dv: 64, Shape: x.shape, Causal: attention.TopLeft, Layout: cases.Packed, LSE: true, Access: attention.AccessAddresses}
				d := newDeviceProblem(t, s.dev, c, tt)
				args := d.args
				far := map[int]*vk.Buffer{}
				for _, i := range []int{cases.TensorK, cases.TensorO} {
					far[i] = testdevice.Buffer(t, s.dev, bytes)
				}
				args.K = attention.Tensor{Buffer: far[cases.TensorK], Strides: x.stride(x.far)}
				args.O = attention.Tensor{Buffer: far[cases.TensorO], Strides: x.stride(x.far)}
				const part = 70 * 64 * 2 // bytes of a batch or a head
				for n := range int64(2) {
					require.NoError(t, d.stream.Upload(far[cases.TensorK], uint64(n*x.far*2), d.Image[cases.TensorK][2*cases.Guard+n*part:][:part]))
				}
				require.NoError(t, d.stream.Barrier())
				require.NoError(t, d.op.Forward(attention.OnStream(d.stream), args))
				require.NoError(t, d.stream.Barrier())
				after := append([][]byte(nil), d.Image...)
				after[cases.TensorO] = append([]byte(nil), d.Image[cases.TensorO]...)
				for n := range int64(2) {
					at := after[cases.TensorO][2*cases.Guard+n*part:][:part]
					require.NoError(t, d.stream.Download(t.Context(), at, far[cases.TensorO], uint64(n*x.far*2)))
				}
				after[cases.TensorLSE] = make([]byte, len(d.Image[cases.TensorLSE]))
				require.NoError(t, d.stream.Download(t.Context(), after[cases.TensorLSE], d.buffers[cases.TensorLSE], 0))
				var e cases.Truth
				require.NoError(t, e.Judge(d.Problem, after))
			})
		}
	}
	if !ran {
		t.Skip("no buffer is large enough here")
	}
}

// K, V and their gradients may be one memory in which keys are far apart, as tokens x sequences x heads are. A tile of keys
// then spans up to 2^33 elements. Gradients are those of packed tensors, or the call is refused.
func TestBackwardOfKeysOver4GiB(t *testing.T) {
	s := openDevice(t)
	if !full() {
		t.Skip("large buffers are for VKATTN_TEST_LEVEL=exhaustive")
	}
	const d, rows, keys = 64, 33, 70
	shape := attention.Shape{B: 1, Hq: 1, Sq: rows, Sk: keys}
	stream := testdevice.Stream(t, s.dev, "far keys")
	buffer := func(t *testing.T, elements int64, data []byte) *vk.Buffer {
		b := testdevice.Buffer(t, s.dev, uint64(2*elements))
		if data != nil {
			require.NoError(t, stream.Upload(b, 0, data))
		}
		return b
	}
	for _, far := range []int64{1 << 23, 1 << 26, 1<<27 + 64} { // elements between keys
		bytes := uint64(2 * (far*(keys-1) + 4*d))
		if bytes > s.dev.Caps().Limits.MaxBufferBytes || !s.dev.Caps().BufferDeviceAddress {
			t.Logf("keys %d elements apart: a buffer holds %d bytes here", far, s.dev.Caps().Limits.MaxBufferBytes)
			continue
		}
		for _, tt := range s.available() {
			if tt.Tier == attention.TierCPU || tt.DType == attention.F32 || !computesGradients(tt.Tier) {
				continue
			}
			t.Run(fmt.Sprintf("keys %d elements apart/%v", far, tt), func(t *testing.T) {
				op := testdevices.Op(t, attention.On(s.dev), attention.Config{DType: tt.DType, HeadDim: d, Tier: tt.Tier, Causal: attention.BottomRight, Tuning: attention.TuningOff})
				packed := func(rows int64, seed uint64) attention.Tensor {
					return attention.Tensor{Buffer: buffer(t, rows*d, inputs.New(rows*d, tt.DType, inputs.Normal, seed))}
				}
				a := attention.BackwardArgs{Args: attention.Args{Shape: shape, Q: packed(rows, 1), K: packed(keys, 2), V: packed(keys, 3), O: packed(rows, 4),
					LSE: attention.Tensor{Buffer: buffer(t, 2*rows, nil)}}, DO: packed(rows, 5), DQ: packed(rows, 6), DK: packed(keys, 7), DV: packed(keys, 8)}
				apart := a
				apart.DQ = packed(rows, 9)
				memory := buffer(t, int64(bytes)/2, nil)
				near := []*attention.Tensor{&a.K, &a.V, &a.DK, &a.DV}
				for i, x := range []*attention.Tensor{&apart.K, &apart.V, &apart.DK, &apart.DV} {
					*x = attention.Tensor{Buffer: memory, Offset: int64(i * d), Strides: attention.Strides{Batch: keys * far, Head: keys * far, Seq: far}}
				}
				for i := range 2 {
					image := inputs.New(keys*d, tt.DType, inputs.Normal, uint64(2+i))
					for j := range int64(keys) {
						require.NoError(t, stream.Upload(memory, uint64(2*(j*far+int64(i*d))), image[2*d*j:][:2*d]))
					}
				}
				require.NoError(t, stream.Barrier())
				require.NoError(t, op.Forward(attention.OnStream(stream), a.Args))
				require.NoError(t, stream.Barrier())
				require.NoError(t, op.Backward(attention.OnStream(stream), a))
				require.NoError(t, stream.Barrier())
				if err := op.Backward(attention.OnStream(stream), apart); err != nil {
					require.ErrorIs(t, err, attention.ErrUnsupported)
					require.NotEqual(t, attention.TierScalar, tt.Tier, "it computes the position of each key")
					return
				}
				require.NoError(t, stream.Barrier())
				read := func(b *vk.Buffer, at int64, n int) []byte {
					out := make([]byte, 2*n)
					require.NoError(t, stream.Download(t.Context(), out, b, uint64(2*at)))
					return out
				}
				require.Equal(t, read(a.DQ.Buffer, 0, rows*d), read(apart.DQ.Buffer, 0, rows*d), "DQ")
				for i := 2; i < 4; i++ {
					want := read(near[i].Buffer, 0, keys*d)
					for j := range keys {
						require.Equal(t, want[2*d*j:][:2*d], read(memory, int64(j)*far+int64(i*d), d), "%s of key %d", []string{"DK", "DV"}[i-2], j)
					}
				}
			})
		}
	}
}
