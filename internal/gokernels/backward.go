package gokernels

import (
	"math"
	"slices"
	"unsafe"
)

// span is a range of rows or of keys of a tile.
type span struct{ from, to int }

// panel is the number of keys that are computed together, and have the same rows.
const panel = Lanes

// ranges are the parts of a tile that are computed: those with a slot that a row attends to, as far as panels
// of keys and single rows tell.
type ranges struct {
	rows [Columns / Vector]span // of each panel
	keys [Rows]span             // of each row
}

func (t *Backward) ranges(row []Row, keys []int32, n int, in *ranges) {
	for first := 0; first < int(t.Vectors)*Vector; first += panel {
		low, high := keys[first], keys[min(first+panel, n)-1]
		r := span{0, int(t.Rows)}
		unseen := func(x *Row) bool { return x.First > high || x.End <= low }
		for t.Full == 0 && r.from < r.to && unseen(&row[r.from]) {
			r.from++
		}
		for t.Full == 0 && r.from < r.to && unseen(&row[r.to-1]) {
			r.to--
		}
		in.rows[first/panel] = r
	}
	for r := range int(t.Rows) {
		k := span{0, n}
		for t.Full == 0 && k.from < k.to && keys[k.from] < row[r].First {
			k.from++
		}
		for t.Full == 0 && k.from < k.to && keys[k.to-1] >= row[r].End {
			k.to--
		}
		in.keys[r] = k
	}
}

// panels calls f for each panel of keys that has rows: its first lane, the number of lanes and the rows.
func (t *Backward) panels(in *ranges, f func(first, lanes int, rows span)) {
	all := int(t.Vectors) * Vector
	for first := 0; first < all; first += panel {
		if r := in.rows[first/panel]; r.from < r.to {
			f(first, min(panel, all-first), r)
		}
	}
}

// setTile sets C to scale times rows of A times B, a tile of scores or of dP.
func (t *Backward) setTile(in *ranges, depth int, scale float32, a, b, c []float32) {
	t.panels(in, func(first, lanes int, r span) {
		product(lanes, r.to-r.from, depth, skipNone, matrixOf(a[r.from*depth:], depth, 1), b[first:], Columns,
			set(c[r.from*Columns+first:], Columns, scale))
	})
}

// addKeys adds A^T times a tile to C, which is dV^T or dK^T.
func (t *Backward) addKeys(in *ranges, d int, a, tile, c []float32) {
	skip := skipZero
	if t.RowsFinite != 0 {
		skip = skipNone
	}
	t.panels(in, func(first, lanes int, r span) {
		product(lanes, d, r.to-r.from, skip, matrixOf(a[r.from*d:], 1, d), tile[r.from*Columns+first:], Columns, add(c[first:], Columns))
	})
}

// addRows adds a tile times rows of K to C, which is dQ.
func (t *Backward) addRows(in *ranges, tile, k, c []float32) {
	const block = 4 // rows that are computed together
	stride := int(t.Stride)
	for r := 0; r < int(t.Rows); r += block {
		n := min(block, int(t.Rows)-r)
		keys := in.keys[r]
		for _, other := range in.keys[r+1 : r+n] {
			keys.from, keys.to = min(keys.from, other.from), max(keys.to, other.to)
		}
		if keys.to <= keys.from {
			continue
		}
		for first := 0; first < stride; first += Lanes {
			product(min(Lanes, stride-first), n, keys.to-keys.from, skipNone, matrixOf(tile[r*Columns+keys.from:], Columns, 1),
				k[keys.from*stride+first:], stride, add(c[r*stride+first:], stride))
		}
	}
}

// addRowsSkip is addRows that skips slots of 0.
func (t *Backward) addRowsSkip(in *ranges, tile, k, c []float32) {
	stride := int(t.Stride)
	sum := make([]float32, stride)
	for r := range int(t.Rows) {
		clear(sum)
		for key := in.keys[r].from; key < in.keys[r].to; key++ {
			x := tile[r*Columns+key]
			if x == 0 {
				continue
			}
			for i, y := range k[key*stride:][:stride] {
				sum[i] = fma(x, y, sum[i])
			}
		}
		for i, x := range sum {
			c[r*stride+i] += x
		}
	}
}

// tanhSlope is tanhOf with its derivative, 1 - tanh^2 = 4e / (1 + e)^2.
func tanhSlope(x float32) (tanh, slope float32) {
	e := weight(larger(-150, float32(magnitude(x)*-2)), 0, 0)
	one := 1 + e
	return tanhOf(x), float32(4*e) / float32(one*one)
}

// scoreRow applies softcap, bias and ALiBi to the scaled products of a row, and with a softcap sets its slopes.
func (t *Backward) scoreRow(x *Row, keys []int32, bias, s, slope []float32) {
	for c, y := range s {
		more := float32(0)
		if t.Bias != 0 {
			more = bias[c]
		}
		if t.Softcap != 0 {
			var tanh float32
			tanh, slope[c] = tanhSlope(y / t.Softcap)
			y = fma(t.Softcap, tanh, more)
		} else if t.Bias != 0 {
			y += more
		}
		if t.ALiBi != 0 {
			y = fma(-x.Slope, float32(math.Abs(x.Position-float64(keys[c]))), y)
		}
		s[c] = y
	}
}

// slopes are derivatives of the scores of a row.
type slopes struct {
	product []float32 // with respect to scaled products, for dx; nil: dx is not asked for
	score   []float32 // with respect to scores in front of a modifier, for dS; nil: 1
	changes []float32 // is set to the gradients of the modified scores; nil: not asked for
	used    []bool    // with changes: is set to whether the slots have a weight
}

// weighRow turns scores and dP of a row into P and dS, and sets dX. With dropout P and dP are those behind it, and dS has
// the P in front of it.
func (t *Backward) weighRow(x *Row, keys []int32, count []float32, mask []int32, drops bool, p, g, dx []float32, of slopes) {
	for c := range p {
		p[c] -= x.LSE
	}
	exps(p)
	dropped := t.Dropout.mask()
	var words [4]uint32
	quad := int32(-1)
	for c, w := range p {
		w = float32(w * x.Factor)
		if count != nil {
			w = float32(w * count[c])
		}
		if t.Full == 0 && (keys[c] < x.First || keys[c] >= x.End || t.Mask != 0 && mask[c] == 0) {
			w = 0
		}
		changeP, kept := g[c], w
		if drops {
			if keys[c] >= 0 && keys[c]/4 != quad {
				quad = keys[c] / 4
				words = dropped.Words(x.Head, x.Row, uint32(quad))
			}
			if keys[c] >= 0 && words[keys[c]%4] >= t.Dropout.Threshold {
				changeP, kept = float32(changeP*t.Dropout.Scale), float32(w*t.Dropout.Scale)
			} else {
				changeP, kept = 0, 0
			}
		}
		// dP and the slopes may be NaN where the weight is 0.
		change := float32(w * (changeP - x.Delta))
		used := math.Float32bits(w) != 0
		if of.product != nil {
			dx[c] = 0
			if used {
				dx[c] = float32(change * of.product[c])
			}
		}
		if of.changes != nil {
			of.changes[c], of.used[c] = change, used
		}
		if of.score != nil {
			change = float32(change * of.score[c])
		}
		if !used {
			change = 0
		}
		p[c], g[c] = kept, change
	}
}

// part is what a row has of an array [Rows][Columns]; nil if there is none.
func part[T any](x []T, r, lanes int) []T {
	if x == nil {
		return nil
	}
	return x[r*Columns:][:lanes]
}

// weigh turns S and dP of a tile into P and dS, and with a softcap sets dX.
func (t *Backward) weigh(row []Row, keys []int32, count, bias []float32, mask []int32, drops bool, s, ds, dx []float32) {
	lanes := int(t.Vectors) * Vector
	var array [Columns]float32
	var of slopes
	if t.Softcap != 0 {
		of.product = array[:]
	}
	for r := range int(t.Rows) {
		p := part(s, r, lanes)
		t.scoreRow(&row[r], keys, part(bias, r, lanes), p, array[:])
		t.weighRow(&row[r], keys, count, part(mask, r, lanes), drops, p, part(ds, r, lanes), part(dx, r, lanes), of)
	}
}

// BackwardScores applies the options to the scaled products of a tile of n keys between StageScores and StageRest. It sets
// slope [Rows][Columns] to the derivatives of the softcap.
func BackwardScores(t *Backward, slab []float32, row []Row, keys []int32, bias, slope []float32, n int) {
	for r := range int(t.Rows) {
		of := part(slope, r, n)
		for c := range of {
			of[c] = 1
		}
		t.scoreRow(&row[r], keys, part(bias, r, n), part(slab[t.S:], r, n), of)
	}
}

// BackwardWeigh turns the scores and dP of a tile of n keys into P, dS and dX. product and score are derivatives of the scores,
// [Rows][Columns]: with respect to scaled products, and to scores in front of a modifier.
// With changes it also sets the gradients of the modified scores of slots that are used.
func BackwardWeigh(t *Backward, slab []float32, row []Row, keys []int32, count []float32, mask []int32, product, score, changes []float32, used []bool, n int) {
	for r := range int(t.Rows) {
		t.weighRow(&row[r], keys, count, part(mask, r, n), t.Dropout.Threshold != 0, part(slab[t.S:], r, n), part(slab[t.DS:], r, n),
			part(slab[t.Scratch:], r, n), slopes{part(product, r, n), part(score, r, n), part(changes, r, n), part(used, r, n)})
	}
}

// BackwardWeights turns the scores of a tile of n keys into P, in front of dropout, and adds them to the sum of each row.
func BackwardWeights(t *Backward, slab []float32, row []Row, keys []int32, count []float32, mask []int32, n int, sums []float64) {
	for r := range int(t.Rows) {
		p := part(slab[t.S:], r, n)
		t.weighRow(&row[r], keys, count, part(mask, r, n), false, p, part(slab[t.DS:], r, n), nil, slopes{})
		for _, x := range p[:n] {
			sums[r] += float64(x)
		}
	}
}

// allFinite reports whether all elements are finite.
func allFinite(x []float32) bool {
	return !slices.ContainsFunc(x, func(v float32) bool { return !(magnitude(v) < inf) })
}

// BackwardKeys reads n keys: K as rows and transposed, V transposed. It returns whether K is finite. Columns
// past the last key and elements past the last column become 0.
func BackwardKeys(t *Backward, slab []float32, k []byte, kAt []int64, v []byte, vAt []int64, n int, kind Type) bool {
	d, dv, stride := int(t.D), int(t.DV), int(t.Stride)
	rows, kt, vt := slab[t.K:][:Columns*stride], slab[t.KT:][:Columns*d], slab[t.VT:][:Columns*dv]
	clear(rows)
	clear(kt)
	clear(vt)
	finite := true
	for i := range n {
		row := rows[i*stride:][:d]
		widenRow(row, k[kAt[i]:], kind, 1)
		finite = allFinite(row) && finite
	}
	transpose(kt, Columns, rows, stride, n, d)
	values := slab[t.Scratch:]
	for i := range n {
		widenRow(values[i*dv:][:dv], v[vAt[i]:], kind, 1)
	}
	transpose(vt, Columns, values, dv, n, dv)
	return finite
}

// BackwardRows reads rows of Q and dO; a row at a negative offset becomes 0.
func BackwardRows(t *Backward, slab []float32, q []byte, qAt []int64, dO []byte, dOAt []int64, kind Type) {
	for r := range int(t.Rows) {
		to, rowDO := slab[int(t.Q)+r*int(t.D):][:t.D], slab[int(t.DO)+r*int(t.DV):][:t.DV]
		if qAt[r] < 0 {
			clear(to)
			clear(rowDO)
			continue
		}
		widenRow(to, q[qAt[r]:], kind, 1)
		widenRow(rowDO, dO[dOAt[r]:], kind, 1)
	}
}

// BackwardDelta sets sums[row] to dO times O of the rows that BackwardRows has read and returns whether these
// rows are finite. What dO holds where O is 0 adds nothing.
func BackwardDelta(t *Backward, slab []float32, sums []float64, o []byte, oAt []int64, kind Type) bool {
	const parts = 16
	dv := int(t.DV)
	values := slab[t.Scratch:][:dv]
	for r := range int(t.Rows) {
		dO := slab[int(t.DO)+r*dv:][:dv]
		var part [parts]float32
		sums[r] = 0
		if oAt[r] < 0 {
			continue
		}
		widenRow(values, o[oAt[r]:], kind, 1)
		i := 0
		for ; i+parts <= dv; i += parts {
			for j := range parts {
				if x := values[i+j]; x != 0 {
					part[j] = fma(x, dO[i+j], part[j])
				} else {
					part[j] = fma(x, 0, part[j])
				}
			}
		}
		sum := float64(0)
		for ; i < dv; i++ {
			if values[i] != 0 {
				sum += float64(float64(values[i]) * float64(dO[i]))
			}
		}
		for _, x := range part {
			sum += float64(x)
		}
		sums[r] = sum
	}
	return allFinite(slab[t.Q:][:t.Rows*t.D]) && allFinite(slab[t.DO:][:int(t.Rows)*dv])
}

// changes is where dX of a tile lies.
func (t *Backward) changes() int32 {
	if t.Softcap != 0 || t.Stage != StageAll {
		return t.Scratch
	}
	return t.DS
}

// BackwardTile computes P, dS and dX of a tile of n keys, and adds to dV^T and dK^T. Between StageScores, which leaves scaled
// products and dP, and StageRest the caller does what weigh does.
func BackwardTile(t *Backward, slab []float32, row []Row, keys []int32, count, bias []float32, mask []int32, n int) {
	var in ranges
	t.ranges(row, keys, n, &in)
	s, ds, dx := slab[t.S:], slab[t.DS:], slab[t.changes():]
	if t.Stage != StageRest {
		t.setTile(&in, int(t.D), t.Scale, slab[t.Q:], slab[t.KT:], s)
		t.setTile(&in, int(t.DV), 1, slab[t.DO:], slab[t.VT:], ds)
	}
	switch t.Stage {
	case StageScores:
		return
	case StageAll:
		t.weigh(row, keys, count, bias, mask, t.Dropout.Threshold != 0, s, ds, dx)
	}
	if t.WantV != 0 {
		t.addKeys(&in, int(t.DV), slab[t.DO:], s, slab[t.DVT:])
	}
	if t.WantK != 0 {
		t.addKeys(&in, int(t.D), slab[t.Q:], dx, slab[t.DKT:])
	}
}

// BackwardSums adds the weights of a tile of n keys to the sum of each row.
func BackwardSums(t *Backward, slab []float32, row []Row, keys []int32, count, bias []float32, mask []int32, n int, sums []float64) {
	var in ranges
	t.ranges(row, keys, n, &in)
	s, ds := slab[t.S:], slab[t.DS:][:Rows*Columns]
	t.setTile(&in, int(t.D), t.Scale, slab[t.Q:], slab[t.KT:], s)
	clear(ds)
	t.weigh(row, keys, count, bias, mask, false, s, ds, slab[t.Scratch:])
	for r := range int(t.Rows) {
		for _, x := range s[r*Columns:][:n] {
			sums[r] += float64(x)
		}
	}
}

// BackwardQuery adds a tile of n keys to dQ, rows at the stride of K.
func BackwardQuery(t *Backward, slab []float32, row []Row, keys []int32, dq []float32, n int) {
	var in ranges
	t.ranges(row, keys, n, &in)
	if dx, k := slab[t.changes():], slab[t.K:]; t.KeysFinite != 0 {
		t.addRows(&in, dx, k, dq)
	} else {
		t.addRowsSkip(&in, dx, k, dq)
	}
}

// BackwardBias adds dS of a tile of n keys to dBias, in float32. Row r begins at element at[r].
func BackwardBias(t *Backward, slab []float32, base []byte, at []int64, keys []int32, n int) {
	to := unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(base))), len(base)/4)
	for r := range int(t.Rows) {
		for c, x := range slab[int(t.DS)+r*Columns:][:n] {
			if x != 0 {
				to[int(at[r])+int(keys[c])] += x
			}
		}
	}
}

// BackwardBiasSum adds dS of a tile to sums over the rows of each head: sums[head][key]. Rows of a block take
// turns in the heads, beginning with head first of n.
func BackwardBiasSum(t *Backward, slab []float32, sums []float64, first, n int) {
	for r := range int(t.Rows) {
		to := sums[(first+r)%n*Columns:]
		for c, x := range slab[int(t.DS)+r*Columns:][:int(t.Vectors)*Vector] {
			if x != 0 {
				to[c] += float64(x)
			}
		}
	}
}

// BackwardFold adds partial sums to their totals and clears them.
func BackwardFold(total, part []float32) {
	for i, x := range part {
		total[i] += x
	}
	clear(part)
}

// BackwardStore stores n rows of a gradient: scale times x, rounded once, added to what the row holds if asked.
func BackwardStore(x []float32, stride int, base []byte, at []int64, n, d int, scale float32, accumulate bool, t Type) {
	out := make([]float32, d)
	for i := range n {
		to := base[at[i]:]
		clear(out) // and 0 + -0 is 0
		if accumulate {
			widenRow(out, to, t, 1)
		}
		for c, v := range x[i*stride:][:d] {
			out[c] = fma(v, scale, out[c])
		}
		narrowRow(to, out, t)
	}
}

// BackwardStoreKeys stores a transposed gradient of n keys.
func BackwardStoreKeys(t *Backward, slab, x []float32, base []byte, at []int64, n, d int, scale float32, kind Type) {
	rows := slab[t.Scratch:]
	transpose(rows, d, x, Columns, d, n)
	BackwardStore(rows, d, base, at, n, d, scale, t.Accumulate != 0, kind)
}

// BackwardReadBias gathers the bias of the rows at n keys.
func BackwardReadBias(t *Backward, dst []float32, base []byte, at []int64, keys []int32, n int, kind Type) {
	for key := 0; key < n; {
		c := run(keys[key:n], n)
		for r := range int(t.Rows) {
			widenRow(dst[r*Columns+key:][:c], base[int(at[r])+int(keys[key])*elementBytes(kind):], kind, 1)
		}
		key += c
	}
}

// BackwardReadMask gathers the byte mask of the rows and returns whether it allows any slot.
func BackwardReadMask(t *Backward, dst []int32, base []byte, at []int64, keys []int32, n int) bool {
	any := int32(0)
	for r := range int(t.Rows) {
		for c, key := range keys[:n] {
			m := int32(base[int(at[r])+int(key)])
			dst[r*Columns+c] = m
			any |= m
		}
	}
	return any != 0
}

// BackwardReadBlocks is BackwardReadMask of a bitmap with a bit for every 2^shift keys.
func BackwardReadBlocks(t *Backward, dst []int32, base []byte, at []int64, keys []int32, n, shift int) bool {
	any := int32(0)
	for r := range int(t.Rows) {
		for c, key := range keys[:n] {
			m := blockBit(base, at[r], key>>shift)
			dst[r*Columns+c] = m
			any |= m
		}
	}
	return any != 0
}
