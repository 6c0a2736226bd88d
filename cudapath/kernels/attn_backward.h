// The interface between the host and the backward kernels.
//
// With S = scale * Q K^T, capped if softcap is not 0, and P = exp(S - LSE) where a row attends to a key:
//
//   delta = rowsum(dO * O) - dLSE      dV = P^T dO      dP = dO V^T
//   dS = P * (dP - delta)              dQ = scale * dS K      dK = scale * dS^T Q
//
// dK and dV are summed over the query heads of the group in float32 and rounded once. A product with P = 0 is
// skipped, since 0 * NaN is NaN: masked keys, and rows and keys past the end of a sequence, change no bit of any
// gradient, whatever values memory holds there. A row with LSE = -inf has gradient 0. Every sum has a fixed
// order, without atomics, so the same input gives the same bits in every run.
//
// Entry points take AttnBackwardParams by value. The tables ref_backward.json, fa2_backward.json and fa3_backward.json
// list them. The stats kernel runs first; the kernels of the gradients follow on the same stream and read the row
// statistics that it stored.
// Package cudapath mirrors the struct and tests its layout.
#pragma once
#include "attn.h"

struct AttnBackwardParams {
	AttnTensor q, k, v, o, dO;
	AttnTensor dQ, dK, dV;         // base 0: not requested
	uint64_t lse;                  // float32 [B, Hq, Sq], packed [Hq, total_q]
	uint64_t dLSE;                 // same layout as lse; 0: none
	uint64_t stats;                // workspace. ref: 4 float32 per row, same order as lse; fa2, fa3: see their Workspace
	uint64_t cu_q, cu_k;           // varlen: int32 [B + 1], cu_seqlens; 0: padded batch
	uint64_t used_q, used_k;       // int32 [B], seqused; 0: every sequence is used in full
	int32_t first;                 // of a launch: the sequence of blockIdx.z = 0, or the first unit of work (fa3_backward_work.h)
	int32_t Hq, Hkv;               // Hq is a multiple of Hkv
	int32_t Sq, Sk, D, Dv;         // maximum sequence lengths; head dims
	int32_t total_q, total_k;      // rows of packed tensors
	int32_t bottom_right;          // causal alignment. 1: the last row is at the last key; 0: row r is at key r
	int32_t left, right;           // sliding window: a row at key c attends to keys [c - left, c + right]; INT32_MAX: no limit
	int32_t accumulate;            // 1: add to the contents of dQ, dK and dV; plus 2: LSE is of more keys than K has
	float scale;                   // factor on Q K^T
	float softcap;                 // 0: none
	int32_t B;                     // all sequences; the kernels of ref take those of a launch from their grid
};

#ifdef __cplusplus
static_assert(sizeof(AttnBackwardParams) == 8 * sizeof(AttnTensor) + 7 * 8 + 16 * 4, "AttnBackwardParams is mirrored by the host");
#endif
