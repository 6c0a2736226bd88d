// Package fields has the fields of a row that say which call was computed. Rows of bench,
// verify and their runs over several ranks, and requests to peers, embed them.
package fields

import (
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

// Columns are the fields as columns of a table whose rows have a call.
func Columns[R any](call func(R) *Call) []markdown.Column[R] {
	column := func(title string, of func(*Call) any) markdown.Column[R] {
		return markdown.Column[R]{Title: title, Cell: func(r R) any { return of(call(r)) }}
	}
	return []markdown.Column[R]{
		column("B", func(c *Call) any { return c.B }),
		column("Hq", func(c *Call) any { return c.Hq }),
		column("Hkv", func(c *Call) any { return c.Hkv }),
		column("Sq", func(c *Call) any { return c.Sq }),
		column("Sk", func(c *Call) any { return c.Sk }),
		column("D", func(c *Call) any { return c.D }),
		column("Dv", func(c *Call) any { return c.Dv }),
		column("causal<", func(c *Call) any { return c.Causal }),
		column("dtype<", func(c *Call) any { return c.DType }),
	}
}
