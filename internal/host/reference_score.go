package host

import (
	"slices"

	"vkattn/internal/problem"
	"vkattn/internal/score"
)

// scoreOf is the expression of a call's scores.
func scoreOf(cfg *problem.Config, a *problem.Args) score.Expr {
	return score.Options{Softcap: float64(cfg.Softcap), Bias: a.Bias != nil, ALiBi: a.ALiBi.Given()}.Score()
}

// refSlots are the slots that a row of the reference attends to, for package score.
type refSlots struct {
	*hostCall
	r         *refRow
	keys      []int // of the entries
	b, h, row int
	bias      []float32
}

// slots returns the slots of a row.
func (w *refWorker) slots(r *refRow, b, h, row int) *refSlots {
	s := &w.slotsOfRow
	s.hostCall, s.r, s.keys, s.b, s.h, s.row = w.hostCall, r, r.entries, b, h, row
	if w.a.SparseTokens != nil {
		w.keys = w.keys[:0]
		for _, entry := range r.entries {
			w.keys = append(w.keys, w.list[entry])
		}
		s.keys = w.keys
	}
	return s
}

func (s *refSlots) Number(v score.Variable) float64 {
	if v == score.I {
		return float64(s.position(s.b, s.row))
	}
	return float64(s.slope(s.h))
}

func (s *refSlots) Load(dst []float64, v score.Variable) {
	switch v {
	case score.S:
		copy(dst, s.r.scores)
	case score.J:
		for i, key := range s.keys {
			dst[i] = float64(key)
		}
	case score.Bias:
		s.bias = slices.Grow(s.bias[:0], len(s.keys))[:len(s.keys)]
		s.readBias(s.bias, s.b, s.h, s.row, s.keys)
		widen(dst, s.bias, 1)
	}
}
