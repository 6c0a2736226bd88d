package cases

import (
	"math"

	"vkattn/internal/problem"
)

// layOutLists puts lists of sparse tokens and bitmaps of blocks into memory.
func (p *Problem) layOutLists() {
	if p.SparseRatio > 0 {
		p.layOutSparseTokens()
	}
	if p.BlockQ > 0 {
		p.layOutBlocks()
	}
}

// layOutSparseTokens makes a list for each list that a call may read. Rows of Q between sequences have a list of a token
// that exists.
func (p *Problem) layOutSparseTokens() {
	batches, rows := p.args.B, 1
	if p.PerRow {
		batches, rows = p.tensors[TensorQ].batches, p.tensors[TensorQ].seq
	}
	lists, read := make([][]int32, batches*rows*p.KVHeads()), make([]bool, batches*rows*p.KVHeads())
	for i := range lists {
		lists[i] = []int32{0}
	}
	p.sparseCount = map[[3]int][]int{}
	for b, s := range p.sequences() {
		for row := range max(1, s.Rows*broadcastIndex(p.PerRow, 1)) {
			owner := b
			if p.PerRow {
				if s.Rows == 0 {
					continue
				}
				batch, at := p.queryRow(b, row)
				owner = batch*rows + at
			}
			for kv := range p.KVHeads() {
				list, count := p.sparseList(s, kv, row), make([]int, s.Keys)
				for _, t := range list {
					if t >= 0 && int(t) < s.Keys {
						count[t]++
					}
				}
				p.sparseCount[[3]int{b, kv, row}] = count
				lists[owner*p.KVHeads()+kv], read[owner*p.KVHeads()+kv] = list, true
			}
		}
	}
	p.args.SparseTokens = &problem.SparseTokens{PerRow: p.PerRow}
	if p.TopK {
		p.layOutEqualLists(lists, read)
		return
	}
	var tokens []int32
	if p.Layout != Tight {
		tokens = []int32{7, 8, 9} // of no list
	}
	offsets, live := []int32{int32(len(tokens))}, map[int]bool{}
	for i, list := range lists {
		for range list {
			live[len(tokens)] = read[i]
			tokens = append(tokens, list[len(tokens)-int(offsets[i])])
		}
		offsets = append(offsets, int32(len(tokens)))
	}
	tokens = append(tokens, 0, 1)
	p.args.SparseTokens.Offsets = p.vector("Offsets", words(offsets), nil)
	p.args.SparseTokens.Tokens = p.vector("Tokens", words(tokens), func(i int) bool { return live[i] })
	p.args.SparseTokens.Total = len(tokens)
}

// layOutEqualLists fills lists of one length with -1.
func (p *Problem) layOutEqualLists(lists [][]int32, read []bool) {
	k := p.args.SparseTokens
	for _, list := range lists {
		k.TopK = max(k.TopK, len(list)+1)
	}
	var tokens []int32
	for _, list := range lists {
		tokens = append(tokens, list...)
		for range k.TopK - len(list) {
			tokens = append(tokens, -1)
		}
	}
	k.Tokens = p.vector("Tokens", words(tokens), func(i int) bool { return read[i/k.TopK] })
}

func (p *Problem) layOutBlocks() {
	batches, heads, _ := p.Blocks.extent(p.args.Shape)
	lines := (p.args.Sq + p.BlockQ - 1) / p.BlockQ
	columns := (p.args.Sk + p.BlockK - 1) / p.BlockK
	perLine := (columns + 31) / 32
	bits := make([]uint32, batches*heads*lines*perLine)
	live := make([]uint32, len(bits))
	for b, s := range p.sequences() {
		for h := range p.Hq {
			for i := range (s.Rows + p.BlockQ - 1) / p.BlockQ {
				for j := range (s.Keys + p.BlockK - 1) / p.BlockK {
					at := ((broadcastIndex(p.Blocks.Batches, b)*heads+broadcastIndex(p.Blocks.Heads, h))*lines+i)*perLine + j/32
					live[at] |= 1 << (j % 32)
					if p.blockAt(b, h, i, j) {
						bits[at] |= 1 << (j % 32)
					}
				}
			}
		}
	}
	batchesArg, headsArg, _ := p.Blocks.sizes()
	v := p.vector("Map", bits, func(int) bool { return false })
	for i, word := range live {
		fill(p.live[p.pieces["Map"]][4*(v.Offset+int64(i)):][:4], word)
	}
	p.args.Blocks = &problem.Blocks{Map: v, BlockQ: p.BlockQ, BlockK: p.BlockK, Batches: batchesArg, Heads: headsArg}
}

// layOutModifiers puts sinks, ALiBi slopes, mask and bias into memory.
func (p *Problem) layOutModifiers() {
	if p.ALiBi || p.Sinks {
		var slopes, sinks []float32
		for h := range p.Hq {
			sinks = append(sinks, p.sinkOf(h))
		}
		for b := range p.sequences() {
			for h := range p.Hq {
				slopes = append(slopes, p.slope(b, h))
			}
		}
		if p.args.ALiBiPerSequence = p.ALiBiPerSequence; !p.ALiBiPerSequence {
			slopes = slopes[:p.Hq]
		}
		if p.ALiBi {
			p.args.ALiBi = p.vector("ALiBi", floatWords(slopes), nil)
		}
		if p.Sinks {
			p.args.Sinks = p.vector("Sinks", floatWords(sinks), nil)
		}
	}
	if p.Mask.On {
		batches, heads, rows := p.Mask.sizes()
		t := p.slots("Mask", p.Mask, 1, func(b, h, row, key int) []byte {
			return []byte{p.maskAt(b, h, row, key)}
		}, func(b, h, row, key int) bool {
			from, to := p.span(b, row)
			return key >= from && key < to
		})
		p.args.Mask = &problem.Mask{Tensor: t, Batches: batches, Heads: heads, Rows: rows}
	}
	if p.Bias.On {
		batches, heads, rows := p.Bias.sizes()
		t := p.slots("Bias", p.Bias.Spread, int64(p.Bias.DType.Size()), func(b, h, row, key int) []byte {
			return encodeFloats([]float32{p.biasAt(b, h, row, key)}, p.Bias.DType)
		}, func(b, h, row, key int) bool { return p.Weight(b, h, row, key) > 0 })
		p.args.Bias = &problem.Bias{Tensor: t, DType: p.Bias.DType, Batches: batches, Heads: heads, Rows: rows}
	}
}

// slots makes a tensor [batches, heads, rows, Sk] with a number for each slot. Only slots
// that the result depends on are live.
func (p *Problem) slots(name string, s Spread, size int64, value func(b, h, row, key int) []byte, live func(b, h, row, key int) bool) problem.Tensor {
	t := rows{dim: p.args.Sk, offset: p.guard()}
	t.batches, t.heads, t.seq = s.extent(p.args.Shape)
	switch p.Layout {
	case Tight:
	case BSHD:
		t.strides = problem.BSHD(t.heads, t.seq, t.dim)
	case Odd:
		t.offset++
		t.strides = SpacedStrides(int64(t.heads), int64(t.seq), int64(t.dim)|1, 2, 1)
	case Padded:
		t.strides = SpacedStrides(int64(t.heads), int64(t.seq), RoundUp(int64(t.dim), 16), 16, 0)
	default:
		t.strides = problem.BHSD(t.heads, t.seq, t.dim)
	}
	image, bits := p.newPiece(name, (t.end()+p.guard())*size)
	for b, q := range p.sequences() {
		for h := range p.Hq {
			for row := range q.Rows {
				first := t.element(broadcastIndex(s.Batches, b), broadcastIndex(s.Heads, h), broadcastIndex(s.Rows, row))
				for key := range q.Keys {
					at := (first + int64(key)) * size
					copy(image[at:], value(b, h, row, key))
					if live(b, h, row, key) {
						fill(bits[at:at+size], math.MaxUint32)
					}
				}
			}
		}
	}
	tensor := t.tensor()
	tensor.Host = image
	return tensor
}
