package bench

import (
	"context"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/vk"
)

// other computes with another Config than it was asked for.
type other struct{ *attention.Op }

func withNaive(t *testing.T, change func(*attention.Config)) {
	before := Naive
	t.Cleanup(func() { Naive = before })
	Naive = func(dev *vk.Device, cfg attention.Config) (Forwarder, error) {
		change(&cfg)
		op, err := attention.New(dev, cfg)
		if err != nil {
			return nil, err
		}
		return other{op}, nil
	}
}

func TestAReferenceIsJudgedAndCompared(t *testing.T) {
	p := smallProblem(attention.F32)
	p.PageSize = 8
	peer := &fakePeer{name: "dense"}
	b := &Bench{CPU: "cpu", Label: "none", Seed: 1, Repeats: 2, Specs: Specs([]attention.Tier{attention.TierCPU}, nil, nil, nil), Peers: []Peer{peer},
		Against: []Form{FormNaive, FormContiguous, FormByMask, FormCopy, FormSeparate, FormCUDARef}}
	require.NotContains(t, b.Rivals([]Problem{p}), "naive", "there is none in this build")
	withNaive(t, func(*attention.Config) {})
	require.Equal(t, []string{"naive", "contiguous", "by-mask", "copy"}, b.Rivals([]Problem{p}))
	rows, err := b.Group(context.Background(), p)
	require.NoError(t, err)
	require.Len(t, rows, 5)
	require.Len(t, rows, b.Rows([]Problem{p}))
	require.Empty(t, peer.asked, "a peer knows no pages")
	for _, r := range rows {
		require.Equal(t, OK, r.Status, r.Reason)
		require.Equal(t, p, r.Problem())
		if r.Form == FormCopy {
			require.Nil(t, r.Result)
			require.Zero(t, r.TFLOPs)
			continue
		}
		require.NotZero(t, r.Checked.Rows)
		require.Equal(t, Result{Elements: 2 * 4 * 70 * 24, MaxAbs: r.Result.MaxAbs, From: r.Result.From}, *r.Result)
		require.NotContains(t, r.Result.From, r.Name())
	}
	require.Contains(t, rows[0].Versus, "by-mask")
	require.Zero(t, rows[0].Result.From["naive"])
	require.Less(t, float64(rows[0].Result.From["by-mask"]), 1e-5)

	b.Against = []Form{FormNaive}
	withNaive(t, func(c *attention.Config) { c.Scale = attention.ScaleOf(1) })
	rows, err = b.Group(context.Background(), p)
	require.NoError(t, err)
	require.Equal(t, []Status{OK, Fail}, []Status{rows[0].Status, rows[1].Status})
	require.Greater(t, float64(rows[0].Result.From["naive"]), 0.1)
	require.NotContains(t, rows[0].Versus, "naive", "a wrong result has no speed")

	withNaive(t, func(c *attention.Config) { c.HeadDim = 0 })
	rows, err = b.Group(context.Background(), p)
	require.NoError(t, err)
	require.Equal(t, Unsupported, rows[1].Status)
	require.Equal(t, OK, rows[0].Status)
}

// nanOp leaves a NaN in the last row of what an operation computes.
type nanOp struct{ *attention.Op }

func (o nanOp) Forward(s *vk.Stream, a attention.Args) error {
	err := o.Op.Forward(s, a)
	for i := range 4 {
		a.O.Host[(int(a.O.Offset)*4)+a.B*a.Hq*a.Sq*24*4-1-i] = 0xff
	}
	return err
}

func TestANaNInARowThatIsNotSampledIsFound(t *testing.T) {
	p := smallProblem(attention.F32)
	before := Naive
	t.Cleanup(func() { Naive = before })
	Naive = func(dev *vk.Device, cfg attention.Config) (Forwarder, error) {
		op, err := attention.New(dev, cfg)
		return nanOp{op}, err
	}
	d := newData(p, 1)
	g := &group{Bench: &Bench{CPU: "cpu"}, problem: p, compared: true, in: d}
	g.truth = &truth{problem: p, sample: []attention.Rows{{B: 0, H: 0, Rows: []int{0}}}}
	var err error
	g.truth.ref, _, err = attention.ReferenceSample(p.Config, d.args, g.truth.sample)
	require.NoError(t, err)
	g.truth.low = make([]float32, len(g.truth.ref))
	defer g.close()
	c, row := g.candidate(context.Background(), Spec{Tier: attention.TierCPU, Form: FormNaive})
	require.Nil(t, c)
	require.Equal(t, Fail, row.Status)
	require.Contains(t, row.Reason, "1 of 13440 elements are NaN")
	require.True(t, math.IsNaN(float64(row.Result.MaxAbs)) || row.Result.NaN == 1)
}

func TestFormsApply(t *testing.T) {
	plain := smallProblem(attention.F16)
	quantised, paged, lengths, empty := plain, plain, plain, plain
	quantised.Config.KV, paged.PageSize, lengths.Lengths, empty.Lengths = attention.KVInt8, 16, "3/4", "3/0,1/1"
	for _, c := range []struct {
		form Form
		p    Problem
		want bool
	}{
		{FormByMask, plain, true}, {FormByMask, quantised, false}, {FormContiguous, plain, false}, {FormContiguous, paged, true},
		{FormSeparate, plain, false}, {FormSeparate, lengths, true}, {FormSeparate, empty, false}, {FormCopy, plain, true}, {FormCUDARef, plain, false},
	} {
		require.Equal(t, c.want, c.form.applies(c.p, nil), "%v %v", c.form, c.p)
	}
	for _, f := range Forms {
		got, err := ParseForm(string(f.Form))
		require.NoError(t, err)
		require.Equal(t, f.Form, got)
		require.NotEmpty(t, f.About)
	}
}
