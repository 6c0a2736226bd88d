// The products of a subgroup of a pair with a row tile that starts at smem[base], as six products of terms each
// (f32_products.glsl). Code behind the row loop must call neither function (docs/log/vulkan.md, 49).
#include "f32_products.glsl"

FragA own[TERMS * M_FRAGS * (OWN_REG_CHUNKS > 0 ? OWN_REG_CHUNKS : 1)]; // K or V
FragC X[M_FRAGS * ROW_FRAGS]; // keys by rows: S, then P; or dP, then dS
FragA P[TERMS * M_FRAGS];     // the terms of a column of fragments of X

// X = own rows^T. Chunks of own that are not in registers come from shared memory.
#define LIVE_CHUNK(g) (i + (g) < CHUNKS)
#define OWN_TERM(term, g, r) ownChunk[((term) * M_FRAGS + r) * GROUP + g]
#define LOAD_CHUNK(term, g)                                                                         \
    coopMatLoad(b[g], smem, base + c * FRAG_N * STRIDE + (term) * ROW_VECS + (i + g) * CHUNK_VECS, STRIDE, COLUMN_MAJOR);
void multiplyOwn(uint base) {
    [[unroll]] for (uint i = 0; i < CHUNKS; i += GROUP) {
        FENCE
        FragA ownChunk[TERMS * M_FRAGS * GROUP];
        [[unroll]] for (uint n = 0; n < TERMS * M_FRAGS * GROUP; ++n) {
            const uint t = n / GROUP, chunk = i + n % GROUP; // t: term and fragment of keys
            if (chunk < OWN_REG_CHUNKS) ownChunk[n] = own[chunk < OWN_REG_CHUNKS ? t * OWN_REG_CHUNKS + chunk : 0];
            else if (chunk < CHUNKS)
                coopMatLoad(ownChunk[n], smem, OWN_BASE + (gl_SubgroupID * SUBGROUP_KEYS + t % M_FRAGS * FRAG_M) * OWN_STRIDE
                            + t / M_FRAGS * OWN_VECS + (chunk - OWN_REG_CHUNKS) * CHUNK_VECS, OWN_STRIDE, ROW_MAJOR);
        }
        [[unroll]] for (uint c = 0; c < ROW_FRAGS; ++c) {
            SIX_PRODUCTS(LIVE_CHUNK, OWN_TERM, LOAD_CHUNK)
            [[unroll]] for (uint g = 0; g < GROUP; ++g) {
                [[unroll]] for (uint r = 0; r < M_FRAGS; ++r) {
                    if (i + g == 0) X[r * ROW_FRAGS + c] = sum[r];
                    else if (LIVE_CHUNK(g)) X[r * ROW_FRAGS + c] += sum[g * M_FRAGS + r];
                }
            }
        }
    }
}

#ifdef HAS_GRADIENT
FragC gradient[M_FRAGS * CHUNKS]; // dV or dK

// gradient += X rows.
#define X_TERM(term, g, r) P[(term) * M_FRAGS + r]
#define LOAD_ROWS(term, g)                                                                          \
    coopMatLoad(b[g], smem, base + c * FRAG_K * STRIDE + (term) * ROW_VECS + (i + g) * FRAG_N / 8, STRIDE, ROW_MAJOR);
void addGradient(uint base) {
    [[unroll]] for (uint c = 0; c < ROW_FRAGS; ++c) {
        [[unroll]] for (uint r = 0; r < M_FRAGS; ++r) TERMS_OF_P(r, X[r * ROW_FRAGS + c])
        [[unroll]] for (uint i = 0; i < CHUNKS; i += GROUP) {
            FENCE
            SIX_PRODUCTS(LIVE_CHUNK, X_TERM, LOAD_ROWS)
            [[unroll]] for (uint g = 0; g < GROUP; ++g)
                [[unroll]] for (uint r = 0; r < M_FRAGS; ++r)
                    if (LIVE_CHUNK(g)) gradient[r * CHUNKS + (LIVE_CHUNK(g) ? i + g : 0)] += sum[g * M_FRAGS + r];
        }
    }
}
#endif
