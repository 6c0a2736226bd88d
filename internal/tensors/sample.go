package tensors

import (
	"vkattn/internal/problem"
)

// AllRows is attention.AllRows, which documents it.
func AllRows(s problem.Shape) []problem.Rows {
	if s.Validate() != nil {
		return nil // CheckSample says why
	}
	if CheckHost("AllRows", ListBytes(s)) != nil {
		return nil
	}
	rows := make([]int, s.Sq)
	for i := range rows {
		rows[i] = i
	}
	sample := make([]problem.Rows, 0, s.B*s.Hq)
	for b := range s.B {
		for h := range s.Hq {
			sample = append(sample, problem.Rows{B: b, H: h, Rows: rows})
		}
	}
	return sample
}

// CountRows is tensors.CountRows, which documents it.
func CountRows(sample []problem.Rows) (n int) {
	for _, r := range sample {
		n += len(r.Rows)
	}
	return n
}

// CheckSample is tensors.CheckSample, which documents it.
func CheckSample(cfg problem.Config, a problem.Args, sample []problem.Rows) error {
	if err := CheckInputs(cfg, a); err != nil {
		return err
	}
	for _, s := range sample {
		if s.B < 0 || s.B >= a.B {
			return &problem.ShapeError{Field: "batch", Got: s.B, Want: problem.Phrase("0 to ${B}-1")}
		}
		if s.H < 0 || s.H >= a.Hq {
			return &problem.ShapeError{Field: "query head", Got: s.H, Want: problem.Phrase("0 to ${Hq}-1")}
		}
		for _, r := range s.Rows {
			if r < 0 || r >= a.Sq {
				return &problem.ShapeError{Field: "row", Got: r, Want: problem.Phrase("0 to ${Sq}-1")}
			}
		}
	}
	return nil
}

// ExistingRows is tensors.ExistingRows, which documents it.
func ExistingRows(a problem.Args) ([]problem.Rows, error) {
	sequences, err := Sequences(a)
	if err == nil {
		err = CheckHost("ExistingRows", ListBytes(a.Shape))
	}
	if err != nil {
		return nil, err
	}
	rows := make([]int, a.Sq)
	for i := range rows {
		rows[i] = i
	}
	var sample []problem.Rows
	for b, s := range sequences {
		for h := range a.Hq {
			if s.Rows > 0 {
				sample = append(sample, problem.Rows{B: b, H: h, Rows: rows[:s.Rows]})
			}
		}
	}
	return sample, nil
}
