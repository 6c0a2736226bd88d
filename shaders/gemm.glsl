// The two products of a KV step, over the fragments of fragment_state.glsl. firstKey counts from the start of the KV
// tile. Code behind the KV loop must call neither: when it did, kernels took 1.2 to 6 times as long (docs/log.md, 49).

// nextS = Q K^T. Chunks of Q that are not in registers come from shared memory.
void gemmQK(uint firstKey) {
    [[unroll]] for (uint f = 0; f < S_FRAGS; ++f) nextS[f] = FragC(0.0);
    [[unroll]] for (uint i = 0; i < QK_CHUNKS; ++i) {
        FragA Qi[M_FRAGS];
        [[unroll]] for (uint r = 0; r < M_FRAGS; ++r) {
            if (i < Q_REG_CHUNKS) Qi[r] = Q[Q_REG_CHUNKS > 0 ? r * Q_REG_CHUNKS + i : 0];
            else coopMatLoad(Qi[r], smem, Q_BASE + (SUBGROUP_FIRST_ROW + r * FRAG_M) * Q_STRIDE + (i - Q_REG_CHUNKS) * FRAG_K / 8,
                             Q_STRIDE, gl_CooperativeMatrixLayoutRowMajor);
        }
        [[unroll]] for (uint c = 0; c < KV_FRAGS; ++c) {
            FragB Kt;
            coopMatLoad(Kt, smem, (firstKey + c * FRAG_N) * K_STRIDE + i * FRAG_K / 8, K_STRIDE,
                        gl_CooperativeMatrixLayoutColumnMajor);
            [[unroll]] for (uint r = 0; r < M_FRAGS; ++r)
                nextS[r * KV_FRAGS + c] = coopMatMulAdd(Qi[r], Kt, nextS[r * KV_FRAGS + c]);
        }
    }
}

// O += P V. rowSum adds up P as rounded for this product, by a product with ones: dividing O by it cancels the
// rounding of P, and a row with one key gets its row of V exactly. With KEY_SCALES rowSumScaled has that role
// (kv_scales.glsl).
void gemmPV(uint firstKey) {
    [[unroll]] for (uint c = 0; c < KV_FRAGS; ++c) {
        [[unroll]] for (uint r = 0; r < ROW_SUM_FRAGS; ++r)
            rowSum[r] = coopMatMulAdd(P[r * KV_FRAGS + c], FragOnes(1.0), rowSum[r]);
        [[unroll]] for (uint i = 0; i < DV_FRAGS; ++i) {
            FragB Vt;
            coopMatLoad(Vt, smem, V_BASE + (firstKey + c * FRAG_K) * V_STRIDE + i * FRAG_N / 8, V_STRIDE,
                        gl_CooperativeMatrixLayoutRowMajor);
            [[unroll]] for (uint r = 0; r < M_FRAGS; ++r)
                O[r * DV_FRAGS + i] = coopMatMulAdd(P[r * KV_FRAGS + c], Vt, O[r * DV_FRAGS + i]);
        }
    }
}
