// Package quant converts rows of float32 to and from the quantized types of K and V.
//
// Formats lists the types. Int8, FP8 and FP8E5M2 store numbers without their scale, which the
// caller stores separately: element = scale * number. The encoders choose the scale so that
// the largest magnitude of the elements that share it becomes the type's largest number, 127,
// 448 or 57344.
//
// The others store rows as blocks of 32 elements, each after its scale, an f16, and in Q4_1 and
// Q5_1 a minimum, another f16. The encoders round like ggml's reference quantizers
// (quantize_row_q8_0_ref and so on), so they write the same bytes as llama.cpp, except IQ4NL:
//
//   - Q8_0: scale = max|x| / 127 in float32; numbers are x * (1/scale), rounded to
//     nearest with ties away from 0. The scale is rounded to f16 afterwards.
//   - Q4_0 and Q5_0: scale = m / -8 or m / -16, where m is the first element of the largest
//     magnitude, with its sign; codes are x * (1/scale) + 8.5 or 16.5, truncated to an integer
//     and at most 15 or 31, so m itself is stored exactly, as 0, and ties go up.
//   - Q4_1 and Q5_1: scale = (max - min) / 15 or 31; codes are (x - min) * (1/scale) + 0.5,
//     truncated and at most 15 or 31. Scale and minimum are rounded to f16 afterwards.
//   - IQ4NL: scale = m / -127; the code is that of the nearest number, of two the larger one.
//     ggml searches for a scale with a smaller error, and its bytes differ.
//
// FP8DSMLA stores a row of K of DeepSeek's latent attention in 656 bytes, as FlashMLA and vLLM
// (fp8_ds_mla) do: 512 float8 e4m3, which are V too, then four float32 scales, each of 128 of
// them, then 64 bfloat16, the part with the rotary embedding. The encoder's scale is
// max(max|x| / 448, 2^-126), as that of vLLM's concat_and_cache_ds_mla_kernel; FlashMLA's
// tests/quant.py rounds max|x| / 448, at least 1e-4, up to a power of two. Readers take any
// scale. 128 numbers below 2^-100 are stored as zeros with the scale 2^-126, and where one is
// not finite as zeros with the scale NaN.
//
// Other elements to encode must be finite. Bytes are little-endian.
package quant
