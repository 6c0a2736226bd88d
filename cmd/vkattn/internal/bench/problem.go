package bench

import (
	"fmt"

	"vkattn/attention"
	"vkattn/vk/hostmem"
)

// Problem is what one row computes, whatever the tier.
type Problem struct {
	Shape  attention.Shape
	Config attention.Config // Tier is left open
	Options
	Line string // of the suite it is of, where that names its lines
}

func (p Problem) String() string {
	s := fmt.Sprintf("%v %v", p.Config, p.Shape)
	if p.Options != (Options{}) {
		s += " " + p.Options.String()
	}
	return s
}

// Sweep is the axes of a benchmark. Every list has at least one value, but
// HeadsKV, SeqLenK and HeadDimV: empty, they follow Heads, SeqLen and HeadDim.
type Sweep struct {
	Batch, Heads, HeadsKV, SeqLen, SeqLenK, HeadDim, HeadDimV []int
	Causal                                                    []attention.Causal
	DType                                                     []attention.DType
}

// maxProblems bounds the cross product; a sweep of more is a slip of the pen.
const maxProblems = 10000

// Problems is the cross product, the length varying fastest.
func (s *Sweep) Problems() ([]Problem, error) {
	follow := func(list []int) []int {
		if len(list) == 0 {
			return []int{0}
		}
		return list
	}
	either := func(v, other int) int {
		if v == 0 {
			return other
		}
		return v
	}
	headsKV, seqLenK, headDimV := follow(s.HeadsKV), follow(s.SeqLenK), follow(s.HeadDimV)
	count := 1
	for _, n := range []int{len(s.DType), len(s.HeadDim), len(headDimV), len(s.Causal), len(s.Batch), len(s.Heads), len(headsKV), len(s.SeqLen), len(seqLenK)} {
		if count *= n; count > maxProblems {
			return nil, fmt.Errorf("the sweep has over %d problems", maxProblems)
		}
	}
	var out []Problem
	for _, dtype := range s.DType {
		for _, d := range s.HeadDim {
			for _, dv := range headDimV {
				for _, causal := range s.Causal {
					for _, b := range s.Batch {
						for _, hq := range s.Heads {
							for _, hkv := range headsKV {
								for _, sq := range s.SeqLen {
									for _, sk := range seqLenK {
										out = append(out, Problem{
											Shape:  attention.Shape{B: b, Hq: hq, Hkv: either(hkv, hq), Sq: sq, Sk: either(sk, sq)},
											Config: attention.Config{DType: dtype, HeadDim: d, HeadDimV: either(dv, d), Causal: causal},
										})
									}
								}
							}
						}
					}
				}
			}
		}
	}
	return out, nil
}

// row is an empty row of the problem.
func (p Problem) row(device string) *Row {
	s, c := p.Shape, p.Config
	row := &Row{Device: device, B: s.B, Hq: s.Hq, Hkv: s.KVHeads(), Sq: s.Sq, Sk: s.Sk,
		D: c.HeadDim, Dv: c.ValueDim(), Causal: c.Causal, DType: c.DType, KV: c.KV, Line: p.Line, problem: p}
	if p.Blocks == 0 { // else see group.candidate
		row.KVBytes = p.KVBytes()
	}
	if !p.Plain() || c.FixedSplit != 0 {
		row.OptionText = p.optionText()
	}
	if p.Options != (Options{}) {
		row.Options = &p.Options
	}
	return row
}

// tensors are the element counts of Q, K, V and O.
func (p Problem) tensors() (q, k, v, o uint64) {
	s, c := p.Shape, p.Config
	rows, keys := hostmem.Product(s.B, s.Hq, s.Sq), hostmem.Product(s.B, s.KVHeads(), s.Sk)
	d, dv := uint64(c.HeadDim), uint64(c.ValueDim())
	return hostmem.Product(rows, d), hostmem.Product(keys, d), hostmem.Product(keys, dv), hostmem.Product(rows, dv)
}

// TFLOPs is 2*B*Hq*(Dqk+Dv)*cells over the time, cells being the unmasked
// (row, col) pairs.
func TFLOPs(p Problem, ms float64) float64 {
	if ms <= 0 {
		return 0
	}
	s, c := p.Shape, p.Config
	flops := 2 * float64(s.Hq) * float64(c.HeadDim+c.ValueDim()) * p.cells()
	return flops / (ms * 1e-3) / 1e12
}
