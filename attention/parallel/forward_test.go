package parallel

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"vkattn/attention"
	"vkattn/attention/accuracy"
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
					groups := ranksOf(t, n, time.Minute)
					cfg, p := drawCall(t, mode, n)
					w := newWhole(cfg, p, 1)
					plan := w.forward(t, groups, rapid.Bool().Draw(t, "BSHD"))
					v, err := accuracy.Verify(cfg.Config, w.Args, accuracy.Options{})
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
}
