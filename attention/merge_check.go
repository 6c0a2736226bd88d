package attention

import (
	"fmt"
	"math"

	"vkattn/vk"
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

// stack is a tensor of several states at equal distances. The layout is that of the
// first state.
type stack struct {
	layout
	states int64 // 1 for the result; 0: left out
	step   int64 // elements between consecutive states; 0 for one state
}

// check checks a call and fills l with its layouts.
func (m *Merge) check(l *mergeLayouts, a *MergeArgs) error {
	if m.pipelines.closed.Load() {
		return fmt.Errorf("attention: %w", vk.ErrClosed)
	}
	sizes := Shape{B: a.B, Hq: a.Hq, Sq: a.Sq, Sk: 1}
	if err := sizes.Validate(); err != nil {
		return err
	}
	if err := l.set(&m.cfg, a); err != nil {
		return err
	}
	if err := l.checkMemory(m.dev); err != nil {
		return err
	}
	return l.checkOverlaps()
}

func (l *mergeLayouts) set(cfg *MergeConfig, a *MergeArgs) error {
	size, dim := cfg.DType.Size(), cfg.HeadDim
	l.list[mergeFirst].set("First.O", &a.First.O, size, a.B, a.Hq, a.Sq, dim)
	l.list[mergeFirstLSE].set("First.LSE", &a.First.LSE, F32.Size(), a.B, a.Hq, a.Sq, 1)
	l.list[mergeO].set("O", &a.O, size, a.B, a.Hq, a.Sq, dim)
	l.list[mergeO].states = 1
	if err := l.stack("First", &a.First, mergeFirst, mergeFirstLSE); err != nil {
		return err
	}
	if a.Second.given() {
		l.list[mergeSecond].set("Second.O", &a.Second.O, size, a.B, a.Hq, a.Sq, dim)
		l.list[mergeSecondLSE].set("Second.LSE", &a.Second.LSE, F32.Size(), a.B, a.Hq, a.Sq, 1)
		if err := l.stack("Second", &a.Second, mergeSecond, mergeSecondLSE); err != nil {
			return err
		}
	}
	if tensorBegun(&a.LSE) {
		l.list[mergeLSE].set("LSE", &a.LSE, F32.Size(), a.B, a.Hq, a.Sq, 1)
		l.list[mergeLSE].states = 1
	}
	if n := l.list[mergeFirst].states + l.list[mergeSecond].states; n > MaxStates {
		return &ShapeError{"First.Count + Second.Count", n, fmt.Sprintf("at most %d", MaxStates)}
	}
	return nil
}

// stack sets the tensors of a group of states.
func (l *mergeLayouts) stack(field string, s *States, o, lse int) error {
	switch {
	case s.Count < 0 || s.Count > MaxStates:
		return &ShapeError{field + ".Count", s.Count, fmt.Sprintf("1 to %d, or 0 for 1", MaxStates)}
	case s.StepO < 0:
		return &ShapeError{field + ".StepO", s.StepO, "at least 0"}
	case s.StepLSE < 0:
		return &ShapeError{field + ".StepLSE", s.StepLSE, "at least 0"}
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
			if t.step, ok = product(t.counts[0], t.counts[1], t.counts[2], t.dim); !ok {
				return t.tooLarge()
			}
		}
	}
	return nil
}

// checkMemory checks that all tensors are given, on the operation's side and in bounds,
// and that LSE is packed.
func (l *mergeLayouts) checkMemory(dev *vk.Device) error {
	for i := range l.list {
		t := &l.list[i]
		if t.states == 0 {
			continue
		}
		if err := t.checkGiven(); err != nil {
			return err
		}
		if err := t.checkDevice(dev); err != nil {
			return err
		}
	}
	for i := range l.list {
		t := &l.list[i]
		if t.states == 0 {
			continue
		}
		if s := t.tensor.Strides; isLSE(i) && s != (Strides{}) && t.steps != packedSteps(t.counts) {
			return &ShapeError{t.field + ".Strides", s, "packed, or zero"}
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

// checkBounds is layout.checkBounds for the first and the last state.
func (t *stack) checkBounds() error {
	if err := t.layout.checkBounds(); err != nil {
		return err
	}
	if t.states == 1 {
		return nil
	}
	far, ok := mul(t.states-1, t.step)
	if ok {
		_, ok = add(far, t.tensor.Offset)
	}
	if !ok {
		return &ShapeError{t.field, fmt.Sprintf("%d states at distances of %d elements", t.states, t.step), "an extent below 2^63 bytes"}
	}
	last := t.state(t.states - 1)
	return last.checkBounds()
}

// state returns the layout of state i.
func (t *stack) state(i int64) layout {
	s := t.layout
	s.tensor.Offset += i * t.step
	return s
}

// checkOverlaps checks the result against itself and every state.
func (l *mergeLayouts) checkOverlaps() error {
	o, lse := &l.list[mergeO], &l.list[mergeLSE]
	if !o.rowsDisjoint() {
		return &ShapeError{o.field + ".Strides", o.tensor.Strides,
			fmt.Sprintf("rows of %d elements that do not overlap", o.dim)}
	}
	if lse.states != 0 && lse.overlaps(&o.layout) {
		return &ShapeError{lse.field, "overlapping " + o.field, "memory of its own"}
	}
	for _, i := range [4]int{mergeFirst, mergeSecond, mergeFirstLSE, mergeSecondLSE} {
		in := &l.list[i]
		for n := range in.states {
			state := in.state(n)
			if err := checkResult(o, &state, in, !isLSE(i)); err != nil {
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
func checkResult(out *stack, state *layout, in *stack, alike bool) error {
	if !out.overlaps(state) || alike && out.coincides(state) {
		return nil
	}
	want := "memory of its own"
	if alike {
		want += ", or exactly that of one state"
	}
	return &ShapeError{out.field, "overlapping " + in.field, want}
}

// fits32 refuses sizes and strides that exceed the kernel's 32 bits.
func (l *mergeLayouts) fits32() error {
	if rows := l.list[mergeO].counts[1] * l.list[mergeO].counts[2]; rows > math.MaxInt32 {
		return fmt.Errorf("%w: a batch of %d rows, at most 2^31 - 1 are possible", ErrUnsupported, rows)
	}
	for i := range l.list {
		t := &l.list[i]
		switch {
		case t.states == 0:
		case !isLSE(i) && (t.steps[1] > math.MaxUint32 || t.steps[2] > math.MaxUint32):
			return fmt.Errorf("%w: %s has a head or row stride of 2^32 elements or more", ErrUnsupported, t.field)
		case t.step > math.MaxUint32:
			return fmt.Errorf("%w: the distance between states of %s is 2^32 elements or more", ErrUnsupported, t.field)
		}
	}
	return nil
}
