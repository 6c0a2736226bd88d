// Operations on fragments with VK_KHR_cooperative_matrix alone: each passes through the subgroup's scratch. The same
// macros as in fragment_ops_nv2.glsl.

#define reduceRowMax(result, x) REDUCE_ROWS(result, x, -INFINITY, max(all, next))
#define reduceRowSum(result, x) REDUCE_ROWS(result, x, 0.0, all + next)

#define narrowRows(result, x) narrowByScratch(result, x)
#define widenRows(result, x) widenByScratch(result, x)

// Stores the first column of x, FRAG_M floats, from smem[base] on.
#define storeFirstColumn(x, base)                                                                   \
    {                                                                                               \
        fragmentToScratch(x);                                                                       \
        for (uint row = gl_SubgroupInvocationID; row < FRAG_M; row += SUBGROUP_SIZE)                \
            smem[(base) + row / 4][row % 4] = floatBitsToUint(loadScratch(row, 0));                 \
    }

// Replaces masked scores by -Inf.
#define applyMask(x, firstRow, firstCol, offset, end)                                               \
    {                                                                                               \
        fragmentToScratch(x);                                                                       \
        for (uint i = gl_SubgroupInvocationID; i < FRAG_M * FRAG_N; i += SUBGROUP_SIZE) {           \
            uint row = i / FRAG_N, col = i % FRAG_N;                                                \
            int c = (firstCol) + int(col);                                                          \
            if (c >= (end) || (CAUSAL != 0 && c > (firstRow) + int(row) + (offset)))                \
                storeScratch(row, col, -INFINITY);                                                  \
        }                                                                                           \
        subgroupSync();                                                                             \
        coopMatLoad(x, smem, subgroupScratch(), SCRATCH_STRIDE, gl_CooperativeMatrixLayoutRowMajor); \
    }

#if GENERAL
#define maskAndBiasElements(x, firstRow, firstKey, firstCol)                                        \
    {                                                                                               \
        fragmentToScratch(x);                                                                       \
        for (uint i = gl_SubgroupInvocationID; i < FRAG_M * FRAG_N; i += SUBGROUP_SIZE) {           \
            const uint row = i / FRAG_N, col = i % FRAG_N;                                          \
            storeScratch(row, col, maskedScore((firstRow) + row, firstKey, (firstCol) + col, loadScratch(row, col))); \
        }                                                                                           \
        subgroupSync();                                                                             \
        coopMatLoad(x, smem, subgroupScratch(), SCRATCH_STRIDE, gl_CooperativeMatrixLayoutRowMajor); \
    }
#endif

// Rounded to storage: the 16-bit elements overwrite the float32 ones in scratch (FRAG_K == FRAG_N).
const uint PACKED_STRIDE = (FRAG_N / 8) | 1;
#define toOperandA(result, x)                                                                       \
    {                                                                                               \
        fragmentToScratch(x);                                                                       \
        uvec4 packed[LANE_VECS];                                                                    \
        [[unroll]] for (uint s = 0; s < LANE_VECS; ++s) {                                           \
            uint group = s * SUBGROUP_SIZE + gl_SubgroupInvocationID;                               \
            if (group < FRAG_VECS) packed[s] = packScratch8(group);                                 \
        }                                                                                           \
        subgroupSync();                                                                             \
        [[unroll]] for (uint s = 0; s < LANE_VECS; ++s) {                                           \
            uint group = s * SUBGROUP_SIZE + gl_SubgroupInvocationID;                               \
            if (group < FRAG_VECS)                                                                  \
                smem[subgroupScratch() + (group / (FRAG_N / 8)) * PACKED_STRIDE + group % (FRAG_N / 8)] = packed[s]; \
        }                                                                                           \
        subgroupSync();                                                                             \
        coopMatLoad(result, smem, subgroupScratch(), PACKED_STRIDE, gl_CooperativeMatrixLayoutRowMajor); \
    }
#define exactOperandA(result, x) toOperandA(result, x)
