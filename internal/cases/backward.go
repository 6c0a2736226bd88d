package cases

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"

	"vkattn/attention/score"
	"vkattn/internal/accuracy"
	"vkattn/internal/inputs"
	"vkattn/internal/oracle"
	"vkattn/internal/problem"
	"vkattn/internal/tensors"
	"vkattn/vk"
)

// Backward is the backward call of a [Case] in memory: a [Problem] with LSE, the gradients
// of its outputs, and room for every gradient that the call can have.
type Backward struct {
	*Problem
	Image  [][]byte // of the Problem, then of the tensors below
	pieces [backwardPieces]*gradient
	once   sync.Once
	err    error
	truth  *accuracy.ExpectedGradients
}

// The pieces of memory of a Backward. They follow the pieces of its Problem.
const (
	pieceDO = iota
	pieceDLSE
	pieceDQ
	pieceDK
	pieceDV
	pieceDBias
	pieceDSinks
	pieceDTables   // of given modifiers, in the order of Args.Tables
	backwardPieces = pieceDTables + score.MaxTables
)

// fusedPieces are the pieces that lie in one memory where the tensors of their sizes do.
var fusedPieces = map[int]int{pieceDO: TensorO, pieceDQ: TensorQ, pieceDK: TensorK, pieceDV: TensorV}

// gradient is a tensor of a Backward in its own memory, which is NaN elsewhere.
type gradient struct {
	name                     string
	dtype                    problem.DType
	batches, heads, seq, dim int
	offset                   int64
	strides                  problem.Strides // resolved
	image                    int
	ofRows, ofKeys           bool // of rows or keys of sequences; neither: of the whole tensor
}

// element is the first element of a row.
func (g *gradient) element(batch, h, row int) int64 {
	return g.offset + int64(batch)*g.strides.Batch + int64(h)*g.strides.Head + int64(row)*g.strides.Seq
}

// row is the memory of a row.
func (g *gradient) row(image []byte, batch, h, row int) []byte {
	size := int64(g.dtype.Size())
	return image[g.element(batch, h, row)*size:][:int64(g.dim)*size]
}

func (g *gradient) tensor() problem.Tensor {
	return problem.Tensor{Offset: g.offset, Strides: g.strides}
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
	b := &Backward{Problem: p, Image: append([][]byte(nil), p.Image...)}
	batches, rows := p.queryExtent()
	kvBatches, keys := p.kvExtent()
	slot := func(i int) problem.Strides {
		if c.Layout == Broadcast || c.Layout == Window || c.VInK && i == TensorV {
			return problem.Strides{} // rows of an output do not overlap
		}
		return p.layout.Slots[i].Strides
	}
	fused := -1 // the image of dO, dQ, dK and dV in the layout Fused
	add := func(which int, g gradient) {
		g.strides = g.strides.Resolve(g.heads, g.seq, g.dim)
		g.offset = p.guard()
		if c.Layout == Odd {
			g.offset += 1 + 2*int64(which)
		}
		batchStep := g.strides.Batch
		if g.batches == 1 {
			batchStep = 0
		}
		end := g.offset + int64(g.batches-1)*batchStep + int64(g.heads-1)*g.strides.Head + int64(g.seq-1)*g.strides.Seq + int64(g.dim) + p.guard()
		image := make([]byte, end*int64(g.dtype.Size()))
		fill(image, filler)
		g.image = len(b.Image)
		if i, ok := fusedPieces[which]; ok && c.Layout == Fused {
			g.offset = p.layout.Slots[i].Offset
			if fused < 0 {
				fused = g.image
				image = make([]byte, len(p.Image[p.layout.Slots[i].Memory]))
				fill(image, filler)
			}
			g.image = fused
		}
		if g.image == len(b.Image) {
			b.Image = append(b.Image, image)
		}
		b.pieces[which] = &g
	}
	hq, hkv := c.Hq, c.KVHeads()
	add(pieceDO, gradient{name: "dO", dtype: dtype, batches: batches, heads: hq, seq: rows, dim: c.Dv, strides: slot(TensorO), ofRows: true})
	add(pieceDLSE, gradient{name: "dLSE", dtype: problem.F32, batches: batches, heads: hq, seq: rows, dim: 1, ofRows: true})
	add(pieceDQ, gradient{name: "dQ", dtype: dtype, batches: batches, heads: hq, seq: rows, dim: c.D, strides: slot(TensorQ), ofRows: true})
	add(pieceDK, gradient{name: "dK", dtype: dtype, batches: kvBatches, heads: hkv, seq: keys, dim: c.D, strides: slot(TensorK), ofKeys: true})
	add(pieceDV, gradient{name: "dV", dtype: dtype, batches: kvBatches, heads: hkv, seq: keys, dim: c.Dv, strides: slot(TensorV), ofKeys: true})
	if c.Bias.On {
		size := func(each bool, n int) int {
			if each {
				return n
			}
			return 1
		}
		add(pieceDBias, gradient{name: "dBias", dtype: problem.F32, batches: size(c.Bias.Batches, p.args.B),
			heads: size(c.Bias.Heads, hq), seq: size(c.Bias.Rows, p.args.Sq), dim: p.args.Sk})
	}
	if c.Sinks {
		add(pieceDSinks, gradient{name: "dSinks", dtype: problem.F32, batches: 1, heads: 1, seq: 1, dim: hq})
	}
	for i, t := range p.args.Tables {
		if p.hasTableGradient(t.Name) {
			add(pieceDTables+i, gradient{name: "dTables[" + t.Name + "]", dtype: problem.F32, batches: 1, heads: 1, seq: 1,
				dim: t.Dims[0] * max(t.Dims[1], 1) * max(t.Dims[2], 1)})
		}
	}
	for _, which := range []int{pieceDO, pieceDLSE} {
		g := b.pieces[which]
		values := make([]float32, batches*hq*rows*g.dim)
		problem.F32.Decode(values, inputs.New(int64(len(values)), problem.F32, inputs.Normal, p.SeedValue()^uint64(0x9e37*which+0x5bd1)))
		b.eachRow(g, func(_, h, row, batch, at int) {
			n := ((batch*hq+h)*rows + at) * g.dim
			g.dtype.Encode(g.row(b.Image[g.image], batch, h, at), values[n:n+g.dim])
		})
	}
	return b, nil
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

// eachRow visits the rows or keys of sequences in the order of problem.Gradients: row
// `row` of sequence seq is row `at` of a batch of the tensor.
func (b *Backward) eachRow(g *gradient, visit func(seq, h, row, batch, at int)) {
	if !g.ofRows && !g.ofKeys {
		for batch := range g.batches {
			for h := range g.heads {
				for row := range g.seq {
					visit(batch, h, row, batch, row)
				}
			}
		}
		return
	}
	for seq, s := range b.sequences() {
		n, where := s.Rows, b.queryRow
		if g.ofKeys {
			n, where = s.Keys, b.kvRow
		}
		for h := range g.heads {
			for row := range n {
				batch, at := where(seq, row)
				visit(seq, h, row, batch, at)
			}
		}
	}
}

// eachPast visits the rows of an output that a sequence has past its end.
func (b *Backward) eachPast(g *gradient, visit func(seq, h, batch, at int)) {
	for seq, s := range b.sequences() {
		first, n, extent, batch := 0, s.Rows, b.args.Sq, seq
		if g.ofKeys {
			n, extent = s.Keys, b.args.Sk
		}
		switch {
		case g.ofRows && b.PackedQ:
			first, extent, batch = b.lengths.startQ[seq], int(b.lengths.cuQ[seq+1]-b.lengths.cuQ[seq]), 0
		case g.ofKeys && b.PackedK:
			first, extent, batch = b.lengths.startK[seq], int(b.lengths.cuK[seq+1]-b.lengths.cuK[seq]), 0
		case !g.ofRows && !g.ofKeys:
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
func (b *Backward) outputs() (list []*gradient) {
	for _, g := range b.pieces[pieceDQ:] {
		if g != nil {
			list = append(list, g)
		}
	}
	return list
}

// BackwardHostArgs are the arguments of the call in host memory.
func (b *Backward) BackwardHostArgs(images [][]byte) problem.BackwardArgs {
	return b.bindBackward(b.HostArgs(images), func(t *problem.Tensor, g *gradient) { t.Host = images[g.image] })
}

// BackwardDeviceArgs are the arguments of the call on a device, with one buffer for each
// piece of memory.
func (b *Backward) BackwardDeviceArgs(buffers []*vk.Buffer) problem.BackwardArgs {
	return b.bindBackward(b.DeviceArgs(buffers), func(t *problem.Tensor, g *gradient) { t.Buffer = buffers[g.image] })
}

// BackwardMemoryArgs is BackwardDeviceArgs on a device that is not Vulkan's.
func (b *Backward) BackwardMemoryArgs(memory []*problem.Memory) problem.BackwardArgs {
	return b.bindBackward(b.MemoryArgs(memory), func(t *problem.Tensor, g *gradient) { t.Memory = memory[g.image] })
}

func (b *Backward) bindBackward(forward problem.Args, memory func(*problem.Tensor, *gradient)) problem.BackwardArgs {
	a := problem.BackwardArgs{Args: forward}
	for which, t := range map[int]*problem.Tensor{pieceDO: &a.DO, pieceDQ: &a.DQ, pieceDK: &a.DK, pieceDV: &a.DV, pieceDBias: &a.DBias} {
		if g := b.pieces[which]; g != nil {
			*t = g.tensor()
			memory(t, g)
		}
	}
	a.DLSE.Offset = b.pieces[pieceDLSE].offset
	memory(&a.DLSE, b.pieces[pieceDLSE])
	vector := func(g *gradient) problem.Vector {
		t := g.tensor()
		memory(&t, g)
		return problem.Vector{Buffer: t.Buffer, Host: t.Host, Memory: t.Memory, Offset: t.Offset}
	}
	if g := b.pieces[pieceDSinks]; g != nil {
		a.DSinks = vector(g)
	}
	for i, t := range a.Tables {
		if g := b.pieces[pieceDTables+i]; g != nil {
			a.DTables = append(a.DTables, problem.Table{Name: t.Name, Vector: vector(g)})
		}
	}
	return a
}

// BackwardSpoiled is the memory with everything changed that no gradient may depend on: all
// that Spoiled changes, dO and dLSE of rows that do not exist or attend to nothing, and the
// outputs.
func (b *Backward) BackwardSpoiled() [][]byte {
	pattern := spoilPatterns[b.mix(mixSpoil)%uint64(len(spoilPatterns))]
	images := b.Spoiled()
	for range b.Image[len(images):] {
		image := make([]byte, len(b.Image[len(images)]))
		fill(image, pattern)
		images = append(images, image)
	}
	for _, which := range []int{pieceDO, pieceDLSE} {
		g := b.pieces[which]
		b.eachRow(g, func(seq, h, row, batch, at int) {
			if b.attends(seq, h, row) || which == pieceDLSE && b.Sinks {
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
	written := map[int]bool{}
	for _, m := range b.Outputs() {
		written[m] = true // O and LSE, by the forward call: Problem.Trespass judges them
	}
	expected, names := map[int][]byte{}, map[int]string{}
	for _, g := range b.outputs() {
		if expected[g.image] == nil {
			expected[g.image] = bytes.Clone(before[g.image])
		}
		written[g.image], names[g.image] = true, names[g.image]+" "+g.name
		image := expected[g.image]
		b.eachRow(g, func(_, h, _, batch, at int) {
			copy(g.row(image, batch, h, at), g.row(after[g.image], batch, h, at))
		})
		b.eachPast(g, func(_, h, batch, at int) { clear(g.row(image, batch, h, at)) })
	}
	for m, image := range expected {
		if !bytes.Equal(image, after[m]) {
			return fmt.Errorf("memory of%s: a byte outside of their rows was written, or a row past the end of its sequence is not 0", names[m])
		}
	}
	for m := range before {
		if !written[m] && !bytes.Equal(before[m], after[m]) {
			return fmt.Errorf("memory %d was written", m)
		}
	}
	return b.Trespass(before[:len(b.Problem.Image)], after[:len(b.Problem.Image)])
}

// BackwardSame compares the gradients of two calls bit by bit.
func (b *Backward) BackwardSame(x, y [][]byte) (err error) {
	for _, g := range b.outputs() {
		b.eachRow(g, func(seq, h, row, batch, at int) {
			first, second := g.row(x[g.image], batch, h, at), g.row(y[g.image], batch, h, at)
			if err == nil && !bytes.Equal(first, second) {
				err = fmt.Errorf("%s of sequence %d, head %d, row %d was %v and is %v", g.name, seq, h, row,
					decodeFloats(first, g.dtype), decodeFloats(second, g.dtype))
			}
		})
	}
	return err
}

// judgeKinds compares which elements of the gradients are finite with the reference, and
// the finite ones roughly: the rules of BackwardJudge do not bound the errors of inputs with
// Inf and NaN.
func (b *Backward) judgeKinds(after [][]byte) error {
	ref, err := oracle.ReferenceBackward(b.Config(Target{DType: b.DType}), b.inputsOnly())
	if err != nil {
		return fmt.Errorf("reference: %w", err)
	}
	for _, x := range []struct {
		g        *gradient
		ref      []float64
		perBatch int // rows of a batch and head in ref
	}{
		{b.pieces[pieceDQ], ref.DQ, b.args.Sq}, {b.pieces[pieceDK], ref.DK, b.args.Sk}, {b.pieces[pieceDV], ref.DV, b.args.Sk},
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
	a.O, a.LSE, a.DQ, a.DK, a.DV, a.DBias = problem.Tensor{}, problem.Tensor{}, problem.Tensor{}, problem.Tensor{}, problem.Tensor{}, problem.Tensor{}
	a.DSinks, a.DTables = problem.Vector{}, nil
	return a
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
	for i := range v.Gradients {
		if !v.Gradients[i].Pass() { // one without rows does
			return errors.New(v.String())
		}
	}
	return nil
}
