package tensors

import (
	"encoding/binary"
	"fmt"
	"math"

	"vkattn/attention/score"
	"vkattn/internal/arith"
	"vkattn/internal/dropout"
	"vkattn/internal/problem"
)

// The memory of a call's options.

// OptionTensor is a vector or tensor of an option.
type OptionTensor uint8

const (
	CuQ OptionTensor = iota
	CuK
	UsedQ
	UsedK
	PageTable
	SparseOffsets
	SparseTokens
	BlockMap
	Bias
	Mask
	ALiBi
	Sinks
	DropoutState
	MaxLogits // an output
	KScale
	VScale
	FirstTable    // in the order of Tables; the others follow
	OptionTensors = FirstTable + score.MaxTables
)

// optionFields are the fields of Args that name the memory.
var optionFields = [OptionTensors]string{"Varlen.CuQ", "Varlen.CuK", "Varlen.UsedQ", "Varlen.UsedK", "Pages.Table",
	"SparseTokens.Offsets", "SparseTokens.Tokens", "Blocks.Map", "Bias", "Mask", "ALiBi", "Sinks", "DropoutState", "MaxLogits", "KScale", "VScale",
	"Tables", "Tables", "Tables", "Tables"}

// EachOption visits the memory of the options of a call that checkOptions has accepted, until visit returns an error.
// A vector is a layout of one row. It is the only list of that memory: what checks it and what binds it iterate over
// it. Each visit finds the layout in t, which stays on the stack: what a function value takes as an argument does not.
func EachOption(cfg *problem.Config, a *problem.Args, t *Layout, visit func(OptionTensor) error) error {
	s := &a.Shape
	if a.Varlen != nil {
		if err := eachLength(a.Varlen, s.B, t, visit); err != nil {
			return err
		}
	}
	if p := a.Pages; p != nil {
		t.setVector(PageTable, &p.Table, product(s.B, TableStride(p, s)))
		if err := visit(PageTable); err != nil {
			return err
		}
	}
	if k := a.SparseTokens; k != nil {
		if k.TopK == 0 {
			t.setVector(SparseOffsets, &k.Offsets, min(sparseLists(a), math.MaxInt64-1)+1)
			if err := visit(SparseOffsets); err != nil {
				return err
			}
		}
		t.setVector(SparseTokens, &k.Tokens, int64(SparseTotal(a)))
		if err := visit(SparseTokens); err != nil {
			return err
		}
	}
	if b := a.Blocks; b != nil {
		rows, words := BlocksGrid(b, s)
		bits := b.Map.Tensor()
		sizes := [3]int{OrFull(b.Batches, s.B), OrFull(b.Heads, s.Hq), rows}
		t.setBroadcast(BlockMap, &bits, 4, sizes, words)
		if err := visit(BlockMap); err != nil {
			return err
		}
	}
	if b := a.Bias; b != nil {
		t.setBroadcast(Bias, &b.Tensor, b.DType.Size(), BiasSizes(b, s), s.Sk)
		if err := visit(Bias); err != nil {
			return err
		}
	}
	if m := a.Mask; m != nil {
		t.setBroadcast(Mask, &m.Tensor, 1, maskSizes(m, s), s.Sk)
		if err := visit(Mask); err != nil {
			return err
		}
	}
	if err := t.eachVector(ALiBi, &a.ALiBi, int64(s.Hq)+int64(SlopeStride(a))*int64(max(s.B, 1)-1), visit); err != nil {
		return err
	}
	if err := t.eachVector(Sinks, &a.Sinks, int64(s.Hq), visit); err != nil {
		return err
	}
	if err := t.eachVector(DropoutState, &a.DropoutState, dropoutWords, visit); err != nil {
		return err
	}
	if err := t.eachVector(MaxLogits, &a.MaxLogits, int64(s.Hq), visit); err != nil {
		return err
	}
	if len(a.Tables) > 0 {
		for i, declared := range Tables(cfg) {
			m := tableMemory(a, declared.Name())
			t.setVector(FirstTable+OptionTensor(i), &m.Vector, product(m.Dims[:declared.Rank()]...))
			if err := visit(FirstTable + OptionTensor(i)); err != nil {
				return err
			}
		}
	}
	if !VectorBegun(&a.KScale) && !VectorBegun(&a.VScale) {
		return nil
	}
	batches, keys := KVExtent(a)
	n := ScaleStepsOf(cfg.KVBlock, s.KVHeads(), keys).Entries(batches, s.KVHeads())
	if err := t.eachVector(KScale, &a.KScale, n, visit); err != nil {
		return err
	}
	return t.eachVector(VScale, &a.VScale, n, visit)
}

// dropoutWords are the 32-bit words of Args.DropoutState.
const dropoutWords = 4

// DropoutOf is the dropout mask of a call in host memory.
func DropoutOf(cfg *problem.Config, a *problem.Args) dropout.Mask {
	m := dropout.Of(cfg.Dropout, a.DropoutSeed, a.DropoutOffset)
	if v := &a.DropoutState; v.Given() {
		words := v.Host[4*v.Offset:]
		m = m.Moved(binary.LittleEndian.Uint64(words), binary.LittleEndian.Uint64(words[8:]))
	}
	return m
}

// CheckDropoutState checks the state of a call in host memory by itself.
func CheckDropoutState(a *problem.Args) error {
	var l Layout
	return l.eachVector(DropoutState, &a.DropoutState, dropoutWords, func(OptionTensor) error {
		if err := l.CheckGiven(); err != nil {
			return err
		}
		if l.Tensor.Host == nil {
			return &problem.ShapeError{Field: l.Field, Got: "in device memory", Want: "host memory"}
		}
		return l.CheckBounds()
	})
}

// SlopeStride is the distance between the ALiBi slopes of two sequences, 0 if they have the same.
func SlopeStride(a *problem.Args) int {
	if a.ALiBiPerSequence {
		return a.Hq
	}
	return 0
}

// eachLength visits the vectors of a Varlen.
func eachLength(v *problem.Varlen, sequences int, t *Layout, visit func(OptionTensor) error) error {
	n := int64(sequences)
	if err := t.eachVector(CuQ, &v.CuQ, n+1, visit); err != nil {
		return err
	}
	if err := t.eachVector(CuK, &v.CuK, n+1, visit); err != nil {
		return err
	}
	if err := t.eachVector(UsedQ, &v.UsedQ, n, visit); err != nil {
		return err
	}
	return t.eachVector(UsedK, &v.UsedK, n, visit)
}

// eachVector visits a vector of n elements that is given.
func (l *Layout) eachVector(of OptionTensor, v *problem.Vector, n int64, visit func(OptionTensor) error) error {
	if !VectorBegun(v) {
		return nil
	}
	l.setVector(of, v, n)
	return visit(of)
}

// product is a length. One that overflows becomes MaxInt64, which CheckBounds refuses.
func product(sizes ...int) int64 {
	n, ok := arith.Product(sizes...)
	if !ok {
		return math.MaxInt64
	}
	return n
}

// setVector is Set for a vector of n elements.
func (l *Layout) setVector(of OptionTensor, v *problem.Vector, n int64) {
	*l = Layout{
		Field: optionFields[of], Tensor: v.Tensor(),
		Size: 4, Dim: n, Counts: [3]int64{1, 1, 1},
	}
}

// setBroadcast is Set for a tensor of four dimensions, of which one entry may serve all.
func (l *Layout) setBroadcast(of OptionTensor, t *problem.Tensor, size int, sizes [3]int, dim int) {
	*l = Layout{
		Field: optionFields[of], Tensor: *t, Size: int64(size), Dim: int64(dim),
		Counts: [3]int64{int64(sizes[0]), int64(sizes[1]), int64(sizes[2])},
		Steps:  Broadcast(t.Strides, sizes, dim),
	}
}

// checkOptionTensors checks that the memory of every option is given, lies on the side
// of the tensors, is large enough, and does not overlap O or LSE. That of MaxLogits does not overlap any tensor.
func checkOptionTensors(a *problem.Args, cfg *problem.Config, tensors []Layout) error {
	first := tensors[0].side()
	var l Layout
	err := EachOption(cfg, a, &l, func(which OptionTensor) error {
		if err := l.CheckGiven(); err != nil {
			return err
		}
		if err := l.checkSide(first, tensors[0].Field); err != nil {
			return err
		}
		if err := l.CheckBounds(); err != nil {
			return err
		}
		for d, step := range l.Steps {
			if l.Counts[d] > 1 && step > math.MaxUint32 {
				return &problem.ShapeError{Field: l.Field + ".Strides." + StrideNames[d], Got: step, Want: "below 2^32"}
			}
		}
		first := FirstOutput
		if which == MaxLogits {
			first = 0
		}
		for j := first; j < len(tensors); j++ {
			if out := &tensors[j]; out.Overlaps(&l) {
				return &problem.ShapeError{Field: out.Field, Got: problem.Phrase("overlapping ${" + l.Field + "}"), Want: "memory of its own"}
			}
		}
		return nil
	})
	if err != nil || first != inHost {
		return err
	}
	return CheckNumbers(a)
}

// CheckOptionsDevice refuses memory of another device, and options that no kernel takes together.
func CheckOptionsDevice(a *problem.Args, cfg *problem.Config, on Place) error {
	if on.Vulkan != nil && a.Mask != nil && a.Bias != nil && (a.SparseTokens != nil || a.Blocks != nil) {
		return fmt.Errorf("%w: a mask and a bias together with blocks or sparse tokens: only the CPU tier takes all three", problem.ErrUnsupported)
	}
	var l Layout
	return EachOption(cfg, a, &l, func(OptionTensor) error { return l.CheckDevice(on) })
}
