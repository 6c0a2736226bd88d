package attention_test

import (
	"vkattn/attention"
	"vkattn/attention/half"
	"vkattn/attention/quant"
)

// kvRow is the row of a key: as it is stored, and the numbers that makes.
func (c *composition) kvRow(kind, b, kv, key int) (bytes []byte, numbers []float32) {
	dim := c.D
	if kind == ofV {
		dim = c.Dv
	}
	r := c.numbers(kind, c.owner(b, key), kv, key)
	bytes = make([]byte, c.KV.RowBytes(c.DType, dim))
	numbers = normals(r, dim)
	switch c.KV {
	case attention.KVInt8:
		for i := range bytes {
			bytes[i] = byte(int8(r.IntN(255) - 127))
		}
		quant.DecodeInt8(numbers, bytes)
	case attention.KVFP8:
		for i, x := range numbers {
			bytes[i] = quant.FP8FromFloat32(16 * x)
		}
		quant.DecodeFP8(numbers, bytes)
	case attention.KVQ8_0:
		quant.EncodeQ8_0(bytes, numbers)
		quant.DecodeQ8_0(numbers, bytes)
	case attention.KVQ4_0:
		quant.EncodeQ4_0(bytes, numbers)
		quant.DecodeQ4_0(numbers, bytes)
	default:
		numbers = stored(c.DType, numbers)
		encodeAs(bytes, numbers, c.DType)
	}
	return bytes, numbers
}

// scale belongs to a block of keys: the one that begins with a key of sequence b,
// or, where sequences are packed and blocks go across them, a row of the tensor.
func (c *composition) scale(kind, b, kv, first int) float32 {
	if !c.PackK {
		b = c.owner(b, first)
	}
	scale := 0.5 + 1.5*c.numbers(ofScales, kind, b, kv, first).Float32()
	if c.KV == attention.KVInt8 {
		return scale / 64
	}
	return scale / 16
}

// stored is what becomes of numbers in a storage type.
func stored(dtype attention.DType, x []float32) []float32 {
	bytes := make([]byte, len(x)*dtype.Size())
	encodeAs(bytes, x, dtype)
	switch dtype {
	case attention.F16:
		half.DecodeF16(x, bytes)
	case attention.BF16:
		half.DecodeBF16(x, bytes)
	}
	return x
}

func encodeAs(dst []byte, x []float32, dtype attention.DType) {
	switch dtype {
	case attention.F16:
		half.EncodeF16(dst, x)
	case attention.BF16:
		half.EncodeBF16(dst, x)
	default:
		half.EncodeF32(dst, x)
	}
}

// decodeAs is encodeAs the other way.
func decodeAs(dst []float32, x []byte, dtype attention.DType) {
	switch dtype {
	case attention.F16:
		half.DecodeF16(dst, x)
	case attention.BF16:
		half.DecodeBF16(dst, x)
	default:
		half.DecodeF32(dst, x)
	}
}
