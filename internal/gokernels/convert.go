package gokernels

import (
	"encoding/binary"
	"math"

	"vkattn/internal/half"
	"vkattn/internal/quant"
)

func elementBytes(t Type) int {
	if t == F32 {
		return 4
	}
	return 2
}

// widenRow widens len(dst) elements. Quantized ones are multiplied by scale.
func widenRow(dst []float32, src []byte, t Type, scale float32) {
	switch t {
	case F32:
		half.DecodeF32(dst, src)
	case F16:
		half.DecodeF16(dst, src)
	case BF16: // a NaN keeps its bits
		src = src[:2*len(dst)]
		for i := range dst {
			dst[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(src[2*i:])) << 16)
		}
	default:
		f := quant.Formats[t-Quantized]
		f.Decode(dst, src)
		if f.Scaled() {
			for i := range dst {
				dst[i] = float32(dst[i] * scale)
			}
		}
	}
}

// narrowRow rounds elements to nearest even.
func narrowRow(dst []byte, src []float32, t Type) {
	switch t {
	case F32:
		half.EncodeF32(dst, src)
	case F16:
		half.EncodeF16(dst, src)
	default:
		half.EncodeBF16(dst, src)
	}
}

// transpose sets dst[c][r] to src[r][c] for r < rows and c < columns.
func transpose(dst []float32, dstStride int, src []float32, srcStride, rows, columns int) {
	for r := range rows {
		row := src[r*srcStride:][:columns]
		for c, x := range row {
			dst[c*dstStride+r] = x
		}
	}
}

// PackQ widens rows of Q and transposes them.
func PackQ(q []float32, base []byte, at []int64, vectors, d int, t Type) {
	var row [256]float32
	for i := range vectors * Vector {
		for j := 0; j < d; j += len(row) {
			part := row[:min(d-j, len(row))]
			widenRow(part, base[int(at[i])+j*elementBytes(t):], t, 1)
			for c, x := range part {
				q[(j+c)*Lanes+i] = x
			}
		}
	}
}

// Widen converts rows of K or V to float32; scales is nil for types without scales.
func Widen(dst []float32, base []byte, at []int64, scales []float32, d int, t Type) {
	for i, a := range at {
		scale := float32(1)
		if scales != nil {
			scale = scales[i]
		}
		widenRow(dst[i*d:][:d], base[a:], t, scale)
	}
}

// run is the number of consecutive keys at the beginning, at most most.
func run(keys []int32, most int) int {
	n := 1
	for n < most && n < len(keys) && keys[n] == keys[0]+int32(n) {
		n++
	}
	return n
}

// ReadBias gathers the biases of a group at keys: dst[key][lane].
func ReadBias(dst []float32, base []byte, at []int64, keys []int32, vectors int, t Type) {
	var row [64]float32
	for key := 0; key < len(keys); {
		n := run(keys[key:], len(row))
		for i := range vectors * Vector {
			widenRow(row[:n], base[int(at[i])+int(keys[key])*elementBytes(t):], t, 1)
			for c, x := range row[:n] {
				dst[(key+c)*Lanes+i] = x
			}
		}
		key += n
	}
}

// ReadMask gathers the byte mask of a group at keys and returns whether it allows any.
func ReadMask(dst []int32, base []byte, at []int64, keys []int32, vectors int) bool {
	any := int32(0)
	for j, key := range keys {
		for i := range vectors * Vector {
			m := int32(base[int(at[i])+int(key)])
			dst[j*Lanes+i] = m
			any |= m
		}
	}
	return any != 0
}

func blockBit(base []byte, at int64, bit int32) int32 {
	word := binary.LittleEndian.Uint32(base[int(at)+4*int(bit/32):])
	return int32(word >> (bit % 32) & 1)
}

// ReadBlocks is ReadMask of a bitmap with a bit for every 2^shift keys.
func ReadBlocks(dst []int32, base []byte, at []int64, keys []int32, vectors, shift int) bool {
	any := int32(0)
	for j, key := range keys {
		for i := range vectors * Vector {
			m := blockBit(base, at[i], key>>shift)
			dst[j*Lanes+i] = m
			any |= m
		}
	}
	return any != 0
}
