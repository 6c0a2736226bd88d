// Part of main: KV tile j. MASKED 1 masks it: some row may not attend to some key of it.
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
    if (ABLATE != ABLATE_LOAD || j == 0) SPLIT_KV(FILTER_V)
    if (ABLATE != ABLATE_BARRIER) barrier(); // all subgroups have finished the last tile
    if (ABLATE != ABLATE_LOAD || j == 0) STORE_KV
    if (ABLATE != ABLATE_BARRIER) barrier(); // the tile is complete
    if (ABLATE != ABLATE_LOAD && HAS_NEXT) PREFETCH_KV(j + 1, MASKED)

#if MASKED
    if (ATTENDS)
#endif
    {
        [[unroll]] for (uint r = 0; r < M_FRAGS; ++r) loadRowMax(r);
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
#undef FILTER_V
#undef HAS_NEXT
#undef ATTENDS
}
