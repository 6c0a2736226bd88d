package attention

import (
	"fmt"
	"math"
)

// Tensors of a backward call, in the order of backwardTensorLayouts. The outputs are last.
const (
	tensorQ = iota
	tensorK
	tensorV
	tensorO
	tensorLSE
	tensorDO
	tensorDLSE
	tensorDQ
	tensorDK
	tensorDV
	tensorDBias
	tensorDSinks
	backwardTensors

	firstGradient = tensorDQ
)

// backwardTensorLayouts are the layouts of all tensors of a backward call. Those that are
// not given have no field name.
type backwardTensorLayouts struct {
	list [backwardTensors]layout
	want gradientSet
}

// tensor returns the layout of a tensor, or nil if it is not given.
func (l *backwardTensorLayouts) tensor(i int) *layout {
	if l.list[i].field == "" {
		return nil
	}
	return &l.list[i]
}

// each visits the tensors that are given.
func (l *backwardTensorLayouts) each(visit func(i int, t *layout) error) error {
	for i := range l.list {
		if l.list[i].field != "" {
			if err := visit(i, &l.list[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

func (l *backwardTensorLayouts) set(cfg *Config, a *BackwardArgs) {
	l.want = a.outputs()
	batches, rows := a.queryExtent()
	kvBatches, keys := a.kvExtent()
	size, d, dv := cfg.DType.Size(), cfg.HeadDim, cfg.ValueDim()
	set := func(i int, field string, t *Tensor, given bool, size, batch, heads, seq, dim int) {
		if given {
			l.list[i].set(field, t, size, batch, heads, seq, dim)
		}
	}
	set(tensorQ, "Q", &a.Q, true, size, batches, a.Hq, rows, d)
	set(tensorK, "K", &a.K, true, size, kvBatches, a.KVHeads(), keys, d)
	set(tensorV, "V", &a.V, true, size, kvBatches, a.KVHeads(), keys, dv)
	set(tensorO, "O", &a.O, true, size, batches, a.Hq, rows, dv)
	set(tensorLSE, "LSE", &a.LSE, true, F32.Size(), batches, a.Hq, rows, 1)
	set(tensorDO, "DO", &a.DO, true, size, batches, a.Hq, rows, dv)
	set(tensorDLSE, "DLSE", &a.DLSE, a.DLSE.begun(), F32.Size(), batches, a.Hq, rows, 1)
	set(tensorDQ, "DQ", &a.DQ, l.want.q, size, batches, a.Hq, rows, d)
	set(tensorDK, "DK", &a.DK, l.want.k, size, kvBatches, a.KVHeads(), keys, d)
	set(tensorDV, "DV", &a.DV, l.want.v, size, kvBatches, a.KVHeads(), keys, dv)
	if l.want.bias {
		n := a.Bias.sizes(&a.Shape)
		set(tensorDBias, "DBias", &a.DBias, true, F32.Size(), n[0], n[1], n[2], a.Sk)
	}
	sinks := Tensor{Buffer: a.DSinks.Buffer, Host: a.DSinks.Host, Offset: a.DSinks.Offset}
	set(tensorDSinks, "DSinks", &sinks, l.want.sinks, F32.Size(), 1, 1, 1, a.Hq)
}

// checkAll checks a backward call with its O, LSE and outputs, and fills in the layouts.
func (l *backwardTensorLayouts) checkAll(cfg *Config, a *BackwardArgs) error {
	if err := a.check(cfg); err != nil {
		return err
	}
	switch want := a.outputs(); {
	case want == (gradientSet{}):
		return &ShapeError{"DQ", "missing", "DQ, DK, DV, DBias or DSinks"}
	case cfg.HeadDim > MaxHeadDim || cfg.ValueDim() > MaxHeadDim:
		return fmt.Errorf("%w: no tier computes gradients at head dims %d/%d: at most %d each", ErrUnsupported,
			cfg.HeadDim, cfg.ValueDim(), MaxHeadDim)
	}
	l.set(cfg, a)
	for _, i := range [2]int{tensorO, tensorLSE} { // a.check has checked the others
		t := &l.list[i]
		if err := t.checkGiven(); err != nil {
			return err
		}
		if first := l.list[tensorQ].tensor.Buffer != nil; (t.tensor.Buffer != nil) != first {
			return &ShapeError{t.field, side(!first), side(first) + ", where Q is"}
		}
		if err := t.checkBounds(); err != nil {
			return err
		}
	}
	if err := a.checkRowStrides("LSE", a.LSE.Strides); err != nil {
		return err
	}
	return l.checkOutputs(cfg, a)
}

// checkOutputs refuses outputs whose rows overlap, and outputs that overlap another tensor
// or the memory of an option.
func (l *backwardTensorLayouts) checkOutputs(cfg *Config, a *BackwardArgs) error {
	var options optionTensors
	if a.hasOptions(cfg) {
		options.set(cfg, &a.Args)
	}
	for i := firstGradient; i < backwardTensors; i++ {
		out := l.tensor(i)
		if out == nil {
			continue
		}
		if !out.rowsDisjoint() {
			return &ShapeError{out.field + ".Strides", out.tensor.Strides,
				fmt.Sprintf("rows of %d elements that do not overlap", out.dim)}
		}
		for j := range i {
			if other := l.tensor(j); other != nil && out.overlaps(other) {
				return &ShapeError{out.field, "overlapping " + other.field, "memory of its own"}
			}
		}
		for j := range options.all() {
			if other := &options.list[j]; out.overlaps(other) {
				return &ShapeError{out.field, "overlapping " + other.field, "memory of its own"}
			}
		}
	}
	return nil
}

// checkStrides checks the strides against the 32 bits of a kernel's offsets, which span the
// rows of a tile and the query heads of a group.
func (l *backwardTensorLayouts) checkStrides(a *BackwardArgs, tileRows uint32) error {
	return l.each(func(i int, t *layout) error {
		for d, step := range t.steps {
			if t.counts[d] > 1 && step > math.MaxUint32 {
				return fmt.Errorf("%w: %s has a %s stride of 2^32 elements or more", ErrUnsupported, t.field, strideNames[d])
			}
		}
		if i != tensorQ && i != tensorDO && i != tensorDQ {
			return nil
		}
		heads, size := uint64(a.Group())*uint64(t.steps[1]), uint64(t.size)
		if t.counts[2] > 1 && uint64(t.steps[2]) > (math.MaxUint32-min(heads, math.MaxUint32))/uint64(tileRows)/size {
			return fmt.Errorf("%w: %s has a row stride of %d elements: a tile would span 2^32 of them", ErrUnsupported, t.field, t.steps[2])
		}
		return nil
	})
}
