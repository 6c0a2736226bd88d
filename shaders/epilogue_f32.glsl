// Part of main, the end: O / row sum as float32, and LSE. O leaves fragment by fragment through scratch.

const uint FRAG_QUADS = FRAG_M * FRAG_N / 4, LANE_QUADS = (FRAG_QUADS + SUBGROUP_SIZE - 1) / SUBGROUP_SIZE;
#define FIRST_MASKED_TILE (max(unmaskedTiles, 1 - CHECK_KV_END) - (1 - CHECK_KV_END)) // where the loop of masked tiles starts
subgroupSync();
[[unroll]] for (uint r = 0; r < M_FRAGS; ++r) loadRowMax(r);
barrier(); // the KV tile's shared memory becomes scratch
const Slice oBlock = sliceO(work.batch, work.head, rowBase);

[[unroll]] for (uint r = 0; r < M_FRAGS; ++r) LANE_SUMS_TO_FRAGMENT(r)
FragC inverse[M_FRAGS]; // 1 / row sum
[[unroll]] for (uint r = 0; r < M_FRAGS; ++r) {
    FragC total;
    reduceRowSum(total, rowSumF32[r]);
    [[unroll]] for (uint e = 0; e < total.length(); ++e) inverse[r][e] = nanIfFar(rowMax[r][e], inverseSum(total[e], 1.0));
    if (HAS_LSE != 0 && work.col0 == 0) {
        [[unroll]] for (uint e = 0; e < total.length(); ++e) total[e] = nanIfFar(rowMax[r][e], logSumExp(rowMax[r][e], total[e]));
        fragmentToScratch(total);
        [[unroll]] for (uint s = 0; s < FRAG_M; s += SUBGROUP_SIZE) {
            const uint row = s + gl_SubgroupInvocationID, seqRow = rowBase + r * FRAG_M + row;
            if (row < FRAG_M && seqRow < p.Sq) storeLSE(work.batch, work.head, seqRow, loadScratch(row, 0));
        }
    }
}

// Stores fragment i of O. ADD(row, col, quad) may change what is in scratch first.
#define STORE_FRAGMENT(i, ADD)                                                                      \
    {                                                                                               \
        FragC whole = O[(i) < O_FRAGS ? i : 0] * inverse[(i) < O_FRAGS ? (i) / DV_FRAGS : 0];       \
        fragmentToScratch(whole);                                                                   \
        [[unroll]] for (uint s = 0; s < LANE_QUADS; ++s) {                                          \
            const uint at = s * SUBGROUP_SIZE + gl_SubgroupInvocationID, fragRow = at / (FRAG_N / 4), quad = at % (FRAG_N / 4); \
            const uint row = (i) / DV_FRAGS * FRAG_M + fragRow, col = work.col0 + (i) % DV_FRAGS * FRAG_N + quad * 4; \
            if (at < FRAG_QUADS && rowBase + row < p.Sq && col < HEAD_DIM_V) {                      \
                ADD                                                                                 \
                storeO4(oBlock, row, col, scratchQuad(fragRow, quad));                              \
            }                                                                                       \
        }                                                                                           \
    }
#define ADD_NON_FINITE addNonFinite(work, fragRow, quad * 4, rowBase + row, col, FIRST_MASKED_TILE * KV_TILE);

// The number of the fragment is a literal: in a loop with barriers O would not stay in registers.
#define STORE(i) if ((i) < O_FRAGS) STORE_FRAGMENT(i, )
const uint MAX_LITERALS = SUBGROUP_BARRIER != 0 ? 16 : 4; // CPU drivers take long to compile each of them
if (O_FRAGS <= MAX_LITERALS && (CAUSAL == 0 || nonFiniteSeen == 0)) {
    STORE(0) STORE(1) STORE(2) STORE(3) STORE(4) STORE(5) STORE(6) STORE(7)
    STORE(8) STORE(9) STORE(10) STORE(11) STORE(12) STORE(13) STORE(14) STORE(15)
    return;
}
[[unroll]] for (uint i = 0; i < O_FRAGS; ++i) STORE_FRAGMENT(i, if (CAUSAL != 0 && nonFiniteSeen != 0) ADD_NON_FINITE)
