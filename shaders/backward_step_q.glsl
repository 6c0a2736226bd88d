// Part of main of backward_coopmat_q.comp: the products with KV_STEP keys of the tile, from key `first` on.
{
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
        FragC negRest;
        coopMatLoad(negRest, smem, REST_BASE + (rowInTile + f / KV_FRAGS * FRAG_M) / 4, 0, COLUMN_MAJOR);
#endif
        [[unroll]] for (uint e = 0; e < S[f].length(); ++e) {
            if (!bool(MASKED) && SCORE_MOD) S[f][e] = applySoftcap(S[f][e] * p.scoreScale) * LOG2E;
            if (SCORE_MOD && (!bool(MASKED) || S[f][e] != MASKED_EXPONENT)) S[f][e] += negLSE[f / KV_FRAGS][e];
#if MASKED
            S[f][e] += negRest[e];
#endif
            const float P = exp2(S[f][e]);
            dP[f][e] *= P;
            if (SOFTCAP != 0) dP[f][e] *= slope[e];
            if (bool(MASKED) && P == 0.0) dP[f][e] = 0.0; // dP and the derivative of a masked slot may be NaN
        }
        operandA(dS[f], dP[f])
    }
#if MASKED
    if ((seen & SEEN_NON_FINITE) != 0) {
        barrier(); // all subgroups have multiplied S
        dropNonFiniteRows(first * K_STRIDE, K_STRIDE, KV_STEP, K_ROW_VECS);
        barrier();
    }
#endif
    ADD_PRODUCT(dQ, dS, QK_CHUNKS, first * K_STRIDE, K_STRIDE)
    subgroupMemoryBarrierShared(); // a fence, as in backward_step_kv.glsl
}
