// Part of dq.comp: KV tile j.
{
    if (BUFFERS == 1) {
        if (ABLATE != 2) barrier();
        if (ABLATE != 3 || j == 0) STORE_TILE(0)
        if (ABLATE != 2) barrier();
        if (ABLATE != 3 && j + 1 < tiles) PREFETCH((j + 1) * TILE)
    } else {
        if (ABLATE != 3 && j + 1 < tiles) PREFETCH((j + 1) * TILE)
        if (ABLATE != 2) barrier();
    }
#if MASKED
    if (CAUSAL == 0 || int(j * TILE) <= int(rowBase + SUBGROUP_ROWS - 1) + p.causalOffset)
#endif
    {
        FragC S[M_FRAGS * N_FRAGS];
        GEMM_S(S, 0)
        [[unroll]] for (uint s = 0; s < STEPS; ++s) {
            FragC dP[M_FRAGS * N_FRAGS];
            GEMM_DP(dP, s * STEP)
            FragC nextS[M_FRAGS * N_FRAGS];
            if (AHEAD != 0 && s + 1 < STEPS) GEMM_S(nextS, (s + 1) * STEP)
            FragA dS[M_FRAGS * N_FRAGS];
            [[unroll]] for (uint f = 0; f < M_FRAGS * N_FRAGS; ++f) {
#if MASKED
                coopMatPerElementNV(S[f], S[f], maskedElement, int(rowBase + f / N_FRAGS * FRAG_M), int(j * TILE + s * STEP + f % N_FRAGS * FRAG_N));
#endif
                [[unroll]] for (uint e = 0; e < S[f].length(); ++e) {
                    const float x = fma(S[f][e], scale2, negLSE[f / N_FRAGS][e]);
                    dP[f][e] *= ABLATE == 1 ? x : exp2(x);
                }
                roundedA(dS[f], dP[f])
            }
            [[unroll]] for (uint c = 0; c < N_FRAGS; ++c)
                [[unroll]] for (uint i = 0; i < CHUNKS; ++i) {
                    FragB Kc;
                    coopMatLoad(Kc, smem, buf + (s * STEP + c * FRAG_K) * STRIDE + i * FRAG_N / 8, STRIDE, ROW_MAJOR);
                    [[unroll]] for (uint r = 0; r < M_FRAGS; ++r)
                        dQ[r * CHUNKS + i] = coopMatMulAdd(dS[r * N_FRAGS + c], Kc, dQ[r * CHUNKS + i]);
                }
            if (s + 1 < STEPS) {
                if (AHEAD != 0) {
                    [[unroll]] for (uint f = 0; f < M_FRAGS * N_FRAGS; ++f) S[f] = nextS[f];
                } else GEMM_S(S, (s + 1) * STEP)
            }
        }
    }
    if (BUFFERS == 2) {
        buf = BUFFER_SIZE - buf;
        if (ABLATE != 3 && j + 1 < tiles) STORE_TILE(buf)
    }
}
