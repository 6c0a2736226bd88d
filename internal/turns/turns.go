// Package turns orders what is timed in rounds. A run leaves the device warm or cool and at its power
// limit or below, and the next run pays for that.
package turns

import "slices"

// Order is the order of n rows in a round, counted from 0: the positions of the rows, first to last. Over n rounds
// (2n for an odd n) each row follows each other one equally often within a round, and each begins a
// round equally often. This is E. J. Williams' design balanced for residual effects (1949).
func Order(n, round int) []int {
	order := make([]int, n)
	for i := range order {
		// 0, 1, n-1, 2, n-2, ...: each difference of neighbours occurs once.
		at := (i + 1) / 2
		if i%2 == 0 {
			at = n - i/2
		}
		order[i] = (at + round) % n
	}
	if n%2 == 1 && round/n%2 == 1 {
		slices.Reverse(order)
	}
	return order
}
