// P from S, and the exchange of a pair: the first subgroup computes P and leaves it in shared memory, behind a workgroup barrier
// the second one loads it. Macros over the fragments of backward_f32_gemm.glsl.
//
// The exponent stays a natural one until LSE is subtracted: fma takes the exact product with the scale, so where one key takes
// all of P the exponent is off by the rounding of LSE alone, and the rest of LSE (backward_stats.glsl) corrects that.

float maskedP(const in uint32_t i, const in uint32_t j, const in float x, const in uint firstKey, const in uint firstRow) {
    return attends(firstRow + j, firstKey + i) ? x : 0.0;
}

// X = P of the row tile at row0, for the keys from keyBase on.
#define COMPUTE_P(MASK_TILE, keyBase, row0)                                                         \
    [[unroll]] for (uint f = 0; f < M_FRAGS * ROW_FRAGS; ++f) {                                     \
        FragC negLSE, negRest;                                                                      \
        coopMatLoad(negLSE, smem, STAT_AT(0, f % ROW_FRAGS), 0, ROW_MAJOR);                         \
        coopMatLoad(negRest, smem, STAT_AT(1, f % ROW_FRAGS), 0, ROW_MAJOR);                        \
        [[unroll]] for (uint e = 0; e < X[f].length(); ++e)                                         \
            X[f][e] = exp2(fma(fma(X[f][e], p.scoreScale, negLSE[e]), LOG2E, negRest[e]));          \
        if (MASK_TILE) PER_ELEMENT(X[f], maskedP, (keyBase) + f / ROW_FRAGS * FRAG_M, (row0) + f % ROW_FRAGS * FRAG_N) \
        STORE_ELEMENTS(X[f], exchangeAt(f))                                                         \
    }
