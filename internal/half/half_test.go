package half

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// format describes a 16-bit type by its widths alone, so that the tests derive
// values from the definition of the format and not from the code under test.
type format struct {
	name     string
	fraction uint // bits of fraction
	bias     int
	widen    func(uint16) float32
	narrow   func(float32) uint16
}

var formats = []format{
	{"f16", 10, 15, F16ToFloat32, F16FromFloat32},
	{"bf16", 7, 127, BF16ToFloat32, BF16FromFloat32},
}

// value decodes h in float64, which holds every value of both formats.
func (f format) value(h uint16) float64 {
	frac := float64(h & (1<<f.fraction - 1))
	exp := int(h&0x7fff) >> f.fraction
	one := math.Ldexp(1, int(f.fraction))
	var v float64
	switch {
	case exp == 1<<(15-f.fraction)-1 && frac != 0:
		return math.NaN()
	case exp == 1<<(15-f.fraction)-1:
		v = math.Inf(1)
	case exp == 0:
		v = math.Ldexp(frac, 1-f.bias-int(f.fraction))
	default:
		v = math.Ldexp(one+frac, exp-f.bias-int(f.fraction))
	}
	if h&0x8000 != 0 {
		v = math.Copysign(v, -1)
	}
	return v
}

func (f format) inf() uint16 { return 0x7fff &^ (1<<f.fraction - 1) }

func TestEveryHalfWidensExactlyAndComesBack(t *testing.T) {
	for _, f := range formats {
		for i := range 1 << 16 {
			h := uint16(i)
			want := f.value(h)
			got := f.widen(h)
			if math.IsNaN(want) {
				require.True(t, got != got, "%s %#04x widens to %v, want NaN", f.name, h, got)
				require.Equal(t, h|1<<(f.fraction-1), f.narrow(got), "%s %#04x: payload, sign and quiet bit", f.name, h)
				continue
			}
			if math.Float64bits(float64(got)) != math.Float64bits(want) {
				t.Fatalf("%s %#04x widens to %v, want %v", f.name, h, got, want)
			}
			if back := f.narrow(got); back != h {
				t.Fatalf("%s %#04x comes back as %#04x", f.name, h, back)
			}
		}
	}
}

// Every midpoint between neighbouring halves goes to the even one, and the
// float32 on either side of it to the nearer one.
func TestRoundingAtEveryMidpoint(t *testing.T) {
	for _, f := range formats {
		for h := uint16(0); h < f.inf(); h++ {
			lo, hi := f.value(h), f.value(h+1)
			if h+1 == f.inf() {
				hi = 2*lo - f.value(h-1) // where the next number would be
			}
			mid := float32((lo + hi) / 2)
			require.Equal(t, (lo+hi)/2, float64(mid), "a midpoint fits a float32")
			below := math.Nextafter32(mid, 0)
			above := math.Nextafter32(mid, float32(math.Inf(1)))
			even := h + h&1
			for _, c := range []struct {
				in   float32
				want uint16
			}{{below, h}, {mid, even}, {above, h + 1}} {
				if got := f.narrow(c.in); got != c.want {
					t.Fatalf("%s: %v (between %v and %v) narrows to %#04x, want %#04x", f.name, c.in, lo, hi, got, c.want)
				}
				if got := f.narrow(-c.in); got != c.want|0x8000 {
					t.Fatalf("%s: %v narrows to %#04x, want %#04x", f.name, -c.in, got, c.want|0x8000)
				}
			}
		}
	}
}

func TestOverflowAndSmallest(t *testing.T) {
	require.Equal(t, uint16(0x7bff), F16FromFloat32(65519.996))
	require.Equal(t, uint16(0x7c00), F16FromFloat32(65520))
	require.Equal(t, uint16(0x7c00), F16FromFloat32(math.MaxFloat32))
	require.Equal(t, uint16(0xfc00), F16FromFloat32(float32(math.Inf(-1))))
	require.Equal(t, uint16(0x0000), F16FromFloat32(0x1p-25), "half the smallest subnormal ties to zero")
	require.Equal(t, uint16(0x0001), F16FromFloat32(0x1.000002p-25))
	require.Equal(t, uint16(0x8000), F16FromFloat32(float32(math.Copysign(0, -1))))
	require.Equal(t, uint16(0x7f80), BF16FromFloat32(math.MaxFloat32))
	require.Equal(t, uint16(0x0000), BF16FromFloat32(math.SmallestNonzeroFloat32))
}

func TestNaNOfAnyPayloadStaysNaN(t *testing.T) {
	for _, f := range formats {
		for _, b := range []uint32{0x7f800001, 0xff800001, 0x7fc00000, 0x7fffffff, 0xffffffff, 0x7f80ffff, 0x7fff8000} {
			h := f.narrow(math.Float32frombits(b))
			require.Greater(t, h&0x7fff, f.inf(), "%s %#x narrows to %#04x", f.name, b, h)
			require.Equal(t, b>>31, uint32(h>>15), "sign")
		}
	}
}

// Random float32 bit patterns against arbitrary-precision rounding.
func TestNarrowingAgainstBigFloat(t *testing.T) {
	const seed = 7
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for range 200_000 {
		f32 := math.Float32frombits(r.Uint32())
		if f32 != f32 || math.IsInf(float64(f32), 0) {
			continue
		}
		for _, f := range formats {
			min := f.value(1 << f.fraction) // smallest normal
			if a := math.Abs(float64(f32)); a < min || a > f.value(f.inf()-1) {
				continue
			}
			want, _ := new(big.Float).SetPrec(f.fraction + 1).SetMode(big.ToNearestEven).SetFloat64(float64(f32)).Float64()
			if got := f.value(f.narrow(f32)); got != want {
				t.Fatalf("%s: %v narrows to %v, want %v", f.name, f32, got, want)
			}
		}
	}
}

func TestBulkIsElementwise(t *testing.T) {
	const n = 1 << 16
	bytes := make([]byte, 2*n)
	for i := range n {
		bytes[2*i], bytes[2*i+1] = byte(i), byte(i>>8)
	}
	for k, b := range []struct {
		decode func([]float32, []byte)
		encode func([]byte, []float32)
	}{{DecodeF16, EncodeF16}, {DecodeBF16, EncodeBF16}} {
		f := formats[k]
		wide, back := make([]float32, n), make([]byte, 2*n)
		b.decode(wide, bytes)
		b.encode(back, wide)
		for i := range wide {
			require.Equal(t, math.Float32bits(f.widen(uint16(i))), math.Float32bits(wide[i]))
			require.Equal(t, f.narrow(wide[i]), uint16(back[2*i])|uint16(back[2*i+1])<<8)
		}
	}
}

func TestF32BytesKeepEveryBit(t *testing.T) {
	src := []float32{0, -1.5, float32(math.Inf(1)), math.Float32frombits(0x7f800001), math.SmallestNonzeroFloat32}
	b := make([]byte, 4*len(src))
	EncodeF32(b, src)
	got := make([]float32, len(src))
	DecodeF32(got, b)
	for i := range src {
		require.Equal(t, math.Float32bits(src[i]), math.Float32bits(got[i]))
	}
	require.Equal(t, []byte{0, 0, 0xc0, 0xbf}, b[4:8], "little-endian")
}

func BenchmarkBulk(b *testing.B) {
	const n = 1 << 14
	wide, bytes := make([]float32, n), make([]byte, 4*n)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range wide {
		wide[i] = float32(r.NormFloat64())
	}
	for _, c := range []struct {
		name string
		f    func()
	}{
		{"EncodeF16", func() { EncodeF16(bytes, wide) }},
		{"DecodeF16", func() { DecodeF16(wide, bytes) }},
		{"EncodeBF16", func() { EncodeBF16(bytes, wide) }},
		{"DecodeBF16", func() { DecodeBF16(wide, bytes) }},
		{"EncodeF32", func() { EncodeF32(bytes, wide) }},
		{"DecodeF32", func() { DecodeF32(wide, bytes) }},
	} {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				c.f()
			}
			b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds()/1e6, "Melem/s")
		})
	}
}
