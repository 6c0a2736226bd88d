// Package tensors knows where the tensors of a call lie: their extents and layouts in
// memory, whether they are in bounds and disjoint, the sequences of a batch, and the rows of
// quantized K and V. Functions without an error take arguments that CheckArgs, or the check
// of the operation, has accepted.
package tensors

import (
	"fmt"
	"unsafe"

	"vkattn/internal/hostmem"
	"vkattn/internal/problem"
	"vkattn/vk"
)

// CheckArgs is attention.CheckArgs, which documents it.
func CheckArgs(cfg problem.Config, a problem.Args) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	var l Layouts
	return l.Check(&cfg, &a)
}

// CheckShape is Shape.Validate for a call, which may have no sequences.
func CheckShape(s problem.Shape) error { return problem.ValidateSizes(s, 0, 1) }

// Check is CheckArgs for a valid Config. It fills l with the layouts.
func (l *Layouts) Check(cfg *problem.Config, a *problem.Args) error {
	if err := CheckShape(a.Shape); err != nil {
		return err
	}
	hasOptions := HasOptions(a, cfg)
	if hasOptions {
		if err := checkOptions(a, cfg); err != nil {
			return err
		}
	}
	l.set(cfg, a)
	if err := checkMemory(&l.List[0], l.All()); err != nil {
		return err
	}
	if err := checkRowStrides(a, "LSE", a.LSE.Strides); err != nil {
		return err
	}
	if err := checkOverlaps(l.All(), FirstOutput); err != nil || !hasOptions {
		return err
	}
	return checkOptionTensors(a, cfg, l.All())
}

// CheckInputs is CheckArgs without O and LSE.
func CheckInputs(cfg problem.Config, a problem.Args) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	if err := CheckShape(a.Shape); err != nil {
		return err
	}
	hasOptions := HasOptions(&a, &cfg)
	if hasOptions {
		if err := checkOptions(&a, &cfg); err != nil {
			return err
		}
	}
	var l Layouts
	l.set(&cfg, &a)
	inputs := l.All()[:FirstOutput]
	if err := checkMemory(&inputs[0], inputs); err != nil || !hasOptions {
		return err
	}
	return checkOptionTensors(&a, &cfg, inputs)
}

// checkMemory checks that all tensors with a field are given, on the side of the first and in bounds.
func checkMemory(first *Layout, all []Layout) error {
	side := first.side()
	for i := range all {
		l := &all[i]
		if l.Field == "" {
			continue
		}
		if err := l.CheckGiven(); err != nil {
			return err
		}
		if err := l.checkSide(side, first.Field); err != nil {
			return err
		}
	}
	return checkBounds(all)
}

// checkBounds is CheckBounds of all tensors with a field.
func checkBounds(all []Layout) error {
	for i := range all {
		if all[i].Field == "" {
			continue
		}
		if err := all[i].CheckBounds(); err != nil {
			return err
		}
	}
	return nil
}

// CheckMemory checks that all tensors with a field are given, where the operation computes and in bounds.
func CheckMemory(all []Layout, on Place) error {
	for i := range all {
		l := &all[i]
		if l.Field == "" {
			continue
		}
		if err := l.CheckGiven(); err != nil {
			return err
		}
		if err := l.CheckDevice(on); err != nil {
			return err
		}
	}
	return checkBounds(all)
}

// Layouts are the layouts of Q, K, V, O and, if asked for, LSE. They are an array so
// that a call keeps them on its stack.
type Layouts struct {
	List [5]Layout
	n    int
}

func (l *Layouts) All() []Layout { return l.List[:l.n] }

// VInK reports whether K has one head and V is the first columns of its rows: memory of a device at the same address, however
// often a caller has wrapped it. V of a Latent type is all of K.
func (l *Layouts) VInK() bool {
	k, v := &l.List[1], &l.List[2]
	if k.Counts[1] != 1 || k.quantized && !k.latent || v.quantized && !v.latent || k.latent != v.latent || v.Dim > k.Dim || k.Counts[0] > 1 && k.Steps[0] != v.Steps[0] || k.Counts[2] > 1 && k.Steps[2] != v.Steps[2] || k.side() == inHost {
		return false
	}
	inK, kAt := k.start()
	inV, vAt := v.start()
	return inK == inV && kAt == vAt
}

func (l *Layouts) set(cfg *problem.Config, a *problem.Args) {
	dv := cfg.ValueDim()
	batches, rows := QueryExtent(a)
	l.List[0].Set("Q", &a.Q, cfg.DType, batches, a.Hq, rows, cfg.HeadDim)
	l.List[3].Set("O", &a.O, cfg.OType(), batches, a.Hq, rows, dv)
	if HasLSE(a) {
		l.List[4].Set("LSE", &a.LSE, problem.F32, batches, a.Hq, rows, 1)
	}
	batches, keys := KVExtent(a)
	l.List[1].SetKV("K", &a.K, cfg.KeyType, cfg.DType, batches, a.KVHeads(), keys, cfg.HeadDim)
	l.List[2].SetKV("V", &a.V, cfg.ValueType, cfg.DType, batches, a.KVHeads(), keys, dv)
	l.n = 4
	if HasLSE(a) {
		l.n = 5
	}
}

// checkRowStrides checks that LSE, or a tensor packed as LSE, has the packed strides.
func checkRowStrides(a *problem.Args, field string, s problem.Strides) error {
	_, rows := QueryExtent(a)
	packed := problem.BHSD(a.Hq, rows, 1)
	if s != (problem.Strides{}) && s != packed {
		return &problem.ShapeError{Field: field + ".Strides", Got: s, Want: fmt.Sprintf("packed %v, or zero", packed)}
	}
	return nil
}

// FirstOutput is the index of O in layouts; LSE follows.
const FirstOutput = 3

// checkOverlaps refuses outputs, from the first on, whose rows overlap, or that overlap another tensor with a field.
func checkOverlaps(all []Layout, first int) error {
	for i := first; i < len(all); i++ {
		out := &all[i]
		if out.Field == "" {
			continue
		}
		if !out.RowsDisjoint() {
			return &problem.ShapeError{Field: out.Field + ".Strides", Got: out.Tensor.Strides,
				Want: fmt.Sprintf("rows of %d elements that do not overlap", out.Dim)}
		}
		for j := range i {
			if all[j].Field != "" && out.Overlaps(&all[j]) {
				return &problem.ShapeError{Field: out.Field, Got: problem.Phrase("overlapping ${" + all[j].Field + "}"), Want: "memory of its own"}
			}
		}
	}
	return nil
}

// hostFloor: smaller allocations skip the query of available memory, which takes about
// 0.1 ms.
const hostFloor = 64 << 20

// CheckHost refuses work that does not fit the host's memory, with an error that matches
// vk.ErrOutOfMemory. The size of the caller's tensors is no bound: with strides of 0 a few
// bytes can be a tensor of any size.
func CheckHost(op string, sizes ...uint64) error {
	needed := hostmem.Sum(sizes...)
	if needed < hostFloor {
		return nil
	}
	return vk.CheckHostMemory(op, needed)
}

// ListBytes is the memory of a sample of all rows of a shape.
func ListBytes(s problem.Shape) uint64 {
	return hostmem.Sum(hostmem.Product(uint64(s.B), uint64(s.Hq), uint64(unsafe.Sizeof(problem.Rows{}))), hostmem.Product(s.Sq, 8))
}

// SequenceBytes is the memory of a list of sequences and of a number for each.
func SequenceBytes(s problem.Shape) uint64 {
	return hostmem.Product(uint64(s.B), uint64(unsafe.Sizeof(problem.Sequence{}))+8)
}

// RowKeys is the most keys that a row attends to.
func RowKeys(a *problem.Args) uint64 {
	if list := a.SparseTokens; list != nil {
		if list.TopK != 0 {
			return uint64(max(list.TopK, a.Sk))
		}
		return uint64(max(SparseTotal(a), a.Sk))
	}
	return uint64(a.Sk)
}
