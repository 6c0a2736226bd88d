package verify

import (
	"context"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/internal/accuracy"
	"vkattn/internal/cases"
	"vkattn/internal/half"
	"vkattn/internal/tensors"
)

var cpu = bench.Spec{Tier: attention.TierCPU}

// problemOf is large enough to be sampled, with rows that attend to nothing.
func problemOf(causal attention.Causal) cases.Case {
	return cases.Case{D: 16, Dv: 24, Causal: causal, LSE: true, Seed: 5,
		Shape: attention.Shape{B: 2, Hq: 4, Hkv: 2, Sq: 300, Sk: 230}}
}

func run(t *testing.T, v *Verifier, c cases.Case, dtype attention.DType) []*Row {
	t.Helper()
	rows, err := v.Problem(context.Background(), c, dtype)
	require.NoError(t, err)
	require.NoError(t, v.Close())
	return rows
}

// The CPU tier is right: versus float64, versus another reference, with all rows and by
// sampled rows, whatever the seed.
func TestWhatIsRightPasses(t *testing.T) {
	for _, dtype := range attention.DTypes() {
		for _, causal := range []attention.Causal{attention.CausalNone, attention.TopLeft, attention.BottomRight} {
			for _, rows := range []int{0, 100} {
				for _, reference := range []*bench.Spec{nil, &cpu} {
					for seed := range uint64(2) {
						c := problemOf(causal)
						c.Seed = seed + 1
						list := run(t, &Verifier{List: []bench.Spec{cpu}, Reference: reference, Rows: rows, Repeat: 2}, c, dtype)
						r := list[len(list)-1]
						require.Equal(t, bench.OK, r.Status, "%v %v %d rows: %s", dtype, causal, rows, r.Note())
						require.Equal(t, 2, r.Runs)
						require.Equal(t, rows == 0, int64(r.Float64.Rows) == r.Of)
						if reference == nil {
							require.Equal(t, "float64", r.Reference)
							require.EqualValues(t, r.Float64.Rows, r.Rows)
							continue
						}
						require.Len(t, list, 2)
						require.True(t, list[0].Is)
						require.Equal(t, bench.OK, list[0].Status, list[0].Note())
						require.Equal(t, "cpu float32", r.Reference)
						require.Equal(t, r.Of, r.Rows, "the reference has every row")
						require.NotNil(t, r.LSE)
					}
				}
			}
		}
	}
}

// change decodes O and LSE, changes them and stores them again.
func change(t *testing.T, p *cases.Problem, after [][]byte, f func(o, lse []float32)) {
	o, err := p.Read(after, cases.TensorO)
	require.NoError(t, err)
	lse, err := p.Read(after, cases.TensorLSE)
	require.NoError(t, err)
	f(o, lse)
	require.NoError(t, p.Write(after, cases.TensorO, o))
	require.NoError(t, p.Write(after, cases.TensorLSE, lse))
}

// harms are ways to be wrong, at rows that a sample need not hold.
var harms = []struct {
	name, says string
	harm       func(o, lse []float32)
}{
	{"one element", "difference", func(o, _ []float32) { o[(777*24)+5] += 0.5 }},
	{"a NaN", "NaN or Inf", func(o, _ []float32) { o[1500*24] = float32(math.NaN()) }},
	{"an Inf", "NaN or Inf", func(o, _ []float32) { o[1500*24] = float32(math.Inf(-1)) }},
	{"a tile of another head", "row blocks", func(o, _ []float32) { copy(o[(4*300+128)*24:][:64*24], o[(5*300+128)*24:]) }},
	{"a row left as it was", "NaN or Inf", func(o, _ []float32) {
		for i := range 24 {
			o[1234*24+i] = float32(math.NaN())
		}
	}},
	{"LSE of a row", "LSE", func(_, lse []float32) { lse[1357] += 0.25 }},
	{"LSE in base 2", "LSE", func(_, lse []float32) {
		for i := range lse {
			lse[i] *= math.Log2E
		}
	}},
	{"an empty row", "nothing to attend to", func(o, _ []float32) { o[(3*300+20)*24+1] = 1e-7 }},
	{"LSE of an empty row", "LSE", func(_, lse []float32) { lse[3*300+20] = 0 }},
}

// One wrong implementation of three is found with a reference, and without one: by every
// row of the reference, or by a sample of them that misses the place.
func TestWhatIsWrongFails(t *testing.T) {
	for _, dtype := range attention.DTypes() {
		for _, x := range harms {
			for _, rows := range []int{0, 150} {
				if rows == 0 && dtype != attention.F16 {
					continue // the types differ in their limits, which a sample makes widest
				}
				touched := 0
				v := &Verifier{List: []bench.Spec{cpu, cpu, cpu}, Reference: &cpu, Rows: rows}
				v.Touch = func(who string, p *cases.Problem, after [][]byte) {
					if touched++; touched == 2 {
						change(t, p, after, x.harm)
					}
				}
				list := run(t, v, problemOf(attention.BottomRight), dtype)
				require.Len(t, list, 4)
				require.Equal(t, bench.Fail, list[2].Status, "%v, %s, %d rows", dtype, x.name, rows)
				require.Contains(t, list[2].Note(), x.says, "%v, %s", dtype, x.name)
				for _, i := range []int{0, 1, 3} {
					require.Equal(t, bench.OK, list[i].Status, "%v, %s: not to blame: %s", dtype, x.name, list[i].Note())
				}
			}
		}
	}
}

// Beyond the rows of the reference the implementations have one another.
func TestDisagreementFails(t *testing.T) {
	// Those at rows which attend to something: the others are known without.
	for _, x := range harms[:7] {
		touched := 0
		v := &Verifier{List: []bench.Spec{cpu, cpu, cpu}, Rows: 4}
		v.Touch = func(who string, p *cases.Problem, after [][]byte) {
			if touched++; touched == 2 {
				change(t, p, after, x.harm)
			}
		}
		list := run(t, v, problemOf(attention.BottomRight), attention.F16)
		require.Equal(t, bench.Fail, list[1].Status, x.name)
	}
}

// A wrong reference is the reference's failure.
func TestAWrongWitnessFails(t *testing.T) {
	touched := 0
	v := &Verifier{List: []bench.Spec{cpu}, Reference: &cpu}
	v.Touch = func(who string, p *cases.Problem, after [][]byte) {
		if touched++; who == "reference" {
			change(t, p, after, func(o, _ []float32) {
				for i := range o {
					o[i] *= 1.0003 // within what f16 is allowed, and not float32
				}
			})
		}
	}
	list := run(t, v, problemOf(attention.CausalNone), attention.F16)
	require.Equal(t, 2, touched)
	require.Equal(t, bench.Fail, list[0].Status)
	require.Contains(t, list[0].Note(), "versus float64")
}

func TestOtherBitsInAnotherRunFail(t *testing.T) {
	touched := 0
	v := &Verifier{List: []bench.Spec{cpu}, Repeat: 3}
	v.Touch = func(who string, p *cases.Problem, after [][]byte) {
		if touched++; touched == 3 {
			change(t, p, after, func(o, _ []float32) {
				o[40*24] = half.F16ToFloat32(half.F16FromFloat32(o[40*24]) ^ 1)
			})
		}
	}
	r := run(t, v, problemOf(attention.CausalNone), attention.F16)[0]
	require.Equal(t, bench.Fail, r.Status)
	require.Equal(t, 3, r.Runs)
	require.Contains(t, r.Note(), "run 3 gives other bits: 1 elements differ: O at batch 0, head 0, row 40, column 0")
}

// The conformance table checks memory beyond the outputs, and keys nobody sees.
func TestConformanceLooksFurther(t *testing.T) {
	c := cases.Case{D: 16, Dv: 16, Causal: attention.TopLeft, LSE: true, Layout: cases.Padded, Shape: attention.Shape{B: 1, Hq: 2, Sq: 20, Sk: 40}}
	look := func(touch func(n int, p *cases.Problem, after [][]byte)) (*Row, int) {
		n := 0
		v := &Verifier{List: []bench.Spec{cpu}, Conformance: true}
		v.Touch = func(_ string, p *cases.Problem, after [][]byte) {
			n++
			touch(n, p, after)
		}
		return run(t, v, c, attention.F16)[0], n
	}
	r, n := look(func(int, *cases.Problem, [][]byte) {})
	require.Equal(t, bench.OK, r.Status, r.Note())
	require.Equal(t, 3, n, "as it is, hidden keys spoiled, half of the keys spoiled")
	require.Equal(t, c.String(), r.Case)

	r, _ = look(func(n int, _ *cases.Problem, after [][]byte) {
		if n == 1 {
			after[cases.TensorK][3] ^= 1
		}
	})
	require.Equal(t, bench.Fail, r.Status)
	require.Contains(t, r.Note(), "was overwritten")

	for _, at := range []int{2, 3} {
		r, _ = look(func(n int, p *cases.Problem, after [][]byte) {
			if n == at {
				o, err := p.Read(after, cases.TensorO)
				require.NoError(t, err)
				o[16] = float32(math.NaN())
				require.NoError(t, p.Write(after, cases.TensorO, o))
			}
		})
		require.Equal(t, bench.Fail, r.Status)
		require.Contains(t, r.Note(), "changed rows that do not attend to them")
	}
}

func TestWhatIsNotSupportedIsNoFailure(t *testing.T) {
	list := run(t, &Verifier{List: []bench.Spec{{Tier: attention.TierCoopMat}, cpu}}, problemOf(attention.CausalNone), attention.F16)
	require.Equal(t, bench.Unsupported, list[0].Status)
	require.Contains(t, list[0].Note(), "Vulkan device")
	require.Equal(t, bench.OK, list[1].Status)
	var o Outcome
	o.Of(list)
	o.Of(list[:1])
	require.Equal(t, map[bench.Status]int{bench.Unsupported: 2, bench.OK: 1}, o.Count)
	require.Equal(t, []int{2, 3, 1}, []int{o.Problems, o.Rows, o.Uncompared})
}

func TestAnInterruptedProblemHasNoVerdict(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	v := &Verifier{List: []bench.Spec{cpu}}
	rows, err := v.Problem(ctx, problemOf(attention.CausalNone), attention.F32)
	require.ErrorIs(t, err, context.Canceled)
	require.Empty(t, rows[0].Status)
}

func TestSamples(t *testing.T) {
	s := attention.Shape{B: 4, Hq: 8, Sq: 4096, Sk: 3000}
	for _, causal := range []attention.Causal{attention.CausalNone, attention.TopLeft, attention.BottomRight} {
		list, err := accuracy.SampleRows(attention.Args{Shape: s}, 700, rowsPerHead, causal, 3)
		require.NoError(t, err)
		n := tensors.CountRows(list)
		require.InDelta(t, 700, n, 50)
		require.Equal(t, [2]int{0, 0}, [2]int{list[0].B, list[0].H})
		require.Equal(t, [2]int{3, 7}, [2]int{list[len(list)-1].B, list[len(list)-1].H})
		few := 0
		for _, r := range list {
			require.IsIncreasing(t, append([]int{-1}, r.Rows...))
			require.Equal(t, 0, r.Rows[0])
			require.Equal(t, s.Sq-1, r.Rows[len(r.Rows)-1])
			for _, row := range r.Rows {
				if keys := causal.Visible(row, s.Sq, s.Sk); keys > 1 && keys < 256 {
					few++
				}
			}
		}
		if causal != attention.CausalNone {
			require.Greater(t, few, n/5, "%v: rows with few keys", causal)
		}
	}
}
