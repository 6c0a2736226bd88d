package attention

import "fmt"

// CheckArgs reports the first error in a call as a *ShapeError. It checks the Config
// and the Shape, missing memory, mixed host and device memory, negative offsets and
// strides, memory too short for the last row (without overflow), overlapping rows of O,
// and O or LSE overlapping another tensor. It checks the options of Args in the same
// way but reads no vector. A combination of options that no tier computes matches
// [ErrUnsupported]. Every tier calls CheckArgs before it accesses memory.
//
// Overlap is judged from addresses and strides alone. A few unusual layouts that do not
// overlap are refused, because neither the sizes of the strides nor their common divisor
// proves it. Two buffers that alias the same device memory are not recognized as one.
func CheckArgs(cfg Config, a Args) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	var l layouts
	return l.check(&cfg, &a)
}

// check is CheckArgs for a valid Config. It fills l with the layouts.
func (l *layouts) check(cfg *Config, a *Args) error {
	if err := a.Shape.Validate(); err != nil {
		return err
	}
	hasOptions := hasOptions(a, cfg)
	if hasOptions {
		if err := checkOptions(a, cfg); err != nil {
			return err
		}
	}
	l.set(cfg, a)
	if err := checkMemory(l.all()); err != nil {
		return err
	}
	if err := checkRowStrides(a, "LSE", a.LSE.Strides); err != nil {
		return err
	}
	if err := checkOverlaps(l.all()); err != nil || !hasOptions {
		return err
	}
	return checkOptionTensors(a, cfg, l.all())
}

// checkInputs is CheckArgs without O and LSE.
func checkInputs(cfg Config, a Args) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	if err := a.Shape.Validate(); err != nil {
		return err
	}
	hasOptions := hasOptions(&a, &cfg)
	if hasOptions {
		if err := checkOptions(&a, &cfg); err != nil {
			return err
		}
	}
	var l layouts
	l.set(&cfg, &a)
	inputs := l.all()[:firstOutput]
	if err := checkMemory(inputs); err != nil || !hasOptions {
		return err
	}
	return checkOptionTensors(&a, &cfg, inputs)
}

// checkMemory checks that all tensors are given, on one side and in bounds.
func checkMemory(all []layout) error {
	first := all[0].tensor.Buffer != nil
	for i := range all {
		l := &all[i]
		if err := l.checkGiven(); err != nil {
			return err
		}
		if onDevice := l.tensor.Buffer != nil; onDevice != first {
			return &ShapeError{l.field, side(onDevice), side(first) + ", where " + all[0].field + " is"}
		}
	}
	for i := range all {
		if err := all[i].checkBounds(); err != nil {
			return err
		}
	}
	return nil
}

// layouts are the layouts of Q, K, V, O and, if asked for, LSE. They are an array so
// that a call keeps them on its stack.
type layouts struct {
	list [5]layout
	n    int
}

func (l *layouts) all() []layout { return l.list[:l.n] }

func (l *layouts) set(cfg *Config, a *Args) {
	size, dv := cfg.DType.Size(), cfg.ValueDim()
	batches, rows := queryExtent(a)
	l.list[0].set("Q", &a.Q, size, batches, a.Hq, rows, cfg.HeadDim)
	l.list[3].set("O", &a.O, size, batches, a.Hq, rows, dv)
	if hasLSE(a) {
		l.list[4].set("LSE", &a.LSE, F32.Size(), batches, a.Hq, rows, 1)
	}
	batches, keys := kvExtent(a)
	l.list[1].setKV("K", &a.K, cfg, batches, a.KVHeads(), keys, cfg.HeadDim)
	l.list[2].setKV("V", &a.V, cfg, batches, a.KVHeads(), keys, dv)
	l.n = 4
	if hasLSE(a) {
		l.n = 5
	}
}

// checkRowStrides checks that LSE, or a tensor packed as LSE, has the packed strides.
func checkRowStrides(a *Args, field string, s Strides) error {
	_, rows := queryExtent(a)
	packed := BHSD(a.Hq, rows, 1)
	if s != (Strides{}) && s != packed {
		return &ShapeError{field + ".Strides", s, fmt.Sprintf("packed %v, or zero", packed)}
	}
	return nil
}

// firstOutput is the index of O in layouts; LSE follows.
const firstOutput = 3

func checkOverlaps(all []layout) error {
	for i := firstOutput; i < len(all); i++ {
		out := &all[i]
		if !out.rowsDisjoint() {
			return &ShapeError{out.field + ".Strides", out.tensor.Strides,
				fmt.Sprintf("rows of %d elements that do not overlap", out.dim)}
		}
		for j := range i {
			if out.overlaps(&all[j]) {
				return &ShapeError{out.field, "overlapping " + all[j].field, "memory of its own"}
			}
		}
	}
	return nil
}

func side(device bool) string {
	if device {
		return "in device memory"
	}
	return "in host memory"
}
