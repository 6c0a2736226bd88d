package bench

import (
	"slices"

	"vkattn/attention"
)

// Lines of the suites ladder and training that stand in tables of their own.
const (
	lineLadder = "ladder"
	lineSpeed  = "speed"
	lineAlone  = "attention"
	lineFlash  = "flash attention"
)

// named are the problems of sweeps with a line.
func named(line string, sweeps ...Sweep) (out []Problem) {
	for _, s := range sweeps {
		if len(s.DType) == 0 {
			s.DType = []attention.DType{attention.F16}
		}
		list, err := s.Problems()
		if err != nil {
			panic(err) // a table of this file has too many problems
		}
		for _, p := range list {
			p.Line = line
			out = append(out, p)
		}
	}
	return out
}

// ladder has a problem that each step of the kernel's development runs, and the problems of
// the forward suite.
func ladder() []Problem {
	list := named(lineLadder, Sweep{Batch: []int{8}, Heads: []int{8}, SeqLen: []int{1024}, HeadDim: []int{128}, Causal: fullAndTopLeft})
	for i := range list {
		list[i].Ladder = true
	}
	return append(list, named(lineSpeed, Sweep{Batch: []int{16}, Heads: []int{8}, SeqLen: []int{1024, 2048, 4096, 8192, 16384},
		HeadDim: []int{128, 64}, Causal: fullAndTopLeft})...)
}

// training has one layer of each transformer, attention alone, and one causal head.
func training() []Problem {
	list := models()
	for i := range list {
		list[i].Config.DType = attention.BF16
	}
	list = append(list, named(lineAlone, Sweep{Batch: []int{8}, Heads: []int{1}, SeqLen: []int{256, 1024, 4096, 8192, 16384},
		HeadDim: []int{16, 32, 64, 128}, Causal: full, DType: []attention.DType{attention.F32}})...)
	return append(list, named(lineFlash, Sweep{Batch: []int{1}, Heads: []int{1},
		SeqLen: []int{128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768}, HeadDim: []int{16, 32, 64},
		Causal: topLeft, DType: []attention.DType{attention.BF16, attention.F32}})...)
}

// gqaGrid has squares and a rectangle of equal work, with and without grouped heads.
func gqaGrid() (list []Problem) {
	for _, s := range [][3]int{{16, 1024, 1024}, {4, 1024, 4096}, {1, 4096, 4096}} {
		list = append(list, named("", Sweep{Batch: []int{s[0]}, Heads: []int{32}, HeadsKV: []int{32, 8},
			SeqLen: []int{s[1]}, SeqLenK: []int{s[2]}, HeadDim: []int{128}, Causal: fullAndBottomRight})...)
	}
	return list
}

// presetSuite has the forward passes of some presets, and a small default.
func presetSuite() []Problem {
	list := named("default", Sweep{Batch: []int{2}, Heads: []int{8}, SeqLen: []int{1024}, HeadDim: []int{64}, Causal: full})
	for _, p := range Presets {
		if slices.Contains([]string{"gpt2-small", "gpt3", "bert-base", "bert-large", "short", "long", "xlong"}, p.Name) {
			list = append(list, p.Problems...)
		}
	}
	return list
}
