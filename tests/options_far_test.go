package tests

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/cases"
	"vkattn/internal/testdevice"
)

// The stride between pages may be gigabytes: no offset in a pool, in bytes or in elements,
// may be limited to 32 bits.
func TestOptionsPagesOver4GiB(t *testing.T) {
	s := openDevice(t)
	if !full() {
		t.Skip("large buffers are for VKATTN_TEST_LEVEL=exhaustive")
	}
	if !s.dev.Caps().BufferDeviceAddress {
		t.Skip("the device has no buffer device addresses")
	}
	c := cases.Case{
		Name: "far", D: 64, Dv: 64, Shape: attention.Shape{Hq: 4, Hkv: 2}, LSE: true, Layout: cases.Packed, PageSize: 16, Causal: attention.BottomRight,
		Seqs: []cases.Seq{{ID: 0, Rows: 5, Keys: 60}, {ID: 1, Rows: 5, Keys: 33}},
	}
	const page = 2 * 16 * 64 // elements
	for _, far := range []int64{1<<29 + 64, 1<<30 - 64} {
		for _, tt := range s.available() {
			if tt.DType != attention.F16 || tt.Tier == attention.TierCPU {
				continue
			}
			t.Run(fmt.Sprintf("page stride %d elements/%v", far, tt), func(t *testing.T) {
				p, err := cases.NewProblem(c, tt.DType)
				require.NoError(t, err)
				pages := p.HostArgs(p.Image).Pages.Count
				bytes := 2 * uint64(int64(pages-1)*far+page)
				if bytes > s.dev.Caps().Limits.MaxBufferBytes {
					t.Skipf("a buffer holds %d bytes here", s.dev.Caps().Limits.MaxBufferBytes)
				}
				stream := testdevice.Stream(t, s.dev, "far")
				buffers := testdevice.Upload(t, stream, p.Image...)
				args, host := p.DeviceArgs(buffers), p.HostArgs(p.Image)
				for _, x := range []struct{ near, far *attention.Tensor }{{&host.K, &args.K}, {&host.V, &args.V}} {
					*x.far = attention.Tensor{Buffer: testdevice.Buffer(t, s.dev, bytes), Strides: attention.Strides{Batch: far, Head: 16 * 64, Seq: 64}}
					for n := range int64(pages) {
						require.NoError(t, stream.Upload(x.far.Buffer, uint64(2*n*far), x.near.Host[2*(x.near.Offset+n*page):][:2*page]))
					}
				}
				require.NoError(t, stream.Barrier())
				op, err := attention.New(attention.On(s.dev), attention.Config(c.Config(tt)))
				require.NoError(t, err)
				require.NoError(t, op.Forward(attention.OnStream(stream), args))
				require.NoError(t, stream.Barrier())
				after := testdevice.Download(t, stream, buffers...)
				require.NoError(t, op.Close())
				var x cases.Truth
				require.NoError(t, x.Judge(p, after))
			})
		}
	}
}
