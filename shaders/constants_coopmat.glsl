// What every kernel on cooperative matrices begins with: the extensions, and specialization constants, those of all of
// these kernels first, then sections, see constants.glsl. The extensions imply the Vulkan memory model, hence scoped
// atomics.
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_shader_explicit_arithmetic_types_int32 : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_vote : require
#extension GL_KHR_shader_subgroup_ballot : require
#if NV2
#extension GL_NV_cooperative_matrix2 : require
#endif
#if defined(DTYPE_BF16) || defined(TERMS_BF16)
#extension GL_EXT_bfloat16 : require
#extension GL_EXT_shader_explicit_arithmetic_types_int16 : require
#endif

#define SCOPED_ATOMICS 1
#define SEARCH_LANES SUBGROUP_SIZE // see sequenceOf

layout(constant_id = 1) const uint SUBGROUP_SIZE = 32; // invocations per subgroup
layout(constant_id = 21) const uint SUBGROUP_BARRIER = 1; // 0: a subgroup runs in lockstep and needs no barrier, see subgroupSync
layout(constant_id = 2) const uint FRAG_M = 16;        // rows of a fragment
layout(constant_id = 3) const uint FRAG_N = 16;        // columns of a fragment
layout(constant_id = 4) const uint FRAG_K = 16;        // depth of a fragment
layout(constant_id = 22) const uint SUM_N = 16;        // columns of the row sum fragment; decode_coopmat.comp: query rows, the columns of its O
layout(constant_id = 24) const uint Q_SMEM_CHUNKS = 0; // chunks of FRAG_K columns of Q in shared memory, the others are in registers

#ifdef CONSTANTS_FORWARD
// -- forward, dense and general, and backward -----------------------------------------------------
layout(constant_id = 5) const uint M_FRAGS = 1;        // fragments of FRAG_M query rows per subgroup
layout(constant_id = 23) const uint KV_STEP = 16;      // keys of a KV tile per Q K^T product
layout(constant_id = 53) const uint KEYS_PER_SUBGROUP = 0; // not 0: consecutive keys of a KV tile that one subgroup loads
layout(constant_id = 46) const uint SPLIT_KV = 0;      // 1: with SPLIT, subgroups split the keys too: all have the same rows and one KV step of each tile
layout(constant_id = 47) const uint ALIAS_KV = 0;      // 1: V overwrites K in shared memory; a subgroup processes a KV tile in one step. Of float32 see f32_load.glsl
#endif

#ifdef CONSTANTS_ROW_SUM
// -- float32 row sums -----------------------------------------------------------------------------
layout(constant_id = 55) const uint ROW_ELEMENTS = 0;  // consecutive elements of a lane that lie in one row of an accumulator; 0: unknown, see fragment_ops.glsl
#endif

#ifdef CONSTANTS_BACKWARD_COOPMAT
// -- backward -------------------------------------------------------------------------------------
layout(constant_id = 80) const uint ROW_TILE = 64;     // rows per row tile of the dK and dV kernel; KV_STEP of them per product
layout(constant_id = 81) const uint STORE_DS = 0;      // 1: the dK and dV kernel stores dS, see backward_scratch.glsl
layout(constant_id = 110) const uint OPERANDS_IN_SMEM = 1; // 1: P and dS become operands in shared memory, see backward_fragments.glsl
#ifdef CONSTANTS_SLICES
layout(constant_id = 138) const uint SLICES = 1;       // of the columns of a gradient: a workgroup has one, z of the grid
#endif

const uint PLACES_SIZE = NV2 == 0 ? FRAG_M * FRAG_N / 4 : 0; // of the table of rows and columns, see backward_fragments.glsl
#endif

#ifdef CONSTANTS_BACKWARD_RARE
// -- the kernel of dK and dV ----------------------------------------------------------------------
layout(constant_id = 118) const uint RARE_WORK = 0; // workgroups of the dispatch: 0 all, 1 all but rare ones, which it marks, 2 marked ones
#endif

#ifdef CONSTANTS_DENSE
// -- dense forward --------------------------------------------------------------------------------
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

#ifdef CONSTANTS_DECODE
// -- decode ---------------------------------------------------------------------------------------
layout(constant_id = 48) const uint REGISTER_OPERANDS = 0; // 1: decode_coopmat.comp fills operands from registers, 0: through shared memory
layout(constant_id = 49) const uint COMBINE = 0;       // with SPLIT, the last workgroup of a row combines the splits: 1 to O, 2 to O and LSE
#endif
#if defined(CONSTANTS_DECODE) || defined(CONSTANTS_F32_PAIRS) // decode, and float32 forward
layout(constant_id = 50) const uint DIM_SPLIT = 1;     // subgroups that split the head dimension of the same keys
#endif
#ifdef CONSTANTS_DECODE
layout(constant_id = 51) const uint PREFETCH = 0;      // decode_coopmat.comp loads of the next KV tile during this one's products: 1 V, 2 K and V
#endif
