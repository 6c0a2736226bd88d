package kvcache

import (
	"encoding/binary"
	"math"

	"vkattn/internal/half"
	"vkattn/internal/problem"
)

// encodeKV stores a row in the type of a cache, as shaders/append_rows.glsl does. It
// returns the row's scale for Scaled types.
func encodeKV(dst []byte, row []float32, kv problem.KVType, d problem.DType) (scale float32) {
	f := problem.FormatOf(kv)
	switch {
	case f == nil:
		d.Encode(dst, row)
		return 0
	case f.Scaled():
		if scale, numberless := numberlessScale(row); numberless {
			clear(dst)
			return scale
		}
		return f.Encode(dst, row)
	case f.Row():
		return f.Encode(dst, row)
	}
	for ; len(row) > 0; row, dst = row[f.Elements:], dst[f.Bytes:] {
		if scale, numberless := numberlessScale(row[:f.Elements]); numberless {
			f.Encode(dst, make([]float32, f.Elements))
			binary.LittleEndian.PutUint16(dst, half.F16FromFloat32(scale))
			continue
		}
		f.Encode(dst, row[:f.Elements])
	}
	return 0
}

// numberlessScale returns the scale of elements that are stored as zeros: NaN if one of
// them is not finite, 0 if all are so small that the inverse of a scale could overflow.
func numberlessScale(x []float32) (scale float32, numberless bool) {
	var most uint32 // bits of absolute values: they order like the values, with NaN above all
	for _, v := range x {
		most = max(most, math.Float32bits(v)&^(1<<31))
	}
	switch {
	case most >= math.Float32bits(float32(math.Inf(1))):
		return float32(math.NaN()), true
	case most < math.Float32bits(0x1p-100):
		return 0, true
	}
	return 0, false
}
