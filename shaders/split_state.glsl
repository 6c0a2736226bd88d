// Rows of the Q tile in Q and O, and partial states of splits.

// -- rows of the tile -----------------------------------------------------------------------------
// Rows of the Q tile in Q and O, in calls with options: slices from the tile's first query on, and the first element of a
// row relative to them, see rowElement.
Slice blockQ() { return sliceQ(rowBatch(), work.head, work.offsetQ + queryOf(work.row0)); }
Slice blockO() { return sliceO(rowBatch(), work.head, work.offsetQ + queryOf(work.row0)); }
uint elementQ(uint row) { return rowElement(row, p.strideQHead, p.strideQSeq); }
uint elementO(uint row) { return rowElement(row, p.strideOHead, p.strideOSeq); }

// -- partial states -------------------------------------------------------------------------------
// LSE of the call, or with SPLIT the partial states: one row per split of float32 O, and of its row max and row sum, in
// pairs. An LSE in their place would lose the row sum where the row max is large.

void storeRowLSE(uint row, float value) {
    const Slice s = sliceAt(p.addrLSE, uvec2(stateRow(row), 0), false, 1);
    WORD_LSE(s, 0) = floatBitsToUint(value);
}

// A row without keys has the row sum 0.
void storeStateWord(uint row, uint word, float value) {
    const Slice s = sliceAt(p.addrLSE, add64(mul64(stateRow(row), 2), uvec2(word, 0)), false, 1);
    WORD_LSE(s, 0) = floatBitsToUint(value);
}
void storeStateMax(uint row, float rowMax) { storeStateWord(row, 0, rowMax); }
void storeStateSum(uint row, float rowSum) { storeStateWord(row, 1, rowSum); }
void storeStateStats(uint row, float rowMax, float rowSum) {
    storeStateMax(row, rowMax);
    storeStateSum(row, rowSum);
}

// Four columns of the partial O of a split, float32; those past HEAD_DIM_V are not written.
Slice stateSlice(uint row, uint col) {
    return sliceAt(p.addrO, add64(mul64(stateRow(row), HEAD_DIM_V), uvec2(col, 0)), false, 1);
}
void storeState4(uint row, uint col, vec4 value) {
    const Slice s = stateSlice(row, col);
    if (HEAD_DIM_V % 4 == 0) {
        QUAD_O(s, 0) = floatBitsToUint(value);
        return;
    }
    for (uint i = 0; i < min(HEAD_DIM_V - col, 4u); ++i) WORD_O(s, i) = floatBitsToUint(value[i]);
}
