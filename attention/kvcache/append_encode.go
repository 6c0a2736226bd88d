package kvcache

import (
	"encoding/binary"
	"math"

	"vkattn/internal/half"
	"vkattn/internal/problem"
	"vkattn/internal/quant"
)

// encodeKV stores a row in the type of a cache, as shaders/append_rows.glsl does. It
// returns the row's scale for Scaled types.
func encodeKV(dst []byte, row []float32, kv problem.KVType, d problem.DType) (scale float32) {
	switch {
	case kv == problem.KVSame:
		d.Encode(dst, row)
		return 0
	case kv.Blocked():
		bytes := kv.RowBytes(d, quant.BlockElements)
		for ; len(row) > 0; row, dst = row[quant.BlockElements:], dst[bytes:] {
			encodeBlock(dst[:bytes], row[:quant.BlockElements], kv)
		}
		return 0
	}
	if scale, numberless := numberlessScale(row); numberless {
		clear(dst)
		return scale
	}
	if kv == problem.KVFP8 {
		return quant.EncodeFP8(dst, row)
	}
	return quant.EncodeInt8(dst, row)
}

// encodeBlock stores 32 elements and their scale.
func encodeBlock(dst []byte, x []float32, kv problem.KVType) {
	scale, numberless := numberlessScale(x)
	switch {
	case numberless:
		zero := byte(0)
		if kv == problem.KVQ4_0 {
			zero = 0x88
		}
		binary.LittleEndian.PutUint16(dst, half.F16FromFloat32(scale))
		for i := range dst[2:] {
			dst[2+i] = zero
		}
	case kv == problem.KVQ4_0:
		quant.EncodeQ4_0(dst, x)
	default:
		quant.EncodeQ8_0(dst, x)
	}
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
