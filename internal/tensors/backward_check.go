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
	var l backwardLayouts
	l.set(cfg, a, out)
	if err := checkMemory(l.all()); err != nil {
		return err
	}
	return checkRowStrides(&a.Args, "DLSE", a.DLSE.Strides)
}

// backwardLayouts are the layouts of Q and of the tensors that only a backward call has.
// Q is the first: it says on which side all of them lie.
type backwardLayouts struct {
	list [8 + score.MaxTables]Layout
	n    int
}

func (l *backwardLayouts) all() []Layout { return l.list[:l.n] }

func (l *backwardLayouts) set(cfg *problem.Config, a *problem.BackwardArgs, out GradientSet) {
	batches, rows := QueryExtent(&a.Args)
	kvBatches, keys := KVExtent(&a.Args)
	dtype, gradient := cfg.DType, cfg.GradientType()
	l.add(true, "Q", &a.Q, dtype, batches, a.Hq, rows, cfg.HeadDim)
	l.add(true, "DO", &a.DO, dtype, batches, a.Hq, rows, cfg.ValueDim())
	l.add(TensorBegun(&a.DLSE), "DLSE", &a.DLSE, problem.F32, batches, a.Hq, rows, 1)
	l.add(out.Q, "DQ", &a.DQ, gradient, batches, a.Hq, rows, cfg.HeadDim)
	l.add(out.K, "DK", &a.DK, gradient, kvBatches, a.KVHeads(), keys, cfg.HeadDim)
	l.add(out.V, "DV", &a.DV, gradient, kvBatches, a.KVHeads(), keys, cfg.ValueDim())
	if out.Bias {
		n := BiasSizes(a.Bias, &a.Shape)
		l.add(true, "DBias", &a.DBias, problem.F32, n[0], n[1], n[2], a.Sk)
	}
	sinks := a.DSinks.Tensor()
	l.add(out.Sinks, "DSinks", &sinks, problem.F32, 1, 1, 1, a.Hq)
	eachTableGradient(cfg, a, out, func(_ int, field string, t *problem.Tensor, n int) {
		l.add(true, field, t, problem.F32, 1, 1, 1, n)
	})
}

func (l *backwardLayouts) add(given bool, field string, t *problem.Tensor, dtype problem.DType, batch, heads, seq, dim int) {
	if given {
		l.list[l.n].Set(field, t, dtype, batch, heads, seq, dim)
		l.n++
	}
}
