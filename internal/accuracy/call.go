package accuracy

import (
	"fmt"
	"math"

	"vkattn/attention"
	"vkattn/internal/hostcall"
	"vkattn/internal/tensors"
)

// call is a call in host memory whose lists hold what they may.
type call struct{ hostcall.Call }

func openCall(cfg *attention.Config, a *attention.Args) (*call, error) {
	c := new(call)
	if err := checkLists(a); err != nil {
		return nil, err
	}
	return c, c.Open(cfg, a)
}

// checkLists reports an element of a list out of its range: kernels take another in its place.
func checkLists(a *attention.Args) error {
	sequences := tensors.SequencesOf(a)
	within := func(field string, i, got, least, most int) error {
		if got < least || got > most {
			return &attention.ShapeError{Field: fmt.Sprintf("%s[%d]", field, i), Got: got, Want: fmt.Sprintf("%d to %d", least, most)}
		}
		return nil
	}
	// ascending checks cumulative lengths and visits them.
	ascending := func(field string, v attention.Vector, n, total int, visit func(i, length int) error) error {
		from := 0
		for i := range n + 1 {
			to := tensors.IntAt(&v, i)
			if err := within(field, i, to, from, total); err != nil {
				return err
			}
			if i > 0 {
				if err := visit(i-1, to-from); err != nil {
					return err
				}
			}
			from = to
		}
		return nil
	}
	if v := a.Varlen; v != nil {
		for _, x := range []struct {
			cuField, usedField string
			cu, used           attention.Vector
			total, most        int
		}{{"CuQ", "UsedQ", v.CuQ, v.UsedQ, v.TotalQ, a.Sq}, {"CuK", "UsedK", v.CuK, v.UsedK, v.TotalK, a.Sk}} {
			used := func(b, length int) error {
				if !x.used.Given() {
					return nil
				}
				return within(x.usedField, b, tensors.IntAt(&x.used, b), 0, min(length, x.most))
			}
			if x.cu.Given() {
				if err := ascending(x.cuField, x.cu, a.B, x.total, used); err != nil {
					return err
				}
				continue
			}
			for b := range a.B {
				if err := used(b, x.most); err != nil {
					return err
				}
			}
		}
	}
	if p := a.Pages; p != nil {
		stride := tensors.TableStride(p, &a.Shape)
		for b, s := range sequences {
			for i := range (s.Keys + p.PageSize - 1) / p.PageSize {
				at := b*stride + i
				if err := within("Pages.Table", at, tensors.IntAt(&p.Table, at), 0, p.Count-1); err != nil {
					return err
				}
			}
		}
	}
	if k := a.SparseTokens; k != nil {
		return ascending("SparseTokens.Offsets", k.Offsets, a.B*a.KVHeads(), k.Total, func(int, int) error { return nil })
	}
	return nil
}

// within drops the rows of a sample that do not exist.
func (c *call) within(sample []attention.Rows) []attention.Rows {
	var some []attention.Rows
	for _, s := range sample {
		own := attention.Rows{B: s.B, H: s.H}
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
