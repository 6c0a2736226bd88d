// Cooperative-matrix fragment types and the three things the two extensions do differently:
// reduce along a row, turn an accumulator into an A operand, and know which (row, column) an
// element is. NV2=1 uses VK_NV_cooperative_matrix2 (reductions, conversions, per-element
// operations). NV2=0 has only VK_KHR_cooperative_matrix, where the place of an element in the
// matrix is opaque, so each of the three goes through a TILE_M x TILE_N scratch in shared memory
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
const uint EXPONENT = DTYPE == TYPE_BF16 ? 0x7f80u : 0x7c00u;

bool nonFinite(uint half_) { return (half_ & EXPONENT) == EXPONENT; }
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
#define FragA coopmat<STORAGE_T, SCOPE, TILE_M, TILE_K, gl_MatrixUseA>
#define FragB coopmat<STORAGE_T, SCOPE, TILE_K, TILE_N, gl_MatrixUseB>
#define FragC coopmat<float, SCOPE, TILE_M, TILE_N, gl_MatrixUseAccumulator>
#define FragOnes coopmat<STORAGE_T, SCOPE, TILE_K, SUM_N, gl_MatrixUseB>
#define FragSum coopmat<float, SCOPE, TILE_M, SUM_N, gl_MatrixUseAccumulator>

// One scratch holds a fragment as float32 rows of SCRATCH_STRIDE uvec4: an odd stride, so that the
// rows of a fragment fall into different shared-memory banks.
const uint SCRATCH_STRIDE = (TILE_N / 4) | 1;
const uint SCRATCH_SIZE = TILE_M * SCRATCH_STRIDE;

// The lanes of a subgroup see each other's writes to shared memory. Subgroups come here different
// numbers of times between workgroup barriers. lavapipe (Mesa 26.2) takes a subgroup barrier for one of
// the workgroup's and lets whoever met fewer of them run ahead; its lanes are one vector and need none.
void subgroupSync() {
    if (SUBGROUP_BARRIER != 0)
        controlBarrier(gl_ScopeSubgroup, gl_ScopeSubgroup, gl_StorageSemanticsShared, gl_SemanticsAcquireRelease);
    else
        subgroupMemoryBarrierShared();
}

#ifndef SCRATCH_EACH
#define SCRATCH_EACH SCRATCH_SIZE
#endif
uint scratchBase() { return SCRATCH_FIRST + gl_SubgroupID * SCRATCH_EACH; }

float scratchFloat(uint row, uint col) {
    return uintBitsToFloat(tile[scratchBase() + row * SCRATCH_STRIDE + col / 4][col % 4]);
}

void scratchPut(uint row, uint col, float x) {
    tile[scratchBase() + row * SCRATCH_STRIDE + col / 4][col % 4] = floatBitsToUint(x);
}

// fragmentToScratch leaves x in this subgroup's scratch, visible to all its lanes.
#define fragmentToScratch(x)                                                                        \
    {                                                                                               \
        subgroupSync();                                                                             \
        coopMatStore(x, tile, scratchBase(), SCRATCH_STRIDE, gl_CooperativeMatrixLayoutRowMajor);   \
        subgroupSync();                                                                             \
    }

// A fragment is packed in groups of 8 neighbouring elements, one for each lane in turn.
const uint PACK_GROUPS = TILE_M * TILE_N / 8;
const uint PACK_STEPS = (PACK_GROUPS + SUBGROUP_SIZE - 1) / SUBGROUP_SIZE;

// Eight neighbouring elements of the fragment in scratch as 16-bit storage values; groups are
// numbered row by row, TILE_N / 8 a row.
uvec4 scratchPacked8(uint group) {
    uint at = scratchBase() + (group / (TILE_N / 8)) * SCRATCH_STRIDE + (group % (TILE_N / 8)) * 2;
    uvec4 a = tile[at], b = tile[at + 1];
    return uvec4(pack2(uintBitsToFloat(a.x), uintBitsToFloat(a.y)),
                 pack2(uintBitsToFloat(a.z), uintBitsToFloat(a.w)),
                 pack2(uintBitsToFloat(b.x), uintBitsToFloat(b.y)),
                 pack2(uintBitsToFloat(b.z), uintBitsToFloat(b.w)));
}

#if FEATURES
// What becomes of the product x of a row and the key at a column of the tile that starts at firstKey of the walk.
float scoreOf(uint row, uint firstKey, uint col, float x) {
    const uint key = KEPT != 0 ? KEY_OF_COLUMN(col) : firstKey + col;
    if (!attends(row, key)) return -INFINITY;
    return MODIFIED ? modified(x * abs(p.scoreScale), row, key) : x;
}

// Fragments of masked tiles are looked at slot by slot; of others only their values change.
#define modifyFragment(x, firstRow, firstKey, firstCol, masked)                                     \
    if (masked != 0) modifyElements(x, firstRow, firstKey, firstCol)                                \
    else if (SOFTCAP != 0) {                                                                        \
        [[unroll]] for (uint e = 0; e < x.length(); ++e) x[e] = capped(x[e] * abs(p.scoreScale));   \
    }
#endif

// Reductions through scratch. They leave the row's value in every element of the row, like the NV2 ones.
#define REDUCE_ROWS(result, x, START, STEP)                                                         \
    {                                                                                               \
        fragmentToScratch(x);                                                                       \
        for (uint row = gl_SubgroupInvocationID; row < TILE_M; row += SUBGROUP_SIZE) {              \
            float all = START;                                                                      \
            for (uint col = 0; col < TILE_N; ++col) {                                               \
                float next = scratchFloat(row, col);                                                \
                all = STEP;                                                                         \
            }                                                                                       \
            for (uint col = 0; col < TILE_N; ++col) scratchPut(row, col, all);                      \
        }                                                                                           \
        subgroupSync();                                                                             \
        coopMatLoad(result, tile, scratchBase(), SCRATCH_STRIDE, gl_CooperativeMatrixLayoutRowMajor); \
    }

// Between fragments of TILE_N and of SUM_N columns whose columns are all alike.
#define scratchNarrow(result, x)                                                                           \
    {                                                                                               \
        fragmentToScratch(x);                                                                       \
        coopMatLoad(result, tile, scratchBase(), SCRATCH_STRIDE, gl_CooperativeMatrixLayoutRowMajor); \
    }
#define scratchWiden(result, x)                                                                            \
    {                                                                                               \
        fragmentToScratch(x);                                                                       \
        for (uint row = gl_SubgroupInvocationID; row < TILE_M; row += SUBGROUP_SIZE) {              \
            const float one = scratchFloat(row, 0);                                                 \
            for (uint col = 1; col < TILE_N; ++col) scratchPut(row, col, one);                      \
        }                                                                                           \
        subgroupSync();                                                                             \
        coopMatLoad(result, tile, scratchBase(), SCRATCH_STRIDE, gl_CooperativeMatrixLayoutRowMajor); \
    }

#if NV2

float reduceMax(const in float a, const in float b) { return max(a, b); }
float reduceAdd(const in float a, const in float b) { return a + b; }
#define reduceRows(result, x, step) coopMatReduceNV(result, x, gl_CooperativeMatrixReduceRowNV, step)
#ifdef SCRATCH_ROWS // where it is true, these go through scratch all the same
#define rowMax(result, x) if (SCRATCH_ROWS) REDUCE_ROWS(result, x, -INFINITY, max(all, next)) else reduceRows(result, x, reduceMax)
#define rowSum(result, x) if (SCRATCH_ROWS) REDUCE_ROWS(result, x, 0.0, all + next) else reduceRows(result, x, reduceAdd)
#define narrow(result, x) if (SCRATCH_ROWS) scratchNarrow(result, x) else reduceRows(result, x, reduceMax)
#define widen(result, x) if (SCRATCH_ROWS) scratchWiden(result, x) else reduceRows(result, x, reduceMax)
#else
#define rowMax(result, x) reduceRows(result, x, reduceMax)
#define rowSum(result, x) reduceRows(result, x, reduceAdd)
#define narrow(result, x) reduceRows(result, x, reduceMax)
#define widen(result, x) reduceRows(result, x, reduceMax)
#endif

// The first column of x, TILE_M floats, from tile[place] on. The function may run more than once for an
// element: it stores the same value again.
float firstColumn(const in uint32_t row, const in uint32_t col, const in float x, const in uint place) {
    if (col == 0) tile[place + row / 4][row % 4] = floatBitsToUint(x);
    return x;
}
#define firstColumnTo(x, place) coopMatPerElementNV(x, x, firstColumn, place)

float maskedElement(const in uint32_t row, const in uint32_t col, const in float x,
                    const in int firstRow, const in int firstCol, const in int offset, const in int end) {
    int c = firstCol + int(col);
    bool keep = c < end && (CAUSAL == 0 || c <= firstRow + int(row) + offset);
    return keep ? x : -INFINITY;
}
// maskFragment replaces the scores a row must not see by -infinity, whatever they are.
#define maskFragment(x, firstRow, firstCol, offset, end)                                            \
    coopMatPerElementNV(x, x, maskedElement, firstRow, firstCol, offset, end)

#if FEATURES
float modifiedElement(const in uint32_t row, const in uint32_t col, const in float x,
                      const in uint firstRow, const in uint firstKey, const in uint firstCol) {
    return scoreOf(firstRow + row, firstKey, firstCol + col, x);
}
#define modifyElements(x, firstRow, firstKey, firstCol)                                             \
    coopMatPerElementNV(x, x, modifiedElement, firstRow, firstKey, firstCol);
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

#define rowMax(result, x) REDUCE_ROWS(result, x, -INFINITY, max(all, next))
#define rowSum(result, x) REDUCE_ROWS(result, x, 0.0, all + next)

#define narrow(result, x) scratchNarrow(result, x)
#define widen(result, x) scratchWiden(result, x)

// The first column of x, TILE_M floats, from tile[place] on.
#define firstColumnTo(x, place)                                                                     \
    {                                                                                               \
        fragmentToScratch(x);                                                                       \
        for (uint row = gl_SubgroupInvocationID; row < TILE_M; row += SUBGROUP_SIZE)                \
            tile[(place) + row / 4][row % 4] = floatBitsToUint(scratchFloat(row, 0));               \
    }

#define maskFragment(x, firstRow, firstCol, offset, end)                                            \
    {                                                                                               \
        fragmentToScratch(x);                                                                       \
        for (uint i = gl_SubgroupInvocationID; i < TILE_M * TILE_N; i += SUBGROUP_SIZE) {           \
            uint row = i / TILE_N, col = i % TILE_N;                                                \
            int c = (firstCol) + int(col);                                                          \
            if (c >= (end) || (CAUSAL != 0 && c > (firstRow) + int(row) + (offset)))                \
                scratchPut(row, col, -INFINITY);                                                    \
        }                                                                                           \
        subgroupSync();                                                                             \
        coopMatLoad(x, tile, scratchBase(), SCRATCH_STRIDE, gl_CooperativeMatrixLayoutRowMajor);    \
    }

#if FEATURES
#define modifyElements(x, firstRow, firstKey, firstCol)                                             \
    {                                                                                               \
        fragmentToScratch(x);                                                                       \
        for (uint i = gl_SubgroupInvocationID; i < TILE_M * TILE_N; i += SUBGROUP_SIZE) {           \
            const uint row = i / TILE_N, col = i % TILE_N;                                          \
            scratchPut(row, col, scoreOf((firstRow) + row, firstKey, (firstCol) + col, scratchFloat(row, col))); \
        }                                                                                           \
        subgroupSync();                                                                             \
        coopMatLoad(x, tile, scratchBase(), SCRATCH_STRIDE, gl_CooperativeMatrixLayoutRowMajor);    \
    }
#endif

// An A operand takes the rounded 16-bit values, packed over the float32 ones (TILE_K == TILE_N).
const uint PACKED_STRIDE = (TILE_N / 8) | 1;
#define toOperandA(result, x)                                                                       \
    {                                                                                               \
        fragmentToScratch(x);                                                                       \
        uvec4 packed[PACK_STEPS];                                                                   \
        [[unroll]] for (uint s = 0; s < PACK_STEPS; ++s) {                                          \
            uint group = s * SUBGROUP_SIZE + gl_SubgroupInvocationID;                               \
            if (group < PACK_GROUPS) packed[s] = scratchPacked8(group);                             \
        }                                                                                           \
        subgroupSync();                                                                             \
        [[unroll]] for (uint s = 0; s < PACK_STEPS; ++s) {                                          \
            uint group = s * SUBGROUP_SIZE + gl_SubgroupInvocationID;                               \
            if (group < PACK_GROUPS)                                                                \
                tile[scratchBase() + (group / (TILE_N / 8)) * PACKED_STRIDE + group % (TILE_N / 8)] = packed[s]; \
        }                                                                                           \
        subgroupSync();                                                                             \
        coopMatLoad(result, tile, scratchBase(), PACKED_STRIDE, gl_CooperativeMatrixLayoutRowMajor); \
    }
#define exactOperandA(result, x) toOperandA(result, x)

#endif
