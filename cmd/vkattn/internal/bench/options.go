package bench

import (
	"math"

	"vkattn/attention"
	"vkattn/internal/hostmem"
)

// Options are the options of a problem's calls that are not in its Config. The type is
// comparable; the zero value has none.
type Options struct {
	Lengths     Lengths `json:"lengths,omitempty"`     // of the sequences
	Packed      bool    `json:"packed,omitzero"`       // sequences are packed, not padded
	PageSize    int     `json:"page_size,omitzero"`    // keys of a page of paged K and V, in random order; 0: contiguous
	HND         bool    `json:"hnd,omitzero"`          // pages are [Hkv, page size, D], not [page size, Hkv, D]
	SparseRatio float64 `json:"sparse_ratio,omitzero"` // share of a sequence's tokens that each KV head attends to; 0: all
	Blocks      float64 `json:"block_ratio,omitzero"`  // share of the visible blocks of keys that a block of rows attends to; 0: all
	BlockQ      int     `json:"block_q,omitzero"`
	BlockK      int     `json:"block_k,omitzero"`
	SharedKV    bool    `json:"shared_kv,omitzero"` // V is the first part of K's rows, as in latent attention
	Sinks       bool    `json:"sinks,omitzero"`
	ALiBi       bool    `json:"alibi,omitzero"`
}

// lengths returns the rows and keys of each sequence.
func (p Problem) lengths() (rows, keys []int) {
	if p.Options.Lengths != "" {
		return p.Options.Lengths.lists()
	}
	for range p.Shape.B {
		rows, keys = append(rows, p.Shape.Sq), append(keys, p.Shape.Sk)
	}
	return rows, keys
}

// rows is the number of softmax rows of all heads and sequences.
func (p Problem) rows() (n int64) {
	if p.Options.Lengths == "" {
		return p.Shape.Rows()
	}
	rows, _ := p.lengths()
	for _, r := range rows {
		n += int64(r) * int64(p.Shape.Hq)
	}
	return n
}

// sparseKeys is the number of a sequence's keys that a KV head attends to.
func (p Problem) sparseKeys(keys int) int {
	if p.Options.SparseRatio == 0 || keys == 0 {
		return keys
	}
	return min(keys, max(1, int(math.Round(float64(keys)*p.Options.SparseRatio))))
}

// sees returns the keys from lo up to, not including, hi that causal mask and window
// leave to a row of a sequence.
func (p Problem) sees(row, rows, keys int) (lo, hi int) {
	c := p.Config
	hi = keys
	align := c.Align
	if c.Causal != attention.CausalNone {
		align = c.Causal
	}
	position := row
	if align == attention.BottomRight {
		position += keys - rows
	}
	if c.Causal != attention.CausalNone {
		hi = min(hi, position+1)
	}
	if w := c.Window; w.Given() {
		if w.Left() >= 0 {
			lo = max(0, position-w.Left())
		}
		if w.Right() >= 0 {
			hi = min(hi, position+w.Right()+1)
		}
	}
	return lo, max(lo, hi)
}

// cells is the number of unmasked (row, key) pairs of one query head over the batch. Of
// sparse tokens it is an estimate from their ratio.
func (p Problem) cells() (n float64) {
	if p.Plain() {
		return float64(p.Shape.B) * float64(p.Shape.Cells(p.Config.Causal))
	}
	rows, keys := p.lengths()
	var same float64 // of the sequence before
	for i := range rows {
		if p.Blocks > 0 {
			if i == 0 || rows[i] != rows[i-1] || keys[i] != keys[i-1] {
				same = float64(p.blockCells(rows[i], keys[i])) / float64(p.Shape.KVHeads())
			}
			n += same
			continue
		}
		for r := range rows[i] {
			lo, hi := p.sees(r, rows[i], keys[i])
			if p.Options.SparseRatio > 0 {
				hi = lo + p.sparseKeys(hi-lo)
			}
			n += float64(hi - lo)
		}
	}
	return n
}

// KVBytes is the size of the keys, values and scales that a call must read: each key that
// any row attends to, once. With a block mask it allocates blockBytes.
func (p Problem) KVBytes() (n uint64) {
	rows, keys, times := []int{p.Shape.Sq}, []int{p.Shape.Sk}, uint64(p.Shape.B)
	if p.Options.Lengths != "" {
		rows, keys = p.lengths()
		times = 1
	}
	c := p.Config
	key := uint64(c.KV.RowBytes(c.DType, c.HeadDim))
	if !p.SharedKV {
		key += uint64(c.KV.RowBytes(c.DType, c.ValueDim()))
	}
	if c.KV.Scaled() {
		key += 8
	}
	var same uint64 // keys of the sequence before
	for i := range rows {
		if rows[i] == 0 || keys[i] == 0 {
			continue
		}
		if p.Blocks > 0 {
			if same == 0 || rows[i] != rows[i-1] || keys[i] != keys[i-1] {
				same = uint64(p.blockKeys(rows[i], keys[i]))
			}
			n = hostmem.Sum(n, hostmem.Product(key, same, times))
			continue
		}
		lo, _ := p.sees(0, rows[i], keys[i])
		_, hi := p.sees(rows[i]-1, rows[i], keys[i])
		n = hostmem.Sum(n, hostmem.Product(key, uint64(p.sparseKeys(max(hi-lo, 0))), uint64(p.Shape.KVHeads()), times))
	}
	return n
}
