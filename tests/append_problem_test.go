package tests

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"

	"vkattn/attention"
	"vkattn/attention/kvcache"
	"vkattn/internal/cases"
	"vkattn/internal/problem"
	"vkattn/vk"
)

// Tensors of an append. Each has its own memory.
const (
	appendK = iota
	appendV
	appendQ
	appendKCache
	appendVCache
	appendQOut
	appendKScale
	appendVScale
	appendUsed
	appendLengths
	appendTable
	appendCos
	appendSin
	appendPieces
)

// appendCase describes an append.
type appendCase struct {
	kvcache.AppendConfig
	b, hkv, group, rows int
	capacity, positions int // positions 0: as many as capacity
	layout              cases.LayoutKind
	lengths             string // "", "counted" or "packed"
	pageSize            int    // 0: no pages
	inPlace             bool   // QOut is Q
	noV, noQ, empty     bool
	rowsQ               int  // 0: those of K
	qAtUsed             bool // all rows of Q have the position of the first
	seed                uint64
}

// stored names the types of the cache.
func (c appendCase) stored() string { return problem.KVName(c.KeyType, c.ValueType) }

func (c appendCase) String() string {
	s := fmt.Sprintf("%v.%v.d%d.%d.B%d.H%d.N%d.%v", c.DType, c.stored(), c.HeadDim, c.HeadDimV, c.b, c.hkv, c.rows, c.layout)
	if r := c.Rotary; r.Dim > 0 {
		s += fmt.Sprintf(".%v%d+%d", r.Style, r.First, r.Dim)
	}
	if c.lengths != "" {
		s += "." + c.lengths
	}
	if c.KVBlock != 0 {
		s += ".scale-" + problem.KVBlockName(c.KVBlock)
	}
	if c.pageSize > 0 {
		s += fmt.Sprintf(".pages%d", c.pageSize)
	}
	if c.rowsQ > 0 || c.qAtUsed {
		s += fmt.Sprintf(".Q%d-%v", c.rowsQ, c.qAtUsed)
	}
	if c.CosSinOfDType {
		s += ".cos-sin"
	}
	if c.Access != attention.AccessAuto {
		s += "." + c.Access.String()
	}
	return s
}

func (c *appendCase) valueDim() int {
	if c.HeadDimV > 0 {
		return c.HeadDimV
	}
	return c.HeadDim
}

// appendSlot is the layout of a tensor, in units of one element or, in a cache of blocks,
// of one block.
type appendSlot struct {
	batches, heads, rows, units int
	unitBytes, unitElements     int
	offset                      int64
	strides                     attention.Strides
}

func (s *appendSlot) at(b, h, r int) int64 {
	x := s.strides.Resolve(s.heads, s.rows, s.units)
	return (s.offset + int64(b)*x.Batch + int64(h)*x.Head + int64(r)*x.Seq) * int64(s.unitBytes)
}

func (s *appendSlot) rowBytes() int64 { return int64(s.units * s.unitBytes) }

// tensor returns the slot as a Tensor, in elements.
func (s *appendSlot) tensor(t attention.Tensor) attention.Tensor {
	n := int64(s.unitElements)
	t.Offset = s.offset * n
	t.Strides = attention.Strides{Batch: s.strides.Batch * n, Head: s.strides.Head * n, Seq: s.strides.Seq * n}
	return t
}

// appendProblem is a case in memory. All memory outside of the tensors is poison.
type appendProblem struct {
	appendCase
	slots        [appendPieces]appendSlot
	image        [appendPieces][]byte
	used, length []int // of each sequence: keys it has, new rows
	starts       []int // of packed sequences
	places       []int32
	pages, wide  int // of the pool; of a row of the table
	cos, sin     []float32
}

func (p *appendProblem) has(i int) bool { return p.image[i] != nil }

// limit returns the first position beyond the cache.
func (p *appendProblem) limit() int {
	if p.Rotary.Dim > 0 {
		return min(p.capacity, p.positions)
	}
	return p.capacity
}

func (p *appendProblem) lay(i, batches, heads, rows, elements int, kv attention.KVType) {
	s := appendSlot{batches: batches, heads: heads, rows: rows, units: elements, unitElements: 1, unitBytes: kv.RowBytes(p.DType, 1)}
	if kv.Blocked() {
		s.unitElements, s.units = kv.Unit(), elements/kv.Unit()
		s.unitBytes = kv.RowBytes(p.DType, kv.Unit())
	}
	h, n, d, more := int64(heads), int64(rows), int64(s.units), int64(i%4)
	guard := int64(cases.Guard)
	switch p.layout {
	case cases.Tight:
		guard = 0
	case cases.BSHD:
		s.strides = attention.BSHD(heads, rows, s.units)
	case cases.Padded:
		s.strides = cases.SpacedStrides(h, n, cases.RoundUp(d, 8)+8*(1+more), 16, 24)
	case cases.Odd:
		s.offset = 1 + 2*more
		s.strides = cases.SpacedStrides(h, n, d|1+2*more, 1-n%2, 4)
		s.strides.Batch |= 1
		s.strides.Head |= 1
	case cases.Even:
		s.offset = 2
		s.strides = cases.SpacedStrides(h, n, cases.RoundUp(d, 4)+2, 2*((n+1)%2), 2)
	}
	s.offset += guard
	p.slots[i] = s
	p.image[i] = make([]byte, s.at(batches-1, heads-1, rows-1)+s.rowBytes()+guard*int64(s.unitBytes))
	for j := 0; j+1 < len(p.image[i]); j += 2 {
		binary.LittleEndian.PutUint16(p.image[i][j:], cases.NaNPair)
	}
}

// vector returns the words between guards of large numbers.
func (p *appendProblem) vector(i int, words []uint32) {
	p.slots[i].offset = 3
	p.image[i] = binary.LittleEndian.AppendUint32(nil, 0x7fffffff)
	p.image[i] = append(append(p.image[i], p.image[i]...), p.image[i]...)
	for _, w := range append(words, 0x80000000, 0x7fffffff) {
		p.image[i] = binary.LittleEndian.AppendUint32(p.image[i], w)
	}
}

func words[T int32 | int | float32](list []T) (all []uint32) {
	for _, x := range list {
		if f, ok := any(x).(float32); ok {
			all = append(all, math.Float32bits(f))
		} else {
			all = append(all, uint32(int32(x)))
		}
	}
	return all
}

func newAppendProblem(c appendCase) *appendProblem {
	p := &appendProblem{appendCase: c}
	if p.positions == 0 {
		p.positions = p.capacity
	}
	rng := rand.New(rand.NewPCG(c.seed, 4))
	total := 0
	for range c.b {
		n := c.rows
		if c.lengths != "" {
			n = rng.IntN(c.rows + 1)
		}
		p.length, p.starts = append(p.length, n), append(p.starts, total)
		total += n
		if c.empty {
			p.used = append(p.used, 0)
		} else {
			p.used = append(p.used, rng.IntN(c.capacity+1)) // often too full for all new rows
		}
	}
	p.starts = append(p.starts, total)
	batches, rows := c.b, c.rows
	if c.lengths == "packed" {
		batches, rows = 1, total+2 // the last rows belong to no sequence
	}
	batchesOrPages, held := c.b, c.capacity
	if c.pageSize > 0 {
		p.wide = (c.capacity + c.pageSize - 1) / c.pageSize
		p.pages, held = c.b*p.wide+3, c.pageSize
		batchesOrPages = p.pages
		for i, page := range rng.Perm(p.pages)[:c.b*p.wide] {
			if b, n := i/p.wide, i%p.wide; n*c.pageSize >= p.used[b]+p.length[b] || (n+1)*c.pageSize <= p.used[b] {
				page = []int{-1, math.MinInt32, p.pages, math.MaxInt32}[rng.IntN(4)] // not in the pool: nothing is appended there
			}
			p.places = append(p.places, int32(page))
		}
		p.vector(appendTable, words(p.places))
	}
	p.lay(appendK, batches, c.hkv, rows, c.HeadDim, attention.KVSame)
	p.lay(appendKCache, batchesOrPages, c.hkv, held, c.HeadDim, c.KeyType)
	if !c.noV {
		p.lay(appendV, batches, c.hkv, rows, p.valueDim(), attention.KVSame)
		p.lay(appendVCache, batchesOrPages, c.hkv, held, p.valueDim(), c.ValueType)
	}
	if c.KeyType.Scaled() {
		for i := appendKScale; i <= appendVScale; i++ {
			if i == appendKScale || !c.noV {
				scales := make([]uint32, batchesOrPages*c.hkv*held)
				if c.KVBlock < 0 {
					scales = p.givenScales(rng)
				}
				p.vector(i, scales)
			}
		}
	}
	if c.Rotary.Dim > 0 {
		p.cos, p.sin = c.Rotary.Tables(p.positions, 100)
		p.vector(appendCos, words(p.cos))
		p.vector(appendSin, words(p.sin))
		if c.CosSinOfDType {
			p.ofDType(appendCos, p.cos)
			p.ofDType(appendSin, p.sin)
		}
		if !c.noQ {
			if c.rowsQ > 0 {
				rows = c.rowsQ
			}
			p.lay(appendQ, batches, c.hkv*c.group, rows, c.HeadDim, attention.KVSame)
			if !c.inPlace {
				p.lay(appendQOut, batches, c.hkv*c.group, rows, c.HeadDim, attention.KVSame)
			}
		}
	}
	if !c.empty {
		p.vector(appendUsed, words(p.used))
	}
	switch c.lengths {
	case "packed":
		p.vector(appendLengths, words(p.starts))
	case "counted":
		p.vector(appendLengths, words(p.length))
	}
	p.fill(rng)
	return p
}

// ofDType replaces the words of a vector by elements of the storage type, and the numbers by those that these hold.
func (p *appendProblem) ofDType(i int, x []float32) {
	size := p.DType.Size()
	p.image[i] = bytes.Repeat([]byte{0xff, 0x7f}, (len(x)+5)*size/2)
	p.encode(p.image[i][3*size:], x)
	copy(x, p.decode(p.image[i][3*size:], len(x)))
}

// givenScales are scales of heads, or one, with which some elements are beyond the largest number.
func (p *appendProblem) givenScales(rng *rand.Rand) (scales []uint32) {
	n := p.hkv
	if p.KVBlock == attention.KVBlockTensor {
		n = 1
	}
	most := map[attention.KVType]float64{attention.KVInt8: 127, attention.KVFP8: 448, attention.KVFP8E5M2: 57344}
	for range n {
		scales = append(scales, math.Float32bits(float32((0.5+2*rng.Float64())/most[p.KeyType])))
	}
	return scales
}

// fill gives the new rows random numbers; in one row of eight a single element is not 0.
func (p *appendProblem) fill(rng *rand.Rand) {
	for _, i := range []int{appendK, appendV, appendQ} {
		if !p.has(i) {
			continue
		}
		s := &p.slots[i]
		x := make([]float32, s.units)
		for b := range s.batches {
			for h := range s.heads {
				for r := range s.rows {
					sparse := rng.IntN(8) == 0
					for d := range x {
						if x[d] = float32(rng.NormFloat64()); sparse && d != len(x)/2 {
							x[d] = 0
						}
					}
					p.encode(p.image[i][s.at(b, h, r):], x)
				}
			}
		}
	}
}

func (p *appendProblem) encode(dst []byte, x []float32) {
	p.DType.Encode(dst, x)
}

func (p *appendProblem) decode(src []byte, n int) []float32 {
	x := make([]float32, n)
	p.DType.Decode(x, src)
	return x
}

// args returns the arguments of the call, given the memory of each tensor.
func (p *appendProblem) args(memory func(i int) attention.Tensor) kvcache.AppendArgs {
	tensor := func(i int) attention.Tensor {
		if !p.has(i) {
			return attention.Tensor{}
		}
		return p.slots[i].tensor(memory(i))
	}
	vector := func(i int) attention.Vector {
		if !p.has(i) {
			return attention.Vector{}
		}
		t := memory(i)
		return attention.Vector{Buffer: t.Buffer, Host: t.Host, Offset: p.slots[i].offset}
	}
	a := kvcache.AppendArgs{
		Shard: true, B: p.b, Hkv: p.hkv, Hq: p.hkv * p.group, New: p.rows, Capacity: p.capacity, Positions: p.positions,
		K: tensor(appendK), V: tensor(appendV), Q: tensor(appendQ),
		KCache: tensor(appendKCache), VCache: tensor(appendVCache), QOut: tensor(appendQOut),
		KScale: vector(appendKScale), VScale: vector(appendVScale),
		Used: vector(appendUsed), Cos: vector(appendCos), Sin: vector(appendSin),
	}
	if p.inPlace {
		a.QOut = a.Q
	}
	if p.has(appendQ) {
		a.RowsQ, a.QAtUsed = p.rowsQ, p.qAtUsed
	}
	switch p.lengths {
	case "packed":
		a.CuNew, a.TotalNew, a.New = vector(appendLengths), p.slots[appendK].rows, 0
	case "counted":
		a.UsedNew = vector(appendLengths)
	}
	if p.pageSize > 0 {
		a.Pages = &attention.Pages{Table: vector(appendTable), Stride: p.wide, PageSize: p.pageSize, Count: p.pages}
	}
	return a
}

// run makes the append on a device, or on the CPU if dev is nil.
func (p *appendProblem) run(dev *vk.Device) (after [appendPieces][]byte, err error) {
	op, err := kvcache.NewAppend(attention.On(dev), p.AppendConfig)
	if err != nil {
		return after, err
	}
	defer closing(op, &err)
	list, err := onImages(dev, p.image[:], func(m *callMemory) error {
		return op.Forward(attention.OnStream(m.stream), p.args(m.tensor))
	})
	if err != nil {
		return after, err
	}
	return [appendPieces][]byte(list), nil
}
