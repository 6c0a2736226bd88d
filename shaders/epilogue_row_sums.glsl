// Part of main: inverse, 1 / row sum of each row, and LSE. Sinks join the row sum. The kernel defines STORE_LSE.
FragC inverse[M_FRAGS]; // 1 / row sum
[[unroll]] for (uint r = 0; r < M_FRAGS; ++r) {
#if GENERAL
    if (KEY_SCALES) { reduceRowSum(inverse[r], rowSumScaled[KEY_SCALES ? r : 0]); }
    else
#endif
    { widenRows(inverse[r], rowSum[r]); }
    FragC total;
    if (NEEDS_F32_SUM) { reduceRowSum(total, rowSumF32[r]); }
#if GENERAL
    if (SINKS != 0) { // not rounded as P is: it scales the rounded sum as it scales the float32 sum
        FragC sink;
        coopMatLoad(sink, sinkTerms, (gl_SubgroupID * M_FRAGS + r) * FRAG_M, 0, gl_CooperativeMatrixLayoutColumnMajor);
        [[unroll]] for (uint e = 0; e < sink.length(); ++e)
            inverse[r][e] = isNaN(sink[e]) ? sink[e] : inverse[r][e] == 0.0 ? 0.0 : inverse[r][e] * (1.0 + sink[e] / total[e]);
    }
#endif
    [[unroll]] for (uint e = 0; e < inverse[r].length(); ++e)
        inverse[r][e] = inverse[r][e] == 0.0 ? 0.0 : 1.0 / inverse[r][e];
#ifdef HAS_DROPOUT
    if (DROPOUT != 0) inverse[r] *= dropoutScale();
#endif
    if (HAS_LSE != 0 && work.col0 == 0) {
        [[unroll]] for (uint e = 0; e < total.length(); ++e) total[e] = logSumExp(rowMax[r][e], total[e]);
        fragmentToScratch(total);
        [[unroll]] for (uint s = 0; s < FRAG_M; s += SUBGROUP_SIZE) {
            const uint row = s + gl_SubgroupInvocationID, seqRow = rowBase + r * FRAG_M + row;
            if (row < FRAG_M && seqRow < ROWS) STORE_LSE(seqRow, loadScratch(row, 0));
        }
    }
}
