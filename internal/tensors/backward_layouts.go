package tensors

import (
	"fmt"
	"math"

	"vkattn/attention/score"
	"vkattn/internal/problem"
)

// Tensors of a backward call, in the order of BackwardTensors. The outputs are last.
const (
	BackwardQ = iota
	BackwardK
	BackwardV
	BackwardO
	BackwardLSE
	BackwardDO
	BackwardDLSE
	BackwardDQ
	BackwardDK
	BackwardDV
	BackwardDBias
	BackwardDSinks
	BackwardDTables // in the order of Tables
	BackwardCount   = BackwardDTables + score.MaxTables

	FirstGradient = BackwardDQ
)

// BackwardTensors are the layouts of all tensors of a backward call. Those that are
// not given have no field name.
type BackwardTensors struct {
	list [BackwardCount]Layout
	Want GradientSet
}

// Tensor returns the layout of a tensor, or nil if it is not given.
func (l *BackwardTensors) Tensor(i int) *Layout {
	if l.list[i].Field == "" {
		return nil
	}
	return &l.list[i]
}

// Each visits the tensors that are given.
func (l *BackwardTensors) Each(visit func(i int, t *Layout) error) error {
	for i := range l.list {
		if l.list[i].Field != "" {
			if err := visit(i, &l.list[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

func (l *BackwardTensors) set(cfg *problem.Config, a *problem.BackwardArgs, want GradientSet) {
	l.Want = want
	batches, rows := QueryExtent(&a.Args)
	kvBatches, keys := KVExtent(&a.Args)
	dtype, gradient, d, dv := cfg.DType, cfg.GradientType(), cfg.HeadDim, cfg.ValueDim()
	set := func(i int, field string, t *problem.Tensor, given bool, dtype problem.DType, batch, heads, seq, dim int) {
		if given {
			l.list[i].Set(field, t, dtype, batch, heads, seq, dim)
		}
	}
	set(BackwardQ, "Q", &a.Q, true, dtype, batches, a.Hq, rows, d)
	set(BackwardK, "K", &a.K, true, dtype, kvBatches, a.KVHeads(), keys, d)
	set(BackwardV, "V", &a.V, true, dtype, kvBatches, a.KVHeads(), keys, dv)
	set(BackwardO, "O", &a.O, true, cfg.OType(), batches, a.Hq, rows, dv)
	set(BackwardLSE, "LSE", &a.LSE, true, problem.F32, batches, a.Hq, rows, 1)
	set(BackwardDO, "DO", &a.DO, true, dtype, batches, a.Hq, rows, dv)
	set(BackwardDLSE, "DLSE", &a.DLSE, TensorBegun(&a.DLSE), problem.F32, batches, a.Hq, rows, 1)
	set(BackwardDQ, "DQ", &a.DQ, l.Want.Q, gradient, batches, a.Hq, rows, d)
	set(BackwardDK, "DK", &a.DK, l.Want.K, gradient, kvBatches, a.KVHeads(), keys, d)
	set(BackwardDV, "DV", &a.DV, l.Want.V, gradient, kvBatches, a.KVHeads(), keys, dv)
	if l.Want.Bias {
		n := BiasSizes(a.Bias, &a.Shape)
		set(BackwardDBias, "DBias", &a.DBias, true, problem.F32, n[0], n[1], n[2], a.Sk)
	}
	sinks := a.DSinks.Tensor()
	set(BackwardDSinks, "DSinks", &sinks, l.Want.Sinks, problem.F32, 1, 1, 1, a.Hq)
	eachTableGradient(cfg, a, l.Want, func(i int, field string, t *problem.Tensor, n int) {
		set(BackwardDTables+i, field, t, true, problem.F32, 1, 1, 1, n)
	})
}

// CheckAll checks a backward call with its O, LSE and outputs, and fills in the layouts.
func (l *BackwardTensors) CheckAll(cfg *problem.Config, a *problem.BackwardArgs) error {
	if err := l.check(cfg, a); err != nil {
		return err
	}
	switch {
	case l.Want == (GradientSet{}):
		return &problem.ShapeError{Field: "DQ", Got: "missing", Want: "DQ, DK, DV, DBias, DSinks or DTables"}
	case cfg.HeadDim > problem.MaxHeadDim || cfg.ValueDim() > problem.MaxHeadDim:
		return fmt.Errorf("%w: no tier computes gradients at head dims %d/%d: at most %d each", problem.ErrUnsupported,
			cfg.HeadDim, cfg.ValueDim(), problem.MaxHeadDim)
	}
	if err := checkMemory(&l.list[BackwardQ], l.list[BackwardO:BackwardDO]); err != nil { // check has checked the others
		return err
	}
	if err := checkRowStrides(&a.Args, "LSE", a.LSE.Strides); err != nil {
		return err
	}
	return l.checkOutputs(cfg, a)
}

// checkOutputs refuses outputs whose rows overlap, and outputs that overlap another tensor
// or the memory of an option.
func (l *BackwardTensors) checkOutputs(cfg *problem.Config, a *problem.BackwardArgs) error {
	if err := checkOverlaps(l.list[:], FirstGradient); err != nil || !HasOptions(&a.Args, cfg) {
		return err
	}
	for i := FirstGradient; i < BackwardCount; i++ {
		out := l.Tensor(i)
		if out == nil {
			continue
		}
		var other Layout
		if err := EachOption(cfg, &a.Args, &other, func(OptionTensor) error {
			if out.Overlaps(&other) {
				return &problem.ShapeError{Field: out.Field, Got: problem.Phrase("overlapping ${" + other.Field + "}"), Want: "memory of its own"}
			}
			return nil
		}); err != nil {
			return err
		}
	}
	return nil
}

// CheckStrides checks the strides against the 32 bits of a kernel's offsets. Those of Q, DO and DQ
// span the rows of a tile and the query heads of a group, in bytes. Those of K, V, DK and DV span
// the keys of a tile, in elements; tileKeys is 0 for kernels that compute the position of each key.
func (l *BackwardTensors) CheckStrides(a *problem.BackwardArgs, tileRows, tileKeys uint32) error {
	return l.Each(func(i int, t *Layout) error {
		for d, step := range t.Steps {
			if t.Counts[d] > 1 && step > math.MaxUint32 {
				return fmt.Errorf("%w: %s has a %s stride of 2^32 elements or more", problem.ErrUnsupported, t.Field, StrideNames[d])
			}
		}
		most := uint64(math.MaxUint32)
		switch i {
		case BackwardQ, BackwardDO, BackwardDQ:
			most -= min(uint64(a.Group())*uint64(t.Steps[1]), most)
			most = most / uint64(tileRows) / uint64(t.Size)
		case BackwardK, BackwardV, BackwardDK, BackwardDV:
			most /= uint64(max(tileKeys, 1))
		default: // one row at a time
			return nil
		}
		if t.Counts[2] > 1 && uint64(t.Steps[2]) > most {
			return fmt.Errorf("%w: %s has a row stride of %d elements: a tile would span 2^32 of them", problem.ErrUnsupported, t.Field, t.Steps[2])
		}
		return nil
	})
}

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
