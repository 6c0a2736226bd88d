package gokernels

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// number draws a float32: of the size of scores, any finite one, a special one, or one with few bits.
func number(r *rand.Rand) float32 {
	switch r.IntN(8) {
	case 0:
		for {
			if x := math.Float32frombits(r.Uint32()); x-x == 0 {
				return x
			}
		}
	case 1:
		return []float32{0, math.Float32frombits(negativeZero), 1, -1, 0x1p-149, -0x1p-140, 0x1p-126, math.MaxFloat32}[r.IntN(8)]
	case 2:
		return float32(r.IntN(64)-32) * 0x1p-12
	}
	return float32(r.NormFloat64())
}

// fma is rounded once, next to the middle of two float32 and below the normal ones too.
func TestFMAIsRoundedOnce(t *testing.T) {
	const seed = 1
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	exact := func(x, y, z float32) float32 {
		sum := new(big.Float).SetPrec(1000).Mul(big.NewFloat(float64(x)), big.NewFloat(float64(y)))
		sum.SetPrec(1000).Add(sum, new(big.Float).SetPrec(1000).SetFloat64(float64(z)))
		f, _ := sum.Float32()
		return f
	}
	check := func(x, y, z float32) {
		if want, got := exact(x, y, z), fma(x, y, z); want != 0 || got != 0 {
			require.Equal(t, math.Float32bits(want), math.Float32bits(got), "%x * %x + %x", x, y, z)
		}
	}
	for range 20_000 {
		x, y, z := number(r), number(r), number(r)
		check(x, y, z)
		// A product that is half a unit in the last place of z, and a bit.
		z = math.Float32frombits(r.Uint32()&0x8fffffff | 0x30000000)
		half := math.Float32frombits(math.Float32bits(z)&0x7f800000) * 0x1p-24
		check(half, 1+float32(r.IntN(3)-1)*0x1p-23, z)
		check(half*0x1p-70, 0x1p70, z)
		// The same below the normal numbers.
		check(0x1p-75, 0x1p-75*(1+float32(r.IntN(3)-1)*0x1p-23), float32(r.IntN(1<<24))*0x1p-149)
		check(-0x1p-75, 0x1p-75*(1+float32(r.IntN(3)-1)*0x1p-23), float32(r.IntN(1<<24))*0x1p-149)
	}
	inf := float32(math.Inf(1))
	require.Equal(t, inf, fma(inf, 1, 1))
	require.Equal(t, inf, fma(math.MaxFloat32, 2, 0))
	require.True(t, math.IsNaN(float64(fma(inf, 0, 1))))
	require.Equal(t, uint32(negativeZero), math.Float32bits(fma(0, -1, math.Float32frombits(negativeZero))))
}

// inGo runs f with the kernels in Go alone.
func inGo(f func()) {
	fast, softmax := hasFast, fastSoftmax
	hasFast, fastSoftmax = false, false
	defer func() { hasFast, fastSoftmax = fast, softmax }()
	f()
}

func same(t *testing.T, want, got []float32, message string, args ...any) {
	t.Helper()
	for i := range want {
		if want[i] == want[i] || got[i] == got[i] { // a NaN may have other bits
			require.Equalf(t, math.Float32bits(want[i]), math.Float32bits(got[i]), message, args...)
		}
	}
}

// The products in assembly have the bits of those in Go, and write what they should.
func TestProductsInAssembly(t *testing.T) {
	if !hasFast {
		t.Skip("this CPU has none")
	}
	const seed = 2
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	numbers := func(n int, zero uint32) []float32 {
		x := make([]float32, n)
		for i := range x {
			x[i] = number(r)
			if r.IntN(3) == 0 {
				x[i] = math.Float32frombits(zero)
			} else if r.IntN(200) == 0 {
				x[i] = []float32{float32(math.Inf(1)), float32(math.NaN())}[r.IntN(2)]
			}
		}
		return x
	}
	for _, lanes := range []int{Vector, Lanes} {
		for _, skip := range []skipping{skipNone, skipMasked, skipZero} {
			for n := range 11 {
				for _, depth := range []int{0, 1, 2, 7, 33} {
					bRow := lanes + 8*r.IntN(3)
					b := numbers(depth*bRow+lanes, skip.bits)
					if skip.on && depth > 1 { // all of a row
						for i := range lanes {
							b[bRow+i] = math.Float32frombits(skip.bits)
						}
					}
					a := numbers(64*64, 0)
					for _, m := range []matrix{matrixOf(a, 40, 1), matrixOf(a, 1, 20), {unsafe.Pointer(&a[11*40]), -40, 1}} {
						for _, adds := range []bool{false, true} {
							const cRow = 24
							want := numbers(12*cRow, 0)
							got := append([]float32(nil), want...)
							to := func(c []float32) store { return store{c, cRow, []float32{0.3, 1}[b2i(adds)], adds} }
							inGo(func() { product(lanes, n, depth, skip, m, b, bRow, to(want)) })
							product(lanes, n, depth, skip, m, b, bRow, to(got))
							same(t, want, got, "%d lanes, %d rows, depth %d, skip %v, add %v", lanes, n, depth, skip, adds)
						}
					}
				}
			}
		}
	}
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// The softmax in assembly has the bits of that in Go.
func TestSoftmaxInAssembly(t *testing.T) {
	if !fastSoftmax {
		t.Skip("this CPU has none")
	}
	const seed, keys = 3, 40
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for range 2000 {
		lanes := []int{Vector, Lanes}[r.IntN(2)]
		draw := func() [Lanes]float32 {
			var x [Lanes]float32
			for i := range x {
				x[i] = float32(r.NormFloat64() * 30)
			}
			return x
		}
		least, fraction, sum, carry := draw(), draw(), draw(), draw()
		var m [Lanes]float32
		for i := range m {
			m[i], fraction[i], least[i] = float32(r.IntN(300)), fraction[i]/60, least[i]-150
			carry[i] *= 1e-7
		}
		s := make([]float32, keys*Lanes)
		for i := range s {
			s[i] = float32(r.NormFloat64() * 40)
			if r.IntN(30) == 0 {
				s[i] = []float32{float32(math.Inf(-1)), float32(math.NaN()), 0, 0x1p18, -0x1p30}[r.IntN(5)]
			}
		}
		want, got := append([]float32(nil), s...), append([]float32(nil), s...)
		wantSum, wantCarry, wantMost, gotMost := sum, carry, least, least
		for key := range keys {
			x := want[key*Lanes:][:lanes]
			for i := range x {
				wantMost[i] = larger(x[i], wantMost[i])
			}
			weights(x, &least, fraction[:lanes], &m)
			for i, p := range x {
				y := p - wantCarry[i]
				next := wantSum[i] + y
				wantCarry[i] = (next - wantSum[i]) - y
				wantSum[i] = next
			}
		}
		largestRows(got, keys, &gotMost)
		same(t, wantMost[:lanes], gotMost[:lanes], "largest")
		weightRows(got, keys, &least, fraction[:lanes], &m)
		same(t, want, got, "weights of %d lanes", lanes)
		copy(got, s)
		weightRowsSum(got, keys, &least, fraction[:lanes], &m, sum[:], carry[:])
		same(t, want, got, "weights of %d lanes, with sums", lanes)
		same(t, wantSum[:], sum[:], "sums of %d lanes", lanes)
		same(t, wantCarry[:], carry[:], "carries of %d lanes", lanes)
	}
}
