// What the epilogue of decode_coopmat.comp reads of the subgroups in shared memory: their O and their row statistics.

// Adds four columns of a subgroup's O, from a multiple of 4 on. Column 8 g + 2 f + i of a block (with KEY_SCALES
// 8 g + 4 (f / 2) + 2 i + f % 2) is column 16 f + 8 i + g of the area.
void addScaled4(inout vec4 four, float factor, uint subgroup, uint row, uint first) {
    const uint at = first / 64 * 64 + first % 8 * 8 + first % 64 / 8;
    [[unroll]] for (uint e = 0; e < 4; ++e) {
        const uint f = KEY_SCALES ? e % 2 : e / 2, i = KEY_SCALES ? e / 2 : e % 2, col = at + f * 16 + i * 8;
        four[e] = fma(factor, uintBitsToFloat(smem[subgroup * AREA_SIZE + row * AREA_STRIDE + col / 4][col % 4]), four[e]);
    }
}
// Row max, row sum or float32 row sum of a KV loop; `first` is its *_BASE in smem.
float rowStat(uint first, uint loop, uint row) {
    return uintBitsToFloat(smem[first + loop * DIM_SPLIT * ROW_MAX_SIZE + row / 4][row % 4]);
}
