package tests

import (
	"encoding/binary"
	"fmt"
	"math"

	"vkattn/attention"
	"vkattn/attention/kvcache"
	"vkattn/internal/cases"
	"vkattn/internal/half"
)

// appended is a row that a call writes.
type appended struct {
	in, out, scale int
	row, to        int64    // byte offsets of the new row and of the row it is written to
	scaleAt        int64    // byte offset of its scale
	position       int      // in its sequence
	want           []turned // what it should hold, in float64
}

// turned is the right value of an element, and the magnitude of its inputs.
type turned struct{ value, reach float64 }

// eachRow visits every row that is written. It follows the documentation, not the code.
func (p *appendProblem) eachRow(visit func(r appended) error) error {
	for b := range p.b {
		for _, t := range []struct{ in, out, scale int }{
			{appendK, appendKCache, appendKScale}, {appendV, appendVCache, appendVScale}, {appendQ, appendQOut, appendQOut},
		} {
			rows, limit := p.length[b], p.limit()
			if t.in == appendQ {
				if limit = p.positions; p.rowsQ > 0 {
					rows = p.rowsQ
				}
			}
			if !p.has(t.in) {
				rows = 0
			}
			for n := range rows {
				position := p.used[b] + n
				if t.in == appendQ && p.qAtUsed {
					position = p.used[b]
				}
				if position >= limit {
					continue
				}
				inBatch, inRow := b, n
				if p.lengths == "packed" {
					inBatch, inRow = 0, p.starts[b]+n
				}
				batch, row := b, position
				if p.pageSize > 0 && t.in != appendQ {
					batch, row = int(p.places[b*p.wide+position/p.pageSize]), position%p.pageSize
				}
				for h := range p.slots[t.in].heads {
					r := appended{in: t.in, out: t.out, scale: t.scale, position: position, row: p.slots[t.in].at(inBatch, h, inRow)}
					if t.in == appendQ && p.inPlace {
						r.out = appendQ
					}
					if t.in == appendQ {
						r.to = p.slots[r.out].at(inBatch, h, inRow)
					} else {
						s := &p.slots[t.out]
						r.to = s.at(batch, h, row)
						entry := (batch*s.heads+h)*s.rows + row
						switch p.KVBlock {
						case attention.KVBlockHead:
							entry = h
						case attention.KVBlockTensor:
							entry = 0
						}
						r.scaleAt = 4 * (p.slots[t.scale].offset + int64(entry))
					}
					r.want = p.turn(p.decode(p.image[t.in][r.row:], p.slots[t.in].units), position, t.in != appendV)
					if err := visit(r); err != nil {
						return fmt.Errorf("tensor %d, sequence %d, new row %d, head %d: %w", t.out, b, n, h, err)
					}
				}
			}
		}
	}
	return nil
}

// turn rotates a row in float64.
func (p *appendProblem) turn(x []float32, position int, rotary bool) []turned {
	want := make([]turned, len(x))
	for d, v := range x {
		want[d].value = float64(v)
	}
	if !rotary {
		return want
	}
	r := p.Rotary
	for i := range r.Dim / 2 {
		first, second := r.First+2*i, r.First+2*i+1
		if r.Style == kvcache.RotaryHalfSplit {
			first, second = r.First+i, r.First+i+r.Dim/2
		}
		c, s := float64(p.cos[position*r.Dim/2+i]), float64(p.sin[position*r.Dim/2+i])
		a, b := float64(x[first]), float64(x[second])
		reach := math.Abs(a) + math.Abs(b)
		want[first], want[second] = turned{a*c - b*s, reach}, turned{b*c + a*s, reach}
	}
	return want
}

// trespass reports the first changed byte that belongs to no row and no scale.
func (p *appendProblem) trespass(after [appendPieces][]byte) error {
	var clean [appendPieces][]byte
	for i := range after {
		clean[i] = append([]byte(nil), after[i]...)
	}
	err := p.eachRow(func(r appended) error {
		n := p.slots[r.out].rowBytes()
		copy(clean[r.out][r.to:r.to+n], p.image[r.out][r.to:])
		if r.scale != appendQOut && p.has(r.scale) && p.KVBlock == 0 {
			copy(clean[r.scale][r.scaleAt:r.scaleAt+4], p.image[r.scale][r.scaleAt:])
		}
		return nil
	})
	for i := range clean {
		for j := range clean[i] {
			if clean[i][j] != p.image[i][j] {
				return fmt.Errorf("byte %d of %d of tensor %d was overwritten: %#02x became %#02x", j, len(clean[i]), i, p.image[i][j], clean[i][j])
			}
		}
	}
	return err
}

// judge compares every row with the float64 reference.
func (p *appendProblem) judge(after [appendPieces][]byte) error {
	return p.eachRow(func(r appended) error {
		got := after[r.out][r.to:][:p.slots[r.out].rowBytes()]
		kv := map[int]attention.KVType{appendK: p.KeyType, appendV: p.ValueType}[r.in]
		switch {
		case kv == attention.KVSame:
			return p.judgeSame(got, r.want)
		case kv.Scaled():
			scale := math.Float32frombits(binary.LittleEndian.Uint32(after[r.scale][r.scaleAt:]))
			if p.KVBlock != 0 {
				return judgeGiven(got, float64(scale), r.want, kv)
			}
			return judgeSpan(got, float64(scale), r.want, kv)
		}
		if kv.Latent() {
			return p.judgeLatent(got, r.want)
		}
		for n := kv.RowBytes(p.DType, 32); len(got) > 0; got, r.want = got[n:], r.want[32:] {
			scale := half.F16ToFloat32(binary.LittleEndian.Uint16(got))
			if err := judgeSpan(got[:n], float64(scale), r.want[:32], kv); err != nil {
				return err
			}
		}
		return nil
	})
}

// judgeLatent checks the numbers of each scale as those of a float8, and the rest of the row as copies in bfloat16.
func (p *appendProblem) judgeLatent(got []byte, want []turned) error {
	for i := 0; i < 512; i += 128 {
		scale := math.Float32frombits(binary.LittleEndian.Uint32(got[512+i/32:]))
		if err := judgeSpan(got[i:i+128], float64(scale), want[i:i+128], attention.KVFP8); err != nil {
			return fmt.Errorf("from column %d on: %w", i, err)
		}
	}
	for i, w := range want[512:] {
		x := half.BF16ToFloat32(binary.LittleEndian.Uint16(got[528+2*i:]))
		if err := near(float64(x), w.value, 0x1p-8*math.Abs(w.value)+0x1p-23*w.reach+0x1p-25); err != nil {
			return fmt.Errorf("column %d: %w", 512+i, err)
		}
	}
	return nil
}

// judgeSame requires copies to be exact. Rotated elements may be off by half a unit of
// their type and three roundings of float32.
func (p *appendProblem) judgeSame(got []byte, want []turned) error {
	unit := map[attention.DType]float64{attention.F16: 0x1p-11, attention.BF16: 0x1p-8, attention.F32: 0x1p-24}[p.DType]
	for d, x := range p.decode(got, len(want)) {
		tolerance := 0.0
		if w := want[d]; w.reach > 0 {
			tolerance = unit*math.Abs(w.value) + 0x1p-23*w.reach + 0x1p-25
		}
		if err := near(float64(x), want[d].value, tolerance); err != nil {
			return fmt.Errorf("column %d: %w", d, err)
		}
	}
	return nil
}

// judgeGiven checks numbers with a given scale. What is beyond the largest number is the largest.
func judgeGiven(got []byte, scale float64, want []turned, kv attention.KVType) error {
	most := map[attention.KVType]float64{attention.KVInt8: 127, attention.KVFP8: 448, attention.KVFP8E5M2: 57344}[kv]
	for d, number := range cases.DecodeRow(kv, got, attention.F16, len(want), 1) {
		of := math.Max(-most, math.Min(want[d].value/scale, most))
		allowed := 0.5
		switch kv {
		case attention.KVFP8:
			allowed *= math.Max(0x1p-9, math.Exp2(math.Floor(math.Log2(math.Abs(number)))-3))
		case attention.KVFP8E5M2:
			allowed *= math.Max(0x1p-16, math.Exp2(math.Floor(math.Log2(math.Abs(number)))-2))
		}
		if err := near(number, of, allowed+2e-3+1e-5*math.Abs(of)); err != nil {
			return fmt.Errorf("column %d, in units of %v: %w", d, scale, err)
		}
	}
	return nil
}

// judgeSpan checks the scale of a span and its numbers. Each must be the nearest number of
// the type, except where a value is almost halfway between two. got begins with the scale of blocks.
func judgeSpan(got []byte, scale float64, want []turned, kv attention.KVType) error {
	var most, first float64
	least, greatest := math.Inf(1), math.Inf(-1)
	for _, w := range want {
		if math.Abs(w.value) > most*(1+1e-6) {
			most, first = math.Abs(w.value), w.value
		}
		least, greatest = math.Min(least, w.value), math.Max(greatest, w.value)
	}
	numbers, hasMinimum := cases.BlockNumbers(kv)
	unit := map[attention.KVType]float64{attention.KVInt8: most / 127, attention.KVQ8_0: most / 127,
		attention.KVFP8: most / 448, attention.KVFP8E5M2: most / 57344}[kv]
	tolerance, minimum := 1e-5, 0.0
	if kv.Blocked() {
		tolerance += 0x1p-11
	}
	if hasMinimum {
		unit = (greatest - least) / float64(len(numbers)-1)
		minimum = float64(half.F16ToFloat32(binary.LittleEndian.Uint16(got[2:])))
		if err := near(minimum, least, tolerance*math.Abs(least)+0x1p-25); err != nil {
			return fmt.Errorf("minimum: %w", err)
		}
	} else if numbers != nil {
		unit = first / numbers[0]
	}
	if err := near(scale, unit, tolerance*math.Abs(unit)+0x1p-25); err != nil {
		return fmt.Errorf("scale: %w", err)
	}
	exact := scale
	if kv.Scaled() {
		exact = 1
	}
	for d, x := range cases.DecodeRow(kv, got, attention.F16, len(want), 1) {
		var number, of float64
		if exact != 0 {
			number = (x - minimum) / exact
		}
		if unit != 0 {
			of = want[d].value / unit
			if hasMinimum {
				of = (want[d].value - least) / unit
			}
		}
		allowed := 0.5
		switch {
		case exact == 0: // all numbers are the same element
			continue
		case numbers != nil: // as near as the nearest, which may be the last one
			allowed = math.Inf(1)
			for _, n := range numbers {
				allowed = math.Min(allowed, math.Abs(n-of))
			}
		case kv == attention.KVFP8:
			allowed *= math.Max(0x1p-9, math.Exp2(math.Floor(math.Log2(math.Abs(number)))-3))
		case kv == attention.KVFP8E5M2:
			allowed *= math.Max(0x1p-16, math.Exp2(math.Floor(math.Log2(math.Abs(number)))-2))
		}
		if err := near(number, of, allowed+2e-3); err != nil {
			return fmt.Errorf("column %d, in units of %v: %w", d, unit, err)
		}
	}
	return nil
}
