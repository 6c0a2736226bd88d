package attention

import "fmt"

// gradientSet names the gradients that a call computes.
type gradientSet struct{ q, k, v, bias, sinks bool }

// gradientsOf returns the gradients that have an output.
func gradientsOf(a *BackwardArgs) gradientSet {
	return gradientSet{tensorBegun(&a.DQ), tensorBegun(&a.DK), tensorBegun(&a.DV), tensorBegun(&a.DBias), vectorBegun(&a.DSinks)}
}

// checkBackward checks the forward call without O and LSE, the gradients of its outputs, and the
// memory of the outputs that are given. It does not check whether outputs overlap.
func checkBackward(a *BackwardArgs, cfg *Config) error {
	if err := checkInputs(*cfg, a.Args); err != nil {
		return err
	}
	out := gradientsOf(a)
	switch {
	case a.Pages != nil:
		return fmt.Errorf("%w: no tier computes gradients with Pages: K and V must be contiguous or packed", ErrUnsupported)
	case cfg.KV != KVSame:
		return fmt.Errorf("%w: no tier computes gradients with K and V of type %v: they must have the storage type", ErrUnsupported, cfg.KV)
	case out.bias && a.Bias == nil:
		return &ShapeError{"DBias", "given", "none without Bias"}
	case out.sinks && !a.Sinks.Given():
		return &ShapeError{"DSinks", "given", "none without Sinks"}
	case a.Accumulate && !out.q && !out.k && !out.v:
		return &ShapeError{"Accumulate", true, "false without DQ, DK and DV"}
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
	list [8]layout
	n    int
}

func (l *backwardLayouts) all() []layout { return l.list[:l.n] }

func (l *backwardLayouts) set(cfg *Config, a *BackwardArgs, out gradientSet) {
	batches, rows := queryExtent(&a.Args)
	kvBatches, keys := kvExtent(&a.Args)
	size := cfg.DType.Size()
	l.add(true, "Q", &a.Q, size, batches, a.Hq, rows, cfg.HeadDim)
	l.add(true, "DO", &a.DO, size, batches, a.Hq, rows, cfg.ValueDim())
	l.add(tensorBegun(&a.DLSE), "DLSE", &a.DLSE, F32.Size(), batches, a.Hq, rows, 1)
	l.add(out.q, "DQ", &a.DQ, size, batches, a.Hq, rows, cfg.HeadDim)
	l.add(out.k, "DK", &a.DK, size, kvBatches, a.KVHeads(), keys, cfg.HeadDim)
	l.add(out.v, "DV", &a.DV, size, kvBatches, a.KVHeads(), keys, cfg.ValueDim())
	if out.bias {
		n := biasSizes(a.Bias, &a.Shape)
		l.add(true, "DBias", &a.DBias, F32.Size(), n[0], n[1], n[2], a.Sk)
	}
	sinks := Tensor{Buffer: a.DSinks.Buffer, Host: a.DSinks.Host, Offset: a.DSinks.Offset}
	l.add(out.sinks, "DSinks", &sinks, F32.Size(), 1, 1, 1, a.Hq)
}

func (l *backwardLayouts) add(given bool, field string, t *Tensor, size, batch, heads, seq, dim int) {
	if given {
		l.list[l.n].set(field, t, size, batch, heads, seq, dim)
		l.n++
	}
}
