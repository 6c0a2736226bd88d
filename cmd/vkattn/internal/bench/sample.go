package bench

import (
	"math/rand/v2"
	"slices"
)

// verifyBudget is the multiply-adds one verification may take, reference and
// low-precision attention each: about a second on two cores.
const verifyBudget = 1 << 30

// edge is the distance of the rows where tiles may end: every tile size is a
// multiple of it.
const edge = 16

// rowsPerHead is how many rows of each (batch, query head) fit the budget: at
// least one, at most all.
func rowsPerHead(p Problem, budget uint64) int {
	s, c := p.Shape, p.Config
	row := uint64(s.Sk) * uint64(c.HeadDim+c.ValueDim())
	n := budget / (row * uint64(s.B) * uint64(s.Hq))
	return int(min(max(n, 1), uint64(s.Sq)))
}

// sampleRows picks n of sq rows for one head, ascending: all of them if n is
// sq, else the first and the last, rows on both sides of a tile's edge, and
// random ones. What does not fit n for this head is taken by the next: turn is
// the head's number.
func sampleRows(sq, n, turn int, r *rand.Rand) []int {
	if n >= sq {
		all := make([]int, sq)
		for i := range all {
			all[i] = i
		}
		return all
	}
	special := []int{0, sq - 1, r.IntN(sq)}
	if at := edge * (1 + r.IntN(max(sq/edge, 1))); at < sq {
		special = append(special, at-1, at)
	}
	var rows []int
	for i := range special {
		rows = append(rows, special[(turn+i)%len(special)])
	}
	rows = rows[:min(n, len(rows))]
	for len(rows) < n {
		rows = append(rows, r.IntN(sq))
	}
	slices.Sort(rows)
	return slices.Compact(rows)
}
