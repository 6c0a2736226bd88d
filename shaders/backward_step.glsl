// Part of main of the kernel of dK and dV (OWNS_KEYS) and of the kernel of dQ: the products of KV_STEP rows or keys of
// the tile, from `first` on.
//
//   S = own rows^T   P = exp2(S - LSE)   dP = own rows^T - delta   dS = P dP
//   dV += P dO and dK += dS Q, or dQ += dS K
//
// The first kernel owns K and V and streams Q and dO, the second one owns Q and dO and streams K and V.
#if OWNS_KEYS
{
    FragC S[M_FRAGS * KV_FRAGS], dP[M_FRAGS * KV_FRAGS];
    FragA P[M_FRAGS * KV_FRAGS], dS[M_FRAGS * KV_FRAGS];
    [[unroll]] for (uint f = 0; f < M_FRAGS * KV_FRAGS; ++f) {
        S[f] = FragC(0.0);
        if (HAS_DK != 0 && DROPOUT == 0) coopMatLoad(dP[f], smem, STAT_AT(1), 0, ROW_MAJOR);
        if (HAS_DK != 0 && DROPOUT != 0) dP[f] = FragC(0.0); // the mask comes before delta
    }
    MULTIPLY_OWN(S, K, QK_CHUNKS, K_SMEM_CHUNKS, K_BASE, first * Q_STRIDE, Q_STRIDE)
    if (HAS_DK != 0) MULTIPLY_OWN(dP, V, V_CHUNKS, 0, 0, DO_BASE + first * DO_STRIDE, DO_STRIDE)
    if (DROPOUT != 0) storeKept(row0 + first, keyBase);
    [[unroll]] for (uint f = 0; f < M_FRAGS * KV_FRAGS; ++f) {
        FragC negLSE, slope;
        if (HAS_DK != 0 && DROPOUT != 0) {
            DROP_ELEMENTS(dP[f], f)
            FragC negDelta;
            coopMatLoad(negDelta, smem, STAT_AT(1), 0, ROW_MAJOR);
            [[unroll]] for (uint e = 0; e < dP[f].length(); ++e) dP[f][e] += negDelta[e] * (1.0 / keptScale);
        }
        coopMatLoad(negLSE, smem, STAT_AT(0), 0, ROW_MAJOR);
        if (HAS_SLOPE) {
            slope = S[f];
            PER_ELEMENT(slope, slopeElement, keyBase + f / KV_FRAGS * FRAG_M, row0 + first + f % KV_FRAGS * FRAG_N)
        }
        if (!SCORE_MOD) {
            [[unroll]] for (uint e = 0; e < S[f].length(); ++e) S[f][e] = fma(S[f][e], scale2, negLSE[e]);
        }
#if MASKED
        PER_ELEMENT(S[f], attendedElement, keyBase + f / KV_FRAGS * FRAG_M, row0 + first + f % KV_FRAGS * FRAG_N)
        FragC negRest;
        coopMatLoad(negRest, smem, STAT_AT(2), 0, ROW_MAJOR);
#else
        if (MODIFIES_SLOTS) PER_ELEMENT(S[f], exponentElement, keyBase + f / KV_FRAGS * FRAG_M, row0 + first + f % KV_FRAGS * FRAG_N)
#endif
        [[unroll]] for (uint e = 0; e < S[f].length(); ++e) {
            if (!bool(MASKED) && SCORE_MOD && !MODIFIES_SLOTS) S[f][e] = scoreModOfTile(S[f][e] * p.scoreScale) * LOG2E;
            if (SCORE_MOD && (!bool(MASKED) || S[f][e] != MASKED_EXPONENT)) S[f][e] += negLSE[e];
            if (!bool(MASKED) && MODIFIES_SLOTS && TILE_MAP != 0 && negLSE[e] == -INFINITY) S[f][e] = -INFINITY; // a row past the end
#if MASKED
            S[f][e] += negRest[e];
#endif
            S[f][e] = exp2(S[f][e]);
            if (HAS_DK != 0) {
                dP[f][e] *= S[f][e];
                if (HAS_SLOPE) dP[f][e] *= slope[e];
                if ((bool(MASKED) || MODIFIES_SLOTS) && S[f][e] == 0.0) dP[f][e] = 0.0; // dP and the derivative of a masked slot may be NaN
            }
        }
        if (HAS_DV != 0 && DROPOUT != 0) DROP_ELEMENTS(S[f], f)
        if (HAS_DV != 0) { operandA(P[f], S[f]) }
        if (HAS_DK != 0) { operandA(dS[f], dP[f]) }
        if (STORE_DS != 0) {
            uvec4 words;
            [[unroll]] for (uint w = 0; w < 4; ++w) words[w] = FRAGMENT_WORD(dS[f], 2 * w);
            storeScratchVec(p.addrCuQ, dsIndex(keyBase / FRAG_M + f / KV_FRAGS, (row0 + first) / FRAG_N + f % KV_FRAGS), words);
        }
    }
#if MASKED
    if ((seen & SEEN_NON_FINITE) != 0) {
        barrier(); // all subgroups have multiplied S and dP
        if (HAS_DV != 0) dropNonFiniteRows(DO_BASE + first * DO_STRIDE, DO_STRIDE, KV_STEP, DO_ROW_VECS);
        if (HAS_DK != 0) dropNonFiniteRows(first * Q_STRIDE, Q_STRIDE, KV_STEP, Q_ROW_VECS);
        barrier();
    }
#endif
    if (HAS_DV != 0) ADD_PRODUCT(dV, P, V_CHUNKS, DO_BASE + first * DO_STRIDE, DO_STRIDE)
    if (HAS_DK != 0) ADD_PRODUCT(dK, dS, QK_CHUNKS, first * Q_STRIDE, Q_STRIDE)
    // A fence. Without it NVIDIA's compiler moves loads of later steps here, and spills the vectors of the next tile,
    // which then wait for memory (docs/log/backward.md, 2): 335 TFLOP/s in place of 213 at head dim 128.
    subgroupMemoryBarrierShared();
}
#else
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
        if (HAS_SLOPE) {
            slope = S[f];
            PER_ELEMENT(slope, slopeElement, rowBase + f / KV_FRAGS * FRAG_M, firstKey + first + f % KV_FRAGS * FRAG_N)
        }
        if (!SCORE_MOD) {
            [[unroll]] for (uint e = 0; e < S[f].length(); ++e) S[f][e] = fma(S[f][e], scale2, negLSE[f / KV_FRAGS][e]);
        }
#if MASKED
        PER_ELEMENT(S[f], attendedElement, rowBase + f / KV_FRAGS * FRAG_M, firstKey + first + f % KV_FRAGS * FRAG_N)
        FragC negRest;
        coopMatLoad(negRest, smem, REST_BASE + (rowInTile + f / KV_FRAGS * FRAG_M) / 4, 0, COLUMN_MAJOR);
#else
        if (MODIFIES_SLOTS) PER_ELEMENT(S[f], exponentElement, rowBase + f / KV_FRAGS * FRAG_M, firstKey + first + f % KV_FRAGS * FRAG_N)
#endif
        [[unroll]] for (uint e = 0; e < S[f].length(); ++e) {
            if (!bool(MASKED) && SCORE_MOD && !MODIFIES_SLOTS) S[f][e] = scoreModOfTile(S[f][e] * p.scoreScale) * LOG2E;
            if (SCORE_MOD && (!bool(MASKED) || S[f][e] != MASKED_EXPONENT)) S[f][e] += negLSE[f / KV_FRAGS][e];
#if MASKED
            S[f][e] += negRest[e];
#endif
            const float P = exp2(S[f][e]);
            dP[f][e] *= P;
            if (HAS_SLOPE) dP[f][e] *= slope[e];
            if ((bool(MASKED) || MODIFIES_SLOTS) && P == 0.0) dP[f][e] = 0.0; // dP and the derivative of a masked slot may be NaN
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
    subgroupMemoryBarrierShared(); // a fence, as above
}
#endif
