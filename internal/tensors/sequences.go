package tensors

import (
	"fmt"

	"vkattn/internal/problem"
)

// Sequences is tensors.Sequences, which documents it.
func Sequences(a problem.Args) ([]problem.Sequence, error) {
	if err := CheckShape(a.Shape); err != nil {
		return nil, err
	}
	if err := CheckHost("Sequences", SequenceBytes(a.Shape)); err != nil {
		return nil, err
	}
	if a.Varlen != nil {
		if err := checkVarlen(a.Varlen); err != nil {
			return nil, err
		}
		var l Layout
		if err := eachLength(a.Varlen, a.B, &l, func(OptionTensor) error {
			if err := l.CheckGiven(); err != nil {
				return err
			}
			if l.side() != inHost {
				return fmt.Errorf("%w: %s is not in host memory", problem.ErrUnsupported, l.Field)
			}
			return l.CheckBounds()
		}); err != nil {
			return nil, err
		}
	}
	return SequencesOf(&a), nil
}

// SequencesOf is Sequences of checked arguments in host memory.
func SequencesOf(a *problem.Args) []problem.Sequence {
	list := make([]problem.Sequence, a.B)
	for b := range list {
		s := problem.Sequence{Rows: a.Sq, Keys: a.Sk}
		if v := a.Varlen; v != nil {
			s.Row, s.Rows = sequenceRange(v.CuQ, v.UsedQ, v.TotalQ, a.Sq, b)
			s.Key, s.Keys = sequenceRange(v.CuK, v.UsedK, v.TotalK, a.Sk, b)
		}
		if p := a.Pages; p != nil && p.Count == 0 {
			s.Keys = 0
		}
		list[b] = s
	}
	return list
}

// sequenceRange returns the first row and the length of sequence b.
func sequenceRange(cu, used problem.Vector, total, most, b int) (first, n int) {
	n = most
	if cu.Given() {
		first = min(max(IntAt(&cu, b), 0), total)
		n = min(n, min(max(IntAt(&cu, b+1), 0), total)-first)
	}
	if used.Given() {
		n = min(n, IntAt(&used, b))
	}
	return first, max(n, 0)
}
