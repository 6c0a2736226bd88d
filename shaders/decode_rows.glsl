// Rows of K and V of a KV tile in decode_coopmat.comp, as slices that a lane loads from.
//
// Rows of a tile are resolved one tile before they are loaded, so that loads depend on nothing; the page indices or
// tokens that this takes are loaded one tile earlier still. A slot past the last key takes the last key's row: its
// score is masked.
//
// Contiguous keys, of a tile or of 16 keys, need one slice; the others are a multiplication away. Else each lane
// resolves one or a few keys for all lanes, by way of shared memory.
struct LaneRow {
    Slice start; // the first element that the lane loads; of quantized rows the first of the row
    bool exists; // false for a sparse token that is no key
};
const bool CONTIGUOUS_RUNS = SPARSE_TOKENS + PAGE_SIZE % 16 + KV_TYPE == 0;
const bool RUNS_OF_16 = CONTIGUOUS_RUNS && !CONTIGUOUS_TILES;
const uint RUNS = RUNS_OF_16 ? KV_FRAGS : 1;
const uint LANE_KEYS = (KV_TILE + SUBGROUP_SIZE - 1) / SUBGROUP_SIZE; // that a lane resolves
const uint INDICES = CONTIGUOUS_RUNS ? RUNS : LANE_KEYS;
const bool INDICES_AHEAD = SPARSE_BLOCK_Q == 0; // a block-sparse mask does not tell early which tile comes after the next

// Rows of a key that another lane resolved.
shared uvec4 rowsOfKey[CONTIGUOUS_RUNS ? 1 : SUBGROUPS * KV_TILE];
#define SUBGROUP_SLOT(col) (gl_SubgroupID * KV_TILE + (col))
const uint NO_ROW = 0xffffffffu;
#if BDA
uvec4 packRows(Slice k, Slice v) { return uvec4(k.word.x | k.phase, k.word.y, v.word.x | v.phase, v.word.y); }
Slice sliceOf(uvec2 word) { return Slice(uvec2(word.x & ~3u, word.y), word.x & 3u); }
#define ROWS_K(packed_) sliceOf(packed_.xy)
#define ROWS_V(packed_) sliceOf(packed_.zw)
#else
uvec4 packRows(Slice k, Slice v) { return uvec4(k.word, k.phase, v.word, v.phase); }
#define ROWS_K(packed_) Slice(packed_.x, packed_.y)
#define ROWS_V(packed_) Slice(packed_.z, packed_.w)
#endif

// The slice from a column on, a multiple of 8. 16-bit elements.
Slice fromColumn(Slice s, uint col) {
#if BDA
    s.word = add64(s.word, uvec2(col * 2, 0));
#else
    s.word += col / 2;
#endif
    return s;
}
#define K_COLUMN (QK_FIRST_COL + THREAD_IN_GROUP * 8)
#define V_COLUMN (work.col0 + DV_FIRST_COL + GROUP_ID(0) * 8)

// First key of run n of tile `index`; slot of the n-th key that the lane resolves.
uint runStart(uint index, uint n) { return min(index * KV_TILE + n * 16, work.seqlenK - 1 & ~15u); }
uint slotOf(uint index, uint n) { return min(index * KV_TILE + n * SUBGROUP_SIZE + gl_SubgroupInvocationID, work.kvLength - 1); }
// Page index or sparse token of that run or slot.
uint loadIndex(uint index, uint n) {
    if (SPARSE_TOKENS != 0) return keyAt(slotOf(index, n));
    return PAGE_SIZE != 0 ? loadPageIndex(CONTIGUOUS_RUNS ? runStart(index, n) : slotOf(index, n)) : 0;
}
KVRow kvRowOfIndex(uint key, uint answer) { return PAGE_SIZE != 0 && SPARSE_TOKENS == 0 ? kvRowInPage(answer, key) : kvRowOf(key); }
#define PREFETCH_INDICES(index) [[unroll]] for (uint n = 0; n < INDICES; ++n) indices[n] = loadIndex(index, n);

// Resolves the n-th key of the lane. True if every row attends to it.
bool resolveKey(uint index, uint n, uint answer, uint lastRow, out vec2 scales) {
    const uint col = n * SUBGROUP_SIZE + gl_SubgroupInvocationID;
    scales = vec2(0.0);
    if (KV_TILE % SUBGROUP_SIZE != 0 && col >= KV_TILE) return true;
    const uint key = SPARSE_TOKENS != 0 ? answer : slotOf(index, n);
    if (key == NO_KEY) {
        rowsOfKey[CONTIGUOUS_RUNS ? 0 : SUBGROUP_SLOT(col)] = uvec4(NO_ROW);
        return false;
    }
    const KVRow at = kvRowOfIndex(key, answer);
    rowsOfKey[CONTIGUOUS_RUNS ? 0 : SUBGROUP_SLOT(col)] = packRows(rowsK(at), rowsV(at));
    if (KEY_SCALES) scales = vec2(rowScaleK(at), rowScaleV(at));
    return index * KV_TILE + col < work.kvLength && key >= visibleStart(lastRow) && key < visibleEnd(work.row0);
}
// Resolves the rows of tile nth of the KV loop, and loads the indices of the one after it.
#define RESOLVE_KV_ROWS(nth)                                                                        \
    {                                                                                               \
        const uint index = kvTileAt(kv, nth);                                                       \
        loadedSlot = index * KV_TILE;                                                               \
        if (!INDICES_AHEAD) PREFETCH_INDICES(index)                                                 \
        if (CONTIGUOUS_RUNS) {                                                                      \
            [[unroll]] for (uint run = 0; run < RUNS; ++run) { /* past the end: the last one */     \
                const uint start = RUNS_OF_16 ? runStart(index, run) : loadedSlot;                  \
                const KVRow first = kvRowOfIndex(start, indices[CONTIGUOUS_RUNS ? run : 0]);        \
                lastSlot[run] = work.seqlenK - 1 - start;                                           \
                kRun[run] = fromColumn(rowsK(first), K_COLUMN);                                     \
                vRun[run] = fromColumn(rowsV(first), V_COLUMN);                                     \
            }                                                                                       \
        } else {                                                                                    \
            subgroupSync(); /* the last rows are read */                                            \
            bool all = true;                                                                        \
            [[unroll]] for (uint n = 0; n < LANE_KEYS; ++n)                                         \
                all = resolveKey(index, n, indices[CONTIGUOUS_RUNS ? 0 : n], lastRow, scales[n]) && all; \
            if (SPARSE_TOKENS != 0) allSeen = subgroupAll(all);                                     \
            subgroupSync();                                                                         \
        }                                                                                           \
        if (INDICES_AHEAD) PREFETCH_INDICES(kvTileAt(kv, nth + KV_LOOPS)) /* or of the last key again */ \
    }
// Sparse tokens: once a tile needs masks, its keys are in shared memory.
#define STORE_KEY_INDICES                                                                           \
    if (SPARSE_TOKENS != 0) {                                                                       \
        if (!allSeen) unmaskedTiles = 0;                                                            \
        if (unmaskedTiles == 0) {                                                                   \
            subgroupSync();                                                                         \
            for (uint i = gl_SubgroupInvocationID; i < KV_TILE; i += SUBGROUP_SIZE) TILE_KEY(i) = keyAt(loadedSlot + i); \
            subgroupSync();                                                                         \
        }                                                                                           \
    }
// Stores the scales of the tile that is multiplied next. They were loaded when its rows were resolved.
#define STORE_KV_SCALES                                                                             \
    if (KEY_SCALES) {                                                                               \
        subgroupSync(); /* the last scales are read */                                              \
        [[unroll]] for (uint n = 0; n < LANE_KEYS; ++n) {                                           \
            const uint col = n * SUBGROUP_SIZE + gl_SubgroupInvocationID;                           \
            if ((KV_TILE % SUBGROUP_SIZE == 0 || col < KV_TILE) && storeScales(col, scales[n])) nonFiniteScale = true; \
        }                                                                                           \
        subgroupSync();                                                                             \
    }

// Row of the n-th key of which the lane has vectors.
#define RUN_OF(n, each) (RUNS_OF_16 ? (n) / (each * LANE_FOLD) : 0)
#define RUN_ROW(T, list, n, slot, each)                                                             \
    LaneRow(advance##T(list[RUN_OF(n, each)], min(RUNS_OF_16 ? (slot) % 16 : slot, lastSlot[RUN_OF(n, each)])), true)
#define ROW_OF_KEY(T)                                                                               \
    LaneRow rowOf##T(uint col) {                                                                    \
        const uvec4 rows = rowsOfKey[CONTIGUOUS_RUNS ? 0 : SUBGROUP_SLOT(col)];                     \
        const Slice first = ROWS_##T(rows);                                                         \
        return LaneRow(KV_TYPE == 0 ? fromColumn(first, T##_COLUMN) : first, SPARSE_TOKENS == 0 || rows.y != NO_ROW); \
    }
ROW_OF_KEY(K)
ROW_OF_KEY(V)
#define K_ROW(n) (CONTIGUOUS_RUNS ? RUN_ROW(K, kRun, n, K_SLOT(n), 2) : rowOfK(K_SLOT(n)))
#define V_ROW(n) (CONTIGUOUS_RUNS ? RUN_ROW(V, vRun, n, V_SLOT(n), 4) : rowOfV(V_SLOT(n)))
