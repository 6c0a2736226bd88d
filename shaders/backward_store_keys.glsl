// Part of main of the kernels of dK and dV: how STORE_GRADIENT stores their keys.
    // A key past the end of its sequence has gradient 0; adding that changes nothing.
#define STORES(row) (keyBase + (row) < extentKeys && (ACCUMULATE == 0 || keyBase + (row) < work.seqlenK))
#define EXISTS(row) (keyBase + (row) < work.seqlenK)
#define STORE_DV8(row, col, words)                                                                  \
    { if (STORES(row) && (col) < HEAD_DIM_V) storeEightDV(outDV, (row) * p.strideDVSeq + (col), EXISTS(row) ? words : uvec4(0)); }
#define STORE_DV4(row, col, four)                                                                   \
    { if (STORES(row)) storeFourDV(outDV, (row) * p.strideDVSeq, col, EXISTS(row) ? four : vec4(0.0)); }
#define STORE_DK8(row, col, words)                                                                  \
    { if (STORES(row) && (col) < HEAD_DIM) storeEightDX(outDK, (row) * p.strideDXSeq + (col), EXISTS(row) ? words : uvec4(0)); }
#define STORE_DK4(row, col, four)                                                                   \
    { if (STORES(row)) storeFourDX(outDK, (row) * p.strideDXSeq, col, EXISTS(row) ? four : vec4(0.0)); }
// Each invocation corrects what it has stored of dV.
#define CORRECT_DV(chunks)                                                                          \
    if ((seen & SEEN_NON_FINITE) != 0) {                                                            \
        const uint columns = WIDE_DV ? 8 : 4, quads = FRAG_N / columns;                             \
        [[dont_unroll]] for (uint f = 0; f < M_FRAGS * (chunks); ++f)                               \
            [[dont_unroll]] for (uint at = gl_SubgroupInvocationID; at < FRAG_M * quads; at += SUBGROUP_SIZE) { \
                const uint row = f / (chunks) * FRAG_M + at / quads, col = f % (chunks) * FRAG_N + at % quads * columns; \
                if (EXISTS(row)) addNonFiniteDO(outDV, tiles, keyBase + row, row, col, columns);    \
            }                                                                                       \
    }
