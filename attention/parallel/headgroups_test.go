package parallel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/testlevel"
)

// ringMemory sets the memory up to which rings of a test take all heads at once.
func ringMemory(t *testing.T, bytes uint64) {
	before := leastRingMemory
	leastRingMemory = bytes
	t.Cleanup(func() { leastRingMemory = before })
}

const allHeads = 1 << 40 // for ringMemory

// A head has the same bits in a group of its own as among all heads, forward and backward.
func TestHeadGroupsGiveTheSameBits(t *testing.T) {
	testlevel.HostOnly(t)
	for _, x := range []struct {
		mode  Mode
		ranks int
		p     Problem
	}{
		{ModeRing, 2, Problem{Shape: attention.Shape{B: 1, Hq: 6, Hkv: 3, Sq: 50, Sk: 70}}},
		{ModeRing, 3, Problem{Shape: attention.Shape{B: 2, Hq: 8, Hkv: 4, Sq: 50, Sk: 30}}}, // rows without keys
		{ModeRing, 3, Problem{Shape: attention.Shape{B: 2, Hq: 6, Hkv: 3, Sq: 50, Sk: 50}, CuQ: []int{0, 30, 80}, CuK: []int{0, 50, 90}}},
		{Mode2D, 4, Problem{Shape: attention.Shape{B: 2, Hq: 8, Hkv: 4, Sq: 50, Sk: 70}}},
	} {
		for _, causal := range []attention.Causal{attention.CausalNone, attention.BottomRight} {
			for _, schedule := range []Schedule{ScheduleOverlap, ScheduleGather} {
				t.Run(fmt.Sprintf("%v %v %d %v %v", x.mode, schedule, x.ranks, x.p.Shape, causal), func(t *testing.T) {
					cfg := Config{Mode: x.mode, Schedule: schedule, Inner: 2}
					cfg.HeadDim, cfg.Causal = 8, causal
					groups := ranksOf(t, x.ranks)
					var all, some *whole
					for _, forward := range []bool{true, false} {
						var taken [2]uint64
						for i, w := range []**whole{&all, &some} {
							ringMemory(t, []uint64{allHeads, 1}[i])
							if *w == nil {
								*w = newWhole(cfg, x.p, 2)
							}
							plan, list := (*w).run(t, groups, true, forward)
							for r, err := range list {
								require.NoError(t, err)
								taken[i] = max(taken[i], (*w).allocated[r])
							}
							require.Equal(t, i == 1, (*w).planned(t, x.ranks).headGroupsWithLSE() > 1, "%v", plan)
							require.Equal(t, i == 1, plan.Backward.HeadGroups > 1, "%v", plan)
						}
						require.Less(t, taken[1], taken[0])
					}
					for i, pair := range [][2]attention.Tensor{{all.O, some.O}, {all.LSE, some.LSE}, {all.DQ, some.DQ}, {all.DK, some.DK}, {all.DV, some.DV}} {
						require.True(t, bytes.Equal(pair[0].Host, pair[1].Host), "tensor %d", i)
					}
				})
			}
		}
	}
}

// headGroupsWithLSE is the number of groups of heads of a forward call in which a rank asks for LSE.
func (l *layout) headGroupsWithLSE() int {
	if l.gathers {
		return l.headGroups(l.gatherHeads(true))
	}
	return l.headGroups(l.forwardHeads)
}

// Ranks gather fewer heads at a time if one of them asks for LSE and both do not fit in the memory of a ring.
// The bits of O are the same.
func TestLSEDividesAGather(t *testing.T) {
	testlevel.HostOnly(t)
	ringMemory(t, 1)
	for _, mode := range []Mode{ModeRing, Mode2D} {
		for _, causal := range []attention.Causal{attention.CausalNone, attention.TopLeft} {
			cfg := Config{Mode: mode, Schedule: ScheduleGather, Inner: 2}
			cfg.HeadDim, cfg.Causal = 8, causal
			p := Problem{Shape: attention.Shape{B: 2, Hq: 8, Hkv: 4, Sq: 64, Sk: 64}}
			ranks := map[Mode]int{ModeRing: 2, Mode2D: 4}[mode]
			var none *whole
			for _, asks := range []string{"none", "one", "all"} {
				w := newWhole(cfg, p, 3)
				w.noLSE = make([]bool, ranks)
				for r := range w.noLSE {
					w.noLSE[r] = asks == "none" || asks == "one" && r > 0
				}
				groups := ranksOf(t, ranks)
				counters := make([]*faulty, ranks)
				for r := range groups {
					counters[r] = &faulty{Transport: groups[r].t, at: -1}
					groups[r].t = counters[r]
				}
				plan := w.forward(t, groups, false)
				planned := w.planned(t, ranks)
				require.Equal(t, 1, plan.Forward.HeadGroups)
				if none == nil {
					none = w
				}
				require.True(t, bytes.Equal(none.O.Host, w.O.Host), "LSE for %s", asks)
				for r := range groups {
					exchanges := planned.headGroups(planned.gatherHeads(w.asksForLSE(plan)))
					require.Equal(t, asks != "none", exchanges > 1)
					if mode == Mode2D {
						exchanges += 2
					}
					require.EqualValues(t, exchanges, counters[r].n.Load(), "LSE for %s, rank %d", asks, r)
					require.LessOrEqual(t, w.allocated[r], planned.forwardScratch(r, w.asksForLSE(plan)))
				}
			}
		}
	}
}

// With equal parts, and tensors of which every group of heads is copied, a ring allocates what the
// plan tells.
func TestRingAllocatesWhatThePlanTells(t *testing.T) {
	testlevel.HostOnly(t)
	for _, ranks := range []int{2, 4} {
		for _, causal := range []attention.Causal{attention.CausalNone, attention.TopLeft} {
			for i := range 4 {
				least, schedule := []uint64{1, allHeads}[i%2], []Schedule{ScheduleOverlap, ScheduleGather}[i/2]
				ringMemory(t, least)
				cfg := Config{Mode: ModeRing, Schedule: schedule}
				cfg.HeadDim, cfg.HeadDimV, cfg.Causal = 8, 12, causal
				w := newWhole(cfg, Problem{Shape: attention.Shape{B: 2, Hq: 8, Hkv: 4, Sq: 64, Sk: 64}}, 3)
				groups := ranksOf(t, ranks)
				for _, x := range []struct{ forward, lse bool }{{true, true}, {true, false}, {false, true}} {
					w.noLSE = slices.Repeat([]bool{!x.lse}, ranks)
					plan, list := w.run(t, groups, true, x.forward)
					planned := w.planned(t, ranks)
					require.Equal(t, least == 1, planned.headGroupsWithLSE() > 1)
					var most uint64
					for r := range groups {
						require.NoError(t, list[r])
						told := planned.forwardScratch(r, x.lse)
						if !x.forward {
							told = planned.backwardScratch(r)
						}
						most = max(most, told)
						if least == allHeads && x.lse && (!x.forward || schedule == ScheduleGather && len(planned.wholeRuns(planned.groupRows[r])) == 1) {
							told -= uint64(2*8*64/ranks) * 4 // LSE of all rows and heads needs no copy
						}
						require.Equal(t, told, w.allocated[r], "%d ranks, %v, %v, %+v, rank %d: %v", ranks, causal, schedule, x, r, plan)
					}
					switch {
					case !x.forward:
						require.Equal(t, most, plan.Backward.ScratchBytes)
					case !x.lse:
						require.Equal(t, most, plan.Forward.ScratchBytes)
					}
				}
			}
		}
	}
}

// A ring takes at most two blocks of K and V in addition to its share of the tensors, or
// leastRingMemory for short sequences over many ranks.
func TestRingMemoryIsWithinTwoBlocks(t *testing.T) {
	testlevel.HostOnly(t)
	for _, ranks := range []int{2, 4, 8, 64} {
		for keys := 1 << 16; keys <= 1<<20; keys *= 2 {
			for _, causal := range []attention.Causal{attention.CausalNone, attention.TopLeft} {
				cfg := Config{Config: attention.Config{HeadDim: 128, Causal: causal}, Mode: ModeRing}
				plan, err := makePlan(&cfg, Problem{Shape: attention.Shape{B: 1, Hq: 32, Hkv: 8, Sq: keys, Sk: keys}}, ranks, everywhere)
				require.NoError(t, err)
				block := uint64(keys/ranks) * 8 * 2 * 128 * 2
				most := 2 * block
				if ranks > 2 { // exactly two blocks on two ranks, whatever the length
					most = max(most, leastRingMemory)
				}
				require.LessOrEqual(t, plan.Forward.ScratchBytes, most, "%d ranks, %d keys: %v", ranks, keys, plan)
				for r := range ranks {
					require.LessOrEqual(t, plan.forwardScratch(r, true), most, "with LSE, %d ranks, %d keys: %v", ranks, keys, plan)
				}
				require.LessOrEqual(t, plan.Backward.ScratchBytes, most, "%d ranks, %d keys: %v", ranks, keys, plan)
				t.Logf("%v %d ranks, %d keys: %d groups %d MiB, %d groups %d MiB, two blocks %d MiB", causal, ranks, keys, plan.Forward.HeadGroups,
					plan.Forward.ScratchBytes>>20, plan.Backward.HeadGroups, plan.Backward.ScratchBytes>>20, 2*block>>20)
			}
		}
	}
}

// A rank that fails in the last group of heads is named on every other.
func TestFaultInALaterGroupOfHeads(t *testing.T) {
	testlevel.HostOnly(t)
	ringMemory(t, 1)
	boom := errors.New("boom")
	const ranks, bad = 4, 2
	for _, forward := range []bool{true, false} {
		w := faultyCall(form{ModeRing, ScheduleOverlap})
		groups := ranksOf(t, ranks)
		at := int32(3 * (ranks - 1)) // the first exchange of the last group
		if !forward {
			at = 3 * (2*ranks - 1)
		}
		groups[bad].t = &faulty{Transport: groups[bad].t, at: at, fail: func() error { return boom }}
		plan, list := w.run(t, groups, false, forward)
		require.Equal(t, 4, plan.Forward.HeadGroups)
		require.Equal(t, 4, plan.Backward.HeadGroups)
		for r, err := range list {
			var named *RankError
			require.ErrorAs(t, err, &named, "rank %d, forward %v", r, forward)
			require.Equal(t, bad, named.Rank)
			require.ErrorIs(t, err, boom)
			require.Error(t, groups[r].Barrier(context.Background()))
		}
	}
}

// On a device blocks arrive while it computes the group before, or it gathers them. It reads each buffer before
// the next block overwrites it.
func TestHeadGroupsOnADevice(t *testing.T) {
	ringMemory(t, 1)
	for _, test := range []struct {
		ranks    int
		schedule Schedule
	}{{2, ScheduleOverlap}, {3, ScheduleOverlap}, {2, ScheduleGather}, {3, ScheduleGather}} {
		ranks := test.ranks
		dev, streams := openRanks(t, ranks)
		cfg := Config{Mode: ModeRing, Schedule: test.schedule}
		cfg.HeadDim, cfg.Tier, cfg.Causal = 32, attention.TierScalar, attention.TopLeft
		w := newWhole(cfg, Problem{Shape: attention.Shape{B: 1, Hq: 4, Hkv: 4, Sq: 64 * ranks, Sk: 64 * ranks}}, 5)
		groups := ranksOf(t, ranks)
		w.isAttentionOnDevices(t, dev, streams, groups, func(r int, x *deviceRank) error {
			planned := w.planned(t, ranks)
			if planned.headGroupsWithLSE() < 2 || x.plan.Schedule != test.schedule || x.op.allocated > planned.forwardScratch(r, true) {
				return fmt.Errorf("allocated %d bytes: %v", x.op.allocated, x.plan)
			}
			return nil
		})
	}
}
