package cases

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"

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

	tensors [Tensors]rows
	args    problem.Args   // in terms of Image
	pieces  map[string]int // the number in Image of the piece of each operand
	live    [][]byte       // bits of Image that the result may depend on; nil for the tensors, see liveTensors
	lengths sequenceRows
	data    []sequence // by sequence; nil for a case without Seqs, whose numbers are drawn for the whole batch
	user    Modifiers

	masked struct { // by the mask modifier
		sync.Mutex
		rows map[[3]int][]float64 // which keys of its span it leaves to a sequence, head and row
	}
	sparseCount map[[3]int][]int // of each sequence, key head and row: how often each key is listed
	kScale      []float32        // as placed
	vScale      []float32
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
	layout := LayOut(c, dtype)
	p := &Problem{Case: c, DType: dtype, tensors: layout.tensors, pieces: map[string]int{}}
	p.seed, p.args.Shape = c.SeedValue(), shape
	if c.Dropout != 0 {
		p.args.DropoutSeed, p.args.DropoutOffset = p.seed*0x9e3779b97f4a7c15, uint32(p.seed>>5)
	}
	p.user = p.userModifiers()
	for _, n := range layout.Bytes {
		p.Image = append(p.Image, filled(n, filler))
	}
	p.live = make([][]byte, len(p.Image))
	for i, t := range []*problem.Tensor{&p.args.Q, &p.args.K, &p.args.V, &p.args.O, &p.args.LSE} {
		if *t = p.HostTensor(p.Image, i); t.Given() {
			p.pieces[TensorNames[i]] = p.tensors[i].image
		}
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

// filled is memory full of a pattern.
func filled(bytes int64, pattern uint32) []byte {
	b := make([]byte, bytes)
	fill(b, pattern)
	return b
}

// newPiece makes a piece of memory for an operand, with nothing live in it.
func (p *Problem) newPiece(name string, bytes int64) (image, live []byte) {
	image, live = filled(bytes, filler), make([]byte, bytes)
	p.pieces[name] = len(p.Image)
	p.Image, p.live = append(p.Image, image), append(p.live, live)
	return image, live
}

// vector puts 32-bit words into a piece of memory. The result depends on the live words
// only; nil means that all are live. Args replaces the Vector's Host memory later.
func (p *Problem) vector(name string, words []uint32, live func(i int) bool) problem.Vector {
	guard := p.guard()
	if len(p.Image)%2 == 1 && guard > 0 {
		guard++ // so that some offsets are odd
	}
	image, bits := p.newPiece(name, 4*(2*guard+int64(max(len(words), 1))))
	for i, w := range words {
		at := 4 * (guard + int64(i))
		binary.LittleEndian.PutUint32(image[at:], w)
		if live == nil || live(i) {
			fill(bits[at:at+4], math.MaxUint32)
		}
	}
	return problem.Vector{Host: image, Offset: guard}
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

// outputs are O, and LSE if there is one.
func (p *Problem) outputs() []*rows {
	if !p.LSE {
		return []*rows{&p.tensors[TensorO]}
	}
	return []*rows{&p.tensors[TensorO], &p.tensors[TensorLSE]}
}

// Outputs are the indices in Image of the memory of O and LSE.
func (p *Problem) Outputs() (list []int) {
	for _, t := range p.outputs() {
		if !slices.Contains(list, t.image) {
			list = append(list, t.image)
		}
	}
	return list
}

// Sizes returns the heads, rows and elements per row of a tensor.
func (p *Problem) Sizes(i int) (heads, seq, dim int) {
	t := &p.tensors[i]
	return t.heads, t.seq, t.dim
}

// View is a tensor of the problem in host memory.
func (p *Problem) View(images [][]byte, i int) (problem.HostView, error) {
	t := &p.tensors[i]
	return problem.ViewHost(p.HostTensor(images, i), t.dtype, t.heads, t.seq, t.dim)
}

// HostTensor is a tensor in the given images; the zero Tensor for a missing LSE.
func (p *Problem) HostTensor(images [][]byte, i int) problem.Tensor {
	t := &p.tensors[i]
	if t.image < 0 {
		return problem.Tensor{}
	}
	tensor := t.tensor()
	tensor.Host = images[t.image]
	return tensor
}

// eachRow visits the rows of a tensor that exist in the order of problem.Gradients: row
// `row` of sequence seq is row `at` of a batch of the tensor.
func (p *Problem) eachRow(t *rows, visit func(seq, h, row, batch, at int)) {
	if t.of == ofTensor {
		t.each(func(batch, h, row int) { visit(batch, h, row, batch, row) })
		return
	}
	for seq, s := range p.sequences() {
		n, where := s.Rows, p.queryRow
		if t.of == ofKeys {
			n, where = s.Keys, p.kvRow
		}
		for h := range t.heads {
			for row := range n {
				batch, at := where(seq, row)
				visit(seq, h, row, batch, at)
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
		p.tensors[i].each(func(b, h, row int) {
			v.WriteRow(x[:dim], b, h, row)
			x = x[dim:]
		})
		return nil
	}
	par.Each(int64(p.tensors[i].batches*heads), func() func(int64) {
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
	batches := p.tensors[i].batches
	x := make([]float32, batches*heads*seq*dim)
	par.Each(int64(batches*heads), func() func(int64) {
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
		to := filled(int64(len(from)), pattern)
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
	images := slices.Clone(p.Image)
	for _, i := range []int{TensorK, TensorV} {
		m := p.tensors[i].image
		images[m] = bytes.Clone(p.Image[m])
	}
	bad := Spoilers[p.SeedValue()%uint64(len(Spoilers))]
	for n, i := range []int{TensorK, TensorV} {
		v, err := p.View(images, i)
		if err != nil {
			return nil, err
		}
		row := slices.Repeat(bad[n:n+1], v.Dim())
		p.tensors[i].each(func(b, h, key int) {
			if key >= first {
				v.WriteRow(row, b, h, key)
			}
		})
	}
	return images, nil
}

// HostArgs are the arguments of a call in host memory.
func (p *Problem) HostArgs(images [][]byte) problem.Args {
	return p.Args(func(o operands.Operand, m int) { o.OnHost(images[m]) })
}

// DeviceArgs are the arguments of a call on a device, with one buffer for each piece of
// memory.
func (p *Problem) DeviceArgs(buffers []*vk.Buffer) problem.Args {
	return p.Args(func(o operands.Operand, m int) { o.OnDevice(buffers[m]) })
}

// MemoryArgs is DeviceArgs on a device that is not Vulkan's.
func (p *Problem) MemoryArgs(memory []*problem.Memory) problem.Args {
	return p.Args(func(o operands.Operand, m int) { o.OnMemory(memory[m]) })
}

// Args are the arguments of a call whose operands place puts into memory; each has its piece in Image.
func (p *Problem) Args(place func(o operands.Operand, piece int)) problem.Args {
	a := operands.Clone(p.args)
	for _, o := range operands.List(p.Config(Target{DType: p.DType}), &a) {
		place(o, p.pieces[o.Name])
	}
	return a
}

// Trespass reports the first byte that changed and is not of an existing row of O or LSE.
func (p *Problem) Trespass(before, after [][]byte) error {
	return p.trespass(before, after, func(allow allowRow) { p.allowExisting(p.outputs(), allow) })
}

// allowRow allows a row to change. It returns what is expected there, which is what the row holds.
type allowRow func(t *rows, batch, h, at int) (expected []byte)

// allowExisting allows the rows of tensors that exist to change.
func (p *Problem) allowExisting(list []*rows, allow allowRow) {
	for _, t := range list {
		p.eachRow(t, func(_, h, _, batch, at int) { allow(t, batch, h, at) })
	}
}

// trespass reports the first byte that changed, other than in the rows that written allows to.
func (p *Problem) trespass(before, after [][]byte, written func(allow allowRow)) error {
	expected, copied := slices.Clone(before), map[int]bool{}
	written(func(t *rows, batch, h, at int) []byte {
		if !copied[t.image] {
			expected[t.image], copied[t.image] = bytes.Clone(before[t.image]), true
		}
		row := t.row(expected[t.image], batch, h, at)
		copy(row, t.row(after[t.image], batch, h, at))
		return row
	})
	for m, want := range expected {
		if bytes.Equal(want, after[m]) {
			continue
		}
		for i, x := range want {
			if x != after[m][i] {
				return fmt.Errorf("byte %d of %d of the memory of %s was overwritten: %#02x became %#02x",
					i, len(want), p.nameOf(m), x, after[m][i])
			}
		}
	}
	return nil
}

// nameOf lists the tensors and vectors in a piece of memory.
func (p *Problem) nameOf(m int) string {
	var names []string
	for name, piece := range p.pieces {
		if after, gradient := strings.CutPrefix(name, "D"); piece == m && gradient {
			names = append(names, "d"+after)
		} else if piece == m {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return strings.Join(names, " and ")
}

// Same compares the outputs of two calls bit by bit.
func (p *Problem) Same(a, b [][]byte) error { return p.SameRows(a, b, math.MaxInt) }

// SameRows is Same for the query rows that attend to at most limit keys by the causal mask.
func (p *Problem) SameRows(a, b [][]byte, limit int) error {
	return p.same(p.outputs(), a, b, limit)
}

// same compares outputs bit by bit, of rows of queries those that attend to at most limit keys by the causal mask.
func (p *Problem) same(outputs []*rows, a, b [][]byte, limit int) error {
	different := 0
	var first error
	for _, t := range outputs {
		size := t.dtype.Size()
		p.eachRow(t, func(seq, h, row, batch, at int) {
			x, y := t.row(a[t.image], batch, h, at), t.row(b[t.image], batch, h, at)
			if bytes.Equal(x, y) || t.of == ofQueries && p.Causal.Visible(row, p.seq(seq).Rows, p.seq(seq).Keys) > limit {
				return
			}
			for i := 0; i < len(x); i += size {
				was, is := x[i:i+size], y[i:i+size]
				if bytes.Equal(was, is) {
					continue
				}
				if different == 0 {
					first = fmt.Errorf("%s at batch %d, head %d, row %d, column %d was %v and is %v", t.name, seq, h, row, i/size,
						decodeFloats(was, t.dtype)[0], decodeFloats(is, t.dtype)[0])
				}
				different++
			}
		})
	}
	if different > 0 {
		return fmt.Errorf("%d elements differ: %w", different, first)
	}
	return nil
}
