// Cooperative-matrix fragment types and the three things the two extensions do differently:
// reduce along a row, turn an accumulator into an A operand, and know which (row, column) an
// element is. NV2=1 uses VK_NV_cooperative_matrix2 (reductions, conversions, per-element
// operations). NV2=0 has only VK_KHR_cooperative_matrix, where the place of an element in the
// matrix is opaque, so each of the three goes through a FRAG_M x FRAG_N scratch in shared memory
// that belongs to one subgroup.

// Two float32 rounded to storage and packed.
uint pack2(float x, float y) {
#ifdef DTYPE_BF16
    return encode16x2(x, y);
#else
    return packFloat2x16(f16vec2(x, y));
#endif
}

// Inf and NaN in packed storage values, exponent bits all ones.
const uint EXPONENT_MASK = DTYPE == TYPE_BF16 ? 0x7f80u : 0x7c00u;

bool nonFinite(uint half_) { return (half_ & EXPONENT_MASK) == EXPONENT_MASK; }
bool nonFinite(float x) { return (floatBitsToUint(x) & 0x7f800000u) == 0x7f800000u; }

// dropNonFinite puts zero in their place and says whether there were any.
bool dropNonFinite(inout uvec4 v) {
    bool any_ = false;
    for (uint i = 0; i < 4; ++i) {
        if (nonFinite(v[i] & 0xffffu)) { v[i] &= 0xffff0000u; any_ = true; }
        if (nonFinite(v[i] >> 16)) { v[i] &= 0xffffu; any_ = true; }
    }
    return any_;
}

// The low and the high halves of two words. Bits are moved, whatever the type: as float16, so that one instruction does it.
uint lowHalves(uint a, uint b) { return packFloat2x16(f16vec2(unpackFloat2x16(a).x, unpackFloat2x16(b).x)); }
uint highHalves(uint a, uint b) { return packFloat2x16(f16vec2(unpackFloat2x16(a).y, unpackFloat2x16(b).y)); }

#define SCOPE gl_ScopeSubgroup
#ifdef DTYPE_BF16
#define STORAGE_T bfloat16_t
#else
#define STORAGE_T float16_t
#endif
#define FragA coopmat<STORAGE_T, SCOPE, FRAG_M, FRAG_K, gl_MatrixUseA>
#define FragB coopmat<STORAGE_T, SCOPE, FRAG_K, FRAG_N, gl_MatrixUseB>
#define FragC coopmat<float, SCOPE, FRAG_M, FRAG_N, gl_MatrixUseAccumulator>
#define FragOnes coopmat<STORAGE_T, SCOPE, FRAG_K, SUM_N, gl_MatrixUseB>
#define FragSum coopmat<float, SCOPE, FRAG_M, SUM_N, gl_MatrixUseAccumulator>

// One scratch holds a fragment as float32 rows of SCRATCH_STRIDE uvec4: an odd stride, so that the
// rows of a fragment fall into different shared-memory banks.
const uint SCRATCH_STRIDE = (FRAG_N / 4) | 1;
const uint SCRATCH_SIZE = FRAG_M * SCRATCH_STRIDE;

// The lanes of a subgroup see each other's writes to shared memory. Subgroups come here different
// numbers of times between workgroup barriers. lavapipe (Mesa 26.2) takes a subgroup barrier for one of
// the workgroup's and lets whoever met fewer of them run ahead; its lanes are one vector and need none.
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

// fragmentToScratch leaves x in this subgroup's scratch, visible to all its lanes.
#define fragmentToScratch(x)                                                                        \
    {                                                                                               \
        subgroupSync();                                                                             \
        coopMatStore(x, smem, subgroupScratch(), SCRATCH_STRIDE, gl_CooperativeMatrixLayoutRowMajor);   \
        subgroupSync();                                                                             \
    }

// A fragment is packed in groups of 8 neighbouring elements, one for each lane in turn.
const uint FRAG_VECS = FRAG_M * FRAG_N / 8;
const uint LANE_VECS = (FRAG_VECS + SUBGROUP_SIZE - 1) / SUBGROUP_SIZE;

// Eight neighbouring elements of the fragment in scratch as 16-bit storage values; groups are
// numbered row by row, FRAG_N / 8 a row.
uvec4 packScratch8(uint group) {
    uint at = subgroupScratch() + (group / (FRAG_N / 8)) * SCRATCH_STRIDE + (group % (FRAG_N / 8)) * 2;
    uvec4 a = smem[at], b = smem[at + 1];
    return uvec4(pack2(uintBitsToFloat(a.x), uintBitsToFloat(a.y)),
                 pack2(uintBitsToFloat(a.z), uintBitsToFloat(a.w)),
                 pack2(uintBitsToFloat(b.x), uintBitsToFloat(b.y)),
                 pack2(uintBitsToFloat(b.z), uintBitsToFloat(b.w)));
}

#if GENERAL
// What becomes of the product x of a row and the key at a column of the tile that starts at firstKey of the walk.
float maskedScore(uint row, uint firstKey, uint col, float x) {
    const uint key = SPARSE_TOKENS != 0 ? TILE_KEY(col) : firstKey + col;
    if (!attends(row, key)) return -INFINITY;
    return SCORE_MOD ? scoreMod(x * abs(p.scoreScale), row, key) : x;
}

// Fragments of masked tiles are looked at slot by slot; of others only their values change.
#define applyMaskAndBias(x, firstRow, firstKey, firstCol, masked)                                     \
    if (masked != 0) maskAndBiasElements(x, firstRow, firstKey, firstCol)                                \
    else if (SOFTCAP != 0) {                                                                        \
        [[unroll]] for (uint e = 0; e < x.length(); ++e) x[e] = applySoftcap(x[e] * abs(p.scoreScale));   \
    }
#endif

// Reductions through scratch. They leave the row's value in every element of the row, like the NV2 ones.
#define REDUCE_ROWS(result, x, START, STEP)                                                         \
    {                                                                                               \
        fragmentToScratch(x);                                                                       \
        for (uint row = gl_SubgroupInvocationID; row < FRAG_M; row += SUBGROUP_SIZE) {              \
            float all = START;                                                                      \
            for (uint col = 0; col < FRAG_N; ++col) {                                               \
                float next = loadScratch(row, col);                                                \
                all = STEP;                                                                         \
            }                                                                                       \
            for (uint col = 0; col < FRAG_N; ++col) storeScratch(row, col, all);                      \
        }                                                                                           \
        subgroupSync();                                                                             \
        coopMatLoad(result, smem, subgroupScratch(), SCRATCH_STRIDE, gl_CooperativeMatrixLayoutRowMajor); \
    }

// Between fragments of FRAG_N and of SUM_N columns whose columns are all alike.
#define narrowByScratch(result, x)                                                                           \
    {                                                                                               \
        fragmentToScratch(x);                                                                       \
        coopMatLoad(result, smem, subgroupScratch(), SCRATCH_STRIDE, gl_CooperativeMatrixLayoutRowMajor); \
    }
#define widenByScratch(result, x)                                                                            \
    {                                                                                               \
        fragmentToScratch(x);                                                                       \
        for (uint row = gl_SubgroupInvocationID; row < FRAG_M; row += SUBGROUP_SIZE) {              \
            const float one = loadScratch(row, 0);                                                 \
            for (uint col = 1; col < FRAG_N; ++col) storeScratch(row, col, one);                      \
        }                                                                                           \
        subgroupSync();                                                                             \
        coopMatLoad(result, smem, subgroupScratch(), SCRATCH_STRIDE, gl_CooperativeMatrixLayoutRowMajor); \
    }

#if NV2

float reduceMax(const in float a, const in float b) { return max(a, b); }
float reduceAdd(const in float a, const in float b) { return a + b; }
#define reduceRows(result, x, step) coopMatReduceNV(result, x, gl_CooperativeMatrixReduceRowNV, step)
#ifdef REDUCE_BY_SCRATCH // where it is true, these go through scratch all the same
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

// The first column of x, FRAG_M floats, from tile[place] on. The function may run more than once for an
// element: it stores the same value again.
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
// applyMask replaces the scores a row must not see by -infinity, whatever they are.
#define applyMask(x, firstRow, firstCol, offset, end)                                            \
    coopMatPerElementNV(x, x, maskedElement, firstRow, firstCol, offset, end)

#if GENERAL
float maskedBiasedElement(const in uint32_t row, const in uint32_t col, const in float x,
                      const in uint firstRow, const in uint firstKey, const in uint firstCol) {
    return maskedScore(firstRow + row, firstKey, firstCol + col, x);
}
#define maskAndBiasElements(x, firstRow, firstKey, firstCol)                                             \
    coopMatPerElementNV(x, x, maskedBiasedElement, firstRow, firstKey, firstCol);
#endif

#ifdef DTYPE_BF16
// NVIDIA's conversion to bfloat16 truncates (driver 580.159), and a weight that loses up to a unit in
// the last place shows where few keys share the row. Weights are not negative: half a unit is added and
// the rest cleared, so that any conversion after it is exact; a NaN is held below the carry as Inf, which
// makes the row NaN all the same, since Inf / Inf and Inf x 0 are.
#define toOperandA(result, x)                                                                       \
    {                                                                                               \
        [[unroll]] for (uint e = 0; e < x.length(); ++e)                                            \
            x[e] = uintBitsToFloat(min(floatBitsToUint(x[e]) + 0x8000u, 0x7f800000u) & 0xffff0000u); \
        result = FragA(x);                                                                          \
    }
#else
#define toOperandA(result, x) result = FragA(x)
#endif

// Any x that storage has, or rounded somehow.
#define exactOperandA(result, x) result = FragA(x)

// Any x, rounded to storage; an A operand has the shape of a fragment of O.
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

#define reduceRowMax(result, x) REDUCE_ROWS(result, x, -INFINITY, max(all, next))
#define reduceRowSum(result, x) REDUCE_ROWS(result, x, 0.0, all + next)

#define narrowRows(result, x) narrowByScratch(result, x)
#define widenRows(result, x) widenByScratch(result, x)

// The first column of x, FRAG_M floats, from tile[place] on.
#define storeFirstColumn(x, base)                                                                     \
    {                                                                                               \
        fragmentToScratch(x);                                                                       \
        for (uint row = gl_SubgroupInvocationID; row < FRAG_M; row += SUBGROUP_SIZE)                \
            smem[(base) + row / 4][row % 4] = floatBitsToUint(loadScratch(row, 0));               \
    }

#define applyMask(x, firstRow, firstCol, offset, end)                                            \
    {                                                                                               \
        fragmentToScratch(x);                                                                       \
        for (uint i = gl_SubgroupInvocationID; i < FRAG_M * FRAG_N; i += SUBGROUP_SIZE) {           \
            uint row = i / FRAG_N, col = i % FRAG_N;                                                \
            int c = (firstCol) + int(col);                                                          \
            if (c >= (end) || (CAUSAL != 0 && c > (firstRow) + int(row) + (offset)))                \
                storeScratch(row, col, -INFINITY);                                                    \
        }                                                                                           \
        subgroupSync();                                                                             \
        coopMatLoad(x, smem, subgroupScratch(), SCRATCH_STRIDE, gl_CooperativeMatrixLayoutRowMajor);    \
    }

#if GENERAL
#define maskAndBiasElements(x, firstRow, firstKey, firstCol)                                             \
    {                                                                                               \
        fragmentToScratch(x);                                                                       \
        for (uint i = gl_SubgroupInvocationID; i < FRAG_M * FRAG_N; i += SUBGROUP_SIZE) {           \
            const uint row = i / FRAG_N, col = i % FRAG_N;                                          \
            storeScratch(row, col, maskedScore((firstRow) + row, firstKey, (firstCol) + col, loadScratch(row, col))); \
        }                                                                                           \
        subgroupSync();                                                                             \
        coopMatLoad(x, smem, subgroupScratch(), SCRATCH_STRIDE, gl_CooperativeMatrixLayoutRowMajor);    \
    }
#endif

// An A operand takes the rounded 16-bit values, packed over the float32 ones (FRAG_K == FRAG_N).
const uint PACKED_STRIDE = (FRAG_N / 8) | 1;
#define toOperandA(result, x)                                                                       \
    {                                                                                               \
        fragmentToScratch(x);                                                                       \
        uvec4 packed[LANE_VECS];                                                                   \
        [[unroll]] for (uint s = 0; s < LANE_VECS; ++s) {                                          \
            uint group = s * SUBGROUP_SIZE + gl_SubgroupInvocationID;                               \
            if (group < FRAG_VECS) packed[s] = packScratch8(group);                             \
        }                                                                                           \
        subgroupSync();                                                                             \
        [[unroll]] for (uint s = 0; s < LANE_VECS; ++s) {                                          \
            uint group = s * SUBGROUP_SIZE + gl_SubgroupInvocationID;                               \
            if (group < FRAG_VECS)                                                                \
                smem[subgroupScratch() + (group / (FRAG_N / 8)) * PACKED_STRIDE + group % (FRAG_N / 8)] = packed[s]; \
        }                                                                                           \
        subgroupSync();                                                                             \
        coopMatLoad(result, smem, subgroupScratch(), PACKED_STRIDE, gl_CooperativeMatrixLayoutRowMajor); \
    }
#define exactOperandA(result, x) toOperandA(result, x)

#endif
