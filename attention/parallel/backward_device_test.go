package parallel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/accuracy"
	"vkattn/internal/problem"
	"vkattn/internal/testlevel"
	"vkattn/vk"
)

// backwardOnDevice computes the gradients of w over the ranks of a device, twice, and checks that
// the bits repeat and that the plan told the memory.
func backwardOnDevice(t *testing.T, dev *vk.Device, streams []*vk.Stream, groups []*Group, w *whole) []error {
	parts := make([]*part, len(groups))
	list := onAll(groups, func(r int, g *Group) error {
		op, err := New(g, attention.On(dev), w.cfg)
		if err != nil {
			return err
		}
		defer op.Close()
		plan, err := op.Plan(w.p)
		if err != nil {
			return err
		}
		x := w.of(&plan, r, r%2 == 0)
		d := &onDevice{t: t, s: streams[r]}
		for _, tensor := range []*attention.Tensor{&x.Q, &x.K, &x.V, &x.O, &x.LSE, &x.DO, &x.DQ, &x.DK, &x.DV} {
			d.tensor(tensor, vk.MemoryKind(r%3))
		}
		var first [][]byte
		for n := range 2 {
			if err := op.Backward(context.Background(), attention.OnStream(streams[r]), x.BackwardArgs); err != nil {
				return err
			}
			if told := plan.Backward.ScratchBytes; op.allocated > told {
				return fmt.Errorf("allocated %d bytes, the plan told %d", op.allocated, told)
			}
			var bits [][]byte
			for _, g := range []attention.Tensor{x.DQ, x.DK, x.DV} {
				if !g.Given() {
					continue
				}
				b := make([]byte, g.Buffer.Size())
				if err := streams[r].Download(context.Background(), b, g.Buffer, 0); err != nil {
					return err
				}
				bits = append(bits, b)
			}
			for i := range first {
				if !bytes.Equal(first[i], bits[i]) {
					return fmt.Errorf("call %d gives other bits", n)
				}
			}
			first = bits
		}
		parts[r] = x
		return d.collect()
	})
	for _, x := range parts {
		if x != nil {
			x.collect(false)
		}
	}
	return list
}

// Ranks on a device compute the gradients in every mode, with the same bits in every call.
func TestBackwardOnADevice(t *testing.T) {
	sequenceMessages(t)
	ringMemory(t, 1) // groups of heads
	dev, streams := openRanks(t, 4)
	grouped := Problem{Shape: attention.Shape{B: 2, Hq: 4, Hkv: 2, Sq: 45, Sk: 60}}
	packed := Problem{Shape: attention.Shape{B: 3, Hq: 4, Hkv: 2, Sq: 40, Sk: 40}, CuQ: []int{0, 40, 43, 70}, CuK: []int{0, 40, 43, 70}}
	windowed := func(cfg Config) Config { cfg.Window = attention.WindowOf(9, 0); return cfg }
	large := func(cfg Config, dtype attention.DType, tier attention.Tier) Config { // |LSE| beyond which a call over all keys corrects it
		cfg.DType, cfg.Tier, cfg.Scale = dtype, tier, attention.ScaleOf(60)
		if dtype == attention.F32 {
			cfg.Scale = attention.ScaleOf(4)
		}
		return cfg
	}
	config := func(causal attention.Causal) (cfg Config) {
		cfg.HeadDim, cfg.Causal, cfg.Tier, cfg.Inner = 16, causal, attention.TierScalar, 2
		return cfg
	}
	for _, x := range []struct {
		name  string
		mode  Mode
		ranks int
		cfg   Config
		p     Problem
		first bool // in the first share of the table
	}{
		{"batch", ModeRing, 3, config(attention.BottomRight), grouped, true},
		{"shared key heads", ModeUlysses, 4, config(attention.BottomRight), grouped, true},
		{"packed", ModeAllGather, 2, config(attention.TopLeft), packed, true},
		{"heads and ring", Mode2D, 4, config(attention.BottomRight), grouped, true},
		{"large scores", ModeRing, 2, large(config(attention.BottomRight), attention.F32, attention.TierScalar), grouped, true},
		{"large scores", ModeRing, 3, large(config(attention.CausalNone), attention.F16, attention.TierCoopMat), grouped, false},
		{"large scores", Mode2D, 4, large(config(attention.TopLeft), attention.F16, attention.TierCoopMat2), grouped, false},
		{"packed", ModeRing, 4, config(attention.TopLeft), packed, false},
		{"window", ModeRing, 2, windowed(config(attention.TopLeft)), grouped, false},
		{"window", ModeAllGather, 3, windowed(config(attention.BottomRight)), grouped, false},
		{"no mask", ModeRing, 2, config(attention.CausalNone), grouped, false},
		{"few rows", ModeRing, 4, config(attention.BottomRight), Problem{Shape: attention.Shape{B: 1, Hq: 4, Hkv: 4, Sq: 3, Sk: 2}}, false},
		{"rows without keys", ModeAllGather, 4, config(attention.BottomRight), Problem{Shape: attention.Shape{B: 1, Hq: 4, Hkv: 4, Sq: 30, Sk: 12}}, false},
	} {
		if !testlevel.Share(x.first) {
			continue
		}
		t.Run(fmt.Sprintf("%v %d %s", x.mode, x.ranks, x.name), func(t *testing.T) {
			x.cfg.Mode = x.mode
			w := newWhole(x.cfg, x.p, 5)
			host := *w
			host.cfg.Tier = attention.TierAuto
			host.forward(t, ranksOf(t, x.ranks), false) // O and LSE
			for r, err := range backwardOnDevice(t, dev, streams, ranksOf(t, x.ranks), w) {
				if x.cfg.Tier != attention.TierScalar && errors.Is(err, attention.ErrUnsupported) {
					t.Skip(err) // the device lacks the tier
				}
				require.NoError(t, err, "rank %d", r)
			}
			v, err := accuracy.VerifyBackward(problem.Config(x.cfg.Config), w.BackwardArgs, accuracy.Options{})
			require.NoError(t, err)
			require.True(t, v.Pass(), "%v", v)
		})
	}
}

// A rank that fails during Backward on a device ends the call on all ranks, and is named.
func TestBackwardFaultOnADevice(t *testing.T) {
	const ranks, bad = 2, 1
	boom := errors.New("boom")
	dev, streams := openRanks(t, ranks)
	w := faultyCall(form{mode: ModeRing})
	w.cfg.Tier = attention.TierScalar
	groups := ranksOf(t, ranks)
	groups[bad].t = &faulty{Transport: groups[bad].t, at: 2, fail: func() error { return boom }}
	for r, err := range backwardOnDevice(t, dev, streams, groups, w) {
		var named *RankError
		require.ErrorAs(t, err, &named, "rank %d", r)
		require.Equal(t, bad, named.Rank)
		require.ErrorIs(t, err, boom)
	}
}
