// Package quant converts rows of float32 to and from the quantised types that K
// and V may have.
//
// Int8 and FP8 store numbers; their scale, which the caller keeps beside them,
// makes them elements: element = scale * number. The encoders choose it so that
// the largest magnitude of what shares it becomes the type's largest number, 127
// or 448.
//
// Q8_0 and Q4_0 store rows as blocks of 32 elements with their scale, an f16, in
// front. The encoders round as ggml's reference quantisers do (quantize_row_q8_0_ref
// and quantize_row_q4_0_ref), so that the bytes are those that local inference
// writes:
//
//   - Q8_0: scale = max|x| / 127 in float32; numbers are x * (1/scale) by the scale
//     before it is rounded to f16, rounded to nearest with halves away from 0.
//   - Q4_0: scale = m / -8 where m is the element of the largest magnitude, with its
//     sign, the first of several; numbers are x * (1/scale) + 8.5, cut off to an
//     integer and at most 15, so that m itself is stored exactly as 0.
//
// Elements to encode are finite. Bytes are little-endian. The functions convert
// len(dst) elements when decoding and len(src) elements when encoding, and panic,
// as copy loops over slices do, when the other slice is too short.
package quant
