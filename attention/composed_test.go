package attention_test

import (
	"encoding/binary"
	"math"

	"vkattn/attention"
)

// composed is a composition in host memory. Everything that a call must not look at
// or write is full of one byte, and so are the rows of O and LSE beforehand.
type composed struct {
	composition
	Args attention.Args

	poison    byte
	table     [][]int // pages of each sequence
	startQ    []int32 // first rows of packed sequences
	startK    []int32
	keyPlaces [2]int // batches and rows of K and V
	rows      map[[4]int][]float64
}

// compose puts a composition into memory. With hide, rows of K and V that no row of
// Q attends to are not there: nothing may change.
func compose(c composition, poison byte, hide bool) *composed {
	p := &composed{composition: c, Args: attention.Args{Shape: c.Shape}, poison: poison, rows: map[[4]int][]float64{}}
	p.putQueries()
	p.putKeys(hide)
	p.putSparsity()
	p.putModifiers()
	return p
}

func (p *composed) memory(bytes int64) []byte {
	b := make([]byte, bytes)
	for i := range b {
		b[i] = p.poison
	}
	return b
}

// tensor makes room for [batches, heads, rows, dim] elements of bytes/elements bytes.
func (p *composed) tensor(batches, heads, rows, dim, bytes, elements int) attention.Tensor {
	var t attention.Tensor
	step := int64(3)
	if elements > 1 {
		step = int64(elements)
	}
	switch p.Layout {
	case 1:
		t.Strides = attention.BSHD(heads, rows, dim)
	case 2:
		row := int64(dim) + step
		head := int64(rows)*row + step
		t.Offset, t.Strides = 2*step, attention.Strides{Batch: int64(heads)*head + step, Head: head, Seq: row}
	}
	s := t.Strides.Resolve(heads, rows, dim)
	end := t.Offset + int64(batches-1)*s.Batch + int64(heads-1)*s.Head + int64(rows-1)*s.Seq + int64(dim)
	t.Host = p.memory(end * int64(bytes) / int64(elements))
	return t
}

// at is the memory from an element on.
func at(t attention.Tensor, heads, rows, dim, bytes, elements, b, h, row int) []byte {
	s := t.Strides.Resolve(heads, rows, dim)
	e := t.Offset + int64(b)*s.Batch + int64(h)*s.Head + int64(row)*s.Seq
	return t.Host[e*int64(bytes)/int64(elements):]
}

// vector makes room for n 32-bit elements and puts some there.
func (p *composed) vector(n int, x []int32) attention.Vector {
	v := attention.Vector{Offset: int64(p.Layout)}
	v.Host = p.memory(4 * (v.Offset + int64(n)))
	for i, x := range x {
		binary.LittleEndian.PutUint32(v.Host[4*(v.Offset+int64(i)):], uint32(x))
	}
	return v
}

func (p *composed) floats(x []float32) attention.Vector {
	bits := make([]int32, len(x))
	for i, x := range x {
		bits[i] = int32(math.Float32bits(x))
	}
	return p.vector(len(x), bits)
}

// varlen is the call's Varlen, made on first use.
func (p *composed) varlen() *attention.Varlen {
	if p.Args.Varlen == nil {
		p.Args.Varlen = &attention.Varlen{}
	}
	return p.Args.Varlen
}

func used(n int, lengthOf func(int) int) []int32 {
	list := make([]int32, n)
	for b := range list {
		list[b] = int32(lengthOf(b))
	}
	return list
}

func (p *composed) putQueries() {
	s, size := p.Shape, p.DType.Size()
	batches, rows := s.B, s.Sq
	if p.PackQ {
		v := p.varlen()
		p.startQ, v.TotalQ = p.packing(ofQ, p.RowsOf, p.GiveUsedQ)
		v.CuQ = p.vector(s.B+1, p.startQ)
		batches, rows = 1, v.TotalQ
	}
	if p.GiveUsedQ {
		p.varlen().UsedQ = p.vector(s.B, used(s.B, p.RowsOf))
	}
	a := &p.Args
	a.Q = p.tensor(batches, s.Hq, rows, p.D, size, 1)
	a.O = p.tensor(batches, s.Hq, rows, p.Dv, size, 1)
	if p.LSE {
		a.LSE.Host = p.memory(4 * int64(batches) * int64(s.Hq) * int64(rows))
	}
	for b := range s.B {
		for h := range s.Hq {
			for row := range p.RowsOf(b) {
				batch, place := p.placeQ(b, row)
				encodeAs(at(a.Q, s.Hq, rows, p.D, size, 1, batch, h, place), p.qRow(b, h, row), p.DType)
			}
		}
	}
}

// placeQ is the batch and row of a row.
func (p *composed) placeQ(b, row int) (batch, place int) {
	if p.PackQ {
		return 0, int(p.startQ[b]) + row
	}
	return b, row
}

// Read is the O and LSE of a row, NaN where the composition has no LSE.
func (p *composed) Read(b, h, row int) (o []float32, lse float32) {
	s, rows := p.Shape, p.Shape.Sq
	if p.PackQ {
		rows = p.Args.Varlen.TotalQ
	}
	batch, place := p.placeQ(b, row)
	o = make([]float32, p.Dv)
	decodeAs(o, at(p.Args.O, s.Hq, rows, p.Dv, p.DType.Size(), 1, batch, h, place), p.DType)
	if !p.LSE {
		return o, float32(math.NaN())
	}
	one := []float32{0}
	decodeAs(one, p.Args.LSE.Host[4*((batch*s.Hq+h)*rows+place):], attention.F32)
	return o, one[0]
}

// Untouched reports whether nothing of O and LSE but the rows that exist was written.
func (p *composed) Untouched() bool {
	s, rows := p.Shape, p.Shape.Sq
	if p.PackQ {
		rows = p.Args.Varlen.TotalQ
	}
	o, lse := append([]byte(nil), p.Args.O.Host...), append([]byte(nil), p.Args.LSE.Host...)
	t := p.Args.O
	t.Host = o
	for b := range s.B {
		for h := range s.Hq {
			for row := range p.RowsOf(b) {
				batch, place := p.placeQ(b, row)
				p.blank(at(t, s.Hq, rows, p.Dv, p.DType.Size(), 1, batch, h, place)[:p.Dv*p.DType.Size()])
				if p.LSE {
					p.blank(lse[4*((batch*s.Hq+h)*rows+place):][:4])
				}
			}
		}
	}
	for _, b := range [][]byte{o, lse} {
		for _, x := range b {
			if x != p.poison {
				return false
			}
		}
	}
	return true
}

func (p *composed) blank(b []byte) {
	for i := range b {
		b[i] = p.poison
	}
}

func (p *composed) putKeys(hide bool) {
	s, a := p.Shape, &p.Args
	batches, keys := s.B, s.Sk
	switch {
	case p.PageSize > 0:
		p.table, batches = p.pages()
		stride := (s.Sk+p.PageSize-1)/p.PageSize + int(p.Layout)
		keys = p.PageSize
		a.Pages = &attention.Pages{PageSize: p.PageSize, Count: batches, Stride: stride, Table: p.vector(s.B*stride, nil)}
		if p.Layout == 0 {
			a.Pages.Stride = 0
		}
		for b, pages := range p.table {
			for i, page := range pages {
				binary.LittleEndian.PutUint32(a.Pages.Table.Host[4*(int(a.Pages.Table.Offset)+b*stride+i):], uint32(page))
			}
		}
	case p.PackK:
		v := p.varlen()
		p.startK, v.TotalK = p.packing(ofK, p.KeysOf, p.GiveUsedK)
		v.CuK = p.vector(s.B+1, p.startK)
		batches, keys = 1, v.TotalK
	}
	if p.GiveUsedK {
		p.varlen().UsedK = p.vector(s.B, used(s.B, p.KeysOf))
	}
	p.keyPlaces = [2]int{batches, keys}
	elements, kvHeads := 1, s.KVHeads()
	if p.KV.Blocked() {
		elements = 32
	}
	bytes := p.KV.RowBytes(p.DType, elements)
	a.K = p.tensor(batches, kvHeads, keys, p.D, bytes, elements)
	a.V = p.tensor(batches, kvHeads, keys, p.Dv, bytes, elements)
	block := max(1, p.KVBlock)
	perHead := (keys + block - 1) / block
	if p.KV.Scaled() {
		a.KScale, a.VScale = p.vector(batches*kvHeads*perHead, nil), p.vector(batches*kvHeads*perHead, nil)
	}
	for b := range s.B {
		for h := range kvHeads {
			seen := p.seen(b, h, hide)
			for key := range p.KeysOf(b) {
				if !seen[key] {
					continue
				}
				batch, row := p.placeK(b, key)
				for _, x := range []struct {
					kind, dim int
					t         attention.Tensor
					scales    attention.Vector
				}{{ofK, p.D, a.K, a.KScale}, {ofV, p.Dv, a.V, a.VScale}} {
					stored, _ := p.kvRow(x.kind, b, h, key)
					copy(at(x.t, kvHeads, keys, x.dim, bytes, elements, batch, h, row), stored)
					if p.KV.Scaled() {
						i := (batch*kvHeads+h)*perHead + row/block
						encodeAs(x.scales.Host[4*(int(x.scales.Offset)+i):], []float32{p.keyScale(x.kind, b, h, key)}, attention.F32)
					}
				}
			}
		}
	}
}

// placeK is the batch or page, and the row, of a key.
func (p *composed) placeK(b, key int) (batch, row int) {
	switch {
	case p.PageSize > 0:
		return p.table[b][key/p.PageSize], key % p.PageSize
	case p.PackK:
		return 0, int(p.startK[b]) + key
	}
	return b, key
}

// keyScale is the scale of a key of a Scaled type.
func (p *composed) keyScale(kind, b, kv, key int) float32 {
	block := max(1, p.KVBlock)
	if p.PackK {
		_, row := p.placeK(b, key)
		return p.scale(kind, 0, kv, row/block*block)
	}
	if p.PageSize > 0 {
		return p.scale(kind, b, kv, key-key%p.PageSize%block)
	}
	return p.scale(kind, b, kv, key-key%block)
}

// seen says which keys some row attends to; all without hide.
func (p *composed) seen(b, kv int, hide bool) []bool {
	seen := make([]bool, p.KeysOf(b))
	for i := range seen {
		seen[i] = !hide
	}
	group := p.Shape.Group()
	for h := kv * group; hide && h < (kv+1)*group; h++ {
		for row := range p.RowsOf(b) {
			for key, n := range p.Weights(b, h, row) {
				seen[key] = seen[key] || n > 0
			}
		}
	}
	return seen
}

func (p *composed) putSparsity() {
	s, a := p.Shape, &p.Args
	switch p.Sparse {
	case keptTokens, sortedKept:
		offsets, tokens := []int32{}, make([]int32, 3)
		for b := range s.B {
			for h := range s.KVHeads() {
				offsets = append(offsets, int32(len(tokens)))
				tokens = append(tokens, p.keptList(b, h)...)
			}
		}
		offsets = append(offsets, int32(len(tokens)))
		total := len(tokens) + 2
		a.Kept = &attention.Kept{Offsets: p.vector(len(offsets), offsets), Tokens: p.vector(total, tokens), Total: total}
	case maskBytes:
		m := &attention.Mask{}
		m.Batches, m.Heads, m.Rows = p.SparseAt.sizes()
		m.Tensor = p.tensor(full(m.Batches, s.B), full(m.Heads, s.Hq), full(m.Rows, s.Sq), s.Sk, 1, 1)
		for b := range full(m.Batches, s.B) {
			for h := range full(m.Heads, s.Hq) {
				for row := range full(m.Rows, s.Sq) {
					to := at(m.Tensor, full(m.Heads, s.Hq), full(m.Rows, s.Sq), s.Sk, 1, 1, b, h, row)
					for key, is := range p.maskRow(b, h, row) {
						to[key] = 0
						if is {
							to[key] = byte(1 << (key % 8))
						}
					}
				}
			}
		}
		a.Mask = m
	case blockBits:
		m := &attention.Blocks{BlockQ: p.BlockQ, BlockK: p.BlockK}
		m.Batches, m.Heads, _ = p.SparseAt.sizes()
		var words []int32
		for b := range full(m.Batches, s.B) {
			for h := range full(m.Heads, s.Hq) {
				for row := range (s.Sq + p.BlockQ - 1) / p.BlockQ {
					bits := p.blockRow(b, h, row)
					first := len(words)
					words = append(words, make([]int32, (len(bits)+31)/32)...)
					for i, is := range bits {
						if is {
							words[first+i/32] |= int32(uint32(1) << (i % 32))
						}
					}
				}
			}
		}
		m.Map = p.vector(len(words), words)
		a.Blocks = m
	}
}

func (p *composed) putModifiers() {
	s, a := p.Shape, &p.Args
	if p.ALiBi {
		a.ALiBi = p.floats(p.slopes())
	}
	if p.Sinks {
		a.Sinks = p.floats(p.sinks())
	}
	if !p.Bias {
		return
	}
	m := &attention.Bias{DType: p.BiasType}
	m.Batches, m.Heads, m.Rows = p.BiasAt.sizes()
	batches, heads, rows, size := full(m.Batches, s.B), full(m.Heads, s.Hq), full(m.Rows, s.Sq), p.BiasType.Size()
	m.Tensor = p.tensor(batches, heads, rows, s.Sk, size, 1)
	for b := range batches {
		for h := range heads {
			for row := range rows {
				encodeAs(at(m.Tensor, heads, rows, s.Sk, size, 1, b, h, row), p.biasRow(b, h, row), p.BiasType)
			}
		}
	}
	a.Bias = m
}

// sizes are those of the Args: 1, or 0 for full.
func (k broadcastKind) sizes() (batches, heads, rows int) {
	one := func(is bool) int {
		if is {
			return 1
		}
		return 0
	}
	return one(k.Batches), one(k.Heads), one(k.Rows)
}

func full(n, of int) int {
	if n == 0 {
		return of
	}
	return n
}
