package attention

import (
	"encoding/binary"
	"math"

	"vkattn/attention/half"
)

// encodeKV stores a row in the type of a cache, as shaders/append_encode.glsl does
// with the same operations, and returns its scale where that lies beside the row.
func encodeKV(dst []byte, row []float32, kv KVType, d DType) (scale float32) {
	switch kv {
	case KVInt8, KVFP8:
		scale, inverse := spanScale(row, kv)
		for i, x := range row {
			if kv == KVInt8 {
				dst[i] = encodeInt8(x, inverse)
			} else {
				dst[i] = encodeFP8(x, inverse)
			}
		}
		return scale
	case KVQ8_0, KVQ4_0:
		bytes := kv.RowBytes(d, blockElements)
		for ; len(row) > 0; row, dst = row[blockElements:], dst[bytes:] {
			encodeBlock(dst[:bytes], row[:blockElements], kv)
		}
		return 0
	}
	encode(dst, row, d)
	return 0
}

// encodeBlock stores 32 elements with their scale.
func encodeBlock(dst []byte, x []float32, kv KVType) {
	scale, inverse := spanScale(x, kv)
	binary.LittleEndian.PutUint16(dst, half.F16FromFloat32(scale))
	if dst = dst[2:]; kv == KVQ8_0 {
		for i := range dst {
			dst[i] = encodeInt8(x[i], inverse)
		}
		return
	}
	for i := range dst {
		dst[i] = encodeInt4(x[i], inverse) | encodeInt4(x[i+blockElements/2], inverse)<<4
	}
}

// spanScale is what turns stored numbers into elements of a span, and its inverse.
func spanScale(x []float32, kv KVType) (scale, inverse float32) {
	var first float32 // of the largest absolute value
	var most uint32   // its bits, which are ordered as the values are, NaN above all
	for _, v := range x {
		if bits := math.Float32bits(v) &^ (1 << 31); bits > most {
			first, most = v, bits
		}
	}
	largest := math.Float32frombits(most)
	switch {
	case most >= math.Float32bits(float32(math.Inf(1))):
		return float32(math.NaN()), 0
	case largest < 0x1p-100: // the inverse might overflow
		return 0, 0
	case kv == KVFP8:
		return largest * float32(1.0/448), 448 / largest
	case kv == KVQ4_0:
		return first * -0.125, -8 / first
	}
	return largest * float32(1.0/127), 127 / largest
}

// encodeInt8 rounds to the nearest of -127 to 127, halves away from 0.
func encodeInt8(x, inverse float32) byte {
	if inverse == 0 {
		return 0
	}
	scaled := float32(x * inverse)
	n := int8(min(float32(math.Abs(float64(scaled)))+0.5, 127))
	if scaled < 0 {
		n = -n
	}
	return byte(n)
}

// encodeInt4 is one of 0 to 15, of which 8 stands for 0.
func encodeInt4(x, inverse float32) byte {
	if inverse == 0 {
		return 8
	}
	return byte(max(0, min(float32(x*inverse)+8.5, 15)))
}

// encodeFP8 rounds to e4m3, ties to even; what lies past its largest, 448, does so
// by the rounding of the scale alone.
func encodeFP8(x, inverse float32) byte {
	if inverse == 0 {
		return 0
	}
	bits := math.Float32bits(float32(x * inverse))
	sign := byte(bits>>24) & 0x80
	magnitude := min(bits&^(1<<31), math.Float32bits(448))
	if magnitude < math.Float32bits(0x1p-6) { // steps of 2^-9: adding 2^14 leaves no others in a float32
		return sign | byte(math.Float32bits(math.Float32frombits(magnitude)+0x1p14)&0xf)
	}
	rebased := magnitude - (127-7)<<23
	return sign | byte((rebased+0x7ffff+rebased>>20&1)>>20)
}
