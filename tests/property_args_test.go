package tests

import (
	"errors"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"vkattn/attention"
	"vkattn/internal/cases"
)

// breakage is a way to make valid arguments invalid.
type breakage struct {
	name string
	do   func(t *rapid.T, cfg *attention.Config, a *attention.Args)
}

// anyTensor draws one of the first n tensors.
func anyTensor(t *rapid.T, a *attention.Args, n int) *attention.Tensor {
	i := rapid.IntRange(0, n-1).Draw(t, "tensor")
	return []*attention.Tensor{&a.Q, &a.K, &a.V, &a.O, &a.LSE}[i]
}

func anyInput(t *rapid.T, a *attention.Args) *attention.Tensor { return anyTensor(t, a, cases.TensorO) }

func anySize(t *rapid.T, a *attention.Args) *int {
	return []*int{&a.B, &a.Hq, &a.Hkv, &a.Sq, &a.Sk}[rapid.IntRange(0, 4).Draw(t, "size")]
}

var (
	negative = rapid.Int64Range(math.MinInt64, -1)
	huge     = rapid.Int64Range(1<<40, math.MaxInt64)
)

var breakages = []breakage{
	{"no memory", func(t *rapid.T, _ *attention.Config, a *attention.Args) {
		anyTensor(t, a, cases.TensorLSE).Host = nil
	}},
	{"memory too short", func(t *rapid.T, _ *attention.Config, a *attention.Args) {
		x := anyTensor(t, a, cases.Tensors)
		x.Host = x.Host[:rapid.IntRange(0, len(x.Host)-1).Draw(t, "bytes")]
	}},
	{"negative offset", func(t *rapid.T, _ *attention.Config, a *attention.Args) {
		anyTensor(t, a, cases.Tensors).Offset = negative.Draw(t, "offset")
	}},
	{"huge offset", func(t *rapid.T, _ *attention.Config, a *attention.Args) {
		anyTensor(t, a, cases.Tensors).Offset = huge.Draw(t, "offset")
	}},
	{"negative stride", func(t *rapid.T, _ *attention.Config, a *attention.Args) {
		x := anyInput(t, a)
		which := rapid.IntRange(0, 2).Draw(t, "stride")
		*[]*int64{&x.Strides.Batch, &x.Strides.Head, &x.Strides.Seq}[which] = negative.Draw(t, "value")
	}},
	{"huge stride", func(t *rapid.T, _ *attention.Config, a *attention.Args) {
		x := anyInput(t, a)
		x.Strides = attention.Strides{Batch: huge.Draw(t, "batch"), Head: huge.Draw(t, "head"), Seq: huge.Draw(t, "seq")}
	}},
	{"size not positive", func(t *rapid.T, _ *attention.Config, a *attention.Args) {
		n := anySize(t, a)
		*n = rapid.IntRange(math.MinInt, 0).Draw(t, "value")
		if *n == 0 && (n == &a.Hkv || n == &a.B) {
			*n = -1 // 0 is Hq, or no sequences
		}
	}},
	{"size huge", func(t *rapid.T, _ *attention.Config, a *attention.Args) {
		*anySize(t, a) = rapid.IntRange(1<<28, math.MaxInt).Draw(t, "value")
	}},
	{"heads not a multiple", func(_ *rapid.T, _ *attention.Config, a *attention.Args) { a.Hq, a.Hkv = 3, 2 }},
	{"rows of O overlap", func(_ *rapid.T, cfg *attention.Config, a *attention.Args) {
		a.O.Host = make([]byte, 1<<16)
		a.O.Strides = attention.Strides{Seq: int64(cfg.HeadDimV) - 1, Head: 1 << 10, Batch: 1 << 12}
	}},
	{"heads of O on one another", func(_ *rapid.T, _ *attention.Config, a *attention.Args) {
		a.O.Strides = attention.BHSD(a.Hq, a.Sq, 6)
		a.O.Strides.Head = 0
	}},
	{"O is an input", func(t *rapid.T, _ *attention.Config, a *attention.Args) { a.O.Host = anyInput(t, a).Host }},
	{"LSE within O", func(_ *rapid.T, _ *attention.Config, a *attention.Args) { a.LSE.Host = a.O.Host }},
	{"LSE with strides", func(_ *rapid.T, _ *attention.Config, a *attention.Args) {
		a.LSE.Strides = attention.Strides{Seq: 2, Head: 100, Batch: 1000}
	}},
	{"LSE forgotten", func(_ *rapid.T, _ *attention.Config, a *attention.Args) { a.LSE = attention.Tensor{Offset: 1} }},
	{"head dimension out of range", func(t *rapid.T, cfg *attention.Config, _ *attention.Args) {
		cfg.HeadDim = rapid.OneOf(rapid.IntRange(math.MinInt, 0), rapid.IntRange(257, math.MaxInt)).Draw(t, "d")
	}},
	{"value dimension out of range", func(t *rapid.T, cfg *attention.Config, _ *attention.Args) {
		cfg.HeadDimV = rapid.OneOf(rapid.IntRange(math.MinInt, -1), rapid.IntRange(257, math.MaxInt)).Draw(t, "dv")
	}},
	{"no such type", func(_ *rapid.T, cfg *attention.Config, _ *attention.Args) { cfg.DType = 9 }},
	{"no such mask", func(_ *rapid.T, cfg *attention.Config, _ *attention.Args) { cfg.Causal = 7 }},
	{"no such access", func(_ *rapid.T, cfg *attention.Config, _ *attention.Args) { cfg.Access = 5 }},
	{"scale not finite", func(t *rapid.T, cfg *attention.Config, _ *attention.Args) {
		cfg.Scale = attention.ScaleOf(rapid.SampledFrom([]float32{nan, inf, -inf}).Draw(t, "scale"))
	}},
}

// Any wrong arguments give a *ShapeError that names a field, and nothing is written.
func TestPropertyInvalidArgs(t *testing.T) {
	for _, b := range breakages {
		t.Run(b.name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				c := cases.Case{
					D: 8, Dv: 6, LSE: true, Layout: cases.Tight, Seed: 1, Causal: rapid.SampledFrom(cases.Causals).Draw(t, "causal"),
					Shape: attention.Shape{B: 2, Hq: 4, Hkv: 2, Sq: rapid.IntRange(2, 9).Draw(t, "sq"), Sk: rapid.IntRange(2, 9).Draw(t, "sk")},
				}
				tt := cases.On(attention.TierCPU, rapid.SampledFrom(attention.DTypes()).Draw(t, "dtype"))
				p := makeProblem(t, c, tt)
				cfg, args := c.Config(tt), p.HostArgs(p.Image)
				require.NoError(t, attention.CheckArgs(attention.Config(cfg), args))
				before := append([]byte(nil), args.O.Host...)
				o := args.O.Host
				b.do(t, (*attention.Config)(&cfg), &args)

				isShapeError(t, attention.CheckArgs(attention.Config(cfg), args))
				op, err := attention.New(nil, attention.Config(cfg))
				if err != nil {
					isShapeError(t, err)
					return
				}
				isShapeError(t, op.Forward(nil, args))
				require.Equal(t, before, o)
			})
		})
	}
}

func isShapeError(t *rapid.T, err error) {
	var shape *attention.ShapeError
	require.True(t, errors.As(err, &shape), "%T: %v", err, err)
	require.NotEmpty(t, shape.Field)
	require.NotEmpty(t, shape.Error())
}
