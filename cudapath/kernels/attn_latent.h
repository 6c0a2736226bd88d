// The interface between the host and the kernels of latent attention (latent.cu): one KV head, whose V is the first Dv columns
// of K. They take calls with lengths and paged K and V, and calls without. Of AttnGeneralParams they read neither left, alibi,
// sinks nor the changes of a score. v is not read. Kernels of token lists take calls in which each row has a list of the keys
// that it attends to: as many entries for each, or those between two offsets. Those of fp8_ds_mla take K with strides in bytes, at an
// address that is a multiple of 16.
//
// Package cudapath mirrors the struct and tests its layout.
#pragma once
#include "attn_general.h"

struct AttnLatentParams : AttnGeneralParams {
	uint64_t partial; // workspace: see LatentState and LatentSplit of latent_work.h. 0: one part has all keys
	uint64_t tokens;  // int32 [B, Sq, topk], or [total_q, topk] of packed rows: keys of the sequence; others are no keys. With offsets [entries]
	int32_t parts;    // that share the keys of all sequences, at least 1
	int32_t topk;     // entries of a list, without offsets
	int32_t whole;    // 1: a part has whole lists, so that no states need a combine kernel
	int32_t entries;  // of all lists, with offsets
	uint64_t offsets; // int32 [lists + 1]: list n is tokens [offsets[n], offsets[n + 1]). Read by the kernels of lists with offsets alone
};

#ifdef __cplusplus
static_assert(sizeof(AttnLatentParams) == sizeof(AttnGeneralParams) + 40, "AttnLatentParams is mirrored by the host");
#endif
