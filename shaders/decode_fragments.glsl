// Fragments of the decode kernel, in the order in which a reader needs them: how subgroups divide a KV tile, what lies in
// shared memory, and the operations on fragments.

// -- division of the work -------------------------------------------------------------------------
// How decode_coopmat.comp divides the head dimensions among subgroups and the vectors of 16 bytes among lanes.

const uint M_FRAGS = 1;                      // row fragments of a subgroup
const uint SUBGROUPS = LOCAL_SIZE / SUBGROUP_SIZE;
const uint KV_FRAGS = KV_TILE / 16;          // fragments along the keys of a tile
const uint QK_SPLIT = SUBGROUPS == DIM_SPLIT ? DIM_SPLIT : 1; // subgroups that split Dqk; their partial scores are added
// Per subgroup: 32 columns of Dqk, two fragments.
const uint QK_BLOCKS = ((HEAD_DIM + 31) / 32 + QK_SPLIT - 1) / QK_SPLIT;
// Per subgroup: 64 columns of O, four fragments.
const uint DV_BLOCKS = ((DV_SLICE + 63) / 64 + DIM_SPLIT - 1) / DIM_SPLIT;
const uint DV_FRAGS = 4 * DV_BLOCKS;
const uint Q_FRAGS = Q_SMEM_CHUNKS != 0 ? 1 : 2 * QK_BLOCKS; // in registers
const uint S_FRAGS = KV_FRAGS;
#define DIM_INDEX (DIM_SPLIT == 1 ? 0 : gl_SubgroupID % DIM_SPLIT)
#define QK_FIRST_COL (QK_SPLIT == 1 ? 0 : DIM_INDEX * QK_BLOCKS * 32)
#define DV_FIRST_COL (DIM_INDEX * DV_BLOCKS * 64)

// Blocks of Q that a subgroup loads: its own; or every SUBGROUPS-th, where all read Q in shared memory.
const uint Q_LOAD_BLOCKS = Q_SMEM_CHUNKS != 0 ? (QK_BLOCKS + SUBGROUPS - 1) / SUBGROUPS : QK_BLOCKS;
#define Q_BLOCK(b) (Q_SMEM_CHUNKS != 0 ? (b) * SUBGROUPS + gl_SubgroupID : (b))
// Block b that the subgroup loads has columns from col on.
bool hasQ(uint b, uint col) {
    const uint before = Q_SMEM_CHUNKS != 0 ? b * SUBGROUPS + SUBGROUPS - 1 : (QK_SPLIT - 1) * QK_BLOCKS + b; // at most
    return HEAD_DIM >= (before + 1) * 32 || col < HEAD_DIM;
}

// Vectors are assigned to 32 virtual lanes, LANE_FOLD per lane of a smaller subgroup. As in PTX, a group is four lanes.
const uint LANE_FOLD = 32 / SUBGROUP_SIZE;
#define VIRTUAL_LANE(s) ((s) * SUBGROUP_SIZE + gl_SubgroupInvocationID)
#define GROUP_ID(s) (VIRTUAL_LANE(s) / 4) // 0 to 7
#define THREAD_IN_GROUP (gl_SubgroupInvocationID % 4)

// Rows that begin at a word, and of blocks at one of which the lane's columns are a part. Where a block is not whole words
// the first of a subgroup begins at one only if its number is even.
const bool K_WORDS = K_TYPE * (1 - LATENT_ROWS(K_TYPE)) * (ALIGN_K / 4) * (HEAD_DIM % 8 == 0 ? 1 : 0) *
    (QK_SPLIT == 1 ? 1 : KEY_SCALES ? 1 : K_UNIT_BYTES % 4 == 0 ? 1 : QK_BLOCKS % 2 == 0 ? 1 : 0) != 0;
const bool V_WORDS = V_TYPE * (1 - LATENT_ROWS(V_TYPE)) * (ALIGN_V / 4) * (HEAD_DIM_V % 8 == 0 ? 1 : 0) * (DV_SLICES == 1 ? 1 : KEY_SCALES ? 1 : DV_SLICE % 64 == 0 ? 1 : 0) != 0;
const bool K_NIBBLES = (K_WORDS ? 1 : 0) * IN(NIBBLES, K_TYPE) != 0, V_NIBBLES = (V_WORDS ? 1 : 0) * IN(NIBBLES, V_TYPE) != 0;

// -- shared memory --------------------------------------------------------------------------------
// Shared memory of decode_coopmat.comp: smem, in vectors of 16 bytes. Small enough for two workgroups per
// multiprocessor.
//   0                 an area per subgroup: its scratch during the KV loop, blocks of its O afterwards
//   ROW_MAX_BASE      row max, FRAG_M floats per subgroup
//   FACTOR_BASE       rescale factors of O, likewise; after the KV loop row sums
//   ROW_SUM_F32_BASE  float32 row sums, after the KV loop
//   Q_BASE            Q, with Q_SMEM_CHUNKS; it overlays the areas if operands come from registers and it fits
//   SCALES_BASE       scales of K and V
#if NV2
const bool NO_SCRATCH = REGISTER_OPERANDS != 0;
#else
const bool NO_SCRATCH = false;
#endif
const bool AREAS_ONLY = Q_SMEM_CHUNKS == 0 || NO_SCRATCH;
const bool TWO_BLOCKS = SUM_N == 8 && AREAS_ONLY && DV_BLOCKS > 1 && QK_SPLIT == 1;
const uint AREA_BLOCKS = TWO_BLOCKS ? 2 : 1;
const uint AREA_STRIDE = 16 * AREA_BLOCKS + 1;
const uint AREA_ROWS = QK_SPLIT > 1 ? 16 : SUM_N; // room for partial scores
const uint AREA_SIZE = AREA_ROWS * AREA_STRIDE;
const uint SCRATCH_BASE = 0;
#define SUBGROUP_SCRATCH AREA_SIZE
const uint ROW_MAX_SIZE = FRAG_M / 4;
const uint ROW_MAX_BASE = SUBGROUPS * AREA_SIZE;
const uint FACTOR_BASE = ROW_MAX_BASE + SUBGROUPS * ROW_MAX_SIZE;
const uint ROW_SUM_F32_BASE = FACTOR_BASE + SUBGROUPS * ROW_MAX_SIZE;
const uint ROW_STATS_END = ROW_SUM_F32_BASE + SUBGROUPS * ROW_MAX_SIZE;
const uint Q_STRIDE = 4 * QK_BLOCKS | 1; // with Q_SMEM_CHUNKS all of Q is in shared memory
const uint Q_SIZE = Q_SMEM_CHUNKS != 0 ? FRAG_M * Q_STRIDE : 0;
const bool Q_IN_AREAS = NO_SCRATCH && Q_SIZE <= ROW_MAX_BASE;
const uint Q_BASE = Q_IN_AREAS ? 0 : ROW_STATS_END;
// Scales of a subgroup's keys overlay its area if nothing else does; else they are at the end.
const uint SCALES_SIZE = KEY_SCALES ? KV_TILE / 4 * SCALE_KINDS : 0;
const bool AREAS_FREE = NO_SCRATCH && Q_SMEM_CHUNKS == 0 && QK_SPLIT == 1;
const uint SCALES_EXTRA = (AREAS_FREE ? AREA_SIZE : 0) < SCALES_SIZE ? SUBGROUPS * SCALES_SIZE : 0;
const uint SCALES_BASE = ROW_STATS_END + (Q_IN_AREAS ? 0 : Q_SIZE);
#define SUBGROUP_SCALES (SCALES_EXTRA == 0 ? gl_SubgroupID * AREA_SIZE : SCALES_BASE + gl_SubgroupID * SCALES_SIZE)
shared uvec4 smem[SCALES_BASE + SCALES_EXTRA];
// Partial scores of a subgroup with QK_SPLIT: 16 keys, double-buffered by parity, in its area behind its scratch.
const uint QK_PARTIAL_STRIDE = 5;
const uint QK_PARTIAL_SIZE = 16 * QK_PARTIAL_STRIDE;
#define QK_PARTIAL(subgroup) ((subgroup) * AREA_SIZE + QK_PARTIAL_SIZE * (1 + parity))
shared uint nonFiniteSeen; // V of a masked tile, or a scale of V, has Inf or NaN, see non_finite.glsl
#define DROPS_NON_FINITE (ROW_MASKS || KEY_SCALES)
// Keys of each subgroup's tile, if they are sparse tokens.
shared uint tileKeys[SPARSE_TOKENS != 0 ? SUBGROUPS * KV_TILE : 1];
#define TILE_KEY(col) tileKeys[gl_SubgroupID * KV_TILE + (col)]

// -- fragments ------------------------------------------------------------------------------------
// Fragments of decode_coopmat.comp. O is transposed, V^T P^T: FragSum has one query row per column, so O takes
// registers for SUM_N rows alone. P as operand A and P^T as operand B are the same elements.
//
// Vulkan leaves open which lane holds which element of a fragment. The host asks the device (fragment_probe.comp) and
// sets REGISTER_OPERANDS if the answer is the order assumed here: operands are then filled from registers, else
// through the subgroup's scratch. An operand is 16 lines of 16 elements, rows of A or columns of B. Lane 4 g + t
// holds words t and t + 4 of lines g (first, second) and g + 8 (third, fourth).

// With 8 query rows, the second half of a lane's scores are of rows that do not exist; transposeP leaves them out.
#define LIVE_ELEMENTS(x) (REGISTER_OPERANDS != 0 && SUM_N == 8 ? x.length() / 2 : x.length())

// lavapipe (Mesa 26.2) reduces rows 8 to 15 of 16x16 fragments over half of their columns.
#define REDUCE_BY_SCRATCH (REGISTER_OPERANDS == 0)
#include "fragments.glsl"
#include "fragment_ops.glsl"

FragA Q[Q_FRAGS];
FragC S[KV_FRAGS];     // scores of a KV tile, then P
FragA P[KV_FRAGS];     // P as an operand
FragSum O[DV_FRAGS];   // transposed
FragC rowMax[1];       // lagged
FragSum rowSum[1];     // of P as rounded for the product with V: ones times P^T, all rows equal
FragC rowSumF32[1];    // of P before rounding, for LSE and sinks; not reduced along the row yet
FragC rowSumScaled[1]; // with KEY_SCALES instead of rowSum; not reduced either

// As in fragment_ops.glsl (float32 row sums), always a fragment: one row fragment has registers for it.
#define ADD_TO_ROW_SUM_F32(r, x) rowSumF32[r] += x;
#define ADD_PRODUCT_TO_ROW_SUM_F32(r, e, a, b) rowSumF32[r][e] = fma(a, b, rowSumF32[r][e]);
#define RESCALE_ROW_SUM_F32(r, factor) rowSumF32[r] *= factor;

#include "kv_scales.glsl"

// Rescale factors reach O's columns by way of shared memory.
#define RESCALE_FACTOR (FACTOR_BASE + gl_SubgroupID * ROW_MAX_SIZE)
#define OWN_RESCALE
void rescaleRowSum(uint r, FragC factor) {
    subgroupSync();
    storeFirstColumn(factor, RESCALE_FACTOR);
}
void rescaleO(uint r, FragC factor) {
    FragSum across;
    coopMatLoad(across, smem, RESCALE_FACTOR, 0, gl_CooperativeMatrixLayoutRowMajor);
    rowSum[r] *= across;
    [[unroll]] for (uint i = 0; i < DV_FRAGS; ++i) O[i] *= across;
}
#include "softmax.glsl"

// Stores the first row of x, SUM_N floats, from smem[base] on.
#if NV2
float storeFirstRowElement(const in uint32_t row, const in uint32_t col, const in float x, const in uint base) {
    if (row == 0) smem[base + col / 4][col % 4] = floatBitsToUint(x);
    return x;
}
#define storeFirstRow(x, base) coopMatPerElementNV(x, x, storeFirstRowElement, base)
#else
#define storeFirstRow(x, base)                                                                      \
    {                                                                                               \
        fragmentToScratch(x);                                                                       \
        for (uint col = gl_SubgroupInvocationID; col < SUM_N; col += SUBGROUP_SIZE)                 \
            smem[(base) + col / 4][col % 4] = floatBitsToUint(loadScratch(0, col));                 \
    }
#endif

#ifdef DTYPE_BF16
#define PUT_WORD(frag, e, word)                                                                     \
    frag[e] = bfloat16_t(uintBitsToFloat((word) << 16));                                            \
    frag[(e) + 1] = bfloat16_t(uintBitsToFloat((word) & 0xffff0000u));
#else
#define PUT_WORD(frag, e, word)                                                                     \
    {                                                                                               \
        const f16vec2 two = unpackFloat2x16(word);                                                  \
        frag[e] = two.x;                                                                            \
        frag[(e) + 1] = two.y;                                                                      \
    }
#endif
// The words are expressions of s, 0 to LANE_FOLD - 1.
#define OPERAND(frag, first, second, third, fourth, layout_)                                        \
    if (REGISTER_OPERANDS != 0) {                                                                   \
        const uint s = 0;                                                                           \
        PUT_WORD(frag, 0, first)                                                                    \
        PUT_WORD(frag, 2, second)                                                                   \
        PUT_WORD(frag, 4, third)                                                                    \
        PUT_WORD(frag, 6, fourth)                                                                   \
    } else {                                                                                        \
        subgroupSync();                                                                             \
        [[unroll]] for (uint s = 0; s < LANE_FOLD; ++s) {                                           \
            const uint line = subgroupScratch() + 2 * GROUP_ID(s);                                  \
            smem[line][THREAD_IN_GROUP] = first;                                                    \
            smem[line + 1][THREAD_IN_GROUP] = second;                                               \
            smem[line + 16][THREAD_IN_GROUP] = third;                                               \
            smem[line + 17][THREAD_IN_GROUP] = fourth;                                              \
        }                                                                                           \
        subgroupSync();                                                                             \
        coopMatLoad(frag, smem, subgroupScratch(), 2, layout_);                                     \
    }
#define operandA(frag, first, second, third, fourth)                                                \
    OPERAND(frag, first, second, third, fourth, gl_CooperativeMatrixLayoutRowMajor)
#define operandB(frag, first, second, third, fourth)                                                \
    OPERAND(frag, first, second, third, fourth, gl_CooperativeMatrixLayoutColumnMajor)

// P^T from P. A line of both is a row of P: a row of operand A, a column of operand B.
#define FragPt FragOnes
#define transposeP(result, x)                                                                       \
    if (REGISTER_OPERANDS != 0) {                                                                   \
        [[unroll]] for (uint e = 0; e < result.length(); ++e) result[e] = x[e];                     \
    } else {                                                                                        \
        subgroupSync();                                                                             \
        coopMatStore(x, smem, subgroupScratch(), 2, gl_CooperativeMatrixLayoutRowMajor);            \
        subgroupSync();                                                                             \
        coopMatLoad(result, smem, subgroupScratch(), 2, gl_CooperativeMatrixLayoutColumnMajor);     \
    }
