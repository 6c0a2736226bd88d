// LSE, and the partial states of splits: float32 O and LSE, one row per split. Without SPLIT, LSE is the call's.

void storeRowLSE(uint row, float value) {
    const Slice s = sliceAt(p.addrLSE, uvec2(stateRow(row), 0), false, 1);
    WORD_LSE(s, 0) = floatBitsToUint(value);
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
