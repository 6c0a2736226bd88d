package quant

import (
	"encoding/binary"
	"math"

	"vkattn/internal/half"
)

// BlockElements is the number of elements of a block.
const BlockElements = 32

const q8Bytes = 2 + BlockElements

func encodeQ8(dst []byte, src []float32) float32 {
	for ; len(src) >= BlockElements; dst, src = dst[q8Bytes:], src[BlockElements:] {
		inverse := putScale(dst, abs(largest(src))/127)
		for i, x := range src[:BlockElements] {
			dst[2+i] = byte(int8(math.Round(float64(x * inverse))))
		}
	}
	return 0
}

func decodeQ8(dst []float32, src []byte) {
	for ; len(dst) >= BlockElements; dst, src = dst[BlockElements:], src[q8Bytes:] {
		scale := half.F16ToFloat32(binary.LittleEndian.Uint16(src))
		for i, b := range src[2:q8Bytes] {
			dst[i] = scale * float32(int8(b))
		}
	}
}

// blocks are blocks whose bytes hold the codes of two elements: a scale as f16, with hasMin a
// minimum as f16, with 32 numbers the fifth bits of the codes, bit i that of element i, then 16
// bytes; byte i has the other four bits of element i in its low half and of element i+16 in
// its high one.
type blocks struct {
	numbers []float32 // the number of each code: element = scale * number, plus the minimum
	hasMin  bool
}

// steps are the numbers from first to last.
func steps(first, last int) (numbers []float32) {
	for n := first; n <= last; n++ {
		numbers = append(numbers, float32(n))
	}
	return numbers
}

func formatOf(name string, b *blocks) *Format {
	return &Format{Name: name, Elements: BlockElements, Bytes: b.header() + BlockElements/2, Encode: b.encode, Decode: b.decode}
}

func (b *blocks) hasFifth() bool { return len(b.numbers) == 32 }

// header is the number of bytes before those with two codes.
func (b *blocks) header() (bytes int) {
	bytes = 2
	if b.hasMin {
		bytes += 2
	}
	if b.hasFifth() {
		bytes += 4
	}
	return bytes
}

func (b *blocks) encode(dst []byte, src []float32) float32 {
	header := b.header()
	for ; len(src) >= BlockElements; dst, src = dst[header+BlockElements/2:], src[BlockElements:] {
		least := float32(0)
		scale := largest(src) / b.numbers[0]
		if b.hasMin {
			most := src[0]
			least = most
			for _, x := range src[:BlockElements] {
				least, most = min(least, x), max(most, x)
			}
			scale = (most - least) / b.numbers[len(b.numbers)-1]
			binary.LittleEndian.PutUint16(dst[2:], half.F16FromFloat32(least))
		}
		inverse := putScale(dst, scale)
		var fifth uint32
		code := func(i int) byte {
			c := b.code(float32(src[i]-least), inverse)
			fifth |= uint32(c>>4) << i
			return c & 15
		}
		for i := range BlockElements / 2 {
			dst[header+i] = code(i) | code(i+BlockElements/2)<<4
		}
		if b.hasFifth() {
			binary.LittleEndian.PutUint32(dst[header-4:], fifth)
		}
	}
	return 0
}

// code is the code of the number nearest to x * inverse, of two the larger one.
func (b *blocks) code(x, inverse float32) byte {
	last := len(b.numbers) - 1
	switch {
	case inverse == 0 && b.hasMin: // x may be infinite
		return 0
	case b.numbers[last]-b.numbers[0] == float32(last):
		return byte(min(last, int(float32(x*inverse)+(0.5-b.numbers[0]))))
	}
	x *= inverse
	code := 0
	for code < last && x >= (b.numbers[code]+b.numbers[code+1])/2 {
		code++
	}
	return byte(code)
}

func (b *blocks) decode(dst []float32, src []byte) {
	header := b.header()
	var values [32]float32
	for ; len(dst) >= BlockElements; dst, src = dst[BlockElements:], src[header+BlockElements/2:] {
		scale, least, fifth := half.F16ToFloat32(binary.LittleEndian.Uint16(src)), float32(0), uint32(0)
		for i, n := range b.numbers {
			values[i] = scale * n
		}
		if b.hasMin {
			least = half.F16ToFloat32(binary.LittleEndian.Uint16(src[2:]))
			for i := range b.numbers {
				values[i] += least
			}
		}
		if b.hasFifth() {
			fifth = binary.LittleEndian.Uint32(src[header-4:])
		}
		for i, c := range src[header : header+BlockElements/2] {
			dst[i] = values[uint32(c&15)|fifth>>i&1<<4]
			dst[i+BlockElements/2] = values[uint32(c>>4)|fifth>>(i+BlockElements/2)&1<<4]
		}
	}
}

// largest is the first element of a block of the largest magnitude, with its sign.
func largest(x []float32) (most float32) {
	for _, x := range x[:BlockElements] {
		if abs(x) > abs(most) {
			most = x
		}
	}
	return most
}

// putScale stores a block's scale as f16 and returns the inverse of the unrounded scale;
// 0 if float32 does not hold it.
func putScale(dst []byte, scale float32) (inverse float32) {
	binary.LittleEndian.PutUint16(dst, half.F16FromFloat32(scale))
	inverse = 1 / scale
	if math.IsInf(float64(inverse), 0) {
		return 0
	}
	return inverse
}

func abs(x float32) float32 { return float32(math.Abs(float64(x))) }

// A row of FP8DSMLA: numbers in float8 e4m3, the scale of each latentSpan of them in float32, the
// rest of the row in bfloat16.
const (
	LatentElements = 576
	LatentValues   = 512 // the elements in float8, which V has too
	latentSpan     = 128
	latentScales   = LatentValues // the byte of the first scale
	latentRotary   = latentScales + 4*LatentValues/latentSpan
	latentBytes    = latentRotary + 2*(LatentElements-LatentValues)
)

// leastLatentScale is FLT_MIN of C.
const leastLatentScale = 0x1p-126

func encodeLatent(dst []byte, src []float32) float32 {
	for ; len(src) >= LatentElements; dst, src = dst[latentBytes:], src[LatentElements:] {
		for i := 0; i < LatentValues; i += latentSpan {
			numbers, x := dst[i:][:latentSpan], src[i:][:latentSpan]
			most, scale := float32(0), float32(leastLatentScale)
			for _, v := range x {
				most = max(most, abs(v)) // NaN stays
			}
			switch {
			case most != most || most > math.MaxFloat32:
				clear(numbers)
				scale = float32(math.NaN())
			case most < LeastScale:
				clear(numbers)
			default:
				scale = FP8.ScaleOf(x)
				FP8.encode(numbers, x, scale)
			}
			binary.LittleEndian.PutUint32(dst[latentScales+4*i/latentSpan:], math.Float32bits(scale))
		}
		half.EncodeBF16(dst[latentRotary:], src[LatentValues:LatentElements])
	}
	return 0
}

// decodeLatent decodes whole rows, or the first elements of one.
func decodeLatent(dst []float32, src []byte) {
	for ; len(dst) > 0; dst, src = dst[min(len(dst), LatentElements):], src[latentBytes:] {
		for i := range min(len(dst), LatentValues) {
			scale := binary.LittleEndian.Uint32(src[latentScales+i/latentSpan*4:])
			dst[i] = math.Float32frombits(scale) * fp8Values[src[i]]
		}
		if len(dst) > LatentValues {
			half.DecodeBF16(dst[LatentValues:min(len(dst), LatentElements)], src[latentRotary:])
		}
	}
}
