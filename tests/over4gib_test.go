package tests

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/attention/cases"
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
					b, err := s.dev.NewBuffer(bytes, vk.BufferOptions{})
					require.NoError(t, err)
					defer func() { require.NoError(t, b.Close()) }()
					far[i] = b
				}
				args.K = attention.Tensor{Buffer: far[cases.TensorK], Strides: x.stride(x.far)}
				args.O = attention.Tensor{Buffer: far[cases.TensorO], Strides: x.stride(x.far)}
				const part = 70 * 64 * 2 // bytes of a batch or a head
				for n := range int64(2) {
					require.NoError(t, d.stream.Upload(far[cases.TensorK], uint64(n*x.far*2), d.Image[cases.TensorK][2*cases.Guard+n*part:][:part]))
				}
				require.NoError(t, d.stream.Barrier())
				require.NoError(t, d.op.Forward(d.stream, args))
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
