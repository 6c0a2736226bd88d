// Part of main of the forward kernels on cooperative matrices: KV tile j, of the general kernel, and of the dense ones
// of 16-bit types and of float32.
//   S = Q K^T, mask and score modifiers, P = exp2(S - row max), O += P V
// MASKED 1: some row may not attend to some key of the tile, or scores depend on row and key.
#if GENERAL
{
    barrier(); // all subgroups have finished the last tile
    next = PREFETCH_PAGES && SPARSE_BLOCK_Q + TILE_MAP != 0 ? afterNext : nextKVTile(kv, j + 1, lastRow);
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
#else
{
#if MASKED
#define FILTER_V DROP_NON_FINITE
#define HAS_NEXT (j + 1 < tiles)
#define ATTENDS (CAUSAL == 0 || j * KV_TILE < keyEnd)
#else
#define FILTER_V KEEP_NON_FINITE
#define HAS_NEXT (CHECK_KV_END == 0 || j + 1 < tiles)
#define ATTENDS true
#endif
#ifdef DTYPE_F32 // terms are made in front of the barrier, where subgroups wait for each other anyway
    if (DIM_SPLIT > 1) {
        if (ABLATE != ABLATE_BARRIER) barrier(); // K is complete, and all subgroups have finished the last tile
        if (ABLATE != ABLATE_LOAD && HAS_NEXT) PREFETCH_K(j + 1, MASKED)
        if (ATTENDS) {
            gemmQK(0);
            storePartialScores();
        }
        SPLIT_V(FILTER_V)
        if (ALIAS_TERMS != 0) barrier(); // all subgroups have finished K
        STORE_V
    } else {
        if (ABLATE != ABLATE_LOAD || j == 0) {
            SPLIT_K
            SPLIT_V(FILTER_V)
        }
        if (ABLATE != ABLATE_BARRIER) barrier(); // all subgroups have finished the last tile
        if (ABLATE != ABLATE_LOAD || j == 0) {
            STORE_K
            STORE_V
        }
    }
#else
    if (ABLATE != ABLATE_BARRIER) barrier(); // all subgroups have finished the last tile
    if (ABLATE != ABLATE_LOAD || j == 0) STORE_KV(FILTER_V)
#endif
    if (ABLATE != ABLATE_BARRIER) barrier(); // the tile is complete
#ifdef DTYPE_F32
    if (ABLATE != ABLATE_LOAD && HAS_NEXT) {
        if (DIM_SPLIT == 1) PREFETCH_K(j + 1, MASKED)
        PREFETCH_V(j + 1, MASKED)
    }
#else
    if (ABLATE != ABLATE_LOAD && HAS_NEXT) PREFETCH_KV(j + 1, MASKED)
#endif

#if MASKED
    if (ATTENDS)
#endif
    {
        [[unroll]] for (uint r = 0; r < M_FRAGS; ++r) loadRowMax(r);
#ifdef DTYPE_F32
        if (DIM_SPLIT > 1) addPartialScores();
        else
#endif
        gemmQK(0);
        [[unroll]] for (uint s = 0; s < KV_STEPS; ++s) {
            [[unroll]] for (uint f = 0; f < S_FRAGS; ++f) S[f] = nextS[f];
#if MASKED
            [[unroll]] for (uint f = 0; f < S_FRAGS; ++f)
                applyMask(S[f], int(rowBase + f / KV_FRAGS * FRAG_M),
                          int(j * KV_TILE + s * KV_STEP + f % KV_FRAGS * FRAG_N), p.causalOffset, int(p.Sk));
#endif
            if (ABLATE != ABLATE_SOFTMAX) UPDATE_ROW_MAX
            if (s + 1 < KV_STEPS) gemmQK((s + 1) * KV_STEP); // independent of softmaxP: tensor cores work meanwhile
            softmaxP(s * KV_STEP);
            gemmPV(s * KV_STEP);
        }
    }
#ifdef DTYPE_F32
    if (DIM_SPLIT > 1 && HAS_NEXT) { // K of the next tile, where no subgroup reads K
        SPLIT_K
        if (ALIAS_TERMS != 0) barrier(); // all subgroups have finished V
        STORE_K
    }
#endif
#undef FILTER_V
#undef HAS_NEXT
#undef ATTENDS
}
#endif
