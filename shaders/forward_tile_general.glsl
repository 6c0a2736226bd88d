// Part of main: tile j of the KV loop. MASKED 1: some row may not attend to some key of it, or scores depend on row
// and key.
{
    barrier(); // all subgroups have finished the last tile
    next = PREFETCH_PAGES && SPARSE_BLOCK_Q != 0 ? afterNext : nextKVTile(kv, j + 1, lastRow);
    if (PREFETCH_PAGES) afterNext = nextKVTile(kv, next + 1, lastRow);
    if (SPARSE_TOKENS != 0) STORE_TILE_KEYS
    const uint firstStep = SUBGROUP_FIRST_STEP;
#define APPLY_MASK_AND_BIAS(s)                                                                      \
    scaleS((firstStep + s) * KV_STEP);                                                              \
    [[unroll]] for (uint f = 0; f < M_FRAGS * KV_FRAGS; ++f)                                        \
        applyMaskAndBias(S[f], rowBase + f / KV_FRAGS * FRAG_M, CURRENT_TILE * KV_TILE,             \
                         (firstStep + s) * KV_STEP + f % KV_FRAGS * FRAG_N, MASKED)                 \
    addVExponent((firstStep + s) * KV_STEP);
#define APPLY_DROPOUT(s) if (DROPOUT != 0) dropP(rowBase, CURRENT_TILE * KV_TILE, (firstStep + s) * KV_STEP);
    STORE_K_TILE
    STORE_KV_SCALES
    if (ALIAS_KV != 0) {
        barrier(); // K is complete
        if (next < tiles) PREFETCH_K(kvTileAt(kv, next))
        [[unroll]] for (uint r = 0; r < M_FRAGS; ++r) loadRowMax(r);
        gemmQK(firstStep * KV_STEP);
        [[unroll]] for (uint f = 0; f < S_FRAGS; ++f) S[f] = nextS[f];
        barrier(); // all subgroups have finished K
        STORE_V_TILE(MASKED)
        barrier(); // V is complete
        if (next < tiles) PREFETCH_V(kvTileAt(kv, next))
        if (PREFETCH_PAGES) LOAD_PAGE_INDICES(kvTileAt(kv, afterNext))
        APPLY_MASK_AND_BIAS(0)
        UPDATE_ROW_MAX
        softmaxP(firstStep * KV_STEP);
        APPLY_DROPOUT(0)
        gemmPV(firstStep * KV_STEP);
    } else {
        STORE_V_TILE(MASKED)
        barrier(); // the tile is complete
        if (next < tiles) {
            PREFETCH_K(kvTileAt(kv, next))
            PREFETCH_V(kvTileAt(kv, next))
        }
        if (PREFETCH_PAGES) LOAD_PAGE_INDICES(kvTileAt(kv, afterNext))
        if (hasRows && (MASKED == 0 || CURRENT_TILE * KV_TILE < keyEnd)) {
            [[unroll]] for (uint r = 0; r < M_FRAGS; ++r) loadRowMax(r);
            gemmQK(firstStep * KV_STEP);
            [[unroll]] for (uint s = 0; s < SUBGROUP_STEPS; ++s) {
                [[unroll]] for (uint f = 0; f < S_FRAGS; ++f) S[f] = nextS[f];
                APPLY_MASK_AND_BIAS(s)
                UPDATE_ROW_MAX
                if (s + 1 < SUBGROUP_STEPS) gemmQK((s + 1) * KV_STEP); // independent of softmaxP: tensor cores work meanwhile
                softmaxP((firstStep + s) * KV_STEP);
                APPLY_DROPOUT(s)
                gemmPV((firstStep + s) * KV_STEP);
            }
        }
    }
#undef APPLY_MASK_AND_BIAS
#undef APPLY_DROPOUT
}
