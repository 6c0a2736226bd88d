package bench

import (
	"slices"
	"strings"
)

// Sizes of Shrink: a problem takes two cores some milliseconds.
const (
	smallHeads   = 8
	smallLengths = 16
)

// Shrink cuts the problems of a list down for a CPU: one sequence, or all sequences of a
// batch of different lengths, a 16th of the rows and keys, and at most 8 heads with the
// same number of heads for each KV head.
func Shrink(list []Problem) (out []Problem) {
	cut := func(n int) int {
		if n == 0 {
			return 0
		}
		return max(1, n/smallLengths)
	}
	for _, p := range list {
		s := &p.Shape
		group := s.Group()
		s.B, s.Hq, s.Sq, s.Sk = 1, min(s.Hq, max(smallHeads, group)), cut(s.Sq), cut(s.Sk)
		s.Hkv = max(1, s.Hq/group)
		if p.Lengths != "" {
			var lengths []string
			rows, keys := p.Lengths.lists()
			for i := range rows {
				lengths = append(lengths, sequence(cut(rows[i]), cut(keys[i])))
			}
			p.Lengths = Lengths(strings.Join(lengths, ","))
			p.Lengths.bound(s)
		}
		if !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	return out
}
