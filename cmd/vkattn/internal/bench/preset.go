package bench

import (
	"fmt"
	"slices"

	"vkattn/cmd/vkattn/internal/flagtext"
)

// Preset is the attention of a well-known model, or a usual shape.
type Preset struct {
	Name, About string
	problems    []string // texts of sweeps of one problem, in f16
}

// Presets lists them in the order of `vkattn bench --list`.
var Presets = []Preset{
	{"gpt2-small", "12 layers, 12 heads", []string{"layers=12 batch-size=8 nheads=12 seqlen=1024 headdim=64 " +
		"causal=top-left"}},
	{"gpt3", "96 layers, 96 heads", []string{"layers=96 batch-size=2 nheads=96 seqlen=2048 headdim=128 causal=top-left"}},
	{"bert-base", "12 layers, 12 heads, every key visible", []string{"layers=12 batch-size=16 nheads=12 seqlen=512 " +
		"headdim=64"}},
	{"bert-large", "24 layers, 16 heads, every key visible", []string{"layers=24 batch-size=8 nheads=16 seqlen=512 " +
		"headdim=64"}},
	{"llama3-8b", "32 layers, 32 heads over 8", []string{"layers=32 batch-size=1 nheads=32 nheads-kv=8 seqlen=8192 " +
		"headdim=128 causal=bottom-right"}},
	{"llama3-70b", "80 layers, 64 heads over 8", []string{"layers=80 batch-size=1 nheads=64 nheads-kv=8 seqlen=8192 " +
		"headdim=128 causal=bottom-right"}},
	{"mistral-7b", "32 layers, 32 heads over 8, window of 4096 keys", []string{
		"layers=32 batch-size=1 nheads=32 nheads-kv=8 seqlen=8192 headdim=128 causal=bottom-right window=4095,0"}},
	{"gemma2-9b", "21 layers with a window of 4096 keys and 21 without, softcap 50", []string{
		"layers=21 batch-size=1 nheads=16 nheads-kv=8 seqlen=8192 headdim=256 causal=bottom-right softcap=50 window=4095,0",
		"layers=21 batch-size=1 nheads=16 nheads-kv=8 seqlen=8192 headdim=256 causal=bottom-right softcap=50"}},
	{"gemma3-27b", "52 layers with a window of 1024 keys and 10 without", []string{
		"layers=52 batch-size=1 nheads=32 nheads-kv=16 seqlen=8192 headdim=128 causal=bottom-right window=1023,0",
		"layers=10 batch-size=1 nheads=32 nheads-kv=16 seqlen=8192 headdim=128 causal=bottom-right"}},
	{"qwen3-32b", "64 layers, 64 heads over 8", []string{"layers=64 batch-size=1 nheads=64 nheads-kv=8 seqlen=8192 " +
		"headdim=128 causal=bottom-right"}},
	{"deepseek-v3-mla", "61 layers, 128 heads: prefill with keys of 192 and values of 128, decode over latents of " +
		"576 with values of 512", []string{
		"layers=61 batch-size=1 nheads=128 seqlen=4096 headdim=192 headdim-v=128 causal=bottom-right",
		"layers=61 batch-size=8 nheads=128 nheads-kv=1 seqlen=1 seqlen-k=4096 headdim=576 headdim-v=512 shared-kv=true"}},
	{"short", "large batch of short sequences", []string{"batch-size=32 nheads=8 seqlen=512 headdim=64"}},
	{"long", "one long sequence", []string{"batch-size=1 nheads=8 seqlen=8192 headdim=64"}},
	{"xlong", "one very long sequence", []string{"batch-size=1 nheads=8 seqlen=16384 headdim=64"}},
}

// presetOf is the preset of a name, nil if there is none.
func presetOf(name string) *Preset {
	if i := slices.IndexFunc(Presets, func(p Preset) bool { return p.Name == name }); i >= 0 {
		return &Presets[i]
	}
	return nil
}

// ParsePreset finds one of Presets.
func ParsePreset(name string) (*Preset, error) {
	if p := presetOf(name); p != nil {
		return p, nil
	}
	var names []string
	for _, p := range Presets {
		names = append(names, p.Name)
	}
	return nil, fmt.Errorf("unknown preset %q%s", name, flagtext.Hint(name, names))
}

// With returns the problems of the preset, in which given lists replace those of the preset. Keys follow
// rows, KV heads follow heads and V follows K as long as the preset has them equal.
func (s *Preset) With(given Sweep) (out []Problem, err error) {
	for _, text := range s.problems {
		list, err := Lists(text).With(given).Problems()
		if err != nil {
			return nil, err
		}
		for _, p := range list {
			p.Line = s.Name
			out = append(out, p)
		}
	}
	return out, nil
}
