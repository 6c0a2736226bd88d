// Epilogue with NV2: O leaves in pairs of neighbouring fragments. Both are rounded to storage into the subgroup's
// scratch, which holds two of them, and each lane stores 16 bytes; lanes store contiguous memory. The pair is a
// literal: in a loop over pairs with a barrier inside O would not stay in registers.

const uint PAIRS = (DV_FRAGS + 1) / 2;  // per row fragment
// main writes out STORE_PAIR this often. CPU drivers take long to compile each of them.
const uint MAX_PAIRS = SUBGROUP_BARRIER != 0 ? 16 : 4;
const uint PAIR_ROW_VECS = 2 * FRAG_N / 8;   // SCRATCH_STRIDE or one less
const uint PAIR_STEPS = (FRAG_M * PAIR_ROW_VECS + SUBGROUP_SIZE - 1) / SUBGROUP_SIZE;
#define STORE_PAIR(pair)                                                                            \
    if ((pair) < M_FRAGS * PAIRS) {                                                                 \
        const uint r = (pair) / PAIRS, first = (pair) % PAIRS * 2;                                  \
        subgroupSync();                                                                             \
        [[unroll]] for (uint t = 0; t < 2; ++t) {                                                   \
            if (first + t < DV_FRAGS) {                                                             \
                const bool live = (pair) < M_FRAGS * PAIRS && first + t < DV_FRAGS; /* false in dead code only */ \
                FragC whole = O[live ? r * DV_FRAGS + first + t : 0] * inverse[live ? r : 0];       \
                FragA rounded;                                                                      \
                toStorage(rounded, whole);                                                          \
                coopMatStore(rounded, smem, subgroupScratch() + t * FRAG_N / 8, SCRATCH_STRIDE,     \
                             gl_CooperativeMatrixLayoutRowMajor);                                   \
            }                                                                                       \
        }                                                                                           \
        subgroupSync();                                                                             \
        [[unroll]] for (uint at0 = 0; at0 < FRAG_M * PAIR_ROW_VECS; at0 += SUBGROUP_SIZE) {         \
            const uint at = at0 + gl_SubgroupInvocationID, row = r * FRAG_M + at / PAIR_ROW_VECS;   \
            const uint sliceCol = first * FRAG_N + at % PAIR_ROW_VECS * 8, col = work.col0 + sliceCol; \
            if (at < FRAG_M * PAIR_ROW_VECS && sliceCol < DV_FRAGS * FRAG_N && rowBase + row < ROWS && col < HEAD_DIM_V) \
                STORE_O8(row, col, smem[subgroupScratch() + at / PAIR_ROW_VECS * SCRATCH_STRIDE + at % PAIR_ROW_VECS]); \
        }                                                                                           \
    }
#define STORE_PAIRS                                                                                 \
    STORE_PAIR(0) STORE_PAIR(1) STORE_PAIR(2) STORE_PAIR(3)                                         \
    STORE_PAIR(4) STORE_PAIR(5) STORE_PAIR(6) STORE_PAIR(7)                                         \
    STORE_PAIR(8) STORE_PAIR(9) STORE_PAIR(10) STORE_PAIR(11)                                       \
    STORE_PAIR(12) STORE_PAIR(13) STORE_PAIR(14) STORE_PAIR(15)
