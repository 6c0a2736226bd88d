// Part of main, the end: O / row sum, rounded to storage and stored; LSE. O leaves in pairs of fragments
// (epilogue_pairs.glsl), or fragment by fragment through scratch: with KHR, if there are too many pairs, and if V has
// Inf or NaN.
#define EPILOGUE_BY_FRAGMENT true // after pairs main has returned
#define STORE_O8(row, col, words) storeO8(oBlock, row, col, words)
subgroupSync();
[[unroll]] for (uint r = 0; r < M_FRAGS; ++r) loadRowMax(r);
barrier(); // the KV tile's shared memory becomes scratch
const Slice oBlock = sliceO(work.batch, work.head, rowBase);
FragC inverse[M_FRAGS]; // 1 / row sum
[[unroll]] for (uint r = 0; r < M_FRAGS; ++r) {
    if (KEY_SCALES) { reduceRowSum(inverse[r], rowSumScaled[KEY_SCALES ? r : 0]); }
    else { widenRows(inverse[r], rowSum[r]); }
    FragC total;
    if (NEEDS_F32_SUM) { reduceRowSum(total, rowSumF32[r]); }
    [[unroll]] for (uint e = 0; e < inverse[r].length(); ++e)
        inverse[r][e] = inverse[r][e] == 0.0 ? 0.0 : 1.0 / inverse[r][e];
    if (HAS_LSE != 0 && work.col0 == 0) {
        [[unroll]] for (uint e = 0; e < total.length(); ++e) total[e] = logSumExp(rowMax[r][e], total[e]);
        fragmentToScratch(total);
        [[unroll]] for (uint s = 0; s < FRAG_M; s += SUBGROUP_SIZE) {
            const uint row = s + gl_SubgroupInvocationID, seqRow = rowBase + r * FRAG_M + row;
            if (row < FRAG_M && seqRow < p.Sq) storeLSE(work.batch, work.head, seqRow, loadScratch(row, 0));
        }
    }
}
#if NV2
if (M_FRAGS * PAIRS <= MAX_PAIRS && (CAUSAL == 0 || nonFiniteSeen == 0)) {
    STORE_PAIRS
    return;
}
#endif
if (EPILOGUE_BY_FRAGMENT) {
    // One loop over all fragments: nested loops are not unrolled, and O would leave the registers.
    [[unroll]] for (uint i = 0; i < M_FRAGS * DV_FRAGS; ++i) {
        O[i] *= inverse[i / DV_FRAGS];
        fragmentToScratch(O[i]);
        [[unroll]] for (uint s = 0; s < LANE_VECS; ++s) {
            const uint group = s * SUBGROUP_SIZE + gl_SubgroupInvocationID;
            const uint row = i / DV_FRAGS * FRAG_M + group / (FRAG_N / 8);
            const uint col = work.col0 + i % DV_FRAGS * FRAG_N + group % (FRAG_N / 8) * 8;
            if (group < FRAG_VECS && rowBase + row < ROWS && col < HEAD_DIM_V) {
                if (CAUSAL != 0 && nonFiniteSeen != 0) addNonFinite(work, group, rowBase + row, col, unmaskedTiles * KV_TILE);
                STORE_O8(row, col, packScratch8(group));
            }
        }
    }
}
