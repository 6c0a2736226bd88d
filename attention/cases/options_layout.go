package cases

import (
	"math"
	"math/rand/v2"

	"vkattn/attention"
)

// sequenceRows are where sequences lie.
type sequenceRows struct {
	startQ, startK []int // of packed sequences
	totalQ, totalK int
	table          []int32 // [B, stride]; -1 where nothing is
	stride, pages  int
}

// layOutSequences chooses where sequences begin and which pages they have.
func (p *OptionsProblem) layOutSequences() {
	l := &p.lengths
	var rows, keys []int
	for _, s := range p.Seqs {
		rows, keys = append(rows, s.Rows), append(keys, s.Keys)
	}
	v := &attention.Varlen{}
	if p.PackedQ {
		var cu []int32
		l.startQ, cu, l.totalQ = pack(p.Seqs, rows, p.LooseQ)
		v.CuQ, v.TotalQ = p.vector(pieceCuQ, words(cu), nil), l.totalQ
	}
	if p.PackedK {
		var cu []int32
		l.startK, cu, l.totalK = pack(p.Seqs, keys, p.LooseK)
		v.CuK, v.TotalK = p.vector(pieceCuK, words(cu), nil), l.totalK
	}
	if p.LooseQ || !p.PackedQ && unlike(rows, p.args.Sq) {
		v.UsedQ = p.vector(pieceUsedQ, words(rows), nil)
	}
	if p.LooseK || !p.PackedK && unlike(keys, p.args.Sk) {
		v.UsedK = p.vector(pieceUsedK, words(keys), nil)
	}
	if v.CuQ.Given() || v.CuK.Given() || v.UsedQ.Given() || v.UsedK.Given() {
		p.args.Varlen = v
	}
	if p.PageSize > 0 {
		p.layOutPages()
	}
}

// pack lays sequences end to end; loose ones have a gap behind each, and before
// the first.
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

func unlike(list []int, n int) bool {
	for _, v := range list {
		if v != n {
			return true
		}
	}
	return false
}

// layOutPages deals out pages in random order, about a quarter more than needed.
// Sequences share the pages that lie in their common prefix.
func (p *OptionsProblem) layOutPages() {
	l, size := &p.lengths, p.PageSize
	l.stride = (p.args.Sk + size - 1) / size
	needed := 0
	for _, s := range p.Seqs {
		needed += (s.Keys + size - 1) / size
	}
	l.pages = needed + needed/4 + 1
	free := rand.New(rand.NewPCG(p.seed, p.mix(mixPages))).Perm(l.pages)
	var shared []int32
	l.table = make([]int32, len(p.Seqs)*l.stride)
	table := make([]int32, len(l.table))
	for i := range l.table {
		l.table[i] = -1
		table[i] = int32(p.mix(mixPages, i) % uint64(l.pages)) // a page, to be spoiled
	}
	for b, s := range p.Seqs {
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
	p.args.Pages = &attention.Pages{
		Table:    p.vector(pieceTable, words(table), func(i int) bool { return l.table[i] >= 0 }),
		PageSize: size, Count: l.pages,
	}
	if p.Layout != Tight {
		p.args.Pages.Stride = l.stride
	}
}

// queryRow is where a row of a sequence is in Q, O and LSE.
func (p *OptionsProblem) queryRow(b, row int) (batch, at int) {
	if p.PackedQ {
		return 0, p.lengths.startQ[b] + row
	}
	return b, row
}

// kvRow is where a key of a sequence is in K and V.
func (p *OptionsProblem) kvRow(b, t int) (batch, at int) {
	switch {
	case p.PageSize > 0:
		return int(p.lengths.table[b*p.lengths.stride+t/p.PageSize]), t % p.PageSize
	case p.PackedK:
		return 0, p.lengths.startK[b] + t
	}
	return b, t
}

// queryExtent and kvExtent are the batches and rows of Q and O, and of K and V.
func (p *OptionsProblem) queryExtent() (batches, rows int) {
	if p.PackedQ {
		return 1, p.lengths.totalQ
	}
	return len(p.Seqs), p.args.Sq
}

func (p *OptionsProblem) kvExtent() (batches, keys int) {
	switch {
	case p.PageSize > 0:
		return p.lengths.pages, p.PageSize
	case p.PackedK:
		return 1, p.lengths.totalK
	}
	return len(p.Seqs), p.args.Sk
}

// layOutTensors puts Q, K and V into memory and makes room for O and LSE.
func (p *OptionsProblem) layOutTensors() {
	batches, rows := p.queryExtent()
	p.args.Q = p.newTensor(pieceQ, 0, batches, p.Hq, rows, p.D, false)
	p.args.O = p.newTensor(pieceO, 3, batches, p.Hq, rows, p.Dv, false)
	if p.LSE {
		m := p.newPiece(pieceLSE, 4*(2*p.guard()+int64(batches*p.Hq*rows)))
		p.args.LSE = attention.Tensor{Host: p.Image[m], Offset: p.guard()}
	}
	size := p.DType.Size()
	for b, s := range p.Seqs {
		for h := range p.Hq {
			for row := range s.Rows {
				batch, at := p.queryRow(b, row)
				q := encodeFloats(p.data[b].q[(h*s.Rows+row)*p.D:][:p.D], p.DType)
				p.put(pieceQ, p.element(&p.args.Q, p.Hq, rows, p.D, batch, h, at)*int64(size), q, true)
			}
		}
	}
	p.layOutKV()
	p.markOutputs()
}

// layOutKV puts K and V into memory. Keys that no row attends to are there, not live.
func (p *OptionsProblem) layOutKV() {
	batches, keys := p.kvExtent()
	p.args.K = p.newTensor(pieceK, 1, batches, p.Hkv, keys, p.D, true)
	if p.VInK {
		p.args.V = p.args.K
		p.args.V.Strides = p.args.K.Strides.Resolve(p.Hkv, keys, p.D)
		p.piece[pieceV] = p.piece[pieceK]
	} else {
		p.args.V = p.newTensor(pieceV, 2, batches, p.Hkv, keys, p.Dv, true)
	}
	block := max(p.KVBlock, 1)
	perHead := (keys + block - 1) / block
	n := batches * p.Hkv * perHead
	p.kScale, p.vScale = make([]float32, n), make([]float32, n)
	owned, seenScale := make([]bool, n), make([]bool, n)
	for b, s := range p.Seqs {
		for kv := range p.Hkv {
			seen := p.sees(b, kv)
			for t := range s.Keys {
				batch, at := p.kvRow(b, t)
				row := kv*s.Keys + t
				p.put(pieceK, p.keyByte(&p.args.K, keys, p.D, batch, kv, at), p.data[b].k[row], seen[t])
				if !p.VInK {
					p.put(pieceV, p.keyByte(&p.args.V, keys, p.Dv, batch, kv, at), p.data[b].v[row], seen[t])
				}
				i := (batch*p.Hkv+kv)*perHead + at/block
				if !owned[i] {
					id := s.ID
					if t < p.Prefix {
						id = prefixID
					}
					owned[i] = true
					p.kScale[i], p.vScale[i] = p.scaleOf(mixKScale, id, kv, t), p.scaleOf(mixVScale, id, kv, t)
				}
				seenScale[i] = seenScale[i] || seen[t]
			}
		}
	}
	if p.KV.Scaled() {
		live := func(i int) bool { return seenScale[i] }
		p.args.KScale = p.vector(pieceKScale, floatWords(p.kScale), live)
		p.args.VScale = p.vector(pieceVScale, floatWords(p.vScale), live)
	}
}

// scaleAt are the scales of a key, as placed.
func (p *OptionsProblem) scaleAt(b, kv, t int) (k, v float32) {
	_, keys := p.kvExtent()
	block := max(p.KVBlock, 1)
	batch, at := p.kvRow(b, t)
	i := (batch*p.Hkv+kv)*((keys+block-1)/block) + at/block
	return p.kScale[i], p.vScale[i]
}

// newTensor makes memory for a tensor by the layout's name.
func (p *OptionsProblem) newTensor(which, odd, batches, heads, rows, dim int, kv bool) attention.Tensor {
	t := attention.Tensor{Offset: p.guard()}
	h, n, d, unit := int64(heads), int64(rows), int64(dim), int64(8)
	if p.KV.Blocked() {
		unit = 32
	}
	switch p.Layout {
	case Tight:
	case BSHD:
		t.Strides = attention.BSHD(heads, rows, dim)
	case Padded:
		t.Strides = SpacedStrides(h, n, RoundUp(d, unit)+unit, 2*unit, 3*unit)
	case Odd:
		if p.KV.Blocked() {
			t.Strides = SpacedStrides(h, n, d+unit, unit, unit)
			break
		}
		t.Offset += 1 + 2*int64(odd)
		t.Strides = SpacedStrides(h, n, d|1+2*int64(odd), 1-n%2, 4)
		t.Strides.Batch |= 1
		t.Strides.Head |= 1
	default:
		t.Strides = attention.BHSD(heads, rows, dim)
	}
	s := t.Strides.Resolve(heads, rows, dim)
	end := t.Offset + int64(batches-1)*s.Batch + int64(heads-1)*s.Head + int64(rows-1)*s.Seq + d + p.guard()
	if kv {
		end = int64(p.KV.RowBytes(p.DType, int(end)))
	} else {
		end *= int64(p.DType.Size())
	}
	t.Host = p.Image[p.newPiece(which, end)]
	if batches == 1 && (p.PackedQ && !kv || p.PackedK && kv) && t.Strides != (attention.Strides{}) {
		t.Strides.Batch = 1<<40 + 32 // which nobody looks at
	}
	return t
}

// element is the first element of a row.
func (p *OptionsProblem) element(t *attention.Tensor, heads, rows, dim, batch, h, row int) int64 {
	s := t.Strides.Resolve(heads, rows, dim)
	return t.Offset + int64(batch)*s.Batch + int64(h)*s.Head + int64(row)*s.Seq
}

// keyByte is the first byte of a row of K or V.
func (p *OptionsProblem) keyByte(t *attention.Tensor, keys, dim, batch, kv, at int) int64 {
	return int64(p.KV.RowBytes(p.DType, int(p.element(t, p.Hkv, keys, dim, batch, kv, at))))
}

// put writes bytes and makes them live, or leaves them as they are.
func (p *OptionsProblem) put(which int, at int64, b []byte, live bool) {
	m := p.piece[which]
	copy(p.Image[m][at:], b)
	if live {
		fill(p.live[m][at:at+int64(len(b))], math.MaxUint32)
	}
}

// markOutputs marks the bytes that a call writes: those of rows there are.
func (p *OptionsProblem) markOutputs() {
	for _, which := range []int{pieceO, pieceLSE} {
		if m := p.piece[which]; m >= 0 {
			p.written[m], p.live[m] = make([]bool, len(p.Image[m])), nil
		}
	}
	p.eachOutput(func(which int, _, _, _ int, at, bytes int64) {
		for i := range bytes {
			p.written[p.piece[which]][at+i] = true
		}
	})
}

// eachOutput visits the rows of O, and of LSE where there is one, with the bytes
// that they take.
func (p *OptionsProblem) eachOutput(visit func(which, b, h, row int, at, bytes int64)) {
	_, rows := p.queryExtent()
	size := int64(p.DType.Size())
	for b, s := range p.Seqs {
		for h := range p.Hq {
			for row := range s.Rows {
				batch, at := p.queryRow(b, row)
				visit(pieceO, b, h, row, size*p.element(&p.args.O, p.Hq, rows, p.Dv, batch, h, at), size*int64(p.Dv))
				if p.LSE {
					visit(pieceLSE, b, h, row, 4*p.element(&p.args.LSE, p.Hq, rows, 1, batch, h, at), 4)
				}
			}
		}
	}
}
