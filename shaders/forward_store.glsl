// How O leaves forward_coopmat.comp: macros over the variables of its main, and, with FEATURES, which invocation stores what.

// Eight elements of O, packed, of a row of this subgroup.
#if FEATURES
#define STORE_O8(row, col, words) store8O(oBlock, elementO(myRow + (row)) + (col), words, max(HEAD_DIM_V, col) - (col))
#else
#define STORE_O8(row, col, words) storeO8(oBlock, row, col, words)
#endif

#if NV2
// O leaves in pairs of neighbouring fragments, rounded to storage and side by side in the subgroup's
// scratch, which is as large as two of them: each lane then stores 16 bytes, next to its neighbours'. The
// pair is a literal: in a loop over pairs with a barrier inside O would not stay in registers.
const uint PAIRS = (OUT_TILES + 1) / 2;  // of a row fragment
const uint MOST_PAIRS = SUBGROUP_BARRIER != 0 ? 16 : 4; // that are written out in main; drivers on the CPU compile each of them for long
const uint PAIR_ROW8 = 2 * TILE_N / 8;   // SCRATCH_STRIDE is as many, or one more
const uint PAIR_STEPS = (TILE_M * PAIR_ROW8 + SUBGROUP_SIZE - 1) / SUBGROUP_SIZE;
#define STORE_PAIR(pair)                                                                            \
    if ((pair) < ROW_TILES * PAIRS) {                                                               \
        const uint r = (pair) / PAIRS, first = (pair) % PAIRS * 2;                                  \
        subgroupSync();                                                                             \
        [[unroll]] for (uint t = 0; t < 2; ++t) {                                                   \
            if (first + t < OUT_TILES) {                                                            \
                const bool there = (pair) < ROW_TILES * PAIRS && first + t < OUT_TILES; /* or dead code */ \
                FragC whole = O[there ? r * OUT_TILES + first + t : 0] * inverse[there ? r : 0];    \
                FragA rounded;                                                                      \
                toStorage(rounded, whole);                                                          \
                coopMatStore(rounded, tile, scratchBase() + t * TILE_N / 8, SCRATCH_STRIDE,         \
                             gl_CooperativeMatrixLayoutRowMajor);                                   \
            }                                                                                       \
        }                                                                                           \
        subgroupSync();                                                                             \
        [[unroll]] for (uint at0 = 0; at0 < TILE_M * PAIR_ROW8; at0 += SUBGROUP_SIZE) {             \
            const uint at = at0 + gl_SubgroupInvocationID, row = r * TILE_M + at / PAIR_ROW8;       \
            const uint mine = first * TILE_N + at % PAIR_ROW8 * 8, col = work.col0 + mine;          \
            if (at < TILE_M * PAIR_ROW8 && mine < OUT_TILES * TILE_N && myRow + row < ROWS && col < HEAD_DIM_V) \
                STORE_O8(row, col, tile[scratchBase() + at / PAIR_ROW8 * SCRATCH_STRIDE + at % PAIR_ROW8]); \
        }                                                                                           \
    }
#endif

#if FEATURES
// How O leaves: by STORE_PART, by STORE_PAIR, or fragment by fragment.
const uint FEW_PASSES = ROW_TILES * PASSES <= MOST_PASSES ? 1 : 0;
const uint IN_PARTS = SPLIT * FEW_PASSES;
#if NV2
const uint FEW_PAIRS = ROW_TILES * PAIRS <= MOST_PAIRS ? 1 : 0;
const uint IN_PAIRS = (1 - SPLIT) * FEW_PAIRS;
const uint PAIR_STORES = ROW_TILES * PAIRS * PAIR_STEPS;
#else
const uint IN_PAIRS = 0, PAIR_STORES = 0;
#endif
const uint PART_STORES = ROW_TILES * PASSES * PART_STEPS;
const uint STORES = IN_PARTS != 0 ? PART_STORES : IN_PAIRS != 0 ? PAIR_STORES : ROW_TILES * OUT_TILES * PACK_STEPS;

// Where the columns begin that an invocation stores as its n-th, of STORES: row of the subgroup, column of the slice. They
// are eight, or four of a part. False where there are none.
bool storesAt(uint n, out uint row, out uint mine) {
    const uint lane = gl_SubgroupInvocationID;
    if (IN_PARTS != 0) {
        const uint pass = n / PART_STEPS, at = n % PART_STEPS * SUBGROUP_SIZE + lane;
        row = pass / PASSES * TILE_M + at / PART_ROW4;
        mine = pass % PASSES * AT_ONCE * TILE_N + at % PART_ROW4 * 4;
        return at < TILE_M * PART_ROW4 && mine < OUT_TILES * TILE_N;
    }
#if NV2
    if (IN_PAIRS != 0) {
        const uint pair = n / PAIR_STEPS, at = n % PAIR_STEPS * SUBGROUP_SIZE + lane;
        row = pair / PAIRS * TILE_M + at / PAIR_ROW8;
        mine = pair % PAIRS * 2 * TILE_N + at % PAIR_ROW8 * 8;
        return at < TILE_M * PAIR_ROW8 && mine < OUT_TILES * TILE_N;
    }
#endif
    const uint i = n / PACK_STEPS, group = n % PACK_STEPS * SUBGROUP_SIZE + lane;
    row = i / OUT_TILES * TILE_M + group / (TILE_N / 8);
    mine = i % OUT_TILES * TILE_N + group % (TILE_N / 8) * 8;
    return group < PACK_GROUPS;
}
#define PAIRED (IN_PAIRS != 0)
#define BY_FRAGMENT (IN_PARTS + IN_PAIRS == 0)
#else
#define PAIRED (ROW_TILES * PAIRS <= MOST_PAIRS && (CAUSAL == 0 || nonFiniteSeen == 0))
#define BY_FRAGMENT true
#endif
