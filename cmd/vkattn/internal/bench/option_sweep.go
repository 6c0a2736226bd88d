package bench

import (
	"fmt"
	"slices"

	"vkattn/attention"
	"vkattn/internal/hostmem"
)

// OptionSweep holds the options of a benchmark: lists to cross with a Sweep, and values
// for all problems. An empty list means no such option.
type OptionSweep struct {
	PageSize    []int // 0: contiguous
	HND         bool
	KV          []attention.KVType
	SparseRatio []float64 // 0: all
	Blocks      []float64 // ratios of block masks; 0: all
	BlockQ      int       // rows of a block
	BlockK      int       // keys of a block
	Split       []int     // fixed splits; 0: chosen for the device
	Lengths     Lengths   // of sequences, instead of the lengths of the Shape
	Padded      bool      // the sequences are padded, not packed
	Window      attention.Window
	Align       attention.Causal // for a window or ALiBi without a causal mask; none: bottom-right
	Softcap     float32
	Dropout     float32
	SharedKV    bool // V is the first part of K's rows
	Sinks       bool
	ALiBi       bool
}

// Apply crosses a list of problems with the axes.
func (e *OptionSweep) Apply(list []Problem) ([]Problem, error) {
	pages, kvs, sparse, splits, blocks := orZero(e.PageSize), orZero(e.KV), orZero(e.SparseRatio), orZero(e.Split), orZero(e.Blocks)
	if hostmem.Product(len(list), len(pages), len(kvs), len(sparse), len(splits), len(blocks)) > maxProblems {
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
			return nil, fmt.Errorf("head dim %d of V is over head dim %d of K, in whose rows it lies", p.Config.ValueDim(), p.Config.HeadDim)
		}
		c := &p.Config
		c.Window, c.Softcap, c.Dropout = e.Window, e.Softcap, e.Dropout
		if c.Causal == attention.CausalNone && (e.Window.Given() || e.ALiBi) {
			if c.Align = e.Align; c.Align == attention.CausalNone {
				c.Align = attention.BottomRight
			}
		}
		for _, kv := range kvs {
			for _, split := range splits {
				for _, ratio := range sparse {
					for _, share := range blocks {
						for _, page := range pages {
							x := p
							x.Config.KV, x.Config.FixedSplit, x.Options.SparseRatio = kv, split, ratio
							x.PageSize, x.HND = page, page > 0 && e.HND
							x.Blocks = share
							if share > 0 {
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

// Has reports whether the lists of page sizes, types of K and V and sparse ratios select
// a problem of a suite.
func (e *OptionSweep) Has(p Problem) bool {
	return (len(e.PageSize) == 0 || slices.Contains(e.PageSize, p.PageSize)) &&
		(len(e.KV) == 0 || slices.Contains(e.KV, p.Config.KV)) &&
		(len(e.SparseRatio) == 0 || slices.Contains(e.SparseRatio, p.Options.SparseRatio))
}
