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
