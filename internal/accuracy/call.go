package accuracy

import (
	"encoding/binary"
	"fmt"

	"vkattn/attention"
	"vkattn/internal/dropout"
	"vkattn/internal/score"
)

// call reads the tensors of a call by sequence, with varlen, pages and quantization. It
// shares nothing with package attention but the reading of rows, so that the two
// implement the options independently.
type call struct {
	cfg     attention.Config
	a       attention.Args
	round   func(float32) float32
	score   score.Expr // of a slot
	slope   score.Expr // its derivative
	dropout dropout.Mask
	q, k, v attention.HostView // k and v where KV is KVSame

	rows, keys     []int // of each sequence
	startQ, startK []int // of packed ones
	table          []int32
	tableStride    int
	lists          [][]int32 // sparse tokens of each (sequence, key head)
}

func openCall(cfg attention.Config, a attention.Args) (*call, error) {
	c := &call{cfg: cfg, a: a, round: rounding(cfg.DType), dropout: dropout.Of(cfg.Dropout, a.DropoutSeed, a.DropoutOffset), score: scoreOf(&cfg, &a)}
	c.slope = c.score.Diff()
	if err := c.sequences(); err != nil {
		return nil, err
	}
	rows, keys := a.Sq, a.Sk
	if c.startQ != nil {
		rows = a.Varlen.TotalQ
	}
	switch {
	case a.Pages != nil:
		keys = a.Pages.PageSize
	case c.startK != nil:
		keys = a.Varlen.TotalK
	}
	var err error
	if c.q, err = attention.ViewHost(a.Q, cfg.DType, a.Hq, rows, cfg.HeadDim); err != nil {
		return nil, err
	}
	if cfg.KV == attention.KVSame {
		if c.k, err = attention.ViewHost(a.K, cfg.DType, a.KVHeads(), keys, cfg.HeadDim); err != nil {
			return nil, err
		}
		c.v, err = attention.ViewHost(a.V, cfg.DType, a.KVHeads(), keys, cfg.ValueDim())
	} else {
		c.a.K.Strides = a.K.Strides.Resolve(a.KVHeads(), keys, cfg.HeadDim)
		c.a.V.Strides = a.V.Strides.Resolve(a.KVHeads(), keys, cfg.ValueDim())
	}
	return c, err
}

// sequences reads the lengths, the block table and the lists of sparse tokens.
func (c *call) sequences() error {
	a := &c.a
	c.rows, c.keys = filled(a.B, a.Sq), filled(a.B, a.Sk)
	if v := a.Varlen; v != nil {
		var err error
		if c.startQ, err = packed("CuQ", v.CuQ, c.rows, v.TotalQ); err != nil {
			return err
		}
		if c.startK, err = packed("CuK", v.CuK, c.keys, v.TotalK); err != nil {
			return err
		}
		if err := used("UsedQ", v.UsedQ, c.rows); err != nil {
			return err
		}
		if err := used("UsedK", v.UsedK, c.keys); err != nil {
			return err
		}
	}
	if p := a.Pages; p != nil {
		if p.Count == 0 {
			clear(c.keys) // whatever the lengths say
		}
		c.tableStride = p.Stride
		if c.tableStride == 0 {
			c.tableStride = (a.Sk + p.PageSize - 1) / p.PageSize
		}
		var err error
		if c.table, err = ints("Pages.Table", p.Table, a.B*c.tableStride); err != nil {
			return err
		}
		for b, n := range c.keys {
			for i := range (n + p.PageSize - 1) / p.PageSize {
				if page := c.table[b*c.tableStride+i]; page < 0 || int(page) >= p.Count {
					return &attention.ShapeError{Field: fmt.Sprintf("Pages.Table[%d, %d]", b, i), Got: page, Want: fmt.Sprintf("0 to %d", p.Count-1)}
				}
			}
		}
	}
	if k := a.SparseTokens; k != nil {
		offsets, err := ints("SparseTokens.Offsets", k.Offsets, a.B*a.KVHeads()+1)
		if err != nil {
			return err
		}
		tokens, err := ints("SparseTokens.Tokens", k.Tokens, k.Total)
		if err != nil {
			return err
		}
		for i := range a.B * a.KVHeads() {
			from, to := offsets[i], offsets[i+1]
			if from < 0 || to < from || int(to) > k.Total {
				return &attention.ShapeError{Field: fmt.Sprintf("SparseTokens.Offsets[%d]", i+1), Got: to, Want: fmt.Sprintf("%d to %d", from, k.Total)}
			}
			c.lists = append(c.lists, tokens[from:to])
		}
	}
	return nil
}

func filled(n, value int) []int {
	list := make([]int, n)
	for i := range list {
		list[i] = value
	}
	return list
}

// packed reads cumulative lengths; if they are given, it sets lengths.
func packed(field string, v attention.Vector, lengths []int, total int) (starts []int, err error) {
	if !v.Given() {
		return nil, nil
	}
	cu, err := ints(field, v, len(lengths)+1)
	if err != nil {
		return nil, err
	}
	for b := range lengths {
		from, to := int(cu[b]), int(cu[b+1])
		if from < 0 || to < from || to > total {
			return nil, &attention.ShapeError{Field: fmt.Sprintf("%s[%d]", field, b+1), Got: to, Want: fmt.Sprintf("%d to %d", from, total)}
		}
		// The range may be longer than the bound if lengths in use are given too.
		starts, lengths[b] = append(starts, from), min(lengths[b], to-from)
	}
	return starts, nil
}

// used reads lengths in use.
func used(field string, v attention.Vector, lengths []int) error {
	if !v.Given() {
		return nil
	}
	list, err := ints(field, v, len(lengths))
	if err != nil {
		return err
	}
	for b, n := range list {
		if n < 0 || int(n) > lengths[b] {
			return &attention.ShapeError{Field: fmt.Sprintf("%s[%d]", field, b), Got: n, Want: fmt.Sprintf("0 to %d", lengths[b])}
		}
		lengths[b] = int(n)
	}
	return nil
}

// ints reads a vector in host memory.
func ints(field string, v attention.Vector, n int) ([]int32, error) {
	if v.Host == nil || v.Offset < 0 || int64(len(v.Host)) < 4*(v.Offset+int64(n)) {
		return nil, &attention.ShapeError{Field: field, Got: fmt.Sprintf("%d bytes of host memory", len(v.Host)), Want: fmt.Sprintf("%d elements", n)}
	}
	list := make([]int32, n)
	for i := range list {
		list[i] = int32(binary.LittleEndian.Uint32(v.Host[4*(v.Offset+int64(i)):]))
	}
	return list, nil
}

// queryRow returns the batch and row in Q, O and LSE of a row of sequence b.
func (c *call) queryRow(b, row int) (batch, at int) {
	if c.startQ != nil {
		return 0, c.startQ[b] + row
	}
	return b, row
}

// kvRow returns the batch, or page, and row in K and V of key t of sequence b.
func (c *call) kvRow(b, t int) (batch, at int) {
	switch {
	case c.table != nil:
		size := c.a.Pages.PageSize
		return int(c.table[b*c.tableStride+t/size]), t % size
	case c.startK != nil:
		return 0, c.startK[b] + t
	}
	return b, t
}

// within drops the rows of a sample that do not exist.
func (c *call) within(sample []attention.Rows) []attention.Rows {
	var some []attention.Rows
	for _, s := range sample {
		own := attention.Rows{B: s.B, H: s.H}
		for _, row := range s.Rows {
			if row < c.rows[s.B] {
				own.Rows = append(own.Rows, row)
			}
		}
		if len(own.Rows) > 0 {
			some = append(some, own)
		}
	}
	return some
}
