package attention_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
)

func BenchmarkCPU(b *testing.B) {
	attention.EachKernelSet(b, func(b *testing.B, _ string) { benchmark(b, attention.ForwardCPU) })
}
func BenchmarkReference(b *testing.B) {
	benchmark(b, func(cfg attention.Config, a attention.Args) error {
		_, _, err := attention.Reference(cfg, a)
		return err
	})
}

func benchmark(b *testing.B, run func(attention.Config, attention.Args) error) {
	for _, c := range []struct {
		dt attention.DType
		d  int
		s  attention.Shape
	}{
		{attention.F32, 128, attention.Shape{B: 1, Hq: 4, Sq: 512, Sk: 512}},
		{attention.F16, 128, attention.Shape{B: 1, Hq: 4, Sq: 512, Sk: 512}},
		{attention.F16, 64, attention.Shape{B: 1, Hq: 4, Sq: 512, Sk: 512}},
		{attention.BF16, 128, attention.Shape{B: 1, Hq: 4, Sq: 512, Sk: 512}},
		{attention.BF16, 64, attention.Shape{B: 1, Hq: 4, Sq: 512, Sk: 512}},
		{attention.F16, 128, attention.Shape{B: 1, Hq: 8, Hkv: 2, Sq: 1, Sk: 8192}},
	} {
		cfg := attention.Config{DType: c.dt, HeadDim: c.d}
		p := newProblem(cfg, c.s, attention.BHSD, 1)
		b.Run(fmt.Sprintf("%v/%v", cfg, c.s), func(b *testing.B) {
			for b.Loop() {
				require.NoError(b, run(p.cfg, p.Args))
			}
			flops := 4 * float64(c.d) * float64(c.s.Cells(attention.CausalNone)) * float64(c.s.B*c.s.Hq)
			b.ReportMetric(flops*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
		})
	}
}

// BenchmarkBackward counts the backward pass as 2.5 times the forward pass, which runs in
// turns with it: one iteration is both. Each metric has the rate of its fastest call.
func BenchmarkBackward(b *testing.B) {
	for _, dt := range []attention.DType{attention.F32, attention.F16} {
		for _, d := range []int{64, 128} {
			for _, causal := range []attention.Causal{attention.CausalNone, attention.BottomRight} {
				for _, n := range []int{256, 512, 1024} {
					cfg := attention.Config{DType: dt, HeadDim: d, Causal: causal}
					p := newProblem(cfg, attention.Shape{B: 1, Hq: 1, Sq: n, Sk: n}, attention.BHSD, 1)
					a := attention.BackwardArgs{Args: p.Args, DO: newProblem(cfg, p.Shape, attention.BHSD, 2).V}
					for _, x := range []struct{ to, like *attention.Tensor }{{&a.DQ, &p.Q}, {&a.DK, &p.K}, {&a.DV, &p.V}} {
						*x.to = *x.like
						x.to.Host = make([]byte, len(x.like.Host))
					}
					flops := 4 * float64(d) * float64(p.Shape.Cells(causal)) * float64(p.B*p.Hq)
					b.Run(fmt.Sprintf("%v/%v", cfg, p.Shape), func(b *testing.B) {
						forward, backward := time.Hour, time.Hour
						for b.Loop() {
							at := time.Now()
							require.NoError(b, attention.ForwardCPU(cfg, a.Args))
							between := time.Now()
							require.NoError(b, attention.BackwardCPU(cfg, a))
							forward, backward = min(forward, between.Sub(at)), min(backward, time.Since(between))
						}
						b.ReportMetric(flops/forward.Seconds()/1e9, "forward-GFLOP/s")
						b.ReportMetric(2.5*flops/backward.Seconds()/1e9, "backward-GFLOP/s")
					})
				}
			}
		}
	}
}
