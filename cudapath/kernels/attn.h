// The interface between the host and every forward kernel.
//
// For each (batch, query head) a kernel computes O = softmax(scale * Q K^T, masked) V, with float32 sums, and
// LSE in natural log. A row that attends to no key gives O = 0 and LSE = -inf. Masked keys and keys past Sk
// change no bit of the result, whatever values memory holds there. The same input gives the same bits in every
// run.
//
// Entry points are extern "C" and take AttnParams by value, as `const __grid_constant__ AttnParams p`. Kernels
// that use the TMA take their tensor maps before it, in the order q, k, v; those of cubin.cu have no map of q.
// The tables ref.json, fa2.json, fa3.json and cubin.json in this folder list the entries and their launch
// parameters. Package cudapath mirrors these structs and tests their layout.
#pragma once
#include <stdint.h>

// A tensor [batch, row, head, dim]. dim is contiguous; the other dimensions have any strides, in elements. base
// is a device address.
struct AttnTensor {
	uint64_t base;
	int64_t batch, head, row;
};

struct AttnParams {
	AttnTensor q, k, v, o;
	uint64_t lse;          // float32 [B, Hq, Sq], contiguous; 0: not requested
	int32_t B, Hq, Hkv;    // Hq is a multiple of Hkv; query head h reads KV head h / (Hq / Hkv)
	int32_t Sq, Sk, D, Dv; // head dims: D of Q and K, Dv of V and O
	int32_t causal_offset; // causal kernels: row r attends to columns c <= r + causal_offset
	float scale;           // factor on Q K^T; any finite value
	float scale_log2;      // scale * log2(e); never 0: for a scale of 0 the host passes a tiny number
	float unit_high;       // |scale| / |scale_log2| as a sum of two floats, which
	float unit_low;        // converts a row max from log2 units to natural units
};

#ifdef __cplusplus
static_assert(sizeof(AttnTensor) == 32 && sizeof(AttnParams) == 184, "AttnParams is mirrored by the host");
#endif
