// What the epilogue of the forward kernels of 16-bit types calls.

#if GENERAL
// -- partial states -------------------------------------------------------------------------------
// Epilogue of a split: its partial O, float32. As many fragments as fit into the subgroup's share of the KV tile's
// shared memory pass through it at a time, and are stored row by row: when decoding, few rows of a fragment exist.
// The pass is a literal: in a loop over passes with a barrier inside O would not stay in registers.

const uint SUBGROUP_SMEM = KV_SIZE / SUBGROUPS > SCRATCH_SIZE ? KV_SIZE / SUBGROUPS : SCRATCH_SIZE;
const uint FITTING_FRAGS = (SUBGROUP_SMEM / FRAG_M - 1) / (FRAG_N / 4);       // in rows of odd length
const uint PASS_FRAGS_ = FITTING_FRAGS > DV_FRAGS ? DV_FRAGS : FITTING_FRAGS;
const uint PASS_FRAGS = PASS_FRAGS_ > 0 ? PASS_FRAGS_ : 1;
const uint STATE_PASSES = (DV_FRAGS + PASS_FRAGS - 1) / PASS_FRAGS;     // per row fragment
const uint MAX_PASSES = 4;                                  // main writes out STORE_STATE_PASS this often
const uint PASS_ROW_QUADS = PASS_FRAGS * FRAG_N / 4, PASS_STRIDE = PASS_ROW_QUADS | 1;
const uint PASS_STEPS = (FRAG_M * PASS_ROW_QUADS + SUBGROUP_SIZE - 1) / SUBGROUP_SIZE;
#define STORE_STATE_PASS(pass)                                                                      \
    if ((pass) < M_FRAGS * STATE_PASSES) {                                                          \
        const uint r = (pass) / STATE_PASSES, first = (pass) % STATE_PASSES * PASS_FRAGS;           \
        subgroupSync();                                                                             \
        [[unroll]] for (uint t = 0; t < PASS_FRAGS; ++t) {                                          \
            if (first + t < DV_FRAGS) {                                                             \
                const bool live = (pass) < M_FRAGS * STATE_PASSES && first + t < DV_FRAGS; /* false in dead code only */ \
                FragC whole = O[live ? r * DV_FRAGS + first + t : 0] * inverse[live ? r : 0];       \
                coopMatStore(whole, smem, gl_SubgroupID * SUBGROUP_SMEM + t * (FRAG_N / 4), PASS_STRIDE, \
                             gl_CooperativeMatrixLayoutRowMajor);                                   \
            }                                                                                       \
        }                                                                                           \
        subgroupSync();                                                                             \
        const uint rows = min(max(ROWS, rowBase + r * FRAG_M) - (rowBase + r * FRAG_M), FRAG_M);    \
        [[dont_unroll]] for (uint at = gl_SubgroupInvocationID; at < rows * PASS_ROW_QUADS; at += SUBGROUP_SIZE) { \
            const uint row = at / PASS_ROW_QUADS, sliceCol = first * FRAG_N + at % PASS_ROW_QUADS * 4, col = work.col0 + sliceCol; \
            if (sliceCol < DV_FRAGS * FRAG_N && col < HEAD_DIM_V)                                   \
                storeState4(rowBase + r * FRAG_M + row, col,                                        \
                            uintBitsToFloat(smem[gl_SubgroupID * SUBGROUP_SMEM + row * PASS_STRIDE + at % PASS_ROW_QUADS])); \
        }                                                                                           \
    }
#endif

#if NV2
// -- pairs of elements ----------------------------------------------------------------------------
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
#endif

#if GENERAL
// -- order ----------------------------------------------------------------------------------------
// Which of the three epilogues stores O in calls with options, and the columns that an invocation stores in it.
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

// Row of the subgroup and column of the slice that this invocation stores as its n-th of EPILOGUE_STORES. It stores
// eight columns, or four in passes. False if there are none.
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
#endif
