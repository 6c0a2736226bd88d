// Every specialization constant of every kernel, declared here and nowhere else.
// shaders/build turns this file into constants_gen.go; a test reads the ids back from the SPIR-V.
// A line is read by the generator when it starts with `layout(constant_id`; the comment gives the unit.
#ifndef CONSTANTS_GLSL
#define CONSTANTS_GLSL

layout(local_size_x_id = 0) in;                       // id 0 is LOCAL_SIZE: invocations per workgroup
const uint LOCAL_SIZE = gl_WorkGroupSize.x;           // one id declared once: no second constant with id 0

// -- the problem ---------------------------------------------------------------------------------
layout(constant_id = 8) const uint HEAD_DIM = 128;    // Dqk: elements of a Q or K row
layout(constant_id = 9) const uint HEAD_DIM_V = 128;  // Dv: elements of a V or O row
layout(constant_id = 11) const uint CAUSAL = 0;       // 1: column <= row + p.causalOffset
layout(constant_id = 12) const uint HAS_LSE = 0;      // 1: the log-sum-exp of each row is written

// What is known of a tensor's alignment: the largest of {1, 2, 4, 8} elements that divides the
// position of its first element in memory and every stride. An access no wider than that is aligned.
layout(constant_id = 13) const uint ALIGN_Q = 1;      // elements
layout(constant_id = 14) const uint ALIGN_K = 1;      // elements
layout(constant_id = 15) const uint ALIGN_V = 1;      // elements
layout(constant_id = 16) const uint ALIGN_O = 1;      // elements

// -- the tile ------------------------------------------------------------------------------------
layout(constant_id = 6) const uint BLOCK_COLS = 64;   // Bc: keys per tile
layout(constant_id = 7) const uint BLOCK_ROWS = 64;   // Br: query rows per workgroup (scalar tier)
layout(constant_id = 10) const uint DV_SLICE = 128;   // columns of O that one workgroup owns

// -- cooperative matrices ------------------------------------------------------------------------
layout(constant_id = 1) const uint SUBGROUP_SIZE = 32; // invocations per subgroup
layout(constant_id = 21) const uint SUBGROUP_BARRIER = 1; // 0: a subgroup is one vector in lockstep, see subgroupSync
layout(constant_id = 2) const uint TILE_M = 16;        // rows of a fragment
layout(constant_id = 3) const uint TILE_N = 16;        // columns of a fragment
layout(constant_id = 4) const uint TILE_K = 16;        // depth of a fragment
layout(constant_id = 22) const uint SUM_N = 16;        // columns of the fragment that sums P along the row; decode_coopmat.comp: rows of O, which are columns there
layout(constant_id = 5) const uint ROW_TILES = 1;      // fragments of TILE_M rows per subgroup
layout(constant_id = 23) const uint STEP_COLS = 16;    // keys of a tile multiplied at a time
layout(constant_id = 24) const uint Q_STAGED = 0;      // chunks of TILE_K columns of Q read from shared memory for every step
layout(constant_id = 30) const uint CHECK_FETCH = 1;   // 0: no comparison of keys while unmasked tiles are fetched; the last whole one is masked

// -- steps of the ladder (bench --variant) and ablations; the defaults are what is used ------------
layout(constant_id = 25) const uint CUT_CAUSAL = 1;    // 0: keys behind the causal diagonal are masked, not left out
layout(constant_id = 26) const uint SPLIT_MASKED = 1;  // 0: every tile goes through the loop with masks
layout(constant_id = 27) const uint EXP2 = 1;          // 0: natural exponentials
layout(constant_id = 28) const uint BLOCK_ADDRESSING = 1; // 0: every access is addressed from the start of its tensor
layout(constant_id = 29) const uint ABLATE = 0;        // leaves out a part of the work: wrong results, true cost of the rest
const uint ABLATE_SOFTMAX = 1;                         // no maximum, no exponential
const uint ABLATE_BARRIER = 2;                         // no barriers between the tiles
const uint ABLATE_LOAD = 3;                            // only the first tile is fetched
layout(constant_id = 53) const uint OWN_KEYS = 0;      // not 0: keys of a tile that a subgroup carries, all those of its parts, side by side

// -- features of inference; modules compiled with FEATURES=1 have them, 0 is off ----------------------
layout(constant_id = 31) const uint PACKED_ROWS = 0;   // the query heads of a group, if they are rows side by side: row r is query r / PACKED_ROWS
layout(constant_id = 32) const uint LENGTHS = 0;       // sum of 1 cu_seqlens_q, 2 seqused_q, 4 cu_seqlens_k, 8 seqused_k
layout(constant_id = 33) const uint PAGE_SIZE = 0;     // keys of a page of K and V
layout(constant_id = 34) const uint KEPT = 0;          // 1: the keys are those of a list
layout(constant_id = 35) const uint MAP_ROWS = 0;      // queries of a block of the bitmap
layout(constant_id = 36) const uint MAP_KEYS = 0;      // keys of a block of the bitmap
layout(constant_id = 37) const uint WINDOW = 0;        // sum of 1 limited to the left, 2 to the right
layout(constant_id = 38) const uint SOFTCAP = 0;       // 1: scores are capped
layout(constant_id = 39) const uint ALIBI = 0;         // 1: scores fall with the distance
layout(constant_id = 40) const uint SINKS = 0;         // 1: a logit per head beside the scores
layout(constant_id = 41) const uint BIAS = 0;          // 1 float16, 2 bfloat16, 3 float32
layout(constant_id = 42) const uint MASK = 0;          // 1: a byte per slot
layout(constant_id = 43) const uint KV_TYPE = 0;       // K and V are: 0 as Q, 1 int8, 2 float8 e4m3, 3 q8_0, 4 q4_0
layout(constant_id = 44) const uint KV_BLOCK = 1;      // keys that share a scale of int8 and float8
layout(constant_id = 45) const uint SPLIT = 0;         // 1: workgroups share the keys of a row and leave float32 states
layout(constant_id = 46) const uint SHARE_KEYS = 0;    // 1: so do subgroups, with SPLIT: all have the same rows, and of a tile a step each
layout(constant_id = 47) const uint REUSE = 0;         // 1: V takes K's place in shared memory; a subgroup takes a tile in one step
layout(constant_id = 48) const uint FRAGMENT_ORDER = 0; // 1: fragments of 16x16 lie among 32 lanes as decode_coopmat.comp knows it
layout(constant_id = 49) const uint COMBINE = 0;       // 1: and the last of those workgroups puts the states together, with SPLIT
layout(constant_id = 50) const uint COLUMN_SHARES = 1; // subgroups of decode_coopmat.comp that walk together, each with a part of the columns
layout(constant_id = 51) const uint AHEAD = 0;         // of decode_coopmat.comp: of the next tile of keys 1 V, 2 K and V too are fetched while this one is multiplied
layout(constant_id = 52) const uint SHORT_ROWS = 0;    // not 0: sequences of at most this many rows are short, and this kernel leaves them to another dispatch
layout(constant_id = 54) const uint OWNS_SHORT = 0;    // 1: this kernel computes the short sequences, and leaves the others

// -- scalar tier ---------------------------------------------------------------------------------
layout(constant_id = 18) const uint THREADS_X = 16;   // invocations side by side along keys and along columns of O
layout(constant_id = 19) const uint CHUNK_D = 32;     // elements of Dqk staged at a time
layout(constant_id = 20) const uint CHUNK_V = 16;     // keys of V staged at a time

// -- appending to a cache (append.comp) ------------------------------------------------------------
layout(constant_id = 60) const uint ROW_LANES = 32;   // invocations that share a row, a power of two
layout(constant_id = 61) const uint STORED_AS = 0;    // how rows are written: attention's KVType, 0 as they are read
layout(constant_id = 62) const uint ROTARY_DIM = 0;   // elements that are rotated, in pairs; 0: none
layout(constant_id = 63) const uint ROTARY_FIRST = 0; // elements of a row before those
layout(constant_id = 64) const uint ROTARY_SPLIT = 0; // 1: pairs (i, i + ROTARY_DIM / 2); 0: pairs (2i, 2i + 1)

// -- storage type --------------------------------------------------------------------------------
const uint TYPE_F16 = 0;
const uint TYPE_BF16 = 1;
const uint TYPE_F32 = 2;
#if defined(ANY_DTYPE)                                // scalar tier: one module for the three types
layout(constant_id = 17) const uint DTYPE = TYPE_F16; // 0 f16, 1 bf16, 2 f32
#elif defined(DTYPE_BF16)                             // else a module is compiled for one 16-bit type
const uint DTYPE = TYPE_BF16;
#else
const uint DTYPE = TYPE_F16;
#endif

#endif
