package parallel

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/accuracy"
	"vkattn/internal/inputs"
	"vkattn/internal/problem"
	"vkattn/vk"
)

// Eight ranks of one device compute attention and gradients: rings, heads, and 2 x 4 ranks.
func TestManyRanksOnADevice(t *testing.T) {
	const ranks = 8
	dev, streams := openRanks(t, ranks)
	for _, x := range []struct {
		form
		inner  int
		order  Order
		causal attention.Causal
	}{
		{form{ModeRing, ScheduleOverlap}, 0, OrderStriped, attention.TopLeft},
		{form{ModeRing, ScheduleGather}, 0, OrderZigzag, attention.TopLeft},
		{form{ModeUlysses, ScheduleAuto}, 0, OrderStriped, attention.TopLeft},
		{form{ModeAllGather, ScheduleAuto}, 0, OrderContiguous, attention.CausalNone},
		{form{Mode2D, ScheduleOverlap}, 4, OrderZigzag, attention.TopLeft},
		{form{Mode2D, ScheduleGather}, 2, OrderStriped, attention.CausalNone},
	} {
		t.Run(fmt.Sprintf("%v %v, %d share heads, %v %v", x.mode, x.schedule, x.inner, x.order, x.causal), func(t *testing.T) {
			cfg := Config{Mode: x.mode, Schedule: x.schedule, Inner: x.inner, Order: x.order}
			cfg.HeadDim, cfg.Causal, cfg.Tier = 16, x.causal, attention.TierScalar
			w := newWhole(cfg, Problem{Shape: attention.Shape{B: 1, Hq: 8, Hkv: 4, Sq: 80, Sk: 80}}, 5)
			groups := ranksOf(t, ranks)
			w.isAttentionOnDevices(t, dev, streams, groups, nil)
			for r, err := range backwardOnDevice(t, dev, streams, groups, w) {
				require.NoError(t, err, "rank %d", r)
			}
			v, err := accuracy.VerifyBackward(problem.Config(cfg.Config), w.BackwardArgs, accuracy.Options{})
			require.NoError(t, err)
			require.True(t, v.Pass(), "%v", v)
		})
	}
}

// Four and eight ranks of one device decode over a cache of which some ranks hold nothing at first.
func TestManyRanksDecodeOnADevice(t *testing.T) {
	const batch, heads, most = 2, 2, 50
	for _, ranks := range []int{4, 8} {
		dev, streams := openRanks(t, ranks)
		cfg := Config{Block: 4}
		cfg.HeadDim, cfg.Causal, cfg.Tier = 16, attention.BottomRight, attention.TierScalar
		groups := ranksOf(t, ranks)
		host := func(n int, seed uint64) attention.Tensor {
			return attention.Tensor{Host: inputs.New(int64(batch*heads*n*cfg.HeadDim), cfg.DType, inputs.Normal, seed)}
		}
		q, k, v := host(1, 1), host(most, 2), host(most, 3)
		var side side
		tokens := []int{most, 9} // nine tokens lie on three ranks
		outs := make([]attention.Tensor, ranks)
		for r, err := range onAll(groups, func(r int, g *Group) error {
			op, err := New(g, attention.On(dev), cfg)
			if err != nil {
				return err
			}
			defer op.Close()
			cache := newSharded(cfg.Config, batch, heads, op.Shard().Count(r, most), 0, nil).Cache
			d := &onDevice{t: t, s: streams[r]}
			o := attention.Tensor{Host: make([]byte, len(q.Host))}
			outs[r] = attention.Tensor{Host: o.Host}
			q, k, v := q, k, v
			for _, x := range []*attention.Tensor{&q, &k, &v, &cache.K, &cache.V, &o} {
				d.tensor(x, vk.DeviceLocal)
			}
			if err := op.Append(attention.OnStream(streams[r]), AppendArgs{B: batch, Hkv: heads, New: most, Tokens: []int{0, 0}, NewK: k, NewV: v, Cache: cache}); err != nil {
				return err
			}
			for range 3 { // the second call records, the third submits what it has
				if err := op.Decode(context.Background(), attention.OnStream(streams[r]), DecodeArgs{B: batch, Hq: heads, Hkv: heads, Sq: 1, Tokens: tokens, Q: q, O: o, Cache: cache}); err != nil {
					return err
				}
			}
			return d.copied[5](context.Background())
		}) {
			require.NoError(t, err, "rank %d of %d", r, ranks)
			require.Equal(t, outs[0].Host, outs[r].Host, "rank %d of %d", r, ranks)
		}
		verdict, err := accuracy.Verify(problem.Config(cfg.Config), attention.Args{Shape: attention.Shape{B: batch, Hq: heads, Hkv: heads, Sq: 1, Sk: most}, Q: q, K: k, V: v,
			O: outs[0], Varlen: &attention.Varlen{UsedK: side.vector(tokens)}}, accuracy.Options{})
		require.NoError(t, err)
		require.True(t, verdict.Pass(), "%d ranks: %v", ranks, verdict)
	}
}
