package kvcache

import (
	"encoding/binary"
	"math"
	"sort"

	"vkattn/internal/half"
	"vkattn/internal/par"
	"vkattn/internal/problem"
)

// Append in host memory: workers take blocks of rows of K, V and Q.

// appendBlock is how many rows a worker takes at once.
const appendBlock = 64

// appendTask writes one of the tensors of a call.
type appendTask struct {
	in, out, scale int  // tensors; scale -1: none
	rotated        bool // with Rotary
	needsRotary    bool // skipped without Rotary
}

// appendTasks run in any order: none reads what another writes.
var appendTasks = [3]appendTask{
	{in: appendK, out: appendKCache, scale: appendKScale, rotated: true},
	{in: appendV, out: appendVCache, scale: appendVScale},
	{in: appendQ, out: appendQOut, scale: -1, rotated: true, needsRotary: true},
}

// counts reports whether UsedNew counts the rows of a task.
func (l *appendLayouts) counts(t *appendTask) bool { return l.counted && (t.toCache() || !l.ownRowsQ) }

// limitOf is where the positions end that a task writes.
func (l *appendLayouts) limitOf(t *appendTask) int64 {
	if t.toCache() {
		return l.limit
	}
	return l.limitQ
}

// toCache reports whether rows go to their positions in the cache rather than to the
// rows of the same index in QOut.
func (t *appendTask) toCache() bool { return t.out != appendQOut }

// variantOf describes the conversion of a row.
func (t *appendTask) variant(cfg *AppendConfig, access problem.Access) appendVariant {
	v := appendVariant{access: access, dim: cfg.HeadDim, rotated: t.rotated && cfg.Rotary.Dim > 0}
	if t.scale >= 0 {
		v.givenScale = uint32(-min(cfg.KVBlock, 0))
	}
	switch t.out {
	case appendKCache:
		v.kv = cfg.KeyType
	case appendVCache:
		v.dim, v.kv = cfg.attention().ValueDim(), cfg.ValueType
	}
	return v
}

// appendCPU computes a call in host memory. Append.check has accepted it.
func appendCPU(cfg *AppendConfig, l *appendLayouts) {
	for i := range appendTasks {
		task := &appendTasks[i]
		if !l.given(task.in) {
			continue
		}
		in := &l.list[task.in]
		rows := in.Counts[0] * in.Counts[1] * in.Counts[2]
		par.Each((rows+appendBlock-1)/appendBlock, func() func(int64) {
			w := appendWorker{appendLayouts: l, cfg: cfg, task: task, variant: task.variant(cfg, problem.AccessAuto), row: make([]float32, in.Dim)}
			return func(block int64) {
				for row := block * appendBlock; row < min(rows, (block+1)*appendBlock); row++ {
					w.append(row)
				}
			}
		})
	}
}

// appendWorker converts rows in its own scratch memory.
type appendWorker struct {
	*appendLayouts
	cfg     *AppendConfig
	task    *appendTask
	variant appendVariant
	row     []float32
}

// append writes one row, counted over all heads and batches.
func (w *appendWorker) append(number int64) {
	in, out := &w.list[w.task.in], &w.list[w.task.out]
	seq, head, batch := number%in.Counts[2], number/in.Counts[2]%in.Counts[1], number/in.Counts[2]/in.Counts[1]
	sequence, position, ok := w.position(batch, seq)
	if !ok {
		return
	}
	outBatch, outRow := batch, seq
	if w.task.toCache() {
		if outBatch, outRow, ok = w.cacheRow(sequence, position); !ok {
			return
		}
	}
	w.cfg.DType.Decode(w.row, in.HostRow(batch, head, seq))
	if w.variant.rotated {
		w.rotate(position)
	}
	if w.variant.kv.Scaled() && w.readsScales {
		scale := &w.list[w.task.scale]
		given := math.Float32frombits(binary.LittleEndian.Uint32(scale.Element(head * w.scaleStep)))
		problem.FormatOf(w.variant.kv).EncodeWith(out.HostRow(outBatch, head, outRow), w.row, given)
		return
	}
	scale := encodeKV(out.HostRow(outBatch, head, outRow), w.row, w.variant.kv, w.cfg.DType)
	if w.task.scale >= 0 && w.given(w.task.scale) {
		scales := &w.list[w.task.scale]
		at := scales.Tensor.Offset + (outBatch*in.Counts[1]+head)*int64(w.pageRows) + outRow
		binary.LittleEndian.PutUint32(scales.Tensor.Host[at*scales.Size:], math.Float32bits(scale))
	}
}

// position returns the sequence of a new row and its position there. ok is false if the
// row does not exist or is not written.
func (w *appendWorker) position(batch, row int64) (sequence, position int64, ok bool) {
	sequence, position = batch, row
	switch {
	case w.packed: // the last sequence that starts at or before the row; earlier ones with the same start are empty
		sequence = max(0, int64(sort.Search(w.sequences, func(b int) bool { return int64(w.integer(appendLengths, b)) > row }))-1)
		first := int64(w.integer(appendLengths, int(sequence)))
		if first < 0 || row < first || row >= int64(w.integer(appendLengths, int(sequence)+1)) {
			return 0, 0, false
		}
		position -= first
	case w.counts(w.task) && row >= int64(w.integer(appendLengths, int(sequence))):
		return 0, 0, false
	}
	if w.qAtUsed && !w.task.toCache() {
		position = 0
	}
	if w.given(appendUsed) {
		used := int64(w.integer(appendUsed, int(sequence)))
		if used < 0 {
			return 0, 0, false
		}
		position += used
	}
	return sequence, position, position < w.limitOf(w.task)
}

// cacheRow returns the batch, or page, and row in the cache of a sequence's position.
func (w *appendWorker) cacheRow(sequence, position int64) (batch, row int64, ok bool) {
	if !w.paged {
		return sequence, position, true
	}
	page := int64(w.integer(appendTable, int(sequence)*w.tableStride+int(position/int64(w.pageRows))))
	return page, position % int64(w.pageRows), page >= 0 && page < int64(w.pages)
}

// rotate rotates the pairs of the row.
func (w *appendWorker) rotate(position int64) {
	r := &w.cfg.Rotary
	for i := range r.Dim / 2 {
		at := position*int64(r.Dim/2) + int64(i)
		var angle [2]float32
		cos, sin := &w.list[appendCos], &w.list[appendSin]
		cos.DType.Decode(angle[:1], cos.Element(at))
		sin.DType.Decode(angle[1:], sin.Element(at))
		a, b := r.pair(i)
		x, y := w.row[a], w.row[b]
		w.row[a] = float32(x*angle[0]) - float32(y*angle[1]) // the conversions keep the compiler from fusing
		w.row[b] = float32(y*angle[0]) + float32(x*angle[1])
	}
}

// encodeKV stores a row in the type of a cache, as shaders/append_rows.glsl does. It
// returns the row's scale for Scaled types.
func encodeKV(dst []byte, row []float32, kv problem.KVType, d problem.DType) (scale float32) {
	f := problem.FormatOf(kv)
	switch {
	case f == nil:
		d.Encode(dst, row)
		return 0
	case f.Scaled():
		if scale, numberless := numberlessScale(row); numberless {
			clear(dst)
			return scale
		}
		return f.Encode(dst, row)
	case f.Row():
		return f.Encode(dst, row)
	}
	for ; len(row) > 0; row, dst = row[f.Elements:], dst[f.Bytes:] {
		if scale, numberless := numberlessScale(row[:f.Elements]); numberless {
			f.Encode(dst, make([]float32, f.Elements))
			binary.LittleEndian.PutUint16(dst, half.F16FromFloat32(scale))
			continue
		}
		f.Encode(dst, row[:f.Elements])
	}
	return 0
}

// numberlessScale returns the scale of elements that are stored as zeros: NaN if one of
// them is not finite, 0 if all are so small that the inverse of a scale could overflow.
func numberlessScale(x []float32) (scale float32, numberless bool) {
	var most uint32 // bits of absolute values: they order like the values, with NaN above all
	for _, v := range x {
		most = max(most, math.Float32bits(v)&^(1<<31))
	}
	switch {
	case most >= math.Float32bits(float32(math.Inf(1))):
		return float32(math.NaN()), true
	case most < math.Float32bits(0x1p-100):
		return 0, true
	}
	return 0, false
}
