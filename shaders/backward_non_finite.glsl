// Corrects dV in memory where masked tiles hold Inf or NaN in dO. This is rare, so it is one loop after everything else
// (non_finite_general.glsl does the same for V in O).

// P of a slot behind dropout is not 0.
bool hasWeight(uint row, uint key) {
    if (DROPOUT != 0 && (keptOfFour(row, key / 4) >> key % 4 & 1u) == 0) return false;
    const Slice q = sliceQ(rowBatch(), work.head, work.offsetQ + queryOf(work.row0));
    const Slice k = sliceK(kvBatch(), work.kvHead, work.offsetK + key);
    float product = 0.0;
    [[dont_unroll]] for (uint col = 0; col < HEAD_DIM; col += 8) {
        vec4 lowQ, highQ, lowK, highK;
        loadFloatsAtQ(q, rowElement(row, p.strideQHead, p.strideQSeq), col, lowQ, highQ);
        loadFloatsK(k, 0, col, lowK, highK);
        product += dot(lowQ, lowK) + dot(highQ, highK);
    }
    const float lse = loadStatsAt(rowIndex(row)).x;
    const float exponent = SCORE_MOD ? scoreMod(product * p.scoreScale, row, key) - lse : fma(product, p.scoreScale, -lse);
    return exponent != exponent || exp2(exponent * LOG2E) != 0.0;
}

// Adds to dV what the rows that attend to a key have in columns [col, col + columns) of dO, if it is not finite.
void addNonFiniteDO(Slice dV, RowTiles tiles, uint key, uint rowOfKey, uint col, uint columns) {
    const uint end = min((tiles.first + tiles.count) * ROW_TILE, work.rows);
    [[dont_unroll]] for (uint row = tiles.first * ROW_TILE; row < end; ++row) {
        if (!attends(row, key)) continue;
        work.row0 = row - row % ROWS_PER_QUERY;
        const Slice dO = sliceDO(rowBatch(), work.head, work.offsetQ + queryOf(work.row0));
        const uint element = rowElement(row, p.strideDOHead, p.strideDOSeq);
        [[dont_unroll]] for (uint i = col; i < min(col + columns, HEAD_DIM_V); ++i) {
#ifdef DTYPE_F32
            const float x = uintBitsToFloat(loadWordDO(dO, element + i));
            if (nonFinite(x) && hasWeight(row, key)) addOneDV(dV, rowOfKey * p.strideDVSeq + i, x);
#else
            const uint half_ = loadHalfDO(dO, element + i);
            if (nonFinite(half_) && hasWeight(row, key)) addOneDV(dV, rowOfKey * p.strideDVSeq + i, decode16(half_));
#endif
        }
    }
}
