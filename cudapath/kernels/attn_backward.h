// The interface between the host and the backward kernels.
//
// With S = scale * Q K^T, capped if softcap is not 0, and P = exp(S - LSE) of the slots that
// a row attends to:
//
//   delta = rowsum(dO * O) - dLSE      dV = P^T dO      dP = dO V^T
//   dS = P * (dP - delta)              dQ = scale * dS K      dK = scale * dS^T Q
//
// dK and dV are sums over the query heads of the group, in float32, each rounded once. A
// slot with P = 0 is skipped, never multiplied by 0: a masked slot, or one past the end of
// its sequence, changes no bit of any gradient, whatever memory holds there. A row with LSE
// -inf has gradient 0. Every sum has a fixed order, without atomics: the same input gives
// the same bits in every run.
//
// Entry points take AttnBackwardParams by value. The table ref_backward.json lists them.
// The kernel of row statistics runs first on the same stream; those of the gradients read
// what it stored. Package cudapath mirrors the struct and tests its layout.
#pragma once
#include "attn.h"

struct AttnBackwardParams {
	AttnTensor q, k, v, o, dO;
	AttnTensor dQ, dK, dV;         // base 0: not wanted
	uint64_t lse;                  // float32 [B, Hq, Sq], packed [Hq, total_q]
	uint64_t dLSE;                 // as lse; 0: none
	uint64_t stats;                // workspace: 4 float32 per row, rows in the order of lse
	uint64_t cu_q, cu_k;           // int32 [B + 1]: first rows of packed sequences; 0: padded
	uint64_t used_q, used_k;       // int32 [B]: lengths of the sequences; 0: all of them
	int32_t first_batch;           // sequence of block z = 0
	int32_t Hq, Hkv;               // Hq is a multiple of Hkv
	int32_t Sq, Sk, D, Dv;         // lengths of a sequence at most; head dims
	int32_t total_q, total_k;      // rows of packed tensors
	int32_t bottom_right;          // 1: the last row of a sequence is at its last key; 0: row r is at key r
	int32_t left, right;           // a row at key c attends to keys [c - left, c + right]; INT32_MAX: no limit
	int32_t accumulate;            // 1: add to what dQ, dK and dV hold
	float scale;                   // factor on Q K^T
	float softcap;                 // 0: none
	int32_t reserved;              // 0
};

#ifdef __cplusplus
static_assert(sizeof(AttnBackwardParams) == 8 * sizeof(AttnTensor) + 7 * 8 + 16 * 4, "AttnBackwardParams is mirrored by the host");
#endif
