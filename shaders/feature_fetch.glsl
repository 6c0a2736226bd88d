// How modules with GENERAL fetch a tile of K and of V, store it in shared memory, and, with SPLIT, let go of a part
// of O: macros over the variables of forward_coopmat.comp's main.

// Pages are looked up a tile before their keys are fetched, so that a fetch is nothing but loads: one where a tile lies in
// a page, else that of each part's key, the same for K and V where their parts are of the same keys. Keys past the last
// take its page. Numbers stay as the table has them until they are used: who looks at one waits for it.
const bool PREFETCH_PAGES = PAGE_SIZE != 0 && SPARSE_TOKENS == 0;
// Parts are fetched without conditions, but for those of lists: one around more than a load is a branch, and branches let
// loads wait for each other (docs/log.md, 28). Behind the last key that fetches the last one again, which is cleared
// when V is stored.
const bool CLEAR_V_TAIL = SPARSE_TOKENS == 0;
// A subgroup's keys of a tile may always lie in one page: then there is one to look up, and one place to work out, for each
// invocation. Keys behind the last one are of its page, or lie behind it there.
const uint RUN_CROSSES_PAGE = PAGE_SIZE % (KEYS_PER_SUBGROUP > 0 ? KEYS_PER_SUBGROUP : 1);
const uint SUBGROUP_PAGE = PAGE_SIZE == 0 ? 0 : SPARSE_TOKENS != 0 ? 0 : CONTIGUOUS_TILES ? 0 : KEYS_PER_SUBGROUP == 0 ? 0 : RUN_CROSSES_PAGE == 0 ? 1 : 0;
const uint K_PAGE_BASE = 0, V_PAGE_BASE = K_ROW_VECS == V_ROW_VECS ? 0 : K_VECS; // the first of K and of V
const uint LANE_KEYS = SPARSE_TOKENS != 0 || KEY_SCALES ? (KV_TILE + LOCAL_SIZE - 1) / LOCAL_SIZE : 1; // keys an invocation carries
const uint KEY_PAGE_INDICES = SUBGROUP_PAGE != 0 ? 1 : V_PAGE_BASE + V_VECS;
const uint PAGE_INDICES = PREFETCH_PAGES && !CONTIGUOUS_TILES ? KEY_PAGE_INDICES + (KEY_SCALES ? LANE_KEYS : 0) : 1;
#define LOAD_PAGE_INDICES(index)                                                                              \
    {                                                                                               \
        const uint tileIndex = index;                                                               \
        [[unroll]] for (uint i = 0; i < PAGE_INDICES; ++i) {                                               \
            uint key = 0;                                                                           \
            if (!CONTIGUOUS_TILES) key = i >= KEY_PAGE_INDICES ? (i - KEY_PAGE_INDICES) * LOCAL_SIZE + tid             \
                : SUBGROUP_PAGE != 0 ? SUBGROUP_FIRST_KEY : i < K_VECS ? VEC_INDEX(K_VECS, i) / K_ROW_VECS : VEC_INDEX(V_VECS, i - V_PAGE_BASE) / V_ROW_VECS; \
            page[i] = loadPageIndex(min(tileIndex * KV_TILE + key, work.seqlenK - 1));                     \
        }                                                                                           \
    }

// Where keys lie one after another, an invocation's parts of a tile are those of a slice of K and of V, which starts at
// the tile or at the subgroup's own keys; else every part has a place of its own, that of key number `at`. Quantised parts
// travel as they are stored.
#define LOAD_KEY_VEC(T)                                                                                \
    uvec4 loadKeyVec##T(uint page, uint at, uint col) {                                               \
        if (PREFETCH_PAGES) return stored##T##8(rows##T(kvRowInPage(page, min(at, work.seqlenK - 1))), 0, col); \
        const uint token = keyAt(at);                                                               \
        return token == NO_KEY ? uvec4(0) : stored##T##8(rows##T(kvRowOf(token)), 0, col);            \
    }
LOAD_KEY_VEC(K)
LOAD_KEY_VEC(V)

// The scales of a key, of K and of V; of one that does not exist anything finite.
vec2 loadKeyScales(uint page, uint index, uint key) {
    uint at = index * KV_TILE + key;
    if (key >= KV_TILE) return vec2(0.0);
    at = SPARSE_TOKENS != 0 ? keyAt(at) : min(at, work.seqlenK - 1);
    if (at == NO_KEY) return vec2(0.0);
    const KVRow place = PREFETCH_PAGES ? kvRowInPage(page, at) : kvRowOf(at);
    return vec2(rowScaleK(place), rowScaleV(place));
}

// The parts of tile tileIndex that an invocation carries; `column` is the first one of part number `at` of the tile.
#define PREFETCH_VECS(T, parts, column)                                                                     \
    Slice rows_;                                                                                    \
    uint lastKey = 0; /* key of the smem; its end may be that of a page */                             \
    if (SUBGROUP_PAGE != 0) rows_ = rows##T(kvRowInPage(page[0], tileIndex * KV_TILE + SUBGROUP_FIRST_KEY));       \
    else if (CONTIGUOUS_TILES) {                                                                         \
        const uint firstKey = KEYS_PER_SUBGROUP != 0 ? min(tileIndex * KV_TILE + SUBGROUP_FIRST_KEY, work.seqlenK - 1) : tileIndex * KV_TILE; \
        rows_ = rows##T(PREFETCH_PAGES ? kvRowInPage(page[0], firstKey) : kvRowOf(firstKey));              \
        lastKey = min((tileIndex + 1) * KV_TILE, work.seqlenK) - 1 - firstKey;                         \
    }                                                                                               \
    [[unroll]] for (uint i = 0; i < T##_VECS; ++i) {                                               \
        const uint at = VEC_INDEX(T##_VECS, i), place = PAGE_INDICES > 1 && SUBGROUP_PAGE == 0 ? T##_PAGE_BASE + i : 0; \
        const uint key = KEYS_PER_SUBGROUP != 0 ? SUBGROUP_VEC(i) / T##_ROW_VECS : at / T##_ROW_VECS; /* of the slice */ \
        if (SUBGROUP_PAGE != 0) parts[i] = stored##T##8(rows_, key, column);                               \
        else if (CONTIGUOUS_TILES) parts[i] = stored##T##8(rows_, min(key, lastKey), column);                 \
        else parts[i] = loadKeyVec##T(page[place], tileIndex * KV_TILE + at / T##_ROW_VECS, column);   \
    }
#define PREFETCH_K(index)                                                                              \
    {                                                                                               \
        const uint tileIndex = index;                                                               \
        PREFETCH_VECS(K, kVec, at % K_ROW_VECS * 8)                                                            \
        if (SPARSE_TOKENS != 0) {                                                                            \
            [[unroll]] for (uint i = 0; i < LANE_KEYS; ++i)                                         \
                laneKey[i] = keyAt(tileIndex * KV_TILE + i * LOCAL_SIZE + tid);                  \
        }                                                                                           \
        if (KEY_SCALES) {                                                                           \
            [[unroll]] for (uint i = 0; i < LANE_KEYS; ++i)                                         \
                laneScale[i] = loadKeyScales(page[PAGE_INDICES > 1 ? KEY_PAGE_INDICES + i : 0], tileIndex, i * LOCAL_SIZE + tid); \
        }                                                                                           \
    }
#define PREFETCH_V(index)                                                                              \
    {                                                                                               \
        const uint tileIndex = index;                                                               \
        PREFETCH_VECS(V, vVec, work.col0 + at % V_ROW_VECS * 8)                                                \
    }

// What was fetched into shared memory. A masked slot has P = 0, but 0 x Inf is NaN: V is multiplied without
// such values, they are added at the end.
#define STORE_K_TILE                                                                                     \
    {                                                                                               \
        [[unroll]] for (uint i = 0; i < K_VECS; ++i) {                                             \
            const uint at = VEC_INDEX(K_VECS, i);                                                    \
            if (KV_TYPE != 0) kVec[i] = KEY_SCALES ? exactPairs(kVec[i].xy) : dequantize16(kVec[i]); \
            if (KV_TILE * K_ROW_VECS % LOCAL_SIZE == 0 || at < KV_TILE * K_ROW_VECS)                  \
                smem[at / K_ROW_VECS * K_STRIDE + at % K_ROW_VECS] = kVec[i];                \
        }                                                                                           \
    }
#define STORE_KV_SCALES                                                                                \
    if (KEY_SCALES) {                                                                               \
        [[unroll]] for (uint i = 0; i < LANE_KEYS; ++i) {                                           \
            const uint key = i * LOCAL_SIZE + tid;                                                  \
            if (key < KV_TILE && storeScales(key, laneScale[i])) atomicOr(nonFiniteSeen, 1);      \
        }                                                                                           \
    }
#define STORE_V_TILE(masked)                                                                             \
    {                                                                                               \
        [[unroll]] for (uint i = 0; i < V_VECS; ++i) {                                             \
            const uint at = VEC_INDEX(V_VECS, i);                                                    \
            if (KV_TYPE != 0) vVec[i] = KEY_SCALES ? exact16(vVec[i].xy) : dequantize16(vVec[i]); \
            if (masked != 0 && CLEAR_V_TAIL && CURRENT_TILE * KV_TILE + at / V_ROW_VECS >= work.seqlenK) vVec[i] = uvec4(0); \
            if (masked != 0 && ROW_MASKS && KV_TYPE != INT8 && dropNonFinite(vVec[i])) atomicOr(nonFiniteSeen, 1); \
            if (KV_TILE * V_ROW_VECS % LOCAL_SIZE == 0 || at < KV_TILE * V_ROW_VECS)                  \
                smem[V_BASE + at / V_ROW_VECS * V_STRIDE + at % V_ROW_VECS] = vVec[i];      \
        }                                                                                           \
    }

// A part's O leaves in float32, as many fragments at a time as a subgroup's share of the tile has room for, and
// then row by row: few rows of a fragment exist in decoding. A pass is a literal, as the pairs below.
const uint SUBGROUP_SMEM = KV_SIZE / SUBGROUPS > SCRATCH_SIZE ? KV_SIZE / SUBGROUPS : SCRATCH_SIZE; // of a subgroup
const uint FITTING_FRAGS = (SUBGROUP_SMEM / FRAG_M - 1) / (FRAG_N / 4);       // for so many fragments in rows of odd length
const uint PASS_FRAGS_ = FITTING_FRAGS > DV_FRAGS ? DV_FRAGS : FITTING_FRAGS;
const uint PASS_FRAGS = PASS_FRAGS_ > 0 ? PASS_FRAGS_ : 1;
const uint STATE_PASSES = (DV_FRAGS + PASS_FRAGS - 1) / PASS_FRAGS;     // of a row fragment
const uint MAX_PASSES = 4;                                  // that are written out in main
const uint PASS_ROW_QUADS = PASS_FRAGS * FRAG_N / 4, PASS_STRIDE = PASS_ROW_QUADS | 1;
const uint PASS_STEPS = (FRAG_M * PASS_ROW_QUADS + SUBGROUP_SIZE - 1) / SUBGROUP_SIZE;
#define STORE_STATE_PASS(pass)                                                                            \
    if ((pass) < M_FRAGS * STATE_PASSES) {                                                              \
        const uint r = (pass) / STATE_PASSES, first = (pass) % STATE_PASSES * PASS_FRAGS;                          \
        subgroupSync();                                                                             \
        [[unroll]] for (uint t = 0; t < PASS_FRAGS; ++t) {                                             \
            if (first + t < DV_FRAGS) {                                                            \
                const bool live = (pass) < M_FRAGS * STATE_PASSES && first + t < DV_FRAGS; /* or dead code */ \
                FragC whole = O[live ? r * DV_FRAGS + first + t : 0] * inverse[live ? r : 0];    \
                coopMatStore(whole, smem, gl_SubgroupID * SUBGROUP_SMEM + t * (FRAG_N / 4), PASS_STRIDE,    \
                             gl_CooperativeMatrixLayoutRowMajor);                                   \
            }                                                                                       \
        }                                                                                           \
        subgroupSync();                                                                             \
        const uint rows = min(max(ROWS, rowBase + r * FRAG_M) - (rowBase + r * FRAG_M), FRAG_M);        \
        [[dont_unroll]] for (uint at = gl_SubgroupInvocationID; at < rows * PASS_ROW_QUADS; at += SUBGROUP_SIZE) { \
            const uint row = at / PASS_ROW_QUADS, sliceCol = first * FRAG_N + at % PASS_ROW_QUADS * 4, col = work.col0 + sliceCol; \
            if (sliceCol < DV_FRAGS * FRAG_N && col < HEAD_DIM_V)                                      \
                storeState4(rowBase + r * FRAG_M + row, col,                                          \
                            uintBitsToFloat(smem[gl_SubgroupID * SUBGROUP_SMEM + row * PASS_STRIDE + at % PASS_ROW_QUADS])); \
        }                                                                                           \
    }
