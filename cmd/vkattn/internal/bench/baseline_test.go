package bench

import (
	"context"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/accuracy"
	"vkattn/internal/problem"
)

// spoil changes what a runner's rows compute, as a kernel that is wrong would.
func (p *setup) spoil(change func(o []byte)) {
	right := p.results
	p.results = func(ctx context.Context, w *work) (map[string][]byte, error) {
		out, err := right(ctx, w)
		change(out["O"])
		return out, err
	}
}

// withReference runs the CPU tier and the reference of a mask, whose result spoil changes.
func withReference(t *testing.T, p Problem, spoil func(o []byte)) []*Row {
	t.Helper()
	g := &group{Bench: &Bench{CPU: "cpu", Timing: Timing{Repeats: 2}}, problem: p, compared: true}
	t.Cleanup(g.close)
	at, err := g.setup(context.Background(), nil, BaselineByMask, 0)
	require.NoError(t, err)
	at.spoil(spoil)
	var rows []*Row
	var ready []*candidate
	for _, f := range []Baseline{"", BaselineByMask} {
		c, row := g.candidate(context.Background(), Spec{Tier: attention.TierCPU, Baseline: f})
		rows = append(rows, row)
		if c != nil {
			ready = append(ready, c)
		}
	}
	g.differences(rows)
	require.NoError(t, g.time(context.Background(), ready))
	compare(rows)
	return rows
}

func TestAReferenceIsComparedWith(t *testing.T) {
	p := smallProblem(attention.F32)
	p.PageSize = 8
	peer := &fakePeer{name: "dense"}
	b := &Bench{CPU: "cpu", Label: "none", Seed: 1, Timing: Timing{Repeats: 2}, Specs: Specs([]attention.Tier{attention.TierCPU}, nil, nil, nil, nil, nil), Peers: []Peer{peer},
		Baselines: []Baseline{BaselineContiguous, BaselineByMask, BaselineCopy, BaselineSeparate, BaselineCUDARef}}
	require.Equal(t, []string{"contiguous", "by-mask", "copy"}, b.BaselineNames([]Problem{p}))
	rows := measured(t, b, p)
	require.Len(t, rows, 4)
	require.Len(t, rows, b.Rows([]Problem{p}))
	require.Empty(t, peer.asked, "a peer knows no pages")
	for _, r := range rows {
		require.Equal(t, OK, r.Status, r.Reason)
		require.Equal(t, p, r.Problem())
		if r.Baseline == BaselineCopy {
			require.Nil(t, r.Result)
			require.Zero(t, r.TFLOPs)
			continue
		}
		require.NotZero(t, r.Checked.Rows)
		require.Equal(t, Result{Elements: 2 * 4 * 70 * 24, MaxAbs: r.Result.MaxAbs, From: r.Result.From}, *r.Result)
		require.NotContains(t, r.Result.From, r.Name())
	}
	require.Contains(t, rows[0].Versus, "by-mask")
	require.Zero(t, rows[0].Result.From["contiguous"])
	require.Less(t, float64(rows[0].Result.From["by-mask"]), 1e-5)
}

func TestAReferenceIsJudged(t *testing.T) {
	p := smallProblem(attention.F32)
	rows := withReference(t, p, func([]byte) {})
	require.Equal(t, []Status{OK, OK}, []Status{rows[0].Status, rows[1].Status})
	require.Contains(t, rows[0].Versus, "by-mask")
	rows = withReference(t, p, func(o []byte) { clear(o[len(o)-24*4:]) })
	require.Equal(t, []Status{OK, Fail}, []Status{rows[0].Status, rows[1].Status})
	require.Greater(t, float64(rows[0].Result.From["by-mask"]), 0.1)
	require.NotContains(t, rows[0].Versus, "by-mask", "a wrong result has no speed")

	// A problem that a baseline refuses stops the baseline's row and no other.
	p.Options.Lengths, p.Options.ALiBi = "70/50,60/40", true
	b := &Bench{CPU: "cpu", Seed: 1, Timing: Timing{Repeats: 2}, Specs: Specs([]attention.Tier{attention.TierCPU}, nil, nil, nil, nil, nil), Baselines: []Baseline{BaselineByMask}}
	rows = measured(t, b, p)
	require.Equal(t, []Status{OK, Unsupported}, []Status{rows[0].Status, rows[1].Status}, rows[0].Reason)
}

func TestANaNInARowThatIsNotSampledIsFound(t *testing.T) {
	p := smallProblem(attention.F32)
	d := newData(p, 1)
	g := &group{Bench: &Bench{CPU: "cpu"}, problem: p, compared: true, in: d}
	g.truth = &accuracy.Expected{Sample: []attention.Rows{{B: 0, H: 0, Rows: []int{0}}}}
	require.NoError(t, g.truth.Expect(problem.Config(p.Config), d.args.Args))
	defer g.close()
	at, err := g.setup(context.Background(), nil, "", 0)
	require.NoError(t, err)
	at.spoil(func(o []byte) {
		for i := range 4 {
			o[len(o)-1-i] = 0xff
		}
	})
	c, row := g.candidate(context.Background(), Spec{Tier: attention.TierCPU})
	require.Nil(t, c)
	require.Equal(t, Fail, row.Status)
	require.Contains(t, row.Reason, "1 of 13440 elements are NaN")
	require.True(t, math.IsNaN(float64(row.Result.MaxAbs)) || row.Result.NaN == 1)
}

func TestFormsApply(t *testing.T) {
	plain := smallProblem(attention.F16)
	quantized, paged, lengths, empty, lse := plain, plain, plain, plain, plain
	quantized.Config.KeyType, quantized.Config.ValueType = attention.KVInt8, attention.KVInt8
	paged.PageSize, lengths.Lengths, empty.Lengths = 16, "3/4", "3/0,1/1"
	lse.Lengths, lse.LSE = "3/4", true
	for _, c := range []struct {
		baseline Baseline
		p        Problem
		want     bool
	}{
		{BaselineByMask, plain, true}, {BaselineByMask, quantized, false}, {BaselineContiguous, plain, false}, {BaselineContiguous, paged, true},
		{BaselineSeparate, plain, false}, {BaselineSeparate, lengths, true}, {BaselineSeparate, empty, false}, {BaselineSeparate, lse, false}, {BaselineByMask, lse, true}, {BaselineCopy, plain, true}, {BaselineCUDARef, plain, false},
	} {
		require.Equal(t, c.want, c.baseline.applies(c.p, nil), "%v %v", c.baseline, c.p)
	}
	for _, f := range Baselines {
		got, err := ParseBaseline(string(f.Baseline))
		require.NoError(t, err)
		require.Equal(t, f.Baseline, got)
		require.NotEmpty(t, f.About)
	}
}
