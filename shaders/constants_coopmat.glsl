// Specialization constants of the kernels on cooperative matrices: those of all of them first, then sections, see
// constants.glsl.
layout(constant_id = 1) const uint SUBGROUP_SIZE = 32; // invocations per subgroup
layout(constant_id = 21) const uint SUBGROUP_BARRIER = 1; // 0: a subgroup runs in lockstep and needs no barrier, see subgroupSync
layout(constant_id = 2) const uint FRAG_M = 16;        // rows of a fragment
layout(constant_id = 3) const uint FRAG_N = 16;        // columns of a fragment
layout(constant_id = 4) const uint FRAG_K = 16;        // depth of a fragment
layout(constant_id = 22) const uint SUM_N = 16;        // columns of the row sum fragment; decode_coopmat.comp: query rows, the columns of its O
layout(constant_id = 24) const uint Q_SMEM_CHUNKS = 0; // chunks of FRAG_K columns of Q in shared memory, the others are in registers

#ifdef CONSTANTS_FORWARD
// -- forward, dense and general, and backward -----------------------------------------------------
// Specialization constants of the coopmat forward kernels, dense and general.
layout(constant_id = 5) const uint M_FRAGS = 1;        // fragments of FRAG_M query rows per subgroup
layout(constant_id = 23) const uint KV_STEP = 16;      // keys of a KV tile per Q K^T product
layout(constant_id = 53) const uint KEYS_PER_SUBGROUP = 0; // not 0: consecutive keys of a KV tile that one subgroup loads
layout(constant_id = 46) const uint SPLIT_KV = 0;      // 1: with SPLIT, subgroups split the keys too: all have the same rows and one KV step of each tile
layout(constant_id = 47) const uint ALIAS_KV = 0;      // 1: V overwrites K in shared memory; a subgroup processes a KV tile in one step
#endif

#ifdef CONSTANTS_ROW_SUM
// -- float32 row sums -----------------------------------------------------------------------------
// Specialization constants of the float32 row sums of the coopmat forward kernels.
layout(constant_id = 55) const uint ROW_ELEMENTS = 0;  // consecutive elements of a lane that lie in one row of an accumulator; 0: unknown, see row_sum_f32.glsl
#endif

#ifdef CONSTANTS_BACKWARD_COOPMAT
// -- backward -------------------------------------------------------------------------------------
// Specialization constants of the backward kernels on cooperative matrices, which have M_FRAGS and KV_STEP too.
layout(constant_id = 80) const uint ROW_TILE = 64;     // rows per row tile of the dK and dV kernel; KV_STEP of them per product
layout(constant_id = 81) const uint STORE_DS = 0;      // 1: the dK and dV kernel stores dS, see backward_scratch.glsl
layout(constant_id = 110) const uint OPERANDS_IN_SMEM = 1; // 1: P and dS become operands in shared memory, see backward_places.glsl

const uint PLACES_SIZE = NV2 == 0 ? FRAG_M * FRAG_N / 4 : 0; // of the table of rows and columns, see backward_fragments.glsl
#endif

#ifdef CONSTANTS_BACKWARD_RARE
// -- the kernel of dK and dV ----------------------------------------------------------------------
// Specialization constant of the kernel of dK and dV on cooperative matrices.
layout(constant_id = 118) const uint RARE_WORK = 0; // workgroups of the dispatch: 0 all, 1 all but rare ones, which it marks, 2 marked ones
#endif

#ifdef CONSTANTS_DROPOUT
#include "constants_dropout.glsl"
#endif

#ifdef CONSTANTS_DENSE
// -- dense forward --------------------------------------------------------------------------------
// Specialization constants of the dense coopmat forward kernel.
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
#endif

#ifdef CONSTANTS_F32
// -- float32 on matrices of 16-bit operands -------------------------------------------------------
// Specialization constants of the coopmat forward kernel of float32.
layout(constant_id = 120) const uint TERMS_IN_SMEM = 1; // 1: P becomes operands in shared memory, see f32_terms.glsl
layout(constant_id = 121) const uint FENCES = 0;       // 1: a fence before the fragments of each chunk of K and of V are loaded
layout(constant_id = 122) const uint GROUP = 2;        // fragments of K or V that a subgroup multiplies at the same time
layout(constant_id = 123) const uint ORDER = 0;        // 1: under a causal mask the longest row tiles of all heads start first, see work_tile_dense.glsl
#endif

#ifdef CONSTANTS_F32_PAIRS
// -- pairs of float16 -----------------------------------------------------------------------------
// Specialization constants of the loop with pairs of float16 in the coopmat forward kernel of float32.
layout(constant_id = 124) const uint PAIR_TILE = 0;    // keys of a KV tile of the loop with pairs of float16, see f32_load.glsl; 0: no such loop
layout(constant_id = 125) const uint PAIR_GROUP = 2;   // as GROUP, in that loop
layout(constant_id = 126) const uint PAIR_FENCES = 0;  // as FENCES, in that loop
#endif

#ifdef CONSTANTS_DECODE
// -- decode ---------------------------------------------------------------------------------------
// Specialization constants of the decode kernel.
layout(constant_id = 48) const uint REGISTER_OPERANDS = 0; // 1: decode_coopmat.comp fills operands from registers, 0: through shared memory
layout(constant_id = 49) const uint COMBINE = 0;       // with SPLIT, the last workgroup of a row combines the splits: 1 to O, 2 to O and LSE
layout(constant_id = 50) const uint DIM_SPLIT = 1;     // subgroups of decode_coopmat.comp that split the head dimension of the same keys
layout(constant_id = 51) const uint PREFETCH = 0;      // decode_coopmat.comp loads of the next KV tile during this one's products: 1 V, 2 K and V
#endif
