// Six products of terms (f32_terms.glsl) that make a product of float32, of GROUP fragments at the same time. The kernel
// defines smem, M_FRAGS and GROUP.
//
// Tensor cores truncate where they add. So the six products of a fragment start at 0, small ones first, and float32
// additions, which round to nearest, add the fragments: the sum over thousands of keys is not biased. A fragment in shared
// memory is loaded once per term and serves all rows and terms of the other factor.

// A hoisted load takes registers. A fence keeps the loads of a chunk behind it (docs/log/vulkan.md, 14).
#define FENCE if (FENCES != 0) subgroupMemoryBarrierShared();

// One product of each of COUNT fragments of K or V: they do not depend on each other, so that the latency of one overlaps
// the next. LIVE(g): there is a fragment g. sum[g * M_FRAGS + r] += A(term, g, r) b[g].
#define PRODUCT_OF(COUNT, term, LIVE, A)                                                            \
    [[unroll]] for (uint g = 0; g < COUNT; ++g)                                                     \
        [[unroll]] for (uint r = 0; r < M_FRAGS; ++r)                                               \
            if (LIVE(g)) sum[g * M_FRAGS + r] = coopMatMulAdd(A(term, g, r), b[g], sum[g * M_FRAGS + r]);
#define PRODUCT(term, LIVE, A) PRODUCT_OF(GROUP, term, LIVE, A)
// LOAD_B(term, g) loads b[g].
#define LOAD_TERM_OF(COUNT, term, LIVE, LOAD_B)                                                     \
    [[unroll]] for (uint g = 0; g < COUNT; ++g)                                                     \
        if (LIVE(g)) LOAD_B(term, g)
#define LOAD_TERM(term, LIVE, LOAD_B) LOAD_TERM_OF(GROUP, term, LIVE, LOAD_B)
#define SIX_PRODUCTS(LIVE, A, LOAD_B)                                                               \
    FragB b[GROUP];                                                                                 \
    FragC sum[GROUP * M_FRAGS];                                                                     \
    [[unroll]] for (uint f = 0; f < GROUP * M_FRAGS; ++f) sum[f] = FragC(0.0);                      \
    LOAD_TERM(LO, LIVE, LOAD_B)                                                                     \
    PRODUCT(HI, LIVE, A)                                                                            \
    LOAD_TERM(MID, LIVE, LOAD_B)                                                                    \
    PRODUCT(MID, LIVE, A)                                                                           \
    PRODUCT(HI, LIVE, A)                                                                            \
    LOAD_TERM(HI, LIVE, LOAD_B)                                                                     \
    PRODUCT(LO, LIVE, A)                                                                            \
    PRODUCT(MID, LIVE, A)                                                                           \
    PRODUCT(HI, LIVE, A)

// -- P as operands --------------------------------------------------------------------------------
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

// -- terms to shared memory -----------------------------------------------------------------------
// The terms of eight elements on their way to shared memory: those of a row follow each other, rowVecs vectors each.
void storeTerms(uint at, uint rowVecs, uvec4 hi, uvec4 mid, uvec4 lo) {
    smem[at] = hi;
    smem[at + rowVecs] = mid;
    smem[at + 2 * rowVecs] = lo;
}
