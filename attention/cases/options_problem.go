package cases

import (
	"encoding/binary"
	"fmt"
	"math"

	"vkattn/attention"
	"vkattn/vk"
)

// OptionsProblem is a OptionsCase in memory. Memory that the result must not
// depend on has one content in Image and another one in Spoiled.
type OptionsProblem struct {
	OptionsCase
	DType attention.DType
	Image [][]byte // each piece of memory, before the call

	live    [][]byte // bits of Image that the result may depend on; nil for outputs
	written [][]bool // bytes that a call writes; nil for inputs
	args    attention.Args
	piece   [pieceCount]int // -1: not there
	lengths sequenceRows
	data    []sequence

	sparseCount [][]int   // of each (sequence, key head): how often each key is listed
	kScale      []float32 // as placed
	vScale      []float32
}

// The pieces of memory of a OptionsProblem.
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
	pieceCount
)

var pieceNames = [pieceCount]string{"Q", "K", "V", "O", "LSE", "CuQ", "CuK", "UsedQ", "UsedK", "Table", "Offsets", "Tokens",
	"Blocks", "Bias", "Mask", "ALiBi", "Sinks", "KScale", "VScale"}

// NewOptionsProblem makes the memory of a case in a storage type.
func NewOptionsProblem(c OptionsCase, dtype attention.DType) (*OptionsProblem, error) {
	p := &OptionsProblem{OptionsCase: c, DType: dtype}
	p.seed = c.SeedValue()
	for i := range p.piece {
		p.piece[i] = -1
	}
	shape := c.Shape()
	if err := shape.Validate(); err != nil {
		return nil, fmt.Errorf("%v: %w", c, err)
	}
	prefix := p.makeSequence(prefixID, 0, c.Prefix, dtype)
	for _, s := range c.Seqs {
		data := p.makeSequence(s.ID, s.Rows, s.Keys, dtype)
		for kv := range c.Hkv {
			for t := range min(s.Keys, c.Prefix) {
				data.k[kv*s.Keys+t] = prefix.k[kv*c.Prefix+t]
				data.v[kv*s.Keys+t] = prefix.v[kv*c.Prefix+t]
			}
		}
		p.data = append(p.data, data)
	}
	p.args.Shape = shape
	p.layOutSequences()
	p.layOutLists()
	p.layOutTensors()
	p.layOutModifiers()
	return p, nil
}

// filler is what memory holds where there is nothing: NaN as f16, bf16 and f32,
// and large as an integer.
const filler = NaNPair<<16 | NaNPair

func fill(b []byte, pattern uint32) {
	var word [4]byte
	binary.LittleEndian.PutUint32(word[:], pattern)
	for done := copy(b, word[:]); done > 0 && done < len(b); done *= 2 {
		copy(b[done:], b[:done])
	}
}

// newPiece makes a piece of memory for an input, none of it live yet.
func (p *OptionsProblem) newPiece(which int, bytes int64) int {
	b := make([]byte, bytes)
	fill(b, filler)
	p.piece[which] = len(p.Image)
	p.Image = append(p.Image, b)
	p.live = append(p.live, make([]byte, bytes))
	p.written = append(p.written, nil)
	return p.piece[which]
}

// guard is what lies before and after tensors and vectors, in elements.
func (p *OptionsProblem) guard() int64 {
	switch {
	case p.Layout == Tight:
		return 0
	case p.KV.Blocked():
		return 96
	}
	return Guard
}

// vector puts 32-bit words into memory of their own; dead ones have no bearing on
// the result. The Vector is in terms of Host, to be bound later.
func (p *OptionsProblem) vector(which int, words []uint32, live func(i int) bool) attention.Vector {
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
	return attention.Vector{Host: p.Image[m], Offset: guard}
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

// spoilPatterns replace what has no bearing on the result: numbers that are not
// finite in some type, indices far out, and 0.
var spoilPatterns = []uint32{0xffffffff, 0x7c007c00, 0x7f807f80, 0xff800000, 0x7f8000ff, 0x80000001, 0, 0xfc00fc00}

// Spoiled is the memory with all else changed that has no bearing on the result:
// keys that no row attends to, what lies past the ends of sequences, unused pages
// and entries of the table, gaps, and the outputs.
func (p *OptionsProblem) Spoiled() [][]byte {
	pattern := spoilPatterns[p.mix(mixSpoil)%uint64(len(spoilPatterns))]
	images := make([][]byte, len(p.Image))
	for m, from := range p.Image {
		to := make([]byte, len(from))
		fill(to, pattern)
		for i, bits := range p.live[m] {
			to[i] = from[i]&bits | to[i]&^bits
		}
		images[m] = to
	}
	return images
}

// HostArgs are the arguments of a call in host memory.
func (p *OptionsProblem) HostArgs(images [][]byte) attention.Args {
	return p.bind(
		func(t *attention.Tensor, m int) { t.Host = images[m] },
		func(v *attention.Vector, m int) { v.Host = images[m] })
}

// DeviceArgs are the arguments of a call on a device that holds the pieces of
// memory.
func (p *OptionsProblem) DeviceArgs(buffers []*vk.Buffer) attention.Args {
	return p.bind(
		func(t *attention.Tensor, m int) { t.Buffer, t.Host = buffers[m], nil },
		func(v *attention.Vector, m int) { v.Buffer, v.Host = buffers[m], nil })
}

// bind copies the arguments and puts memory under them.
func (p *OptionsProblem) bind(tensor func(*attention.Tensor, int), vector func(*attention.Vector, int)) attention.Args {
	a := p.args
	tensors := map[int]*attention.Tensor{pieceQ: &a.Q, pieceK: &a.K, pieceV: &a.V, pieceO: &a.O, pieceLSE: &a.LSE}
	vectors := map[int]*attention.Vector{pieceALiBi: &a.ALiBi, pieceSinks: &a.Sinks, pieceKScale: &a.KScale, pieceVScale: &a.VScale}
	if a.Varlen != nil {
		v := *a.Varlen
		a.Varlen = &v
		vectors[pieceCuQ], vectors[pieceCuK], vectors[pieceUsedQ], vectors[pieceUsedK] = &v.CuQ, &v.CuK, &v.UsedQ, &v.UsedK
	}
	if a.Pages != nil {
		v := *a.Pages
		a.Pages = &v
		vectors[pieceTable] = &v.Table
	}
	if a.SparseTokens != nil {
		v := *a.SparseTokens
		a.SparseTokens = &v
		vectors[pieceOffsets], vectors[pieceTokens] = &v.Offsets, &v.Tokens
	}
	if a.Blocks != nil {
		v := *a.Blocks
		a.Blocks = &v
		vectors[pieceBlocks] = &v.Map
	}
	if a.Bias != nil {
		v := *a.Bias
		a.Bias = &v
		tensors[pieceBias] = &v.Tensor
	}
	if a.Mask != nil {
		v := *a.Mask
		a.Mask = &v
		tensors[pieceMask] = &v.Tensor
	}
	for which, t := range tensors {
		if m := p.piece[which]; m >= 0 {
			tensor(t, m)
		}
	}
	for which, v := range vectors {
		if m := p.piece[which]; m >= 0 {
			vector(v, m)
		}
	}
	return a
}
