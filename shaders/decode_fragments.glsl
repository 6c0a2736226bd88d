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
#include "coopmat_fragments.glsl"

FragA Q[Q_FRAGS];
FragC S[KV_FRAGS];     // scores of a KV tile, then P
FragA P[KV_FRAGS];     // P as an operand
FragSum O[DV_FRAGS];   // transposed
FragC rowMax[1];       // lagged
FragSum rowSum[1];     // of P as rounded for the product with V: ones times P^T, all rows equal
FragC rowSumF32[1];    // of P before rounding, for LSE and sinks; not reduced along the row yet
FragC rowSumScaled[1]; // with KEY_SCALES instead of rowSum; not reduced either

// As in row_sum_f32.glsl, always a fragment: one row fragment has registers for it.
#define ADD_TO_ROW_SUM_F32(r, x) rowSumF32[r] += x;
#define ADD_PRODUCT_TO_ROW_SUM_F32(r, e, a, b) rowSumF32[r][e] = fma(a, b, rowSumF32[r][e]);
#define RESCALE_ROW_SUM_F32(r, factor) rowSumF32[r] *= factor;

#include "kv_scales.glsl"
#include "kv_exact.glsl"

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
