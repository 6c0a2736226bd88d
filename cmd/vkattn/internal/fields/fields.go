// Package fields has the fields of a row that say which call was computed. Rows of bench,
// verify and their runs over several ranks, and requests to peers, embed them.
package fields

import (
	"slices"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/markdown"
)

// Call names a call by its sizes in elements, its causal mask and its storage type.
type Call struct {
	B      int              `json:"batch"`
	Hq     int              `json:"heads"`
	Hkv    int              `json:"heads_kv"`
	Sq     int              `json:"seqlen_q"`
	Sk     int              `json:"seqlen_k"`
	D      int              `json:"headdim"`
	Dv     int              `json:"headdim_v"`
	Causal attention.Causal `json:"causal"`
	DType  attention.DType  `json:"dtype"`
}

// Of is the Call of a shape and a Config.
func Of(s attention.Shape, c attention.Config) Call {
	return Call{B: s.B, Hq: s.Hq, Hkv: s.KVHeads(), Sq: s.Sq, Sk: s.Sk, D: c.HeadDim, Dv: c.ValueDim(), Causal: c.Causal, DType: c.DType}
}

// Shape is the shape of the call.
func (c *Call) Shape() attention.Shape {
	return attention.Shape{B: c.B, Hq: c.Hq, Hkv: c.Hkv, Sq: c.Sq, Sk: c.Sk}
}

// Config is the Config of the call, without a tier and options.
func (c *Call) Config() attention.Config {
	return attention.Config{DType: c.DType, HeadDim: c.D, HeadDimV: c.Dv, Causal: c.Causal}
}

// Columns are the fields as columns of a table whose rows have a call. If all planned rows have as many KV heads as
// heads, as many keys as rows, or values as wide as keys, the two have one column, unless the table is wide.
func Columns[R any](planned []R, wide bool, call func(R) *Call) (list []markdown.Column[R]) {
	add := func(title string, of func(*Call) any) {
		list = append(list, markdown.Column[R]{Title: title, Cell: func(r R) any { return of(call(r)) }})
	}
	pair := func(both, first, second string, of, other func(*Call) int) {
		if !wide && !slices.ContainsFunc(planned, func(r R) bool { return of(call(r)) != other(call(r)) }) {
			add(both, func(c *Call) any { return of(c) })
			return
		}
		add(first, func(c *Call) any { return of(c) })
		add(second, func(c *Call) any { return other(c) })
	}
	add("B", func(c *Call) any { return c.B })
	pair("H", "Hq", "Hkv", func(c *Call) int { return c.Hq }, func(c *Call) int { return c.Hkv })
	pair("S", "Sq", "Sk", func(c *Call) int { return c.Sq }, func(c *Call) int { return c.Sk })
	pair("D", "D", "Dv", func(c *Call) int { return c.D }, func(c *Call) int { return c.Dv })
	add("causal<", func(c *Call) any { return c.Causal })
	add("dtype<", func(c *Call) any { return c.DType })
	return list
}
