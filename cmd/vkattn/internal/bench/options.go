package bench

import (
	"fmt"
	"math"
	"strings"

	"vkattn/attention"
	"vkattn/vk/hostmem"
)

// Options are what a problem has beside its tensors. It is comparable; its zero
// value is none.
type Options struct {
	Lengths     Lengths `json:"lengths,omitempty"`     // of each sequence
	Packed      bool    `json:"packed,omitzero"`       // sequences one after the other, not padded
	PageSize    int     `json:"page_size,omitzero"`    // K and V in pages of so many keys, in random order
	HND         bool    `json:"hnd,omitzero"`          // pages are [Hkv, page size, D], not [page size, Hkv, D]
	SparseRatio float64 `json:"sparse_ratio,omitzero"` // each key head of a sequence attends to this share of its tokens
	Blocks      float64 `json:"block_ratio,omitzero"`  // rows attend to this share of the blocks of keys they see
	BlockQ      int     `json:"block_q,omitzero"`
	BlockK      int     `json:"block_k,omitzero"`
	SharedKV    bool    `json:"shared_kv,omitzero"` // V is the beginning of K's rows, as in latent attention
	Sinks       bool    `json:"sinks,omitzero"`
	ALiBi       bool    `json:"alibi,omitzero"`
}

func (f Options) String() string {
	var parts []string
	add := func(set bool, format string, args ...any) {
		if set {
			parts = append(parts, fmt.Sprintf(format, args...))
		}
	}
	add(f.Lengths != "" && f.Packed, "packed %s", f.Lengths)
	add(f.Lengths != "" && !f.Packed, "lengths %s", f.Lengths)
	add(f.PageSize > 0 && !f.HND, "pages of %d", f.PageSize)
	add(f.PageSize > 0 && f.HND, "pages of %d hnd", f.PageSize)
	add(f.SparseRatio > 0, "sparse %g", f.SparseRatio)
	add(f.Blocks > 0, "%g of blocks %dx%d", f.Blocks, f.BlockQ, f.BlockK)
	add(f.SharedKV, "V in K")
	add(f.Sinks, "sinks")
	add(f.ALiBi, "alibi")
	return strings.Join(parts, ", ")
}

// optionText names the options of a problem, its Config's part too.
func (p Problem) optionText() string {
	var parts []string
	c := p.Config
	for _, f := range []struct {
		set  bool
		text string
	}{
		{c.KV != attention.KVSame, "kv " + c.KV.String()},
		{c.Window.Given(), "window " + c.Window.String()},
		{c.Softcap != 0, fmt.Sprintf("softcap %v", c.Softcap)},
		{c.FixedSplit != 0, fmt.Sprintf("split %d", c.FixedSplit)},
		{p.Options != (Options{}), p.Options.String()},
	} {
		if f.set {
			parts = append(parts, f.text)
		}
	}
	return strings.Join(parts, ", ")
}

// Plain reports whether a problem is attention of whole tensors: what a peer of
// another program takes.
func (p Problem) Plain() bool {
	c := p.Config
	return p.Options == (Options{}) && !c.Window.Given() && c.Softcap == 0 && c.KV == attention.KVSame
}

// lengths are the rows and the keys of each sequence.
func (p Problem) lengths() (rows, keys []int) {
	if p.Options.Lengths != "" {
		return p.Options.Lengths.lists()
	}
	for range p.Shape.B {
		rows, keys = append(rows, p.Shape.Sq), append(keys, p.Shape.Sk)
	}
	return rows, keys
}

// rows is the number of softmax rows.
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

// sparseKeys is how many of a sequence's keys a key head attends to.
func (p Problem) sparseKeys(keys int) int {
	if p.Options.SparseRatio == 0 || keys == 0 {
		return keys
	}
	return min(keys, max(1, int(math.Round(float64(keys)*p.Options.SparseRatio))))
}

// sees are the keys from lo up to hi that a row of a sequence sees, by the causal
// mask and the window.
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

// cells is the number of unmasked (row, key) pairs of one query head over the
// batch, by the count of sparse tokens where they are listed.
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

// KVBytes is what has to be read of K and V and of their scales, each key that
// some row sees once. With blocks it takes the memory of blockBytes.
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
