package accuracy

import (
	"maps"
	"math/rand/v2"
	"slices"

	"vkattn/attention"
)

// Sample picks about n rows of a problem: all of them when there are no more,
// and otherwise rows of several heads, the first and the last among them. In
// each head it takes the first and last rows, those beside multiples of 64
// where tiles meet, and random ones.
func Sample(s attention.Shape, n int, seed uint64) []attention.Rows {
	if s.Validate() != nil || s.Rows() <= int64(n) {
		return attention.AllRows(s) // CheckSample reports a bad shape
	}
	const perHead = 16
	r := rand.New(rand.NewPCG(seed, 0x5a))
	all := s.B * s.Hq
	heads := min(all, max(1, n/min(perHead, s.Sq)))
	each := min(s.Sq, max(1, n/heads))
	sample := make([]attention.Rows, 0, heads)
	for _, head := range pick(r, all, heads, 0, all-1) {
		tile := r.IntN((s.Sq+63)/64) * 64
		rows := pick(r, s.Sq, each, 0, s.Sq-1, tile, tile-1, tile+63)
		sample = append(sample, attention.Rows{B: head / s.Hq, H: head % s.Hq, Rows: rows})
	}
	return sample
}

// pick takes n of [0, limit), in order: those of first that are in range, then
// random ones.
func pick(r *rand.Rand, limit, n int, first ...int) []int {
	set := map[int]bool{}
	for _, v := range first {
		if v >= 0 && v < limit && len(set) < n {
			set[v] = true
		}
	}
	for len(set) < n {
		// From the top down when most are taken, else this would not end soon.
		if 2*n > limit {
			for _, v := range r.Perm(limit) {
				if len(set) < n {
					set[v] = true
				}
			}
			break
		}
		set[r.IntN(limit)] = true
	}
	return slices.Sorted(maps.Keys(set))
}
