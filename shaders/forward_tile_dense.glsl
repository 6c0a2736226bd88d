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
    if (ABLATE != ABLATE_BARRIER) barrier(); // all subgroups have finished the last tile
    if (ABLATE != ABLATE_LOAD || j == 0) STORE_KV(FILTER_V)
    if (ABLATE != ABLATE_BARRIER) barrier(); // the tile is complete
    if (ABLATE != ABLATE_LOAD && HAS_NEXT) PREFETCH_KV(j + 1, MASKED)

#if MASKED
    if (ATTENDS)
#endif
    {
        [[unroll]] for (uint r = 0; r < M_FRAGS; ++r) loadRowMax(r);
        FragC S[M_FRAGS * KV_FRAGS];
        GEMM_QK(S, 0)
        [[unroll]] for (uint s = 0; s < KV_STEPS; ++s) {
#if MASKED
            [[unroll]] for (uint f = 0; f < M_FRAGS * KV_FRAGS; ++f)
                applyMask(S[f], int(rowBase + f / KV_FRAGS * FRAG_M),
                          int(j * KV_TILE + s * KV_STEP + f % KV_FRAGS * FRAG_N), p.causalOffset, int(p.Sk));
#endif
            if (ABLATE != ABLATE_SOFTMAX) UPDATE_ROW_MAX(S)
            FragC nextS[M_FRAGS * KV_FRAGS]; // independent of this step's softmax: tensor cores work meanwhile
            if (s + 1 < KV_STEPS) GEMM_QK(nextS, (s + 1) * KV_STEP)
            SOFTMAX_P(P, S, 0)
            GEMM_PV(P, s * KV_STEP)
            if (s + 1 < KV_STEPS) {
                [[unroll]] for (uint f = 0; f < M_FRAGS * KV_FRAGS; ++f) S[f] = nextS[f];
            }
        }
    }
#undef FILTER_V
#undef HAS_NEXT
#undef ATTENDS
}
