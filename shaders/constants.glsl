// Specialization constants of every kernel, declared here and nowhere else. Every module declares all of
// them, so an id means the same in each. shaders/build reads the lines that begin with `layout(constant_id`
// and generates constants_gen.go; the comment of a line becomes the comment of its Go constant.
#ifndef CONSTANTS_GLSL
#define CONSTANTS_GLSL

layout(local_size_x_id = 0) in;                       // id 0 is LOCAL_SIZE: invocations per workgroup
const uint LOCAL_SIZE = gl_WorkGroupSize.x;           // an id can be declared once: LOCAL_SIZE reads id 0 through the built-in

// -- problem ---------------------------------------------------------------------------------------
layout(constant_id = 8) const uint HEAD_DIM = 128;    // Dqk: elements of a Q or K row
layout(constant_id = 9) const uint HEAD_DIM_V = 128;  // Dv: elements of a V or O row
layout(constant_id = 11) const uint CAUSAL = 0;       // 1: a row sees the keys up to row + causalOffset
layout(constant_id = 12) const uint HAS_LSE = 0;      // 1: the log-sum-exp of each row is written

// Alignment of a tensor: the largest of {1, 2, 4, 8} elements that divides the offset of its first
// element and every stride. An access no wider than this is aligned.
layout(constant_id = 13) const uint ALIGN_Q = 1;      // elements
layout(constant_id = 14) const uint ALIGN_K = 1;      // elements
layout(constant_id = 15) const uint ALIGN_V = 1;      // elements
layout(constant_id = 16) const uint ALIGN_O = 1;      // elements

// -- tile ------------------------------------------------------------------------------------------
layout(constant_id = 6) const uint KV_TILE = 64;      // kBlockN: keys per KV tile
layout(constant_id = 7) const uint Q_TILE = 64;       // kBlockM: query rows per workgroup (scalar tier)
layout(constant_id = 10) const uint DV_SLICE = 128;   // columns of O per workgroup

// -- cooperative matrices --------------------------------------------------------------------------
layout(constant_id = 1) const uint SUBGROUP_SIZE = 32; // invocations per subgroup
layout(constant_id = 21) const uint SUBGROUP_BARRIER = 1; // 0: a subgroup runs in lockstep and needs no barrier, see subgroupSync
layout(constant_id = 2) const uint FRAG_M = 16;        // rows of a fragment
layout(constant_id = 3) const uint FRAG_N = 16;        // columns of a fragment
layout(constant_id = 4) const uint FRAG_K = 16;        // depth of a fragment
layout(constant_id = 22) const uint SUM_N = 16;        // columns of the row sum fragment; decode_coopmat.comp: query rows, the columns of its O
layout(constant_id = 5) const uint M_FRAGS = 1;        // fragments of FRAG_M query rows per subgroup
layout(constant_id = 23) const uint KV_STEP = 16;      // keys of a KV tile per Q K^T product
layout(constant_id = 24) const uint Q_SMEM_CHUNKS = 0; // chunks of FRAG_K columns of Q in shared memory, the others are in registers
layout(constant_id = 30) const uint CHECK_KV_END = 1;  // 0: unmasked tiles are loaded without comparing keys with Sk; the last unmasked tile is masked then

// -- ladder (bench --variant) and ablations; the defaults are the product --------------------------
layout(constant_id = 25) const uint CAUSAL_SKIP = 1;   // 0: KV tiles above the causal diagonal are masked instead of skipped
layout(constant_id = 26) const uint UNMASKED_LOOP = 1; // 0: every KV tile goes through the masked loop
layout(constant_id = 27) const uint EXP2 = 1;          // 0: natural exponentials
layout(constant_id = 28) const uint TILE_ADDRESSING = 1; // 0: every load computes its address from the start of the tensor
layout(constant_id = 29) const uint ABLATE = 0;        // leaves out a part of the work: wrong results, true cost of the rest
const uint ABLATE_SOFTMAX = 1;                         // no maximum, no exponential
const uint ABLATE_BARRIER = 2;                         // no barriers between KV tiles
const uint ABLATE_LOAD = 3;                            // only the first KV tile is loaded

// -- loading K and V -------------------------------------------------------------------------------
layout(constant_id = 53) const uint KEYS_PER_SUBGROUP = 0; // not 0: consecutive keys of a KV tile that one subgroup loads

// -- options of a call, in modules compiled with GENERAL=1; 0 is off -------------------------------
layout(constant_id = 31) const uint PACK_GQA = 0;      // query heads per KV head that are packed into rows: row r is query r / PACK_GQA
layout(constant_id = 32) const uint VARLEN = 0;        // sum of 1 cu_seqlens_q, 2 seqused_q, 4 cu_seqlens_k, 8 seqused_k
layout(constant_id = 33) const uint PAGE_SIZE = 0;     // keys per page of a paged KV cache
layout(constant_id = 34) const uint SPARSE_TOKENS = 0; // 1: the keys of a sequence are those of a list
layout(constant_id = 35) const uint SPARSE_BLOCK_Q = 0; // queries per block of the block-sparse mask
layout(constant_id = 36) const uint SPARSE_BLOCK_K = 0; // keys per block of the block-sparse mask
layout(constant_id = 37) const uint WINDOW = 0;        // sum of 1 bounded on the left, 2 bounded on the right
layout(constant_id = 38) const uint SOFTCAP = 0;       // 1: scores are soft-capped
layout(constant_id = 39) const uint ALIBI = 0;         // 1: ALiBi slopes
layout(constant_id = 40) const uint SINKS = 0;         // 1: one sink logit per head
layout(constant_id = 41) const uint BIAS = 0;          // 1 float16, 2 bfloat16, 3 float32
layout(constant_id = 42) const uint MASK = 0;          // 1: one mask byte per score
layout(constant_id = 43) const uint KV_TYPE = 0;       // type of K and V: 0 that of Q, 1 int8, 2 float8 e4m3, 3 q8_0, 4 q4_0
layout(constant_id = 44) const uint KV_SCALE_BLOCK = 1; // keys that share a scale of int8 and float8
layout(constant_id = 45) const uint SPLIT = 0;         // 1: several workgroups split the keys of a row and write float32 partial states
layout(constant_id = 46) const uint SPLIT_KV = 0;      // 1: with SPLIT, subgroups split the keys too: all have the same rows and one KV step of each tile
layout(constant_id = 47) const uint ALIAS_KV = 0;      // 1: V overwrites K in shared memory; a subgroup processes a KV tile in one step
layout(constant_id = 48) const uint REGISTER_OPERANDS = 0; // 1: decode_coopmat.comp fills operands from registers, 0: through shared memory
layout(constant_id = 49) const uint COMBINE = 0;       // 1: with SPLIT, the last workgroup of a row combines the splits
layout(constant_id = 50) const uint DIM_SPLIT = 1;     // subgroups of decode_coopmat.comp that split the head dimension of the same keys
layout(constant_id = 51) const uint PREFETCH = 0;      // decode_coopmat.comp loads of the next KV tile during this one's products: 1 V, 2 K and V
layout(constant_id = 52) const uint DECODE_PART_ROWS = 0; // not 0: sequences of at most this many rows are the decode part of a mixed batch
layout(constant_id = 54) const uint IS_DECODE_PART = 0; // 1: this dispatch computes the decode part, 0: the prefill part

// -- scalar tier -----------------------------------------------------------------------------------
layout(constant_id = 18) const uint THREADS_X = 16;    // width of the grid of invocations: along keys, and along columns of O
layout(constant_id = 19) const uint CHUNK_D = 32;      // elements of Dqk in shared memory at a time
layout(constant_id = 20) const uint CHUNK_V = 16;      // keys of V in shared memory at a time

// -- appending to a KV cache (append.comp) ---------------------------------------------------------
layout(constant_id = 60) const uint LANES_PER_ROW = 32; // invocations per row, a power of two
layout(constant_id = 61) const uint CACHE_TYPE = 0;    // type of the cache, as KV_TYPE; 0 that of the new rows
layout(constant_id = 62) const uint ROTARY_DIM = 0;    // elements that are rotated, in pairs; 0: none
layout(constant_id = 63) const uint ROTARY_FIRST = 0;  // elements of a row before the rotated ones
layout(constant_id = 64) const uint ROTARY_HALF_SPLIT = 0; // 1: pairs (i, i + ROTARY_DIM / 2); 0: pairs (2i, 2i + 1)

// -- backward (backward_interface.glsl) ------------------------------------------------------------
layout(constant_id = 70) const uint HAS_DLSE = 0;      // 1: LSE has a gradient
layout(constant_id = 71) const uint ACCUMULATE = 0;    // 1: dQ, dK and dV are added to what the outputs hold
layout(constant_id = 72) const uint ALIGN_DO = 1;      // elements, as ALIGN_Q
layout(constant_id = 73) const uint ALIGN_DX = 1;      // elements: of dQ or dK
layout(constant_id = 74) const uint ALIGN_DV = 1;      // elements
layout(constant_id = 75) const uint HAS_DK = 1;        // 1: the dK and dV kernel computes dK
layout(constant_id = 76) const uint HAS_DV = 1;        // 1: it computes dV
layout(constant_id = 77) const uint SUM_QUERIES = 0;   // 1: dBias has one row, the sum over the queries
layout(constant_id = 78) const uint FOUR_STATS = 0;    // 1: the statistics of a row are four numbers, see backward_stats.glsl

// -- storage type ----------------------------------------------------------------------------------
const uint TYPE_F16 = 0;
const uint TYPE_BF16 = 1;
const uint TYPE_F32 = 2;
#if defined(ANY_DTYPE)                                // one module for the three types
layout(constant_id = 17) const uint DTYPE = TYPE_F16; // 0 f16, 1 bf16, 2 f32
#elif defined(DTYPE_BF16)                             // else a module is compiled for one 16-bit type
const uint DTYPE = TYPE_BF16;
#else
const uint DTYPE = TYPE_F16;
#endif

#endif
