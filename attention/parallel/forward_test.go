package parallel

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"vkattn/attention"
	"vkattn/internal/accuracy"
	"vkattn/internal/problem"
	"vkattn/internal/testlevel"
)

// worlds are the numbers of ranks that tests run with.
var worlds = []int{1, 2, 3, 4, 8}

// Any split, mask and shape gives what one device computes, in every mode.
func TestForwardOverRanksIsAttention(t *testing.T) {
	testlevel.HostOnly(t)
	ringMemory(t, 1) // groups of heads
	for _, mode := range Modes() {
		for _, n := range worlds {
			t.Run(fmt.Sprintf("%v/%d", mode, n), func(t *testing.T) {
				rapid.Check(t, func(t *rapid.T) {
					groups := ranksOf(t, n)
					cfg, p := drawCall(t, mode, n)
					w := newWhole(cfg, p, 1)
					plan := w.forward(t, groups, rapid.Bool().Draw(t, "BSHD"))
					v, err := accuracy.Verify(problem.Config(cfg.Config), w.Args, accuracy.Options{})
					require.NoError(t, err)
					require.True(t, v.Pass(), "%v\n%v", plan, v)
				})
			})
		}
	}
}

// The same call gives the same bits however messages arrive, and those of one device on the CPU tier where
// no states are merged.
func TestForwardBitsDoNotDependOnArrival(t *testing.T) {
	testlevel.HostOnly(t)
	ringMemory(t, 1) // groups of heads
	sequenceMessages(t)
	synctest.Test(t, func(t *testing.T) { // delays take no time
		for _, x := range forms() {
			cfg := Config{Mode: x.mode, Schedule: x.schedule, Inner: 2}
			cfg.HeadDim, cfg.Causal = 16, attention.TopLeft
			p := Problem{Shape: attention.Shape{B: 2, Hq: 8, Hkv: 2, Sq: 150, Sk: 150}}
			var first *whole
			for seed := range uint64(6) {
				messageBytes = 1 // a message for each sequence
				if seed%4 < 2 {
					messageBytes = math.MaxInt32
				}
				transports, err := InProcess(4)
				require.NoError(t, err)
				groups := make([]*Group, len(transports))
				for r, transport := range transports {
					groups[r], err = NewGroup(&jittered{transport, rand.New(rand.NewPCG(seed, uint64(r)))}, GroupOptions{})
					require.NoError(t, err)
				}
				w := newWhole(cfg, p, 7)
				w.forward(t, groups, seed%2 == 0)
				if first == nil {
					first = w
				}
				require.True(t, bytes.Equal(first.O.Host, w.O.Host), x)
				require.True(t, bytes.Equal(first.LSE.Host, w.LSE.Host), x)
			}
			one := newWhole(cfg, p, 7)
			op, err := attention.New(nil, cfg.Config)
			require.NoError(t, err)
			require.NoError(t, op.Forward(nil, one.Args))
			if x.schedule != ScheduleOverlap {
				require.True(t, bytes.Equal(one.O.Host, first.O.Host), x)
				require.True(t, bytes.Equal(one.LSE.Host, first.LSE.Host), x)
			}
		}
	})
}

// A rank may leave LSE out. It is sent none, the others get theirs, and O has the same bits.
func TestLSEOnlyWhereAskedFor(t *testing.T) {
	testlevel.HostOnly(t)
	const ranks = 4
	for _, mode := range Modes() {
		for name, p := range map[string]Problem{
			"batch":  {Shape: attention.Shape{B: 2, Hq: 8, Hkv: 2, Sq: 40, Sk: 50}},
			"packed": {Shape: attention.Shape{B: 2, Hq: 8, Hkv: 4, Sq: 40, Sk: 50}, CuQ: []int{0, 30, 70}, CuK: []int{0, 50, 90}},
		} {
			cfg := Config{Config: attention.Config{HeadDim: 16, Causal: attention.BottomRight}, Mode: mode, Inner: 2}
			all := newWhole(cfg, p, 7)
			all.forward(t, ranksOf(t, ranks), false)
			for _, noLSE := range [][]bool{{true, true, true, true}, {false, true, true, false}, {true, true, false, false}} {
				w := newWhole(cfg, p, 7)
				garbage := bytes.Clone(w.LSE.Host)
				w.noLSE = noLSE
				plan := w.forward(t, ranksOf(t, ranks), true)
				require.True(t, bytes.Equal(all.O.Host, w.O.Host), "%v %s %v", mode, name, noLSE)
				rows, _ := p.extent()
				for r, no := range noLSE {
					want := all.LSE.Host
					if no {
						want = garbage
					}
					size := p.batch() * p.Hq * plan.Rows.Count(r) * 4
					mine, theirs := make([]byte, size), make([]byte, size)
					move(w.LSE.Host, mine, true, plan.Rows[r], p.batch(), p.Hq, rows, 4, false)
					move(want, theirs, true, plan.Rows[r], p.batch(), p.Hq, rows, 4, false)
					require.True(t, bytes.Equal(theirs, mine), "%v %s %v, rank %d", mode, name, noLSE, r)
				}
			}
		}
	}
}

// Messages of ulysses leave packed tensors and arrive in them, and Q and O stay where they arrive and leave: a
// rank allocates the rows of the others for its heads, and K and V once more in their order.
func TestUlyssesCopiesNoMessage(t *testing.T) {
	testlevel.HostOnly(t)
	sequenceMessages(t)
	const ranks, batch, hq, hkv, length, d, dv = 4, 2, 8, 4, 40, 16, 24
	for _, lse := range []bool{false, true} {
		cfg := Config{Config: attention.Config{HeadDim: d, HeadDimV: dv}, Mode: ModeUlysses}
		w := newWhole(cfg, Problem{Shape: attention.Shape{B: batch, Hq: hq, Hkv: hkv, Sq: length, Sk: length}}, 7)
		want := batch * (length - length/ranks) * (hq/ranks*(d+dv) + hkv/ranks*(d+dv)) * 2
		want += batch * length * hkv / ranks * (d + dv) * 2
		if lse {
			want += batch * (length - length/ranks) * hq / ranks * 4 // sent
			want += batch * length / ranks * hq / ranks * 4          // of its own rows: LSE of a call is packed
		} else {
			w.noLSE = slices.Repeat([]bool{true}, ranks)
		}
		plan := w.forward(t, ranksOf(t, ranks), false)
		for r, n := range w.allocated {
			require.EqualValues(t, want, n, "rank %d, LSE %v", r, lse)
			require.LessOrEqual(t, n, plan.Forward.ScratchBytes)
		}
	}
}
