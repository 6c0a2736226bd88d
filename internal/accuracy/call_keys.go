package accuracy

import (
	"encoding/binary"
	"math"

	"vkattn/attention"
	"vkattn/internal/dropout"
	"vkattn/internal/half"
)

// readKey widens key t of sequence b, of K or of V, into dst. Quantized keys are rounded to
// the storage type, as a chain of separate operations would store them.
func (c *call) readKey(dst []float32, value bool, b, kv, t int) {
	batch, at := c.kvRow(b, t)
	if c.cfg.KV == attention.KVSame {
		view := &c.k
		if value {
			view = &c.v
		}
		view.ReadRow(dst, batch, kv, at)
		return
	}
	tensor, scales, dim := c.a.K, c.a.KScale, c.cfg.HeadDim
	if value {
		tensor, scales, dim = c.a.V, c.a.VScale, c.cfg.ValueDim()
	}
	s := tensor.Strides
	element := tensor.Offset + int64(batch)*s.Batch + int64(kv)*s.Head + int64(at)*s.Seq
	row := tensor.Host[c.cfg.KV.RowBytes(c.cfg.DType, int(element)):]
	switch c.cfg.KV {
	case attention.KVQ8_0:
		for i := range dim {
			block := row[i/32*34:]
			dst[i] = float32(int8(block[2+i%32])) * blockScale(block)
		}
	case attention.KVQ4_0:
		for i := range dim {
			block := row[i/32*18:]
			n := block[2+i%16]
			if i%32 >= 16 {
				n >>= 4
			}
			dst[i] = float32(int(n&15)-8) * blockScale(block)
		}
	default:
		scale := c.keyScale(scales, batch, kv, at)
		for i := range dim {
			x := float32(int8(row[i]))
			if c.cfg.KV == attention.KVFP8 {
				x = fromE4M3(row[i])
			}
			dst[i] = x * scale
		}
	}
	for i := range dst[:dim] {
		dst[i] = c.round(dst[i])
	}
}

func blockScale(block []byte) float32 { return half.F16ToFloat32(binary.LittleEndian.Uint16(block)) }

// keyScale is the scale of a row of K or V.
func (c *call) keyScale(v attention.Vector, batch, kv, at int) float32 {
	keys := c.a.Sk
	switch {
	case c.a.Pages != nil:
		keys = c.a.Pages.PageSize
	case c.startK != nil:
		keys = c.a.Varlen.TotalK
	}
	block := max(c.cfg.KVBlock, 1)
	i := (batch*c.a.KVHeads()+kv)*((keys+block-1)/block) + at/block
	return floatAt(v, i)
}

func floatAt(v attention.Vector, i int) float32 {
	return math.Float32frombits(binary.LittleEndian.Uint32(v.Host[4*(v.Offset+int64(i)):]))
}

// fromE4M3 is the value of a float8: no infinities, NaN where all bits but the
// sign are 1.
func fromE4M3(b byte) float32 {
	exp, fraction := int(b>>3&15), float64(b&7)
	x := math.Ldexp(1+fraction/8, exp-7)
	switch {
	case b&0x7f == 0x7f:
		return float32(math.NaN())
	case exp == 0:
		x = math.Ldexp(fraction/8, -6)
	}
	if b >= 0x80 {
		x = -x
	}
	return float32(x)
}

// position is a row's position among the keys of its sequence.
func (c *call) position(b, row int) int {
	align := c.cfg.Causal
	if align == attention.CausalNone {
		align = c.cfg.Align
	}
	if align == attention.BottomRight {
		return row + c.keys[b] - c.rows[b]
	}
	return row
}

// span returns the keys from from up to, not including, to that the causal mask and the
// window leave to a row.
func (c *call) span(b, row int) (from, to int) {
	from, to = 0, c.keys[b]
	at := c.position(b, row)
	if c.cfg.Causal != attention.CausalNone {
		to = min(to, at+1)
	}
	if w := c.cfg.Window; w.Given() {
		if w.Left() >= 0 {
			from = max(from, at-w.Left())
		}
		if w.Right() >= 0 {
			to = min(to, at+w.Right()+1)
		}
	}
	return from, to
}

// sees reports whether a row attends to a key of its sequence, lists of sparse tokens aside.
func (c *call) sees(b, h, row, t int) bool {
	from, to := c.span(b, row)
	return t >= from && t < to && c.allowed(b, h, row, t)
}

// visible appends the entries that a row attends to: keys, or indices into the list of
// sparse tokens.
func (c *call) visible(list []int32, b, h, row int) []int32 {
	from, to := c.span(b, row)
	if c.lists != nil {
		for i, t := range c.lists[b*c.a.KVHeads()+h/c.a.Group()] {
			if int(t) >= from && int(t) < to && c.allowed(b, h, row, int(t)) {
				list = append(list, int32(i))
			}
		}
		return list
	}
	for t := from; t < to; t++ {
		if c.allowed(b, h, row, t) {
			list = append(list, int32(t))
		}
	}
	return list
}

// attended reports for each row of a query head whether it attends to any key, or for each
// key of a KV head whether any row of the group attends to it. A bias of -Inf masks a slot.
func (c *call) attended(kv bool, b, h int) []bool {
	if kv {
		found := make([]bool, c.keys[b])
		for q := h * c.a.Group(); q < (h+1)*c.a.Group(); q++ {
			c.eachAttended(b, q, func(_ int, key int) { found[key] = true })
		}
		return found
	}
	found := make([]bool, c.rows[b])
	c.eachAttended(b, h, func(row, _ int) { found[row] = true })
	return found
}

// attends reports whether a row attends to any key.
func (c *call) attends(b, h, row int) bool {
	for _, entry := range c.visible(nil, b, h, row) {
		if !c.biasedAway(b, h, row, c.keyOf(b, h, entry)) {
			return true
		}
	}
	return false
}

// keyOf is the key of an entry of visible.
func (c *call) keyOf(b, h int, entry int32) int {
	if c.lists != nil {
		entry = c.lists[b*c.a.KVHeads()+h/c.a.Group()][entry]
	}
	return int(entry)
}

// eachAttended visits the rows of a query head and the keys that each attends to.
func (c *call) eachAttended(b, h int, visit func(row, key int)) {
	var entries []int32
	for row := range c.rows[b] {
		entries = c.visible(entries[:0], b, h, row)
		for _, entry := range entries {
			if t := c.keyOf(b, h, entry); !c.biasedAway(b, h, row, t) {
				visit(row, t)
			}
		}
	}
}

// biasedAway reports whether a bias of -Inf masks a slot.
func (c *call) biasedAway(b, h, row, t int) bool {
	return math.IsInf(float64(c.bias(b, h, row, t)), -1)
}

// allowed reports whether the mask and the bitmap of blocks allow a slot.
func (c *call) allowed(b, h, row, t int) bool {
	if m := c.a.Mask; m != nil {
		i := slotAt(&m.Tensor, m.Batches, m.Heads, m.Rows, &c.a, b, h, row) + int64(t)
		if m.Host[i] == 0 {
			return false
		}
	}
	if k := c.a.Blocks; k != nil {
		heads := orAll(k.Heads, c.a.Hq)
		blocks := (c.a.Sq + k.BlockQ - 1) / k.BlockQ
		words := ((c.a.Sk+k.BlockK-1)/k.BlockK + 31) / 32
		line := (wrapOne(b, k.Batches)*heads+wrapOne(h, k.Heads))*blocks + row/k.BlockQ
		j := t / k.BlockK
		word := binary.LittleEndian.Uint32(k.Map.Host[4*(k.Map.Offset+int64(line*words+j/32)):])
		return word>>(j%32)&1 == 1
	}
	return true
}

// orAll is a size of a broadcast tensor: n, or all where it is 0.
func orAll(n, all int) int {
	if n == 0 {
		return all
	}
	return n
}

// wrapOne is i, or 0 in a dimension of size 1.
func wrapOne(i, size int) int {
	if size == 1 {
		return 0
	}
	return i
}

// slotAt is the element of key 0 of a row of a tensor [batches, heads, rows, Sk]
// whose sizes may be 1 for all.
func slotAt(t *attention.Tensor, batches, heads, rows int, a *attention.Args, b, h, row int) int64 {
	s := t.Strides.Resolve(orAll(heads, a.Hq), orAll(rows, a.Sq), a.Sk)
	return t.Offset + int64(wrapOne(b, batches))*s.Batch + int64(wrapOne(h, heads))*s.Head + int64(wrapOne(row, rows))*s.Seq
}

// bias is the bias of a slot; 0 without a bias.
func (c *call) bias(b, h, row, t int) float32 {
	bias := c.a.Bias
	if bias == nil {
		return 0
	}
	i := slotAt(&bias.Tensor, bias.Batches, bias.Heads, bias.Rows, &c.a, b, h, row) + int64(t)
	at := bias.Host[i*int64(bias.DType.Size()):]
	switch bias.DType {
	case attention.F16:
		return half.F16ToFloat32(binary.LittleEndian.Uint16(at))
	case attention.BF16:
		return half.BF16ToFloat32(binary.LittleEndian.Uint16(at))
	}
	return math.Float32frombits(binary.LittleEndian.Uint32(at))
}

// keep is the factor of dropout for a slot: 0, or 1 / (1 - Dropout); 1 without dropout.
func (c *call) keep(b, h, row, t int) float32 {
	switch {
	case c.cfg.Dropout == 0:
		return 1
	case c.dropout.Keeps(uint32(b*c.a.Hq+h), uint32(row), uint32(t)):
		return float32(dropout.Scale(c.cfg.Dropout))
	}
	return 0
}

// sink is the sink of a head; -Inf without sinks.
func (c *call) sink(h int) float32 {
	if !c.a.Sinks.Given() {
		return float32(math.Inf(-1))
	}
	return floatAt(c.a.Sinks, h)
}
