package parallel

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"vkattn/attention"
	"vkattn/internal/accuracy"
	"vkattn/internal/problem"
	"vkattn/internal/testlevel"
	"vkattn/vk"
)

// striped deals rows to ranks in turn, some at a time: with one, the order of Striped Attention.
func striped(n, ranks, some int) Split {
	s := make(Split, ranks)
	for i := 0; i < n; i += some {
		s[i/some%ranks] = append(s[i/some%ranks], Span{i, min(some, n-i)})
	}
	return s
}

// stripedProblem has striped rows and keys of one sequence.
func stripedProblem(s attention.Shape, ranks, some int) Problem {
	return Problem{Shape: s, Rows: striped(s.Sq, ranks, some), Keys: striped(s.Sk, ranks, some)}
}

// Places are those of every row of the spans, and progressions are the places.
func TestPlacesOfSpans(t *testing.T) {
	testlevel.HostOnly(t)
	rapid.Check(t, func(t *rapid.T) {
		n, ranks := rapid.IntRange(1, 60).Draw(t, "rows"), rapid.IntRange(1, 4).Draw(t, "ranks")
		split := drawSplit(t, "split", n, ranks)
		if rapid.Bool().Draw(t, "striped") {
			split = striped(n, ranks, rapid.IntRange(1, 3).Draw(t, "some"))
		}
		all := split.joined(0, rapid.IntRange(1, ranks).Draw(t, "joined"))
		at := map[int]int{} // row of the sequence: row among all
		for _, s := range all {
			for i := range s.N {
				at[s.First+i] = len(at)
			}
		}
		var want, got [][2]int
		for _, s := range split[0] {
			for i := range s.N {
				want = append(want, [2]int{len(want), at[s.First+i]})
			}
		}
		for _, p := range progressions(places(split[0], all)) {
			for k := range p.count {
				for i := range p.n {
					got = append(got, [2]int{p.at + k*p.n + i, p.to + k*p.step + i})
				}
			}
		}
		slices.SortFunc(got, func(a, b [2]int) int { return a[0] - b[0] })
		require.Equal(t, want, got, "%v of %v", split[0], all)
	})
}

// A striped split takes a constant number of copies, attention calls and messages, however long it is.
func TestCopiesAndCallsOfAStripedSplit(t *testing.T) {
	testlevel.HostOnly(t)
	const n, ranks = 1 << 16, 4
	for _, some := range []int{1, 2, 16} {
		split := striped(n, ranks, some)
		for _, all := range [][]Span{{{0, n}}, split.joined(0, 2)} {
			for batch, want := range map[int]int{1: 1, 3: min(3, some)} {
				v := viewOf(attention.Tensor{}, attention.F16, batch, 8, countOf(all), 128)
				part := viewOf(attention.Tensor{}, attention.F16, batch, 8, split.Count(1), 128)
				require.Len(t, placing(v, part, split[1], all), want, "%d at a time, batch %d", some, batch)
				require.Len(t, taking(part, v, split[1], all), want, "%d at a time, batch %d", some, batch)
			}
		}
	}
	p := stripedProblem(attention.Shape{B: 1, Hq: 32, Hkv: 8, Sq: n, Sk: n}, ranks, 1)
	for _, x := range []struct {
		mode     Mode
		asked    Schedule
		causal   attention.Causal
		schedule Schedule
		calls    int // of the largest step, or of a gather; 0: one over all rows
		refused  string
	}{
		{ModeRing, ScheduleAuto, attention.CausalNone, ScheduleGather, 1, ""},
		{ModeRing, ScheduleOverlap, attention.CausalNone, ScheduleOverlap, 1, ""},
		{ModeRing, ScheduleAuto, attention.TopLeft, ScheduleOverlap, 1, ""},
		{ModeRing, ScheduleGather, attention.TopLeft, 0, 0, "more than 1024 calls of attention over the keys of all ranks"},
		{ModeAllGather, ScheduleAuto, attention.CausalNone, ScheduleAuto, 1, ""},
		{ModeAllGather, ScheduleAuto, attention.TopLeft, 0, 0, "more than 1024 calls of attention over the keys of all ranks"},
		{ModeUlysses, ScheduleAuto, attention.CausalNone, ScheduleAuto, 0, ""},
		{ModeUlysses, ScheduleAuto, attention.TopLeft, ScheduleAuto, 0, ""},
		{Mode2D, ScheduleOverlap, attention.CausalNone, ScheduleOverlap, 1, ""},
		{Mode2D, ScheduleOverlap, attention.TopLeft, 0, 0, "more than 1024 calls of attention over a step"},
	} {
		t.Run(fmt.Sprintf("%v %v %v", x.mode, x.asked, x.causal), func(t *testing.T) {
			cfg := Config{Mode: x.mode, Schedule: x.asked, Inner: 2}
			cfg.HeadDim, cfg.Causal = 128, x.causal
			plan, err := makePlan(&cfg, p, ranks, everywhere)
			if x.refused != "" {
				require.ErrorIs(t, err, attention.ErrUnsupported)
				require.ErrorContains(t, err, x.refused)
				l := newLayout(&cfg, p, x.mode, ranks, map[bool]int{true: 2, false: 1}[x.mode == Mode2D], everywhere)
				require.Equal(t, n/ranks, max(l.stepCalls(1), l.gatherCalls()))
				return
			}
			require.NoError(t, err)
			require.Equal(t, x.schedule, plan.Schedule, plan.ScheduleReason)
			if plan.outer > 1 {
				calls := plan.calls
				if plan.gathers {
					calls = max(calls, plan.gatherCalls())
				}
				require.Equal(t, x.calls, calls)
				return
			}
			require.Equal(t, x.causal == attention.CausalNone, plan.members)
			for _, rows := range plan.layout.rows {
				require.Len(t, plan.wholeRuns(rows), map[bool]int{true: 1, false: n / ranks}[plan.members])
			}
			require.Len(t, plan.runs(0, 0), 1)
		})
	}
	cfg := Config{Config: attention.Config{HeadDim: 128, Causal: attention.TopLeft}, Mode: Mode2D, Inner: 2}
	irregular := p // tokens of ranks at random
	irregular.Rows = make(Split, ranks)
	for rng, i := rand.New(rand.NewPCG(1, 2)), 0; i < n; i++ {
		irregular.Rows.add(rng.IntN(ranks), Span{i, 1})
	}
	irregular.Keys = irregular.Rows
	ring := Config{Config: attention.Config{HeadDim: 128}, Mode: ModeRing}
	plan, err := makePlan(&ring, irregular, ranks, everywhere)
	require.NoError(t, err)
	require.Equal(t, ScheduleOverlap, plan.Schedule)
	require.Contains(t, plan.ScheduleReason, "copies")
	alternate := p // each group has every second token
	alternate.Rows = Split{p.Rows[0], p.Rows[2], p.Rows[1], p.Rows[3]}
	alternate.Keys = alternate.Rows
	plan, err = makePlan(&cfg, alternate, ranks, everywhere)
	require.NoError(t, err)
	require.Equal(t, 1, plan.calls)
	cfg.Mode = ModeAuto
	plan, err = makePlan(&cfg, p, ranks, everywhere)
	require.NoError(t, err)
	require.Contains(t, []Mode{ModeRing, ModeUlysses}, plan.Mode)
	require.Contains(t, plan.String(), "not allgather: its rows in this Split")
}

// Messages of a striped split do not grow with its length, in any mode.
func TestMessagesOfAStripedSplit(t *testing.T) {
	testlevel.HostOnly(t)
	ringMemory(t, allHeads)
	for _, x := range forms() {
		for _, dim := range []int{8, 5} { // of V: whole words, and not
			for _, ranks := range []int{2, 4} {
				for _, forward := range []bool{true, false} {
					var first []int32
					for _, n := range []int{200, 400} {
						cfg := Config{Mode: x.mode, Schedule: x.schedule, Inner: 2}
						cfg.HeadDim, cfg.HeadDimV = 8, dim
						w := newWhole(cfg, stripedProblem(attention.Shape{B: 2, Hq: 4, Hkv: 4, Sq: n, Sk: n}, ranks, 1), 3)
						w.forward(t, ranksOf(t, ranks), false)
						groups := ranksOf(t, ranks)
						var sends []int32
						counters := make([]*counted, ranks)
						for r := range groups {
							counters[r] = &counted{Transport: groups[r].t}
							groups[r].t = counters[r]
						}
						_, list := w.run(t, groups, false, forward)
						for r, c := range counters {
							require.NoError(t, list[r])
							sends = append(sends, c.sends.Load())
						}
						if first == nil {
							first = sends
						}
						require.Equal(t, first, sends, "%v, %d ranks, forward %v, V of %d", x, ranks, forward, dim)
						if x.mode == ModeAllGather || x.schedule == ScheduleGather && x.mode == ModeRing {
							want := int32(2 * (ranks - 1)) // K and V for each other rank
							switch {
							case forward:
							case x.mode == ModeAllGather:
								want *= 2 // and dK and dV
							default:
								want = int32(2*(ranks-1) + 2*ranks)
							}
							require.Equal(t, slices.Repeat([]int32{want}, ranks), sends, "%v, %d ranks, forward %v, V of %d", x, ranks, forward, dim)
						}
					}
				}
			}
		}
	}
}

// Short spans move as one message, long ones in their places, and both ends decide alike.
func TestSpansThatAreMessages(t *testing.T) {
	testlevel.HostOnly(t)
	const ranks = 2
	for _, x := range []struct {
		some, spans int
		message     int64
		want        bool
	}{{1, placedMessages, 512 << 10, false}, {1, placedMessages + 1, 512 << 10, true}, {64, placedMessages + 1, 4096, true}, {64, placedMessages + 1, 1, false}} {
		before := messageBytes
		messageBytes = x.message
		n := ranks * x.some * x.spans
		cfg := Config{Config: attention.Config{HeadDim: 8}, Mode: ModeAllGather}
		w := newWhole(cfg, stripedProblem(attention.Shape{B: 1, Hq: 2, Hkv: 2, Sq: n, Sk: n}, ranks, x.some), 3)
		planned := w.planned(t, ranks)
		for g := range ranks {
			require.Equal(t, x.want, planned.packs(g, 2, 8), "%+v", x)
		}
		w.forward(t, ranksOf(t, ranks), true)
		for r, n := range w.allocated {
			require.LessOrEqual(t, n, planned.forwardScratch(r, true), "%+v", x)
		}
		v, err := accuracy.Verify(problem.Config(cfg.Config), w.Args, accuracy.Options{})
		require.NoError(t, err)
		require.True(t, v.Pass(), "%+v: %v", x, v)
		messageBytes = before
	}
}

// stripedProblems are calls with a striped split: whole words and odd rows, a batch, grouped heads, packed
// sequences.
func stripedProblems(ranks int) (list []Problem) {
	for _, some := range []int{1, 2} {
		list = append(list, stripedProblem(attention.Shape{B: 1, Hq: 8, Hkv: 4, Sq: 18 * ranks, Sk: 18*ranks + 3}, ranks, some),
			stripedProblem(attention.Shape{B: 2, Hq: 4, Hkv: 4, Sq: 18 * ranks, Sk: 35 * ranks}, ranks, some))
	}
	n := 20 * ranks
	packed := Problem{Shape: attention.Shape{B: 3, Hq: 4, Hkv: 4, Sq: n, Sk: n}, CuQ: []int{0, n / 2, n/2 + 3, n}, CuK: []int{0, n / 2, n/2 + 3, n}}
	packed.Rows, packed.Keys = striped(n, ranks, 1), striped(n, ranks, 1)
	return append(list, packed)
}

// A striped split gives attention and its gradients in every mode, in the memory that the plan tells.
func TestStripedSplitIsAttention(t *testing.T) {
	testlevel.HostOnly(t)
	for _, memory := range []uint64{1, allHeads} { // groups of heads, or none
		ringMemory(t, memory)
		for _, x := range forms() {
			for _, ranks := range []int{2, 4} {
				for i, p := range stripedProblems(ranks) {
					for _, causal := range []attention.Causal{attention.CausalNone, attention.TopLeft, attention.BottomRight} {
						if first := memory == 1 && causal != attention.TopLeft && (ranks == 4 || i == 0); !testlevel.Share(first) {
							continue
						}
						cfg := Config{Mode: x.mode, Schedule: x.schedule, Inner: 2}
						cfg.HeadDim, cfg.HeadDimV, cfg.Causal = 16, []int{16, 7, 24}[i%3], causal
						name := fmt.Sprintf("%v, %d ranks, problem %d, %v", x, ranks, i, causal)
						w := newWhole(cfg, p, 1)
						for _, forward := range []bool{true, false} {
							plan, list := w.run(t, ranksOf(t, ranks), i%2 == 0, forward)
							planned := w.planned(t, ranks)
							for r, err := range list {
								require.NoError(t, err, name)
								told := planned.forwardScratch(r, true)
								if !forward {
									told = planned.backwardScratch(r)
								}
								require.LessOrEqual(t, w.allocated[r], told, "%s, forward %v: %v", name, forward, plan)
							}
						}
						v, err := accuracy.Verify(problem.Config(cfg.Config), w.Args, accuracy.Options{})
						require.NoError(t, err)
						require.True(t, v.Pass(), "%s: %v", name, v)
						back, err := accuracy.VerifyBackward(problem.Config(cfg.Config), w.BackwardArgs, accuracy.Options{})
						require.NoError(t, err)
						require.True(t, back.Pass(), "%s: %v", name, back)
					}
				}
			}
		}
	}
}

// Ranks on a device compute a striped split in every mode.
func TestStripedSplitOnADevice(t *testing.T) {
	ringMemory(t, allHeads)
	dev, streams := openRanks(t, 4)
	for _, x := range forms() {
		for _, ranks := range []int{2, 4} {
			for _, layout := range [][2]int{{16, 1}, {7, 1}, {16, 3}, {7, 3}} { // V of whole words is copied by a kernel, others by copies of buffers
				dim, some := layout[0], layout[1]
				if ranks == 4 && (dim == 16) != (some == 1) {
					continue // two ranks have both
				}
				if first := ranks == 2 && some == 1 && (dim == 16 || x.mode == ModeAllGather); !testlevel.Share(first) {
					continue
				}
				causal := attention.CausalNone // a few calls
				if x.schedule == ScheduleOverlap && x.mode == ModeRing || x.mode == ModeUlysses {
					causal = attention.TopLeft
				}
				t.Run(fmt.Sprintf("%v %v, %d ranks, V of %d, %d at a time", x.mode, x.schedule, ranks, dim, some), func(t *testing.T) {
					cfg := Config{Mode: x.mode, Schedule: x.schedule, Inner: 2}
					cfg.HeadDim, cfg.HeadDimV, cfg.Causal, cfg.Tier = 16, dim, causal, attention.TierScalar
					w := newWhole(cfg, stripedProblem(attention.Shape{B: 2, Hq: 4, Hkv: 4, Sq: 20 * ranks, Sk: 20 * ranks * some}, ranks, some), 5)
					groups := ranksOf(t, ranks)
					w.isAttentionOnDevices(t, dev, streams[:ranks], groups, nil)
					for r, err := range backwardOnDevice(t, dev, streams[:ranks], groups, w) {
						require.NoError(t, err, "rank %d", r)
					}
					back, err := accuracy.VerifyBackward(problem.Config(cfg.Config), w.BackwardArgs, accuracy.Options{})
					require.NoError(t, err)
					require.True(t, back.Pass(), "%v", back)
				})
			}
		}
	}
}

// Dispatches of a striped split do not grow with its length.
func TestDispatchesOfAStripedSplit(t *testing.T) {
	ringMemory(t, allHeads)
	const ranks = 4
	dev, streams := openRanks(t, ranks)
	if dev.Caps().Limits.TimestampValidBits == 0 {
		t.Skip("the queue has no timestamps, which an observer needs")
	}
	for _, x := range forms() {
		var first []int
		for _, n := range []int{80, 240} {
			cfg := Config{Mode: x.mode, Schedule: x.schedule, Inner: 2}
			cfg.HeadDim, cfg.Tier = 16, attention.TierScalar
			w := newWhole(cfg, stripedProblem(attention.Shape{B: 1, Hq: 4, Hkv: 4, Sq: n, Sk: n}, ranks, 1), 5)
			seen := make([]int, ranks)
			for r, err := range w.onDevices(t, dev, streams, ranksOf(t, ranks), movable, func(r int, d *deviceRank) error {
				if err := d.s.Observe(func(vk.Dispatched) { seen[r]++ }); err != nil {
					return err
				}
				err := d.op.Forward(context.Background(), attention.OnStream(d.s), d.Args)
				return errors.Join(err, d.s.Observe(nil))
			}) {
				require.NoError(t, err, "rank %d", r)
			}
			if first == nil {
				first = seen
			}
			require.Equal(t, first, seen, "%v", x)
			require.Positive(t, slices.Min(seen))
		}
	}
}
