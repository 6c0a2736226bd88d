// Part of dkdv.comp: row tile t of head g.
{
    const bool hasNext = t + 1 < tiles || g + 1 < group;
    const uint nextRow = t + 1 < tiles ? (t + 1) * TILE : first * TILE; // the last tile loads one again
    const uint nextHead = t + 1 < tiles || g + 1 == group ? headRow : headRow + p.Sq;
    if (BUFFERS == 1) {
        if (ABLATE != 2) barrier();
        if (ABLATE != 3 || t == first) STORE_TILE(0)
        if (ABLATE != 2) barrier();
        if (ABLATE != 3) PREFETCH(nextRow, nextHead)
    } else {
        // The tile is in buffer buf; the next one is loaded here and stored behind the products.
        if (ABLATE != 3 && STAGED == 0) PREFETCH(nextRow, nextHead)
        if (ABLATE != 2) barrier();
    }
#if MASKED
    const bool attends = CAUSAL == 0 || int(keyBase) <= int(t * TILE + TILE - 1) + p.causalOffset;
    if (attends)
#endif
    {
        const uint dsAt = STORE_DS != 0 ? DS_INDEX(headRow / p.Sq, (keyBase - p.firstKey) / FRAG_M, t * (TILE / FRAG_N)) : 0;
        FragC S[M_FRAGS * N_FRAGS];
        if (AHEAD != 0) GEMM_S(S, 0)
        STEP_LOOP for (uint s = 0; s < STEPS; ++s) {
            if (STAGED != 0) LOAD_PIECE(s)
            if (AHEAD == 0) GEMM_S(S, s * STEP)
            FENCE_AT(2)
            FragC dP[M_FRAGS * N_FRAGS];
            GEMM_DP(dP, s * STEP)
            FENCE_AT(2)
            FragC nextS[M_FRAGS * N_FRAGS];
            if (AHEAD != 0 && s + 1 < STEPS) GEMM_S(nextS, (s + 1) * STEP)
            FragA P[M_FRAGS * N_FRAGS], dS[M_FRAGS * N_FRAGS];
            [[unroll]] for (uint f = 0; f < M_FRAGS * N_FRAGS; ++f) {
#if MASKED
                coopMatPerElementNV(S[f], S[f], maskedElement, int(keyBase + f / N_FRAGS * FRAG_M), int(t * TILE + s * STEP + f % N_FRAGS * FRAG_N));
#endif
                FragC negLSE;
                coopMatLoad(negLSE, smem, buf + STATS_BASE + (s * STEP + f % N_FRAGS * FRAG_N) / 4, 0, ROW_MAJOR);
                [[unroll]] for (uint e = 0; e < S[f].length(); ++e) {
                    const float x = fma(S[f][e], scale2, negLSE[e]);
                    S[f][e] = ABLATE == 1 ? x : exp2(x);
                    dP[f][e] *= S[f][e];
                }
                roundedA(P[f], S[f])
                roundedA(dS[f], dP[f])
                if (STORE_DS != 0) {
                    uvec4 words;
                    [[unroll]] for (uint w = 0; w < 4; ++w) words[w] = WORD(dS[f], 2 * w);
                    ds[dsAt + (f / N_FRAGS * p.rowFrags + s * N_FRAGS + f % N_FRAGS) * SUBGROUP_SIZE] = words;
                }
            }
            [[unroll]] for (uint c = 0; c < N_FRAGS; ++c) {
                FENCE_AT(2)
                [[unroll]] for (uint i = 0; i < CHUNKS_V; ++i) {
                    if (i % 2 == 0) FENCE_AT(3)
                    FragB dOc;
                    coopMatLoad(dOc, smem, buf + DO_BASE + (s * STEP + c * FRAG_K) * STRIDE_V + i * FRAG_N / 8, STRIDE_V, ROW_MAJOR);
                    [[unroll]] for (uint r = 0; r < M_FRAGS; ++r)
                        dV[r * CHUNKS_V + i] = coopMatMulAdd(P[r * N_FRAGS + c], dOc, dV[r * CHUNKS_V + i]);
                }
                FENCE_AT(2)
                [[unroll]] for (uint i = 0; i < CHUNKS; ++i) {
                    if (i % 2 == 0) FENCE_AT(3)
                    FragB Qc;
                    coopMatLoad(Qc, smem, buf + (s * STEP + c * FRAG_K) * STRIDE + i * FRAG_N / 8, STRIDE, ROW_MAJOR);
                    [[unroll]] for (uint r = 0; r < M_FRAGS; ++r)
                        dK[r * CHUNKS + i] = coopMatMulAdd(dS[r * N_FRAGS + c], Qc, dK[r * CHUNKS + i]);
                }
            }
            if (AHEAD != 0 && s + 1 < STEPS) {
                [[unroll]] for (uint f = 0; f < M_FRAGS * N_FRAGS; ++f) S[f] = nextS[f];
            }
            FENCE_AT(1)
            if (STAGED != 0) STORE_PIECE(s, BUFFER_SIZE - buf)
        }
    }
#if MASKED
    else if (STAGED != 0) {
        PREFETCH(nextRow, nextHead)
        STORE_TILE(BUFFER_SIZE - buf)
    }
#endif
    if (BUFFERS == 2) {
        buf = BUFFER_SIZE - buf;
        if (ABLATE != 3 && STAGED == 0) STORE_TILE(buf)
    }
}
