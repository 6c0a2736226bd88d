// Specialization constants of the general kernels: the options of a call; 0 is off.
layout(constant_id = 31) const uint PACK_GQA = 0;      // query heads per KV head that are packed into rows: row r is query r / PACK_GQA
layout(constant_id = 32) const uint VARLEN = 0;        // sum of 1 cu_seqlens_q, 2 seqused_q, 4 cu_seqlens_k, 8 seqused_k
layout(constant_id = 33) const uint PAGE_SIZE = 0;     // keys per page of a paged KV cache
layout(constant_id = 34) const uint SPARSE_TOKENS = 0; // 1: a list names the keys of a sequence
layout(constant_id = 35) const uint SPARSE_BLOCK_Q = 0; // queries per block of the block-sparse mask
layout(constant_id = 36) const uint SPARSE_BLOCK_K = 0; // keys per block of the block-sparse mask
layout(constant_id = 37) const uint WINDOW = 0;        // sum of 1 bounded on the left, 2 bounded on the right
layout(constant_id = 38) const uint SOFTCAP = 0;       // 1: scores are soft-capped
layout(constant_id = 39) const uint ALIBI = 0;         // 1: ALiBi slopes
layout(constant_id = 40) const uint SINKS = 0;         // 1: one sink logit per head
layout(constant_id = 41) const uint BIAS = 0;          // 1 float16, 2 bfloat16, 3 float32
layout(constant_id = 42) const uint MASK = 0;          // 1: one mask byte per score
layout(constant_id = 43) const uint KV_TYPE = 0;       // type of K and V: 0 as Q, 1 int8, 2 float8 e4m3, 3 q8_0, 4 q4_0
layout(constant_id = 44) const uint KV_SCALE_BLOCK = 1; // keys that share a scale of int8 and float8
layout(constant_id = 45) const uint SPLIT = 0;         // 1: several workgroups split the keys of a row and write float32 partial states
layout(constant_id = 52) const uint DECODE_PART_ROWS = 0; // not 0: sequences of at most this many rows are the decode part of a mixed batch
layout(constant_id = 54) const uint IS_DECODE_PART = 0; // 1: this dispatch computes the decode part, 0: the prefill part
