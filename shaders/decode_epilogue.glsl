// Part of main, the end: combines the O of the subgroups' KV loops. Each subgroup stores its row sums, and
// AREA_BLOCKS blocks of its O per pass, to shared memory; then an invocation adds up four columns of a row over the
// KV loops, and stores O, or with SPLIT the partial state of this split. With COMBINE the last workgroup of a row
// combines the splits.
if (KEY_SCALES && nonFiniteScale) atomicOr(nonFiniteSeen, 1);
subgroupSync(); // the rescale factors are read
if (NEEDS_F32_SUM) {
    FragC sumF32;
    reduceRowSum(sumF32, rowSumF32[0]);
    storeFirstColumn(sumF32, ROW_SUM_F32_BASE + gl_SubgroupID * ROW_MAX_SIZE);
}
if (KEY_SCALES) {
    FragC sumScaled;
    reduceRowSum(sumScaled, rowSumScaled[0]);
    storeFirstColumn(sumScaled, RESCALE_FACTOR); // the factors are read: row sums take their place
} else {
    storeFirstRow(rowSum[0], RESCALE_FACTOR);
}
if (QK_SPLIT > 1 || Q_SMEM_CHUNKS != 0 && Q_IN_AREAS) barrier(); // the last partial scores, or Q, are read
else subgroupSync();
const Slice oBlock = blockO();
[[unroll]] for (uint pass = 0; pass < DV_BLOCKS; pass += AREA_BLOCKS) {
    if (pass > 0) barrier(); // the areas are read
    [[unroll]] for (uint f = 0; f < 4 * AREA_BLOCKS; ++f)
        if (4 * pass + f < DV_FRAGS)
            coopMatStore(O[4 * pass + f], smem, gl_SubgroupID * AREA_SIZE + f * 4, AREA_STRIDE, gl_CooperativeMatrixLayoutColumnMajor);
    barrier();
    // Four columns per invocation: with more, fewer invocations would share the work.
    const uint areaEach = 64 * AREA_BLOCKS / 4, rowEach = DIM_SPLIT * areaEach;
    for (uint at = tid; at < rows * rowEach; at += LOCAL_SIZE) {
        const uint row = at / rowEach, dimIndex = at % rowEach / areaEach, first = at % areaEach * 4;
        const uint sliceCol = (dimIndex * DV_BLOCKS + pass) * 64 + first, col = work.col0 + sliceCol;
        if (pass * 64 + first >= DV_BLOCKS * 64 || sliceCol >= DV_SLICE || col >= HEAD_DIM_V) continue;
        // Factor of each KV loop's O. Subgroups of one loop have the same row max and sums.
        float highest = ROW_MAX_INIT, factors[KV_LOOPS], sum = 0.0, sumF32 = 0.0;
        [[unroll]] for (uint n = 0; n < KV_LOOPS; ++n) highest = max(highest, rowStat(ROW_MAX_BASE, n, row));
        [[unroll]] for (uint n = 0; n < KV_LOOPS; ++n) {
            factors[n] = exp2(TO_LOG2(rowStat(ROW_MAX_BASE, n, row) - highest));
            sum += factors[n] * rowStat(FACTOR_BASE, n, row);
            if (NEEDS_F32_SUM) sumF32 += factors[n] * rowStat(ROW_SUM_F32_BASE, n, row);
        }
        if (HAS_LSE != 0 && sliceCol == 0 && (COMBINE != 0 || work.col0 == 0)) {
            if (SPLIT != 0) storeSplitStats(work.row0 + row, highest, isFarRow(highest) ? INFINITY : sumF32);
            else storeRowLSE(work.row0 + row, lseWithSink(headOf(work.row0 + row), nanIfFar(highest, logSumExp(highest, sumF32))));
        }
        // A sink is not rounded as P is: it scales the rounded sum as it scales the float32 sum.
        const float sink = SINKS != 0 && SPLIT == 0 ? sinkFactor(sinkTerm(headOf(work.row0 + row), highest), sumF32) : 1.0;
        // A factor of 0 below leaves out O, which is Inf or NaN where the row sum is Inf.
        const float inverse = nonFinite(sum) ? uintBitsToFloat(NAN_BITS) : nanIfFar(highest, inverseSum(sum, sink));
        vec4 o = vec4(0.0);
        [[unroll]] for (uint n = 0; n < KV_LOOPS; ++n) {
            const float factor = factors[n] * inverse;
            if (factor == 0.0) continue; // its O may hold anything
            addScaled4(o, factor, n * DIM_SPLIT + dimIndex, row, first);
        }
        if (DROPS_NON_FINITE && nonFiniteSeen != 0) {
            vec4 four[2] = { vec4(0.0), vec4(0.0) };
            addNonFinite(kv, 0, work.row0 + row, col - first % 8, four[0], four[1]);
            addIfNonFinite(o, four[first % 8 / 4]); // not zeros: adding 0 may flush a subnormal
        }
        if (SPLIT != 0) storeSplit4(work.row0 + row, col, o);
        else store4O(oBlock, elementO(work.row0 + row) + col, o, HEAD_DIM_V - col);
    }
}
if (COMBINE != 0) combineSplits(rows);
