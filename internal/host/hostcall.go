package host

import (
	"runtime"

	"vkattn/internal/dropout"
	"vkattn/internal/problem"
	"vkattn/internal/simd"
	"vkattn/internal/tensors"
)

// hostCall is a checked call in host memory with all options of Args. It says which
// keys a row attends to and where rows, keys and options lie. The CPU tier and the
// reference share it; they share no arithmetic on values.
type hostCall struct {
	cfg       *problem.Config
	a         *problem.Args
	sequences []problem.Sequence
	align     problem.Causal // alignment of rows with keys
	q         tensors.HostRows
	k, v      tensors.KVView
	bias      [3]int64 // strides
	mask      [3]int64
	blocks    [3]int64
	dropout   dropout.Mask
	firstHead uint32 // counter of the first head in the dropout mask: 0, but for a part of a call
}

func (h *hostCall) open(cfg *problem.Config, a *problem.Args) (err error) {
	*h = hostCall{cfg: cfg, a: a, align: cfg.Causal, dropout: dropout.Of(cfg.Dropout, a.DropoutSeed, a.DropoutOffset)}
	if h.align == problem.CausalNone {
		h.align = cfg.Align
	}
	_, rows := tensors.QueryExtent(a)
	if h.q, err = tensors.ViewRows(a.Q, cfg.DType, a.Hq, rows, cfg.HeadDim); err != nil {
		return err
	}
	h.sequences = tensors.SequencesOf(a) // in host memory, where Q is
	_, keys := tensors.KVExtent(a)
	if h.k, err = tensors.ViewKV(a.K, a.KScale, cfg, a.KVHeads(), keys, cfg.HeadDim); err != nil {
		return err
	}
	if h.v, err = tensors.ViewKV(a.V, a.VScale, cfg, a.KVHeads(), keys, cfg.ValueDim()); err != nil {
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

// queryRow returns the batch and row in Q, O and LSE of a row of a sequence.
func (h *hostCall) queryRow(b, row int) (batch, at int) {
	if h.a.Varlen != nil && h.a.Varlen.CuQ.Given() {
		return 0, h.sequences[b].Row + row
	}
	return b, row
}

// kvRow returns the batch, or page, and row in K and V of a key of a sequence.
func (h *hostCall) kvRow(b, key int) (batch, at int) {
	switch p := h.a.Pages; {
	case p != nil:
		page := tensors.IntAt(&p.Table, b*tensors.TableStride(p, &h.a.Shape)+key/p.PageSize)
		if page < 0 || page >= p.Count {
			page = 0
		}
		return page, key % p.PageSize
	case h.a.Varlen != nil && h.a.Varlen.CuK.Given():
		return 0, h.sequences[b].Key + key
	}
	return b, key
}

// position returns a row's position among the keys of its sequence.
func (h *hostCall) position(b, row int) int64 {
	if h.align == problem.BottomRight {
		s := &h.sequences[b]
		return int64(row) + int64(s.Keys) - int64(s.Rows)
	}
	return int64(row)
}

// span returns the range of keys [lo, hi) that length, causal mask and window allow.
func (h *hostCall) span(b, row int) (lo, hi int) {
	keys := int64(h.sequences[b].Keys)
	first, end, at := int64(0), keys, h.position(b, row)
	if h.cfg.Causal != problem.CausalNone {
		end = min(end, at+1)
	}
	if w := h.cfg.Window; w.Given() {
		if w.Left() >= 0 {
			first = max(first, at-int64(w.Left()))
		}
		if w.Right() >= 0 {
			end = min(end, at+int64(w.Right())+1)
		}
	}
	first = min(first, keys)
	return int(first), int(max(first, end))
}

// visible appends the keys that a row attends to: in the order of the list of sparse
// tokens if there is one, otherwise ascending.
func (h *hostCall) visible(keys []int, b, head, row int) []int {
	lo, hi := h.span(b, row)
	switch a := h.a; {
	case a.SparseTokens != nil:
		for at, end := h.list(b, head/a.Group()); at < end; at++ {
			if key := tensors.IntAt(&a.SparseTokens.Tokens, at); key >= lo && key < hi {
				keys = append(keys, key)
			}
		}
	case a.Mask != nil:
		bytes := a.Mask.Host[h.maskAt(b, head, row):]
		for key := lo; key < hi; key++ {
			if bytes[key] != 0 {
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
	return keys
}

// list returns the range in Tokens of the list of a sequence and key head.
func (h *hostCall) list(b, kv int) (at, end int) {
	k, list := h.a.SparseTokens, b*h.a.KVHeads()+kv
	return min(max(tensors.IntAt(&k.Offsets, list), 0), k.Total), min(max(tensors.IntAt(&k.Offsets, list+1), 0), k.Total)
}

// maskAt returns the byte offset of a row's mask.
func (h *hostCall) maskAt(b, head, row int) int64 {
	return h.a.Mask.Offset + int64(b)*h.mask[0] + int64(head)*h.mask[1] + int64(row)*h.mask[2]
}

// blocksAt returns the byte offset of a row's bitmap.
func (h *hostCall) blocksAt(b, head, row int) int64 {
	word := int64(b)*h.blocks[0] + int64(head)*h.blocks[1] + int64(row/h.a.Blocks.BlockQ)*h.blocks[2]
	return (h.a.Blocks.Map.Offset + word) * 4
}

// biasAt returns the byte offset of a row's bias.
func (h *hostCall) biasAt(b, head, row int) int64 {
	at := h.a.Bias.Offset + int64(b)*h.bias[0] + int64(head)*h.bias[1] + int64(row)*h.bias[2]
	return at * int64(h.a.Bias.DType.Size())
}

// readBias reads the bias of a row at the given keys into dst.
func (h *hostCall) readBias(dst []float32, b, head, row int, keys []int) {
	bias := h.a.Bias
	size := bias.DType.Size()
	src := bias.Host[h.biasAt(b, head, row):]
	for i, key := range keys {
		bias.DType.Decode(dst[i:i+1], src[key*size:])
	}
}

// slope returns the head's ALiBi slope, 0 without ALiBi.
func (h *hostCall) slope(head int) float32 {
	if !h.a.ALiBi.Given() {
		return 0
	}
	return tensors.FloatAt(&h.a.ALiBi, head)
}

// sink returns the head's sink; ok is false without sinks.
func (h *hostCall) sink(head int) (x float32, ok bool) {
	if !h.a.Sinks.Given() {
		return 0, false
	}
	return tensors.FloatAt(&h.a.Sinks, head), true
}

// dropoutHead returns b*Hq + h, the counter of a head in the dropout mask.
func (h *hostCall) dropoutHead(b, head int) uint32 { return h.firstHead + uint32(b*h.a.Hq+head) }

// simdDropout returns the dropout mask for the kernels of the CPU tier.
func (h *hostCall) simdDropout() simd.Dropout {
	m := &h.dropout
	return simd.Dropout{Seed: m.Seed, Offset: m.Offset, Threshold: m.Threshold, Scale: float32(dropout.Scale(h.cfg.Dropout))}
}

// workers is the number of CPUs that units of work run on.
func workers(units uint64) uint64 { return min(uint64(runtime.GOMAXPROCS(0)), units) }
