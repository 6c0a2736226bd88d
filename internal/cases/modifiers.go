package cases

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"

	"vkattn/attention/score"
	"vkattn/internal/problem"
	"vkattn/internal/randscore"
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

// Score and mask modifiers of a case, random or given ones, and the tables that they read.

// Modifiers are given ones, with the tables that they read in host memory.
type Modifiers struct {
	Score, Mask score.Expr // either may be none
	Tables      []problem.Table
}

// Tables of modifiers, and their sizes.
var (
	modIDs     = score.IntTable("ids", 1)
	modWeights = score.FloatTable("weights", 2)

	modSizes = [2][score.MaxRank]int{{61}, {5, 9}}
)

// modifiers are those that a case's number draws. One of them may be none. A score modifier is no steep function of the
// score, and its numbers are small, so that it makes little of rounding.
func (c *Case) modifiers() (s, mask score.Expr) {
	switch {
	case c.Modifiers != nil:
		return c.Modifiers.Score, c.Modifiers.Mask
	case c.Mods == 0:
		return s, mask
	}
	r := rand.New(rand.NewPCG(uint64(c.Mods), 0x30d5))
	if c.Mods%3 != 1 {
		s = randscore.DrawGentle(r, 3, modIDs, modWeights)
	}
	if c.Mods%3 == 2 {
		return s, mask
	}
	e := randscore.DrawExact(r, score.TypeBool, 1+r.IntN(3), modIDs)
	switch r.IntN(8) {
	case 0:
		return s, score.SinksWindow(r.IntN(8), 1+r.IntN(90))
	case 1:
		return s, score.And(score.Causal(), e)
	case 2:
		return s, score.Or(score.SlidingWindow(r.IntN(50), r.IntN(50)), e)
	case 3:
		return s, score.Documents(modIDs)
	case 4:
		return s, score.Or(score.Chunked(1+r.IntN(70)), score.Lt(score.J, modIDs.At(score.Row)))
	}
	return s, e
}

// ChangesScores reports whether anything is done to the scaled products, which kernels then have in natural units; masks do nothing to them.
func (c *Case) ChangesScores() bool {
	s, _ := c.modifiers()
	return c.Bias.On || c.ALiBi || c.Softcap != 0 || s != (score.Expr{})
}

// ModifiersHaveTables reports whether the modifiers of the case read tables, if any.
func (c *Case) modifiersHaveTables() bool {
	list, _ := score.TablesOf(c.modifiers())
	return len(list) > 0
}

// userModifiers are the modifiers of a problem with their tables, given ones or random ones: identifiers of a few runs, and
// some of them anywhere; weights below 2.
func (p *Problem) userModifiers() (m Modifiers) {
	if p.Modifiers != nil {
		return *p.Modifiers
	}
	m.Score, m.Mask = p.Case.modifiers()
	list, _ := score.TablesOf(m.Score, m.Mask)
	for _, t := range list {
		which := cond(t == modWeights)
		r := rand.New(rand.NewPCG(p.mix(mixMods), uint64(which)))
		size := modSizes[which]
		table := problem.Table{Name: t.Name(), Dims: size}
		for i := range size[0] * max(size[1], 1) {
			word := uint32(i / 17)
			if which == 1 {
				word = math.Float32bits(4*r.Float32() - 2)
			} else if r.IntN(6) == 0 {
				word = uint32(r.IntN(100) - 20)
			}
			table.Host = binary.LittleEndian.AppendUint32(table.Host, word)
		}
		m.Tables = append(m.Tables, table)
	}
	return m
}

// layOutTables puts the tables of modifiers into memory.
func (p *Problem) layOutTables() {
	for _, t := range p.user.Tables {
		words := make([]uint32, len(t.Host)/4)
		for i := range words {
			words[i] = binary.LittleEndian.Uint32(t.Host[4*i:])
		}
		v := p.vector("Tables["+t.Name+"]", words, nil)
		p.args.Tables = append(p.args.Tables, problem.Table{Vector: v, Name: t.Name, Dims: t.Dims})
	}
}

// slotOf is a row with some keys, for package score.
func (p *Problem) slotOf(b, h, row int, keys []int) score.Slots {
	seq := p.seq(b)
	at := score.Slots{I: p.position(b, row), Row: row, Rows: seq.Rows, Keys: seq.Keys, B: b, Head: h, KVHead: h / p.Group(), J: keys}
	for _, t := range p.user.Tables {
		at.Tables = append(at.Tables, score.Memory{Name: t.Name, Dims: t.Dims, Data: t.Host})
	}
	return at
}

// unmasked says which keys of its span the mask modifier leaves to a row: those that are not 0.
func (p *Problem) unmasked(b, h, row int) []float64 {
	from, to := p.span(b, row)
	keys := make([]int, max(to-from, 0))
	for i := range keys {
		keys[i] = from + i
	}
	left, at := make([]float64, len(keys)), p.slotOf(b, h, row, keys)
	score.NewEvaluator(p.user.Mask, nil).Eval(left, &at)
	return left
}

// leaves reports whether the mask modifier leaves key t of its span to a row. It remembers the keys of a row.
func (p *Problem) leaves(b, h, row, t int) bool {
	p.masked.Lock()
	defer p.masked.Unlock()
	id := [3]int{b, h, row}
	list, known := p.masked.rows[id]
	if !known {
		if list = p.unmasked(b, h, row); p.masked.rows == nil {
			p.masked.rows = map[[3]int][]float64{}
		}
		p.masked.rows[id] = list
	}
	from, _ := p.span(b, row)
	return list[t-from] != 0
}

// modifiedScores are scores of a slot behind the case's score modifier.
func (p *Problem) modifiedScores(scores []float64, b, h, row, t int) []float64 {
	if !p.user.Score.Given() {
		return scores
	}
	at := p.slotOf(b, h, row, slices.Repeat([]int{t}, len(scores)))
	at.S = scores
	score.NewEvaluator(p.user.Score, nil).Eval(scores, &at)
	return scores
}
