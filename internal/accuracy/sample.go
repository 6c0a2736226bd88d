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
	list, _ := SampleArgs(problem.Args{Shape: s}, n, seed) // CheckSample reports a bad shape
	return list
}

// SampleArgs is Sample of the rows that exist in a call. Sequences with lengths of their
// own (problem.Varlen, in host memory) have fewer than Sq.
func SampleArgs(a problem.Args, n int, seed uint64) ([]problem.Rows, error) {
	return SampleRows(a, n, 16, problem.CausalNone, seed)
}

// SampleRows is SampleArgs with about perHead rows of a head, and more where there are too few heads. If perHead is 1 the rows
// are of all heads, in each head other ones, and of every sequence that has rows, also if these are more than n. Under a
// causal mask each head has a row of every power of two of keys.
func SampleRows(a problem.Args, n, perHead int, causal problem.Causal, seed uint64) ([]problem.Rows, error) {
	sequences, err := tensors.Sequences(a)
	var batches []int // that have rows
	rows, longest := int64(0), 0
	for b, s := range sequences {
		if s.Rows > 0 {
			batches = append(batches, b)
		}
		rows, longest = rows+int64(s.Rows)*int64(a.Hq), max(longest, s.Rows)
	}
	if err != nil || rows <= int64(n) {
		return tensors.ExistingRows(a)
	}
	r := rand.New(rand.NewPCG(seed, 0x5a))
	all := len(batches) * a.Hq
	heads, first := min(all, max(1, n/min(perHead, longest))), []int{0, all - 1}
	if perHead == 1 {
		heads, first = max(heads, len(batches)), nil
		for i := range batches {
			first = append(first, i*a.Hq+r.IntN(a.Hq))
		}
	}
	each := max(1, n/heads)
	list := make([]problem.Rows, 0, heads)
	for i, head := range pick(r, all, heads, first...) {
		b := batches[head/a.Hq]
		length, seen := sequences[b].Rows, 0 // the first row that attends to a key
		tile := r.IntN((length+63)/64) * 64
		special := []int{0, length - 1, tile, tile - 1, tile + 63}
		special = slices.Concat(special[i%5:], special[:i%5])
		if causal == problem.BottomRight {
			seen = max(0, length-sequences[b].Keys)
		}
		for keys := 1; causal != problem.CausalNone && seen+keys <= length; keys *= 2 {
			special = append(special, seen+keys-1+r.IntN(keys))
		}
		list = append(list, problem.Rows{B: b, H: head % a.Hq, Rows: pick(r, length, min(length, each), special...)})
	}
	return list, nil
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
