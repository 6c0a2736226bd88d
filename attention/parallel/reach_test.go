package parallel

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/accuracy"
	"vkattn/internal/problem"
	"vkattn/internal/testlevel"
	"vkattn/vk"
)

// kernelReach sets how many bytes of a tensor the kernels of a test reach.
func kernelReach(t *testing.T, bytes uint64) {
	before := mostReach
	mostReach = bytes
	t.Cleanup(func() { mostReach = before })
}

// Ranks take fewer heads at a time where kernels do not reach K and V of more, with the same bits. A call of
// which they do not reach one head is refused on every rank before tensors move.
func TestReachDividesHeads(t *testing.T) {
	testlevel.HostOnly(t)
	ringMemory(t, allHeads)
	const ranks, n, d = 4, 64, 16
	const key, gradient = 2 * n * d * 2, 2 * n * d * 4 // bytes of a key head of all ranks, batch 2
	const rows = (4 + 1) * n / ranks * d * 2           // from a head of the first sequence of Q to the end of it in the second
	s := attention.Shape{B: 2, Hq: 4, Hkv: 4, Sq: n, Sk: n}
	for _, x := range []struct {
		mode              Mode
		schedule          Schedule
		reach             uint64
		forward, backward int // groups of heads; 0: refused
	}{
		{ModeAllGather, ScheduleAuto, 4 * gradient, 1, 1},
		{ModeAllGather, ScheduleAuto, 4*gradient - 1, 1, 2},
		{ModeAllGather, ScheduleAuto, 4*key - 1, 2, 4},
		{ModeAllGather, ScheduleAuto, gradient - 1, 4, 0},
		{ModeAllGather, ScheduleAuto, key - 1, 0, 0},
		{ModeRing, ScheduleGather, 4*key - 1, 2, 1},
		{ModeRing, ScheduleGather, key, 4, 2},
		{ModeRing, ScheduleGather, key - 1, 0, 0},
		{ModeRing, ScheduleAuto, key - 1, 2, 4},     // overlap
		{ModeRing, ScheduleOverlap, rows, 2, 4},     // gradients take all sequences of Q at once
		{ModeRing, ScheduleOverlap, rows - 1, 2, 0}, // the forward pass takes one
		{ModeRing, ScheduleOverlap, n/ranks*d*4 - 1, 0, 0},
		{Mode2D, ScheduleGather, 2*key - 1, 2, 2},
		{ModeUlysses, ScheduleAuto, key, 1, 1},
		{ModeUlysses, ScheduleAuto, key - 1, 1, 0},
		{ModeUlysses, ScheduleAuto, key/2 - 1, 0, 0},
	} {
		t.Run(fmt.Sprintf("%v %v %d", x.mode, x.schedule, x.reach), func(t *testing.T) {
			cfg := Config{Mode: x.mode, Schedule: x.schedule, Inner: 2}
			cfg.HeadDim, cfg.Causal = d, attention.TopLeft
			w := newWhole(cfg, Problem{Shape: s}, 3)
			w.forward(t, ranksOf(t, ranks), false)
			_, list := w.run(t, ranksOf(t, ranks), false, false)
			require.NoError(t, errors.Join(list...))
			kernelReach(t, x.reach)
			got := newWhole(cfg, Problem{Shape: s}, 3)
			if x.forward == 0 {
				_, err := makePlan(&cfg, got.p, ranks, x.reach)
				require.ErrorIs(t, err, attention.ErrUnsupported)
				require.ErrorContains(t, err, fmt.Sprintf("a descriptor reaches %d", x.reach))
				return
			}
			groups := ranksOf(t, ranks)
			counters := make([]*counted, ranks)
			for r := range groups {
				counters[r] = &counted{Transport: groups[r].t}
				groups[r].t = counters[r]
			}
			plan := got.forward(t, groups, false)
			require.Equal(t, x.forward, plan.Forward.HeadGroups, plan.String())
			if x.schedule != ScheduleAuto || x.mode != ModeRing { // which gathers where it may
				require.True(t, bytes.Equal(w.O.Host, got.O.Host))
				require.True(t, bytes.Equal(w.LSE.Host, got.LSE.Host))
			}
			for _, c := range counters {
				c.sends.Store(0)
			}
			_, list = got.run(t, groups, false, false)
			for r, err := range list {
				if x.backward != 0 {
					require.NoError(t, err)
					continue
				}
				require.ErrorIs(t, err, attention.ErrUnsupported, "rank %d", r)
				require.ErrorContains(t, err, "a descriptor reaches")
				require.Zero(t, counters[r].sends.Load())
				require.NoError(t, groups[r].usable())
			}
			if x.backward == 0 {
				for _, err := range onAll(groups, func(_ int, g *Group) error { return g.Barrier(context.Background()) }) {
					require.NoError(t, err, "the group goes on")
				}
				return
			}
			require.Equal(t, x.backward, plan.Backward.HeadGroups, plan.String())
			v, err := accuracy.VerifyBackward(problem.Config(cfg.Config), got.BackwardArgs, accuracy.Options{})
			require.NoError(t, err)
			require.True(t, v.Pass(), "%v", v)
			for r := range groups {
				require.LessOrEqual(t, got.allocated[r], got.planned(t, ranks).backwardScratch(r))
			}
		})
	}
}

// lessReach tells the other ranks that the kernels of this one reach fewer bytes.
type lessReach struct {
	Transport
	reach uint64
}

func (l *lessReach) Gather(ctx context.Context, mine []byte) ([][]byte, error) {
	if len(mine) == headerBytes {
		mine = slices.Clone(mine)
		binary.LittleEndian.PutUint64(mine[8*headerReach:], l.reach)
	}
	return l.Transport.Gather(ctx, mine)
}

// Where the kernels of one rank reach less than those of others, all ranks take as many heads as it does.
func TestRanksOfDifferentReach(t *testing.T) {
	testlevel.HostOnly(t)
	ringMemory(t, allHeads)
	const ranks = 3
	cfg := Config{Config: attention.Config{HeadDim: 16}, Mode: ModeAllGather}
	p := Problem{Shape: attention.Shape{B: 1, Hq: 4, Hkv: 4, Sq: 30, Sk: 30}}
	all := newWhole(cfg, p, 3)
	all.forward(t, ranksOf(t, ranks), false)
	w := newWhole(cfg, p, 3)
	groups := ranksOf(t, ranks)
	counters := make([]*counted, ranks)
	for r := range groups {
		counters[r] = &counted{Transport: groups[r].t}
		groups[r].t = &lessReach{counters[r], everywhere}
	}
	groups[1].t.(*lessReach).reach = 30 * 16 * 2 // a head
	w.forward(t, groups, false)
	require.True(t, bytes.Equal(all.O.Host, w.O.Host))
	for _, c := range counters {
		require.EqualValues(t, 4*2*(ranks-1), c.sends.Load())
	}
}

// Ranks on a device whose descriptors do not hold K of all heads gather fewer, and refuse what they cannot reach
// before tensors move.
func TestReachOfDescriptorsOnADevice(t *testing.T) {
	const ranks = 2
	dev, streams := openRanks(t, ranks)
	reach := dev.Caps().Limits.MaxWindow()
	const most = 256 << 20
	if reach > most {
		t.Skipf("a descriptor reaches %d bytes", reach)
	}
	ringMemory(t, 1<<40)
	const d = 256
	keys := int(reach/(2*d)/2)/64*64 + 64 // of one head: more than half of a descriptor
	for _, x := range []struct {
		heads, batch int
		mode         Mode
		groups       int // 0: refused
	}{{1, 2, ModeAllGather, 0}, {2, 1, ModeAllGather, 2}, {2, 1, ModeRing, 2}} {
		cfg := Config{Mode: x.mode, Schedule: ScheduleGather}
		cfg.HeadDim, cfg.HeadDimV, cfg.Tier, cfg.Access = d, 8, attention.TierScalar, attention.AccessDescriptors
		w := newWhole(cfg, Problem{Shape: attention.Shape{B: x.batch, Hq: x.heads, Hkv: x.heads, Sq: 2, Sk: keys}}, 5)
		groups := ranksOf(t, ranks)
		op, err := New(groups[0], attention.On(dev), cfg)
		require.NoError(t, err)
		plan, err := op.Plan(w.p)
		require.NoError(t, op.Close())
		if x.groups == 0 {
			require.ErrorIs(t, err, attention.ErrUnsupported)
			require.ErrorIs(t, err, vk.ErrUnsupported)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, x.groups, plan.Forward.HeadGroups)
		w.isAttentionOnDevices(t, dev, streams, groups, nil)
	}
}
