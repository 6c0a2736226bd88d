// The accumulators of a subgroup, rounded to storage, in pairs of fragments through scratch at the start of smem.
#define STORE_PAIR(acc, frags, out, rowVecs, factor, rowBase_, headRow_, rows_, pair)                                          \
    if ((pair) < M_FRAGS * (((frags) + 1) / 2)) {                                                   \
        const uint pairs = ((frags) + 1) / 2, r = (pair) / pairs, f0 = (pair) % pairs * 2;          \
        const uint scratch = gl_SubgroupID * FRAG_M * PAIR_STRIDE;                                  \
        subgroupSync();                                                                             \
        [[unroll]] for (uint t = 0; t < 2; ++t) {                                                   \
            if (f0 + t < (frags)) {                                                                 \
                const bool live = (pair) < M_FRAGS * (((frags) + 1) / 2) && f0 + t < (frags);       \
                FragC whole = acc[live ? r * (frags) + f0 + t : 0] * (factor);                      \
                FragA rounded;                                                                      \
                roundedA(rounded, whole)                                                            \
                coopMatStore(rounded, smem, scratch + t * FRAG_N / 8, PAIR_STRIDE, ROW_MAJOR);      \
            }                                                                                       \
        }                                                                                           \
        subgroupSync();                                                                             \
        [[unroll]] for (uint at0 = 0; at0 < FRAG_M * PAIR_VECS; at0 += SUBGROUP_SIZE) {             \
            const uint at = at0 + gl_SubgroupInvocationID, row_ = (rowBase_) + r * FRAG_M + at / PAIR_VECS; \
            const uint col = f0 * FRAG_N / 8 + at % PAIR_VECS;                                      \
            if (at < FRAG_M * PAIR_VECS && col < (rowVecs) && row_ < (rows_))                           \
                out[((headRow_) + row_) * (rowVecs) + col] = smem[scratch + at / PAIR_VECS * PAIR_STRIDE + at % PAIR_VECS]; \
        }                                                                                           \
    }
#define STORE_ACC(acc, frags, out, rowVecs, factor, rowBase_, headRow_, rows_)                                                 \
    STORE_PAIR(acc, frags, out, rowVecs, factor, rowBase_, headRow_, rows_, 0) STORE_PAIR(acc, frags, out, rowVecs, factor, rowBase_, headRow_, rows_, 1) \
    STORE_PAIR(acc, frags, out, rowVecs, factor, rowBase_, headRow_, rows_, 2) STORE_PAIR(acc, frags, out, rowVecs, factor, rowBase_, headRow_, rows_, 3) \
    STORE_PAIR(acc, frags, out, rowVecs, factor, rowBase_, headRow_, rows_, 4) STORE_PAIR(acc, frags, out, rowVecs, factor, rowBase_, headRow_, rows_, 5) \
    STORE_PAIR(acc, frags, out, rowVecs, factor, rowBase_, headRow_, rows_, 6) STORE_PAIR(acc, frags, out, rowVecs, factor, rowBase_, headRow_, rows_, 7) \
    STORE_PAIR(acc, frags, out, rowVecs, factor, rowBase_, headRow_, rows_, 8) \
    STORE_PAIR(acc, frags, out, rowVecs, factor, rowBase_, headRow_, rows_, 9) \
    STORE_PAIR(acc, frags, out, rowVecs, factor, rowBase_, headRow_, rows_, 10) \
    STORE_PAIR(acc, frags, out, rowVecs, factor, rowBase_, headRow_, rows_, 11) \
    STORE_PAIR(acc, frags, out, rowVecs, factor, rowBase_, headRow_, rows_, 12) \
    STORE_PAIR(acc, frags, out, rowVecs, factor, rowBase_, headRow_, rows_, 13) \
    STORE_PAIR(acc, frags, out, rowVecs, factor, rowBase_, headRow_, rows_, 14) \
    STORE_PAIR(acc, frags, out, rowVecs, factor, rowBase_, headRow_, rows_, 15)
