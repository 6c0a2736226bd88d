// Fragments of forward_coopmat_f32.comp and what the KV loop does with them: the products Q K^T and P V as terms and as
// pairs of float16, and V that is not finite.

// -- fragments ------------------------------------------------------------------------------------
// Fragments that a subgroup of forward_coopmat_f32.comp keeps in registers throughout the KV loop, and P as operands.
FragA Q[TERMS * Q_FRAGS];
FragC S[S_FRAGS];         // scores of a KV step, then P
FragC nextS[S_FRAGS];     // scores of the next step
FragC O[O_FRAGS];
FragC rowMax[M_FRAGS];    // lagged
FragA P[TERMS * M_FRAGS]; // the terms of a column of fragments of P

void clearSums() {
    [[unroll]] for (uint r = 0; r < M_FRAGS; ++r) {
        [[unroll]] for (uint i = 0; i < DV_FRAGS; ++i) O[r * DV_FRAGS + i] = FragC(0.0);
        CLEAR_ROW_SUM_F32(r)
    }
}

// softmax.glsl leaves P in float32: gemmPV takes its terms.
#undef toOperandA
#define toOperandA(result, x)
#define OWN_RESCALE
void rescaleRowSum(uint r, FragC factor) {} // RESCALE_ROW_SUM_F32 does all there is
void rescaleO(uint r, FragC factor) {
    [[unroll]] for (uint i = 0; i < DV_FRAGS; ++i) O[r * DV_FRAGS + i] *= factor;
}

// Eight columns of a fragment in scratch.
vec4 scratchQuad(uint row, uint quad) { return uintBitsToFloat(smem[subgroupScratch() + row * SCRATCH_STRIDE + quad]); }


#include "softmax.glsl"

// -- products of terms ----------------------------------------------------------------------------
// The two products of a KV step as six products of terms each (f32_products.glsl). firstKey counts from the start of
// the KV tile. Code behind the KV loop must call neither (docs/log/vulkan.md, 49).

// nextS = Q K^T. Chunks of Q that are not in registers come from shared memory.
#define LIVE_CHUNK(g) (i + (g) < QK_CHUNKS)
#define Q_TERM(term, g, r) Qi[((term) * M_FRAGS + r) * GROUP + g]
#define LOAD_K(term, g)                                                                             \
    coopMatLoad(b[g], smem, (firstKey + c * FRAG_N) * K_STRIDE + (term) * K_ROW_VECS + (DIM_INDEX * QK_CHUNKS + i + g) * CHUNK_VECS, K_STRIDE, \
                gl_CooperativeMatrixLayoutColumnMajor);
void gemmQK(uint firstKey) {
    [[unroll]] for (uint i = 0; i < QK_CHUNKS; i += GROUP) {
        FENCE
        FragA Qi[TERMS * M_FRAGS * GROUP];
        [[unroll]] for (uint n = 0; n < TERMS * M_FRAGS * GROUP; ++n) {
            const uint t = n / GROUP, chunk = i + n % GROUP; // t: term and row fragment
            if (chunk < Q_REG_CHUNKS) Qi[n] = Q[chunk < Q_REG_CHUNKS ? t * Q_REG_CHUNKS + chunk : 0];
            else if (chunk < QK_CHUNKS)
                coopMatLoad(Qi[n], smem, Q_BASE + (gl_SubgroupID * SUBGROUP_ROWS + t % M_FRAGS * FRAG_M) * Q_STRIDE
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
    coopMatLoad(b[g], smem, V_BASE + (firstKey + c * FRAG_K) * V_STRIDE + (term) * V_ROW_VECS + (DIM_INDEX * DV_FRAGS + i + g) * FRAG_N / 8, V_STRIDE, \
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

// -- products of pairs ----------------------------------------------------------------------------
// The products of the loop with pairs of float16 (f32_load.glsl): as above, with three products in place of six.

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

// The pairs of an accumulator of float32 as operands A: f32_products.glsl with two terms.
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
    coopMatLoad(b[g], smem, (firstKey + c * FRAG_N) * PAIR_K_STRIDE + (term) * K_ROW_VECS + (DIM_INDEX * QK_CHUNKS + i + g) * CHUNK_VECS, PAIR_K_STRIDE, \
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
    coopMatLoad(b[g], smem, PAIR_V_BASE + (firstKey + c * FRAG_K) * PAIR_V_STRIDE + (term) * V_ROW_VECS + (DIM_INDEX * DV_FRAGS + i + g) * FRAG_N / 8, PAIR_V_STRIDE, \
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

// -- partial scores -------------------------------------------------------------------------------
// With DIM_SPLIT 2 each subgroup of a pair multiplies its half of the columns of Q and K. nextS is then a partial score, which
// goes to the other subgroup through shared memory, as it lies among the lanes: store, workgroup barrier, add. Both get the
// same bits, and the same P.
uint partialAt(uint subgroup, uint f) { return PARTIAL_BASE + (subgroup * S_FRAGS + f) * PARTIAL_SIZE + gl_SubgroupInvocationID; }
void storePartialScores() {
    [[unroll]] for (uint f = 0; f < S_FRAGS; ++f)
        [[unroll]] for (uint e = 0; e < nextS[f].length(); e += 4)
            smem[partialAt(gl_SubgroupID, f) + e / 4 * SUBGROUP_SIZE] = floatBitsToUint(vec4(nextS[f][e], nextS[f][e + 1], nextS[f][e + 2], nextS[f][e + 3]));
}
void addPartialScores() {
    [[unroll]] for (uint f = 0; f < S_FRAGS; ++f)
        [[unroll]] for (uint e = 0; e < nextS[f].length(); e += 4) {
            const vec4 other = uintBitsToFloat(smem[partialAt(gl_SubgroupID ^ 1, f) + e / 4 * SUBGROUP_SIZE]);
            [[unroll]] for (uint i = 0; i < 4; ++i) nextS[f][e + i] += other[i];
        }
}

// -- Inf and NaN in V -----------------------------------------------------------------------------
// Inf and NaN in V of float32, as in forward_load.glsl: masked tiles are multiplied without them, and the epilogue adds
// them to the rows that attend to such a key, while a fragment of O is in scratch.
void addToScratch(uint row, uint col, float x) { storeScratch(row, col, loadScratch(row, col) + x); }

// Adds the Inf and NaN of four columns from col on, of the keys from firstKey on, to a row of the fragment in scratch.
void addNonFinite(WorkTile work, uint fragRow, uint fragCol, uint row, uint col, uint firstKey) {
    const uint end = visibleKeys(row);
    for (uint key = firstKey; key < end; ++key) {
        const uvec4 v = load4V(sliceV(work.batch, work.kvHead, key), col, elementsFromV(col));
        for (uint e = 0; e < 4; ++e) {
            const float x = uintBitsToFloat(v[e]);
            if (nonFinite(x)) addToScratch(fragRow, fragCol + e, x);
        }
    }
}
