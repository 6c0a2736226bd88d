package parallel

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"vkattn/attention"
	"vkattn/internal/testlevel"
	"vkattn/vk"
)

// A ring that gathers gives the bits of an all-gather, whatever the call, and the memory that gathered heads
// may have. On the CPU tier they are those of one device, but for windows that end before a row.
func TestARingThatGathersGivesTheBitsOfAnAllGather(t *testing.T) {
	testlevel.HostOnly(t)
	for _, mode := range []Mode{ModeRing, Mode2D} {
		for _, n := range []int{2, 3, 4, 8} {
			t.Run(fmt.Sprintf("%v/%d", mode, n), func(t *testing.T) {
				groups := ranksOf(t, n)
				rapid.Check(t, func(rt *rapid.T) {
					cfg, p := drawCall(rt, mode, n)
					cfg.Schedule = ScheduleGather
					ringMemory(t, rapid.SampledFrom([]uint64{1, 20_000, allHeads}).Draw(rt, "memory"))
					w, one := newWhole(cfg, p, 7), newWhole(cfg, p, 7)
					plan := w.forward(rt, groups, rapid.Bool().Draw(rt, "BSHD"))
					if plan.Outer > 1 {
						require.Equal(rt, ScheduleGather, plan.Schedule)
						require.Equal(rt, "asked for", plan.ScheduleReason)
					}
					same := func(x *whole, name string) {
						require.True(rt, bytes.Equal(x.O.Host, w.O.Host), "O of %v: %s", p, name)
						require.True(rt, bytes.Equal(x.LSE.Host, w.LSE.Host), "LSE of %v: %s", p, name)
					}
					if mode == ModeRing {
						x := newWhole(cfg, p, 7)
						x.cfg.Mode = ModeAllGather
						x.forward(rt, groups, false)
						same(x, "allgather")
					}
					if cfg.Window.Given() && cfg.Window.Left() >= 0 {
						return // the tier's blocks of keys begin where those of a call do
					}
					op, err := attention.New(nil, cfg.Config)
					require.NoError(rt, err)
					require.NoError(rt, op.Forward(nil, one.Args))
					same(one, "one device")
				})
			})
		}
	}
}

// A gather moves all heads and sequences of a span of keys in one message, or each alone where rows are not
// whole words. A rank without keys sends nothing.
func TestMessagesOfAGather(t *testing.T) {
	testlevel.HostOnly(t)
	p := Problem{Shape: attention.Shape{B: 2, Hq: 6, Hkv: 3, Sq: 24, Sk: 24}}
	for _, x := range []struct {
		name   string
		dim    int // of V; that of K is 8
		keys   Split
		causal attention.Causal
		want   []int32 // messages that each rank sends
	}{
		{"contiguous", 8, nil, attention.CausalNone, []int32{2, 2}},
		{"zigzag, in which the chunks of rank 1 are adjacent", 8, nil, attention.TopLeft, []int32{4, 2}},
		{"three ranks", 8, nil, attention.TopLeft, []int32{8, 8, 4}},
		{"odd rows of V", 5, nil, attention.TopLeft, []int32{2 + 2*6, 1 + 6}},
		{"no keys", 8, Split{{{0, 24}}, nil}, attention.CausalNone, []int32{2, 0}},
		{"spans by turns", 8, Split{{{0, 3}, {6, 4}, {12, 12}}, {{3, 3}, {10, 2}}}, attention.CausalNone, []int32{6, 4}},
	} {
		for _, mode := range []Mode{ModeRing, ModeAllGather} {
			t.Run(fmt.Sprintf("%s, %v", x.name, mode), func(t *testing.T) {
				ringMemory(t, allHeads)
				cfg := Config{Mode: mode, Schedule: ScheduleGather}
				cfg.HeadDim, cfg.HeadDimV, cfg.Causal = 8, x.dim, x.causal
				p := p
				p.Keys = x.keys
				if x.keys != nil {
					p.Rows = Contiguous(24, 2)
				}
				groups := ranksOf(t, len(x.want))
				counters := make([]*counted, len(x.want))
				for r := range groups {
					counters[r] = &counted{Transport: groups[r].t}
					groups[r].t = counters[r]
				}
				newWhole(cfg, p, 3).forward(t, groups, false)
				for r, c := range counters {
					require.Equal(t, x.want[r], c.sends.Load(), "rank %d", r)
				}
			})
		}
	}
}

// The plan gathers where ranks share a host and memory allows, and says why.
func TestPlanChoosesTheSchedule(t *testing.T) {
	testlevel.HostOnly(t)
	plan := func(ranks int, cfg Config, s attention.Shape) Plan {
		if cfg.Mode == ModeAuto {
			cfg.Mode = ModeRing
		}
		cfg.HeadDim, cfg.Causal = 128, attention.TopLeft
		op, err := New(ranksOf(t, ranks)[0], nil, cfg)
		require.NoError(t, err)
		p, err := op.Plan(Problem{Shape: s})
		require.NoError(t, err)
		return p
	}
	s := attention.Shape{B: 1, Hq: 32, Hkv: 8, Sq: 1 << 16, Sk: 1 << 16}
	for _, x := range []struct {
		name   string
		ranks  int
		keys   int
		cfg    Config
		hkv    int
		want   Schedule
		why    string
		rounds int
	}{
		{"one host", 2, 1 << 16, Config{}, 8, ScheduleGather, "exposed", 1},
		{"one host of eight", 8, 1 << 16, Config{}, 8, ScheduleGather, "exposed", 1},
		{"two hosts", 16, 1 << 16, Config{Machine: Machine{RanksPerHost: 8}}, 8, ScheduleOverlap, "crosses hosts", 15},
		{"a ring of hosts", 4, 1 << 16, Config{Mode: Mode2D, Machine: Machine{RanksPerHost: 2}}, 8, ScheduleOverlap, "crosses hosts", 6},
		{"one key head of all ranks exceeds two blocks", 64, 1 << 20, Config{}, 8, ScheduleOverlap, "need more memory", 4 * 63},
		{"and so do float32 states", 8, 1 << 20, Config{}, 1, ScheduleGather, "exposed", 1},
		{"messages that overlap the computation cost nothing", 2, 1 << 16, Config{Machine: Machine{Turn: 1e-9, OverlapCost: 1e-9}}, 8, ScheduleOverlap, "exposed", 8},
		{"a call for each row, which overlap does not take", 2, 1 << 10, Config{Order: OrderStriped}, 8, ScheduleOverlap, "512 calls of attention", 1},
		{"as asked", 2, 1 << 16, Config{Schedule: ScheduleOverlap}, 8, ScheduleOverlap, "asked for", 8},
		{"as asked, across hosts", 16, 1 << 16, Config{Schedule: ScheduleGather, Machine: Machine{RanksPerHost: 8}}, 8, ScheduleGather, "asked for", 1},
	} {
		t.Run(x.name, func(t *testing.T) {
			s := s
			s.Hkv, s.Sq, s.Sk = x.hkv, x.keys, x.keys
			p := plan(x.ranks, x.cfg, s)
			require.Equal(t, x.want, p.Schedule, "%v", p)
			require.Contains(t, p.ScheduleReason, x.why)
			require.Equal(t, x.rounds, p.Forward.Rounds, "%v", p)
			require.Contains(t, p.String(), "schedule "+x.want.String()+": ")
		})
	}
	none := plan(2, Config{Mode: ModeUlysses}, s)
	require.Equal(t, ScheduleAuto, none.Schedule)
	require.NotContains(t, none.String(), "schedule")
	cfg := Config{Config: attention.Config{HeadDim: 8}, Schedule: 9}
	_, err := New(ranksOf(t, 2)[0], nil, cfg)
	require.ErrorIs(t, err, attention.ErrInvalid)
	require.Contains(t, Config{Schedule: ScheduleGather}.String(), "gather")
}

// Schedules read what they print.
func TestNamesOfSchedulesAndOrders(t *testing.T) {
	for _, want := range []Schedule{ScheduleAuto, ScheduleOverlap, ScheduleGather} {
		text, err := want.MarshalText()
		require.NoError(t, err)
		var got Schedule
		require.NoError(t, got.UnmarshalText(text))
		require.Equal(t, want, got)
	}
	_, err := ParseSchedule("later")
	require.ErrorIs(t, err, attention.ErrInvalid)
	for _, want := range []Order{OrderAuto, OrderContiguous, OrderZigzag, OrderStriped} {
		text, err := want.MarshalText()
		require.NoError(t, err)
		var got Order
		require.NoError(t, got.UnmarshalText(text))
		require.Equal(t, want, got)
	}
	_, err = ParseOrder("random")
	require.ErrorIs(t, err, attention.ErrInvalid)
}

// A rank that dies, hangs or fails in any exchange of a gather is named on every other.
func TestFaultsInExchangesOfAGather(t *testing.T) {
	testlevel.HostOnly(t)
	ringMemory(t, 1)
	const ranks, bad = 4, 1
	for name, x := range rankFaults {
		for _, lse := range []bool{true, false} {
			w := faultyCall(form{ModeRing, ScheduleGather})
			exchanges := w.planned(t, ranks).ringHeads() / w.planned(t, ranks).gatherHeads(lse)
			require.Equal(t, map[bool]int{true: 4, false: 2}[lse], exchanges)
			for at := range int32(exchanges) {
				t.Run(fmt.Sprintf("%s in exchange %d, LSE %v", name, at, lse), func(t *testing.T) {
					t.Parallel()
					synctest.Test(t, func(t *testing.T) {
						w := faultyCall(form{ModeRing, ScheduleGather})
						w.noLSE = slices.Repeat([]bool{!lse}, ranks)
						groups := ranksOf(t, ranks)
						g := groups[bad]
						ended := g.t.(*inProcess).ended
						g.t = &faulty{Transport: g.t, at: at, fail: func() error { return x.fail(g, ended) }}
						_, list := w.run(t, groups, false, true)
						requireNamed(t, list, bad, x.want)
					})
				})
			}
		}
	}
}

// watched tells whether its exchanges have been waited for, and calls started after each start.
type watched struct {
	Transport
	started func()
	waits   atomic.Int32 // exchanges that were not waited for
}

func (w *watched) Exchange(sends, receives []Transfer) (Pending, error) {
	p, err := w.Transport.Exchange(sends, receives)
	if err != nil {
		return nil, err
	}
	w.waits.Add(1)
	w.started()
	return waitedFor{p, w}, nil
}

type waitedFor struct {
	Pending
	w *watched
}

func (p waitedFor) Wait(ctx context.Context) error {
	p.w.waits.Add(-1)
	return p.Pending.Wait(ctx)
}

// A rank that fails while blocks arrive waits for them before it returns: nothing touches the tensors
// any more.
func TestErrorWhileBlocksArrive(t *testing.T) {
	ringMemory(t, 1) // two exchanges with LSE: the other rank cannot be done when this one fails in the first
	const ranks, bad = 2, 1
	dev, streams := openRanks(t, ranks)
	cfg := Config{Mode: ModeRing, Schedule: ScheduleGather}
	cfg.HeadDim, cfg.Tier = 16, attention.TierScalar
	w := newWhole(cfg, Problem{Shape: attention.Shape{B: 1, Hq: 2, Hkv: 2, Sq: 40, Sk: 40}}, 5)
	groups := ranksOf(t, ranks)
	for r, err := range w.onDevices(t, dev, streams, groups, movable, func(r int, x *deviceRank) error {
		watch := &watched{Transport: x.g.t, started: func() {}}
		if r == bad {
			watch.started = func() { _ = x.op.Close() }
		}
		x.g.t = watch
		err := x.op.Forward(context.Background(), attention.OnStream(x.s), x.Args)
		if n := watch.waits.Load(); n != 0 {
			return fmt.Errorf("%d exchanges under way after %w", n, err)
		}
		return err
	}) {
		require.ErrorIs(t, err, vk.ErrClosed)
		require.ErrorContains(t, err, fmt.Sprintf("rank %d: ", bad))
		require.NotContains(t, err.Error(), "under way", "rank %d", r)
	}
}

// The sizes of equal groups are the divisors of the heads.
func TestGroupSizes(t *testing.T) {
	testlevel.HostOnly(t)
	for heads := 1; heads < 200; heads++ {
		list := groupSizes(heads)
		slices.Reverse(list)
		require.Equal(t, divisors(heads), list)
	}
}

// A plan of as many heads as a Shape may have takes milliseconds, not hours.
func TestPlanOfVeryManyHeads(t *testing.T) {
	testlevel.HostOnly(t)
	for _, heads := range []int{attention.MaxLength, 1 << 29, 735134400} { // 735134400 has 1344 divisors
		for _, mode := range []Mode{ModeRing, Mode2D} {
			cfg := Config{Config: attention.Config{HeadDim: 128}, Mode: mode, Inner: 2}
			if mode == Mode2D && heads%2 != 0 {
				continue
			}
			_, err := makePlan(&cfg, Problem{Shape: attention.Shape{B: 1, Hq: heads, Hkv: heads, Sq: 1000, Sk: 1000}}, 64, everywhere)
			require.NoError(t, err, "%v of %d heads", mode, heads)
		}
	}
}
