package bench

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/markdown"
	"vkattn/internal/problem"
)

func TestPresets(t *testing.T) {
	for _, s := range Presets {
		got, err := ParsePreset(s.Name)
		require.NoError(t, err)
		require.Equal(t, s.Name, got.Name)
		same, err := s.With(nil)
		require.NoError(t, err)
		require.Len(t, same, len(s.problems))
		for _, p := range same {
			require.NoError(t, p.Shape.Validate())
			require.NoError(t, p.Config.Validate())
			require.Equal(t, s.Name, p.Line)
		}
	}
	_, err := ParsePreset("lama3-8b")
	require.EqualError(t, err, `unknown preset "lama3-8b", did you mean llama3-8b?`)
	_, err = ParsePreset("zzzzzzzz")
	require.ErrorContains(t, err, "want one of gpt2-small, gpt3, ")
	_, err = ParseSuite("foward")
	require.EqualError(t, err, `unknown suite "foward", did you mean forward?`)
}

func TestTheCommandLineReplacesWhatAPresetHas(t *testing.T) {
	with := func(name, lists string) []Problem {
		s, err := ParsePreset(name)
		require.NoError(t, err)
		list, err := s.With(Lists(lists))
		require.NoError(t, err)
		return list
	}
	list := with("gpt2-small", "seqlen=128,256 nheads=4 dtype=bf16")
	require.Len(t, list, 2)
	require.Equal(t, attention.Shape{B: 8, Hq: 4, Hkv: 4, Sq: 256, Sk: 256}, list[1].Shape,
		"keys follow rows, KV heads follow heads")
	require.Equal(t, attention.BF16, list[1].Config.DType)
	list = with("llama3-8b", "batch-size=4 seqlen=1 seqlen-k=512 page-size=0,16")
	require.Len(t, list, 2)
	require.Equal(t, attention.Shape{B: 4, Hq: 32, Hkv: 8, Sq: 1, Sk: 512}, list[1].Shape)
	require.Equal(t, 16, list[1].PageSize)
	require.Equal(t, "window 1023,0, softcap 30", with("gemma3-27b", "softcap=30")[0].OptionText())
	require.Equal(t, "window 5,0", with("mistral-7b", "window=5,0")[0].OptionText())
	require.Equal(t, 21, with("gemma2-9b", "headdim=64")[0].Layers)
	mla := with("deepseek-v3-mla", "seqlen-k=256")
	require.True(t, mla[1].SharedKV)
	require.Equal(t, attention.Shape{B: 8, Hq: 128, Hkv: 1, Sq: 1, Sk: 256}, mla[1].Shape)
	require.Equal(t, attention.Shape{B: 2, Hq: 32, Hkv: 8, Sq: 9, Sk: 9}, with("llama3-8b", "varlen=9,5")[0].Shape)
}

// requireNarrow checks that the lines of tables are at most markdown.Width wide, and of one width.
func requireNarrow(t *testing.T, text string) {
	t.Helper()
	width := 0
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if !strings.HasPrefix(line, "|") {
			width = 0
			continue
		}
		if width == 0 {
			width = len(line)
		}
		require.LessOrEqual(t, len(line), markdown.Width, text)
		require.Len(t, line, width, text)
	}
}

// The table of every suite fits a terminal of 100 columns, with peers and baselines, and a row does not move because of
// its results.
func TestTablesOfSuitesAreNarrow(t *testing.T) {
	for _, s := range Suites {
		list := s.Problems(s.Types(nil))
		list, err := Sweep{}.OfSuite(list, s.Passes)
		require.NoError(t, err)
		info := &RunInfo{Peers: peersNamed("flash", "cudnn"), Shrunk: true}
		var rows []*Row
		for i, p := range list {
			group := []*Row{timedRow(p, Spec{Tier: attention.TierCoopMat2}, 1+float64(i)), timedRow(p, Spec{}, 3+float64(i)),
				timedRow(p, Spec{}, 30.25)}
			group[1].Tier, group[1].Peer = "flash", true
			group[2].Tier, group[2].Peer = "cudnn", true
			for _, a := range s.Ablations[min(1, len(s.Ablations)):] {
				x := timedRow(p, Spec{Tier: attention.TierCoopMat2, Experiment: attention.Experiment{Ablate: a}}, 0.5)
				x.Status = Ablated
				group = append(group, x)
			}
			for _, b := range s.Baselines {
				group = append(group, timedRow(p, Spec{Tier: attention.TierScalar, Baseline: b}, 55))
				if !slices.Contains(info.Baselines, string(b)) {
					info.Baselines = append(info.Baselines, string(b))
				}
			}
			if i == len(list)-1 {
				group[0].Status, group[0].Reason = OOM, "80 GiB needed"
			}
			compare(group)
			rows = append(rows, group...)
		}
		for _, wide := range []bool{false, true} {
			var out strings.Builder
			info.Planned, info.Wide = planned(rows), wide
			p := NewPrinter("md", &out, info)
			for _, r := range rows {
				require.NoError(t, p.Row(r))
				require.Contains(t, out.String(), "\n|", "a row appears at once")
			}
			require.NoError(t, p.Close(info))
			if text := out.String(); !wide {
				requireNarrow(t, text)
				require.Contains(t, text, "OOM")
				require.Contains(t, text, "80 GiB needed")
				require.Contains(t, text, "Shapes are cut down for a CPU")
				require.Regexp(t, `\|( problem .*)? (tier|ceiling) .*\| +[mu]s \| +\+- \|.* verdict +\|`, text)
			}
		}
	}
}

func TestShrink(t *testing.T) {
	for _, name := range []string{"ladder", "serving", "training", "gqa-grid", "presets"} {
		s, err := ParseSuite(name)
		require.NoError(t, err)
		list := s.Problems(s.Types(nil))
		small := Shrink(list)
		require.Len(t, small, len(list), "%s: every line stays", name)
		for i, p := range small {
			require.NoError(t, p.Shape.Validate(), "%v", p)
			require.LessOrEqual(t, p.Shape.Sk, 2048)
			require.LessOrEqual(t, p.Shape.Hq, 8)
			require.Equal(t, list[i].Shape.Group(), p.Shape.Group())
			rows, keys := p.lengths()
			require.Len(t, rows, p.Shape.B)
			require.Len(t, keys, p.Shape.B)
		}
	}
	// A shrunk problem of each suite runs and is right.
	b := &Bench{CPU: "cpu", Seed: 1, Timing: Timing{Once: true}, Specs: []Spec{{Tier: attention.TierCPU}}}
	for _, p := range []Problem{Shrink(ladder())[0], Shrink(serving())[5], Shrink(presetSuite())[1]} {
		rows := measured(t, b, p)
		require.Len(t, rows, 1, "without a device the ladder has one step")
		require.Equal(t, OK, rows[0].Status, rows[0].Reason)
	}
}

func TestLadderProblemsRunEachStep(t *testing.T) {
	specs := ladderSpecs([]Spec{{Tier: attention.TierCoopMat2}, {Tier: attention.TierCUDA, Kernel: "fa2"}})
	require.Len(t, specs, problem.Variants+1)
	require.Equal(t, 3, specs[2].Experiment.Variant)
	three := []Spec{{Tier: attention.TierCoopMat2, Experiment: attention.Experiment{Variant: 3}}}
	require.Equal(t, three, ladderSpecs(three), "--variant says which")
}
