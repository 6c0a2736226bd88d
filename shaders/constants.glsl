// Specialization constants of every kernel and sections of the attention kernels of every tier. constants_coopmat.glsl
// has those of the kernels on cooperative matrices, constants_other.glsl those of other operations. A kernel has a
// section if it defines CONSTANTS_ and the section's name before it includes the file, so that a new constant changes
// no other modules. An id is unique among all of these files. shaders/build reads their lines that begin with
// `layout(constant_id` and generates constants_gen.go; the comment of a line becomes the comment of its Go constant.
// Constants that a module does not use are in it in the order of this file: moving a section changes modules.
#ifndef CONSTANTS_GLSL
#define CONSTANTS_GLSL

#ifdef CONSTANTS_DROPOUT
// -- dropout: the general forward kernels but the decode kernel, and the backward kernels ---------
layout(constant_id = 90) const uint DROPOUT = 0;       // 1: weights are dropped, see dropout.glsl
#endif

#ifdef CONSTANTS_F32
// -- float32 on matrices of 16-bit operands -------------------------------------------------------
layout(constant_id = 120) const uint TERMS_IN_SMEM = 1; // 1: P becomes operands in shared memory, see f32_terms.glsl
layout(constant_id = 121) const uint FENCES = 0;       // 1: a fence before the fragments of each chunk of K and of V are loaded
layout(constant_id = 122) const uint GROUP = 2;        // fragments of K or V that a subgroup multiplies at the same time
layout(constant_id = 123) const uint ORDER = 0;        // 1: under a causal mask the longest row tiles of all heads start first, see grid.glsl
#endif

#ifdef CONSTANTS_F32_PAIRS
// -- pairs of float16 -----------------------------------------------------------------------------
layout(constant_id = 124) const uint PAIR_TILE = 0;    // keys of a KV tile of the loop with pairs of float16, see f32_load.glsl; 0: no such loop
layout(constant_id = 125) const uint PAIR_GROUP = 2;   // as GROUP, in that loop
layout(constant_id = 126) const uint PAIR_FENCES = 0;  // as FENCES, in that loop
#endif

// -- every kernel ----------------------------------------------------------------------------------
layout(local_size_x_id = 0) in;                       // id 0 is LOCAL_SIZE: invocations per workgroup
const uint LOCAL_SIZE = gl_WorkGroupSize.x;           // an id can be declared once: LOCAL_SIZE reads id 0 through the built-in

layout(constant_id = 8) const uint HEAD_DIM = 128;    // Dqk: elements of a Q or K row
layout(constant_id = 9) const uint HEAD_DIM_V = 128;  // Dv: elements of a V or O row
layout(constant_id = 12) const uint HAS_LSE = 0;      // 1: the log-sum-exp of each row is written

// Alignment of a tensor: the largest of {1, 2, 4, 8} elements that divides the offset of its first
// element and every stride. An access no wider than this is aligned.
layout(constant_id = 16) const uint ALIGN_O = 1;      // elements

// -- storage type ----------------------------------------------------------------------------------
const uint TYPE_F16 = 0;
const uint TYPE_BF16 = 1;
const uint TYPE_F32 = 2;
#if defined(ANY_DTYPE)                                // one module for the three types
layout(constant_id = 17) const uint DTYPE = TYPE_F16; // 0 f16, 1 bf16, 2 f32
#elif defined(DTYPE_BF16)                             // else a module is compiled for one type
const uint DTYPE = TYPE_BF16;
#elif defined(DTYPE_F32)
const uint DTYPE = TYPE_F32;
#else
const uint DTYPE = TYPE_F16;
#endif

#ifdef CONSTANTS_ATTENTION
// -- forward kernels of every tier ----------------------------------------------------------------
layout(constant_id = 11) const uint CAUSAL = 0;       // 1: a row sees the keys up to row + causalOffset
layout(constant_id = 13) const uint ALIGN_Q = 1;      // elements
layout(constant_id = 14) const uint ALIGN_K = 1;      // elements
layout(constant_id = 15) const uint ALIGN_V = 1;      // elements
layout(constant_id = 6) const uint KV_TILE = 64;      // kBlockN: keys per KV tile
layout(constant_id = 10) const uint DV_SLICE = 128;   // columns of O per workgroup
#endif

#ifdef CONSTANTS_GENERAL
// -- general kernels: the options of a call, 0 is off ----------------------------------------------
layout(constant_id = 31) const uint PACK_GQA = 0;      // query heads per KV head that are packed into rows: row r is query r / PACK_GQA
layout(constant_id = 32) const uint VARLEN = 0;        // sum of 1 cu_seqlens_q, 2 seqused_q, 4 cu_seqlens_k, 8 seqused_k
layout(constant_id = 33) const uint PAGE_SIZE = 0;     // keys per page of a paged KV cache
layout(constant_id = 34) const uint SPARSE_TOKENS = 0; // sum of 1 a list names the keys of a sequence, 2 or of a query, 4 lists have the same length
layout(constant_id = 35) const uint SPARSE_BLOCK_Q = 0; // queries per block of the block-sparse mask
layout(constant_id = 36) const uint SPARSE_BLOCK_K = 0; // keys per block of the block-sparse mask
layout(constant_id = 37) const uint WINDOW = 0;        // bits, see visibleStart and visibleEnd
layout(constant_id = 38) const uint SOFTCAP = 0;       // 1: scores are soft-capped
layout(constant_id = 39) const uint ALIBI = 0;         // 1: ALiBi slopes, 2: of each sequence
layout(constant_id = 40) const uint SINKS = 0;         // 1: one sink logit per head
layout(constant_id = 41) const uint BIAS = 0;          // 1 float16, 2 bfloat16, 3 float32
layout(constant_id = 42) const uint MASK = 0;          // 1: one mask byte per score
layout(constant_id = 43) const uint K_TYPE = 0;        // type of K: 0 as Q, else of kv_types.glsl
layout(constant_id = 44) const uint KV_SCALE_BLOCK = 1; // keys that share a scale of K and V, or SCALE_OF_HEAD or SCALE_OF_TENSOR
layout(constant_id = 45) const uint SPLIT = 0;         // 1: several workgroups split the keys of a row and write float32 partial states
layout(constant_id = 52) const uint DECODE_PART_ROWS = 0; // sequences with at most this many rows are the decode part; 0: none
layout(constant_id = 54) const uint IS_DECODE_PART = 0; // 1: this dispatch computes the decode part, 0: the prefill part
layout(constant_id = 136) const uint LAST_ROWS_FIRST = 0; // 1: row tiles start in descending order, as under a causal mask
#endif

#ifdef CONSTANTS_V_TYPE
// -- types of K and V that differ: general and decode kernels -------------------------------------
layout(constant_id = 130) const uint V_TYPE = 0;       // type of V: 0 if K has 0, with scales or of blocks as K
#endif

#ifdef CONSTANTS_MODIFIERS
// -- modifiers of the call: general and decode kernels ---------------------------------------------
layout(constant_id = 127) const uint SCORE_EXPR = 0;   // 1: a modifier is in place of scoreExpr, see attended_keys.glsl; 2: it is the same for all slots of a tile
layout(constant_id = 128) const uint MASK_EXPR = 0;    // 1: likewise of maskExpr
#endif

#ifdef CONSTANTS_TILE_MAP
// -- map of tiles: general and decode kernels of the forward pass, kernels of dQ and of dK and dV ----
layout(constant_id = 129) const uint TILE_MAP = 0;     // 1: a map of tiles is in place of the mask, 2: of the bias, see attended_keys.glsl
#endif

#ifdef CONSTANTS_MAP_MAKER
// -- tile_map.comp ----------------------------------------------------------------------------------
layout(constant_id = 134) const uint MAP_OF_KEYS = 0;  // 1: the map is of the kernel of dK and dV, which owns keys and loops over rows
layout(constant_id = 135) const uint MAP_SIDES = 0;    // sides of a tile that the mask has: bits 1 and 2 of rows, 4 and 8 of keys, see sideExpr
#endif

#ifdef CONSTANTS_BACKWARD
// -- backward kernels -----------------------------------------------------------------------------
layout(constant_id = 70) const uint HAS_DLSE = 0;      // 1: LSE has a gradient
layout(constant_id = 71) const uint ACCUMULATE = 0;    // 1: dQ, dK and dV are added to what the outputs hold
layout(constant_id = 72) const uint ALIGN_DO = 1;      // elements, as ALIGN_Q
layout(constant_id = 73) const uint ALIGN_DX = 1;      // elements: of dQ or dK
layout(constant_id = 74) const uint ALIGN_DV = 1;      // elements
layout(constant_id = 75) const uint HAS_DK = 1;        // 1: the dK and dV kernel computes dK
layout(constant_id = 76) const uint HAS_DV = 1;        // 1: it computes dV
layout(constant_id = 77) const uint SUM_QUERIES = 0;   // 1: dBias has one row, the sum over the queries
layout(constant_id = 78) const uint DLSE_IN_DELTA = 0; // 1: backward_delta.comp subtracts dLSE from delta, see backward_interface.glsl
layout(constant_id = 111) const uint F32_GRADIENTS = 0; // 1: dQ, dK and dV are float32, whatever the storage type
layout(constant_id = 79) const uint STAT_LANES = 16;   // invocations per row of backward_delta.comp, a power of two
#endif

#ifdef CONSTANTS_TABLE
// -- gradient of a table of the score modifier ----------------------------------------------------
layout(constant_id = 131) const uint TABLE_PLACES = 0; // places where the modifier reads the table
layout(constant_id = 132) const uint TABLE_ENTRIES = 1; // a power of two, at least as many as the table has for a head
#endif

#ifdef CONSTANTS_SCALAR
// -- scalar kernels, forward and backward ---------------------------------------------------------
layout(constant_id = 7) const uint Q_TILE = 64;       // kBlockM: query rows per workgroup (scalar tier)
layout(constant_id = 18) const uint THREADS_X = 16;    // width of the grid of invocations: along keys, and along columns of O
layout(constant_id = 19) const uint CHUNK_D = 32;      // elements of Dqk in shared memory at a time
layout(constant_id = 20) const uint CHUNK_V = 16;      // keys of V in shared memory at a time
#endif

#endif
