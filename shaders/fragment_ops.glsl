// Operations on fragments: by way of scratch in shared memory, and element by element, on VK_NV_cooperative_matrix2 and
// without it; mask and bias; and float32 row sums of the forward kernels.

// -- scratch --------------------------------------------------------------------------------------
// A subgroup's scratch in shared memory: one fragment as float32, FRAG_M rows of SCRATCH_STRIDE uvec4. The stride is
// odd: the rows of a fragment start in different banks. Fragments pass through it for operations that need to know an
// element's row and column, which VK_KHR_cooperative_matrix hides.
//
// The kernel defines smem, SCRATCH_BASE, and SUBGROUP_SCRATCH if a subgroup's scratch is larger than SCRATCH_SIZE.

const uint SCRATCH_STRIDE = (FRAG_N / 4) | 1;
const uint SCRATCH_SIZE = FRAG_M * SCRATCH_STRIDE;

// Makes the writes of a subgroup's lanes to shared memory visible to each other. Subgroups call it different numbers of
// times between workgroup barriers. lavapipe (Mesa 26.2) counts a subgroup barrier as a workgroup barrier, so a
// subgroup that meets fewer of them runs ahead; its lanes are one vector and need no barrier.
void subgroupSync() {
    if (SUBGROUP_BARRIER != 0)
        controlBarrier(gl_ScopeSubgroup, gl_ScopeSubgroup, gl_StorageSemanticsShared, gl_SemanticsAcquireRelease);
    else
        subgroupMemoryBarrierShared();
}

#ifndef SUBGROUP_SCRATCH
#define SUBGROUP_SCRATCH SCRATCH_SIZE
#endif
uint subgroupScratch() { return SCRATCH_BASE + gl_SubgroupID * SUBGROUP_SCRATCH; }

float loadScratch(uint row, uint col) {
    return uintBitsToFloat(smem[subgroupScratch() + row * SCRATCH_STRIDE + col / 4][col % 4]);
}

void storeScratch(uint row, uint col, float x) {
    smem[subgroupScratch() + row * SCRATCH_STRIDE + col / 4][col % 4] = floatBitsToUint(x);
}

// Stores x to the subgroup's scratch, visible to all its lanes. A macro, as the
// fragment has one of several types.
#define fragmentToScratch(x)                                                                        \
    {                                                                                               \
        subgroupSync();                                                                             \
        coopMatStore(x, smem, subgroupScratch(), SCRATCH_STRIDE, gl_CooperativeMatrixLayoutRowMajor); \
        subgroupSync();                                                                             \
    }

// Vectors of 8 neighbouring elements of a fragment, and how many of them a lane packs.
const uint FRAG_VECS = FRAG_M * FRAG_N / 8;
const uint LANE_VECS = (FRAG_VECS + SUBGROUP_SIZE - 1) / SUBGROUP_SIZE;

// Vector `group` of the fragment in scratch, rounded to the storage type. Vectors are numbered row by row.
uvec4 packScratch8(uint group) {
    uint at = subgroupScratch() + (group / (FRAG_N / 8)) * SCRATCH_STRIDE + (group % (FRAG_N / 8)) * 2;
    uvec4 a = smem[at], b = smem[at + 1];
    return uvec4(pack2(uintBitsToFloat(a.x), uintBitsToFloat(a.y)),
                 pack2(uintBitsToFloat(a.z), uintBitsToFloat(a.w)),
                 pack2(uintBitsToFloat(b.x), uintBitsToFloat(b.y)),
                 pack2(uintBitsToFloat(b.z), uintBitsToFloat(b.w)));
}

// Reduction along rows. Every element of a row receives the row's result, as with coopMatReduceNV.
#define REDUCE_ROWS(result, x, START, STEP)                                                         \
    {                                                                                               \
        fragmentToScratch(x);                                                                       \
        for (uint row = gl_SubgroupInvocationID; row < FRAG_M; row += SUBGROUP_SIZE) {              \
            float all = START;                                                                      \
            for (uint col = 0; col < FRAG_N; ++col) {                                               \
                float next = loadScratch(row, col);                                                 \
                all = STEP;                                                                         \
            }                                                                                       \
            for (uint col = 0; col < FRAG_N; ++col) storeScratch(row, col, all);                    \
        }                                                                                           \
        subgroupSync();                                                                             \
        coopMatLoad(result, smem, subgroupScratch(), SCRATCH_STRIDE, gl_CooperativeMatrixLayoutRowMajor); \
    }

// From a fragment with FRAG_N equal columns to one with SUM_N equal columns, and back.
#define narrowByScratch(result, x)                                                                  \
    {                                                                                               \
        fragmentToScratch(x);                                                                       \
        coopMatLoad(result, smem, subgroupScratch(), SCRATCH_STRIDE, gl_CooperativeMatrixLayoutRowMajor); \
    }
#define widenByScratch(result, x)                                                                   \
    {                                                                                               \
        fragmentToScratch(x);                                                                       \
        for (uint row = gl_SubgroupInvocationID; row < FRAG_M; row += SUBGROUP_SIZE) {              \
            const float one = loadScratch(row, 0);                                                  \
            for (uint col = 1; col < FRAG_N; ++col) storeScratch(row, col, one);                    \
        }                                                                                           \
        subgroupSync();                                                                             \
        coopMatLoad(result, smem, subgroupScratch(), SCRATCH_STRIDE, gl_CooperativeMatrixLayoutRowMajor); \
    }

#if GENERAL
// -- mask -----------------------------------------------------------------------------------------
// Mask, soft cap, ALiBi and bias of a fragment of scores, in calls with options.

// Score of a product x. firstKey is the first slot of the KV tile, col a column of the tile.
float maskedScore(uint row, uint firstKey, uint col, float x) {
    const uint key = SPARSE_TOKENS != 0 ? TILE_KEY(col) : firstKey + col;
    const float score = SCORE_MOD ? scoreMod(x * abs(p.scoreScale), row, key) : x; // without a branch, as in attends
    return attends(row, key) ? score : -INFINITY;
}

// In masked tiles every element depends on its row and key. In unmasked tiles scores have the same modifiers without masks.
#ifdef BACKWARD // it has no map
#define MODIFY_FULL_TILE(x, firstRow, firstKey, firstCol)
#else
float modifiedScore(uint row, uint key, float x) { return scoreMod(x * abs(p.scoreScale), row, key); }
#define MODIFY_FULL_TILE(x, firstRow, firstKey, firstCol)                                           \
    else if (ALIBI + BIAS + SCORE_EXPR % 2 != 0) modifyElements(x, firstRow, firstKey, firstCol)
#endif
#define applyMaskAndBias(x, firstRow, firstKey, firstCol, masked)                                   \
    if (masked != 0) maskAndBiasElements(x, firstRow, firstKey, firstCol)                           \
    MODIFY_FULL_TILE(x, firstRow, firstKey, firstCol)                                               \
    else if (SOFTCAP PLUS_SCORE_EXPR != 0) {                                                        \
        [[unroll]] for (uint e = 0; e < x.length(); ++e) x[e] = scoreModOfTile(x[e] * abs(p.scoreScale)); \
    }
#endif

#if NV2
// -- VK_NV_cooperative_matrix2 --------------------------------------------------------------------
// Operations on fragments with VK_NV_cooperative_matrix2: reductions, per-element functions, conversions.

float reduceMax(const in float a, const in float b) { return max(a, b); }
float reduceAdd(const in float a, const in float b) { return a + b; }
#define reduceRows(result, x, step) coopMatReduceNV(result, x, gl_CooperativeMatrixReduceRowNV, step)
#ifdef REDUCE_BY_SCRATCH // an expression: if it is true, reductions go through scratch instead
#define reduceRowMax(result, x) if (REDUCE_BY_SCRATCH) REDUCE_ROWS(result, x, -INFINITY, max(all, next)) else reduceRows(result, x, reduceMax)
#define reduceRowSum(result, x) if (REDUCE_BY_SCRATCH) REDUCE_ROWS(result, x, 0.0, all + next) else reduceRows(result, x, reduceAdd)
#define narrowRows(result, x) if (REDUCE_BY_SCRATCH) narrowByScratch(result, x) else reduceRows(result, x, reduceMax)
#define widenRows(result, x) if (REDUCE_BY_SCRATCH) widenByScratch(result, x) else reduceRows(result, x, reduceMax)
#else
#define reduceRowMax(result, x) reduceRows(result, x, reduceMax)
#define reduceRowSum(result, x) reduceRows(result, x, reduceAdd)
#define narrowRows(result, x) reduceRows(result, x, reduceMax)
#define widenRows(result, x) reduceRows(result, x, reduceMax)
#endif

// Stores the first column of x, FRAG_M floats, from smem[base] on. A per-element function may run more than once for an
// element: it then stores the same value again.
float storeFirstColumnElement(const in uint32_t row, const in uint32_t col, const in float x, const in uint base) {
    if (col == 0) smem[base + row / 4][row % 4] = floatBitsToUint(x);
    return x;
}
#define storeFirstColumn(x, base) coopMatPerElementNV(x, x, storeFirstColumnElement, base)

float maskedElement(const in uint32_t row, const in uint32_t col, const in float x,
                    const in int firstRow, const in int firstCol, const in int offset, const in int end) {
    int c = firstCol + int(col);
    bool keep = c < end && (CAUSAL == 0 || c <= firstRow + int(row) + offset);
    return keep ? x : -INFINITY;
}
// Replaces masked scores by -Inf, whatever they are.
#define applyMask(x, firstRow, firstCol, offset, end)                                               \
    coopMatPerElementNV(x, x, maskedElement, firstRow, firstCol, offset, end)

#if GENERAL
float maskedBiasedElement(const in uint32_t row, const in uint32_t col, const in float x,
                      const in uint firstRow, const in uint firstKey, const in uint firstCol) {
    return maskedScore(firstRow + row, firstKey, firstCol + col, x);
}
#define maskAndBiasElements(x, firstRow, firstKey, firstCol)                                        \
    coopMatPerElementNV(x, x, maskedBiasedElement, firstRow, firstKey, firstCol);
#ifndef BACKWARD
float modifiedElement(const in uint32_t row, const in uint32_t col, const in float x,
                      const in uint firstRow, const in uint firstKey) {
    return modifiedScore(firstRow + row, firstKey + col, x);
}
#define modifyElements(x, firstRow, firstKey, firstCol)                                             \
    coopMatPerElementNV(x, x, modifiedElement, firstRow, firstKey + (firstCol));
#endif
#endif

#ifdef DTYPE_BF16
// P rounded to storage. NVIDIA's conversion to bfloat16 truncates (driver 580.159), and P that lost up to a unit in the
// last place shows in rows with few keys. P is not negative: adding half a unit and clearing the low bits makes the
// conversion exact. min turns NaN into Inf before it carries; the epilogues make the row NaN, as its row sum is Inf. exp2
// returns NaN as 0x7fffffff: one from 0xffff8000 on would wrap around.
#define toOperandA(result, x)                                                                       \
    {                                                                                               \
        [[unroll]] for (uint e = 0; e < x.length(); ++e)                                            \
            x[e] = uintBitsToFloat(min(floatBitsToUint(x[e]) + 0x8000u, 0x7f800000u) & 0xffff0000u); \
        result = FragA(x);                                                                          \
    }
#else
#define toOperandA(result, x) result = FragA(x)
#endif

// For x that the storage type has exactly; others are rounded either way.
#define exactOperandA(result, x) result = FragA(x)

// Any x rounded to storage. A fragment of O has the shape of an A operand.
#ifdef DTYPE_BF16
#define toStorage(result, x)                                                                        \
    {                                                                                               \
        [[unroll]] for (uint e = 0; e < x.length(); ++e) x[e] = uintBitsToFloat(encode16(x[e]) << 16); \
        result = FragA(x);                                                                          \
    }
#else
#define toStorage(result, x) result = FragA(x)
#endif
#else
// -- VK_KHR_cooperative_matrix alone --------------------------------------------------------------
// Operations on fragments with VK_KHR_cooperative_matrix alone: each passes through the subgroup's scratch. The same
// macros as with VK_NV_cooperative_matrix2.

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
#define forElements(x, VALUE)                                                                       \
    {                                                                                               \
        fragmentToScratch(x);                                                                       \
        for (uint i = gl_SubgroupInvocationID; i < FRAG_M * FRAG_N; i += SUBGROUP_SIZE) {           \
            const uint row = i / FRAG_N, col = i % FRAG_N;                                          \
            storeScratch(row, col, VALUE);                                                          \
        }                                                                                           \
        subgroupSync();                                                                             \
        coopMatLoad(x, smem, subgroupScratch(), SCRATCH_STRIDE, gl_CooperativeMatrixLayoutRowMajor); \
    }
#define maskAndBiasElements(x, firstRow, firstKey, firstCol)                                        \
    forElements(x, maskedScore((firstRow) + row, firstKey, (firstCol) + col, loadScratch(row, col)))
#define modifyElements(x, firstRow, firstKey, firstCol)                                             \
    forElements(x, modifiedScore((firstRow) + row, firstKey + (firstCol) + col, loadScratch(row, col)))
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
#endif

#ifdef CONSTANTS_ROW_SUM // forward kernels
// -- float32 row sums -----------------------------------------------------------------------------
// Row sums of P before rounding: for LSE and sinks, and in forward_coopmat_f32.comp for O. The KV loop does not reduce
// them along the row.
//
// With ROW_ELEMENTS each lane adds up the elements that it holds of a row: on NVIDIA two floats per row fragment, where
// a fragment of sums takes eight registers. Tiles with two row fragments have no registers to spare
// (docs/log/vulkan.md, 59). With ROW_ELEMENTS = 0 the order of the elements is unknown and the sums stay a fragment.
const bool LANE_SUMS = ROW_ELEMENTS != 0;
const uint LANE_RUN = LANE_SUMS ? ROW_ELEMENTS : 1;
const uint LANE_ROWS = LANE_SUMS ? FRAG_M * FRAG_N / SUBGROUP_SIZE / LANE_RUN : 1; // runs of a lane, per fragment

FragC rowSumF32[M_FRAGS];           // with LANE_SUMS only in the epilogue
float laneSum[M_FRAGS * LANE_ROWS]; // with LANE_SUMS
#define LANE_SUM(r, run) laneSum[LANE_SUMS ? (r) * LANE_ROWS + (run) : 0]

#define CLEAR_ROW_SUM_F32(r)                                                                        \
    {                                                                                               \
        if (LANE_SUMS) { [[unroll]] for (uint k = 0; k < LANE_ROWS; ++k) LANE_SUM(r, k) = 0.0; }    \
        else rowSumF32[r] = FragC(0.0);                                                             \
    }

// Adds the fragment x. The elements of a run are added up first: one addition waits for the sum of the step before.
#define ADD_TO_ROW_SUM_F32(r, x)                                                                    \
    {                                                                                               \
        if (LANE_SUMS) {                                                                            \
            [[unroll]] for (uint k = 0; k < LANE_ROWS; ++k) {                                       \
                float run = x[k * LANE_RUN];                                                        \
                [[unroll]] for (uint e = 1; e < LANE_RUN; ++e) run += x[k * LANE_RUN + e];          \
                LANE_SUM(r, k) += run;                                                              \
            }                                                                                       \
        } else rowSumF32[r] += x;                                                                   \
    }

// Adds the product a b as element e.
#define ADD_PRODUCT_TO_ROW_SUM_F32(r, e, a, b)                                                      \
    {                                                                                               \
        if (LANE_SUMS) LANE_SUM(r, (e) / LANE_RUN) = fma(a, b, LANE_SUM(r, (e) / LANE_RUN));        \
        else rowSumF32[r][e] = fma(a, b, rowSumF32[r][e]);                                          \
    }

#define RESCALE_ROW_SUM_F32(r, factor)                                                              \
    {                                                                                               \
        if (LANE_SUMS) { [[unroll]] for (uint k = 0; k < LANE_ROWS; ++k) LANE_SUM(r, k) *= factor[k * LANE_RUN]; } \
        else rowSumF32[r] *= factor;                                                                \
    }

// The sums as a fragment, to be reduced along the row: a lane's sum is the first element of its run, the others are 0.
#define LANE_SUMS_TO_FRAGMENT(r)                                                                    \
    if (LANE_SUMS) {                                                                                \
        [[unroll]] for (uint e = 0; e < rowSumF32[r].length(); ++e)                                 \
            rowSumF32[r][e] = e % LANE_RUN == 0 ? LANE_SUM(r, e / LANE_RUN) : 0.0;                  \
    }
#endif
