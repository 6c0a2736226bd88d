// The interface between the host and the forward kernels that take options of a call.
//
// Row r of a sequence attends to keys [r - left, r + right], moved by the alignment. Causal masks, windows and lengths are
// special cases. A score is scale * Q K^T, capped if softcap is not 0, minus slope * |position of the row - key| with ALiBi,
// plus the bias. A byte of 0 in the mask excludes the key too. A sink is one more logit of a row, which has no value. Dropout
// is that of internal/dropout: LSE is without it. MaxLogits is of the scores behind these changes, without sinks.
//
// Entry points take AttnGeneralParams by value, as those of attn.h take AttnParams. Package cudapath mirrors the struct and
// tests its layout.
#pragma once
#include "attn.h"

struct AttnGeneralParams : AttnParams { // causal_offset is not used. Sq and Sk are the maximum sequence lengths
	uint64_t cu_q, cu_k;     // int32 [B + 1], cu_seqlens; 0: padded batch
	uint64_t used_q, used_k; // int32 [B], seqused; 0: every sequence is used in full. Rows past it are not stored
	uint64_t table;          // int32 [B, table_stride], block table; 0: K and V are not paged. With it k.batch and v.batch are strides of pages
	uint64_t alibi, sinks;   // float32 [Hq], slopes alibi_batch apart for each sequence; 0: none
	int32_t total_q, total_k; // rows and keys of packed tensors
	int32_t left, right;     // INT32_MAX: no limit
	int32_t bottom_right;    // 1: the last row is at the last key; 0: row r is at key r
	int32_t page_size, pages, table_stride;
	int32_t first_batch, first_head; // of a launch
	int32_t unaligned;       // 1: loads and stores single elements
	int32_t changes;         // 1: scores are in natural units, by the next two; scale_log2 is then log2(e)
	float score_scale;       // scale, or scale / softcap
	float softcap;           // 0: none
	uint64_t bias, mask;     // [batch, head, row, key], elements of bias_type and bytes; 0: none. Steps of 0 repeat an entry
	int64_t bias_batch, bias_head, bias_row, mask_batch, mask_head, mask_row;
	int32_t bias_type;       // one of BiasType
	uint32_t drop_offset;
	uint64_t drop_seed;
	uint32_t drop_threshold; // probability of dropout times 2^32; 0: no dropout
	float drop_scale;        // 1 / (1 - probability)
	uint64_t drop_state;     // uint32 [4]: seed and offset, low word first, which are added to those above; 0: none
	uint64_t max_logits;     // float32 [Hq], -INFINITY before the launch: the largest score of each head; 0: not requested
	int32_t alibi_batch, unused;
};

enum BiasType { BIAS_F16, BIAS_BF16, BIAS_F32 };

#ifdef __cplusplus
static_assert(sizeof(AttnGeneralParams) == sizeof(AttnParams) + 7 * 8 + 14 * 4 + 8 * 8 + 6 * 8, "AttnGeneralParams is mirrored by the host");
#endif
