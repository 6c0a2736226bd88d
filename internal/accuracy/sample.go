package accuracy

import (
	"maps"
	"math/rand/v2"
	"slices"

	"vkattn/internal/problem"
	"vkattn/internal/tensors"
)

// Sample picks about n rows of a problem, or all of them if there are no more. It takes
// rows of several heads, the first and the last head among them. In each head it takes the
// first and last rows, rows next to multiples of 64, where tiles meet, and random ones.
func Sample(s problem.Shape, n int, seed uint64) []problem.Rows {
	if s.Validate() != nil || s.Rows() <= int64(n) {
		return tensors.AllRows(s) // CheckSample reports a bad shape
	}
	lengths := make([]int, s.B)
	for b := range lengths {
		lengths[b] = s.Sq
	}
	return sample(s.Hq, lengths, n, seed)
}

// SampleArgs is Sample of the rows that exist in a call. Sequences with lengths of their
// own (problem.Varlen, in host memory) have fewer than Sq.
func SampleArgs(a problem.Args, n int, seed uint64) ([]problem.Rows, error) {
	if a.Varlen == nil {
		return Sample(a.Shape, n, seed), nil
	}
	all, err := tensors.ExistingRows(a)
	if err != nil || tensors.CountRows(all) <= n {
		return all, err
	}
	sequences, err := tensors.Sequences(a)
	lengths := make([]int, a.B)
	for b, s := range sequences {
		lengths[b] = s.Rows
	}
	return sample(a.Hq, lengths, n, seed), err
}

// sample is Sample for batches of different lengths, not all 0.
func sample(hq int, lengths []int, n int, seed uint64) []problem.Rows {
	const perHead = 16
	r := rand.New(rand.NewPCG(seed, 0x5a))
	var batches []int // that have rows
	for b, length := range lengths {
		if length > 0 {
			batches = append(batches, b)
		}
	}
	all, longest := len(batches)*hq, slices.Max(lengths)
	heads := min(all, max(1, n/min(perHead, longest)))
	each := max(1, n/heads)
	list := make([]problem.Rows, 0, heads)
	for _, head := range pick(r, all, heads, 0, all-1) {
		b := batches[head/hq]
		length := lengths[b]
		tile := r.IntN((length+63)/64) * 64
		rows := pick(r, length, min(length, each), 0, length-1, tile, tile-1, tile+63)
		list = append(list, problem.Rows{B: b, H: head % hq, Rows: rows})
	}
	return list
}

// pick returns n numbers of [0, limit), in ascending order: the numbers of first that are
// in range, then random ones.
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
