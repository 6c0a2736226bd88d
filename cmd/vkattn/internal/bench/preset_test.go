package bench

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
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

// Suites ladder to presets print the columns of the published tables that they repeat.
func TestPublishedTablesHaveTheirColumns(t *testing.T) {
	for name, columns := range map[string][]string{
		"ladder": {"causal kernel time_ms perf_of_flash", "n_ctx causal kernel time_ms tflops perf_of_flash"},
		"serving": {"line Q K tier ms reference reference ms speedup max abs reference max abs max difference NaN NaN " +
			"ratio sparse ratio max error"},
		"training": {"model_name kernel avg_forward_time total_forward_time avg_backward_time total_backward_time " +
			"avg_total_time memory",
			"d_model seq_len kernel fwd(ms) bwd(ms) mem_before(MB)",
			"seq_len d_model precision ft_coopmat2 bt_coopmat2 fbt_coopmat2 ft_flash bt_flash fbt_flash speedup_fwd " +
				"speedup_bwd speedup_tot"},
		"gqa-grid": {"causal dtype bs seqlen_q seqlen_kv heads kv_heads headdim baseline TFLOP/s baseline ms ABLATION " +
			"no barrier TFLOP/s ABLATION no barrier ms ABLATION no softmax TFLOP/s ABLATION no softmax ms flash TFLOP/s " +
			"flash ms"},
		"presets": {"name device tier tile B Hq Hkv Sq Sk D Dv causal dtype ms min ms mean ms median +- ms max layers " +
			"ms of all layers TFLOP/s TFLOP/s mean TFLOP/s peak x flash max error memory"},
	} {
		s, err := ParseSuite(name)
		require.NoError(t, err)
		list := s.Problems(s.Types(nil))
		list, err = Sweep{}.OfSuite(list, s.Passes)
		require.NoError(t, err)
		var rows []*Row
		for i, p := range list {
			group := []*Row{timedRow(p, Spec{Tier: attention.TierCoopMat2}, 1+float64(i)), timedRow(p, Spec{}, 3+float64(i))}
			group[1].Tier, group[1].Peer = "flash", true
			for _, a := range s.Ablations[min(1, len(s.Ablations)):] {
				x := timedRow(p, Spec{Tier: attention.TierCoopMat2, Experiment: attention.Experiment{Ablate: a}}, 0.5)
				x.Status = Ablated
				group = slices.Insert(group, len(group)-1, x)
			}
			if i == len(list)-1 {
				group[0].Status, group[0].Reason = OOM, "80 GiB needed"
			}
			compare(group)
			rows = append(rows, group...)
		}
		out := markdownOf(rows, &RunInfo{Peers: peersNamed("flash"), Shrunk: true})
		var got []string
		lines := strings.Split(out, "\n")
		for i, l := range lines[1:] {
			if strings.HasPrefix(l, "|:") || strings.HasPrefix(l, "| -") {
				got = append(got, strings.Join(strings.Fields(strings.ReplaceAll(lines[i], "|", " ")), " "))
			}
		}
		for _, c := range columns {
			found := false
			for _, g := range got {
				found = found || strings.HasPrefix(g, c)
			}
			require.True(t, found, "%s: no table %q in\n%s", name, c, strings.Join(got, "\n"))
		}
		require.Contains(t, out, "OOM")
		require.Contains(t, out, "Shapes are cut down for a CPU")
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
		rows, err := b.Group(context.Background(), p)
		require.NoError(t, err)
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
