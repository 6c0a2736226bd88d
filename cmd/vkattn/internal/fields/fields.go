// Package fields has the fields of a row that say which call was computed. Rows of bench,
// verify and their runs over several ranks, and requests to peers, embed them.
package fields

import "vkattn/attention"

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

// Columns are the headers of Cells in a table of package markdown.
var Columns = []string{"B", "Hq", "Hkv", "Sq", "Sk", "D", "Dv", "causal<", "dtype<"}

// Cells are the fields as cells of a table.
func (c *Call) Cells() []any {
	return []any{c.B, c.Hq, c.Hkv, c.Sq, c.Sk, c.D, c.Dv, c.Causal, c.DType}
}
