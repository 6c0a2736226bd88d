// Gradients from fragments to memory. Macros over the variables of main.

// Stores fragment n of a gradient, times factor, by way of scratch: eight columns a lane rounded to storage (STORE_EIGHT)
// if WIDE, else four float32 columns (STORE_FOUR). Both are called with (row, col, value), the row within the subgroup's
// rows. n is a literal: in a loop with a barrier inside, the accumulators would not stay in registers.
#define STORE_FRAGMENT(acc, chunks, factor, WIDE, STORE_EIGHT, STORE_FOUR, n)                       \
    if ((n) < M_FRAGS * (chunks)) {                                                                 \
        FragC whole = acc[(n) < M_FRAGS * (chunks) ? (n) : 0] * (factor);                           \
        fragmentToScratch(whole);                                                                   \
        const uint row0_ = (n) / (chunks) * FRAG_M, col0_ = (n) % (chunks) * FRAG_N;                \
        if (WIDE) {                                                                                 \
            [[unroll]] for (uint s = 0; s < LANE_VECS; ++s) {                                       \
                const uint group = s * SUBGROUP_SIZE + gl_SubgroupInvocationID;                     \
                if (group < FRAG_VECS)                                                              \
                    STORE_EIGHT(row0_ + group / (FRAG_N / 8), col0_ + group % (FRAG_N / 8) * 8, packScratch8(group)) \
            }                                                                                       \
        } else {                                                                                    \
            [[dont_unroll]] for (uint at = gl_SubgroupInvocationID; at < FRAG_M * FRAG_N / 4; at += SUBGROUP_SIZE) { \
                const uint row_ = at / (FRAG_N / 4), quad = at % (FRAG_N / 4);                      \
                STORE_FOUR(row0_ + row_, col0_ + quad * 4,                                          \
                           uintBitsToFloat(smem[subgroupScratch() + row_ * SCRATCH_STRIDE + quad])) \
            }                                                                                       \
        }                                                                                           \
    }
#define STORE_4(acc, chunks, factor, WIDE, STORE_EIGHT, STORE_FOUR, n)                              \
    STORE_FRAGMENT(acc, chunks, factor, WIDE, STORE_EIGHT, STORE_FOUR, n)                           \
    STORE_FRAGMENT(acc, chunks, factor, WIDE, STORE_EIGHT, STORE_FOUR, (n) + 1)                     \
    STORE_FRAGMENT(acc, chunks, factor, WIDE, STORE_EIGHT, STORE_FOUR, (n) + 2)                     \
    STORE_FRAGMENT(acc, chunks, factor, WIDE, STORE_EIGHT, STORE_FOUR, (n) + 3)
// All fragments of a gradient. M_FRAGS * chunks is at most 16: more do not fit in registers.
#define STORE_GRADIENT(acc, chunks, factor, WIDE, STORE_EIGHT, STORE_FOUR)                          \
    STORE_4(acc, chunks, factor, WIDE, STORE_EIGHT, STORE_FOUR, 0)                                  \
    STORE_4(acc, chunks, factor, WIDE, STORE_EIGHT, STORE_FOUR, 4)                                  \
    STORE_4(acc, chunks, factor, WIDE, STORE_EIGHT, STORE_FOUR, 8)                                  \
    STORE_4(acc, chunks, factor, WIDE, STORE_EIGHT, STORE_FOUR, 12)
