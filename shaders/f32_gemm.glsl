// The two products of a KV step as six products of terms each (f32_products.glsl). firstKey counts from the start of the KV
// tile. Code behind the KV loop must call neither (docs/log.md, 49).
#include "f32_products.glsl"

// nextS = Q K^T. Chunks of Q that are not in registers come from shared memory.
#define LIVE_CHUNK(g) (i + (g) < QK_CHUNKS)
#define Q_TERM(term, g, r) Qi[((term) * M_FRAGS + r) * GROUP + g]
#define LOAD_K(term, g)                                                                             \
    coopMatLoad(b[g], smem, (firstKey + c * FRAG_N) * K_STRIDE + (term) * K_ROW_VECS + (i + g) * CHUNK_VECS, K_STRIDE, \
                gl_CooperativeMatrixLayoutColumnMajor);
void gemmQK(uint firstKey) {
    [[unroll]] for (uint i = 0; i < QK_CHUNKS; i += GROUP) {
        FENCE
        FragA Qi[TERMS * M_FRAGS * GROUP];
        [[unroll]] for (uint n = 0; n < TERMS * M_FRAGS * GROUP; ++n) {
            const uint t = n / GROUP, chunk = i + n % GROUP; // t: term and row fragment
            if (chunk < Q_REG_CHUNKS) Qi[n] = Q[chunk < Q_REG_CHUNKS ? t * Q_REG_CHUNKS + chunk : 0];
            else if (chunk < QK_CHUNKS)
                coopMatLoad(Qi[n], smem, Q_BASE + (SUBGROUP_FIRST_ROW + t % M_FRAGS * FRAG_M) * Q_STRIDE
                            + t / M_FRAGS * Q_ROW_VECS + (chunk - Q_REG_CHUNKS) * CHUNK_VECS, Q_STRIDE, gl_CooperativeMatrixLayoutRowMajor);
        }
        [[unroll]] for (uint c = 0; c < KV_FRAGS; ++c) {
            SIX_PRODUCTS(LIVE_CHUNK, Q_TERM, LOAD_K)
            [[unroll]] for (uint g = 0; g < GROUP; ++g) {
                [[unroll]] for (uint r = 0; r < M_FRAGS; ++r) {
                    if (i + g == 0) nextS[r * KV_FRAGS + c] = sum[r];
                    else if (LIVE_CHUNK(g)) nextS[r * KV_FRAGS + c] += sum[g * M_FRAGS + r];
                }
            }
        }
    }
}

// O += P V.
#define LIVE_COLUMNS(g) (i + (g) < DV_FRAGS)
#define P_TERM(term, g, r) P[(term) * M_FRAGS + r]
#define LOAD_V(term, g)                                                                             \
    coopMatLoad(b[g], smem, V_BASE + (firstKey + c * FRAG_K) * V_STRIDE + (term) * V_ROW_VECS + (i + g) * FRAG_N / 8, V_STRIDE, \
                gl_CooperativeMatrixLayoutRowMajor);
void gemmPV(uint firstKey) {
    [[unroll]] for (uint c = 0; c < KV_FRAGS; ++c) {
        [[unroll]] for (uint r = 0; r < M_FRAGS; ++r) TERMS_OF_P(r, S[r * KV_FRAGS + c])
        [[unroll]] for (uint i = 0; i < DV_FRAGS; i += GROUP) {
            FENCE
            SIX_PRODUCTS(LIVE_COLUMNS, P_TERM, LOAD_V)
            [[unroll]] for (uint g = 0; g < GROUP; ++g)
                [[unroll]] for (uint r = 0; r < M_FRAGS; ++r)
                    if (LIVE_COLUMNS(g)) O[r * DV_FRAGS + (LIVE_COLUMNS(g) ? i + g : 0)] += sum[g * M_FRAGS + r];
        }
    }
}
