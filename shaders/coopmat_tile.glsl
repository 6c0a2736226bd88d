// One tile of keys, j: the body of both loops of forward_coopmat.comp. With MASKED some row may not
// see some key of it.
{
    if (ABLATE != ABLATE_BARRIER) barrier(); // everyone has finished with the last tile
    if (ABLATE != ABLATE_LOAD || j == 0) {
        [[unroll]] for (uint i = 0; i < K_VECS; ++i) {
            uint at = VEC_INDEX(K_VECS, i);
            if (KV_TILE * K_ROW_VECS % LOCAL_SIZE == 0 || at < KV_TILE * K_ROW_VECS)
                smem[at / K_ROW_VECS * K_STRIDE + at % K_ROW_VECS] = kVec[i];
        }
        [[unroll]] for (uint i = 0; i < V_VECS; ++i) {
            uint at = VEC_INDEX(V_VECS, i);
            if (KV_TILE * V_ROW_VECS % LOCAL_SIZE == 0 || at < KV_TILE * V_ROW_VECS) {
#if MASKED
                // A masked slot has P = 0, but 0 x Inf is NaN: multiply without such values, add them at the end.
                if (CAUSAL != 0 && dropNonFinite(vVec[i])) atomicOr(nonFiniteSeen, 1);
#endif
                smem[V_BASE + at / V_ROW_VECS * V_STRIDE + at % V_ROW_VECS] = vVec[i];
            }
        }
    }
    if (ABLATE != ABLATE_BARRIER) barrier(); // the tile is complete
#if MASKED
    if (ABLATE != ABLATE_LOAD && j + 1 < tiles) PREFETCH_KV(j + 1, 1)
#else
    if (ABLATE != ABLATE_LOAD && (CHECK_KV_END == 0 || j + 1 < tiles)) PREFETCH_KV(j + 1, 0)
#endif

#if MASKED
    if (CAUSAL == 0 || j * KV_TILE < keyEnd)
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
            FragC nextS[M_FRAGS * KV_FRAGS];
            if (s + 1 < KV_STEPS) GEMM_QK(nextS, (s + 1) * KV_STEP)
            SOFTMAX_P(P, S, 0)
            GEMM_PV(P, s * KV_STEP)
            if (s + 1 < KV_STEPS) {
                [[unroll]] for (uint f = 0; f < M_FRAGS * KV_FRAGS; ++f) S[f] = nextS[f];
            }
        }
    }
}
