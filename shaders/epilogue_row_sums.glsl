// Part of main: inverse, 1 / row sum of each row, and LSE, or with SPLIT the row max and row sum of the state. Sinks join
// the row sum. The kernel defines STORE_LSE(row, LSE or row sum).
// The LSE of the subgroup's rows pass through shared memory: its scratch, or, with KHR, whose storeFirstColumn uses the
// scratch, the place of the row max, which is in registers by now.
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
