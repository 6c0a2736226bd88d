// Package hostcall reads a call in host memory: which keys a row attends to, and where rows, keys and
// options lie. The CPU tier and the oracle share it; they share no arithmetic on values.
package hostcall

import (
	"slices"

	"vkattn/internal/dropout"
	"vkattn/internal/problem"
	"vkattn/internal/tensors"
)

// Call is a checked call in host memory with all options of Args. It says which
// keys a row attends to and where rows, keys and options lie.
type Call struct {
	Cfg       *problem.Config
	Args      *problem.Args
	Sequences []problem.Sequence
	align     problem.Causal // alignment of rows with keys
	Q         tensors.HostRows
	K, V      tensors.KVView
	bias      [3]int64 // strides
	mask      [3]int64
	blocks    [3]int64
	Dropout   dropout.Mask
	maskers   maskers
}

func (h *Call) Open(cfg *problem.Config, a *problem.Args) (err error) {
	*h = Call{Cfg: cfg, Args: a, align: problem.Alignment(cfg), Dropout: tensors.DropoutOf(cfg, a)}
	_, rows := tensors.QueryExtent(a)
	if h.Q, err = tensors.ViewRows(a.Q, cfg.DType, a.Hq, rows, cfg.HeadDim); err != nil {
		return err
	}
	h.Sequences = tensors.SequencesOf(a) // in host memory, where Q is
	_, keys := tensors.KVExtent(a)
	if h.K, err = tensors.ViewKV(a.K, cfg.KeyType, a.KScale, cfg, a.KVHeads(), keys, cfg.HeadDim); err != nil {
		return err
	}
	if h.V, err = tensors.ViewKV(a.V, cfg.ValueType, a.VScale, cfg, a.KVHeads(), keys, cfg.ValueDim()); err != nil {
		return err
	}
	if a.Bias != nil {
		h.bias = tensors.BiasStrides(a.Bias, a.Shape)
	}
	if a.Mask != nil {
		h.mask = tensors.MaskStrides(a.Mask, a.Shape)
	}
	if a.Blocks != nil {
		h.blocks = tensors.BlocksStrides(a.Blocks, a.Shape)
	}
	return nil
}

// QueryRow returns the batch and row in Q, O and LSE of a row of a sequence.
func (h *Call) QueryRow(b, row int) (batch, at int) {
	if h.Args.Varlen != nil && h.Args.Varlen.CuQ.Given() {
		return 0, h.Sequences[b].Row + row
	}
	return b, row
}

// KVRow returns the batch, or page, and row in K and V of a key of a sequence.
func (h *Call) KVRow(b, key int) (batch, at int) {
	switch p := h.Args.Pages; {
	case p != nil:
		page := tensors.IntAt(&p.Table, b*tensors.TableStride(p, &h.Args.Shape)+key/p.PageSize)
		if page < 0 || page >= p.Count {
			page = 0
		}
		return page, key % p.PageSize
	case h.Args.Varlen != nil && h.Args.Varlen.CuK.Given():
		return 0, h.Sequences[b].Key + key
	}
	return b, key
}

// Position returns a row's position among the keys of its sequence.
func (h *Call) Position(b, row int) int64 {
	if h.align == problem.BottomRight {
		s := &h.Sequences[b]
		return int64(row) + int64(s.Keys) - int64(s.Rows)
	}
	return int64(row)
}

// Span returns the range of keys [lo, hi) that length, causal mask and options leave to a row by its position.
func (h *Call) Span(b, row int) (lo, hi int) {
	first, end := problem.Span(h.Cfg, h.Position(b, row), int64(h.Sequences[b].Keys))
	return int(first), int(end)
}

// Visible appends the keys that a row attends to: in the order of the list of sparse
// tokens if there is one, otherwise ascending.
func (h *Call) Visible(keys []int, b, head, row int) []int {
	lo, hi := h.Span(b, row)
	first := len(keys)
	switch a := h.Args; {
	case a.SparseTokens != nil:
		for at, end := h.SparseList(b, head/a.Group(), row); at < end; at++ {
			if key := tensors.IntAt(&a.SparseTokens.Tokens, at); key >= lo && key < hi {
				keys = append(keys, key)
			}
		}
	case a.Blocks != nil:
		m := h.blocks
		bits := int(int64(b)*m[0] + int64(head)*m[1] + int64(row/a.Blocks.BlockQ)*m[2])
		for key := lo; key < hi; key++ {
			block := key / a.Blocks.BlockK
			if tensors.IntAt(&a.Blocks.Map, bits+block/32)>>(block%32)&1 != 0 {
				keys = append(keys, key)
			}
		}
	default:
		for key := lo; key < hi; key++ {
			keys = append(keys, key)
		}
	}
	return keys[:first+len(h.Unmasked(keys[first:], func(key int) int { return key }, b, head, row))]
}

// Unmasked removes the entries of a row from a list whose keys Args.Mask or the mask modifier excludes.
func (h *Call) Unmasked(entries []int, key func(entry int) int, b, head, row int) []int {
	if h.Args.Mask == nil && !h.Cfg.MaskMod.Given() {
		return entries
	}
	keys, yes, at := make([]int, len(entries)), make([]bool, len(entries)), 0
	for i, entry := range entries {
		keys[i] = key(entry)
	}
	h.Attends(yes, b, head, row, keys)
	return slices.DeleteFunc(entries, func(int) bool { at++; return !yes[at-1] })
}

// SparseList returns the range in Tokens of the list of a row of a sequence and of a key head.
func (h *Call) SparseList(b, kv, row int) (at, end int) {
	k, list := h.Args.SparseTokens, b
	if k.PerRow {
		batch, row := h.QueryRow(b, row)
		list = batch*h.Args.Sq + row
	}
	list = list*h.Args.KVHeads() + kv
	if k.TopK != 0 {
		return list * k.TopK, (list + 1) * k.TopK
	}
	return min(max(tensors.IntAt(&k.Offsets, list), 0), k.Total), min(max(tensors.IntAt(&k.Offsets, list+1), 0), k.Total)
}

// ReadRows reads rows of a tensor that has the rows of O: of O, LSE or the gradient of Q.
func (h *Call) ReadRows(t problem.Tensor, dtype problem.DType, dim int, sample []problem.Rows) ([]float32, error) {
	_, extent := tensors.QueryExtent(h.Args)
	view, err := problem.ViewHost(t, dtype, h.Args.Hq, extent, dim)
	if err != nil {
		return nil, err
	}
	x := make([]float32, tensors.CountRows(sample)*dim)
	to := x
	for _, s := range sample {
		for _, row := range s.Rows {
			batch, at := h.QueryRow(s.B, row)
			view.ReadRow(to[:dim], batch, s.H, at)
			to = to[dim:]
		}
	}
	return x, nil
}

// MaskAt returns the byte offset of a row's mask.
func (h *Call) MaskAt(b, head, row int) int64 {
	return h.Args.Mask.Offset + int64(b)*h.mask[0] + int64(head)*h.mask[1] + int64(row)*h.mask[2]
}

// BlocksAt returns the byte offset of a row's bitmap.
func (h *Call) BlocksAt(b, head, row int) int64 {
	word := int64(b)*h.blocks[0] + int64(head)*h.blocks[1] + int64(row/h.Args.Blocks.BlockQ)*h.blocks[2]
	return (h.Args.Blocks.Map.Offset + word) * 4
}

// BiasAt returns the byte offset of a row's bias.
func (h *Call) BiasAt(b, head, row int) int64 {
	at := h.Args.Bias.Offset + int64(b)*h.bias[0] + int64(head)*h.bias[1] + int64(row)*h.bias[2]
	return at * int64(h.Args.Bias.DType.Size())
}

// readBias reads the bias of a row at the given keys into dst.
func (h *Call) ReadBias(dst []float32, b, head, row int, keys []int) {
	bias := h.Args.Bias
	size := bias.DType.Size()
	src := bias.Host[h.BiasAt(b, head, row):]
	for i, key := range keys {
		bias.DType.Decode(dst[i:i+1], src[key*size:])
	}
}

// Slope returns the ALiBi slope of a sequence's head, 0 without ALiBi.
func (h *Call) Slope(b, head int) float32 {
	if !h.Args.ALiBi.Given() {
		return 0
	}
	return tensors.FloatAt(&h.Args.ALiBi, b*tensors.SlopeStride(h.Args)+head)
}

// Sink returns the head's sink; ok is false without sinks.
func (h *Call) Sink(head int) (x float32, ok bool) {
	if !h.Args.Sinks.Given() {
		return 0, false
	}
	return tensors.FloatAt(&h.Args.Sinks, head), true
}

// DropoutHead returns b*Hq + h, the counter of a head in the dropout mask.
func (h *Call) DropoutHead(b, head int) uint32 { return uint32(b*h.Args.Hq + head) }
