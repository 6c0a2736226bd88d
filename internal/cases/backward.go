package cases

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"

	"vkattn/attention/score"
	"vkattn/internal/accuracy"
	"vkattn/internal/inputs"
	"vkattn/internal/operands"
	"vkattn/internal/oracle"
	"vkattn/internal/problem"
	"vkattn/internal/tensors"
	"vkattn/vk"
)

// Backward is the backward call of a [Case] in memory: a [Problem] with LSE, the gradients
// of its outputs, and room for every gradient that the call can have.
type Backward struct {
	*Problem
	Image     [][]byte // of the Problem, then of the tensors below
	call      problem.BackwardArgs
	gradients []*rows // of outputs, then of inputs, in the order of the fields of BackwardArgs
	once      sync.Once
	err       error
	truth     *accuracy.ExpectedGradients
}

// gradientOf is a gradient by its name, such as dQ; nil if the call has none.
func (b *Backward) gradientOf(name string) *rows {
	if i := slices.IndexFunc(b.gradients, func(g *rows) bool { return g.name == name }); i >= 0 {
		return b.gradients[i]
	}
	return nil
}

// HasGradients reports whether a call like c has gradients: K and V are not paged, of the
// storage type, and of head dims that backward kernels compute.
func (c Case) HasGradients() bool {
	return c.PageSize == 0 && !c.PerRow && c.KeyType == problem.KVSame && c.D <= problem.MaxHeadDim && c.Dv <= problem.MaxHeadDim
}

// NewBackward makes the memory of the backward call of a case in a storage type.
func NewBackward(c Case, dtype problem.DType) (*Backward, error) {
	c.LSE = true
	p, err := NewProblem(c, dtype)
	if err != nil {
		return nil, err
	}
	b := &Backward{Problem: p, Image: slices.Clone(p.Image)}
	a := &b.call
	// The gradients of tensors lie as these do, but rows of an output do not overlap.
	for _, g := range []struct {
		name string
		to   *problem.Tensor
		of   int
	}{{"dO", &a.DO, TensorO}, {"dLSE", &a.DLSE, TensorLSE}, {"dQ", &a.DQ, TensorQ}, {"dK", &a.DK, TensorK}, {"dV", &a.DV, TensorV}} {
		t := p.tensors[g.of]
		if c.Layout == Broadcast || c.Layout == Window || c.VInK && g.of == TensorV {
			t.strides = problem.Strides{}
		}
		t.name = g.name
		*g.to = b.add(t, g.of)
	}
	if c.Bias.On {
		t := rows{name: "dBias", dtype: problem.F32, dim: p.args.Sk}
		t.batches, t.heads, t.seq = c.Bias.extent(p.args.Shape)
		a.DBias = b.add(t, -1)
	}
	vector := func(name string, n int) problem.Vector {
		t := b.add(rows{name: name, dtype: problem.F32, batches: 1, heads: 1, seq: 1, dim: n}, -1)
		return problem.Vector{Host: t.Host, Offset: t.Offset}
	}
	if c.Sinks {
		a.DSinks = vector("dSinks", c.Hq)
	}
	for _, t := range p.args.Tables {
		if p.hasTableGradient(t.Name) {
			a.DTables = append(a.DTables, problem.Table{Name: t.Name, Vector: vector("dTables["+t.Name+"]", t.Dims[0]*max(t.Dims[1], 1)*max(t.Dims[2], 1))})
		}
	}
	for i, g := range b.gradients[:2] { // dO and dLSE
		values := randomFloats(int64(g.batches*g.heads*g.seq*g.dim), inputs.Normal, p.SeedValue()^uint64(0x9e37*i+0x5bd1))
		b.eachRow(g, func(_, h, row, batch, at int) {
			n := ((batch*g.heads+h)*g.seq + at) * g.dim
			g.dtype.Encode(g.row(b.Image[g.image], batch, h, at), values[n:n+g.dim])
		})
	}
	return b, nil
}

// add gives a gradient memory of its own. In the layout Fused those of tensors, but of LSE, lie in one memory.
func (b *Backward) add(g rows, of int) problem.Tensor {
	g.strides = g.strides.Resolve(g.heads, g.seq, g.dim)
	g.offset = b.guard()
	if b.Layout == Odd {
		g.offset += 1 + 2*int64(len(b.gradients))
	}
	size := g.bytes(g.end() + b.guard())
	g.image = len(b.Image)
	if b.Layout == Fused && of >= 0 && of != TensorLSE {
		fused := &b.tensors[of]
		g.offset, size = fused.offset, int64(len(b.Problem.Image[fused.image]))
		if of != TensorO { // the first of them
			g.image = b.gradients[0].image
		}
	}
	if g.image == len(b.Image) {
		b.Image = append(b.Image, filled(size, filler))
	}
	b.gradients = append(b.gradients, &g)
	b.pieces["D"+g.name[1:]] = g.image
	t := g.tensor()
	t.Host = b.Image[g.image]
	return t
}

// hasTableGradient reports whether the call computes the gradient of a table. Of drawn modifiers it computes none.
func (p *Problem) hasTableGradient(name string) bool {
	if p.Modifiers == nil {
		return false
	}
	cfg := p.Config(Target{DType: p.DType})
	i := slices.IndexFunc(tensors.Tables(&cfg), func(t score.Table) bool { return t.Name() == name })
	return i >= 0 && tensors.HasTableGradient(&cfg, &p.args, i)
}

// eachPast visits the rows of an output that a sequence has past its end.
func (b *Backward) eachPast(g *rows, visit func(seq, h, batch, at int)) {
	for seq, s := range b.sequences() {
		first, n, extent, batch := 0, s.Rows, b.args.Sq, seq
		if g.of == ofKeys {
			n, extent = s.Keys, b.args.Sk
		}
		switch {
		case g.of == ofQueries && b.PackedQ:
			first, extent, batch = b.lengths.startQ[seq], int(b.lengths.cuQ[seq+1]-b.lengths.cuQ[seq]), 0
		case g.of == ofKeys && b.PackedK:
			first, extent, batch = b.lengths.startK[seq], int(b.lengths.cuK[seq+1]-b.lengths.cuK[seq]), 0
		case g.of == ofTensor:
			continue
		}
		for h := range g.heads {
			for row := n; row < extent; row++ {
				visit(seq, h, batch, first+row)
			}
		}
	}
}

// outputs are the gradients that a call computes.
func (b *Backward) outputs() []*rows { return b.gradients[2:] }

// BackwardHostArgs are the arguments of the call in host memory.
func (b *Backward) BackwardHostArgs(images [][]byte) problem.BackwardArgs {
	return b.BackwardArgs(func(o operands.Operand, m int) { o.OnHost(images[m]) })
}

// BackwardDeviceArgs are the arguments of the call on a device, with one buffer for each
// piece of memory.
func (b *Backward) BackwardDeviceArgs(buffers []*vk.Buffer) problem.BackwardArgs {
	return b.BackwardArgs(func(o operands.Operand, m int) { o.OnDevice(buffers[m]) })
}

// BackwardMemoryArgs is BackwardDeviceArgs on a device that is not Vulkan's.
func (b *Backward) BackwardMemoryArgs(memory []*problem.Memory) problem.BackwardArgs {
	return b.BackwardArgs(func(o operands.Operand, m int) { o.OnMemory(memory[m]) })
}

// BackwardArgs is Args of the backward call.
func (b *Backward) BackwardArgs(place func(o operands.Operand, piece int)) problem.BackwardArgs {
	a := b.call
	a.Args = b.args
	a = operands.CloneBackward(a)
	for _, o := range operands.ListBackward(b.Config(Target{DType: b.DType}), &a) {
		place(o, b.pieces[o.Name])
	}
	return a
}

// BackwardSpoiled is the memory with everything changed that no gradient may depend on: all
// that Spoiled changes, dO and dLSE of rows that do not exist or attend to nothing, and the
// outputs.
func (b *Backward) BackwardSpoiled() [][]byte {
	pattern := spoilPatterns[b.mix(mixSpoil)%uint64(len(spoilPatterns))]
	images := b.Spoiled()
	for _, image := range b.Image[len(images):] {
		images = append(images, filled(int64(len(image)), pattern))
	}
	for _, g := range b.gradients[:2] { // dO and dLSE
		b.eachRow(g, func(seq, h, row, batch, at int) {
			if b.attends(seq, h, row) || g.name == "dLSE" && b.Sinks {
				copy(g.row(images[g.image], batch, h, at), g.row(b.Image[g.image], batch, h, at))
			}
		})
	}
	return images
}

// attends reports whether a row attends to any key.
func (b *Backward) attends(seq, h, row int) bool {
	from, to := b.span(seq, row)
	for t := from; t < to; t++ {
		if b.Weight(seq, h, row, t) > 0 {
			return true
		}
	}
	return false
}

// BackwardTrespass reports a byte that the call must not write: outside of the outputs, or
// in padding rows.
func (b *Backward) BackwardTrespass(before, after [][]byte) error {
	return b.trespass(before, after, func(allow allowRow) {
		b.allowExisting(append(b.Problem.outputs(), b.outputs()...), allow)
		for _, g := range b.outputs() {
			b.eachPast(g, func(_, h, batch, at int) { clear(allow(g, batch, h, at)) })
		}
	})
}

// BackwardSame compares the gradients of two calls bit by bit.
func (b *Backward) BackwardSame(x, y [][]byte) error { return b.same(b.outputs(), x, y, math.MaxInt) }

// judgeKinds compares which elements of the gradients are finite with the reference, and
// the finite ones roughly: the rules of BackwardJudge do not bound the errors of inputs with
// Inf and NaN.
func (b *Backward) judgeKinds(after [][]byte) error {
	ref, err := oracle.ReferenceBackward(b.Config(Target{DType: b.DType}), b.inputsOnly())
	if err != nil {
		return fmt.Errorf("reference: %w", err)
	}
	for _, x := range []struct {
		g        *rows
		ref      []float64
		perBatch int // rows of a batch and head in ref
	}{
		{b.gradientOf("dQ"), ref.DQ, b.args.Sq}, {b.gradientOf("dK"), ref.DK, b.args.Sk}, {b.gradientOf("dV"), ref.DV, b.args.Sk},
	} {
		most := 0.0 // of the finite ones
		for _, v := range x.ref {
			if finite(v) {
				most = max(most, math.Abs(v))
			}
		}
		var wrong error
		b.eachRow(x.g, func(seq, h, row, batch, at int) {
			n := ((seq*x.g.heads+h)*x.perBatch + row) * x.g.dim
			for i, got := range decodeFloats(x.g.row(after[x.g.image], batch, h, at), x.g.dtype) {
				want, got := x.ref[n+i], float64(got)
				if wrong == nil && (finite(want) != finite(got) || finite(want) && math.Abs(want-got) > most/8) {
					wrong = fmt.Errorf("%s is %v, want %v, in sequence %d, head %d, row %d, column %d", x.g.name, got, want, seq, h, row, i)
				}
			}
		})
		if wrong != nil {
			return wrong
		}
	}
	return nil
}

// inputsOnly is the call in host memory without what it computes.
func (b *Backward) inputsOnly() problem.BackwardArgs {
	a := b.BackwardHostArgs(b.Image)
	a.O, a.LSE = problem.Tensor{}, problem.Tensor{}
	return problem.BackwardArgs{Args: a.Args, DO: a.DO, DLSE: a.DLSE}
}

// BackwardJudge applies the rules for gradients to what a call left in memory.
func (b *Backward) BackwardJudge(after [][]byte) error {
	if b.Extremes.NonFinite {
		return b.judgeKinds(after)
	}
	b.once.Do(func() { b.truth, b.err = accuracy.ExpectGradients(b.Config(Target{DType: b.DType}), b.inputsOnly()) })
	if b.err != nil {
		return fmt.Errorf("reference: %w", b.err)
	}
	v, err := b.truth.Judge(b.BackwardHostArgs(after))
	if err != nil {
		return err
	}
	for i := range v.Tensors {
		if !v.Tensors[i].Pass() { // one without rows does
			return errors.New(v.String())
		}
	}
	return nil
}
