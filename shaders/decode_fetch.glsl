// What a lane of decode_coopmat.comp brings of K and V, and as what: which keys and columns, where their rows lie, the
// fetches of a tile, and the words of operands. Nothing waits for another subgroup.
#ifndef DECODE_FETCH_GLSL
#define DECODE_FETCH_GLSL

// Of K, for each 16 keys of a tile, keys g and g + 8, and of each block of 32 columns the eight from 8 q on. Their first
// four are the lane's of the first fragment of the block, the others of the second; Q's columns follow.
// Of V keys 2 q, 2 q + 1, 2 q + 8, 2 q + 9, and of each block of 64 columns the eight from 8 g on: columns g and g + 8 of
// fragment f of the block are its columns 8 g + 2 f and 8 g + 2 f + 1.
//
// Of keys with scales (key_scales.glsl) the middle two of each four columns have changed places, in Q and O too.

const uint K_LANE_KEYS = 2 * KV_FRAGS * LANE_FOLD; // keys a lane has parts of
const uint V_LANE_KEYS = 4 * KV_FRAGS * LANE_FOLD;
#define K_SLOT(n) ((n) / (2 * LANE_FOLD) * 16 + (n) / LANE_FOLD % 2 * 8 + GROUP_ID((n) % LANE_FOLD))
#define V_SLOT(n) ((n) / (4 * LANE_FOLD) * 16 + THREAD_IN_GROUP * 2 + (n) / LANE_FOLD % 2 + (n) / LANE_FOLD / 2 % 2 * 8)

// Where the rows of a tile lie is worked out a tile before they are fetched, so that a fetch is nothing but loads; and
// what that takes from memory, a key of a list or a page's number, is asked for a tile before that. A slot past the last
// key takes the last one's place: no score of it counts.
//
// Keys that lie one after another, of a tile or of 16 keys, have one address: the others are a multiplication away.
// Of others each lane looks one or a few up, for all of them, by way of shared memory.
struct LaneRow {
    Slice start; // its first element that the lane loads; where it is quantised, its first
    bool exists; // not a number of a list that is no key
};
const bool CONTIGUOUS_RUNS = SPARSE_TOKENS + PAGE_SIZE % 16 + KV_TYPE == 0;
const bool RUNS_OF_16 = CONTIGUOUS_RUNS && !CONTIGUOUS_TILES;
const uint RUNS = RUNS_OF_16 ? KV_FRAGS : 1;
const uint LANE_KEYS = (KV_TILE + SUBGROUP_SIZE - 1) / SUBGROUP_SIZE; // that a lane looks up
const uint INDICES = CONTIGUOUS_RUNS ? RUNS : LANE_KEYS;
const bool INDICES_AHEAD = SPARSE_BLOCK_Q == 0; // else it is not known which tile is next but one

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

// The slice from a column on, a multiple of 8.
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

// What of memory says where the n-th run of a tile, or the n-th key that the lane looks up, lies.
uint runStart(uint index, uint n) { return min(index * KV_TILE + n * 16, work.seqlenK - 1 & ~15u); }
uint slotOf(uint index, uint n) { return min(index * KV_TILE + n * SUBGROUP_SIZE + gl_SubgroupInvocationID, work.kvLength - 1); }
uint loadIndex(uint index, uint n) {
    if (SPARSE_TOKENS != 0) return keyAt(slotOf(index, n));
    return PAGE_SIZE != 0 ? loadPageIndex(CONTIGUOUS_RUNS ? runStart(index, n) : slotOf(index, n)) : 0;
}
KVRow kvRowOfIndex(uint key, uint answer) { return PAGE_SIZE != 0 && SPARSE_TOKENS == 0 ? kvRowInPage(answer, key) : kvRowOf(key); }
#define PREFETCH_INDICES(index) [[unroll]] for (uint n = 0; n < INDICES; ++n) indices[n] = loadIndex(index, n);

// The lane looks a key up. True where it is one that every row sees.
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
#define RESOLVE_KV_ROWS(nth)                                                                                \
    {                                                                                               \
        const uint index = kvTileAt(kv, nth);                                                       \
        loadedSlot = index * KV_TILE;                                                               \
        if (!INDICES_AHEAD) PREFETCH_INDICES(index)                                                                \
        if (CONTIGUOUS_RUNS) {                                                                         \
            [[unroll]] for (uint run = 0; run < RUNS; ++run) { /* one past the last takes the last */ \
                const uint start = RUNS_OF_16 ? runStart(index, run) : loadedSlot;                     \
                const KVRow first = kvRowOfIndex(start, indices[CONTIGUOUS_RUNS ? run : 0]);             \
                lastSlot[run] = work.seqlenK - 1 - start;                                              \
                kRun[run] = fromColumn(rowsK(first), K_COLUMN);                                     \
                vRun[run] = fromColumn(rowsV(first), V_COLUMN);                                     \
            }                                                                                       \
        } else {                                                                                    \
            subgroupSync(); /* what was looked up before is read */                                 \
            bool all = true;                                                                        \
            [[unroll]] for (uint n = 0; n < LANE_KEYS; ++n)                                         \
                all = resolveKey(index, n, indices[CONTIGUOUS_RUNS ? 0 : n], lastRow, scales[n]) && all;     \
            if (SPARSE_TOKENS != 0) allSeen = subgroupAll(all);                                                 \
            subgroupSync();                                                                         \
        }                                                                                           \
        if (INDICES_AHEAD) PREFETCH_INDICES(kvTileAt(kv, nth + KV_LOOPS)) /* or for the last key again */           \
    }
// The scales of the tile that was looked up, which have been on their way for as long as a tile takes, become those of the
// tile that is multiplied.
#define STORE_KV_SCALES                                                                                 \
    if (KEY_SCALES) {                                                                               \
        subgroupSync(); /* those before are read */                                                 \
        [[unroll]] for (uint n = 0; n < LANE_KEYS; ++n) {                                           \
            const uint col = n * SUBGROUP_SIZE + gl_SubgroupInvocationID;                           \
            if ((KV_TILE % SUBGROUP_SIZE == 0 || col < KV_TILE) && storeScales(col, scales[n])) nonFiniteScale = true; \
        }                                                                                           \
        subgroupSync();                                                                             \
    }
#define RUN_OF(n, each) (RUNS_OF_16 ? (n) / (each * LANE_FOLD) : 0)
#define RUN_ROW(T, list, n, slot, each)                                                             \
    LaneRow(advance##T(list[RUN_OF(n, each)], min(RUNS_OF_16 ? (slot) % 16 : slot, lastSlot[RUN_OF(n, each)])), true)
#define ROW_OF_KEY(T)                                                                               \
    LaneRow rowOf##T(uint col) {                                                                        \
        const uvec4 rows = rowsOfKey[CONTIGUOUS_RUNS ? 0 : SUBGROUP_SLOT(col)];                            \
        const Slice first = ROWS_##T(rows);                                                         \
        return LaneRow(KV_TYPE == 0 ? fromColumn(first, T##_COLUMN) : first, SPARSE_TOKENS == 0 || rows.y != NO_ROW); \
    }
ROW_OF_KEY(K)
ROW_OF_KEY(V)
#define K_ROW(n) (CONTIGUOUS_RUNS ? RUN_ROW(K, kRun, n, K_SLOT(n), 2) : rowOfK(K_SLOT(n)))
#define V_ROW(n) (CONTIGUOUS_RUNS ? RUN_ROW(V, vRun, n, V_SLOT(n), 4) : rowOfV(V_SLOT(n)))

// The lane's part of block b of a row: 16 bytes, or of quantised rows eight, of blocks with what they are multiplied by.
// Whether there is such a part is known beforehand but for the last blocks of the last subgroup.
bool hasK(LaneRow row, uint b) {
    return (HEAD_DIM >= ((QK_SPLIT - 1) * QK_BLOCKS + b + 1) * 32 || QK_FIRST_COL + b * 32 + THREAD_IN_GROUP * 8 < HEAD_DIM) &&
        row.exists;
}
bool hasV(LaneRow row, uint b, uint mine) {
    return (HEAD_DIM_V % 64 == 0 && DV_SLICE % 64 == 0 && DV_SLICE >= ((DIM_SPLIT - 1) * DV_BLOCKS + b + 1) * 64 ||
            mine < DV_SLICE && work.col0 + mine < HEAD_DIM_V) &&
        row.exists;
}
#define VALID_K(col) (HEAD_DIM % 8 == 0 ? 8 : elementsFromK(col))
#define VALID_V(col) (HEAD_DIM_V % 8 == 0 ? 8 : elementsFromV(col))
uvec4 loadVecK(LaneRow row, uint b) {
    const uint col = QK_FIRST_COL + b * 32 + THREAD_IN_GROUP * 8;
    if (!hasK(row, b)) return uvec4(0);
    return KV_TYPE == 0 ? load8K(row.start, b * 32, VALID_K(col)) : storedK8(row.start, 0, col);
}
uvec4 loadVecV(LaneRow row, uint b, uint line) {
    const uint mine = DV_FIRST_COL + b * 64 + line * 8, col = work.col0 + mine;
    if (!hasV(row, b, mine)) return uvec4(0);
    return KV_TYPE == 0 ? load8V(row.start, b * 64 + (line - GROUP_ID(0)) * 8, VALID_V(col)) : storedV8(row.start, 0, col);
}
const uint K_LANE_VECS = K_LANE_KEYS * QK_BLOCKS, V_LANE_VECS = V_LANE_KEYS * DV_BLOCKS;
#define LOAD_K(vec)                                                                               \
    [[unroll]] for (uint n = 0; n < K_LANE_KEYS; ++n) {                                                  \
        const LaneRow row = K_ROW(n);                                                                   \
        [[unroll]] for (uint b = 0; b < QK_BLOCKS; ++b) vec[n * QK_BLOCKS + b] = loadVecK(row, b);    \
    }
#define LOAD_V(vec)                                                                               \
    [[unroll]] for (uint n = 0; n < V_LANE_KEYS; ++n) {                                                  \
        const LaneRow row = V_ROW(n);                                                                   \
        [[unroll]] for (uint b = 0; b < DV_BLOCKS; ++b)                                            \
            vec[n * DV_BLOCKS + b] = loadVecV(row, b, GROUP_ID(n % LANE_FOLD));                             \
    }

// What was fetched of block b, as operands take it. Only now, so that who fetches waits for nothing.
uvec4 toOperandWords(uvec4 vec, uint col) {
    if (KV_TYPE == 0) return vec;
    return KEY_SCALES ? exactPairs(vec.xy) : decode8To16(vec.xy, uintBitsToFloat(vec.z), shiftOfColumn(col));
}
#define CONVERT_K(now, b)                                                                              \
    [[unroll]] for (uint n = 0; n < K_LANE_KEYS; ++n) now[n] = toOperandWords(kVec[n * QK_BLOCKS + (b)], THREAD_IN_GROUP * 8);
#define CONVERT_V(now, b)                                                                              \
    [[unroll]] for (uint n = 0; n < V_LANE_KEYS; ++n)                                                    \
        now[n] = toOperandWords(vVec[n * DV_BLOCKS + (b)], work.col0 + GROUP_ID(n % LANE_FOLD) * 8);

// A lane's words of the operands. t: fragment of keys; i: of the block's columns; low and high halves of words of two
// keys make one.
#define K_WORD(h, w) now[(t * 2 + (h)) * LANE_FOLD + s][i * 2 + (w)]
#define V_AT(u) now[(t * 4 + (u)) * LANE_FOLD + s][i]
#define V_LOW(u) lowHalves(V_AT(u), V_AT((u) + 1))
#define V_HIGH(u) highHalves(V_AT(u), V_AT((u) + 1))

#endif
