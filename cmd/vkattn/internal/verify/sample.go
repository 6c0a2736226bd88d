package verify

import (
	"maps"
	"math"
	"math/rand/v2"
	"slices"

	"vkattn/attention"
)

// rowsPerHead is the number of rows sampled of a head: enough for several heads to have
// rows of every power of two of keys.
const rowsPerHead = 24

// sample picks all rows of a problem if there are at most n, and otherwise about n. They
// are rows of several heads, the first and the last head among them: in each the first
// and the last row, rows at the edge of a tile, and random rows. Under a causal mask half
// of the random rows are spread evenly over the logarithm of the number of keys that they
// attend to: errors depend on it, and most rows attend to many.
func sample(s attention.Shape, c attention.Causal, n int, seed uint64) []attention.Rows {
	if s.Rows() <= int64(n) {
		return attention.AllRows(s)
	}
	r := rand.New(rand.NewPCG(seed, 0x7e))
	all := s.B * s.Hq
	count := min(all, max(1, n/min(rowsPerHead, s.Sq)))
	heads := map[int]bool{0: true, all - 1: true}
	for len(heads) < count {
		heads[r.IntN(all)] = true
	}
	each := min(s.Sq, max(1, n/len(heads)))
	var out []attention.Rows
	for _, head := range slices.Sorted(maps.Keys(heads)) {
		out = append(out, attention.Rows{B: head / s.Hq, H: head % s.Hq, Rows: sampleHead(s, c, each, r)})
	}
	return out
}

func sampleHead(s attention.Shape, c attention.Causal, n int, r *rand.Rand) []int {
	tile := r.IntN((s.Sq+63)/64) * 64
	rows := map[int]bool{}
	for _, row := range []int{0, s.Sq - 1, tile, tile - 1, tile + 63} {
		if row >= 0 && row < s.Sq && len(rows) < n {
			rows[row] = true
		}
	}
	first := 0 // row that attends to a key
	for lo, hi := 0, s.Sq; lo < hi; {
		mid := (lo + hi) / 2
		if c.Visible(mid, s.Sq, s.Sk) > 0 {
			hi, first = mid, mid
		} else {
			lo = mid + 1
		}
	}
	for tries := 0; len(rows) < n && tries < 100*n; tries++ {
		row := r.IntN(s.Sq)
		if c != attention.CausalNone && tries%2 == 0 {
			row = first + int(math.Exp(r.Float64()*math.Log(float64(s.Sq-first+1)))) - 1
		}
		if row < s.Sq {
			rows[row] = true
		}
	}
	return slices.Sorted(maps.Keys(rows))
}

// affordable is the number of rows of a problem that the CPU computes in about a second,
// in float64 and as low.
func affordable(c attention.Config, s attention.Shape) int {
	const products = 2e9
	perRow := float64(s.Sk) * float64(c.HeadDim+c.ValueDim())
	return int(min(max(products/perRow, 256), 1<<20))
}
