package attention_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
)

func BenchmarkCPU(b *testing.B) { benchmark(b, attention.ForwardCPU) }
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
