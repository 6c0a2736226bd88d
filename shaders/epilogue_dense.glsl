// Part of main, the end: O / row sum, rounded to storage and stored; LSE. O leaves in pairs of fragments
// (epilogue_pairs.glsl), or fragment by fragment through scratch: with KHR, if there are too many pairs, and if V has
// Inf or NaN.
#define STORE_O8(row, col, words) storeO8(oBlock, row, col, words)
#define STORE_LSE(row, value) storeLSE(work.batch, work.head, row, value)
#define FIRST_MASKED_TILE (max(unmaskedTiles, 1 - CHECK_KV_END) - (1 - CHECK_KV_END)) // where the loop of masked tiles starts
#define STORE_GROUP(group, row, col)                                                                \
    if (CAUSAL != 0 && nonFiniteSeen != 0) addNonFinite(work, group, rowBase + (row), col, FIRST_MASKED_TILE * KV_TILE); \
    STORE_O8(row, col, packScratch8(group));
subgroupSync();
[[unroll]] for (uint r = 0; r < M_FRAGS; ++r) loadRowMax(r);
barrier(); // the KV tile's shared memory becomes scratch
const Slice oBlock = sliceO(work.batch, work.head, rowBase);
#include "epilogue_row_sums.glsl"
#if NV2
if (M_FRAGS * PAIRS <= MAX_PAIRS && (CAUSAL == 0 || nonFiniteSeen == 0)) {
    STORE_PAIRS
    return;
}
#endif
#include "epilogue_fragments.glsl"
