package gokernels

import (
	"math"
	"unsafe"

	"vkattn/internal/dropout"
	"vkattn/internal/half"
)

// Attend adds the keys of a tile to the rows of a group. k and v are the rows of the tile's first key.
func Attend(t *Tile, q, o, s, state []float32, span []int32, position []float64, k, v unsafe.Pointer, keys []int32,
	bias []float32, mask []int32, slots []uint32) {
	lanes, from, to := int(t.Vectors)*Vector, int(t.From), int(t.To)
	kRow, vRow := int(t.KStride), int(t.VStride)
	if t.Stage != StageRest {
		product(lanes, to-from, int(t.D), skipNone, matrix{k, kRow, 1}.from(from, 0), q, Lanes, set(s[from*Lanes:], Lanes, t.Scale))
		if t.Softcap != 0 || t.Bias != 0 || t.ALiBi != 0 {
			modify(t, s, state[StateSlope*Lanes:], position, keys, bias)
		}
	}
	if t.Stage == StageScores {
		return
	}
	softmax(t, o, s, state, span, keys, mask)
	if t.RoundP != 0 {
		// O is divided by the sum of the rounded P, so that a row with one large P is not wrong by its rounding.
		sum := state[StateRounded*Lanes:][:lanes]
		for key := from; key < to; key++ {
			x := s[key*Lanes:][:lanes]
			roundWeights(x)
			for i, p := range x {
				sum[i] += p
			}
		}
	}
	drops := t.Dropout.Threshold != 0
	if drops {
		drop(t, s, slots, keys)
	}
	for from < to {
		end := from + 1
		for end < to && keys[end]/Summed == keys[from]/Summed {
			end++
		}
		skip := skipMasked
		if !drops && int(t.FullFrom) <= from && end <= int(t.FullTo) {
			skip = skipNone
		}
		// They are summed first: many small terms added to a large O may all be rounded the same way.
		product(lanes, int(t.DV), end-from, skip, matrix{v, 1, vRow}.from(0, from), s[from*Lanes:], Lanes, add(o, Lanes))
		from = end
	}
}

// modify applies softcap, bias and ALiBi to scores, in this order.
func modify(t *Tile, s, slope []float32, position []float64, keys []int32, bias []float32) {
	lanes := int(t.Vectors) * Vector
	for key := int(t.From); key < int(t.To); key++ {
		x := s[key*Lanes:][:lanes]
		if t.Softcap != 0 {
			for i := range x {
				x[i] = float32(t.Softcap * tanhOf(x[i]/t.Softcap))
			}
		}
		if t.Bias != 0 {
			for i, b := range bias[key*Lanes:][:lanes] {
				x[i] += b
			}
		}
		if t.ALiBi != 0 {
			for i := range x {
				x[i] -= float32(slope[i] * float32(math.Abs(position[i]-float64(keys[key]))))
			}
		}
	}
}

// visible reports whether a lane attends to a key.
func visible(t *Tile, span, keys, mask []int32, key, lane int) bool {
	at := keys[key]
	return span[lane] <= at && at < span[Lanes+lane] && (t.Mask == 0 || mask[key*Lanes+lane] != 0)
}

// level is the natural logarithm that a row's weights are relative to.
func level(most, fraction, m float32) float64 {
	if magnitude(most) <= far {
		return float64((float64(m) + float64(fraction)) * ln2)
	}
	return float64(most)
}

// softmax turns scores into weights, and rescales sums and O to a new row maximum.
func softmax(t *Tile, o, s, state []float32, span, keys, mask []int32) {
	lanes, from, to := int(t.Vectors)*Vector, int(t.From), int(t.To)
	array := func(i int) []float32 { return state[i*Lanes:][:lanes] }
	most, fraction, sum, carry, started := array(StateMax), array(StateFraction), array(StateSum), array(StateCarry), array(StateStarted)
	full := func(key int) bool { return int(t.FullFrom) <= key && key < int(t.FullTo) }

	// The largest scores; NaN counts as none.
	var largest [Lanes]float32
	copy(largest[:], most)
	for key := from; key < to; key++ {
		if fastSoftmax && full(key) {
			largestRows(s[key*Lanes:], int(t.FullTo)-key, &largest)
			key = int(t.FullTo) - 1
			continue
		}
		x, all := s[key*Lanes:][:lanes], full(key)
		for i := range x {
			if all || visible(t, span, keys, mask, key, i) {
				largest[i] = larger(x[i], largest[i])
			}
		}
	}

	// Set the fractions of rows that see their first key.
	for i := range started {
		for key := from; key < to && started[i] < 1; key++ {
			if visible(t, span, keys, mask, key, i) {
				x := s[key*Lanes+i]
				started[i], fraction[i] = 1, 0
				if magnitude(x) <= far {
					fraction[i] = fractionOf(x, exponent(x, 0))
				}
			}
		}
	}

	// The factors that rescale sums and O, and the rows beyond far.
	var shrink, before, sums, carries, old, m, least [Lanes]float32
	var isFar [Lanes]bool
	anyFar, moved := false, false
	for i := range most {
		fresh := most[i] <= -inf
		old[i], m[i], least[i] = ceiling(most[i], fraction[i]), ceiling(largest[i], fraction[i]), largest[i]-150
		shrink[i] = 1
		if !fresh {
			shrink[i] = power(old[i] - m[i])
		}
		isFar[i] = started[i] > 0 && (!(magnitude(largest[i]) <= far) || !fresh && !(magnitude(most[i]) <= far))
		anyFar, moved = anyFar || isFar[i], moved || shrink[i] < 1
		before[i], sums[i], carries[i] = most[i], sum[i], carry[i]
		sum[i] = float32(sum[i] * shrink[i])
		carry[i] = float32(carry[i] * shrink[i])
		most[i] = largest[i]
	}
	var farScores []float32
	if anyFar {
		farScores = append(farScores, s[:to*Lanes]...)
	}

	// The weights. Kahan's sum: small ones added to a large sum may all be rounded the same way.
	for key := from; key < to; key++ {
		x, all := s[key*Lanes:][:lanes], full(key)
		switch {
		case fastSoftmax && all:
			weightRowsSum(s[key*Lanes:], int(t.FullTo)-key, &least, fraction, &m, sum, carry)
			key = int(t.FullTo) - 1
			continue
		case fastSoftmax:
			weightRows(x, 1, &least, fraction, &m)
		default:
			weights(x, &least, fraction, &m)
		}
		for i, p := range x {
			if !all && !visible(t, span, keys, mask, key, i) {
				x[i] = math.Float32frombits(negativeZero)
				continue
			}
			y := p - carry[i]
			next := sum[i] + y
			carry[i] = (next - sum[i]) - y
			sum[i] = next
		}
	}
	for i := range most {
		if !isFar[i] {
			continue
		}
		level, was := level(most[i], fraction[i], m[i]), level(before[i], fraction[i], old[i])
		shrink[i] = 1
		if before[i] != -inf {
			shrink[i] = float32(math.Exp(was - level))
		}
		sum[i], carry[i] = float32(sums[i]*shrink[i]), float32(carries[i]*shrink[i])
		farWeights(t, i, farScores, s, &sum[i], &carry[i], most[i], level, span, keys, mask)
	}
	if anyFar || moved {
		for i, x := range array(StateRounded) {
			state[StateRounded*Lanes+i] = float32(x * shrink[i])
		}
		for j := range int(t.DV) {
			for i, x := range o[j*Lanes:][:lanes] {
				o[j*Lanes+i] = float32(x * shrink[i])
			}
		}
	}
}

// weights turns the scores of a key into weights.
func weights(x []float32, least *[Lanes]float32, fraction []float32, m *[Lanes]float32) {
	for i, v := range x {
		x[i] = weight(larger(least[i], v), fraction[i], m[i])
	}
}

// farWeights computes the weights of a lane in float64 and adds them to its row sum.
func farWeights(t *Tile, lane int, from, s []float32, sum, carry *float32, most float32, level float64, span, keys, mask []int32) {
	for key := int(t.From); key < int(t.To); key++ {
		p := math.Float32frombits(negativeZero)
		if visible(t, span, keys, mask, key, lane) {
			x := from[key*Lanes+lane]
			switch {
			case most != -inf:
				p = float32(math.Exp(float64(x) - level))
			case x == x:
				p = 0
			default:
				p = x
			}
			y := p - *carry
			next := *sum + y
			*carry = (next - *sum) - y
			*sum = next
		}
		s[key*Lanes+lane] = p
	}
}

// roundWeights rounds weights, which are 0 to 1, -0 or NaN, to bfloat16, two at a time.
func roundWeights(x []float32) {
	const odd, most, upper, large = 0x1_00000001, 0x7fff_00007fff, 0xffff0000_ffff0000, 0x40000000_40000000
	for i := 0; i < len(x); i += 2 {
		pair := (*[2]float32)(x[i:])
		two := (*uint64)(unsafe.Pointer(pair))
		if *two&large == 0 {
			*two = (*two + (*two >> 16 & odd) + most) & upper
			continue
		}
		for j, w := range pair {
			pair[j] = half.BF16ToFloat32(half.BF16FromFloat32(w))
		}
	}
}

// mask is the dropout mask of package dropout.
func (d *Dropout) mask() dropout.Mask {
	return dropout.Mask{Seed: uint64(d.Seed[0]) | uint64(d.Seed[1])<<32, Offset: d.Offset, Threshold: d.Threshold}
}

// drop sets the weights of dropped slots to -0, the weight of masked slots. The row sums have them already.
func drop(t *Tile, s []float32, slots []uint32, keys []int32) {
	mask := t.Dropout.mask()
	for i := range int(t.Vectors) * Vector {
		var words [4]uint32
		quad := int32(-1)
		for key := int(t.From); key < int(t.To); key++ {
			if keys[key]/4 != quad {
				quad = keys[key] / 4
				words = mask.Words(slots[Lanes+i], slots[i], uint32(quad))
			}
			if words[keys[key]%4] < mask.Threshold {
				s[key*Lanes+i] = math.Float32frombits(negativeZero)
			}
		}
	}
}

// oneNaN is x, with one NaN for all. Which of several a sum keeps depends on lanes that are masked.
func oneNaN(x float32) float32 {
	if x != x {
		return nan
	}
	return x
}

// Finish divides O by the row sums, a sink's share in them and, with dropout, the probability that a weight
// remains (else 1), and stores its rows.
func Finish(o, state []float32, base []byte, at []int64, rows, vectors, dv int, t Type, keep float32) {
	lanes := vectors * Vector
	array := func(i int) []float32 { return state[i*Lanes:][:lanes] }
	most, fraction, sum, sinks, lses := array(StateMax), array(StateFraction), array(StateSum), array(StateSink), array(StateLSE)
	rounded := array(StateRounded)
	var divisor [Lanes]float32
	for i := range most {
		// A sink of +Inf takes all weight from all keys and has no logarithm.
		sink := float64(sinks[i])
		if sinks[i] == inf {
			sink = math.NaN()
		}
		lse := level(most[i], fraction[i], ceiling(most[i], fraction[i])) + math.Log(float64(sum[i]))
		divisor[i] = rounded[i]
		if rounded[i] == 0 {
			divisor[i] = sum[i]
		}
		switch {
		case sum[i] == 0:
			// Values of keys with score -Inf may have left NaN in O.
			x := float32(0)
			if sink != sink {
				x = nan
			}
			for j := range dv {
				o[j*Lanes+i] = x
			}
			divisor[i], lse = 1, sink
		case sink != math.Inf(-1):
			divisor[i] = float32(float64(divisor[i]) * (1 + math.Exp(sink-lse)))
			if lse > sink {
				lse += math.Log1p(math.Exp(sink - lse))
			} else {
				lse = sink + math.Log1p(math.Exp(lse-sink))
			}
		}
		divisor[i] *= keep
		lses[i] = oneNaN(float32(lse))
	}
	row := make([]float32, dv)
	for i := range rows {
		for j := range row {
			row[j] = oneNaN(o[j*Lanes+i] / divisor[i])
		}
		narrowRow(base[at[i]:], row, t)
	}
}
