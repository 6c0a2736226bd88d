package cases

import (
	"encoding/binary"
	"math/rand/v2"

	"vkattn/attention/score"
	"vkattn/internal/problem"
	"vkattn/internal/randscore"
)

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

// ModifiersHaveTables reports whether the modifiers of the case read tables, which take descriptors.
func (c *Case) modifiersHaveTables() bool {
	list, _ := score.TablesOf(c.modifiers())
	return len(list) > 0
}

// modTable is the memory of a table: identifiers of a few runs, and some of them anywhere; weights below 2.
func (p *Problem) modTable(which int) []uint32 {
	r := rand.New(rand.NewPCG(p.mix(mixMods), uint64(which)))
	size := modSizes[which]
	if which == 1 {
		var weights []float32
		for range size[0] * size[1] {
			weights = append(weights, 4*r.Float32()-2)
		}
		return floatWords(weights)
	}
	var ids []int
	for i := range size[0] {
		id := i / 17
		if r.IntN(6) == 0 {
			id = r.IntN(100) - 20
		}
		ids = append(ids, id)
	}
	return words(ids)
}

// layOutTables puts the tables of modifiers into memory.
func (p *Problem) layOutTables() {
	add := func(name string, dims [score.MaxRank]int, words []uint32) {
		v := p.vector(pieceTables+len(p.args.Tables), words, nil)
		p.args.Tables = append(p.args.Tables, problem.Table{Vector: v, Name: name, Dims: dims})
	}
	if p.Modifiers != nil {
		for _, t := range p.Modifiers.Tables {
			words := make([]uint32, len(t.Host)/4)
			for i := range words {
				words[i] = binary.LittleEndian.Uint32(t.Host[4*i:])
			}
			add(t.Name, t.Dims, words)
		}
		return
	}
	s, mask := p.modifiers()
	list, _ := score.TablesOf(s, mask)
	for _, t := range list {
		which := cond(t == modWeights)
		add(t.Name(), modSizes[which], p.modTable(which))
	}
}

// slotOf is a row with some keys, for package score.
func (p *Problem) slotOf(b, h, row int, keys []int) score.Slots {
	seq := p.seq(b)
	at := score.Slots{I: p.position(b, row), Row: row, Rows: seq.Rows, Keys: seq.Keys, B: b, Head: h, KVHead: h / p.Group(), J: keys}
	if p.Modifiers != nil {
		for _, t := range p.Modifiers.Tables {
			at.Tables = append(at.Tables, score.Memory{Name: t.Name, Dims: t.Dims, Data: t.Host})
		}
		return at
	}
	for which, t := range []score.Table{modIDs, modWeights} {
		memory := score.Memory{Name: t.Name(), Dims: modSizes[which]}
		for _, w := range p.modTable(which) {
			memory.Data = binary.LittleEndian.AppendUint32(memory.Data, w)
		}
		at.Tables = append(at.Tables, memory)
	}
	return at
}

// leaves reports whether the mask modifier leaves key t to a row. It remembers the keys of a row.
func (p *Problem) leaves(b, h, row, t int) bool {
	p.masked.Lock()
	defer p.masked.Unlock()
	id := [3]int{b, h, row}
	list, known := p.masked.rows[id]
	if !known {
		_, mask := p.modifiers()
		list = make([]float64, p.seq(b).Keys)
		if mask.Given() {
			keys := make([]int, len(list))
			for key := range keys {
				keys[key] = key
			}
			at := p.slotOf(b, h, row, keys)
			score.NewEvaluator(mask, nil).Eval(list, &at)
		}
		if p.masked.rows == nil {
			p.masked.rows = map[[3]int][]float64{}
		}
		p.masked.rows[id] = list
	}
	return list[t] != 0
}

// modifiedScores are scores of a slot behind the case's score modifier.
func (p *Problem) modifiedScores(scores []float64, b, h, row, t int) []float64 {
	s, _ := p.modifiers()
	if !s.Given() {
		return scores
	}
	keys := make([]int, len(scores))
	for i := range keys {
		keys[i] = t
	}
	at := p.slotOf(b, h, row, keys)
	at.S = scores
	score.NewEvaluator(s, nil).Eval(scores, &at)
	return scores
}
