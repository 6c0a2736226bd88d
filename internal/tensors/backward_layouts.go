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
