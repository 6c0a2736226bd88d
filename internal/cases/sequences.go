package cases

import (
	"math"
	"math/rand/v2"
	"slices"

	"vkattn/internal/problem"
)

// sequenceRows are the rows of the sequences in the tensors.
type sequenceRows struct {
	startQ, startK []int   // of packed sequences
	cuQ, cuK       []int32 // their cumulative lengths
	totalQ, totalK int
	table          []int32 // [B, stride]; -1 in unused entries
	stride, pages  int
}

// ranges chooses where sequences begin and how many pages there are.
func (c *Case) ranges() (l sequenceRows) {
	var rows, keys []int
	seqs := c.sequences()
	for _, s := range seqs {
		rows, keys = append(rows, s.Rows), append(keys, s.Keys)
	}
	if c.PackedQ {
		l.startQ, l.cuQ, l.totalQ = pack(seqs, rows, c.LooseQ)
	}
	if c.PackedK {
		l.startK, l.cuK, l.totalK = pack(seqs, keys, c.LooseK)
	}
	if size := c.PageSize; size > 0 {
		l.stride = (c.Bounds().Sk + size - 1) / size
		for _, n := range keys {
			l.pages += (n + size - 1) / size
		}
		l.pages += l.pages/4 + 1 // about a quarter more than needed
	}
	return l
}

// extents are the batches and rows of Q and O, and the batches, or pages, and rows of K
// and V.
type extents struct{ queryBatches, queryRows, kvBatches, kvRows int }

func (c *Case) extents() extents {
	s := c.Bounds()
	e := extents{s.B, s.Sq, s.B, s.Sk}
	if !c.PackedQ && !c.PackedK && c.PageSize == 0 {
		return e
	}
	l := c.ranges()
	if c.PackedQ {
		e.queryBatches, e.queryRows = 1, l.totalQ
	}
	switch {
	case c.PageSize > 0:
		e.kvBatches, e.kvRows = l.pages, c.PageSize
	case c.PackedK:
		e.kvBatches, e.kvRows = 1, l.totalK
	}
	return e
}

// layOutSequences puts lengths and the block table into memory.
func (p *Problem) layOutSequences() {
	p.lengths = p.ranges()
	l := &p.lengths
	var rows, keys []int
	for _, s := range p.sequences() {
		rows, keys = append(rows, s.Rows), append(keys, s.Keys)
	}
	unlike := func(list []int, n int) bool {
		return slices.ContainsFunc(list, func(x int) bool { return x != n })
	}
	v := &problem.Varlen{}
	if p.PackedQ {
		v.CuQ, v.TotalQ = p.vector("CuQ", words(l.cuQ), nil), l.totalQ
	}
	if p.PackedK {
		v.CuK, v.TotalK = p.vector("CuK", words(l.cuK), nil), l.totalK
	}
	if p.LooseQ || !p.PackedQ && unlike(rows, p.args.Sq) {
		v.UsedQ = p.vector("UsedQ", words(rows), nil)
	}
	if p.LooseK || !p.PackedK && unlike(keys, p.args.Sk) {
		v.UsedK = p.vector("UsedK", words(keys), nil)
	}
	if v.CuQ.Given() || v.CuK.Given() || v.UsedQ.Given() || v.UsedK.Given() {
		p.args.Varlen = v
	}
	if p.PageSize > 0 {
		p.layOutPages()
	}
}

// pack lays sequences end to end. Loose ones have a gap behind each and before the first.
func pack(seqs []Seq, lengths []int, loose bool) (starts []int, cu []int32, total int) {
	if loose {
		total = 2
	}
	cu = append(cu, int32(total))
	for b, n := range lengths {
		starts = append(starts, total)
		total += n
		if loose {
			total += (seqs[b].ID&3 + 1)
		}
		cu = append(cu, int32(total))
	}
	if loose {
		total += 3
	}
	return starts, cu, max(total, 1)
}

// layOutPages deals out pages in random order. Sequences share the pages that lie entirely
// in their common prefix.
func (p *Problem) layOutPages() {
	l, size := &p.lengths, p.PageSize
	free := rand.New(rand.NewPCG(p.seed, p.mix(mixPages))).Perm(l.pages)
	var shared []int32
	l.table = make([]int32, p.args.B*l.stride)
	table := make([]int32, len(l.table))
	for i := range l.table {
		l.table[i] = -1
		table[i] = int32(p.mix(mixPages, i) % uint64(l.pages)) // an existing page, in an unused entry
	}
	for b, s := range p.sequences() {
		for j := range (s.Keys + size - 1) / size {
			whole := (j+1)*size <= min(p.Prefix, s.Keys)
			var page int32
			if whole && j < len(shared) {
				page = shared[j]
			} else {
				page, free = int32(free[0]), free[1:]
				if whole {
					shared = append(shared, page)
				}
			}
			l.table[b*l.stride+j], table[b*l.stride+j] = page, page
		}
	}
	p.args.Pages = &problem.Pages{
		Table:    p.vector("Table", words(table), func(i int) bool { return l.table[i] >= 0 }),
		PageSize: size, Count: l.pages,
	}
	if p.Layout != Tight {
		p.args.Pages.Stride = l.stride
	}
}

// queryRow returns the batch and row in Q, O and LSE of a row of a sequence.
func (p *Problem) queryRow(b, row int) (batch, at int) {
	if p.PackedQ {
		return 0, p.lengths.startQ[b] + row
	}
	return b, row
}

// kvRow returns the batch, or page, and row in K and V of a key of a sequence.
func (p *Problem) kvRow(b, t int) (batch, at int) {
	switch {
	case p.PageSize > 0:
		return int(p.lengths.table[b*p.lengths.stride+t/p.PageSize]), t % p.PageSize
	case p.PackedK:
		return 0, p.lengths.startK[b] + t
	}
	return b, t
}

// layOutTensors puts Q, K and V into memory. O and LSE stay NaN, so that a row that is
// not written shows.
func (p *Problem) layOutTensors() error {
	if p.data == nil {
		q, k, v := makeData(p.Case)
		for i, x := range [][]float32{q, k, v} {
			if err := p.Write(p.Image, i, x); err != nil {
				return err
			}
		}
		return nil
	}
	q := &p.tensors[TensorQ]
	p.eachRow(q, func(b, h, row, batch, at int) {
		p.DType.Encode(q.row(p.Image[q.image], batch, h, at), p.data[b].q[(h*p.seq(b).Rows+row)*p.D:][:p.D])
	})
	p.layOutKV()
	return nil
}

// liveTensors are the bits of Q, and of the keys in K and V that some row attends to. They
// are found when they are needed, since they take as much memory as the tensors.
func (p *Problem) liveTensors() [][]byte {
	live := make([][]byte, len(p.Image))
	mark := func(t *rows, batch, h, at int) { fill(t.row(live[t.image], batch, h, at), math.MaxUint32) }
	q, k, v := &p.tensors[TensorQ], &p.tensors[TensorK], &p.tensors[TensorV]
	for _, t := range []*rows{q, k, v} {
		live[t.image] = make([]byte, len(p.Image[t.image]))
	}
	p.eachRow(q, func(_, h, _, batch, at int) { mark(q, batch, h, at) })
	for b := range p.sequences() {
		for kv := range p.KVHeads() {
			for t, seen := range p.sees(b, kv) {
				if seen {
					batch, at := p.kvRow(b, t)
					mark(k, batch, kv, at)
					mark(v, batch, kv, at)
				}
			}
		}
	}
	return live
}

// layOutKV puts K and V, and their scales, into memory.
func (p *Problem) layOutKV() {
	k, v := &p.tensors[TensorK], &p.tensors[TensorV]
	n := p.scaleEntry(k.batches-1, k.heads-1, k.seq-1) + 1
	p.kScale, p.vScale = make([]float32, n), make([]float32, n)
	owned, seenScale := make([]bool, n), make([]bool, n)
	for b, s := range p.sequences() {
		for kv := range p.KVHeads() {
			var seen []bool
			if p.KeyType.Scaled() {
				seen = p.sees(b, kv)
			}
			for t := range s.Keys {
				batch, at := p.kvRow(b, t)
				row := kv*s.Keys + t
				copy(k.row(p.Image[k.image], batch, kv, at), p.data[b].k[row])
				if !p.VInK {
					copy(v.row(p.Image[v.image], batch, kv, at), p.data[b].v[row])
				}
				i := p.scaleEntry(batch, kv, at)
				if !owned[i] {
					id := s.ID
					if t < p.Prefix {
						id = prefixID
					}
					owned[i] = true
					p.kScale[i], p.vScale[i] = p.scaleOf(p.KeyType, mixKScale, id, kv, t), p.scaleOf(p.valueType(), mixVScale, id, kv, t)
				}
				seenScale[i] = seenScale[i] || seen != nil && seen[t]
			}
		}
	}
	if p.KeyType.Scaled() {
		live := func(i int) bool { return seenScale[i] }
		p.args.KScale = p.vector("KScale", floatWords(p.kScale), live)
		p.args.VScale = p.vector("VScale", floatWords(p.vScale), live)
	}
}

// scaleEntry is the number of the scale of a row of K and V.
func (p *Problem) scaleEntry(batch, kv, at int) int {
	keys := p.tensors[TensorK].seq
	switch block := max(p.KVBlock, 1); p.KVBlock {
	case problem.KVBlockTensor:
		return 0
	case problem.KVBlockHead:
		return kv
	default:
		return (batch*p.KVHeads()+kv)*((keys+block-1)/block) + at/block
	}
}

// scaleAt are the stored scales of a key.
func (p *Problem) scaleAt(b, kv, t int) (k, v float32) {
	batch, at := p.kvRow(b, t)
	i := p.scaleEntry(batch, kv, at)
	return p.kScale[i], p.vScale[i]
}

// Sizes of a case: its sequences, its bounds, and its work.

// Bounds is the Shape of a call. It bounds sequences with lengths of their own by a little
// more than the longest.
func (c Case) Bounds() problem.Shape {
	if c.Seqs == nil {
		return c.Shape
	}
	s := problem.Shape{B: len(c.Seqs), Hq: c.Hq, Hkv: c.Hkv, Sq: 1, Sk: 1}
	for _, q := range c.Seqs {
		s.Sq, s.Sk = max(s.Sq, q.Rows), max(s.Sk, q.Keys)
	}
	if c.PackedQ || c.LooseQ {
		s.Sq += 5
	}
	if c.PackedK || c.LooseK {
		s.Sk += 7
	}
	s.Sq, s.Sk = max(s.Sq, c.Sq), max(s.Sk, c.Sk)
	return s
}

// sequences are Seqs, or as many of one length as the Shape says.
func (c *Case) sequences() []Seq {
	if c.Seqs != nil {
		return c.Seqs
	}
	all := make([]Seq, c.B)
	for b := range all {
		all[b] = Seq{b, c.Sq, c.Sk}
	}
	return all
}

// usedLengths reports whether the lengths in use are given, of rows and of keys.
func (c Case) usedLengths() (q, k bool) {
	shape := c.Bounds()
	q, k = c.LooseQ, c.LooseK
	for _, s := range c.Seqs {
		q = q || !c.PackedQ && s.Rows != shape.Sq
		k = k || !c.PackedK && s.Keys != shape.Sk
	}
	return q, k
}

// Dims are the elements of a row of Q and one of V together.
func (c Case) Dims() int { return c.D + c.Dv }

// Flops is the number of operations, with the operations of masked cells.
func (c Case) Flops() int64 {
	var cells int64
	for _, s := range c.sequences() {
		cells += int64(s.Rows) * int64(s.Keys)
	}
	return 2 * cells * int64(c.Hq) * int64(c.D+c.Dv)
}

// Memory is about how many bytes the tensors of a case take.
func (c Case) Memory(dtype problem.DType) int64 {
	var elements int64
	for _, s := range c.sequences() {
		elements += int64(s.Rows)*int64(c.Hq) + int64(s.Keys)*int64(c.Hkv)
	}
	elements *= int64(c.D + c.Dv)
	slots := c.Bounds()
	if c.Mask.On || c.Bias.On {
		elements += slots.Rows() * int64(slots.Sk)
	}
	return 2 * elements * int64(dtype.Size())
}

// Cost is the work of a case in flops, including what kernels compute past the last row
// and key of a tile.
func (c Case) Cost() int64 {
	rows := int64(c.Shape.B) * int64(c.Shape.Hq) * RoundUp(int64(c.Shape.Sq), 16)
	return 2 * rows * RoundUp(int64(c.Shape.Sk), 32) * int64(c.D+c.Dv)
}

// Hidden is the first key that no row attends to.
func (c Case) Hidden() int {
	return c.Causal.Visible(c.Shape.Sq-1, c.Shape.Sq, c.Shape.Sk)
}

// HalfSeen is how many keys the middle row attends to.
func (c Case) HalfSeen() int {
	return c.Causal.Visible((c.Shape.Sq-1)/2, c.Shape.Sq, c.Shape.Sk)
}
