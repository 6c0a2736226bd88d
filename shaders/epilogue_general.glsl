// Part of main, the end: O / row sum is stored, as the storage type or, with SPLIT, as partial state; LSE.
// Sinks join the row sum here. O leaves in passes (epilogue_state.glsl), in pairs of fragments (epilogue_pairs.glsl),
// or fragment by fragment through scratch. Inf and NaN of V are added to what was stored.
#define STORE_O8(row, col, words) store8O(oBlock, elementO(rowBase + (row)) + (col), words, max(HEAD_DIM_V, col) - (col))
#define STORE_LSE(row, value)                                                                       \
    if (SPLIT != 0) storeStateSum(row, value);                                                      \
    else storeRowLSE(row, lseWithSink(headOf(row), value));
#define STORE_GROUP(group, row, col)                                                                \
    if (SPLIT != 0) {                                                                               \
        const uint at = subgroupScratch() + group / (FRAG_N / 8) * SCRATCH_STRIDE + group % (FRAG_N / 8) * 2; \
        storeState4(rowBase + row, col, uintBitsToFloat(smem[at]));                                 \
        if (col + 4 < HEAD_DIM_V) storeState4(rowBase + row, col + 4, uintBitsToFloat(smem[at + 1])); \
    } else                                                                                          \
        STORE_O8(row, col, packScratch8(group));
subgroupSync();
[[unroll]] for (uint r = 0; r < M_FRAGS; ++r) loadRowMax(r);
if (SINKS != 0 && SPLIT == 0) {
    for (uint i = gl_SubgroupInvocationID; i < SUBGROUP_ROWS; i += SUBGROUP_SIZE)
        if (rowBase + i < ROWS)
            sinkTerms[gl_SubgroupID * SUBGROUP_ROWS + i] = sinkTerm(headOf(rowBase + i), rowMaxOfRow(i / FRAG_M, i % FRAG_M));
}
barrier(); // the KV tile's shared memory becomes scratch
const Slice oBlock = blockO();
#include "epilogue_row_sums.glsl"
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
#include "epilogue_fragments.glsl"
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
