package attention_test

import (
	"math"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"vkattn/attention"
	"vkattn/internal/accuracy"
	"vkattn/internal/problem"
	"vkattn/internal/testlevel"
)

func verify(t require.TestingT, p *hostProblem) {
	v, err := accuracy.Verify(problem.Config(p.cfg), p.Args, accuracy.Options{Rows: -1})
	require.NoError(t, err)
	require.True(t, v.Pass(), "%v: %v", p, v)
}

func TestCPUMatchesReference(t *testing.T) {
	testlevel.OnceOnly(t)
	shapes := []attention.Shape{
		{B: 1, Hq: 1, Sq: 1, Sk: 1},
		{B: 2, Hq: 3, Sq: 65, Sk: 129},
		{B: 1, Hq: 8, Hkv: 2, Sq: 127, Sk: 300},
		{B: 3, Hq: 4, Hkv: 1, Sq: 1, Sk: 1000},
		{B: 1, Hq: 2, Sq: 200, Sk: 63},
	}
	dims := [][2]int{{64, 64}, {128, 128}, {192, 128}, {256, 256}, {576, 512}, {7, 5}}
	for _, dt := range attention.DTypes() {
		for _, d := range dims {
			for _, causal := range []attention.Causal{attention.CausalNone, attention.TopLeft, attention.BottomRight} {
				for i, s := range shapes {
					if d[0] > 128 && (causal != attention.BottomRight || i > 2 || dt == attention.BF16) {
						continue // long in float64, and little new in them
					}
					cfg := attention.Config{DType: dt, HeadDim: d[0], HeadDimV: d[1], Causal: causal}
					p := newProblem(cfg, s, attention.BSHD, uint64(i+1))
					p.run(t)
					verify(t, p)
				}
			}
		}
	}
}

func TestCPUMatchesReferenceProperty(t *testing.T) {
	testlevel.HostOnly(t)
	check(t, func(t *rapid.T) {
		p := drawProblem(t)
		p.run(t)
		verify(t, p)
	})
}

// Large logits overflow a softmax without its maximum subtracted. With one
// dominant key per row the answer is known.
func TestCPULargeLogits(t *testing.T) {
	testlevel.HostOnly(t)
	for _, logit := range []float32{1e2, 1e4, 1e6, 1e30} {
		for _, sign := range []float32{1, -1} {
			cfg := attention.Config{DType: attention.F32, HeadDim: 4, Scale: attention.ScaleOf(sign)}
			p := newProblem(cfg, attention.Shape{B: 1, Hq: 1, Sq: 3, Sk: 130}, attention.BHSD, 1)
			for c := range p.Sk {
				k := []float32{0, 0, 0, 0}
				if c%40 < 3 {
					k[c%40] = logit
				}
				p.viewK().WriteRow(k, 0, 0, c)
			}
			for r := range p.Sq {
				q := []float32{0, 0, 0, 0}
				q[r] = sign
				p.viewQ().WriteRow(q, 0, 0, r)
			}
			_, lse := p.run(t)
			verify(t, p)
			for _, l := range lse {
				// Four keys tie for the maximum, 130 = 3*40 + 10.
				require.InEpsilon(t, float64(logit)+math.Log(4), float64(l), 1e-6)
			}
		}
	}
}

func TestCPUBitsDoNotDependOnGOMAXPROCS(t *testing.T) {
	testlevel.HostOnly(t)
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	cfg := attention.Config{HeadDim: 40, Causal: attention.BottomRight}
	p := newProblem(cfg, attention.Shape{B: 2, Hq: 6, Hkv: 2, Sq: 77, Sk: 200}, attention.BHSD, 3)
	runtime.GOMAXPROCS(1)
	o1, lse1 := p.run(t)
	for _, n := range []int{2, 5, 64} {
		runtime.GOMAXPROCS(n)
		o, lse := p.run(t)
		sameBits(t, o1, o, "O with GOMAXPROCS %d", n)
		sameBits(t, lse1, lse, "LSE with GOMAXPROCS %d", n)
	}
}

func TestRowsWithNothingToAttendTo(t *testing.T) {
	testlevel.HostOnly(t)
	for _, dt := range attention.DTypes() {
		cfg := attention.Config{DType: dt, HeadDim: 16, Causal: attention.BottomRight}
		p := newProblem(cfg, attention.Shape{B: 1, Hq: 2, Sq: 100, Sk: 30}, attention.BHSD, 9)
		o, lse := p.run(t)
		verify(t, p)
		for h := range 2 {
			for r := range 100 {
				i := h*100 + r
				empty := r < 70
				require.Equal(t, empty, math.IsInf(float64(lse[i]), -1), "row %d", r)
				for _, x := range o[i*16:][:16] {
					require.True(t, !empty || math.Float32bits(x) == 0, "row %d", r)
				}
			}
		}
		// The first row that sees anything sees key 0 alone.
		row := make([]float32, 16)
		p.viewV().ReadRow(row, 0, 0, 0)
		sameBits(t, row, o[70*16:][:16], "the row that sees one key")
	}
}

func TestNaNAndInfInAttendedSlots(t *testing.T) {
	testlevel.HostOnly(t)
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	const sk = 100
	for _, c := range []struct {
		name    string
		change  func(p *hostProblem)
		o, lse  func(float64) bool
		o0Alone bool // only column 0 of O is affected
	}{
		{"NaN in Q", func(p *hostProblem) { p.viewQ().WriteRow([]float32{nan, 1}, 0, 0, 0) }, math.IsNaN, math.IsNaN, false},
		{"NaN in K", func(p *hostProblem) { p.viewK().WriteRow([]float32{nan, 1}, 0, 0, 70) }, math.IsNaN, math.IsNaN, false},
		{"NaN in every K", func(p *hostProblem) {
			for c := range sk {
				p.viewK().WriteRow([]float32{nan, 1}, 0, 0, c)
			}
		}, math.IsNaN, math.IsNaN, false},
		{"score +Inf", func(p *hostProblem) { p.viewK().WriteRow([]float32{inf, 1}, 0, 0, 70) }, math.IsNaN, math.IsNaN, false},
		{"every score -Inf", func(p *hostProblem) {
			for c := range sk {
				p.viewK().WriteRow([]float32{-inf, 1}, 0, 0, c)
			}
		}, isZero, isMinusInf, false},
		{"first scores -Inf", func(p *hostProblem) {
			for c := range 80 {
				p.viewK().WriteRow([]float32{-inf, 1}, 0, 0, c)
			}
		}, isFinite, isFinite, false},
		{"NaN in V", func(p *hostProblem) { p.viewV().WriteRow([]float32{nan, 1}, 0, 0, 3) }, math.IsNaN, isFinite, true},
		{"Inf in V", func(p *hostProblem) { p.viewV().WriteRow([]float32{inf, 1}, 0, 0, 3) }, isPlusInf, isFinite, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newProblem(attention.Config{DType: attention.F32, HeadDim: 2},
				attention.Shape{B: 1, Hq: 1, Sq: 1, Sk: sk}, attention.BHSD, 2)
			p.viewQ().WriteRow([]float32{1, 1}, 0, 0, 0)
			c.change(p)
			o, lse := p.run(t)
			require.True(t, c.o(float64(o[0])), "O is %v", o)
			require.True(t, c.o0Alone && isFinite(float64(o[1])) || !c.o0Alone && c.o(float64(o[1])), "O is %v", o)
			require.True(t, c.lse(float64(lse[0])), "LSE is %v", lse)
			verify(t, p)
		})
	}
}

func isZero(v float64) bool     { return v == 0 }
func isPlusInf(v float64) bool  { return math.IsInf(v, 1) }
func isMinusInf(v float64) bool { return math.IsInf(v, -1) }
func isFinite(v float64) bool   { return !math.IsNaN(v) && !math.IsInf(v, 0) }
