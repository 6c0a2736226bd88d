package merge

import (
	"fmt"
	"math"

	"vkattn/internal/arith"
	"vkattn/internal/backend"
	"vkattn/internal/problem"
	"vkattn/internal/tensors"
)

// The tensors of a merge, in the order of the bindings of shaders/merge.comp.
const (
	mergeFirst = iota
	mergeSecond
	mergeFirstLSE
	mergeO
	mergeLSE
	mergeSecondLSE
	mergeTensors
)

// mergeLayouts are the tensors of a call. They are an array so that a call keeps them on
// its stack. A tensor that is left out has no states.
type mergeLayouts struct {
	list [mergeTensors]stack
}

// call is the call for a device of another kind.
func (l *mergeLayouts) call() backend.MergeCall {
	of := func(i int) backend.State {
		t := &l.list[i]
		return backend.State{Layout: t.Layout, States: t.states, Step: t.step}
	}
	return backend.MergeCall{First: of(mergeFirst), FirstLSE: of(mergeFirstLSE), Second: of(mergeSecond), SecondLSE: of(mergeSecondLSE),
		O: of(mergeO), LSE: of(mergeLSE)}
}

// stack is a tensor of several states at equal distances. The layout is the first state's.
type stack struct {
	tensors.Layout
	states int64 // 1 for the result; 0: left out
	step   int64 // elements between consecutive states; 0 for one state
}

// check checks a call and fills l with its layouts.
func (m *Merge) check(l *mergeLayouts, a *MergeArgs) error {
	if err := problem.ValidateSizes(problem.Shape{B: a.B, Hq: a.Hq, Sq: a.Sq, Sk: 1}, 0, 0); err != nil {
		return err
	}
	if err := l.set(&m.cfg, a); err != nil {
		return err
	}
	if m.sum {
		l.list[mergeFirstLSE].states, l.list[mergeSecondLSE].states = 0, 0
	}
	if err := l.checkMemory(m.on); err != nil {
		return err
	}
	return l.checkOverlaps()
}

func (l *mergeLayouts) set(cfg *MergeConfig, a *MergeArgs) error {
	dtype, dim := cfg.stateType(), cfg.HeadDim
	l.list[mergeFirst].Set("First.O", &a.First.O, dtype, a.B, a.Hq, a.Sq, dim)
	l.list[mergeFirstLSE].Set("First.LSE", &a.First.LSE, problem.F32, a.B, a.Hq, a.Sq, 1)
	l.list[mergeO].Set("O", &a.O, cfg.DType, a.B, a.Hq, a.Sq, dim)
	l.list[mergeO].states = 1
	if err := l.stack("First", &a.First, mergeFirst, mergeFirstLSE); err != nil {
		return err
	}
	if a.Second.given() {
		l.list[mergeSecond].Set("Second.O", &a.Second.O, dtype, a.B, a.Hq, a.Sq, dim)
		l.list[mergeSecondLSE].Set("Second.LSE", &a.Second.LSE, problem.F32, a.B, a.Hq, a.Sq, 1)
		if err := l.stack("Second", &a.Second, mergeSecond, mergeSecondLSE); err != nil {
			return err
		}
	}
	if tensors.TensorBegun(&a.LSE) {
		l.list[mergeLSE].Set("LSE", &a.LSE, problem.F32, a.B, a.Hq, a.Sq, 1)
		l.list[mergeLSE].states = 1
	}
	if n := l.list[mergeFirst].states + l.list[mergeSecond].states; n > problem.MaxStates {
		return &problem.ShapeError{Field: "First.Count + Second.Count", Got: n, Want: fmt.Sprintf("at most %d", problem.MaxStates)}
	}
	return nil
}

// stack sets the tensors of a group of states.
func (l *mergeLayouts) stack(field string, s *States, o, lse int) error {
	switch {
	case s.Count < 0 || s.Count > problem.MaxStates:
		return &problem.ShapeError{Field: field + ".Count", Got: s.Count, Want: fmt.Sprintf("1 to %d, or 0 for 1", problem.MaxStates)}
	case s.StepO < 0:
		return &problem.ShapeError{Field: field + ".StepO", Got: s.StepO, Want: "at least 0"}
	case s.StepLSE < 0:
		return &problem.ShapeError{Field: field + ".StepLSE", Got: s.StepLSE, Want: "at least 0"}
	}
	for _, x := range [2]struct {
		tensor int
		step   int64
	}{{o, s.StepO}, {lse, s.StepLSE}} {
		t := &l.list[x.tensor]
		t.states = max(1, int64(s.Count))
		if t.states == 1 {
			continue
		}
		if t.step = x.step; t.step == 0 {
			var ok bool
			if t.step, ok = arith.Product(t.Counts[0], t.Counts[1], t.Counts[2], t.Dim); !ok {
				return t.TooLarge()
			}
		}
	}
	return nil
}

// checkMemory checks that all tensors are given, on the operation's side and in bounds,
// and that LSE is packed.
func (l *mergeLayouts) checkMemory(on tensors.Place) error {
	for i := range l.list {
		t := &l.list[i]
		if t.states == 0 {
			continue
		}
		if err := t.CheckGiven(); err != nil {
			return err
		}
		if err := t.CheckDevice(on); err != nil {
			return err
		}
	}
	for i := range l.list {
		t := &l.list[i]
		if t.states == 0 {
			continue
		}
		if s := t.Tensor.Strides; isLSE(i) && s != (problem.Strides{}) && t.Steps != packedSteps(t.Counts) {
			return &problem.ShapeError{Field: t.Field + ".Strides", Got: s, Want: "packed, or zero"}
		}
		if err := t.checkBounds(); err != nil {
			return err
		}
	}
	return nil
}

func isLSE(tensor int) bool {
	return tensor == mergeFirstLSE || tensor == mergeSecondLSE || tensor == mergeLSE
}

// packedSteps returns the strides of a packed tensor with one element per row.
func packedSteps(counts [3]int64) [3]int64 { return [3]int64{counts[1] * counts[2], counts[2], 1} }

// CheckBounds is layout.checkBounds for the first and the last state.
func (t *stack) checkBounds() error {
	if err := t.Layout.CheckBounds(); err != nil {
		return err
	}
	if t.states == 1 {
		return nil
	}
	far, ok := arith.Mul(t.states-1, t.step)
	if ok {
		_, ok = arith.Add(far, t.Tensor.Offset)
	}
	if !ok {
		return &problem.ShapeError{Field: t.Field, Got: fmt.Sprintf("%d states at distances of %d elements", t.states, t.step), Want: "an extent below 2^63 bytes"}
	}
	last := t.state(t.states - 1)
	return last.CheckBounds()
}

// state returns the layout of state i.
func (t *stack) state(i int64) tensors.Layout {
	s := t.Layout
	s.Tensor.Offset += i * t.step
	return s
}

// checkOverlaps checks the result against itself and every state.
func (l *mergeLayouts) checkOverlaps() error {
	o, lse := &l.list[mergeO], &l.list[mergeLSE]
	if !o.RowsDisjoint() {
		return &problem.ShapeError{Field: o.Field + ".Strides", Got: o.Tensor.Strides,
			Want: fmt.Sprintf("rows of %d elements that do not overlap", o.Dim)}
	}
	if lse.states != 0 && lse.Overlaps(&o.Layout) {
		return &problem.ShapeError{Field: lse.Field, Got: "overlapping " + o.Field, Want: "memory of its own"}
	}
	for _, i := range [4]int{mergeFirst, mergeSecond, mergeFirstLSE, mergeSecondLSE} {
		in := &l.list[i]
		for n := range in.states {
			state := in.state(n)
			if err := checkResult(o, &state, in, !isLSE(i) && o.Size == in.Size); err != nil {
				return err
			}
			if lse.states == 0 {
				continue
			}
			if err := checkResult(lse, &state, in, isLSE(i)); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkResult refuses a result that overlaps a state without being exactly that state.
func checkResult(out *stack, state *tensors.Layout, in *stack, alike bool) error {
	if !out.Overlaps(state) || alike && out.Coincides(state) {
		return nil
	}
	want := "memory of its own"
	if alike {
		want += ", or exactly the memory of one state"
	}
	return &problem.ShapeError{Field: out.Field, Got: "overlapping " + in.Field, Want: want}
}

// fits32 refuses sizes and strides that exceed the kernel's 32 bits.
func (l *mergeLayouts) fits32() error {
	if rows := l.list[mergeO].Counts[1] * l.list[mergeO].Counts[2]; rows > math.MaxInt32 {
		return fmt.Errorf("%w: a batch of %d rows, at most 2^31 - 1 are possible", problem.ErrUnsupported, rows)
	}
	for i := range l.list {
		t := &l.list[i]
		switch {
		case t.states == 0:
		case !isLSE(i) && (t.Steps[1] > math.MaxUint32 || t.Steps[2] > math.MaxUint32):
			return fmt.Errorf("%w: %s has a head or row stride of 2^32 elements or more", problem.ErrUnsupported, t.Field)
		case t.step > math.MaxUint32:
			return fmt.Errorf("%w: the distance between states of %s is 2^32 elements or more", problem.ErrUnsupported, t.Field)
		}
	}
	return nil
}
