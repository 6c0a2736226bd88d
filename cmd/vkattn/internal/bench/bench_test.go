package bench

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/vk"
)

// measured are the rows of a problem.
func measured(t *testing.T, b *Bench, p Problem) []*Row {
	t.Helper()
	rows, err := b.Group(context.Background(), p)
	require.NoError(t, err)
	return rows
}

func smallProblem(dtype attention.DType) Problem {
	return Problem{Shape: attention.Shape{B: 2, Hq: 4, Hkv: 2, Sq: 70, Sk: 50},
		Config: attention.Config{HeadDim: 16, HeadDimV: 24, DType: dtype, Causal: attention.BottomRight}}
}

func TestOneWrongRowIsFound(t *testing.T) {
	for _, dtype := range attention.DTypes() {
		p := smallProblem(dtype)
		in := newData(p, 3)
		truth, err := newTruth(in, 3)
		require.NoError(t, err)
		op, err := attention.New(nil, p.Config)
		require.NoError(t, err)
		runner := onCPU(t, in)
		compute := func() []byte {
			out, err := runner.results(context.Background(), &work{op: op})
			require.NoError(t, err)
			return out["O"]
		}
		checked, err := in.judge(truth, compute(), nil)
		require.NoError(t, err)
		require.Equal(t, 2*4*70, checked.Rows, "a small problem is compared whole")
		row := 24 * dtype.Size()
		for name, spoil := range map[string]func(o []byte){
			"left as it was": func(o []byte) {
				for i := range o[:row] {
					o[len(o)-row+i] = 0xff
				}
			},
			"zero":             func(o []byte) { clear(o[len(o)-row:]) },
			"of another row":   func(o []byte) { copy(o[60*row:61*row], o[61*row:62*row]) },
			"of another batch": func(o []byte) { copy(o[len(o)/2:], o[:len(o)/2]) },
		} {
			o := compute()
			spoil(o)
			checked, err := in.judge(truth, o, nil)
			require.Error(t, err, "%v, %s", dtype, name)
			require.NotZero(t, checked.Rows)
		}
	}
}

// onCPU is a runner of tier cpu.
func onCPU(t *testing.T, d *data) *runner {
	t.Helper()
	l, err := newRunner(context.Background(), nil, d, hostRotation, false)
	require.NoError(t, err)
	return l
}

// fakeRunner answers without computing.
type fakeRunner struct {
	each  time.Duration
	err   error
	calls []int
}

func (l *fakeRunner) run(_ context.Context, n int) ([]time.Duration, error) {
	l.calls = append(l.calls, n)
	out := make([]time.Duration, n)
	for i := range out {
		out[i] = l.each
	}
	return out, l.err
}

func timeFake(b *Bench, each time.Duration) (*candidate, *fakeRunner) {
	l := &fakeRunner{each: each}
	c := &candidate{row: &Row{}, run: l.run, each: each}
	g := &group{Bench: b, problem: smallProblem(attention.F16)}
	for open := true; open; open = !g.enough(c) {
		if err := g.batch(context.Background(), c); err != nil {
			panic(err)
		}
	}
	g.finish(c)
	return c, l
}

func TestHowOftenARowIsTimed(t *testing.T) {
	for _, c := range []struct {
		name  string
		bench Bench
		each  time.Duration
		runs  int
	}{
		{"by default", Bench{}, time.Millisecond, DefaultRepeats},
		{"as asked", Bench{Timing: Timing{Repeats: 7}}, time.Millisecond, 7},
		{"as asked though slow", Bench{Timing: Timing{Repeats: 7}}, 5 * time.Second, 7},
		{"slow", Bench{}, 5 * time.Second, slowRepeats},
		{"rather slow", Bench{}, 500 * time.Millisecond, 4},
		{"until the time is up", Bench{Timing: Timing{Repeats: 2, MinTime: time.Second}}, 100 * time.Millisecond, 10},
		{"slow, with a time", Bench{Timing: Timing{MinTime: 20 * time.Second}}, 5 * time.Second, 4},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, runner := timeFake(&c.bench, c.each)
			require.Len(t, got.row.Samples, c.runs)
			require.Equal(t, OK, got.row.Status)
			require.InDelta(t, float64(c.each)/1e6, got.row.Ms.Median, 1e-9)
			for _, n := range runner.calls {
				require.LessOrEqual(t, time.Duration(n-1)*c.each, batchTime, "a submission must stay short")
			}
			if c.bench.MinTime == 0 {
				require.GreaterOrEqual(t, len(runner.calls), min(leastTurns, c.runs)-1, "spread over the time of the others")
			}
		})
	}
}

func TestTheDeviceThatFailsEndsTheGroup(t *testing.T) {
	g := &group{Bench: &Bench{}, problem: smallProblem(attention.F16)}
	for err, want := range map[error]Status{
		vk.ErrOutOfMemory:                   OOM,
		vk.ErrDeviceLost:                    Broken,
		attention.ErrUnsupported:            Unsupported,
		&attention.ShapeError{Field: "Hkv"}: Unsupported,
	} {
		g.lost = nil
		row := g.stop(&Row{}, err)
		require.Equal(t, want, row.Status)
		require.NotEmpty(t, row.Reason)
		require.Equal(t, errors.Is(err, vk.ErrDeviceLost), g.lost != nil)
	}
	runner := func(err error) *candidate {
		return &candidate{row: &Row{}, run: (&fakeRunner{each: time.Second, err: err}).run}
	}
	c, waiting := runner(vk.ErrDeviceLost), runner(nil)
	require.ErrorIs(t, g.time(context.Background(), []*candidate{c, waiting}), vk.ErrDeviceLost)
	require.Equal(t, []Status{Broken, Broken}, []Status{c.row.Status, waiting.row.Status})
	g.lost = nil
	c, waiting = runner(vk.ErrOutOfMemory), runner(nil)
	require.NoError(t, g.time(context.Background(), []*candidate{c, waiting}))
	require.Equal(t, []Status{OOM, OK}, []Status{c.row.Status, waiting.row.Status})
}

func TestAGroupOnTheCPU(t *testing.T) {
	done := 0
	b := &Bench{CPU: "cpu", Label: "none", Seed: 1, Timing: Timing{Repeats: 3}, Done: func() { done++ },
		Specs: Specs([]attention.Tier{attention.TierScalar, attention.TierAuto, attention.TierCPU}, nil, nil, nil, nil, nil)}
	rows := measured(t, b, smallProblem(attention.F32))
	require.Equal(t, 3, done)
	require.Equal(t, []Status{Unsupported, OK, OK}, []Status{rows[0].Status, rows[1].Status, rows[2].Status})
	require.Contains(t, rows[0].Reason, "Vulkan device")
	require.Equal(t, "cpu", rows[1].Tier, "the tier that ran, not the one asked for")
	for _, r := range rows[1:] {
		require.Len(t, r.Samples, 3)
		require.Greater(t, r.TFLOPs, 0.0)
		require.Less(t, float64(r.Checked.MaxError), 1e-3)
		require.False(t, math.IsNaN(float64(r.Checked.NMSE)))
		require.NotZero(t, r.Memory)
	}

	p := smallProblem(attention.F32)
	p.Shape.Hkv = 3
	rows = measured(t, b, p)
	for _, r := range rows {
		require.Equal(t, Unsupported, r.Status)
		require.Contains(t, r.Reason, "divisor")
	}

	stopped, cancel := context.WithCancel(context.Background())
	cancel()
	rows, err := b.Group(stopped, smallProblem(attention.F32))
	require.ErrorIs(t, err, context.Canceled)
	for _, r := range rows {
		require.NotContains(t, []Status{OK, Fail, Broken}, r.Status, "interrupted is neither good nor bad")
	}
}
