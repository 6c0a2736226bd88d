package tests

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/internal/cases"
	"vkattn/internal/testlevel"
)

// extremeTable lists cases whose numbers are at the ends of the allowed ranges. The cases
// have two sets of options, one pipeline for each, since drivers on the CPU take seconds to
// compile one. Heads, rows and sequences of a case have different numbers.
func extremeTable() (table []cases.Case) {
	const (
		most  = math.MaxFloat32
		sides = math.MaxInt32
	)
	options := cases.Case{
		D: 32, Dv: 32, Shape: attention.Shape{Hq: 12, Hkv: 4, Sq: 20, Sk: 70}, LSE: true, Layout: cases.Packed,
		Seqs:  []cases.Seq{{ID: 0, Rows: 20, Keys: 70}, {ID: 1, Rows: 20, Keys: 7}, {ID: 2, Rows: 3, Keys: 20}},
		Align: attention.BottomRight, Window: attention.WindowOf(300, 300), ALiBi: true, Sinks: true,
		Bias: cases.BiasKind{Spread: cases.Spread{On: true, Heads: true, Rows: true}, DType: attention.F32},
	}
	add := func(name string, c cases.Case, change func(c *cases.Case)) {
		c.Name = name
		change(&c)
		table = append(table, c)
	}
	add("sinks", options, func(c *cases.Case) {
		c.Extremes.Sinks = []float32{0, -inf, inf, nan, most, -most, 3e38, -3e38, 1e30, 1e9, -1e9, 88}
	})
	add("biases", options, func(c *cases.Case) {
		c.Extremes.Bias = []float32{-most, most, -65504, 3e38, -3e38, 1e30, -1e30, -inf}
		c.Extremes.Sinks, c.Extremes.Slopes = []float32{-inf}, []float32{0, 1, 1e4}
	})
	add("least biases", options, func(c *cases.Case) {
		c.Extremes.Bias, c.Extremes.Sinks = []float32{-most}, []float32{-inf, -most, 0}
	})
	add("least biases in splits", options, func(c *cases.Case) {
		c.Extremes.Bias, c.Extremes.Sinks, c.FixedSplit = []float32{-most}, []float32{-inf, -most, 0}, 2
	})
	decode := options // few rows: the decode kernel combines its splits itself
	decode.Seqs = []cases.Seq{{ID: 0, Rows: 1, Keys: 48}, {ID: 1, Rows: 2, Keys: 40}}
	decode.PackedQ, decode.PackedK, decode.PageSize, decode.ALiBi, decode.LSE = true, false, 16, false, true
	add("least biases in splits, decode", decode, func(c *cases.Case) {
		c.Extremes.Bias, c.Extremes.Sinks, c.FixedSplit = []float32{-most}, []float32{-inf}, 2
	})
	add("slopes", options, func(c *cases.Case) { c.Extremes.Slopes = []float32{0, 1e4, 1e-8, -0.125, 1e2} })
	for _, align := range []attention.Causal{attention.TopLeft, attention.BottomRight} {
		for _, w := range [][2]int{{sides, sides}, {sides - 1, sides}, {1 << 30, 1<<30 + 7}, {sides, 0}, {0, sides}, {sides - 5, 3}, {2, sides - 60}} {
			add(fmt.Sprintf("window %d and %d, %v", w[0], w[1], align), options, func(c *cases.Case) { c.Align, c.Window = align, attention.WindowOf(w[0], w[1]) })
		}
	}
	for _, scale := range []float32{0, -1, 1e-8, 1e4, -1e4, 1e8, -1e8} {
		add(fmt.Sprint("score scale ", scale), options, func(c *cases.Case) { c.Scale = attention.ScaleOf(scale) })
	}
	add("queries and keys of 1e3", options, func(c *cases.Case) { c.Extremes.Q, c.Extremes.K = 1e3, 1e3 })
	add("scores of 1e10", options, func(c *cases.Case) {
		c.Extremes.Q, c.Extremes.K, c.Scale = 1e3, 1e3, attention.ScaleOf(1e4)
	})
	add("keys of the same scores", options, func(c *cases.Case) { c.Extremes.Q, c.Data = 1e3, cases.Equal })

	products := options // the row max is subtracted from a product
	products.Bias, products.ALiBi, products.Window = cases.BiasKind{}, false, attention.WindowOf(300, 300)
	for _, x := range []float32{100, 1e3, 1e4} {
		for _, scale := range []float32{1, -1, 1e2, 1e-4} {
			add(fmt.Sprintf("products of %v times %v", x*x, scale), products, func(c *cases.Case) {
				c.Extremes.Q, c.Extremes.K, c.Scale = x, x, attention.ScaleOf(scale)
			})
		}
	}
	add("equal products of 1e8", products, func(c *cases.Case) {
		c.Extremes.Q, c.Extremes.K, c.Data, c.Scale = 1e4, 1e4, cases.Equal, attention.ScaleOf(1)
	})
	add("sinks without modifiers", products, func(c *cases.Case) {
		c.Extremes.Sinks = []float32{0, -inf, inf, nan, most, -most, 3e38, -3e38, 1e30, 1e9, -1e9, 88}
	})
	add("a scale of 0", products, func(c *cases.Case) { c.Scale = attention.ScaleOf(0) })

	quantized := options
	quantized.KeyType, quantized.ValueType, quantized.Bias, quantized.Window, quantized.Align = attention.KVInt8, attention.KVInt8, cases.BiasKind{}, attention.Window{}, attention.CausalNone
	quantized.Sinks, quantized.ALiBi = false, false
	for _, scales := range [][]float32{{0}, {0x1p-126}, {0x1p-140}, {0x1p60}, {-0x1p60, 0x1p60, 0}, {0, nan}, {-0x1p-6, nan}, {0x1p60, 0x1p-126, nan}} {
		add(fmt.Sprint("scales of K ", scales), quantized, func(c *cases.Case) { c.Extremes.KScales = scales })
	}
	for _, scales := range [][]float32{{0}, {0x1p-126}, {0x1p-140, 0}, {0, nan}, {0x1p-20, nan}, {-0x1p-6, nan}, {4, -4, 0x1p-20, 0},
		{0x1p60, 0, 0x1p-10}, {0x1p-40, 0x1p-31, 0}} {
		add(fmt.Sprint("scales of V ", scales), quantized, func(c *cases.Case) { c.Extremes.VScales = scales })
	}
	return table
}

// Numbers at the ends of the allowed ranges give the result of the formula: windows near
// 2^31, sinks and biases that are infinite or the largest of float32, sinks that are NaN,
// scales of 0 and of 2^60, scores of 1e9.
func TestOptionsExtremes(t *testing.T) {
	s := openTiers(t)
	for _, tt := range s.available() {
		if fewPipelines() && tt.Tier == attention.TierScalar && slowToCompile(tt) && tt.DType != attention.F16 {
			continue // a pipeline takes half a minute; the handling of scores does not depend on the type
		}
		if which, _ := s.matrixTier(tt); onMatrices(tt) && which > 0 && leftToGPUs(tt) {
			continue // a driver on the CPU has the first of the coopmat tiers, from one source
		}
		if level := testlevel.Get(); level == testlevel.Full && s.name == "lavapipe" && !onMatrices(tt) && tt.Tier != attention.TierCPU {
			continue // SwiftShader has tier scalar
		}
		t.Run(tt.String(), func(t *testing.T) {
			t.Parallel()
			e := s.newEngine(tt)
			var all []*job
			var runs []*soakRun
			for i, c := range extremeTable() {
				c.Seed = uint64(2*i + 1)
				p, err := cases.NewProblem(c, tt.DType)
				require.NoError(t, err)
				cfg := c.Config(tt)
				x := &soakRun{problem: p, jobs: []*job{
					{Problem: p, cfg: attention.Config(cfg), before: p.Image},
					{Problem: p, cfg: attention.Config(cfg), before: p.Spoiled()},
				}}
				runs, all = append(runs, x), append(all, x.jobs...)
			}
			require.NoError(t, e.run(all))
			for _, x := range runs {
				t.Run(x.problem.Name, func(t *testing.T) {
					judged, err := x.judge(e)
					require.NoError(t, err)
					require.Zero(t, judged.Unjudged)
					if judged.Beyond > 0 {
						require.Contains(t, x.problem.Name, "products", "only these pass MaxFastScore")
					}
					if x.problem.Name == "equal products of 1e8" {
						require.Equal(t, onMatrices(tt), judged.Beyond > 0, "rows that are NaN")
					}
				})
			}
			require.NoError(t, e.close())
		})
	}
}
