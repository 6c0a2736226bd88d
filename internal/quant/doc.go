// Package quant converts rows of float32 to and from the quantized types of K and V.
//
// Int8 and FP8 store numbers without their scale, which the caller stores separately:
// element = scale * number. The encoders choose the scale so that the largest magnitude
// of the elements that share it becomes the type's largest number, 127 or 448.
//
// Q8_0 and Q4_0 store rows as blocks of 32 elements, each after its scale, an f16. The
// encoders round like ggml's reference quantizers (quantize_row_q8_0_ref and
// quantize_row_q4_0_ref), so they write the same bytes as llama.cpp:
//
//   - Q8_0: scale = max|x| / 127 in float32; numbers are x * (1/scale), rounded to
//     nearest with ties away from 0. The scale is rounded to f16 afterwards.
//   - Q4_0: scale = m / -8, where m is the first element of the largest magnitude, with
//     its sign; numbers are x * (1/scale) + 8.5, truncated to an integer and at most 15,
//     so m itself is stored exactly, as 0.
//
// Elements to encode must be finite. Bytes are little-endian. The functions convert
// len(dst) elements when decoding and len(src) elements when encoding. They panic, like
// copy loops over slices, if the other slice is too short.
package quant
