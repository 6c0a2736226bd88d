package bench

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/fields"
	"vkattn/cmd/vkattn/internal/peer"
	"vkattn/internal/problem"
)

func TestPasses(t *testing.T) {
	for name, want := range map[string]Pass{"fwd": PassForward, "bwd": PassBackward, "fwdbwd": PassBoth} {
		p, err := ParsePass(name)
		require.NoError(t, err)
		require.Equal(t, want, p)
		text, err := p.MarshalText()
		require.NoError(t, err)
		require.Equal(t, name, string(text))
		var back Pass
		require.NoError(t, back.UnmarshalText(text))
		require.Equal(t, p, back)
	}
	_, err := ParsePass("both")
	require.ErrorContains(t, err, "want fwd, bwd or fwdbwd")
	p := smallProblem(attention.F16)
	list, err := Lists("pass=fwd,fwdbwd").cross([]Problem{p, p})
	require.NoError(t, err)
	require.Len(t, list, 4)
	require.Equal(t, []Pass{PassForward, PassBoth}, []Pass{list[0].Pass, list[1].Pass})
	require.InDelta(t, 3.5*TFLOPs(list[0], 1), TFLOPs(list[1], 1), 1e-12)
	p.Pass = PassBackward
	require.InDelta(t, 2.5*TFLOPs(list[0], 1), TFLOPs(p, 1), 1e-12)
	_, err = Lists("pass=fwd,fwdbwd").cross(make([]Problem, maxProblems))
	require.ErrorContains(t, err, "over 10000 problems")
}

// backwardProblems are problems with gradients.
func backwardProblems() map[string]Problem {
	lengths := Lengths("20/33,1/9,40/40")
	with := func(change func(*Problem)) Problem {
		p := smallProblem(attention.F16)
		change(&p)
		return p
	}
	return map[string]Problem{
		"f16":            smallProblem(attention.F16),
		"bf16":           smallProblem(attention.BF16),
		"f32":            smallProblem(attention.F32),
		"V in K":         with(func(p *Problem) { p.SharedKV, p.Config.HeadDimV = true, 8 }),
		"sinks, ALiBi":   with(func(p *Problem) { p.Sinks, p.ALiBi = true, true }),
		"packed":         with(func(p *Problem) { p.Lengths, p.Packed = lengths, true; lengths.bound(&p.Shape) }),
		"padded":         with(func(p *Problem) { p.Lengths = lengths; lengths.bound(&p.Shape) }),
		"blocks":         with(func(p *Problem) { p.Blocks, p.BlockQ, p.BlockK = 0.5, 16, 16 }),
		"sparse, window": with(func(p *Problem) { p.Options.SparseRatio, p.Config.Window = 0.5, attention.WindowOf(30, -1) }),
	}
}

func TestBackwardRowsAreVerifiedAndTimed(t *testing.T) {
	for name, p := range backwardProblems() {
		for _, pass := range []Pass{PassBackward, PassBoth} {
			if pass == PassBoth && name != "packed" {
				continue
			}
			p.Pass = pass
			b := &Bench{CPU: "cpu", Timing: Timing{Repeats: 2}, Seed: 5, Specs: []Spec{{Tier: attention.TierCPU}}, Baselines: []Baseline{BaselineByMask, BaselineSeparate}}
			rows := measured(t, b, p)
			require.Len(t, rows, 1, "baselines have no gradients")
			r := rows[0]
			require.Equal(t, OK, r.Status, "%s %v: %s", name, pass, r.Reason)
			require.Equal(t, pass, r.Pass)
			require.NotZero(t, r.Checked.Rows)
			require.NotZero(t, r.Checked.Keys)
			require.NotZero(t, r.TFLOPs)
			require.NotZero(t, r.Memory)
			require.GreaterOrEqual(t, len(r.Samples), 2)
		}
	}
}

func TestAWrongGradientIsNoSpeed(t *testing.T) {
	for _, name := range []string{"DQ", "DK", "DV"} {
		p := smallProblem(attention.F16)
		p.Config.Causal, p.Pass = attention.CausalNone, PassBackward
		g := &group{Bench: &Bench{CPU: "cpu"}, problem: p}
		at, err := g.setup(context.Background(), nil, "", 0)
		require.NoError(t, err)
		right := at.results
		at.results = func(ctx context.Context, w *work) (map[string][]byte, error) {
			out, err := right(ctx, w)
			if err == nil {
				out[name][1] ^= 0x48
			}
			return out, err
		}
		c, row := g.candidate(context.Background(), Spec{Tier: attention.TierCPU})
		g.close()
		require.Nil(t, c)
		require.Equal(t, Fail, row.Status)
		require.Contains(t, row.Reason, strings.Replace(name, "D", "d", 1)+": ")
		require.Zero(t, row.TFLOPs)
	}
}

func TestWhatHasNoGradientsIsRefused(t *testing.T) {
	for name, change := range map[string]func(*Problem, *Spec){
		"paged":     func(p *Problem, _ *Spec) { p.PageSize = 16 },
		"quantized": func(p *Problem, _ *Spec) { p.Config.KeyType, p.Config.ValueType = attention.KVInt8, attention.KVInt8 },
		"ablation":  func(_ *Problem, s *Spec) { s.Experiment.Ablate = problem.AblateSoftmax },
		"variant":   func(_ *Problem, s *Spec) { s.Experiment.Variant = 2 },
	} {
		p, s := smallProblem(attention.F16), Spec{Tier: attention.TierCPU}
		p.Pass = PassBackward
		change(&p, &s)
		rows, err := (&Bench{CPU: "cpu", Specs: []Spec{s}}).Group(context.Background(), p)
		require.NoError(t, err)
		require.Equal(t, Unsupported, rows[0].Status, name)
	}
}

// Peers are asked for the pass, and one that is out of memory has a row that says so.
func TestPeersOfABackwardPass(t *testing.T) {
	p := smallProblem(attention.F16)
	p.Pass = PassBackward
	good := &fakePeer{name: "good", each: 1e9}
	full := &fakePeer{name: "full", refuses: errors.Join(peer.ErrOutOfMemory)}
	b := &Bench{CPU: "cpu", Timing: Timing{Repeats: 1}, Specs: []Spec{{Tier: attention.TierCPU}}, Peers: []Peer{good, full}}
	rows := measured(t, b, p)
	require.Equal(t, "bwd", good.problem.Pass)
	require.Equal(t, []Status{OK, OK, OOM}, []Status{rows[0].Status, rows[1].Status, rows[2].Status})
	require.NotZero(t, rows[0].Versus["good"])
	p.Pass = PassForward
	measured(t, b, p)
	require.Empty(t, good.problem.Pass, "as a peer that knows no passes expects")
}

func TestTablesOfPassesAndLayers(t *testing.T) {
	r := &Row{Device: "d", Tier: "scalar", Call: fields.Call{Sq: 2}, Pass: PassBackward, Layers: 12, Status: OK, Ms: Summarize([]float64{1, 2, 3}), TFLOPs: 5}
	text := printed(t, "md", []*Row{r, {Device: "d", Tier: "scalar", Status: OOM, Layers: 3}})
	require.Regexp(t, `\| pass +\| tier +\| +ms \| +\+- \| +TFLOP/s \| verdict +\|`, text)
	require.Regexp(t, `\| bwd +\| scalar +\| 2.0000 \| +- \| +5.0000 \| ok +\|`, text)
	require.Regexp(t, `\| fwd +\| scalar +\| +- .*\| OOM +\|`, text)
	text = printed(t, "wide md", []*Row{r, {Device: "d", Tier: "scalar", Status: OOM, Layers: 3}})
	require.Regexp(t, `\| +ms min \| +ms mean \| +ms max .*\| +layers \| ms of all layers \|`, text)
	require.Regexp(t, `\| 1.0000 \|  2.0000 \| 3.0000 .*\| +12 \| +24.00 \|`, text)
}

// Gradients may take O and LSE from another operation than theirs.
func TestGradientsTakeOAndLSEOfWork(t *testing.T) {
	p := smallProblem(attention.F16)
	p.Pass = PassBackward
	d := newData(p, 7)
	op, err := attention.New(nil, p.Config)
	require.NoError(t, err)
	want, err := onCPU(t, d).results(context.Background(), &work{op: op, pass: p.Pass})
	require.NoError(t, err)

	only := backwardOnly{op}
	_, err = onCPU(t, d).results(context.Background(), &work{op: only, pass: p.Pass})
	require.ErrorIs(t, err, attention.ErrUnsupported)
	got, err := onCPU(t, d).results(context.Background(), &work{op: only, saved: op, pass: p.Pass})
	require.NoError(t, err)
	require.Equal(t, want, got)
}

// backwardOnly is an operation whose forward pass refuses.
type backwardOnly struct{ operation }

func (backwardOnly) Forward(*attention.Stream, attention.Args) error { return attention.ErrUnsupported }
