package bench

import (
	"fmt"
	"slices"

	"vkattn/attention"
	"vkattn/vk/hostmem"
)

// Extras are the axes of a benchmark beyond a Sweep's. A list without values is a
// problem without the feature.
type Extras struct {
	PageSize []int // 0: contiguous
	HND      bool
	KV       []attention.KVType
	Kept     []float64 // 0: all
	Blocks   []float64 // shares of blocks; 0: all
	BlockQ   int       // rows and keys of a block
	BlockK   int
	Split    []int   // 0: as suits the device
	Lengths  Lengths // of sequences, instead of the Shape's
	Padded   bool    // those are padded, not packed
	Window   attention.Window
	Align    attention.Causal // for a window or ALiBi without a causal mask; none: bottom-right
	Softcap  float32
	SharedKV bool // V is the beginning of K's rows
	Sinks    bool
	ALiBi    bool
}

// Apply crosses a list of problems with the axes.
func (e *Extras) Apply(list []Problem) ([]Problem, error) {
	pages, kvs, kept, splits, blocks := orZero(e.PageSize), orZero(e.KV), orZero(e.Kept), orZero(e.Split), orZero(e.Blocks)
	if hostmem.Product(len(list), len(pages), len(kvs), len(kept), len(splits), len(blocks)) > maxProblems {
		return nil, fmt.Errorf("the sweep has over %d problems", maxProblems)
	}
	var out []Problem
	for _, p := range list {
		if e.Lengths != "" {
			p.Lengths, p.Packed = e.Lengths, !e.Padded
			e.Lengths.bound(&p.Shape)
		}
		p.Sinks, p.ALiBi, p.SharedKV = e.Sinks, e.ALiBi, e.SharedKV
		if p.SharedKV && p.Config.ValueDim() > p.Config.HeadDim {
			return nil, fmt.Errorf("a V of head dim %d does not lie in a K of %d", p.Config.ValueDim(), p.Config.HeadDim)
		}
		c := &p.Config
		c.Window, c.Softcap = e.Window, e.Softcap
		if c.Causal == attention.CausalNone && (e.Window.Given() || e.ALiBi) {
			if c.Align = e.Align; c.Align == attention.CausalNone {
				c.Align = attention.BottomRight
			}
		}
		for _, kv := range kvs {
			for _, split := range splits {
				for _, ratio := range kept {
					for _, share := range blocks {
						for _, page := range pages {
							x := p
							x.Config.KV, x.Config.FixedSplit, x.Features.Kept = kv, split, ratio
							x.PageSize, x.HND = page, page > 0 && e.HND
							if x.Blocks = share; share > 0 {
								x.BlockQ, x.BlockK = e.BlockQ, e.BlockK
							}
							out = append(out, x)
						}
					}
				}
			}
		}
	}
	return out, nil
}

func orZero[T any](list []T) []T {
	if len(list) == 0 {
		return make([]T, 1)
	}
	return list
}

// Has reports whether a problem of a suite is on the axes that narrow one: page
// sizes, kept ratios and types of K and V.
func (e *Extras) Has(p Problem) bool {
	return (len(e.PageSize) == 0 || slices.Contains(e.PageSize, p.PageSize)) &&
		(len(e.KV) == 0 || slices.Contains(e.KV, p.Config.KV)) &&
		(len(e.Kept) == 0 || slices.Contains(e.Kept, p.Features.Kept))
}
