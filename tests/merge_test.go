package tests

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"vkattn/attention"
	"vkattn/vk"
)

// onMergers runs a test on the CPU tier, or on the device there is.
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

// mergeAccesses are the ways to reach tensors that a device has.
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
	layouts := []layoutKind{tight, bshd, padded, odd, even}
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

// States of every kind merge to what float64 says, whatever their O holds where
// they attended to nothing, and nothing but the result is written.
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

// Every kernel of a merge compiles on devices that execute nothing.
func TestCompileMerge(t *testing.T) {
	s := open(t)
	if !s.compileOnly {
		t.Skip("this device executes; see TestMerge")
	}
	for _, access := range mergeAccesses(s.dev) {
		for _, dtype := range attention.DTypes() {
			for _, dim := range []int{1, 2, 4, 8, 128, 512} {
				m, err := attention.NewMerge(s.dev, attention.MergeConfig{DType: dtype, HeadDim: dim, Access: access})
				require.NoError(t, err)
				require.NoError(t, m.Prepare())
				require.NoError(t, m.Close())
			}
		}
	}
}

func drawMerge(t *rapid.T, dev *vk.Device) mergeCase {
	c := mergeCase{
		dtype:  rapid.SampledFrom(attention.DTypes()).Draw(t, "dtype"),
		dim:    rapid.SampledFrom([]int{7, 64}).Draw(t, "dim"),
		layout: rapid.SampledFrom([]layoutKind{tight, odd, bshd}).Draw(t, "layout"),
		access: rapid.SampledFrom(mergeAccesses(dev)).Draw(t, "access"),
		spread: rapid.SampledFrom([]float64{0, 1, 30, 1e5}).Draw(t, "spread"),
		seed:   rapid.Uint64().Draw(t, "seed"),
		counts: [2]int{1, 1},
	}
	c.shape = attention.Shape{B: rapid.IntRange(1, 2).Draw(t, "b"), Hq: rapid.IntRange(1, 3).Draw(t, "hq"), Sq: rapid.IntRange(1, 40).Draw(t, "sq")}
	return c
}

func runMerge(t *rapid.T, p *mergeProblem, dev *vk.Device) (o, lse []float32) {
	after, err := p.run(dev)
	require.NoError(t, err)
	require.NoError(t, p.trespass(after))
	require.NoError(t, p.judge(after))
	return p.merged(after)
}

// with makes a problem of the same kind from these states.
func (p *mergeProblem) with(counts [2]int, o, lse [][]float32) *mergeProblem {
	c := p.mergeCase
	c.counts = counts
	q := newMergeProblem(c)
	for n := range o {
		q.setState(n, o[n], lse[n])
	}
	return q
}

// Which of two states comes first changes no bit, in place or not.
func TestPropertyMergeOrder(t *testing.T) {
	onMergers(t, func(t *testing.T, dev *vk.Device) {
		rapid.Check(t, func(t *rapid.T) {
			c := drawMerge(t, dev)
			p := newMergeProblem(c)
			o, lse := runMerge(t, p, dev)
			p.inPlace = rapid.IntRange(0, 2).Draw(t, "in place")
			swapped := p.with([2]int{1, 1}, [][]float32{p.o[1], p.o[0]}, [][]float32{p.lse[1], p.lse[0]})
			o2, lse2 := runMerge(t, swapped, dev)
			sameBits(t, o, o2, "O")
			sameBits(t, lse, lse2, "LSE")
		})
	})
}

// A state that attended to nothing changes no number of another, and neither
// does one with next to no weight.
func TestPropertyMergeIdentity(t *testing.T) {
	onMergers(t, func(t *testing.T, dev *vk.Device) {
		rapid.Check(t, func(t *rapid.T) {
			c := drawMerge(t, dev)
			p := newMergeProblem(c)
			nothing := [2][]float32{make([]float32, len(p.o[0])), make([]float32, len(p.lse[0]))}
			for i := range nothing[0] {
				nothing[0][i] = nan
			}
			for i := range nothing[1] {
				nothing[1][i] = -inf
				if x := p.lse[0][i]; i%2 == 1 && x != -inf {
					nothing[1][i] = x - 81 - float32(math.Abs(float64(x)))/1000
				}
			}
			order := [2]int{0, 1}
			if rapid.Bool().Draw(t, "nothing first") {
				order = [2]int{1, 0}
			}
			var os, lses [2][]float32
			os[order[0]], lses[order[0]] = p.o[0], p.lse[0]
			os[order[1]], lses[order[1]] = nothing[0], nothing[1]
			q := p.with([2]int{1, 1}, os[:], lses[:])
			after, err := q.run(dev)
			require.NoError(t, err)
			o, lse := q.merged(after)
			for r := range lse {
				require.Equal(t, p.lse[0][r], lse[r])
				for d := r * c.dim; d < (r+1)*c.dim; d++ {
					want := p.o[0][d]
					if lse[r] == -inf {
						want = 0
					}
					require.Equal(t, want, o[d])
				}
			}
		})
	})
}

// Merging two and then a third is merging all three, but for one more rounding.
func TestPropertyMergeAssociates(t *testing.T) {
	onMergers(t, func(t *testing.T, dev *vk.Device) {
		rapid.Check(t, func(t *rapid.T) {
			c := drawMerge(t, dev)
			c.counts = [2]int{rapid.IntRange(0, 2).Draw(t, "first") + 1, 0}
			c.counts[1] = 3 - c.counts[0]
			c.spread = min(c.spread, 30)
			p := newMergeProblem(c)
			o, lse := runMerge(t, p, dev)
			oab, lab := runMerge(t, p.with([2]int{1, 1}, p.o[:2], p.lse[:2]), dev)
			oabc, labc := runMerge(t, p.with([2]int{1, 1}, [][]float32{oab, p.o[2]}, [][]float32{lab, p.lse[2]}), dev)
			unit := map[attention.DType]float64{attention.F16: 0x1p-11, attention.BF16: 0x1p-8, attention.F32: 0x1p-24}[c.dtype]
			for r := range lse {
				require.NoError(t, near(float64(labc[r]), float64(lse[r]), 4e-7*(1+math.Abs(float64(lse[r])))))
				for d := r * c.dim; d < (r+1)*c.dim; d++ {
					most := 0.0
					for n := range 3 {
						if p.lse[n][r] != -inf {
							most = max(most, math.Abs(float64(p.o[n][d])))
						}
					}
					require.NoError(t, near(float64(oabc[d]), float64(o[d]), (3*unit+1e-5)*most+0x1p-24))
				}
			}
		})
	})
}

// An LSE that is not a number, or is +Inf, spoils its row and no other.
func TestMergeOfInvalidRows(t *testing.T) {
	onMergers(t, func(t *testing.T, dev *vk.Device) {
		for _, access := range mergeAccesses(dev) {
			for _, bad := range []float32{nan, inf, float32(math.Copysign(float64(nan), -1))} {
				p := newMergeProblem(mergeCase{dim: 20, shape: attention.Shape{B: 1, Hq: 2, Sq: 9}, counts: [2]int{1, 2}, layout: even,
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
		p := newMergeProblem(mergeCase{dtype: attention.F32, dim: 8, shape: attention.Shape{B: 1, Hq: 1, Sq: 5}, counts: [2]int{1, 3}, layout: tight, seed: 2})
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

// Keys computed in 2 or in more parts, some of them a single key, and merged give
// what they give together.
func TestMergeOfSplitKeys(t *testing.T) {
	onTiers(t, func(t *rapid.T, e *engine, tt tierType) {
		c := drawCase(t)
		c.causal = attention.CausalNone
		parts := rapid.SampledFrom([]int{2, 2, 3, 8}).Draw(t, "parts")
		c.shape.Sk = max(c.shape.Sk, parts)
		whole := makeProblem(t, c, tt)
		m := mergeCase{dtype: tt.dtype, dim: c.dv, shape: c.shape, seed: 1, layout: tight, access: c.access, counts: [2]int{parts, 0}}
		if e.dev == nil {
			m.access = attention.AccessAuto
		}
		if parts == 2 {
			m.counts = [2]int{1, 1}
		}
		p := newMergeProblem(m)
		rng := rand.New(rand.NewPCG(c.seed, 2))
		cuts := []int{0}
		for n := range parts {
			next := cuts[n] + 1 + rng.IntN(c.shape.Sk-cuts[n]-(parts-1-n))
			if n == parts-1 {
				next = c.shape.Sk
			}
			o, lse := e.compute(t, keysOf(t, whole, cuts[n], next), tt)
			p.setState(n, o, lse)
			cuts = append(cuts, next)
		}
		after, err := p.run(e.dev)
		require.NoError(t, err)
		o, lse := p.merged(after)
		judgeMerged(t, whole, o, lse)
	})
}

// More batches than a dispatch has, more rows than the grid is wide.
func TestMergeOfManyRows(t *testing.T) {
	onMergers(t, func(t *testing.T, dev *vk.Device) {
		for _, access := range mergeAccesses(dev) {
			shapes := []attention.Shape{{B: 70000, Hq: 1, Sq: 1}}
			if full() {
				shapes = append(shapes, attention.Shape{B: 1, Hq: 2, Sq: 70000 * 128 / 2})
			}
			for _, s := range shapes {
				c := mergeCase{dim: 4, shape: s, counts: [2]int{1, 1}, layout: tight, access: access, spread: 1, seed: 9}
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

// States and results may lie over 4 GiB, and over 2^32 elements, into a buffer.
func TestMergeBeyond4GiB(t *testing.T) {
	s := openDevice(t)
	const dim, rows = 24, 10
	for _, far := range []int64{5 << 29, 1<<32 + 1<<20} {
		bytes := uint64(2 * (far + rows*dim))
		if bytes > s.dev.Caps().Limits.MaxBufferBytes || !s.dev.Caps().BufferDeviceAddress {
			t.Skipf("a buffer holds %d bytes here", s.dev.Caps().Limits.MaxBufferBytes)
		}
		p := newMergeProblem(mergeCase{dim: dim, shape: attention.Shape{B: 2, Hq: 1, Sq: rows}, counts: [2]int{1, 1}, layout: tight, spread: 2, seed: 3})
		m, err := attention.NewMerge(s.dev, p.config())
		require.NoError(t, err)
		defer m.Close()
		stream, err := s.dev.NewStream("far")
		require.NoError(t, err)
		defer stream.Close()
		// One buffer holds both states, and the result in place of the second.
		b, err := s.dev.NewBuffer(bytes+2*rows*dim, vk.BufferOptions{})
		require.NoError(t, err)
		lse, err := s.dev.NewBuffer(uint64(3*4*p.rows()), vk.BufferOptions{})
		require.NoError(t, err)
		strides := attention.Strides{Batch: far, Head: rows * dim, Seq: dim}
		place := func(n int64) attention.Tensor {
			return attention.Tensor{Buffer: b, Offset: n * rows * dim, Strides: strides}
		}
		for n := range 2 {
			for batch := range 2 {
				part := p.image[n][2*batch*rows*dim:][:2*rows*dim]
				require.NoError(t, stream.Upload(b, 2*uint64(int64(batch)*far+int64(n)*rows*dim), part))
			}
			require.NoError(t, stream.Upload(lse, uint64(4*n*p.rows()), p.image[2+n]))
		}
		require.NoError(t, stream.Barrier())
		at := func(n int) attention.Tensor {
			return attention.Tensor{Buffer: lse, Offset: int64(n * p.rows())}
		}
		require.NoError(t, m.Forward(stream, attention.MergeArgs{Shape: p.shape,
			First: attention.States{O: place(0), LSE: at(0)}, Second: attention.States{O: place(1), LSE: at(1)},
			O: place(1), LSE: at(2)}))
		require.NoError(t, stream.Barrier())
		after := p.image
		after[mergeOut], after[mergeOutLSE] = make([]byte, 4*rows*dim), make([]byte, 4*p.rows())
		for batch := range 2 {
			require.NoError(t, stream.Download(context.Background(), after[mergeOut][2*batch*rows*dim:][:2*rows*dim],
				b, 2*uint64(int64(batch)*far+rows*dim)))
		}
		require.NoError(t, stream.Download(context.Background(), after[mergeOutLSE], lse, uint64(8*p.rows())))
		require.NoError(t, p.judge(after))
		require.NoError(t, b.Close())
		require.NoError(t, lse.Close())
	}
}

// Deep cascades fold into one state in place: the roundings add up, half a unit
// a level.
func TestMergeFoldsInPlace(t *testing.T) {
	onMergers(t, func(t *testing.T, dev *vk.Device) {
		const levels, dim = 12, 32
		c := mergeCase{dim: dim, shape: attention.Shape{B: 1, Hq: 2, Sq: 5}, counts: [2]int{1, levels - 1}, layout: tight, spread: 1, seed: 8}
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

// The CPU tier merges what a device's states are downloaded to: the two agree.
func TestMergeTiersAgree(t *testing.T) {
	s := openDevice(t)
	p := newMergeProblem(mergeCase{dim: 48, shape: attention.Shape{B: 2, Hq: 3, Sq: 20}, counts: [2]int{4, 1}, layout: padded, spread: 5, seed: 4})
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
