// Part of main: the epilogue of the forward kernels of 16-bit types. O / row sum is rounded to storage and stored, or
// with SPLIT as a partial state; LSE. Sinks join the row sum here.
//
// O leaves in pairs of fragments, in passes of a partial state (epilogue_functions.glsl), or fragment by fragment
// through scratch: with KHR, if there are too many pairs, and in the dense kernel if V has Inf or NaN. The general
// kernel adds Inf and NaN of V to what was stored.

// -- stores ---------------------------------------------------------------------------------------
// STORE_LSE(row, LSE or row sum); STORE_GROUP(group, row, col) stores vector `group` of the fragment in scratch, eight
// columns from col on of a row of the subgroup.
#if GENERAL
#define STORE_O8(row, col, words) store8O(oBlock, elementO(rowBase + (row)) + (col), words, max(HEAD_DIM_V, col) - (col))
#define STORE_LSE(row, value)                                                                       \
    if (SPLIT != 0) {                                                                               \
        if (KEY_SCALES) storeStateMax(row, splitMax(loadStateMax(row), value));                     \
        storeStateSum(row, splitSum(value));                                                        \
    } else                                                                                          \
        storeRowLSE(row, lseWithSink(headOf(row), value));
#define STORE_GROUP(group, row, col)                                                                \
    if (SPLIT != 0) {                                                                               \
        const uint at = subgroupScratch() + group / (FRAG_N / 8) * SCRATCH_STRIDE + group % (FRAG_N / 8) * 2; \
        storeState4(rowBase + row, col, uintBitsToFloat(smem[at]));                                 \
        if (col + 4 < HEAD_DIM_V) storeState4(rowBase + row, col + 4, uintBitsToFloat(smem[at + 1])); \
    } else                                                                                          \
        STORE_O8(row, col, packScratch8(group));
#else
#define STORE_O8(row, col, words) storeO8(oBlock, row, col, words)
#define STORE_LSE(row, value) storeLSE(work.batch, work.head, row, value)
#define FIRST_MASKED_TILE (max(unmaskedTiles, 1 - CHECK_KV_END) - (1 - CHECK_KV_END)) // where the loop of masked tiles starts
#define STORE_GROUP(group, row, col)                                                                \
    if (CAUSAL != 0 && nonFiniteSeen != 0) addNonFinite(work, group, rowBase + (row), col, FIRST_MASKED_TILE * KV_TILE); \
    STORE_O8(row, col, packScratch8(group));
#endif

subgroupSync();
[[unroll]] for (uint r = 0; r < M_FRAGS; ++r) loadRowMax(r);
#if GENERAL
if (SINKS != 0 && SPLIT == 0) {
    for (uint i = gl_SubgroupInvocationID; i < SUBGROUP_ROWS; i += SUBGROUP_SIZE)
        if (rowBase + i < ROWS)
            sinkTerms[gl_SubgroupID * SUBGROUP_ROWS + i] = sinkTerm(headOf(rowBase + i), rowMaxOfRow(i / FRAG_M, i % FRAG_M));
}
#endif
barrier(); // the KV tile's shared memory becomes scratch
#if GENERAL
const Slice oBlock = blockO();
#else
const Slice oBlock = sliceO(work.batch, work.head, rowBase);
#endif

// -- row sums -------------------------------------------------------------------------------------
// inverse, 1 / row sum of each row, and LSE, or with SPLIT the row max and row sum of the state. The LSE of the
// subgroup's rows pass through shared memory: its scratch, or, with KHR, whose storeFirstColumn uses the scratch, the
// place of the row max, which is in registers by now.
#if NV2
#define ROW_LSE_BASE subgroupScratch()
#else
#define ROW_LSE_BASE rowMaxAt(0)
#endif
#if GENERAL
#define STORES_STATE (SPLIT != 0)
#else
#define STORES_STATE false
#endif
if (NEEDS_F32_SUM) {
    [[unroll]] for (uint r = 0; r < M_FRAGS; ++r) LANE_SUMS_TO_FRAGMENT(r)
}
FragC inverse[M_FRAGS]; // 1 / row sum
[[unroll]] for (uint r = 0; r < M_FRAGS; ++r) {
#if GENERAL
    if (KEY_SCALES) { reduceRowSum(inverse[r], rowSumScaled[KEY_SCALES ? r : 0]); }
    else
#endif
    { widenRows(inverse[r], rowSum[r]); }
    FragC total;
    if (NEEDS_F32_SUM) { reduceRowSum(total, rowSumF32[r]); }
    FragC sink = FragC(1.0); // a factor of the sums
#if GENERAL
    if (SINKS != 0 && SPLIT == 0) { // not rounded as P is: it scales the rounded sum as it scales the float32 sum
        coopMatLoad(sink, sinkTerms, (gl_SubgroupID * M_FRAGS + r) * FRAG_M, 0, gl_CooperativeMatrixLayoutColumnMajor);
        [[unroll]] for (uint e = 0; e < sink.length(); ++e) sink[e] = sinkFactor(sink[e], total[e]);
    }
#endif
    [[unroll]] for (uint e = 0; e < inverse[r].length(); ++e)
        inverse[r][e] = inverseSum(inverse[r][e], sink[e]);
#ifdef HAS_DROPOUT
    if (DROPOUT != 0) inverse[r] *= dropoutScale();
#endif
    if (HAS_LSE != 0) {
        [[unroll]] for (uint e = 0; e < total.length(); ++e)
            rowSumF32[r][e] = STORES_STATE ? (isFarRow(rowMax[r][e]) ? INFINITY : total[e])
                : nanIfFar(rowMax[r][e], logSumExp(rowMax[r][e], total[e]));
    }
}
// Far rows become NaN. Few calls have one: the lanes look at a row each, and only then are row maxima loaded as fragments.
{
    bool far = false;
    [[unroll]] for (uint i0 = 0; i0 < SUBGROUP_ROWS; i0 += SUBGROUP_SIZE) {
        const uint i = i0 + gl_SubgroupInvocationID;
        far = far || i < SUBGROUP_ROWS && isFarRow(rowMaxOfRow(i / FRAG_M, i % FRAG_M));
    }
    if (subgroupAny(far)) {
        [[unroll]] for (uint r = 0; r < M_FRAGS; ++r) {
            loadRowMax(r);
            [[unroll]] for (uint e = 0; e < inverse[r].length(); ++e) inverse[r][e] = nanIfFar(rowMax[r][e], inverse[r][e]);
        }
    }
}
// LSE in loops of its own: NVIDIA's compiler does not unroll a loop over fragments that holds a loop with a barrier,
// and then keeps O and the rest in memory. With two row fragments the kernel was 2 to 48 times slower (H100;
// docs/log/vulkan.md, 59).
#if GENERAL
if (STORES_STATE && work.col0 == 0) {
    for (uint i = gl_SubgroupInvocationID; i < SUBGROUP_ROWS; i += SUBGROUP_SIZE)
        if (rowBase + i < ROWS) storeStateMax(rowBase + i, rowMaxOfRow(i / FRAG_M, i % FRAG_M));
    subgroupSync();
}
#endif
if (HAS_LSE != 0 && work.col0 == 0) {
    [[unroll]] for (uint r = 0; r < M_FRAGS; ++r) storeFirstColumn(rowSumF32[r], ROW_LSE_BASE + r * ROW_MAX_SIZE);
    subgroupSync();
    for (uint i = gl_SubgroupInvocationID; i < SUBGROUP_ROWS; i += SUBGROUP_SIZE)
        if (rowBase + i < ROWS) STORE_LSE(rowBase + i, uintBitsToFloat(smem[ROW_LSE_BASE + i / 4][i % 4]));
}

// -- O --------------------------------------------------------------------------------------------
#if GENERAL
if (USE_PASSES != 0) {
    barrier(); // a subgroup's passes overlay the scratch of others, which may still store LSE
    STORE_STATE_PASS(0) STORE_STATE_PASS(1) STORE_STATE_PASS(2) STORE_STATE_PASS(3)
}
#if NV2
if (USE_PAIRS != 0) {
    STORE_PAIRS
}
#endif
if (USE_PASSES + USE_PAIRS == 0)
#elif NV2
if (M_FRAGS * PAIRS <= MAX_PAIRS && (CAUSAL == 0 || nonFiniteSeen == 0)) {
    STORE_PAIRS
    return;
}
#endif
{
    // One loop over all fragments: nested loops are not unrolled, and O would leave the registers.
    [[unroll]] for (uint i = 0; i < M_FRAGS * DV_FRAGS; ++i) {
        O[i] *= inverse[i / DV_FRAGS];
        fragmentToScratch(O[i]);
        [[unroll]] for (uint s = 0; s < LANE_VECS; ++s) {
            const uint group = s * SUBGROUP_SIZE + gl_SubgroupInvocationID;
            const uint row = i / DV_FRAGS * FRAG_M + group / (FRAG_N / 8);
            const uint col = work.col0 + i % DV_FRAGS * FRAG_N + group % (FRAG_N / 8) * 8;
            if (group < FRAG_VECS && rowBase + row < ROWS && col < HEAD_DIM_V) {
                STORE_GROUP(group, row, col)
            }
        }
    }
}
#if GENERAL
if (DROPS_NON_FINITE && nonFiniteSeen != 0) {
    [[dont_unroll]] for (uint n = 0; n < EPILOGUE_STORES; ++n) {
        uint row, sliceCol;
        const bool exists = epilogueColumns(n, row, sliceCol);
        const uint col = work.col0 + sliceCol, eight = col - col % 8;
        if (!exists || rowBase + row >= ROWS || col >= HEAD_DIM_V) continue;
        vec4 four[2] = { vec4(0.0), vec4(0.0) };
        addNonFinite(kv, KEY_SCALES ? 0 : unmaskedTiles, rowBase + row, eight, four[0], four[1]);
        if (SPLIT == 0) patch8O(oBlock, elementO(rowBase + row) + col, four[0], four[1], HEAD_DIM_V - col);
        [[unroll]] for (uint i = 0; i < (SPLIT != 0 ? 2 : 0); ++i)
            if ((USE_PASSES == 0 || eight + 4 * i == col) && eight + 4 * i < HEAD_DIM_V) patchState4(rowBase + row, eight + 4 * i, four[i]);
    }
}
#endif
