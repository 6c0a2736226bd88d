// The interface between the host and the kernel that appends rows to a cache (append.cu). Package cudapath mirrors these structs and tests
// their layout.
#pragma once
#include "attn.h"

// One of K, V and Q: `in` are new rows [batches, heads, rows, dim], `out` the cache, or with to_cache 0 where rotated rows of Q go.
struct AttnAppendTask {
	AttnTensor in, out;
	uint64_t lengths;    // int32: first rows of the sequences and the end, if packed; rows of each sequence; 0: all have `rows`
	int32_t heads, dim;
	int32_t pairs;       // of elements that are rotated; 0: none
	int32_t to_cache;    // rows go to their positions in the cache; else to their places in `out`
	int32_t rows, limit; // new rows, packed: of all sequences; rows at positions from limit on are skipped
	int32_t at_used;     // all rows are at the position that `used` gives
	int32_t unused;
};

struct AttnAppendParams {
	AttnAppendTask tasks[3]; // as many as the grid has in y
	uint64_t used;           // int32 [sequences]: keys that the cache holds; 0: none
	uint64_t table;          // int32 [sequences, table_stride], block table; 0: the cache is not paged
	uint64_t cos, sin;       // float32 [positions, pairs], or with cos_sin_of_type of the storage type
	int32_t batches;         // of new rows; packed: 1
	int32_t sequences, packed;
	int32_t page_rows, pages, table_stride;
	int32_t rotary_first; // first rotated element
	int32_t half_split;   // 1: pairs are elements i and i + pairs; 0: 2 i and 2 i + 1
	int32_t cos_sin_of_type;
};

#ifdef __cplusplus
static_assert(sizeof(AttnAppendTask) == 104 && sizeof(AttnAppendParams) == 384, "AttnAppendParams is mirrored by the host");
#endif
