// The interface between the host and every attention kernel.
//
// O = softmax(scale * Q K^T, masked) V for each (batch, query head), with sums in
// float32 and LSE in natural log. A row with nothing to attend to gives O = 0 and
// LSE = -inf. A masked slot, or one past Sk, changes no bit of the result, whatever its
// value. The same input gives the same bits in every run.
//
// Entry points are extern "C" and take AttnParams by value, as
// `const __grid_constant__ AttnParams p`; kernels that use the TMA take their
// tensor maps before it, in the order q, k, v, o. The tables ref.json, fa2.json and
// fa3.json in this folder list the entries and their launch parameters. Package cudapath
// mirrors these structs and tests their layout.
#pragma once
#include <stdint.h>

// A tensor [batch, row, head, dim] of any order whose innermost dimension is
// contiguous. base is a device address in bytes, strides are in elements.
struct AttnTensor {
	uint64_t base;
	int64_t batch, head, row;
};

struct AttnParams {
	AttnTensor q, k, v, o;
	uint64_t lse;          // float32 [B, Hq, Sq], contiguous; 0: not requested
	int32_t B, Hq, Hkv;    // Hq is a multiple of Hkv; query head h reads KV head h / (Hq / Hkv)
	int32_t Sq, Sk, D, Dv; // D is the length of a row of Q and K, Dv that of V and O
	int32_t causal_offset; // causal kernels: row r attends to columns c <= r + causal_offset
	float scale;           // factor on Q K^T; any finite value
	float scale_log2;      // scale * log2(e); never 0, a tiny number stands for it
	float unit_high;       // |scale| / |scale_log2| as a sum of two floats: turns a
	float unit_low;        // maximum in units of scale_log2 into one in those of scale
};

#ifdef __cplusplus
static_assert(sizeof(AttnTensor) == 32 && sizeof(AttnParams) == 184, "AttnParams is mirrored by the host");
#endif
