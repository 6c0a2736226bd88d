// Constants, parameters and fragments of the backward experiments.
#extension GL_GOOGLE_include_directive : require
#define NV2 1
#include "../../shaders/coopmat_extensions.glsl"
#extension GL_EXT_shader_16bit_storage : enable

layout(local_size_x_id = 0) in;
const uint LOCAL_SIZE = gl_WorkGroupSize.x;
layout(constant_id = 1) const uint SUBGROUP_SIZE = 32;
layout(constant_id = 2) const uint FRAG_M = 16;
layout(constant_id = 3) const uint FRAG_N = 16;
layout(constant_id = 4) const uint FRAG_K = 16;
layout(constant_id = 5) const uint M_FRAGS = 1;        // fragments of FRAG_M rows (keys of dK and dV, queries of dQ) per subgroup
layout(constant_id = 6) const uint TILE = 32;          // rows (queries of dK and dV, keys of dQ) per tile in shared memory
layout(constant_id = 8) const uint HEAD_DIM = 128;
layout(constant_id = 9) const uint HEAD_DIM_V = 128;
layout(constant_id = 11) const uint CAUSAL = 0;
layout(constant_id = 21) const uint SUBGROUP_BARRIER = 1;
layout(constant_id = 70) const uint A_SMEM = 0;        // chunks of the first operand (K or Q) in shared memory
layout(constant_id = 71) const uint B_SMEM = 0;        // chunks of the second operand (V or dO) in shared memory
layout(constant_id = 72) const uint BUFFERS = 1;       // 2: double-buffered tiles, one barrier per tile
layout(constant_id = 73) const uint STORE_DS = 0;      // 1: dS goes to scratch
layout(constant_id = 74) const uint ABLATE = 0;        // 1 no exponential and no products with P, 2 no barriers, 3 only the first load
layout(constant_id = 75) const uint STEP = 16;         // rows of a tile per step
layout(constant_id = 76) const uint AHEAD = 0;         // 1: S of the next step is multiplied before this step's P
layout(constant_id = 77) const uint ORDER = 0;         // 1: heads vary fastest
layout(constant_id = 78) const uint STAGED = 0;        // 1: with two buffers, each step loads and stores its share of the next tile
layout(constant_id = 79) const uint FENCE = 0;         // fences against hoisted loads: 1 between steps, 2 between products, 3 within products

layout(push_constant) uniform Params {
    uint Sq, Sk, Hq, Hkv;
    int causalOffset;
    float scale;
    uint firstKey;        // of the chunk of keys
    uint keyFrags, rowFrags; // of dS in scratch, per head
    uint flags;           // 1: dQ is added to, 2: dQ is the storage type, scaled
} p;

const float LOG2E = 1.4426950408889634;
#define INFINITY uintBitsToFloat(0x7f800000u)

#ifdef DTYPE_BF16
#define STORAGE_T bfloat16_t
#else
#define STORAGE_T float16_t
#endif
#define FragA coopmat<STORAGE_T, gl_ScopeSubgroup, FRAG_M, FRAG_K, gl_MatrixUseA>
#define FragB coopmat<STORAGE_T, gl_ScopeSubgroup, FRAG_K, FRAG_N, gl_MatrixUseB>
#define FragC coopmat<float, gl_ScopeSubgroup, FRAG_M, FRAG_N, gl_MatrixUseAccumulator>
#define ROW_MAJOR gl_CooperativeMatrixLayoutRowMajor
#define COLUMN_MAJOR gl_CooperativeMatrixLayoutColumnMajor

#ifdef DTYPE_BF16
#define roundedA(result, x)                                                                         \
    {                                                                                               \
        [[unroll]] for (uint e = 0; e < x.length(); ++e)                                            \
            x[e] = uintBitsToFloat((floatBitsToUint(x[e]) + 0x8000u) & 0xffff0000u);                \
        result = FragA(x);                                                                          \
    }
#define WORD(frag, e) ((floatBitsToUint(float(frag[e])) >> 16) | (floatBitsToUint(float(frag[(e) + 1])) & 0xffff0000u))
#define PUT_WORD(frag, e, word)                                                                     \
    {                                                                                               \
        frag[e] = bfloat16_t(uintBitsToFloat((word) << 16));                                        \
        frag[(e) + 1] = bfloat16_t(uintBitsToFloat((word) & 0xffff0000u));                          \
    }
#else
#define roundedA(result, x) result = FragA(x);
#define WORD(frag, e) packFloat2x16(f16vec2(frag[e], frag[(e) + 1]))
#define PUT_WORD(frag, e, word)                                                                     \
    {                                                                                               \
        const f16vec2 two = unpackFloat2x16(word);                                                  \
        frag[e] = two.x;                                                                            \
        frag[(e) + 1] = two.y;                                                                      \
    }
#endif

void subgroupSync() {
    if (SUBGROUP_BARRIER != 0)
        controlBarrier(gl_ScopeSubgroup, gl_ScopeSubgroup, gl_StorageSemanticsShared, gl_SemanticsAcquireRelease);
    else
        subgroupMemoryBarrierShared();
}

// Keeps the compiler from moving loads from shared memory across.
#define FENCE_AT(level) if (FENCE >= (level)) subgroupMemoryBarrierShared();

const uint SUBGROUPS = LOCAL_SIZE / SUBGROUP_SIZE;
const uint SUBGROUP_ROWS = M_FRAGS * FRAG_M;
const uint WORKGROUP_ROWS = SUBGROUPS * SUBGROUP_ROWS;
const uint CHUNKS = HEAD_DIM / FRAG_K;
const uint CHUNKS_V = HEAD_DIM_V / FRAG_K;
const uint ROW_VECS = HEAD_DIM / 8;
const uint ROW_VECS_V = HEAD_DIM_V / 8;
const uint STRIDE = ROW_VECS | 1;
const uint STRIDE_V = ROW_VECS_V | 1;

// Lane-order index of fragment (key fragment, row fragment) of dS^T in scratch.
#define DS_INDEX(head, keyFrag, rowFrag) \
    ((((head) * p.keyFrags + (keyFrag)) * p.rowFrags + (rowFrag)) * SUBGROUP_SIZE + gl_SubgroupInvocationID)
