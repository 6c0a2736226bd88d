package accuracy

import (
	"math"

	"vkattn/internal/hostcall"
	"vkattn/internal/problem"
)

// call is a checked call in host memory.
type call struct{ hostcall.Call }

func openCall(cfg *problem.Config, a *problem.Args) (*call, error) {
	c := new(call)
	return c, c.Open(cfg, a)
}

// within drops the rows of a sample that do not exist.
func (c *call) within(sample []problem.Rows) []problem.Rows {
	var some []problem.Rows
	for _, s := range sample {
		own := problem.Rows{B: s.B, H: s.H}
		for _, row := range s.Rows {
			if row < c.Sequences[s.B].Rows {
				own.Rows = append(own.Rows, row)
			}
		}
		if len(own.Rows) > 0 {
			some = append(some, own)
		}
	}
	return some
}

// attends returns the keys that a row attends to. A bias of -Inf masks a key.
func (c *call) attends(keys []int, b, h, row int) []int {
	keys = c.Visible(keys[:0], b, h, row)
	if c.Args.Bias == nil {
		return keys
	}
	bias := make([]float32, len(keys))
	c.ReadBias(bias, b, h, row, keys)
	n := 0
	for i, key := range keys {
		if !math.IsInf(float64(bias[i]), -1) {
			keys[n] = key
			n++
		}
	}
	return keys[:n]
}

// attended reports for each row of a query head whether it attends to any key, or for each
// key of a KV head whether any row of the group attends to it.
func (c *call) attended(kv bool, b, h int) []bool {
	s := &c.Sequences[b]
	var keys []int
	if !kv {
		found := make([]bool, s.Rows)
		for row := range found {
			keys = c.attends(keys, b, h, row)
			found[row] = len(keys) > 0
		}
		return found
	}
	found := make([]bool, s.Keys)
	for q := h * c.Args.Group(); q < (h+1)*c.Args.Group(); q++ {
		for row := range s.Rows {
			keys = c.attends(keys, b, q, row)
			for _, key := range keys {
				found[key] = true
			}
		}
	}
	return found
}
