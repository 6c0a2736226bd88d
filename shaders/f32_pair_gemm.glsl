// The products of the loop with pairs of float16 (f32_pairs.glsl): as f32_gemm.glsl, with three products in place of six.

PairA pairQ[PAIR * M_FRAGS * QK_CHUNKS];
PairA pairP[PAIR * M_FRAGS]; // of a column of fragments of P

#define PAIR_FENCE if (PAIR_FENCES != 0) subgroupMemoryBarrierShared();
#define THREE_PRODUCTS(LIVE, A, LOAD_B)                                                             \
    PairB b[PAIR_GROUP];                                                                            \
    FragC sum[PAIR_GROUP * M_FRAGS];                                                                \
    [[unroll]] for (uint f = 0; f < PAIR_GROUP * M_FRAGS; ++f) sum[f] = FragC(0.0);                 \
    LOAD_TERM_OF(PAIR_GROUP, PAIR_LO, LIVE, LOAD_B)                                                 \
    PRODUCT_OF(PAIR_GROUP, PAIR_HI, LIVE, A)                                                        \
    LOAD_TERM_OF(PAIR_GROUP, PAIR_HI, LIVE, LOAD_B)                                                 \
    PRODUCT_OF(PAIR_GROUP, PAIR_LO, LIVE, A)                                                        \
    PRODUCT_OF(PAIR_GROUP, PAIR_HI, LIVE, A)

// pairP = P 2^7 = exp2(scale * S - row max + 7), and adds it to the float32 row sum.
void softmaxPairs() {
    [[unroll]] for (uint f = 0; f < M_FRAGS * KV_FRAGS; ++f) {
        [[unroll]] for (uint e = 0; e < LIVE_ELEMENTS(S[f]); ++e) {
            const float x = fma(S[f][e], scale, PAIR_P_SHIFT - rowMax[f / KV_FRAGS][e]);
            S[f][e] = EXP2_SCORE(x);
        }
        ADD_TO_ROW_SUM_F32(f / KV_FRAGS, S[f])
    }
}

// The pairs of an accumulator of float32 as operands A: f32_operands.glsl with two terms.
#if NV2
#define PAIRS_OF_FRAGMENT(r, x)                                                                     \
    {                                                                                               \
        FragC hi;                                                                                   \
        [[unroll]] for (uint e = 0; e < x.length(); ++e) {                                          \
            float rest = x[e];                                                                      \
            hi[e] = takeHalf(rest);                                                                 \
            x[e] = rest;                                                                            \
        }                                                                                           \
        pairP[PAIR_HI * M_FRAGS + r] = PairA(hi);                                                   \
        pairP[PAIR_LO * M_FRAGS + r] = PairA(x);                                                    \
    }
#else
#define PAIRS_OF_FRAGMENT(r, x)                                                                     \
    {                                                                                               \
        fragmentToScratch(x);                                                                       \
        uvec4 hi[LANE_VECS], lo[LANE_VECS];                                                         \
        [[unroll]] for (uint s = 0; s < LANE_VECS; ++s) {                                           \
            const uint group = s * SUBGROUP_SIZE + gl_SubgroupInvocationID;                         \
            const uint at = subgroupScratch() + group / (FRAG_N / 8) * SCRATCH_STRIDE + group % (FRAG_N / 8) * 2; \
            if (group < FRAG_VECS) {                                                                \
                const vec4 scaled[2] = vec4[2](uintBitsToFloat(smem[at]) / PAIR_SCALE, uintBitsToFloat(smem[at + 1]) / PAIR_SCALE); \
                hi[s] = floatBitsToUint(scaled[0]);                                                 \
                lo[s] = floatBitsToUint(scaled[1]);                                                 \
                splitPairs(hi[s], lo[s]);                                                           \
            }                                                                                       \
        }                                                                                           \
        subgroupSync();                                                                             \
        [[unroll]] for (uint s = 0; s < LANE_VECS; ++s) {                                           \
            const uint group = s * SUBGROUP_SIZE + gl_SubgroupInvocationID;                         \
            const uint at = subgroupScratch() + group / CHUNK_VECS * TERMS_STRIDE + group % CHUNK_VECS; \
            if (group < FRAG_VECS) {                                                                \
                smem[at] = hi[s];                                                                   \
                smem[at + CHUNK_VECS] = lo[s];                                                      \
            }                                                                                       \
        }                                                                                           \
        subgroupSync();                                                                             \
        [[unroll]] for (uint term = 0; term < PAIR; ++term)                                         \
            coopMatLoad(pairP[term * M_FRAGS + r], smem, subgroupScratch() + term * CHUNK_VECS, TERMS_STRIDE, gl_CooperativeMatrixLayoutRowMajor); \
    }
#endif
#define PAIRS_OF_P(r, x)                                                                            \
    if (TERMS_IN_SMEM != 0) PAIRS_OF_FRAGMENT(r, x)                                                 \
    else {                                                                                          \
        [[unroll]] for (uint e = 0; e < x.length(); ++e) {                                          \
            float rest = x[e];                                                                      \
            pairP[PAIR_HI * M_FRAGS + r][e] = float16_t(takeHalf(rest));                            \
            pairP[PAIR_LO * M_FRAGS + r][e] = float16_t(rest);                                      \
        }                                                                                           \
    }

// nextS = Q K^T 2^16. firstKey counts from the start of the KV tile.
#define LIVE_PAIR_CHUNK(g) (i + (g) < QK_CHUNKS)
#define PAIR_Q(term, g, r) pairQ[((term) * M_FRAGS + r) * QK_CHUNKS + (LIVE_PAIR_CHUNK(g) ? i + g : 0)]
#define LOAD_PAIR_K(term, g)                                                                        \
    coopMatLoad(b[g], smem, (firstKey + c * FRAG_N) * PAIR_K_STRIDE + (term) * K_ROW_VECS + (i + g) * CHUNK_VECS, PAIR_K_STRIDE, \
                gl_CooperativeMatrixLayoutColumnMajor);
void gemmPairQK(uint firstKey) {
    [[unroll]] for (uint i = 0; i < QK_CHUNKS; i += PAIR_GROUP) {
        PAIR_FENCE
        [[unroll]] for (uint c = 0; c < KV_FRAGS; ++c) {
            THREE_PRODUCTS(LIVE_PAIR_CHUNK, PAIR_Q, LOAD_PAIR_K)
            [[unroll]] for (uint g = 0; g < PAIR_GROUP; ++g) {
                [[unroll]] for (uint r = 0; r < M_FRAGS; ++r) {
                    if (i + g == 0) nextS[r * KV_FRAGS + c] = sum[r];
                    else if (LIVE_PAIR_CHUNK(g)) nextS[r * KV_FRAGS + c] += sum[g * M_FRAGS + r];
                }
            }
        }
    }
}

// O += P V 2^15.
#define LIVE_PAIR_COLUMNS(g) (i + (g) < DV_FRAGS)
#define PAIR_P(term, g, r) pairP[(term) * M_FRAGS + r]
#define LOAD_PAIR_V(term, g)                                                                        \
    coopMatLoad(b[g], smem, PAIR_V_BASE + (firstKey + c * FRAG_K) * PAIR_V_STRIDE + (term) * V_ROW_VECS + (i + g) * FRAG_N / 8, PAIR_V_STRIDE, \
                gl_CooperativeMatrixLayoutRowMajor);
void gemmPairPV(uint firstKey) {
    [[unroll]] for (uint c = 0; c < KV_FRAGS; ++c) {
        [[unroll]] for (uint r = 0; r < M_FRAGS; ++r) PAIRS_OF_P(r, S[r * KV_FRAGS + c])
        [[unroll]] for (uint i = 0; i < DV_FRAGS; i += PAIR_GROUP) {
            PAIR_FENCE
            THREE_PRODUCTS(LIVE_PAIR_COLUMNS, PAIR_P, LOAD_PAIR_V)
            [[unroll]] for (uint g = 0; g < PAIR_GROUP; ++g)
                [[unroll]] for (uint r = 0; r < M_FRAGS; ++r)
                    if (LIVE_PAIR_COLUMNS(g)) O[r * DV_FRAGS + (LIVE_PAIR_COLUMNS(g) ? i + g : 0)] += sum[g * M_FRAGS + r];
        }
    }
}
