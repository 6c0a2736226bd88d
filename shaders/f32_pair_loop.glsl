// Part of main: the KV loop with pairs of float16 (f32_pairs.glsl). It sets j to the KV tiles that it has done. The row
// sums count 2^7 times and O 2^15 times in it.
const uint pairTiles = SCORE_SCALE >= 1e-20 ? unmaskedTiles * KV_TILE / PAIR_TILE : 0; // else scale is not a normal number
if (pairTiles > 0) {
    const float limitQK = PAIR_LIMIT_QK;
    uvec4 kPair[2 * PAIR_K_VECS], vPair[2 * PAIR_V_VECS];
    PREFETCH_PAIRS
    {
        LOAD_Q_VECS
        barrier(); // outOfRange is 0
        [[unroll]] for (uint f = 0; f < frags; ++f) {
            subgroupSync(); // the last fragment is read
            [[unroll]] for (uint s = 0; s < LANE_VECS; ++s) {
                const uint n = f * LANE_VECS + s, group = s * SUBGROUP_SIZE + gl_SubgroupInvocationID;
                if (!atMost(splitPairs(qVec[2 * n], qVec[2 * n + 1]), limitQK)) outOfRange = 1;
                const uint at = subgroupScratch() + group / CHUNK_VECS * TERMS_STRIDE + group % CHUNK_VECS;
                if (group < FRAG_VECS) {
                    smem[at] = qVec[2 * n];
                    smem[at + CHUNK_VECS] = qVec[2 * n + 1];
                }
            }
            subgroupSync();
            [[unroll]] for (uint term = 0; term < PAIR; ++term)
                coopMatLoad(pairQ[(term * M_FRAGS + f / QK_CHUNKS) * QK_CHUNKS + f % QK_CHUNKS], smem,
                            subgroupScratch() + term * CHUNK_VECS, TERMS_STRIDE, gl_CooperativeMatrixLayoutRowMajor);
        }
    }

    scale = SCORE_SCALE / (PAIR_SCALE * PAIR_SCALE);
    invScale = 1.0 / scale;
    uint n = 0;
    [[dont_unroll]] for (; n < pairTiles; ++n) {
        if (ABLATE != ABLATE_LOAD || n == 0) SPLIT_PAIRS
        if (ABLATE != ABLATE_BARRIER || n == 0) barrier(); // all subgroups have finished the last tile
        if (outOfRange != 0) break;
        if (ABLATE != ABLATE_LOAD || n == 0) STORE_PAIRS
        if (ABLATE != ABLATE_BARRIER) barrier(); // the tile is complete
        if (ABLATE != ABLATE_LOAD && n + 1 < pairTiles) PREFETCH_PAIRS
        [[unroll]] for (uint r = 0; r < M_FRAGS; ++r) loadRowMax(r);
        gemmPairQK(0);
        [[unroll]] for (uint s = 0; s < PAIR_STEPS; ++s) {
            [[unroll]] for (uint f = 0; f < S_FRAGS; ++f) S[f] = nextS[f];
            if (ABLATE != ABLATE_SOFTMAX) UPDATE_ROW_MAX
            if (s + 1 < PAIR_STEPS) gemmPairQK((s + 1) * KV_STEP); // independent of softmaxPairs
            softmaxPairs();
            gemmPairPV(s * KV_STEP);
        }
    }
    j = n * (PAIR_TILE / KV_TILE);
    const FragC onePart = FragC(1.0 / PAIR_P_SCALE);
    [[unroll]] for (uint r = 0; r < M_FRAGS; ++r) {
        RESCALE_ROW_SUM_F32(r, onePart)
        [[unroll]] for (uint i = 0; i < DV_FRAGS; ++i) O[r * DV_FRAGS + i] *= 1.0 / (PAIR_P_SCALE * PAIR_SCALE);
    }
    scale = SCORE_SCALE;
    invScale = 1.0 / scale;
    kRows = sliceK(work.batch, work.kvHead, j * KV_TILE);
    vRows = sliceV(work.batch, work.kvHead, j * KV_TILE);
    barrier(); // all subgroups have finished the last tile, whose shared memory becomes scratch
}
