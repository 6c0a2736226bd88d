package attention

import "fmt"

// BackwardArgs are the tensors of one backward call: the forward call, the gradients of
// its outputs, and the outputs for the gradients of its inputs. All lie on the same side,
// device or host. Sequences are packed or padded as in the forward call (see [Varlen]).
// Q, K, V, O and DO may overlap each other. DQ, DK, DV, DBias and DSinks must not overlap
// anything.
type BackwardArgs struct {
	Args // of the forward call, with O and LSE as it has written them

	DO   Tensor // [B, Hq, Sq, HeadDimV]: gradient of O, in the storage type
	DLSE Tensor // optional gradient of LSE; float32, packed as LSE

	// Gradients to compute, each of them optional. DQ, DK and DV are in the storage type and
	// have the sizes of Q, K and V. DK and DV are sums over the query heads of a group.
	DQ, DK, DV Tensor
	DBias      Tensor // float32 [Batches, Heads, Rows, Sk] of Bias, summed over each dimension of size 1
	DSinks     Vector // float32 [Hq], summed over the batch

	Accumulate bool // add to what DQ, DK and DV hold; false: overwrite it
}

// gradientSet names the gradients that a call computes.
type gradientSet struct{ q, k, v, bias, sinks bool }

// outputs returns the gradients that have an output.
func (a *BackwardArgs) outputs() gradientSet {
	return gradientSet{a.DQ.begun(), a.DK.begun(), a.DV.begun(), a.DBias.begun(), a.DSinks.begun()}
}

// check checks the forward call without O and LSE, the gradients of its outputs, and the
// memory of the outputs that are given. It does not check whether outputs overlap.
func (a *BackwardArgs) check(cfg *Config) error {
	if err := checkInputs(*cfg, a.Args); err != nil {
		return err
	}
	out := a.outputs()
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
	return a.checkRowStrides("DLSE", a.DLSE.Strides)
}

// backwardLayouts are the layouts of Q and of the tensors that only a backward call has.
// Q is the first: it says on which side all of them lie.
type backwardLayouts struct {
	list [8]layout
	n    int
}

func (l *backwardLayouts) all() []layout { return l.list[:l.n] }

func (l *backwardLayouts) set(cfg *Config, a *BackwardArgs, out gradientSet) {
	batches, rows := a.queryExtent()
	kvBatches, keys := a.kvExtent()
	size := cfg.DType.Size()
	l.add(true, "Q", &a.Q, size, batches, a.Hq, rows, cfg.HeadDim)
	l.add(true, "DO", &a.DO, size, batches, a.Hq, rows, cfg.ValueDim())
	l.add(a.DLSE.begun(), "DLSE", &a.DLSE, F32.Size(), batches, a.Hq, rows, 1)
	l.add(out.q, "DQ", &a.DQ, size, batches, a.Hq, rows, cfg.HeadDim)
	l.add(out.k, "DK", &a.DK, size, kvBatches, a.KVHeads(), keys, cfg.HeadDim)
	l.add(out.v, "DV", &a.DV, size, kvBatches, a.KVHeads(), keys, cfg.ValueDim())
	if out.bias {
		n := a.Bias.sizes(&a.Shape)
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
