// The two products of a KV step, over the fragments of forward_fragments.glsl. firstKey counts from the start of the KV
// tile. Code behind the KV loop must call neither: when it did, kernels took 1.2 to 6 times as long
// (docs/log/vulkan.md, 49).

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

#ifdef HAS_DROPOUT
// -- dropout of P ---------------------------------------------------------------------------------
// Dropout of P on fragments. The lanes of a subgroup compute the mask of a KV step together, four keys for each call of
// the generator, and leave it in shared memory as bits (KEPT_BASE in forward_fragments.glsl): an element of a fragment does
// not know its neighbours.

uint keptWordAt(uint i) { return KEPT_BASE * 4 + gl_SubgroupID * KEPT_SIZE * 4 + i; }

#if NV2
float keptElement(const in uint32_t row, const in uint32_t col, const in float x, const in uint first) {
    const uint at = first + row;
    return (smem[at / 4][at % 4] >> col & 1u) != 0 ? x : 0.0;
}
#define dropElements(x, first) coopMatPerElementNV(x, x, keptElement, first);
#else
#define dropElements(x, first)                                                                      \
    {                                                                                               \
        fragmentToScratch(x);                                                                       \
        for (uint i = gl_SubgroupInvocationID; i < FRAG_M * FRAG_N; i += SUBGROUP_SIZE) {           \
            const uint row = i / FRAG_N, col = i % FRAG_N, at = (first) + row;                      \
            if ((smem[at / 4][at % 4] >> col & 1u) == 0) storeScratch(row, col, 0.0);               \
        }                                                                                           \
        subgroupSync();                                                                             \
        coopMatLoad(x, smem, subgroupScratch(), SCRATCH_STRIDE, gl_CooperativeMatrixLayoutRowMajor); \
    }
#endif

// The row sums take P of the step in full, as rounded; then dropped elements become 0. S has P in float32.
void dropP(uint rowBase, uint firstKey, uint firstCol) {
    subgroupSync(); // the bits of the last step are used
    [[dont_unroll]] for (uint i = gl_SubgroupInvocationID; i < S_FRAGS * FRAG_M; i += SUBGROUP_SIZE) {
        const uint f = i / FRAG_M, row = rowBase + f / KV_FRAGS * FRAG_M + i % FRAG_M;
        const uint col = firstCol + f % KV_FRAGS * FRAG_N;
        uint bits = 0;
#define DROPOUT_KEY(slot) TILE_KEY((slot) - firstKey)
        [[dont_unroll]] for (uint c = 0; c < FRAG_N; c += 4) {
            uint keep;
            KEPT_OF_SLOTS(keep, row, firstKey + col + c, SPARSE_TOKENS != 0, DROPOUT_KEY)
            bits |= keep << c;
        }
        const uint at = keptWordAt(i);
        smem[at / 4][at % 4] = bits;
    }
    subgroupSync();
    [[unroll]] for (uint f = 0; f < S_FRAGS; ++f) {
        rowSum[f / KV_FRAGS] = coopMatMulAdd(P[f], FragOnes(1.0), rowSum[f / KV_FRAGS]);
        dropElements(S[f], keptWordAt(f * FRAG_M))
        toOperandA(P[f], S[f]);
    }
}
#endif
