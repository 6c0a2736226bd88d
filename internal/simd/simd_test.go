package simd_test

import (
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"vkattn/internal/half"
	"vkattn/internal/quant"
	"vkattn/internal/simd"
)

// Every stored number is widened as packages half and quant do, at any length of rows.
func TestWidenIsTheGoPackages(t *testing.T) {
	const seed = 11
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	halves := make([]byte, 2<<16)
	for i := range 1 << 16 {
		halves[2*i], halves[2*i+1] = byte(i), byte(i>>8)
	}
	bytes := make([]byte, 256)
	for i := range bytes {
		bytes[i] = byte(i)
	}
	blocks := make([]byte, 34*64)
	for i := range blocks {
		blocks[i] = byte(r.Uint32())
	}
	type stored struct {
		name   string
		t      simd.Type
		data   []byte
		n, per int // elements, and multiples of how many
		decode func(dst []float32, src []byte)
	}
	var quantized []stored
	for i, f := range quant.Formats {
		s := stored{f.Name, simd.Quantized + simd.Type(i), blocks, 32 * 64, 32, f.Decode}
		switch {
		case f.Scaled():
			s.data, s.n, s.per = bytes, 256, 1
		case f.Row(): // and V
			s.n, s.per = quant.LatentValues, f.Elements
			quantized = append(quantized, s)
			s.n = f.Elements
		}
		quantized = append(quantized, s)
	}
	for _, k := range simd.All() {
		for _, c := range append([]stored{
			{"f16", simd.F16, halves, 1 << 16, 1, half.DecodeF16},
			{"bf16", simd.BF16, halves, 1 << 16, 1, half.DecodeBF16},
			{"f32", simd.F32, halves, 1 << 15, 1, half.DecodeF32},
		}, quantized...) {
			lengths := []int{c.n}
			for n := c.per; n < 70; n += c.per {
				lengths = append(lengths, n)
			}
			for _, n := range lengths {
				want, got := make([]float32, n), make([]float32, n)
				c.decode(want, c.data)
				k.Widen(got, c.data, []int64{0}, nil, n, c.t)
				for i := range want {
					if want[i] == want[i] || got[i] == got[i] {
						require.Equal(t, math.Float32bits(want[i]), math.Float32bits(got[i]), "%s, %s, element %d of %d", k.Name, c.name, i, n)
					}
				}
			}
		}
	}
}

// A row that attends to one key gets its value, rounded to the storage type as package
// half does: any finite number, at any head dim.
func TestOneKeyIsItsValueRounded(t *testing.T) {
	const seed = 12
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for _, k := range simd.All() {
		for dv := 1; dv < 140; dv++ {
			value, q := make([]float32, dv), make([]byte, 8)
			for i := range value {
				for {
					value[i] = math.Float32frombits(r.Uint32())
					if r.IntN(2) == 0 { // of the size of halves, half-way between two now and then
						value[i] = math.Float32frombits(r.Uint32()&0x8fffffff | 0x30000000)
						value[i] = math.Float32frombits(math.Float32bits(value[i]) &^ 0xfff)
					}
					if !math.IsInf(float64(value[i]), 0) && value[i] == value[i] {
						break
					}
				}
			}
			for _, c := range []struct {
				t      simd.Type
				size   int
				encode func(dst []byte, src []float32)
			}{{simd.F16, 2, half.EncodeF16}, {simd.BF16, 2, half.EncodeBF16}, {simd.F32, 4, half.EncodeF32}} {
				g := k.NewGroup(2, dv)
				for i := range g.Rows(1) {
					g.Span[i], g.Span[k.Lanes+i], g.Sink[i] = 0, 1, float32(math.Inf(-1))
				}
				g.Begin(q, simd.F32)
				key := []float32{1, 1}
				g.Attend(&simd.Tile{
					Keys: []int32{0}, K: unsafe.Pointer(&key[0]), V: unsafe.Pointer(&value[0]), KStride: 2, VStride: dv,
					To: 1, FullTo: 1, Scale: 1,
				}, make([]float32, simd.Keys*k.Lanes))
				want, got := make([]byte, dv*c.size), make([]byte, dv*c.size+1)
				got[dv*c.size] = 0xa5
				c.encode(want, value)
				g.Finish(got, c.t, 1, 1)
				require.Equal(t, want, got[:dv*c.size], "%s, type %d, head dim %d", k.Name, c.t, dv)
				require.Equal(t, byte(0xa5), got[dv*c.size], "what follows the row")
				require.Zero(t, g.LSE[0])
			}
		}
	}
}
