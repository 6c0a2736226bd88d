package parallel

import (
	"context"
	"fmt"
	"math"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"vkattn/attention"
	"vkattn/internal/testlevel"
)

// counted counts the bytes that a rank sends and receives, and its sends.
type counted struct {
	Transport
	sent, received atomic.Int64
	sends          atomic.Int32
}

func (c *counted) Exchange(sends, receives []Transfer) (Pending, error) {
	c.sends.Add(int32(len(sends)))
	for i := range sends {
		c.sent.Add(sends[i].Bytes)
	}
	for i := range receives {
		c.received.Add(receives[i].Bytes)
	}
	return c.Transport.Exchange(sends, receives)
}

// The plan tells the bytes that the busiest rank sends, and at least the memory it allocates.
func TestPlanTellsBytesAndMemory(t *testing.T) {
	testlevel.HostOnly(t)
	ringMemory(t, 1) // groups of heads
	for _, mode := range Modes() {
		for _, n := range []int{1, 2, 4, 6} {
			t.Run(fmt.Sprintf("%v/%d", mode, n), func(t *testing.T) {
				transports, err := InProcess(n)
				require.NoError(t, err)
				groups, counters := make([]*Group, n), make([]*counted, n)
				for r := range groups {
					counters[r] = &counted{Transport: transports[r]}
					groups[r], err = NewGroup(counters[r], GroupOptions{Timeout: patience})
					require.NoError(t, err)
				}
				rapid.Check(t, func(t *rapid.T) {
					cfg, p := drawCall(t, mode, n)
					noLSE := make([]bool, n)
					asked := rapid.SampledFrom([]string{"by all", "by none", "by some"}).Draw(t, "LSE is asked for")
					for r := range noLSE {
						noLSE[r] = asked == "by none" || asked == "by some" && rapid.Bool().Draw(t, "no LSE")
					}
					for _, forward := range []bool{true, false} {
						w := newWhole(cfg, p, 1)
						w.noLSE = noLSE
						plan, list := w.run(t, groups, rapid.Bool().Draw(t, "BSHD"), forward)
						cost := plan.Forward
						if !forward {
							cost = plan.Backward
						}
						var most int64
						for r, c := range counters {
							require.NoError(t, list[r])
							most = max(most, c.sent.Swap(0))
						}
						switch {
						case !forward || asked == "by none":
							require.EqualValues(t, cost.SentBytes, most, "forward %v: %v", forward, plan)
						case asked == "by all":
							require.EqualValues(t, cost.SentBytes+cost.LSEBytes, most, "%v", plan)
						default:
							require.LessOrEqual(t, uint64(most), cost.SentBytes+cost.LSEBytes, "%v", plan)
						}
						planned := w.planned(t, n)
						for r := range groups {
							told := planned.backwardScratch(r)
							if forward {
								told = planned.forwardScratch(r, w.asksForLSE(plan))
							}
							require.GreaterOrEqual(t, told, w.allocated[r], "forward %v, rank %d: %v", forward, r, plan)
							if !forward || !w.asksForLSE(plan) {
								require.GreaterOrEqual(t, cost.ScratchBytes, told, "forward %v, rank %d: %v", forward, r, plan)
							}
						}
					}
				})
			})
		}
	}
}

// Without a wish the plan takes the least estimate and says why not the others.
func TestPlanChoosesByEstimate(t *testing.T) {
	testlevel.HostOnly(t)
	for _, x := range []struct {
		name  string
		ranks int
		cfg   Config
		shape attention.Shape
		want  Mode
	}{
		{"long sequences: estimates within 2 %, and the ring takes the least memory", 8, Config{}, attention.Shape{B: 1, Hq: 32, Hkv: 8, Sq: 1 << 20, Sk: 1 << 20}, ModeRing},
		{"few keys: one exchange of K and V", 8, Config{}, attention.Shape{B: 1, Hq: 33, Hkv: 1, Sq: 1 << 16, Sk: 512}, ModeAllGather},
		{"many sequences of medium length: heads", 8, Config{}, attention.Shape{B: 16, Hq: 32, Hkv: 32, Sq: 2048, Sk: 2048}, ModeUlysses},
		{"several hosts: heads within, ring across", 16, Config{Machine: Machine{RanksPerHost: 8}}, attention.Shape{B: 1, Hq: 32, Hkv: 32, Sq: 1 << 15, Sk: 1 << 15}, Mode2D},
	} {
		t.Run(x.name, func(t *testing.T) {
			x.cfg.HeadDim, x.cfg.Causal = 128, attention.TopLeft
			op, err := New(ranksOf(t, x.ranks)[0], nil, x.cfg)
			require.NoError(t, err)
			p, err := op.Plan(Problem{Shape: x.shape})
			require.NoError(t, err)
			require.Equal(t, x.want, p.Mode, "%v", p)
			require.NotEmpty(t, p.Rejected)
			require.True(t, p.Zigzag)
			if x.shape.Sq == x.shape.Sk && x.want == ModeRing {
				require.InDelta(t, 1, p.Balance, 1e-9)
			}
			require.Contains(t, p.String(), x.want.String())
		})
	}
}

// What a mode cannot compute is refused by its name, and nothing else is chosen.
func TestModesRefuseByName(t *testing.T) {
	testlevel.HostOnly(t)
	plan := func(cfg Config, s attention.Shape, ranks int) error {
		cfg.HeadDim = 32
		op, err := New(ranksOf(t, ranks)[0], nil, cfg)
		if err != nil {
			return err
		}
		_, err = op.Plan(Problem{Shape: s})
		return err
	}
	s := attention.Shape{B: 1, Hq: 6, Hkv: 2, Sq: 8, Sk: 8}
	for _, x := range []struct {
		cfg   Config
		ranks int
		mode  Mode
	}{
		{Config{Mode: ModeUlysses}, 4, ModeUlysses}, // 6 heads over 4 ranks
		{Config{Mode: ModeUlysses}, 3, ModeUlysses}, // 2 key heads over 3 ranks
		{Config{Mode: Mode2D, Inner: 4}, 6, Mode2D},
		{Config{Mode: Mode2D, Inner: 3}, 6, Mode2D},
		{Config{Mode: ModeRing, Config: attention.Config{KeyType: attention.KVInt8, ValueType: attention.KVInt8}}, 2, ModeRing},
		{Config{Config: attention.Config{Dropout: 0.5}}, 2, ModeAuto},
		{Config{Config: attention.Config{F32O: true}}, 2, ModeAuto},
	} {
		err := plan(x.cfg, s, x.ranks)
		var refused *ModeError
		require.ErrorAs(t, err, &refused)
		require.ErrorIs(t, err, attention.ErrUnsupported)
		require.Equal(t, x.mode, refused.Mode, "%v", err)
	}
	require.NoError(t, plan(Config{}, s, 4))
	long := s
	long.Sk = MaxStriped + 1
	require.ErrorContains(t, plan(Config{Mode: ModeRing, Order: OrderStriped}, long, 2), "mode ring: a striped split of 16777217 rows or keys")
	require.NoError(t, plan(Config{}, long, 2))
	require.ErrorIs(t, plan(Config{Config: attention.Config{Tier: attention.TierScalar}}, s, 2), attention.ErrUnsupported)
	require.ErrorIs(t, plan(Config{Mode: 99}, s, 2), attention.ErrInvalid)
	require.ErrorIs(t, plan(Config{Order: 99}, s, 2), attention.ErrInvalid)
	require.ErrorIs(t, plan(Config{Machine: Machine{Link: -1}}, s, 2), attention.ErrInvalid)
	require.ErrorIs(t, plan(Config{}, attention.Shape{}, 2), attention.ErrInvalid)
}

func TestProblemsAreCheckedByField(t *testing.T) {
	testlevel.HostOnly(t)
	cfg := Config{Config: attention.Config{HeadDim: 8}}
	op, err := New(ranksOf(t, 2)[0], nil, cfg)
	require.NoError(t, err)
	s := attention.Shape{B: 2, Hq: 2, Sq: 5, Sk: 5}
	for field, p := range map[string]Problem{
		"CuQ and CuK": {Shape: s, CuQ: []int{0, 3, 5}},
		"CuQ":         {Shape: s, CuQ: []int{0, 3}, CuK: []int{0, 3, 5}},
		"CuK":         {Shape: s, CuQ: []int{0, 3, 5}, CuK: []int{0, 6, 7}},
		"Rows":        {Shape: s, Rows: Contiguous(5, 3)},
		"Keys":        {Shape: s, Keys: Contiguous(4, 2)},
		"Sq":          {Shape: attention.Shape{B: 1, Hq: 1, Sk: 1}},
	} {
		_, err := op.Plan(p)
		var wrong *attention.ShapeError
		require.ErrorAs(t, err, &wrong, field)
		require.Equal(t, field, wrong.Field)
	}
	require.NoError(t, op.Close())
	_, err = op.Plan(Problem{Shape: s})
	require.ErrorIs(t, err, errClosed)
	require.ErrorIs(t, op.Forward(context.Background(), nil, Args{}), errClosed)
}

// Numbers of the largest problems saturate.
func TestPlanOfTheLargestProblems(t *testing.T) {
	testlevel.HostOnly(t)
	const n = attention.MaxLength
	for _, window := range []attention.Window{{}, attention.WindowOf(n/2, 0)} {
		for _, mode := range Modes() {
			cfg := Config{Config: attention.Config{HeadDim: 128, Window: window}, Mode: mode, Inner: 2}
			if window.Given() {
				cfg.Align = attention.TopLeft
			}
			p, err := makePlan(&cfg, Problem{Shape: attention.Shape{B: 1, Hq: 1 << 12, Hkv: 8, Sq: n, Sk: n}}, 8, everywhere)
			require.NoError(t, err)
			require.InDelta(t, 0.75, p.Balance, 0.2501, "%v", p)
			require.Greater(t, p.Cells, uint64(1)<<60, "%v", p)
			require.False(t, math.IsInf(p.Forward.Seconds, 0) || math.IsNaN(p.Forward.Seconds), "%v", p)
		}
	}
}

// A rank asks its tier for a call before the ranks agree, for packed sequences too.
func TestRankShapeOfPackedSequences(t *testing.T) {
	testlevel.HostOnly(t)
	cfg := Config{Config: attention.Config{HeadDim: 8}}
	p := Problem{Shape: attention.Shape{B: 3, Hq: 4, Hkv: 2, Sq: 9, Sk: 30}, CuQ: []int{0, 9, 10, 16}, CuK: []int{0, 30, 31, 40}}
	l := newLayout(&cfg, p, ModeRing, 2, 1, everywhere)
	shape, ok := l.rankShape(1)
	require.True(t, ok)
	require.Equal(t, attention.Shape{B: 1, Hq: 4, Hkv: 2, Sq: 8, Sk: 20}, shape)
}

// Splits of sizes that no call can have are empty, whatever their numbers.
func TestSplitsOfImpossibleSizes(t *testing.T) {
	for _, split := range []func(n, ranks int) Split{Contiguous, Zigzag, Striped} {
		for _, x := range [][2]int{{-1, 2}, {10, 0}, {10, -1}, {10, math.MaxInt}, {10, MaxRanks + 1}, {math.MaxInt, 3}, {attention.MaxLength + 1, 2}} {
			require.Empty(t, split(x[0], x[1]), "%v", x)
		}
		for _, ranks := range []int{1, 3, MaxRanks} {
			if s := split(attention.MaxLength, ranks); s != nil { // Striped takes fewer
				require.NoError(t, s.check("", attention.MaxLength, ranks))
			}
		}
	}
}

// The caller may change the Plan that it has: calls have their own.
func TestPlanIsTheCallers(t *testing.T) {
	testlevel.HostOnly(t)
	groups := ranksOf(t, 2)
	cfg := Config{Config: attention.Config{HeadDim: 8}, Mode: ModeRing}
	op, err := New(groups[0], nil, cfg)
	require.NoError(t, err)
	p := Problem{Shape: attention.Shape{B: 1, Hq: 2, Hkv: 2, Sq: 24, Sk: 24}}
	plan, err := op.Plan(p)
	require.NoError(t, err)
	want := plan.Rows.clone()
	plan.Rows[0][0].N, plan.Keys[1][0].First = 1000, 1000
	again, err := op.Plan(p)
	require.NoError(t, err)
	require.Equal(t, want, again.Rows)
	require.Equal(t, want, again.Keys)
	auto := cfg
	auto.Mode = ModeAuto
	op, err = New(groups[0], nil, auto)
	require.NoError(t, err)
	plan, err = op.Plan(p)
	require.NoError(t, err)
	require.NotEmpty(t, plan.Rejected)
	plan.Rejected[0].Reason = ""
	again, err = op.Plan(p)
	require.NoError(t, err)
	require.NotEmpty(t, again.Rejected[0].Reason)
}
