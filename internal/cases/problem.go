package cases

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"sync"

	"vkattn/attention/score"
	"vkattn/internal/operands"
	"vkattn/internal/par"
	"vkattn/internal/problem"
	"vkattn/vk"
)

// Problem is a [Case] in memory. Everything else in its pieces of memory is NaN. Memory
// that the result must not depend on has one content in Image and another one in Spoiled.
type Problem struct {
	Case
	DType problem.DType
	Image [][]byte // each piece of memory, before the call

	layout  MemoryLayout
	extent  extents
	args    problem.Args    // in terms of Image
	piece   [pieceCount]int // the number in Image of each piece; -1: not there
	live    [][]byte        // bits of Image that the result may depend on; nil for the tensors, see liveTensors
	lengths sequenceRows
	data    []sequence // by sequence; nil for a case without Seqs, whose numbers are drawn for the whole batch

	masked struct { // by the mask modifier
		sync.Mutex
		rows map[[3]int][]float64 // which keys it leaves to a sequence, head and row
	}
	sparseCount map[[3]int][]int // of each sequence, key head and row: how often each key is listed
	kScale      []float32        // as placed
	vScale      []float32
}

// The pieces of memory of a Problem.
const (
	pieceQ = iota
	pieceK
	pieceV
	pieceO
	pieceLSE
	pieceCuQ
	pieceCuK
	pieceUsedQ
	pieceUsedK
	pieceTable
	pieceOffsets
	pieceTokens
	pieceBlocks
	pieceBias
	pieceMask
	pieceALiBi
	pieceSinks
	pieceKScale
	pieceVScale
	pieceTables // of modifiers, in the order of Args.Tables
	pieceCount  = pieceTables + score.MaxTables
)

var pieceNames = [pieceTables]string{"Q", "K", "V", "O", "LSE", "CuQ", "CuK", "UsedQ", "UsedK", "Table", "Offsets", "Tokens",
	"Map", "Bias", "Mask", "ALiBi", "Sinks", "KScale", "VScale"}

// pieceName is the name of a piece, as operands have it.
func (p *Problem) pieceName(which int) string {
	if which < pieceTables {
		return pieceNames[which]
	}
	return "Tables[" + p.args.Tables[which-pieceTables].Name + "]"
}

// pieceOf is the number in Image of the piece of an operand.
func (p *Problem) pieceOf(name string) int {
	which := slices.Index(pieceNames[:], name)
	for i := range p.args.Tables {
		if p.pieceName(pieceTables+i) == name {
			which = pieceTables + i
		}
	}
	return p.piece[which]
}

// NewProblem makes the memory of a case in a storage type.
func NewProblem(c Case, dtype problem.DType) (*Problem, error) {
	p, err := blankProblem(c, dtype)
	if err != nil {
		return nil, err
	}
	if c.Seqs != nil {
		p.makeSequences()
	}
	p.layOutSequences()
	p.layOutLists()
	if err := p.layOutTensors(); err != nil {
		return nil, err
	}
	p.layOutModifiers()
	p.layOutTables()
	return p, nil
}

// blankProblem is a problem without numbers and without the memory of options.
func blankProblem(c Case, dtype problem.DType) (*Problem, error) {
	shape := c.Bounds()
	if err := shape.Validate(); err != nil {
		return nil, fmt.Errorf("%v: %w", c, err)
	}
	p := &Problem{Case: c, DType: dtype, layout: LayOut(c, dtype), extent: c.extents()}
	p.seed, p.args.Shape = c.SeedValue(), shape
	if c.Dropout != 0 {
		p.args.DropoutSeed, p.args.DropoutOffset = p.seed*0x9e3779b97f4a7c15, uint32(p.seed>>5)
	}
	for i := range p.piece {
		p.piece[i] = -1
	}
	p.Image = p.Blank()
	p.live = make([][]byte, len(p.Image))
	for i, t := range []*problem.Tensor{&p.args.Q, &p.args.K, &p.args.V, &p.args.O, &p.args.LSE} {
		p.piece[i] = p.layout.Slots[i].Memory
		*t = p.HostTensor(p.Image, i)
	}
	return p, nil
}

// makeSequences makes the numbers of sequences that have an ID.
func (p *Problem) makeSequences() {
	prefix := p.makeSequence(prefixID, 0, p.Prefix, p.DType)
	for _, s := range p.Seqs {
		data := p.makeSequence(s.ID, s.Rows, s.Keys, p.DType)
		for kv := range p.KVHeads() {
			for t := range min(s.Keys, p.Prefix) {
				data.k[kv*s.Keys+t] = prefix.k[kv*p.Prefix+t]
				data.v[kv*s.Keys+t] = prefix.v[kv*p.Prefix+t]
			}
		}
		p.data = append(p.data, data)
	}
}

// Widened is the same problem with the same numbers in float32, packed, each tensor alone
// in its memory. It is for cases without options.
func (p *Problem) Widened() (*Problem, error) {
	c := p.Case
	c.Layout = Tight
	w, err := blankProblem(c, problem.F32)
	if err != nil {
		return nil, err
	}
	for i := range TensorO {
		x, err := p.Read(p.Image, i)
		if err == nil {
			err = w.Write(w.Image, i, x)
		}
		if err != nil {
			return nil, err
		}
	}
	return w, nil
}

// NaNPair is a NaN read as f16, as bf16 and, twice in a row, as f32.
const NaNPair = 0x7fff

// filler is the content of unused memory: NaN as f16, bf16 and f32, and large as an
// integer.
const filler = NaNPair<<16 | NaNPair

func fill(b []byte, pattern uint32) {
	var word [4]byte
	binary.LittleEndian.PutUint32(word[:], pattern)
	for done := copy(b, word[:]); done > 0 && done < len(b); done *= 2 {
		copy(b[done:], b[:done])
	}
}

// Blank is memory for the tensors, full of NaN.
func (p *Problem) Blank() [][]byte {
	var images [][]byte
	for _, n := range p.layout.Bytes {
		b := make([]byte, n)
		fill(b, filler)
		images = append(images, b)
	}
	return images
}

// newPiece makes a piece of memory for an option, with nothing live in it.
func (p *Problem) newPiece(which int, bytes int64) int {
	b := make([]byte, bytes)
	fill(b, filler)
	p.piece[which] = len(p.Image)
	p.Image = append(p.Image, b)
	p.live = append(p.live, make([]byte, bytes))
	return p.piece[which]
}

// vector puts 32-bit words into a piece of memory. The result depends on the live words
// only; nil means that all are live. bind replaces the Vector's Host memory later.
func (p *Problem) vector(which int, words []uint32, live func(i int) bool) problem.Vector {
	guard := p.guard()
	if which%2 == 1 && guard > 0 {
		guard++ // so that some offsets are odd
	}
	m := p.newPiece(which, 4*(2*guard+int64(max(len(words), 1))))
	for i, w := range words {
		at := 4 * (guard + int64(i))
		binary.LittleEndian.PutUint32(p.Image[m][at:], w)
		if live == nil || live(i) {
			fill(p.live[m][at:at+4], math.MaxUint32)
		}
	}
	return problem.Vector{Host: p.Image[m], Offset: guard}
}

func words[T int32 | int](list []T) []uint32 {
	out := make([]uint32, len(list))
	for i, v := range list {
		out[i] = uint32(int32(v))
	}
	return out
}

func floatWords(list []float32) []uint32 {
	out := make([]uint32, len(list))
	for i, v := range list {
		out[i] = math.Float32bits(v)
	}
	return out
}

// Outputs are the indices in Image of the memory of O and LSE.
func (p *Problem) Outputs() []int {
	list := []int{p.layout.Slots[TensorO].Memory}
	if m := p.layout.Slots[TensorLSE].Memory; m >= 0 && m != list[0] {
		list = append(list, m)
	}
	return list
}

// Sizes returns the heads, rows and elements per row of a tensor.
func (p *Problem) Sizes(i int) (heads, seq, dim int) {
	e := &p.extent
	switch i {
	case TensorQ:
		return p.Hq, e.queryRows, p.D
	case TensorK:
		return p.KVHeads(), e.kvRows, p.D
	case TensorV:
		return p.KVHeads(), e.kvRows, p.Dv
	case TensorO:
		return p.Hq, e.queryRows, p.Dv
	}
	return p.Hq, e.queryRows, 1
}

// batches are the batches, or pages, of a tensor.
func (p *Problem) batches(i int) int {
	if i == TensorK || i == TensorV {
		return p.extent.kvBatches
	}
	return p.extent.queryBatches
}

// View is a tensor of the problem in host memory.
func (p *Problem) View(images [][]byte, i int) (problem.HostView, error) {
	heads, seq, dim := p.Sizes(i)
	dtype := p.DType
	if i == TensorLSE {
		dtype = problem.F32
	}
	return problem.ViewHost(p.HostTensor(images, i), dtype, heads, seq, dim)
}

// HostTensor is a tensor in the given images; the zero Tensor for a missing LSE.
func (p *Problem) HostTensor(images [][]byte, i int) problem.Tensor {
	at := p.layout.Slots[i]
	if at.Memory < 0 {
		return problem.Tensor{}
	}
	return problem.Tensor{Host: images[at.Memory], Offset: at.Offset, Strides: at.Strides}
}

// EachRow visits the rows of a tensor in packed order.
func (p *Problem) EachRow(i int, visit func(b, h, row int)) {
	heads, seq, _ := p.Sizes(i)
	for b := range p.batches(i) {
		for h := range heads {
			for row := range seq {
				visit(b, h, row)
			}
		}
	}
}

// Write puts packed numbers into a tensor.
func (p *Problem) Write(images [][]byte, i int, x []float32) error {
	v, err := p.View(images, i)
	if err != nil {
		return err
	}
	heads, seq, dim := p.Sizes(i)
	if p.Layout == Broadcast || p.Layout == Window {
		// Rows share memory, and the last one written stays: write them in order.
		p.EachRow(i, func(b, h, row int) {
			v.WriteRow(x[:dim], b, h, row)
			x = x[dim:]
		})
		return nil
	}
	par.Each(int64(p.batches(i)*heads), func() func(int64) {
		return func(n int64) {
			b, h := int(n)/heads, int(n)%heads
			for row := range seq {
				v.WriteRow(x[(int(n)*seq+row)*dim:][:dim], b, h, row)
			}
		}
	})
	return nil
}

// Read returns the packed numbers of a tensor.
func (p *Problem) Read(images [][]byte, i int) ([]float32, error) {
	v, err := p.View(images, i)
	if err != nil {
		return nil, err
	}
	heads, seq, dim := p.Sizes(i)
	x := make([]float32, p.batches(i)*heads*seq*dim)
	par.Each(int64(p.batches(i)*heads), func() func(int64) {
		return func(n int64) {
			v.ReadRows(x[int(n)*seq*dim:], int(n)/heads, int(n)%heads, 0, seq)
		}
	})
	return x, nil
}

// spoilPatterns replace memory that the result must not depend on: numbers that are not
// finite in some type, indices out of range, and 0.
var spoilPatterns = []uint32{0xffffffff, 0x7c007c00, 0x7f807f80, 0xff800000, 0x7f8000ff, 0x80000001, 0, 0xfc00fc00}

// Spoiled is the memory with everything changed that the result must not depend on: keys
// that no row attends to, memory past the ends of sequences, unused pages and entries of
// the block table, gaps, and the outputs.
func (p *Problem) Spoiled() [][]byte {
	pattern := spoilPatterns[p.mix(mixSpoil)%uint64(len(spoilPatterns))]
	images, tensors := make([][]byte, len(p.Image)), p.liveTensors()
	for m, from := range p.Image {
		to := make([]byte, len(from))
		fill(to, pattern)
		live := p.live[m]
		if live == nil {
			live = tensors[m]
		}
		for i, bits := range live {
			to[i] = from[i]&bits | to[i]&^bits
		}
		images[m] = to
	}
	return images
}

// Spoilers are pairs of values for K and V. A weight of 0 must not be multiplied by them.
var Spoilers = func() [][2]float32 {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	return [][2]float32{{nan, nan}, {inf, inf}, {-inf, nan}, {nan, -inf}, {1e4, inf}}
}()

// Spoil returns the memory with the keys from index first on replaced by a Spoiler, in K
// and in V. Pieces of memory without K and V are shared with Image.
func (p *Problem) Spoil(first int) ([][]byte, error) {
	images := append([][]byte(nil), p.Image...)
	copied := map[int]bool{}
	for _, i := range []int{TensorK, TensorV} {
		m := p.layout.Slots[i].Memory
		if !copied[m] {
			images[m] = append([]byte(nil), images[m]...)
			copied[m] = true
		}
	}
	bad := Spoilers[p.SeedValue()%uint64(len(Spoilers))]
	for n, i := range []int{TensorK, TensorV} {
		v, err := p.View(images, i)
		if err != nil {
			return nil, err
		}
		row := make([]float32, v.Dim())
		for j := range row {
			row[j] = bad[n]
		}
		p.EachRow(i, func(b, h, key int) {
			if key >= first {
				v.WriteRow(row, b, h, key)
			}
		})
	}
	return images, nil
}

// HostArgs are the arguments of a call in host memory.
func (p *Problem) HostArgs(images [][]byte) problem.Args {
	a := operands.Clone(p.args)
	p.place(&a, func(o operands.Operand, m int) { o.OnHost(images[m]) })
	return a
}

// DeviceArgs are the arguments of a call on a device, with one buffer for each piece of
// memory.
func (p *Problem) DeviceArgs(buffers []*vk.Buffer) problem.Args {
	a := operands.Clone(p.args)
	p.place(&a, func(o operands.Operand, m int) { o.OnDevice(buffers[m]) })
	return a
}

// MemoryArgs is DeviceArgs on a device that is not Vulkan's.
func (p *Problem) MemoryArgs(memory []*problem.Memory) problem.Args {
	a := operands.Clone(p.args)
	p.place(&a, func(o operands.Operand, m int) { o.OnMemory(memory[m]) })
	return a
}

// place sets the memory of arguments that begin as p.args.
func (p *Problem) place(a *problem.Args, memory func(o operands.Operand, m int)) {
	for _, o := range operands.List(p.Config(Target{DType: p.DType}), a) {
		memory(o, p.pieceOf(o.Name))
	}
}

// written marks the bytes that a call writes: O and LSE of the existing rows. It is nil
// for pieces of inputs.
func (p *Problem) written() [][]bool {
	mask := make([][]bool, len(p.Image))
	p.eachOutput(func(which int, _, _, _ int, at, bytes int64) {
		m := p.piece[which]
		if mask[m] == nil {
			mask[m] = make([]bool, len(p.Image[m]))
		}
		for i := range bytes {
			mask[m][at+i] = true
		}
	})
	return mask
}

// Trespass reports the first byte that changed and is not an output.
func (p *Problem) Trespass(before, after [][]byte) error {
	return p.trespass(before, after, p.written())
}

func (p *Problem) trespass(before, after [][]byte, written [][]bool) error {
	for m := range before {
		if written[m] == nil && bytes.Equal(before[m], after[m]) {
			continue
		}
		for i := range before[m] {
			if before[m][i] != after[m][i] && (written[m] == nil || !written[m][i]) {
				return fmt.Errorf("byte %d of %d of the memory of %s was overwritten: %#02x became %#02x",
					i, len(before[m]), p.nameOf(m), before[m][i], after[m][i])
			}
		}
	}
	return nil
}

// nameOf lists the tensors and vectors in a piece of memory.
func (p *Problem) nameOf(m int) (names string) {
	for which, piece := range p.piece {
		if piece == m && names == "" {
			names = p.pieceName(which)
		} else if piece == m {
			names += " and " + p.pieceName(which)
		}
	}
	return names
}
