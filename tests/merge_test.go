package tests

import (
	"context"
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/attention/merge"
	"vkattn/internal/cases"
	"vkattn/internal/testdevice"
	"vkattn/vk"
)

// onMergers runs a test on the CPU tier, or on the device if there is one.
func onMergers(t *testing.T, test func(t *testing.T, dev *vk.Device)) {
	s := open(t)
	if s.compileOnly {
		t.Skip("nothing executes on a null device")
	}
	if s.name == "" || s.name == "none" {
		t.Run("cpu", func(t *testing.T) { test(t, nil) })
	}
	if s.dev != nil {
		t.Run("device", func(t *testing.T) { test(t, s.dev) })
	}
}

// mergeAccesses returns the kinds of access that a device supports.
func mergeAccesses(dev *vk.Device) []attention.Access {
	switch {
	case dev == nil:
		return []attention.Access{attention.AccessAuto}
	case !dev.Caps().BufferDeviceAddress:
		return []attention.Access{attention.AccessDescriptors}
	}
	return []attention.Access{attention.AccessAddresses, attention.AccessDescriptors}
}

func mergeCases() (all []mergeCase) {
	layouts := []cases.LayoutKind{cases.Tight, cases.BSHD, cases.Padded, cases.Odd, cases.Even}
	counts := [][2]int{{1, 1}, {3, 0}, {2, 3}, {1, 0}, {1, 7}}
	n := uint64(0)
	for _, dtype := range attention.DTypes() {
		for i, dim := range []int{1, 3, 8, 13, 64, 100, 128, 257, 512} {
			for j := range 2 {
				n++
				c := mergeCase{dtype: dtype, dim: dim, layout: layouts[(i+3*j+int(dtype))%5], counts: counts[n%5], seed: n,
					spread: []float64{1, 20, 1e4}[n%3], noLSE: n%7 == 0, shape: attention.Shape{B: 1 + int(n%3), Hq: 1 + int(n%4), Sq: 1 + int(n*7%30)}}
				if n%3 == 1 {
					c.inPlace = 1 + int(n/3)%c.states()
				}
				all = append(all, c)
			}
		}
	}
	return all
}

// States of every kind merge to the float64 result, whatever the O of rows without keys
// holds, and only the result is written.
func TestMerge(t *testing.T) {
	onMergers(t, func(t *testing.T, dev *vk.Device) {
		for _, access := range mergeAccesses(dev) {
			for _, c := range mergeCases() {
				c.access = access
				t.Run(c.String(), func(t *testing.T) {
					p := newMergeProblem(c)
					after, err := p.run(dev)
					require.NoError(t, err)
					require.NoError(t, p.trespass(after))
					require.NoError(t, p.judge(after))
					again, err := p.run(dev)
					require.NoError(t, err)
					require.Equal(t, after, again, "the same bits every run")
				})
			}
		}
	})
}

// All merge kernels compile on devices that execute nothing.
func TestCompileMerge(t *testing.T) {
	s := open(t)
	if !s.compileOnly {
		t.Skip("this device executes; see TestMerge")
	}
	for _, access := range mergeAccesses(s.dev) {
		for _, dtype := range attention.DTypes() {
			for _, dim := range []int{1, 2, 4, 8, 128, 512} {
				m, err := merge.NewMerge(attention.On(s.dev), merge.MergeConfig{DType: dtype, HeadDim: dim, Access: access})
				require.NoError(t, err)
				require.NoError(t, m.Prepare())
				require.NoError(t, m.Close())
			}
		}
	}
}

// An LSE of NaN or +Inf spoils its row and no other.
func TestMergeOfInvalidRows(t *testing.T) {
	onMergers(t, func(t *testing.T, dev *vk.Device) {
		for _, access := range mergeAccesses(dev) {
			for _, bad := range []float32{nan, inf, float32(math.Copysign(float64(nan), -1))} {
				p := newMergeProblem(mergeCase{dim: 20, shape: attention.Shape{B: 1, Hq: 2, Sq: 9}, counts: [2]int{1, 2}, layout: cases.Even,
					access: access, spread: 3, seed: 5})
				for n := range 3 {
					lse := append([]float32(nil), p.lse[n]...)
					lse[4*n+1] = bad
					p.setState(n, p.o[n], lse)
				}
				after, err := p.run(dev)
				require.NoError(t, err)
				require.NoError(t, p.judge(after))
				o, lse := p.merged(after)
				for r := range lse {
					want := r == 1 || r == 5 || r == 9
					require.Equal(t, want, math.IsNaN(float64(lse[r])), "LSE of row %d", r)
					for d := range 20 {
						require.Equal(t, want, math.IsNaN(float64(o[r*20+d])), "O of row %d", r)
					}
				}
			}
		}
	})
}

// Neither the largest O nor the largest and smallest LSE overflow.
func TestMergeOfExtremes(t *testing.T) {
	onMergers(t, func(t *testing.T, dev *vk.Device) {
		p := newMergeProblem(mergeCase{dtype: attention.F32, dim: 8, shape: attention.Shape{B: 1, Hq: 1, Sq: 5}, counts: [2]int{1, 3}, layout: cases.Tight, seed: 2})
		lse := [5][4]float32{
			{0, 0, 0, 0},
			{3e38, 3e38, 3e38, 3e38},
			{-3e38, -3e38, -3e38, -3e38},
			{3e38, -3e38, -inf, 0},
			{-3e38, -inf, -inf, -inf},
		}
		for n := range 4 {
			o, column := make([]float32, 5*8), make([]float32, 5)
			for i := range o {
				o[i] = 3e38
			}
			for r := range lse {
				column[r] = lse[r][n]
			}
			p.setState(n, o, column)
		}
		after, err := p.run(dev)
		require.NoError(t, err)
		require.NoError(t, p.judge(after))
	})
}

// A merge may have more batches than a dispatch, and more rows than the grid is wide.
func TestMergeOfManyRows(t *testing.T) {
	onMergers(t, func(t *testing.T, dev *vk.Device) {
		for _, access := range mergeAccesses(dev) {
			shapes := []attention.Shape{{B: 70000, Hq: 1, Sq: 1}}
			if full() {
				shapes = append(shapes, attention.Shape{B: 1, Hq: 2, Sq: 70000 * 128 / 2})
			}
			for _, s := range shapes {
				c := mergeCase{dim: 4, shape: s, counts: [2]int{1, 1}, layout: cases.Tight, access: access, spread: 1, seed: 9}
				t.Run(c.String(), func(t *testing.T) {
					p := newMergeProblem(c)
					after, err := p.run(dev)
					require.NoError(t, err)
					require.NoError(t, p.judge(after))
				})
			}
		}
	})
}

// States and results may start over 4 GiB, and over 2^32 elements, into a buffer.
func TestMergeBeyond4GiB(t *testing.T) {
	s := openDevice(t)
	const dim, rows = 24, 10
	for _, far := range []int64{5 << 29, 1<<32 + 1<<20} {
		bytes := uint64(2 * (far + rows*dim))
		if bytes > s.dev.Caps().Limits.MaxBufferBytes || !s.dev.Caps().BufferDeviceAddress {
			t.Skipf("a buffer holds %d bytes here", s.dev.Caps().Limits.MaxBufferBytes)
		}
		p := newMergeProblem(mergeCase{dim: dim, shape: attention.Shape{B: 2, Hq: 1, Sq: rows}, counts: [2]int{1, 1}, layout: cases.Tight, spread: 2, seed: 3})
		m, err := merge.NewMerge(attention.On(s.dev), p.config())
		require.NoError(t, err)
		defer m.Close()
		stream := testdevice.Stream(t, s.dev, "far")
		// The result overwrites the second state.
		var b [2]*vk.Buffer
		for n := range b {
			b[n], err = s.dev.NewBuffer(bytes, vk.BufferOptions{})
			require.NoError(t, err)
		}
		lse, err := s.dev.NewBuffer(uint64(3*4*p.rows()), vk.BufferOptions{})
		require.NoError(t, err)
		strides := attention.Strides{Batch: far, Head: rows * dim, Seq: dim}
		place := func(n int) attention.Tensor { return attention.Tensor{Buffer: b[n], Strides: strides} }
		for n := range 2 {
			for batch := range 2 {
				part := p.image[n][2*batch*rows*dim:][:2*rows*dim]
				require.NoError(t, stream.Upload(b[n], 2*uint64(int64(batch)*far), part))
			}
			require.NoError(t, stream.Upload(lse, uint64(4*n*p.rows()), p.image[2+n]))
		}
		require.NoError(t, stream.Barrier())
		at := func(n int) attention.Tensor {
			return attention.Tensor{Buffer: lse, Offset: int64(n * p.rows())}
		}
		require.NoError(t, m.Forward(attention.OnStream(stream), merge.MergeArgs{Shape: p.shape,
			First: merge.States{O: place(0), LSE: at(0)}, Second: merge.States{O: place(1), LSE: at(1)},
			O: place(1), LSE: at(2)}))
		require.NoError(t, stream.Barrier())
		after := p.image
		after[mergeOut], after[mergeOutLSE] = make([]byte, 4*rows*dim), make([]byte, 4*p.rows())
		for batch := range 2 {
			require.NoError(t, stream.Download(context.Background(), after[mergeOut][2*batch*rows*dim:][:2*rows*dim],
				b[1], 2*uint64(int64(batch)*far)))
		}
		require.NoError(t, stream.Download(context.Background(), after[mergeOutLSE], lse, uint64(8*p.rows())))
		require.NoError(t, p.judge(after))
		require.NoError(t, b[0].Close())
		require.NoError(t, b[1].Close())
		require.NoError(t, lse.Close())
	}
}

// A deep cascade folds into one state in place. Its roundings add up to half a unit per
// level.
func TestMergeFoldsInPlace(t *testing.T) {
	onMergers(t, func(t *testing.T, dev *vk.Device) {
		const levels, dim = 12, 32
		c := mergeCase{dim: dim, shape: attention.Shape{B: 1, Hq: 2, Sq: 5}, counts: [2]int{1, levels - 1}, layout: cases.Tight, spread: 1, seed: 8}
		all := newMergeProblem(c)
		o, lse := all.o[0], all.lse[0]
		c.counts, c.inPlace = [2]int{1, 1}, 1
		for n := 1; n < levels; n++ {
			p := newMergeProblem(c)
			p.setState(0, o, lse)
			p.setState(1, all.o[n], all.lse[n])
			after, err := p.run(dev)
			require.NoError(t, err)
			o, lse = p.merged(after)
		}
		want, wantLSE := all.exact()
		for r := range wantLSE {
			require.NoError(t, near(float64(lse[r]), wantLSE[r], 1e-5), "LSE of row %d", r)
			for d := r * dim; d < (r+1)*dim; d++ {
				require.NoError(t, near(float64(o[d]), want[d], levels*0x1p-11*4), fmt.Sprint("O of row ", r))
			}
		}
	})
}

// The CPU tier, given states downloaded from a device, agrees with the device's merge.
func TestMergeTiersAgree(t *testing.T) {
	s := openDevice(t)
	p := newMergeProblem(mergeCase{dim: 48, shape: attention.Shape{B: 2, Hq: 3, Sq: 20}, counts: [2]int{4, 1}, layout: cases.Padded, spread: 5, seed: 4})
	onDevice, err := p.run(s.dev)
	require.NoError(t, err)
	onCPU, err := p.run(nil)
	require.NoError(t, err)
	a, la := p.merged(onDevice)
	b, lb := p.merged(onCPU)
	for i := range a {
		require.InDelta(t, b[i], a[i], 0x1p-10*(0x1p-14+math.Abs(float64(b[i]))))
	}
	for i := range la {
		require.NoError(t, near(float64(la[i]), float64(lb[i]), 1e-6*(1+math.Abs(float64(lb[i])))))
	}
}
