// The exponent of P = 2^(scale * S - LSE) in the backward fa2 and fa3 kernels, with LSE in log2 units.
//
// float32 rounds an LSE of 10,000 by up to 0.0005, and so every P of the row by 0.05 %, one unit of float16. For rows with such
// an LSE the stats kernel therefore computes the sum of P from the same products as the main kernel, which divides P by it.
// This pass over the keys is slow and rare. It is left out if LSE is of more keys than the call has, as in ring attention:
// the sum is less than 1 then.
//
// The pass normalizes all rows of a block in which any has a large LSE. Where the terms of a score cancel, score and LSE are
// small, but their error is that of the terms: about 2^-25 of the sum of their magnitudes, and different in forward and backward, which
// add in different orders. A large LSE in the block says that terms are large.
#pragma once
#include "ptx.h"

constexpr float LOG2E = 1.4426950408889634f;

// From this |LSE| on, in log2 units, rounding LSE costs as much as rounding P to the storage type.
constexpr float LARGE_LSE = 256 * LOG2E;

// Returns score * scale + less; less is -LSE. From 2^23 on, LSE is a rounded score, so with LARGE such a score is rounded too:
// the exact difference may be hundreds.
template <bool LARGE> __device__ __forceinline__ float exponentOf(float score, float scale, float less) {
	return LARGE && fabsf(less) >= 8388608 ? __fmul_rn(score, scale) + less : fmaf(score, scale, less);
}

// Returns cap * tanh(y) + less, and the derivative of tanh(y) in slope: the exponent with a softcap of `cap` in log2 units.
__device__ __forceinline__ float cappedExponent(float y, float cap, float less, float &slope) {
	const float e = exp2Approx(-2 * LOG2E * fabsf(y)), r = __fdividef(1, 1 + e);
	slope = 4 * e * r * r; // 1 - tanh(y)^2, which would cancel for large |y|
	return fmaf(copysignf((1 - e) * r, y), cap, less);
}
