package cases

import (
	"fmt"
	"hash/fnv"
	"strings"

	"vkattn/internal/plan"
	"vkattn/internal/problem"
	"vkattn/vk"
)

// Target is a tier for one storage type.
type Target struct {
	Tier  problem.Tier
	DType problem.DType
}

// On is the Target of a tier and a storage type.
func On(tier problem.Tier, dtype problem.DType) Target { return Target{tier, dtype} }

// OnMatrices is the Target of the best tier of cooperative matrices that a device has for a
// storage type, which TierAuto does not take on a driver of the CPU; TierAuto without one.
func OnMatrices(dev *vk.Device, dtype problem.DType) Target {
	for _, s := range plan.TierReport(dev) { // coopmat2 comes first
		if s.DType == dtype && s.Available && (s.Tier == problem.TierCoopMat2 || s.Tier == problem.TierCoopMat) {
			return On(s.Tier, dtype)
		}
	}
	return On(problem.TierAuto, dtype)
}

// String is "coopmat/f16", for example.
func (t Target) String() string { return fmt.Sprintf("%v/%v", t.Tier, t.DType) }

// String names everything but the seed, in the form -run takes.
func (c Case) String() string {
	if c.Seqs != nil || c.Name != "" {
		return c.optionsString()
	}
	s := fmt.Sprintf("d%d", c.D)
	if c.Dv != c.D {
		s += fmt.Sprintf("v%d", c.Dv)
	}
	s += fmt.Sprintf(".%v.B%d.H%d", c.Causal, c.B, c.Hq)
	if kv := c.KVHeads(); kv != c.Hq {
		s += fmt.Sprintf("k%d", kv)
	}
	s += fmt.Sprintf(".%dx%d.%v.%v", c.Sq, c.Sk, c.Layout, c.Data)
	if !c.Scale.IsDefault() {
		s += ".scale" + c.Scale.String()
	}
	if c.LSE {
		s += ".lse"
	}
	if c.Access != problem.AccessAuto {
		s += "." + c.Access.String()
	}
	return s
}

// optionsString is String of a case with a name or Seqs.
func (c Case) optionsString() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s.d%d", c.Name, c.D)
	add := func(format string, args ...any) { fmt.Fprintf(&b, "."+format, args...) }
	if c.Dv != c.D {
		fmt.Fprintf(&b, "v%d", c.Dv)
	}
	add("H%d", c.Hq)
	if c.Hkv != c.Hq {
		fmt.Fprintf(&b, "k%d", c.Hkv)
	}
	add("%v", c.Causal)
	if c.Align != problem.CausalNone {
		add("align-%v", c.Align)
	}
	if c.Sq > 0 || c.Sk > 0 {
		add("in%dx%d", c.Sq, c.Sk)
	}
	if len(c.Seqs) > 6 {
		add("%dseqs", len(c.Seqs))
	} else {
		for i, s := range c.Seqs {
			format := "+%dx%d"
			if i == 0 {
				format = ".%dx%d"
			}
			fmt.Fprintf(&b, format, s.Rows, s.Keys)
		}
	}
	for _, w := range allWords() {
		if text := w.text(&c); text != "" {
			add("%s", text)
		}
	}
	return b.String()
}

// SeedValue depends on the problem alone, not on its place in the table.
func (c Case) SeedValue() uint64 {
	if c.Seed != 0 {
		return c.Seed
	}
	h := fnv.New64a()
	fmt.Fprint(h, c.String())
	return h.Sum64()
}

// Config is the Config of the case on a tier.
func (c Case) Config(tt Target) problem.Config {
	cfg := problem.Config{
		DType: tt.DType, HeadDim: c.D, HeadDimV: c.Dv, Causal: c.Causal, Scale: c.Scale, Tier: tt.Tier, Align: c.Align, Window: c.Window,
		Softcap: c.Softcap, Dropout: c.Dropout, KeyType: c.KeyType, ValueType: c.valueType(), KVBlock: c.KVBlock, FixedSplit: c.FixedSplit, AttentionChunk: c.AttentionChunk,
		Tuning: problem.TuningOff, // a tuned machine must test the same
	}
	if cfg.ScoreMod, cfg.MaskMod = c.modifiers(); tt.Tier != problem.TierCPU {
		cfg.Access = c.Access
	}
	return cfg
}

// Pipeline names the pipeline of a case, nearly, so that cases that share one can follow
// each other: kernels look closer at how tensors are aligned and how many rows there are.
func (c Case) Pipeline() string {
	if c.Seqs == nil {
		return fmt.Sprint(c.D, c.Dv, c.Causal != problem.CausalNone, c.LSE, c.Access, layoutAlign[c.Layout], rowClass(c.Sq))
	}
	key := []any{c.D, c.Dv, c.Causal != problem.CausalNone, c.LSE, c.Access, layoutAlign[c.Layout],
		rowClass(c.Bounds().Sq * c.Group()), c.Group() > 1}
	for _, o := range options {
		if o.kernel != nil {
			key = append(key, o.kernel(&c))
		}
	}
	return fmt.Sprint(key...)
}
