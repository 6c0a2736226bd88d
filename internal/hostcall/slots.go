package hostcall

import (
	"slices"
	"sync"

	"vkattn/attention/score"
	"vkattn/internal/problem"
)

// Slots are slots of a row for package score.
type Slots struct {
	score.Slots
	tables [score.MaxTables]score.Memory
}

// Of describes a row with keys. The caller sets S of each, and Bias if the expression reads it.
func (s *Slots) Of(c *Call, b, h, row int, keys []int) *score.Slots {
	seq := c.Sequences[b]
	s.B, s.Head, s.KVHead, s.Row, s.Rows, s.Keys = b, h, h/c.Args.Group(), row, seq.Rows, seq.Keys
	s.I, s.Slope, s.J = int(c.Position(b, row)), float64(c.Slope(b, h)), keys
	s.S = slices.Grow(s.S[:0], len(keys))[:len(keys)]
	s.Tables = s.tables[:0]
	for i := range c.Args.Tables {
		t := &c.Args.Tables[i]
		s.Tables = append(s.Tables, score.Memory{Name: t.Name, Dims: t.Dims, Data: t.Host[t.Offset*int64(problem.F32.Size()):]})
	}
	return &s.Slots
}

// masker evaluates the mask modifier of a call.
type masker struct {
	*score.Evaluator
	slots   Slots
	results []float64
}

// maskers are those of a call that no goroutine uses at the moment.
type maskers struct{ pool sync.Pool }

// Attends sets dst to which of the keys Args.Mask and the mask modifier leave to a row. Without them these are all.
func (h *Call) Attends(dst []bool, b, head, row int, keys []int) {
	var bytes []byte
	if h.Args.Mask != nil {
		bytes = h.Args.Mask.Host[h.MaskAt(b, head, row):]
	}
	for i, key := range keys {
		dst[i] = bytes == nil || bytes[key] != 0
	}
	if !h.Cfg.MaskMod.Given() {
		return
	}
	m, _ := h.maskers.pool.Get().(*masker)
	if m == nil {
		m = &masker{Evaluator: score.NewEvaluator(h.Cfg.MaskMod, score.Float32)}
	}
	m.results = slices.Grow(m.results[:0], len(keys))[:len(keys)]
	m.Eval(m.results, m.slots.Of(h, b, head, row, keys))
	for i, x := range m.results {
		dst[i] = dst[i] && x != 0
	}
	h.maskers.pool.Put(m)
}
