// An accumulator of float32 as three operands A of 16 bits, its terms, in P. The kernel declares P.

// P[term * M_FRAGS + r] = terms of x. Vulkan leaves open which lane holds which element of a fragment; TERMS_IN_SMEM is 0
// if the host found one order for accumulators and operands A (fragment_probe.comp). Otherwise
// VK_NV_cooperative_matrix2 converts fragments that hold a term each, and without it terms pass through scratch.
#if NV2
#define TERMS_OF_FRAGMENT(r, x)                                                                     \
    {                                                                                               \
        FragC hi, mid, lo;                                                                          \
        [[unroll]] for (uint e = 0; e < x.length(); ++e) {                                          \
            float rest = x[e];                                                                      \
            hi[e] = float(takeTerm(rest));                                                          \
            mid[e] = float(takeTerm(rest));                                                         \
            lo[e] = float(lastTerm(rest));                                                          \
        }                                                                                           \
        P[HI * M_FRAGS + r] = FragA(hi);                                                            \
        P[MID * M_FRAGS + r] = FragA(mid);                                                          \
        P[LO * M_FRAGS + r] = FragA(lo);                                                            \
    }
#else
#define TERMS_OF_FRAGMENT(r, x)                                                                     \
    {                                                                                               \
        fragmentToScratch(x);                                                                       \
        uvec4 hi[LANE_VECS], mid[LANE_VECS], lo[LANE_VECS];                                         \
        [[unroll]] for (uint s = 0; s < LANE_VECS; ++s) {                                           \
            const uint group = s * SUBGROUP_SIZE + gl_SubgroupInvocationID;                         \
            const uint at = subgroupScratch() + group / (FRAG_N / 8) * SCRATCH_STRIDE + group % (FRAG_N / 8) * 2; \
            if (group < FRAG_VECS) splitTerms(smem[at], smem[at + 1], hi[s], mid[s], lo[s]);        \
        }                                                                                           \
        subgroupSync();                                                                             \
        [[unroll]] for (uint s = 0; s < LANE_VECS; ++s) {                                           \
            const uint group = s * SUBGROUP_SIZE + gl_SubgroupInvocationID;                         \
            if (group < FRAG_VECS) storeTerms(subgroupScratch() + group / CHUNK_VECS * TERMS_STRIDE + group % CHUNK_VECS, CHUNK_VECS, hi[s], mid[s], lo[s]); \
        }                                                                                           \
        subgroupSync();                                                                             \
        [[unroll]] for (uint term = 0; term < TERMS; ++term)                                        \
            coopMatLoad(P[term * M_FRAGS + r], smem, subgroupScratch() + term * CHUNK_VECS, TERMS_STRIDE, gl_CooperativeMatrixLayoutRowMajor); \
    }
#endif
#define TERMS_OF_P(r, x)                                                                            \
    if (TERMS_IN_SMEM != 0) TERMS_OF_FRAGMENT(r, x)                                                 \
    else {                                                                                          \
        [[unroll]] for (uint e = 0; e < x.length(); ++e) {                                          \
            float rest = x[e];                                                                      \
            P[HI * M_FRAGS + r][e] = takeTerm(rest);                                                \
            P[MID * M_FRAGS + r][e] = takeTerm(rest);                                               \
            P[LO * M_FRAGS + r][e] = lastTerm(rest);                                                \
        }                                                                                           \
    }
