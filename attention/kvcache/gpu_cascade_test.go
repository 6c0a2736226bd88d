package kvcache

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/testdevices"
	"vkattn/vk"
)

// BenchmarkCascade times decode steps of sequences that share a prefix, with a cascade and without, and the two calls of
// the cascade: medians of the device's time of a layer, in alternating rounds. Layers take turns, so that a call does
// not find its K and V in a cache. keys-ratio is the keys that the plain path reads over those of the cascade, which
// bounds the ratio of the times where memory does.
func BenchmarkCascade(b *testing.B) {
	options := attention.Options{}
	if driver := os.Getenv("VKATTN_DRIVER"); driver != "" && driver != "none" {
		options.Vulkan.Device = "0"
	}
	dev, err := attention.Open(options) // the best GPU
	require.NoError(b, err)
	defer func() { require.NoError(b, dev.Close()) }()
	prefix, own, layers := 8192, 256, 4
	if dev.Vulkan() == nil || dev.Vulkan().Info().Type == vk.DeviceCPU {
		prefix, own, layers = 512, 16, 1 // shows that it runs
	}
	for _, sequences := range []int{64, 16} {
		for _, page := range []int{16, 64} {
			b.Run(fmt.Sprintf("sequences=%d/heads=32,8/headdim=128/shared=%d/own=%d/page=%d", sequences, prefix, own, page), func(b *testing.B) {
				benchmarkCascade(b, dev, sequences, prefix, own, page, layers)
			})
		}
	}
}

func benchmarkCascade(b *testing.B, dev *attention.Device, sequences, prefix, own, page, layers int) {
	const heads, headsKV, dim, calls = 32, 8, 128, 8
	c, err := New(dev, Config{HeadDim: dim, HeadsKV: headsKV, Layers: layers, PageSize: page, Cascade: 1,
		Pages: (prefix + sequences*(own+page)) / page})
	require.NoError(b, err)
	defer func() { require.NoError(b, c.Close()) }()
	op := testdevices.Op(b, dev, attention.Config{HeadDim: dim, Causal: attention.BottomRight})
	r := rand.New(rand.NewPCG(1, 0))
	tensor := func(heads, rows int) attention.Tensor {
		t, err := dev.Tensor(attention.F16, 1, heads, rows, dim)
		require.NoError(b, err)
		x := make([]float32, heads*rows*dim)
		for i := range x {
			x[i] = float32(r.NormFloat64())
		}
		require.NoError(b, t.SetFloats(x))
		return t
	}
	step := func(list ...NewRows) *Step {
		st, err := c.Begin(list...)
		require.NoError(b, err)
		k, v := tensor(headsKV, st.Rows()), tensor(headsKV, st.Rows())
		for layer := range layers {
			require.NoError(b, st.Append(layer, LayerRows{K: k, V: v}))
		}
		require.NoError(b, dev.Wait(context.Background()))
		require.NoError(b, k.Close())
		require.NoError(b, v.Close())
		return st
	}
	first := c.Sequence()
	step(NewRows{first, prefix})
	list := []NewRows{{first, own - 1}}
	for range sequences - 1 {
		f, err := first.Fork()
		require.NoError(b, err)
		list = append(list, NewRows{f, own - 1})
	}
	step(list...)
	for i := range list {
		list[i].Rows = 1
	}
	st := step(list...)
	require.Equal(b, (sequences-1)*prefix, st.CascadeKeys())
	q, o, with := tensor(heads, sequences), tensor(heads, sequences), tensor(heads, sequences)
	lse, err := dev.Tensor(attention.F32, 1, heads, sequences)
	require.NoError(b, err)
	defer func() {
		for _, t := range []attention.Tensor{q, o, with, lse} {
			require.NoError(b, t.Close())
		}
	}()
	cfg := op.Config()
	cfg.Causal = attention.CausalNone
	prefixOp := testdevices.Op(b, dev, cfg)
	call := func(layer int, p *part) attention.Args {
		a, err := st.Args(layer, q, o, heads)
		require.NoError(b, err)
		st.set(&a, p)
		if p != &st.all {
			a.LSE = lse
		}
		return a
	}
	ways := []struct {
		name   string
		record func(s *vk.Stream, layer int) error
	}{
		{"plain", func(s *vk.Stream, layer int) error { return op.Forward(attention.OnStream(s), call(layer, &st.all)) }},
		{"cascade", func(s *vk.Stream, layer int) error {
			a, err := st.Args(layer, q, with, heads)
			require.NoError(b, err)
			record, err := st.cascade(op, op.Config(), a)
			require.NoError(b, err)
			return record(attention.OnStream(s))
		}},
		{"prefix", func(s *vk.Stream, layer int) error {
			return prefixOp.Forward(attention.OnStream(s), call(layer, &st.prefix))
		}},
		{"own", func(s *vk.Stream, layer int) error { return op.Forward(attention.OnStream(s), call(layer, &st.own)) }},
	}
	require.NoError(b, op.Forward(nil, call(0, &st.all)))
	require.NoError(b, st.Forward(0, op, attention.Args{Q: q, O: with}))
	plain, err := o.Floats(context.Background())
	require.NoError(b, err)
	cascade, err := with.Floats(context.Background())
	require.NoError(b, err)
	require.InDeltaSlice(b, plain, cascade, 2e-3)

	times := make([][]float64, len(ways)) // us of a call, of each round
	round := func() {
		for i, x := range ways {
			var marks [2]vk.Mark
			start := time.Now()
			require.NoError(b, dev.Do(func(own *attention.Stream) (err error) {
				s := own.Vulkan()
				for n := range calls + 1 { // the first is not timed
					if s != nil {
						require.NoError(b, s.Barrier())
						if n == 1 {
							marks[0], err = s.Timestamp()
							require.NoError(b, err)
						}
					}
					require.NoError(b, x.record(s, (n+layers-1)%layers))
				}
				if s != nil {
					require.NoError(b, s.Barrier())
					marks[1], err = s.Timestamp()
				}
				return err
			}))
			took := time.Since(start) * calls / (calls + 1)
			require.NoError(b, dev.Wait(context.Background()))
			require.NoError(b, dev.Do(func(own *attention.Stream) (err error) {
				s := own.Vulkan()
				if s != nil {
					took, err = s.Elapsed(marks[0], marks[1])
				}
				return err
			}))
			times[i] = append(times[i], float64(took.Nanoseconds())/1e3/calls)
		}
	}
	for start := time.Now(); time.Since(start) < 500*time.Millisecond; {
		round()
	}
	clear(times)
	for b.Loop() {
		round()
	}
	median := make([]float64, len(ways))
	for i, x := range ways {
		slices.Sort(times[i])
		median[i] = times[i][len(times[i])/2]
		b.ReportMetric(median[i], x.name+"-us")
	}
	keys := float64(sequences*(prefix+own)) / float64(prefix+sequences*own)
	b.ReportMetric(median[0]/median[1], "ratio")
	b.ReportMetric(keys, "keys-ratio")
	b.ReportMetric(float64((prefix+sequences*own)*headsKV*dim*4)/median[1]/1e6, "cascade-TB/s")
	b.ReportMetric(float64(sequences*(prefix+own)*headsKV*dim*4)/median[0]/1e6, "plain-TB/s")
	b.ReportMetric(0, "ns/op")
	for i, x := range []*attention.Op{op, nil, prefixOp, op} {
		if p := []*part{&st.all, nil, &st.prefix, &st.own}[i]; x != nil {
			plan, err := x.PlanFor(call(0, p))
			require.NoError(b, err)
			b.Logf("%s: %v, %d splits", ways[i].name, plan, plan.Splits)
		}
	}
}
