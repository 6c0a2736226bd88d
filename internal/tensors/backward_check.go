package tensors

import (
	"fmt"

	"vkattn/attention/score"
	"vkattn/internal/problem"
)

// GradientSet names the gradients that a call computes.
type GradientSet struct {
	Q, K, V, Bias, Sinks bool
	Tables               [score.MaxTables]bool // in the order of Tables
}

// GradientsOf returns the gradients that have an output.
func GradientsOf(cfg *problem.Config, a *problem.BackwardArgs) GradientSet {
	set := GradientSet{Q: TensorBegun(&a.DQ), K: TensorBegun(&a.DK), V: TensorBegun(&a.DV), Bias: TensorBegun(&a.DBias), Sinks: VectorBegun(&a.DSinks)}
	if len(a.DTables) > 0 {
		for i, t := range Tables(cfg) {
			set.Tables[i] = findTable(a.DTables, t.Name()) != nil
		}
	}
	return set
}

// CheckBackward checks the forward call without O and LSE, the gradients of its outputs, and the
// memory of the outputs that are given. It does not check whether outputs overlap.
func CheckBackward(a *problem.BackwardArgs, cfg *problem.Config) error {
	var l BackwardTensors
	return l.check(cfg, a)
}

// check is CheckBackward, which fills in the layouts.
func (l *BackwardTensors) check(cfg *problem.Config, a *problem.BackwardArgs) error {
	if err := CheckInputs(*cfg, a.Args); err != nil {
		return err
	}
	if err := checkTableGradients(cfg, a); err != nil {
		return err
	}
	out := GradientsOf(cfg, a)
	switch {
	case a.Pages != nil:
		return fmt.Errorf("%w: no tier computes gradients with Pages: K and V must be contiguous or packed", problem.ErrUnsupported)
	case a.SparseTokens != nil && a.SparseTokens.PerRow:
		return fmt.Errorf("%w: no tier computes gradients with lists of sparse tokens for each row", problem.ErrUnsupported)
	case cfg.KeyType != problem.KVSame:
		return fmt.Errorf("%w: no tier computes gradients with K and V of type %v: they must have the storage type", problem.ErrUnsupported, cfg.KVName())
	case out.Bias && a.Bias == nil:
		return &problem.ShapeError{Field: "DBias", Got: "given", Want: problem.Phrase("none without ${Bias}")}
	case out.Sinks && !a.Sinks.Given():
		return &problem.ShapeError{Field: "DSinks", Got: "given", Want: problem.Phrase("none without ${Sinks}")}
	case a.Accumulate && !out.Q && !out.K && !out.V:
		return &problem.ShapeError{Field: "Accumulate", Got: true, Want: "false without DQ, DK and DV"}
	}
	l.set(cfg, a, out)
	if err := checkMemory(&l.list[BackwardQ], l.list[BackwardDO:]); err != nil {
		return err
	}
	return checkRowStrides(&a.Args, "DLSE", a.DLSE.Strides)
}
