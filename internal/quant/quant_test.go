package quant_test

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/internal/half"
	"vkattn/internal/quant"
)

func TestFP8Values(t *testing.T) {
	for b, want := range map[byte]float64{
		0x00: 0, 0x01: 0x1p-9, 0x07: 7 * 0x1p-9, 0x08: 0x1p-6, 0x0f: 15 * 0x1p-9, 0x38: 1, 0x39: 1.125,
		0x40: 2, 0x77: 240, 0x78: 256, 0x7e: 448, 0xb8: -1, 0xfe: -448, 0x81: -0x1p-9,
	} {
		require.Equal(t, float32(want), quant.FP8ToFloat32(b), "%#02x", b)
	}
	require.True(t, math.Signbit(float64(quant.FP8ToFloat32(0x80))), "-0")
	for _, nan := range []byte{0x7f, 0xff} {
		require.True(t, math.IsNaN(float64(quant.FP8ToFloat32(nan))))
		require.Equal(t, nan&0x7f, quant.FP8FromFloat32(quant.FP8ToFloat32(nan))&0x7f)
	}
}

// Every number comes back, and what lies between two goes to the nearer, ties to the
// even one.
func TestFP8RoundsToNearest(t *testing.T) {
	for sign := range 2 {
		for i := range 0x7f {
			b := byte(sign<<7 | i)
			x := quant.FP8ToFloat32(b)
			require.Equal(t, b, quant.FP8FromFloat32(x), "%v", x)
			if i == 0x7e {
				continue
			}
			next := quant.FP8ToFloat32(b + 1)
			middle := (x + next) / 2
			even := b + b&1
			require.Equal(t, even, quant.FP8FromFloat32(middle), "between %v and %v", x, next)
			require.Equal(t, b, quant.FP8FromFloat32(math.Nextafter32(middle, x)))
			require.Equal(t, b+1, quant.FP8FromFloat32(math.Nextafter32(middle, next)))
		}
	}
	for _, x := range []float32{448, 449, 480, 1e30, float32(math.Inf(1))} {
		require.Equal(t, byte(0x7e), quant.FP8FromFloat32(x))
		require.Equal(t, byte(0xfe), quant.FP8FromFloat32(-x))
	}
	require.Equal(t, byte(0), quant.FP8FromFloat32(1e-30))
}

func TestScaledTypesUseTheirRange(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 100 {
		x := make([]float32, 1+r.IntN(100))
		var most float64
		for i := range x {
			x[i] = float32(r.NormFloat64() * math.Exp(4*r.NormFloat64()))
			most = max(most, math.Abs(float64(x[i])))
		}
		bytes, numbers := make([]byte, len(x)), make([]float32, len(x))
		scale := quant.Int8.Encode(bytes, x)
		quant.Int8.Decode(numbers, bytes)
		require.InEpsilon(t, most/127, float64(scale), 1e-6)
		for i, n := range numbers {
			require.LessOrEqual(t, math.Abs(float64(n)), 127.0)
			require.InDelta(t, x[i], float64(scale)*float64(n), float64(scale)*0.5001)
		}
		scale = quant.FP8.Encode(bytes, x)
		quant.FP8.Decode(numbers, bytes)
		require.InEpsilon(t, most/448, float64(scale), 1e-6)
		for i, n := range numbers {
			require.InDelta(t, x[i], float64(scale)*float64(n), max(math.Abs(float64(x[i]))/16, float64(scale)*0x1p-10)*1.0001)
		}
	}
	bytes := []byte{1, 1}
	require.Zero(t, quant.Int8.Encode(bytes, []float32{0, 0}))
	require.Equal(t, []byte{0, 0}, bytes)
	require.Zero(t, quant.FP8.Encode(bytes, []float32{0, 0}))
	require.Equal(t, []byte{0, 0}, bytes)
}

// Two blocks worked out by hand.
func TestQ8_0Bytes(t *testing.T) {
	x := make([]float32, 64)
	x[0], x[1], x[2], x[3], x[31] = 127, -63.5, 0.5, -0.5, -126.4 // scale 1: halves away from 0
	x[32], x[40] = -2.54, 1.27                                    // scale 0.02
	b := make([]byte, 2*quant.Q8_0.Bytes)
	quant.Q8_0.Encode(b, x)
	require.Equal(t, half.F16FromFloat32(1), binary.LittleEndian.Uint16(b))
	require.Equal(t, []int8{127, -64, 1, -1, 0, -126}, []int8{int8(b[2]), int8(b[3]), int8(b[4]), int8(b[5]), int8(b[6]), int8(b[33])})
	require.Equal(t, half.F16FromFloat32(0.02), binary.LittleEndian.Uint16(b[34:]))
	require.Equal(t, []int8{-127, 64}, []int8{int8(b[36]), int8(b[44])})
	back := make([]float32, 64)
	quant.Q8_0.Decode(back, b)
	require.Equal(t, []float32{127, -64, 1, -1, 0}, back[:5])
	require.Equal(t, half.F16ToFloat32(half.F16FromFloat32(0.02))*-127, back[32])
}

func TestQ4_0Bytes(t *testing.T) {
	x := make([]float32, 64)
	x[0], x[1], x[16], x[17], x[31] = -8, 7, 3.4, 3.5, 8 // the first of the largest decides: scale 1
	x[33], x[50] = 4, -1                                 // scale -0.5: 4 is -8 of it, -1 is 2
	b := make([]byte, 2*quant.Q4_0.Bytes)
	quant.Q4_0.Encode(b, x)
	require.Equal(t, half.F16FromFloat32(1), binary.LittleEndian.Uint16(b))
	require.Equal(t, []byte{0 | 11<<4, 15 | 12<<4, 8 | 8<<4}, b[2:5])
	require.Equal(t, byte(8|15<<4), b[17], "8 does not fit: 7")
	require.Equal(t, half.F16FromFloat32(-0.5), binary.LittleEndian.Uint16(b[18:]))
	require.Equal(t, []byte{8 | 8<<4, 0 | 8<<4, 8 | 10<<4}, b[20:23])
	back := make([]float32, 64)
	quant.Q4_0.Decode(back, b)
	require.Equal(t, []float32{-8, 7}, back[:2])
	require.Equal(t, []float32{3, 4}, back[16:18])
	require.Equal(t, []float32{0, 4}, back[32:34])
	require.Equal(t, float32(-1), back[50])
}

// A scale whose inverse is no float32 is 0 as an f16: the block is stored as one of zeros.
func TestBlocksOfNumbersNextTo0(t *testing.T) {
	x := make([]float32, 32)
	zeros, b := make([]byte, 34), make([]byte, 34)
	for _, encode := range []func([]byte, []float32) float32{quant.Q8_0.Encode, quant.Q4_0.Encode, quant.Q5_0.Encode, quant.IQ4NL.Encode} {
		clear(x)
		clear(zeros)
		encode(zeros, x)
		for _, most := range []float32{math.SmallestNonzeroFloat32, 1e-40, 0x1p-126} {
			x[1], x[9] = most, -most/2
			clear(b)
			encode(b, x)
			require.Equal(t, zeros[2:], b[2:], "%v", most)
		}
	}
}

func TestBlocksOfRandomNumbers(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	x, back := make([]float32, 32*50), make([]float32, 32*50)
	for i := range x {
		if i/32 != 7 { // a block of zeros
			x[i] = float32(r.NormFloat64())
		}
	}
	for _, c := range []struct {
		*quant.Format
		steps, largest float64
	}{
		{quant.Q8_0, 127, 0.5},
		{quant.Q4_0, 8, 1}, // the other end of the range is a step short
		{quant.Q5_0, 16, 1},
		{quant.Q4_1, 7.5, 0.51}, // a range of at most twice the largest, in 15 steps; the minimum is rounded too
		{quant.Q5_1, 15.5, 0.52},
		{quant.IQ4NL, 127, 14}, // the number opposite to -127 is 113; others are up to 24 apart
	} {
		b := make([]byte, 50*c.Bytes)
		c.Encode(b, x)
		c.Decode(back, b)
		for i := range x {
			var most float64
			for _, y := range x[i/32*32:][:32] {
				most = max(most, math.Abs(float64(y)))
			}
			require.InDelta(t, x[i], back[i], (c.largest+c.steps/2048)*most/c.steps, "element %d", i)
		}
	}
}

// Blocks worked out by hand by the formulas of ggml's reference quantizers.
func TestBlocksOfNibbles(t *testing.T) {
	ramp := make([]float32, 32) // 0 to 31 with a scale of 1 and a minimum of 0
	for i := range ramp {
		ramp[i] = float32(i)
	}
	b := make([]byte, quant.Q5_1.Bytes)
	quant.Q5_1.Encode(b, ramp)
	require.Equal(t, []byte{0, 0x3c, 0, 0, 0, 0, 0xff, 0xff, 0x00, 0x11, 0x22}, b[:11], "scale 1, minimum 0, fifth bits of elements 16 to 31, elements 0 and 16")
	back := make([]float32, 32)
	quant.Q5_1.Decode(back, b)
	require.Equal(t, ramp, back)

	x := make([]float32, 32)
	for i := range x {
		x[i] = -3 + 0.5*float32(i%16) // to 4.5 in steps of 0.5
	}
	x[1] = -2.75 // a tie, which goes up
	b = make([]byte, quant.Q4_1.Bytes)
	quant.Q4_1.Encode(b, x)
	require.Equal(t, []byte{0, 0x38, 0, 0xc2, 0x00, 0x11, 0x22}, b[:7], "scale 0.5, minimum -3")
	quant.Q4_1.Decode(back, b)
	x[1] = -2.5
	require.Equal(t, x, back)

	for i := range x {
		x[i] = float32(i - 16)
	}
	b = make([]byte, quant.Q5_0.Bytes)
	quant.Q5_0.Encode(b, x)
	require.Equal(t, []byte{0, 0x3c, 0, 0, 0xff, 0xff, 0x00, 0x11, 0x22}, b[:9], "scale 1; -16 is code 0 and 0 is code 16")
	quant.Q5_0.Decode(back, b)
	require.Equal(t, x, back)
	x[0], x[31] = 0, 16 // the largest is 16 now: the scale is -1
	quant.Q5_0.Encode(b, x)
	require.Equal(t, half.F16FromFloat32(-1), binary.LittleEndian.Uint16(b))
	require.Equal(t, byte(0x0f), b[6+15]>>4|b[6+1]&15, "16 is code 0, -15 is code 31")
	quant.Q5_0.Decode(back, b)
	require.Equal(t, x, back)

	numbers := []float32{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}
	for i := range x {
		x[i] = 2 * numbers[i%16]
	}
	b = make([]byte, quant.IQ4NL.Bytes)
	quant.IQ4NL.Encode(b, x)
	require.Equal(t, []byte{0, 0x40, 0x00, 0x11}, b[:4], "scale 2")
	quant.IQ4NL.Decode(back, b)
	require.Equal(t, x, back)
	for code := range 15 { // ties and their neighbours
		middle := numbers[code] + numbers[code+1] // times a scale of 2
		for i, want := range map[float32]int{middle: code + 1, math.Nextafter32(middle, -1000): code, math.Nextafter32(middle, 1000): code + 1} {
			x[5] = i
			quant.IQ4NL.Encode(b, x)
			require.EqualValues(t, want, b[2+5]&15, "%v", i)
		}
	}
}

// Blocks whose elements are equal have a scale of 0 and are exact if the minimum is.
func TestBlocksWithAMinimumOfOneNumber(t *testing.T) {
	x, back := make([]float32, 32), make([]float32, 32)
	for _, f := range []*quant.Format{quant.Q4_1, quant.Q5_1} {
		for i := range x {
			x[i] = -1.5
		}
		b := make([]byte, f.Bytes)
		f.Encode(b, x)
		f.Decode(back, b)
		require.Equal(t, x, back)
		x[3], x[4] = math.MaxFloat32, -math.MaxFloat32 // a range that float32 does not hold
		f.Encode(b, x)
		require.Equal(t, half.F16FromFloat32(float32(math.Inf(1))), binary.LittleEndian.Uint16(b))
	}
}

// Every float8 e5m2 is the float16 of its bits, and what lies between two goes to the nearer,
// ties to the even one.
func TestE5M2(t *testing.T) {
	for b, want := range map[byte]float64{0x00: 0, 0x01: 0x1p-16, 0x03: 3 * 0x1p-16, 0x04: 0x1p-14, 0x3c: 1, 0x3d: 1.25, 0x7b: 57344, 0xbc: -1, 0x7c: math.Inf(1), 0xfc: math.Inf(-1)} {
		require.Equal(t, float32(want), quant.E5M2ToFloat32(b), "%#02x", b)
	}
	for i := range 256 {
		b := byte(i)
		x := quant.E5M2ToFloat32(b)
		if x != x {
			require.True(t, b&0x7f > 0x7c)
			y := quant.E5M2ToFloat32(quant.E5M2FromFloat32(x))
			require.True(t, y != y)
			continue
		}
		require.Equal(t, b, quant.E5M2FromFloat32(x), "%v", x)
		if b&0x7f >= 0x7b {
			continue
		}
		next := quant.E5M2ToFloat32(b + 1)
		middle := (x + next) / 2
		require.Equal(t, b+b&1, quant.E5M2FromFloat32(middle), "between %v and %v", x, next)
		require.Equal(t, b, quant.E5M2FromFloat32(math.Nextafter32(middle, x)))
		require.Equal(t, b+1, quant.E5M2FromFloat32(math.Nextafter32(middle, next)))
	}
	for _, x := range []float32{57345, 65504, 1e30} {
		require.Equal(t, byte(0x7b), quant.E5M2FromFloat32(x), "saturates")
		require.Equal(t, byte(0xfb), quant.E5M2FromFloat32(-x))
	}
	bytes := make([]byte, 2)
	require.EqualValues(t, 2, quant.FP8E5M2.Encode(bytes, []float32{2 * 57344, -2}))
	require.Equal(t, []byte{0x7b, 0xbc}, bytes)
}

// With a given scale numbers saturate, and NaN stays NaN where the type has one.
func TestEncodeWithAScaleSaturates(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	x := []float32{1, -0.5, 300, -1e9, inf, -inf, nan, 0}
	for f, want := range map[*quant.Format][]float32{
		quant.Int8:    {2, -1, 127, -127, 127, -127, 0, 0},
		quant.FP8:     {2, -1, 448, -448, 448, -448, nan, 0},
		quant.FP8E5M2: {2, -1, 640, -57344, 57344, -57344, nan, 0}, // 600 is between 512 and 640
	} {
		got, bytes := make([]float32, len(x)), make([]byte, len(x))
		f.EncodeWith(bytes, x, 0.5)
		f.Decode(got, bytes)
		for i := range want {
			require.Equal(t, math.IsNaN(float64(want[i])), math.IsNaN(float64(got[i])), "%s %v", f.Name, x[i])
			if want[i] == want[i] {
				require.Equal(t, want[i], got[i], "%s %v", f.Name, x[i])
			}
		}
		for _, scale := range []float32{0, 0x1p-101, inf, nan} {
			f.EncodeWith(bytes, x, scale)
			require.Equal(t, make([]byte, len(x)), bytes, "%s, scale %v", f.Name, scale)
		}
	}
}

// A row of FP8DSMLA byte by byte: numbers, their scales, the rest of the row, as FlashMLA's README has it.
func TestLatentRow(t *testing.T) {
	x, row := make([]float32, 576), make([]byte, 656)
	x[0], x[1], x[127] = 448, -1.0625, 0x1p-10 // the scale is 1; ties to even; half of the least number
	x[128] = 7                                 // 7 / 448 = 2^-6
	x[129] = -0.5
	x[256] = 0x1p-101 // below what has numbers
	x[384], x[385] = 1, float32(math.Inf(-1))
	x[512], x[513], x[575] = 1.00390625, -3, float32(math.Inf(1)) // 1 + 2^-8 is a tie, to even
	require.Zero(t, quant.FP8DSMLA.Encode(row, x))
	want := make([]byte, 656)
	want[0], want[1], want[128], want[129] = 0x7e, 0xb8, 0x7e, 0xe0
	for i, scale := range []uint32{0x3f800000, 0x3c800000, 0x00800000, 0x7fc00000} {
		binary.LittleEndian.PutUint32(want[512+4*i:], scale)
	}
	want[512+12], want[512+13], want[512+14], want[512+15] = row[524], row[525], row[526], row[527] // any NaN
	require.True(t, math.IsNaN(float64(math.Float32frombits(binary.LittleEndian.Uint32(row[524:])))))
	copy(want[528:], []byte{0x80, 0x3f, 0x40, 0xc0})
	copy(want[654:], []byte{0x80, 0x7f})
	require.Equal(t, want, row)

	got := make([]float32, 576)
	quant.FP8DSMLA.Decode(got, row)
	require.Equal(t, []float32{448, -1, 0}, []float32{got[0], got[1], got[127]})
	require.Equal(t, []float32{7, -0.5, 0}, []float32{got[128], got[129], got[256]})
	require.True(t, math.IsNaN(float64(got[384])) && math.IsNaN(float64(got[500])))
	require.Equal(t, []float32{1, -3, float32(math.Inf(1))}, []float32{got[512], got[513], got[575]})
	value := make([]float32, 512) // V is the first part
	quant.FP8DSMLA.Decode(value, row)
	require.Equal(t, got[:384], value[:384])
}
