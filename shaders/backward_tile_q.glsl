// Part of main of backward_coopmat_q.comp: KV tile n. MASKED 1 masks it: some row may not attend to some key.
{
#if MASKED
#define NOTE NOTE_NON_FINITE
#else
#define NOTE NOTE_NOTHING
#endif
    const uint firstKey = kvTileAt(kv, n) * KV_TILE, next = nextKVTile(kv, n + 1, lastRow);
    barrier(); // all subgroups have finished the last tile
    STORE_KEYS(NOTE)
    barrier(); // the tile is complete
    if (next < tiles) PREFETCH_KEYS(kvTileAt(kv, next))
#undef NOTE
#if MASKED // a subgroup whose rows attend to no key of the tile has nothing to add
    if (firstKey < visibleEnd(subgroupLast) && firstKey + KV_TILE > visibleStart(rowBase))
#endif
    [[unroll]] for (uint first = 0; first < KV_TILE; first += KV_STEP) {
        FragC S[M_FRAGS * KV_FRAGS], dP[M_FRAGS * KV_FRAGS];
        FragA dS[M_FRAGS * KV_FRAGS];
        [[unroll]] for (uint f = 0; f < M_FRAGS * KV_FRAGS; ++f) {
            S[f] = FragC(0.0);
            if (DROPOUT == 0) dP[f] = negDelta[f / KV_FRAGS];
            else dP[f] = FragC(0.0); // the mask comes before delta
        }
        MULTIPLY_OWN(S, Q, QK_CHUNKS, 0, 0, first * K_STRIDE, K_STRIDE)
        MULTIPLY_OWN(dP, dO, V_CHUNKS, 0, 0, V_BASE + first * V_STRIDE, V_STRIDE)
        if (DROPOUT != 0) storeKept(rowBase, firstKey + first);
        [[unroll]] for (uint f = 0; f < M_FRAGS * KV_FRAGS; ++f) {
            FragC slope;
            if (DROPOUT != 0) {
                DROP_ELEMENTS(dP[f], f)
                [[unroll]] for (uint e = 0; e < dP[f].length(); ++e) dP[f][e] += negDelta[f / KV_FRAGS][e] * (1.0 / keptScale);
            }
            if (SOFTCAP != 0) {
                slope = S[f];
                PER_ELEMENT(slope, slopeElement, 0u, 0u)
            }
            if (!SCORE_MOD) {
                [[unroll]] for (uint e = 0; e < S[f].length(); ++e) S[f][e] = fma(S[f][e], scale2, negLSE[f / KV_FRAGS][e]);
            }
#if MASKED
            PER_ELEMENT(S[f], exponentElement, rowBase + f / KV_FRAGS * FRAG_M, firstKey + first + f % KV_FRAGS * FRAG_N)
            if (large) PER_ELEMENT(S[f], restElement, rowBase + f / KV_FRAGS * FRAG_M, 0u)
#endif
            [[unroll]] for (uint e = 0; e < S[f].length(); ++e) {
                if (!bool(MASKED) && SCORE_MOD) S[f][e] = applySoftcap(S[f][e] * p.scoreScale) * LOG2E;
                if (SCORE_MOD && (!bool(MASKED) || S[f][e] != MASKED_EXPONENT)) S[f][e] += negLSE[f / KV_FRAGS][e];
                const float P = exp2(S[f][e]);
                dP[f][e] = bool(MASKED) && P == 0.0 ? 0.0 : P * dP[f][e];
                if (SOFTCAP != 0) dP[f][e] *= slope[e];
            }
            signedOperandA(dS[f], dP[f]);
        }
#if MASKED
        if ((seen & SEEN_NON_FINITE) != 0) ADD_PRODUCT(dQ, dS, QK_CHUNKS, first * K_STRIDE, K_STRIDE, FINITE)
        else
#endif
        ADD_PRODUCT(dQ, dS, QK_CHUNKS, first * K_STRIDE, K_STRIDE, AS_IT_IS)
    }
    n = next;
}
