// How modules with FEATURES fetch a tile of K and of V, store it in shared memory, and, with SPLIT, let go of a part
// of O: macros over the variables of forward_coopmat.comp's main.

// Pages are looked up a tile before their keys are fetched, so that a fetch is nothing but loads: one where a tile lies in
// a page, else that of each part's key, the same for K and V where their parts are of the same keys. Keys past the last
// take its page. Numbers stay as the table has them until they are used: who looks at one waits for it.
const bool PAGES_AHEAD = PAGE_SIZE != 0 && KEPT == 0;
// Parts are fetched without conditions, but for those of lists: one around more than a load is a branch, and branches let
// loads wait for each other (docs/log.md, 28). Behind the last key that fetches the last one again, which is cleared
// when V is stored.
const bool CLEARS_V = KEPT == 0;
// A subgroup's keys of a tile may always lie in one page: then there is one to look up, and one place to work out, for each
// invocation. Keys behind the last one are of its page, or lie behind it there.
const uint CROSSES = PAGE_SIZE % (OWN_KEYS > 0 ? OWN_KEYS : 1);
const uint OWN_PAGE = PAGE_SIZE == 0 ? 0 : KEPT != 0 ? 0 : TILES_WHOLE ? 0 : OWN_KEYS == 0 ? 0 : CROSSES == 0 ? 1 : 0;
const uint K_PAGES = 0, V_PAGES = K_ROW8 == V_ROW8 ? 0 : K_PARTS; // the first of K and of V
const uint KEY_PARTS = KEPT != 0 || ROW_SCALES ? (BLOCK_COLS + LOCAL_SIZE - 1) / LOCAL_SIZE : 1; // keys an invocation carries
const uint KEY_PAGES = OWN_PAGE != 0 ? 1 : V_PAGES + V_PARTS;
const uint PAGES = PAGES_AHEAD && !TILES_WHOLE ? KEY_PAGES + (ROW_SCALES ? KEY_PARTS : 0) : 1;
#define LOOK_UP(index)                                                                              \
    {                                                                                               \
        const uint tileIndex = index;                                                               \
        [[unroll]] for (uint i = 0; i < PAGES; ++i) {                                               \
            uint key = 0;                                                                           \
            if (!TILES_WHOLE) key = i >= KEY_PAGES ? (i - KEY_PAGES) * LOCAL_SIZE + tid             \
                : OWN_PAGE != 0 ? FIRST_KEY : i < K_PARTS ? PART_OF(K_PARTS, i) / K_ROW8 : PART_OF(V_PARTS, i - V_PAGES) / V_ROW8; \
            page[i] = pageOf(min(tileIndex * BLOCK_COLS + key, work.keys - 1));                     \
        }                                                                                           \
    }

// Where keys lie one after another, an invocation's parts of a tile are those of a slice of K and of V, which starts at
// the tile or at the subgroup's own keys; else every part has a place of its own, that of key number `at`. Quantised parts
// travel as they are stored.
#define FETCH_KEY(T)                                                                                \
    uvec4 fetchKey##T(uint page, uint at, uint col) {                                               \
        if (PAGES_AHEAD) return part##T##8(rows##T(placeIn(page, min(at, work.keys - 1))), 0, col); \
        const uint token = keyAt(at);                                                               \
        return token == NO_KEY ? uvec4(0) : part##T##8(rows##T(placeOf(token)), 0, col);            \
    }
FETCH_KEY(K)
FETCH_KEY(V)

// The scales of a key, of K and of V; of one that does not exist anything finite.
vec2 fetchScales(uint page, uint index, uint key) {
    uint at = index * BLOCK_COLS + key;
    if (key >= BLOCK_COLS) return vec2(0.0);
    at = KEPT != 0 ? keyAt(at) : min(at, work.keys - 1);
    if (at == NO_KEY) return vec2(0.0);
    const Place place = PAGES_AHEAD ? placeIn(page, at) : placeOf(at);
    return vec2(rowScaleK(place), rowScaleV(place));
}

// The parts of tile tileIndex that an invocation carries; `column` is the first one of part number `at` of the tile.
#define FETCH(T, parts, column)                                                                     \
    Slice rows_;                                                                                    \
    uint most = 0; /* key of the tile; its end may be that of a page */                             \
    if (OWN_PAGE != 0) rows_ = rows##T(placeIn(page[0], tileIndex * BLOCK_COLS + FIRST_KEY));       \
    else if (TILES_WHOLE) {                                                                         \
        const uint firstKey = OWN_KEYS != 0 ? min(tileIndex * BLOCK_COLS + FIRST_KEY, work.keys - 1) : tileIndex * BLOCK_COLS; \
        rows_ = rows##T(PAGES_AHEAD ? placeIn(page[0], firstKey) : placeOf(firstKey));              \
        most = min((tileIndex + 1) * BLOCK_COLS, work.keys) - 1 - firstKey;                         \
    }                                                                                               \
    [[unroll]] for (uint i = 0; i < T##_PARTS; ++i) {                                               \
        const uint at = PART_OF(T##_PARTS, i), place = PAGES > 1 && OWN_PAGE == 0 ? T##_PAGES + i : 0; \
        const uint key = OWN_KEYS != 0 ? OWN_PART(i) / T##_ROW8 : at / T##_ROW8; /* of the slice */ \
        if (OWN_PAGE != 0) parts[i] = part##T##8(rows_, key, column);                               \
        else if (TILES_WHOLE) parts[i] = part##T##8(rows_, min(key, most), column);                 \
        else parts[i] = fetchKey##T(page[place], tileIndex * BLOCK_COLS + at / T##_ROW8, column);   \
    }
#define FETCH_K(index)                                                                              \
    {                                                                                               \
        const uint tileIndex = index;                                                               \
        FETCH(K, kPart, at % K_ROW8 * 8)                                                            \
        if (KEPT != 0) {                                                                            \
            [[unroll]] for (uint i = 0; i < KEY_PARTS; ++i)                                         \
                keyPart[i] = keyAt(tileIndex * BLOCK_COLS + i * LOCAL_SIZE + tid);                  \
        }                                                                                           \
        if (ROW_SCALES) {                                                                           \
            [[unroll]] for (uint i = 0; i < KEY_PARTS; ++i)                                         \
                scalePart[i] = fetchScales(page[PAGES > 1 ? KEY_PAGES + i : 0], tileIndex, i * LOCAL_SIZE + tid); \
        }                                                                                           \
    }
#define FETCH_V(index)                                                                              \
    {                                                                                               \
        const uint tileIndex = index;                                                               \
        FETCH(V, vPart, work.col0 + at % V_ROW8 * 8)                                                \
    }

// What was fetched into shared memory. A masked slot has P = 0, but 0 x Inf is NaN: V is multiplied without
// such values, they are added at the end.
#define STORE_K                                                                                     \
    {                                                                                               \
        [[unroll]] for (uint i = 0; i < K_PARTS; ++i) {                                             \
            const uint at = PART_OF(K_PARTS, i);                                                    \
            if (KV_TYPE != 0) kPart[i] = ROW_SCALES ? exactPairs(kPart[i].xy) : decodeRaw16(kPart[i]); \
            if (BLOCK_COLS * K_ROW8 % LOCAL_SIZE == 0 || at < BLOCK_COLS * K_ROW8)                  \
                tile[at / K_ROW8 * K_STRIDE + at % K_ROW8] = kPart[i];                \
        }                                                                                           \
    }
#define STORE_SCALES                                                                                \
    if (ROW_SCALES) {                                                                               \
        [[unroll]] for (uint i = 0; i < KEY_PARTS; ++i) {                                           \
            const uint key = i * LOCAL_SIZE + tid;                                                  \
            if (key < BLOCK_COLS && putScales(key, scalePart[i])) atomicOr(nonFiniteSeen, 1);      \
        }                                                                                           \
    }
#define STORE_V(masked)                                                                             \
    {                                                                                               \
        [[unroll]] for (uint i = 0; i < V_PARTS; ++i) {                                             \
            const uint at = PART_OF(V_PARTS, i);                                                    \
            if (KV_TYPE != 0) vPart[i] = ROW_SCALES ? exact16(vPart[i].xy) : decodeRaw16(vPart[i]); \
            if (masked != 0 && CLEARS_V && TILE * BLOCK_COLS + at / V_ROW8 >= work.keys) vPart[i] = uvec4(0); \
            if (masked != 0 && MASKS && KV_TYPE != INT8 && dropNonFinite(vPart[i])) atomicOr(nonFiniteSeen, 1); \
            if (BLOCK_COLS * V_ROW8 % LOCAL_SIZE == 0 || at < BLOCK_COLS * V_ROW8)                  \
                tile[V_FIRST + at / V_ROW8 * V_STRIDE + at % V_ROW8] = vPart[i];      \
        }                                                                                           \
    }

// A part's O leaves in float32, as many fragments at a time as a subgroup's share of the tile has room for, and
// then row by row: few rows of a fragment exist in decoding. A pass is a literal, as the pairs below.
const uint SHARE = KV_SIZE / SUBGROUPS > SCRATCH_SIZE ? KV_SIZE / SUBGROUPS : SCRATCH_SIZE; // of a subgroup
const uint ROOM = (SHARE / TILE_M - 1) / (TILE_N / 4);       // for so many fragments in rows of odd length
const uint AT_ONCE_ = ROOM > OUT_TILES ? OUT_TILES : ROOM;
const uint AT_ONCE = AT_ONCE_ > 0 ? AT_ONCE_ : 1;
const uint PASSES = (OUT_TILES + AT_ONCE - 1) / AT_ONCE;     // of a row fragment
const uint MOST_PASSES = 4;                                  // that are written out in main
const uint PART_ROW4 = AT_ONCE * TILE_N / 4, PART_STRIDE = PART_ROW4 | 1;
const uint PART_STEPS = (TILE_M * PART_ROW4 + SUBGROUP_SIZE - 1) / SUBGROUP_SIZE;
#define STORE_PART(pass)                                                                            \
    if ((pass) < ROW_TILES * PASSES) {                                                              \
        const uint r = (pass) / PASSES, first = (pass) % PASSES * AT_ONCE;                          \
        subgroupSync();                                                                             \
        [[unroll]] for (uint t = 0; t < AT_ONCE; ++t) {                                             \
            if (first + t < OUT_TILES) {                                                            \
                const bool there = (pass) < ROW_TILES * PASSES && first + t < OUT_TILES; /* or dead code */ \
                FragC whole = O[there ? r * OUT_TILES + first + t : 0] * inverse[there ? r : 0];    \
                coopMatStore(whole, tile, gl_SubgroupID * SHARE + t * (TILE_N / 4), PART_STRIDE,    \
                             gl_CooperativeMatrixLayoutRowMajor);                                   \
            }                                                                                       \
        }                                                                                           \
        subgroupSync();                                                                             \
        const uint rows = min(max(ROWS, myRow + r * TILE_M) - (myRow + r * TILE_M), TILE_M);        \
        [[dont_unroll]] for (uint at = gl_SubgroupInvocationID; at < rows * PART_ROW4; at += SUBGROUP_SIZE) { \
            const uint row = at / PART_ROW4, mine = first * TILE_N + at % PART_ROW4 * 4, col = work.col0 + mine; \
            if (mine < OUT_TILES * TILE_N && col < HEAD_DIM_V)                                      \
                storeState4(myRow + r * TILE_M + row, col,                                          \
                            uintBitsToFloat(tile[gl_SubgroupID * SHARE + row * PART_STRIDE + at % PART_ROW4])); \
        }                                                                                           \
    }
