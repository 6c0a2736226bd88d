// How O leaves forward_coopmat.comp: macros over the variables of its main, and, with GENERAL, which invocation stores what.

// Eight elements of O, packed, of a row of this subgroup.
#if GENERAL
#define STORE_O8(row, col, words) store8O(oBlock, elementO(rowBase + (row)) + (col), words, max(HEAD_DIM_V, col) - (col))
#else
#define STORE_O8(row, col, words) storeO8(oBlock, row, col, words)
#endif

#if NV2
// O leaves in pairs of neighbouring fragments, rounded to storage and side by side in the subgroup's
// scratch, which is as large as two of them: each lane then stores 16 bytes, next to its neighbours'. The
// pair is a literal: in a loop over pairs with a barrier inside O would not stay in registers.
const uint PAIRS = (DV_FRAGS + 1) / 2;  // of a row fragment
const uint MAX_PAIRS = SUBGROUP_BARRIER != 0 ? 16 : 4; // that are written out in main; drivers on the CPU compile each of them for long
const uint PAIR_ROW_VECS = 2 * FRAG_N / 8;   // SCRATCH_STRIDE is as many, or one more
const uint PAIR_STEPS = (FRAG_M * PAIR_ROW_VECS + SUBGROUP_SIZE - 1) / SUBGROUP_SIZE;
#define STORE_PAIR(pair)                                                                            \
    if ((pair) < M_FRAGS * PAIRS) {                                                               \
        const uint r = (pair) / PAIRS, first = (pair) % PAIRS * 2;                                  \
        subgroupSync();                                                                             \
        [[unroll]] for (uint t = 0; t < 2; ++t) {                                                   \
            if (first + t < DV_FRAGS) {                                                            \
                const bool live = (pair) < M_FRAGS * PAIRS && first + t < DV_FRAGS; /* or dead code */ \
                FragC whole = O[live ? r * DV_FRAGS + first + t : 0] * inverse[live ? r : 0];    \
                FragA rounded;                                                                      \
                toStorage(rounded, whole);                                                          \
                coopMatStore(rounded, smem, subgroupScratch() + t * FRAG_N / 8, SCRATCH_STRIDE,         \
                             gl_CooperativeMatrixLayoutRowMajor);                                   \
            }                                                                                       \
        }                                                                                           \
        subgroupSync();                                                                             \
        [[unroll]] for (uint at0 = 0; at0 < FRAG_M * PAIR_ROW_VECS; at0 += SUBGROUP_SIZE) {             \
            const uint at = at0 + gl_SubgroupInvocationID, row = r * FRAG_M + at / PAIR_ROW_VECS;       \
            const uint sliceCol = first * FRAG_N + at % PAIR_ROW_VECS * 8, col = work.col0 + sliceCol;          \
            if (at < FRAG_M * PAIR_ROW_VECS && sliceCol < DV_FRAGS * FRAG_N && rowBase + row < ROWS && col < HEAD_DIM_V) \
                STORE_O8(row, col, smem[subgroupScratch() + at / PAIR_ROW_VECS * SCRATCH_STRIDE + at % PAIR_ROW_VECS]); \
        }                                                                                           \
    }
#endif

#if GENERAL
// How O leaves: by STORE_STATE_PASS, by STORE_PAIR, or fragment by fragment.
const uint FEW_PASSES = M_FRAGS * STATE_PASSES <= MAX_PASSES ? 1 : 0;
const uint USE_PASSES = SPLIT * FEW_PASSES;
#if NV2
const uint FEW_PAIRS = M_FRAGS * PAIRS <= MAX_PAIRS ? 1 : 0;
const uint USE_PAIRS = (1 - SPLIT) * FEW_PAIRS;
const uint PAIR_STORES = M_FRAGS * PAIRS * PAIR_STEPS;
#else
const uint USE_PAIRS = 0, PAIR_STORES = 0;
#endif
const uint PASS_STORES = M_FRAGS * STATE_PASSES * PASS_STEPS;
const uint EPILOGUE_STORES = USE_PASSES != 0 ? PASS_STORES : USE_PAIRS != 0 ? PAIR_STORES : M_FRAGS * DV_FRAGS * LANE_VECS;

// Where the columns begin that an invocation stores as its n-th, of EPILOGUE_STORES: row of the subgroup, column of the slice. They
// are eight, or four of a part. False where there are none.
bool epilogueColumns(uint n, out uint row, out uint sliceCol) {
    const uint lane = gl_SubgroupInvocationID;
    if (USE_PASSES != 0) {
        const uint pass = n / PASS_STEPS, at = n % PASS_STEPS * SUBGROUP_SIZE + lane;
        row = pass / STATE_PASSES * FRAG_M + at / PASS_ROW_QUADS;
        sliceCol = pass % STATE_PASSES * PASS_FRAGS * FRAG_N + at % PASS_ROW_QUADS * 4;
        return at < FRAG_M * PASS_ROW_QUADS && sliceCol < DV_FRAGS * FRAG_N;
    }
#if NV2
    if (USE_PAIRS != 0) {
        const uint pair = n / PAIR_STEPS, at = n % PAIR_STEPS * SUBGROUP_SIZE + lane;
        row = pair / PAIRS * FRAG_M + at / PAIR_ROW_VECS;
        sliceCol = pair % PAIRS * 2 * FRAG_N + at % PAIR_ROW_VECS * 8;
        return at < FRAG_M * PAIR_ROW_VECS && sliceCol < DV_FRAGS * FRAG_N;
    }
#endif
    const uint i = n / LANE_VECS, group = n % LANE_VECS * SUBGROUP_SIZE + lane;
    row = i / DV_FRAGS * FRAG_M + group / (FRAG_N / 8);
    sliceCol = i % DV_FRAGS * FRAG_N + group % (FRAG_N / 8) * 8;
    return group < FRAG_VECS;
}
#define EPILOGUE_BY_PAIR (USE_PAIRS != 0)
#define EPILOGUE_BY_FRAGMENT (USE_PASSES + USE_PAIRS == 0)
#else
#define EPILOGUE_BY_PAIR (M_FRAGS * PAIRS <= MAX_PAIRS && (CAUSAL == 0 || nonFiniteSeen == 0))
#define EPILOGUE_BY_FRAGMENT true
#endif
