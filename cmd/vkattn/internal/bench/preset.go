package bench

import (
	"fmt"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/flagtext"
)

// Preset is the attention of a well-known model, or a usual shape.
type Preset struct {
	Name, About string
	Problems    []Problem // in f16; each has the name of the preset as its Line
}

// Presets lists them in the order of `vkattn bench --list`.
var Presets = presets()

func presets() []Preset {
	causal, top := attention.BottomRight, attention.TopLeft
	of := func(b, hq, hkv, s, d, layers int, mask attention.Causal) Problem {
		return Problem{Shape: attention.Shape{B: b, Hq: hq, Hkv: hkv, Sq: s, Sk: s}, Config: attention.Config{HeadDim: d, HeadDimV: d, Causal: mask}, Layers: layers}
	}
	local := func(p Problem, window, layers int) Problem {
		p.Config.Window, p.Layers = attention.WindowOf(window-1, 0), layers
		return p
	}
	softcap := func(p Problem, cap float32) Problem {
		p.Config.Softcap = cap
		return p
	}
	prefill := of(1, 128, 128, 4096, 192, 61, causal)
	prefill.Config.HeadDimV = 128
	decode := of(8, 128, 1, 4096, 576, 61, attention.CausalNone)
	decode.Shape.Sq, decode.Config.HeadDimV, decode.SharedKV = 1, 512, true
	gemma2, gemma3 := softcap(of(1, 16, 8, 8192, 256, 21, causal), 50), of(1, 32, 16, 8192, 128, 10, causal)
	list := []Preset{
		{Name: "gpt2-small", About: "12 layers, 12 heads", Problems: []Problem{of(8, 12, 12, 1024, 64, 12, top)}},
		{Name: "gpt3", About: "96 layers, 96 heads", Problems: []Problem{of(2, 96, 96, 2048, 128, 96, top)}},
		{Name: "bert-base", About: "12 layers, 12 heads, every key visible", Problems: []Problem{of(16, 12, 12, 512, 64, 12, attention.CausalNone)}},
		{Name: "bert-large", About: "24 layers, 16 heads, every key visible", Problems: []Problem{of(8, 16, 16, 512, 64, 24, attention.CausalNone)}},
		{Name: "llama3-8b", About: "32 layers, 32 heads over 8", Problems: []Problem{of(1, 32, 8, 8192, 128, 32, causal)}},
		{Name: "llama3-70b", About: "80 layers, 64 heads over 8", Problems: []Problem{of(1, 64, 8, 8192, 128, 80, causal)}},
		{Name: "mistral-7b", About: "32 layers, 32 heads over 8, window of 4096 keys", Problems: []Problem{local(of(1, 32, 8, 8192, 128, 32, causal), 4096, 32)}},
		{Name: "gemma2-9b", About: "21 layers with a window of 4096 keys and 21 without, softcap 50", Problems: []Problem{local(gemma2, 4096, 21), gemma2}},
		{Name: "gemma3-27b", About: "52 layers with a window of 1024 keys and 10 without", Problems: []Problem{local(gemma3, 1024, 52), gemma3}},
		{Name: "qwen3-32b", About: "64 layers, 64 heads over 8", Problems: []Problem{of(1, 64, 8, 8192, 128, 64, causal)}},
		{Name: "deepseek-v3-mla", About: "61 layers, 128 heads: prefill with keys of 192 and values of 128, decode over latents of 576 with values of 512", Problems: []Problem{prefill, decode}},
		{Name: "short", About: "large batch of short sequences", Problems: []Problem{of(32, 8, 8, 512, 64, 0, attention.CausalNone)}},
		{Name: "long", About: "one long sequence", Problems: []Problem{of(1, 8, 8, 8192, 64, 0, attention.CausalNone)}},
		{Name: "xlong", About: "one very long sequence", Problems: []Problem{of(1, 8, 8, 16384, 64, 0, attention.CausalNone)}},
	}
	for _, p := range list {
		for i := range p.Problems {
			p.Problems[i].Line = p.Name
		}
	}
	return list
}

// ParsePreset finds one of Presets.
func ParsePreset(name string) (*Preset, error) {
	var names []string
	for i := range Presets {
		if Presets[i].Name == name {
			return &Presets[i], nil
		}
		names = append(names, Presets[i].Name)
	}
	return nil, fmt.Errorf("unknown preset %q%s", name, flagtext.Hint(name, names))
}

// With returns the problems of the preset, in which given lists and options replace those
// of the preset. Keys follow rows, KV heads follow heads and V follows K as long as the
// preset has them equal.
func (s *Preset) With(lists Sweep, options OptionSweep) ([]Problem, error) {
	var out []Problem
	for _, p := range s.Problems {
		sweep, x := lists, options
		fill := func(list *[]int, value, follows int) {
			if len(*list) == 0 && value != follows {
				*list = []int{value}
			}
		}
		fill(&sweep.HeadsKV, p.Shape.Hkv, p.Shape.Hq)
		fill(&sweep.SeqLenK, p.Shape.Sk, p.Shape.Sq)
		fill(&sweep.HeadDimV, p.Config.HeadDimV, p.Config.HeadDim)
		fill(&sweep.Batch, p.Shape.B, 0)
		fill(&sweep.Heads, p.Shape.Hq, 0)
		fill(&sweep.SeqLen, p.Shape.Sq, 0)
		fill(&sweep.HeadDim, p.Config.HeadDim, 0)
		if len(sweep.Causal) == 0 {
			sweep.Causal = []attention.Causal{p.Config.Causal}
		}
		if len(sweep.DType) == 0 {
			sweep.DType = []attention.DType{attention.F16}
		}
		if options.Lengths != "" {
			sweep.Batch, sweep.SeqLen, sweep.SeqLenK = []int{1}, []int{1}, []int{1}
		}
		if !x.Window.Given() {
			x.Window = p.Config.Window
		}
		if x.Softcap == 0 {
			x.Softcap = p.Config.Softcap
		}
		x.SharedKV = x.SharedKV || p.SharedKV
		list, err := sweep.Problems()
		if err == nil {
			list, err = x.Apply(list)
		}
		if err != nil {
			return nil, err
		}
		for _, q := range list {
			q.Line, q.Layers = p.Line, p.Layers
			out = append(out, q)
		}
	}
	return out, nil
}
