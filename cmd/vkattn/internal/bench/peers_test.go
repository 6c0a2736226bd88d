package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/fields"
	"vkattn/cmd/vkattn/internal/peer"
)

// fakePeer answers without computing, and writes down what it was asked.
type fakePeer struct {
	name    string
	each    time.Duration
	refuses error // at the problem
	breaks  error // at the third time
	asked   []string
	problem peer.Problem
	mods    bool // it takes modifiers
}

func (p *fakePeer) Info() peer.Info {
	return peer.Info{Name: p.name, Timer: "device", Modifiers: p.mods}
}

func (p *fakePeer) Problem(_ context.Context, problem peer.Problem) (peer.Answer, error) {
	p.asked, p.problem = append(p.asked, "problem"), problem
	worst := 0.25
	return peer.Answer{Memory: 7, Checked: peer.Checked{Rows: 3, MaxError: &worst}}, p.refuses
}

func (p *fakePeer) Time(_ context.Context, n int) ([]time.Duration, error) {
	p.asked = append(p.asked, fmt.Sprint(n))
	if p.breaks != nil && len(p.asked) > 3 {
		return nil, p.breaks
	}
	out := make([]time.Duration, n)
	for i := range out {
		out[i] = p.each
	}
	return out, nil
}

func (p *fakePeer) Release(context.Context) error {
	p.asked = append(p.asked, "release")
	return nil
}

// Of problems with modifiers only peers that take modifiers have a row, and of those with other options none.
func TestPeersWithModifiers(t *testing.T) {
	able, other := &fakePeer{name: "able", each: time.Second, mods: true}, &fakePeer{name: "other", each: time.Second}
	b := &Bench{CPU: "cpu", Seed: 1, Timing: Timing{Repeats: 1}, Peers: []Peer{able, other},
		Specs: Specs([]attention.Tier{attention.TierCPU}, nil, nil, nil, nil, nil)}
	const sizes = "batch-size=1 nheads=2 seqlen=5 headdim=4 dtype=f32 "
	for text, peers := range map[string][]Peer{
		"":                                     {able, other},
		"causal=top-left mask-mod=i-j<3":       {able},
		"table=bias=2x9 score-mod=s+bias[h,j]": {able},
		"softcap=3 score-mod=s+1":              nil,
	} {
		p := named("", sizes+text)[0]
		require.Equal(t, peers, b.peers(p), text)
		require.Equal(t, 1+len(peers), b.Rows([]Problem{p}), text)
	}
	rows := measured(t, b, named("", sizes+"table=bias=2x9 score-mod=s+bias[h,j] mask-mod=j<=i")[0])
	require.Len(t, rows, 2)
	require.Equal(t, OK, rows[0].Status, rows[0].Reason)
	require.Equal(t, "s + bias[h, j]", able.problem.ScoreMod)
	require.Equal(t, "j <= i", able.problem.MaskMod)
	require.Equal(t, "bias=2x9", able.problem.Tables)
	require.Empty(t, other.asked)
}

func TestPeersTakeTurnsWithTheTiers(t *testing.T) {
	good := &fakePeer{name: "good", each: 200 * time.Millisecond}
	slow := &fakePeer{name: "slow", each: 400 * time.Millisecond}
	refusing := &fakePeer{name: "refusing", refuses: fmt.Errorf("no f16: %w", peer.ErrUnsupported)}
	wrong := &fakePeer{name: "wrong", refuses: fmt.Errorf("max error 3: %w", peer.ErrWrong)}
	dead := &fakePeer{name: "dead", refuses: errors.New("ended")}
	dying := &fakePeer{name: "dying", each: time.Second, breaks: errors.New("ended at time")}
	done := 0
	b := &Bench{CPU: "cpu", Label: "some GPU", Seed: 1, Timing: Timing{Repeats: 10}, Done: func() { done++ },
		Specs: Specs([]attention.Tier{attention.TierCPU}, nil, nil, nil, nil, nil),
		Peers: []Peer{good, slow, refusing, wrong, dead, dying}}
	p := smallProblem(attention.F32)
	rows := measured(t, b, p)
	require.Equal(t, 7, done)
	var status []Status
	for i, r := range rows {
		status = append(status, r.Status)
		require.Equal(t, i > 0, r.Peer)
	}
	require.Equal(t, []Status{OK, OK, OK, Unsupported, Fail, Broken, Broken}, status)
	require.Equal(t, "good", rows[1].Tier)
	require.Equal(t, "some GPU", rows[1].Device)
	require.Len(t, rows[1].Samples, 10)
	require.InDelta(t, TFLOPs(p, 200), rows[1].TFLOPs, 1e-12)
	require.Equal(t, 3, rows[1].Checked.Rows)
	require.InDelta(t, 0.25, float64(rows[1].Checked.MaxError), 0)
	require.True(t, math.IsNaN(float64(rows[1].Checked.NMSE)), "it did not say")
	require.Equal(t, map[string]float64{"good": 1, "slow": 2}, rows[1].Versus)
	require.Equal(t, map[string]float64{"good": 0.5, "slow": 1}, rows[2].Versus)
	require.InDelta(t, 200/rows[0].Ms.Median, rows[0].Versus["good"], 1e-9)
	require.Nil(t, rows[4].Versus)
	require.Equal(t, "ended at time", rows[6].Reason)

	require.Equal(t, "problem", good.asked[0])
	require.Equal(t, "release", good.asked[len(good.asked)-1], "whatever it took is given back")
	require.Equal(t, peer.Problem{Call: fields.Call{B: 2, Hq: 4, Hkv: 2, Sq: 70, Sk: 50, D: 16, Dv: 24, Causal: attention.BottomRight, DType: attention.F32}, Scale: 0.25, Seed: 1,
		Sets: countSets(p, hostRotation)}, good.problem, "as many sets as the tiers rotate through")
	require.Equal(t, rows[0].Sets, rows[1].Sets)

	p.Shape.Hkv = 3
	rows = measured(t, b, p)
	for _, r := range rows {
		require.Equal(t, Unsupported, r.Status)
	}
	require.Equal(t, "slow", rows[2].Tier)
}

func TestTheFirstRunOfATurnIsNotTimed(t *testing.T) {
	for _, c := range []struct {
		each time.Duration
		lead int
	}{{time.Millisecond, 1}, {batchTime, 0}} {
		var asked []int
		slowFirst := func(_ context.Context, n int) ([]time.Duration, error) {
			asked = append(asked, n)
			out := make([]time.Duration, n)
			for i := range out {
				out[i] = c.each
			}
			out[0] *= 3
			return out, nil
		}
		g := &group{Bench: &Bench{Timing: Timing{Repeats: 10}}, problem: smallProblem(attention.F16)}
		cand := &candidate{row: &Row{}, run: slowFirst, each: c.each}
		require.NoError(t, g.batch(context.Background(), cand))
		require.Len(t, cand.times, asked[0]-c.lead)
		if c.lead > 0 {
			require.NotContains(t, cand.times, 3*c.each)
		}
	}
}

func TestCompareSumsUpByTierAndPeer(t *testing.T) {
	row := func(tier string, s int, x float64) *Row {
		r := &Row{Tier: tier, Status: OK, Call: fields.Call{B: 1, Hq: 2, Hkv: 2, Sq: s, Sk: s, D: 64, Dv: 64}}
		if x > 0 {
			r.Versus = map[string]float64{"flash": x, "other": 1}
		}
		return r
	}
	peerRow := func(name string) *Row { return &Row{Tier: name, Peer: true, Versus: map[string]float64{"flash": 1}} }
	list := Compare([]*Row{row("coopmat2", 1, 2), row("scalar", 1, 0.1), peerRow("flash"), peerRow("other"),
		row("coopmat2", 2, 0.5), row("coopmat2", 3, 1.728), row("coopmat2", 4, 0), row("scalar", 2, 0)})
	require.Len(t, list, 4)
	require.InDelta(t, 1.2, list[0].GeoMean, 1e-9)
	require.Equal(t, "coopmat2 / flash: geometric mean 1.200x, minimum 0.500x at f16 d64 B1 H2 S2, 3 cells", list[0].String())
	require.Equal(t, "coopmat2 / other", list[1].Who+" / "+list[1].Peer)
	require.Equal(t, "scalar / flash: geometric mean 0.100x, minimum 0.100x at f16 d64 B1 H2 S1, 1 cell", list[2].String())
	require.Empty(t, Compare(nil))
}

func TestAnAblationHasNoRatio(t *testing.T) {
	flash := &Row{Tier: "flash", Peer: true, Status: OK, Ms: Summary{Median: 1}}
	ablated := &Row{Tier: "coopmat2", Ablation: "softmax", Status: Ablated, Ms: Summary{Median: 0.5}}
	compare([]*Row{flash, ablated})
	require.Nil(t, ablated.Versus)
	require.Equal(t, map[string]float64{"flash": 1}, flash.Versus)
}

func TestAnAblationHasNoSpeedOfAResult(t *testing.T) {
	g := &group{Bench: &Bench{}, problem: smallProblem(attention.F16)}
	c := &candidate{row: &Row{Ablation: "softmax"}, times: []time.Duration{time.Millisecond}}
	g.finish(c)
	require.Equal(t, Ablated, c.row.Status)
	require.Zero(t, c.row.TFLOPs)
	require.InDelta(t, TFLOPs(g.problem, 1), c.row.AblationTFLOPs, 1e-12)
	require.Empty(t, c.row.Note())
}

// peersNamed are peers as a run lists them.
func peersNamed(names ...string) (list []peer.Info) {
	for _, n := range names {
		list = append(list, peer.Info{Name: n})
	}
	return list
}
