package tensors

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"vkattn/internal/problem"
)

// rowsOf returns the bytes of each row of a tensor.
func rowsOf(l *Layout) (rows [][]int64) {
	for i := range l.Counts[0] {
		for j := range l.Counts[1] {
			for k := range l.Counts[2] {
				first := (l.Tensor.Offset + i*l.Steps[0] + j*l.Steps[1] + k*l.Steps[2]) * l.Size
				var row []int64
				for b := range l.Dim * l.Size {
					row = append(row, first+b)
				}
				rows = append(rows, row)
			}
		}
	}
	return rows
}

// sharesBytes walks over all bytes of two tensors.
func sharesBytes(a, b *Layout) bool {
	seen := map[int64]bool{}
	for _, row := range rowsOf(a) {
		for _, x := range row {
			seen[x] = true
		}
	}
	for _, row := range rowsOf(b) {
		for _, x := range row {
			if seen[x] {
				return true
			}
		}
	}
	return false
}

// rowsShareBytes walks over all bytes of a tensor.
func rowsShareBytes(l *Layout) bool {
	seen := map[int64]bool{}
	for _, row := range rowsOf(l) {
		for _, x := range row {
			if seen[x] {
				return true
			}
			seen[x] = true
		}
	}
	return false
}

// drawLayout draws a small tensor. Strides related to a common period make interleaved
// tensors likely.
func drawLayout(t *rapid.T, memory []byte, period int64) (l Layout) {
	l.Size, l.Dim = rapid.SampledFrom([]int64{1, 2, 4}).Draw(t, "size"), rapid.Int64Range(1, 5).Draw(t, "dim")
	l.Tensor = problem.Tensor{Host: memory, Offset: rapid.Int64Range(0, 60).Draw(t, "offset")}
	for d := range l.Counts {
		l.Counts[d] = rapid.Int64Range(1, 5).Draw(t, "count")
		l.Steps[d] = rapid.OneOf(rapid.SampledFrom([]int64{period, 2 * period, 5 * period, period / 2, l.Dim, 2 * l.Dim, 1, 0}),
			rapid.Int64Range(0, 50)).Draw(t, "step")
	}
	return l
}

// The answers agree with a walk over all bytes.
func TestOverlapsIsExact(t *testing.T) {
	memory := make([]byte, 1<<14)
	rapid.Check(t, func(t *rapid.T) {
		period := rapid.Int64Range(1, 40).Draw(t, "period")
		a, b := drawLayout(t, memory, period), drawLayout(t, memory, period)
		want := sharesBytes(&a, &b)
		require.Equal(t, want, a.Overlaps(&b))
		require.Equal(t, want, b.Overlaps(&a))
	})
}

func TestRowsDisjointIsExact(t *testing.T) {
	memory := make([]byte, 1<<14)
	rapid.Check(t, func(t *rapid.T) {
		l := drawLayout(t, memory, rapid.Int64Range(1, 40).Draw(t, "period"))
		require.Equal(t, !rowsShareBytes(&l), l.RowsDisjoint())
	})
}

// Fused tensors and caches as other libraries lay them out: each case is tensors in one
// memory that share nothing. One element more in any row makes two of them overlap.
func TestOverlapsOfFusedTensors(t *testing.T) {
	const b, s, hq, hkv, d, pages, size = 3, 37, 8, 2, 64, 5, 16
	type tensor struct {
		offset        int64
		counts, steps [3]int64
	}
	wide, grouped := int64(3*hq*d), int64((hq+2*hkv)*d)
	of := func(offset, heads, batch, head, seq int64) tensor {
		return tensor{offset, [3]int64{b, heads, s}, [3]int64{batch, head, seq}}
	}
	for name, list := range map[string][]tensor{
		"[B, S, 3, H, D]": {of(0, hq, s*wide, d, wide), of(hq*d, hq, s*wide, d, wide), of(2*hq*d, hq, s*wide, d, wide)},
		"[B, S, H, 3, D]": {of(0, hq, s*wide, 3*d, wide), of(d, hq, s*wide, 3*d, wide), of(2*d, hq, s*wide, 3*d, wide)},
		"[S, B, 3, H, D]": {of(0, hq, wide, d, b*wide), of(hq*d, hq, wide, d, b*wide), of(2*hq*d, hq, wide, d, b*wide)},
		"[B, 3, H, S, D]": {of(0, hq, s*wide, s*d, d), of(hq*s*d, hq, s*wide, s*d, d), of(2*hq*s*d, hq, s*wide, s*d, d)},
		"[B, S, Hq + 2 Hkv, D]": {of(0, hq, s*grouped, d, grouped), of(hq*d, hkv, s*grouped, d, grouped),
			of((hq+hkv)*d, hkv, s*grouped, d, grouped)},
		"pages [n, 2, Hkv, page, D]": {
			{0, [3]int64{pages, hkv, size}, [3]int64{2 * hkv * size * d, size * d, d}},
			{hkv * size * d, [3]int64{pages, hkv, size}, [3]int64{2 * hkv * size * d, size * d, d}}},
	} {
		t.Run(name, func(t *testing.T) {
			memory := make([]byte, 1<<22)
			layouts := func() (l []Layout) {
				for _, x := range list {
					l = append(l, Layout{Size: 2, Dim: d, Counts: x.counts, Steps: x.steps, Tensor: problem.Tensor{Host: memory, Offset: x.offset}})
				}
				return l
			}
			l := layouts()
			for i := range l {
				require.True(t, l[i].RowsDisjoint())
				for j := range i {
					require.False(t, l[i].Overlaps(&l[j]), "%d and %d", i, j)
				}
			}
			for i := range l {
				l := layouts()
				l[i].Dim++
				overlapping := !l[i].RowsDisjoint()
				for j := range l {
					overlapping = overlapping || j != i && l[i].Overlaps(&l[j])
				}
				require.True(t, overlapping, "a row of tensor %d is longer", i)
			}
		})
	}
}

// Strides without any order do not take long: the search ends after some nodes, and says that there may be
// an overlap.
func TestOverlapsIsCheap(t *testing.T) {
	steps := [3]int64{1_000_003, 998_244_353 / 7, 999_983 / 3}
	var d distances
	for i, step := range steps {
		d.add(step, 1-1<<20, 0)
		d.add(step+2*int64(i+1), 0, 1<<20-1)
	}
	d.low, d.high = -1, -1
	require.True(t, d.reachable())
	require.Equal(t, maxDistanceNodes+1, d.nodes, "a node more and it is over")
	l := Layout{Size: 1, Dim: 1, Counts: [3]int64{1 << 20, 1 << 20, 1 << 20}, Steps: steps, Tensor: problem.Tensor{Host: make([]byte, 2)}}
	other := l
	other.Tensor.Offset = 1
	l.Steps[0] = math.MaxInt64 / (1 << 21)
	require.True(t, l.Overlaps(&other), "too far for sums in 64 bits")
	require.False(t, l.RowsDisjoint())
}

// A call checks up to a few dozen pairs. None of them allocates.
func TestOverlapsAllocatesNothing(t *testing.T) {
	memory := make([]byte, 1<<20)
	at := func(offset int64) Layout {
		return Layout{Size: 2, Dim: 64, Counts: [3]int64{2, 8, 32}, Steps: [3]int64{32 * 1536, 64, 1536}, Tensor: problem.Tensor{Host: memory, Offset: offset}}
	}
	a, b := at(0), at(512)
	require.Zero(t, testing.AllocsPerRun(10, func() {
		if a.Overlaps(&b) || !a.RowsDisjoint() {
			panic("overlap")
		}
	}))
}

func BenchmarkOverlapsFused(b *testing.B) {
	memory := make([]byte, 1<<20)
	x := Layout{Size: 2, Dim: 64, Counts: [3]int64{2, 8, 32}, Steps: [3]int64{32 * 1536, 64, 1536}, Tensor: problem.Tensor{Host: memory}}
	y := x
	y.Tensor.Offset = 512
	for b.Loop() {
		x.Overlaps(&y)
	}
}

func BenchmarkRowsDisjoint(b *testing.B) {
	x := Layout{Size: 2, Dim: 64, Counts: [3]int64{2, 8, 32}, Steps: [3]int64{32 * 1536, 64, 1536}}
	for b.Loop() {
		x.RowsDisjoint()
	}
}
