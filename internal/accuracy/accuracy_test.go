package accuracy_test

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"vkattn/attention"
	"vkattn/internal/accuracy"
	"vkattn/internal/half"
	"vkattn/internal/inputs"
	"vkattn/internal/oracle"
	"vkattn/internal/problem"
	"vkattn/internal/tensors"
)

// call is a packed problem with random inputs and room for the outputs.
func call(cfg attention.Config, s attention.Shape) attention.Args {
	dt, dv := cfg.DType, cfg.ValueDim()
	random := func(heads, seq, dim int, seed uint64) attention.Tensor {
		return attention.Tensor{Host: inputs.New(int64(s.B)*int64(heads)*int64(seq)*int64(dim), dt, inputs.Normal, seed)}
	}
	return attention.Args{
		Shape: s,
		Q:     random(s.Hq, s.Sq, cfg.HeadDim, 1),
		K:     random(s.KVHeads(), s.Sk, cfg.HeadDim, 2),
		V:     random(s.KVHeads(), s.Sk, dv, 3),
		O:     attention.Tensor{Host: make([]byte, s.Rows()*int64(dv*dt.Size()))},
		LSE:   attention.Tensor{Host: make([]byte, 4*s.Rows())},
	}
}

// round is a float64 result as stored in a type.
func round(dt attention.DType, v []float64) []float32 {
	out := make([]float32, len(v))
	for i, x := range v {
		f := float32(x)
		switch dt {
		case attention.F16:
			f = half.F16ToFloat32(half.F16FromFloat32(f))
		case attention.BF16:
			f = half.BF16ToFloat32(half.BF16FromFloat32(f))
		}
		out[i] = f
	}
	return out
}

// store writes a result into a call's outputs.
func store(cfg attention.Config, a attention.Args, o, lse []float32) {
	cfg.DType.Encode(a.O.Host, o)
	half.EncodeF32(a.LSE.Host, lse)
}

var shape = attention.Shape{B: 2, Hq: 4, Hkv: 2, Sq: 200, Sk: 300}

func TestBestAndPlainResultsPass(t *testing.T) {
	for _, dt := range attention.DTypes() {
		cfg := attention.Config{DType: dt, HeadDim: 64, HeadDimV: 48, Causal: attention.BottomRight}
		a := call(cfg, shape)
		all := attention.AllRows(shape)
		ref, refLSE, err := attention.Reference(cfg, a)
		require.NoError(t, err)
		low, lowLSE, err := oracle.Low(problem.Config(cfg), a, all)
		require.NoError(t, err)
		for name, r := range map[string][2][]float32{
			"low":               {low, lowLSE},
			"rounded reference": {round(dt, ref), round(attention.F32, refLSE)},
		} {
			store(cfg, a, r[0], r[1])
			v, err := accuracy.Verify(problem.Config(cfg), a, accuracy.Options{Rows: -1})
			require.NoError(t, err)
			require.True(t, v.Pass(), "%v %s: %v", dt, name, v)
			require.EqualValues(t, shape.Rows(), v.Rows)
			t.Logf("%v %s: %v", dt, name, v)
		}
	}
}

func TestLowIsStoredInItsType(t *testing.T) {
	units := map[attention.DType]float64{attention.F16: 0x1p-11, attention.BF16: 0x1p-8, attention.F32: 0x1p-24}
	for _, dt := range attention.DTypes() {
		cfg := attention.Config{DType: dt, HeadDim: 32}
		a := call(cfg, shape)
		low, _, err := oracle.Low(problem.Config(cfg), a, attention.AllRows(shape))
		require.NoError(t, err)
		wide := make([]float64, len(low))
		for i, x := range low {
			wide[i] = float64(x)
		}
		require.Equal(t, low, round(dt, wide))
		ref, _, err := attention.Reference(cfg, a)
		require.NoError(t, err)
		r := accuracy.Judge(accuracy.Forward(dt), 32, low, ref, low)
		rms := math.Sqrt(r.Whole.LowNMSE)
		require.Greater(t, rms, units[dt]/4, "%v: some rounding must show", dt)
		require.Less(t, rms, units[dt]*20, "%v: but no more than that", dt)
	}
}

func TestLowOfScoresBeyondF16IsFinite(t *testing.T) {
	cfg := attention.Config{HeadDim: 64, Scale: attention.ScaleOf(1e5)}
	s := attention.Shape{B: 1, Hq: 1, Sq: 8, Sk: 40}
	o, lse, err := oracle.Low(problem.Config(cfg), call(cfg, s), attention.AllRows(s))
	require.NoError(t, err)
	for _, x := range append(o, lse...) {
		require.False(t, math.IsNaN(float64(x)) || math.IsInf(float64(x), 0))
	}
}

// Each way to be wrong fails, and says so.
func TestWrongResultsFail(t *testing.T) {
	for _, dt := range attention.DTypes() {
		cfg := attention.Config{DType: dt, HeadDim: 64, Causal: attention.BottomRight}
		s := attention.Shape{B: 2, Hq: 4, Sq: 256, Sk: 200} // rows 0 to 55 are empty
		a := call(cfg, s)
		o64, lse64, err := attention.Reference(cfg, a)
		require.NoError(t, err)
		// In bf16 a score is rounded by up to 0.4 %: less than 5 % is allowed.
		for _, c := range []struct {
			name, says string
			harm       func(o, lse []float32)
		}{
			{"everything 5 % too large", "NMSE", func(o, _ []float32) {
				for i := range o {
					o[i] *= 1.05
				}
			}},
			{"one element wrong", "column 3: ", func(o, _ []float32) { o[(5*256+77)*64+3] += 0.5 }},
			{"one tile of another head", "row blocks fail", func(o, _ []float32) {
				copy(o[(2*256+128)*64:][:64*64], o[(3*256+128)*64:])
			}},
			{"NaN", "NaN or Inf", func(o, _ []float32) { o[100*64] = float32(math.NaN()) }},
			{"Inf", "NaN or Inf", func(o, _ []float32) { o[100*64] = float32(math.Inf(1)) }},
			{"last keys missed", "fail", func(o, _ []float32) {
				for i := range o { // as if the weights summed to 0.9
					o[i] /= 0.9
				}
			}},
			{"LSE in base 2", "LSE", func(_, lse []float32) {
				for i := range lse {
					lse[i] *= math.Log2E
				}
			}},
			{"LSE of an empty row 0", "LSE: 1 elements NaN or Inf", func(_, lse []float32) { lse[256] = 0 }},
			{"LSE of one row", "head 1, row 100", func(_, lse []float32) { lse[256+100] += 0.3 }},
		} {
			o, lse := round(dt, o64), round(attention.F32, lse64)
			c.harm(o, lse)
			store(cfg, a, o, lse)
			v, err := accuracy.Verify(problem.Config(cfg), a, accuracy.Options{Rows: -1})
			require.NoError(t, err)
			require.False(t, v.Pass(), "%v %s", dt, c.name)
			require.Contains(t, v.String(), c.says, "%v %s", dt, c.name)
		}
	}
}

// Noise a little above each limit fails that rule alone, and a little below
// passes.
func TestRulesByNumbers(t *testing.T) {
	const n, width = 4096, 64
	ref, low := make([]float64, n), make([]float32, n)
	for i := range ref {
		ref[i] = 1
		low[i] = 1 + 0x1p-8 // mean error of low 2^-8 ...
	}
	low[7] = 1 + 0x1p-4 // ... and maximum 2^-4
	l := accuracy.Limits{Stored: attention.F32, MaxFactor: 2, MeanFactor: 1.5, NMSE: 1, NMSEFactor: 4}
	judge := func(l accuracy.Limits, everywhere, once float32) accuracy.Report {
		x := make([]float32, n)
		for i := range x {
			x[i] = 1 + everywhere
		}
		x[9] = 1 - once
		return accuracy.Judge(l, width, x, ref, low)
	}
	r := judge(l, 0x1p-8*1.45, 0x1p-4*1.99)
	require.True(t, r.Pass(), "%v", r.Reasons())
	require.Equal(t, 1, r.Blocks)
	r = judge(l, 0x1p-8, 0x1p-4*2.01)
	require.False(t, r.Whole.MaxOK)
	require.True(t, r.Whole.MeanOK && r.Whole.NMSEOK)
	require.Equal(t, 9, r.Whole.Worst)
	r = judge(l, 0x1p-8*1.52, 0)
	require.False(t, r.Whole.MeanOK)
	require.True(t, r.Whole.MaxOK && r.Whole.NMSEOK)
	l.NMSE, l.MeanFactor = 1e-9, 10
	r = judge(l, 0x1p-8*1.9, 0)
	require.True(t, r.Pass(), "4 NMSE of low, %v", r.Reasons())
	r = judge(l, 0x1p-8*2.3, 0)
	require.False(t, r.Whole.NMSEOK)
	require.True(t, r.Whole.MaxOK && r.Whole.MeanOK)
	l.NMSE = 1e-3
	require.True(t, judge(l, 0x1p-8*2.3, 0).Pass(), "the fixed limit where it is larger")
}

// A tile that is off by less than the errors elsewhere shows in its block only.
func TestABlockCannotHideInTheAverage(t *testing.T) {
	const rows, width = 640, 64
	ref, low, x := make([]float64, rows*width), make([]float32, rows*width), make([]float32, rows*width)
	for i := range ref {
		noise := float32(0x1p-6)
		if i/width/64 == 3 {
			noise = 0x1p-12 // a block easy to compute
		}
		ref[i], low[i], x[i] = 1, 1+noise, 1-noise
	}
	l := accuracy.Forward(attention.F32)
	r := accuracy.Judge(l, width, x, ref, low)
	require.True(t, r.Pass(), "%v", r.Reasons())
	for i := 3 * 64 * width; i < 4*64*width; i++ {
		x[i] = 1 - 0x1p-9
	}
	r = accuracy.Judge(l, width, x, ref, low)
	require.True(t, r.Whole.Pass())
	require.False(t, r.Pass())
	require.Equal(t, 1, r.Failed)
	require.Equal(t, 3*64*width, r.WorstBlock.First)
	require.Contains(t, r.Reasons()[0], "rows 192 to 255")
}

func TestKindsMustMatch(t *testing.T) {
	inf, nan := math.Inf(1), math.NaN()
	kinds := []float64{0, 1, inf, -inf, nan}
	for i, want := range kinds {
		for j, got := range kinds {
			ref := []float64{1, want}
			r := accuracy.Judge(accuracy.Forward(attention.F16), 1, []float32{1, float32(got)}, ref, []float32{1, float32(want)})
			same := i == j || i < 2 && j < 2
			require.Equal(t, same, r.Whole.Kind, "%v for %v", got, want)
		}
	}
	// Low may fail where the reference does not.
	r := accuracy.Judge(accuracy.Forward(attention.F16), 1, []float32{1, 1}, []float64{1, 1}, []float32{1, float32(nan)})
	require.True(t, r.Pass(), "%v", r.Reasons())
}

func TestSamples(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := attention.Shape{
			B: rapid.IntRange(1, 4).Draw(t, "b"), Hq: rapid.IntRange(1, 9).Draw(t, "hq"),
			Sq: rapid.IntRange(1, 3000).Draw(t, "sq"), Sk: 10,
		}
		n := rapid.IntRange(1, 2000).Draw(t, "n")
		sample := accuracy.Sample(s, n, rapid.Uint64().Draw(t, "seed"))
		got := tensors.CountRows(sample)
		if s.Rows() <= int64(n) {
			require.EqualValues(t, s.Rows(), got)
		} else {
			require.LessOrEqual(t, got, n)
			require.Greater(t, got, min(n, 32)/3)
		}
		heads := map[[2]int]bool{}
		for _, r := range sample {
			require.False(t, heads[[2]int{r.B, r.H}], "a head once")
			heads[[2]int{r.B, r.H}] = true
			require.IsIncreasing(t, append([]int{-1}, r.Rows...))
			require.Less(t, r.Rows[len(r.Rows)-1], s.Sq)
			if len(r.Rows) > 1 {
				require.Equal(t, 0, r.Rows[0])
				require.Equal(t, s.Sq-1, r.Rows[len(r.Rows)-1])
			}
		}
		require.True(t, heads[[2]int{0, 0}])
		require.True(t, len(sample) == 1 || heads[[2]int{s.B - 1, s.Hq - 1}])
	})
}

// Few rows for many heads are spread over these, and special rows over the heads.
func TestSamplesOfHeads(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		lengths := rapid.SliceOfN(rapid.SampledFrom([]int{0, 1, 2, 17, 300}), 1, 40).Draw(t, "lengths")
		used := make([]byte, 4*len(lengths))
		for b, n := range lengths {
			binary.LittleEndian.PutUint32(used[4*b:], uint32(n))
		}
		a := problem.Args{Shape: problem.Shape{B: len(lengths), Hq: rapid.IntRange(1, 9).Draw(t, "hq"), Hkv: 1, Sq: 300, Sk: 10}}
		a.Varlen = &problem.Varlen{UsedQ: problem.Vector{Host: used}}
		n := rapid.IntRange(1, 2000).Draw(t, "n")
		sample, err := accuracy.SampleRows(a, n, 1, problem.CausalNone, rapid.Uint64().Draw(t, "seed"))
		require.NoError(t, err)
		heads, sequences := map[[2]int]bool{}, map[int]bool{}
		for _, r := range sample {
			heads[[2]int{r.B, r.H}], sequences[r.B] = true, true
			require.NotEmpty(t, r.Rows)
			require.IsIncreasing(t, append([]int{-1}, r.Rows...))
			require.Less(t, r.Rows[len(r.Rows)-1], lengths[r.B])
		}
		require.Len(t, heads, len(sample), "a head once")
		existing := 0
		for b, n := range lengths {
			require.Equal(t, n > 0, sequences[b])
			if n > 0 {
				existing++
			}
		}
		require.LessOrEqual(t, tensors.CountRows(sample), max(n, existing))
		require.Len(t, sample, min(existing*a.Hq, max(n, existing)))
	})
	list, err := accuracy.SampleRows(problem.Args{Shape: problem.Shape{B: 1, Hq: 50, Hkv: 1, Sq: 300, Sk: 10}}, 50, 1, problem.CausalNone, 1)
	require.NoError(t, err)
	rows := map[int]bool{}
	for _, r := range list {
		require.Len(t, r.Rows, 1)
		rows[r.Rows[0]] = true
	}
	require.True(t, rows[0] && rows[299], "the first and the last row")
}

// A sample of a large problem finds an error in the rows it holds, and its
// verdict names the place.
func TestSampledVerdict(t *testing.T) {
	cfg := attention.Config{HeadDim: 32}
	s := attention.Shape{B: 2, Hq: 3, Sq: 700, Sk: 64}
	a := call(cfg, s)
	ref, lse, err := attention.Reference(cfg, a)
	require.NoError(t, err)
	o := round(cfg.DType, ref)
	store(cfg, a, o, round(attention.F32, lse))
	opt := accuracy.Options{Rows: 100, Seed: 3}
	v, err := accuracy.Verify(problem.Config(cfg), a, opt)
	require.NoError(t, err)
	require.True(t, v.Pass(), "%v", v)
	require.Less(t, v.Rows, 101)
	last := (int(s.Rows()) - 1) * 32
	o[last+5] += 1
	store(cfg, a, o, round(attention.F32, lse))
	v, err = accuracy.Verify(problem.Config(cfg), a, opt)
	require.NoError(t, err)
	require.False(t, v.Pass())
	require.Contains(t, v.String(), "batch 1, head 2, row 699")
	t.Log(v)
}

func TestVerifyRefusesBadArguments(t *testing.T) {
	cfg := attention.Config{HeadDim: 32}
	a := call(cfg, shape)
	a.K.Host = a.K.Host[1:]
	_, err := accuracy.Verify(problem.Config(cfg), a, accuracy.Options{})
	var bad *attention.ShapeError
	require.ErrorAs(t, err, &bad)
	require.Equal(t, "K", bad.Field)
}
