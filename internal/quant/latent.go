package quant

import (
	"encoding/binary"
	"math"

	"vkattn/internal/half"
)

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
