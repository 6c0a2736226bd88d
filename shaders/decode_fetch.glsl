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

const uint K_KEYS = 2 * KEY_TILES * SHARES; // keys a lane has parts of
const uint V_KEYS = 4 * KEY_TILES * SHARES;
#define K_SLOT(n) ((n) / (2 * SHARES) * 16 + (n) / SHARES % 2 * 8 + LINE((n) % SHARES))
#define V_SLOT(n) ((n) / (4 * SHARES) * 16 + QUARTER * 2 + (n) / SHARES % 2 + (n) / SHARES / 2 % 2 * 8)

// Where the rows of a tile lie is worked out a tile before they are fetched, so that a fetch is nothing but loads; and
// what that takes from memory, a key of a list or a page's number, is asked for a tile before that. A slot past the last
// key takes the last one's place: no score of it counts.
//
// Keys that lie one after another, of a tile or of 16 keys, have one address: the others are a multiplication away.
// Of others each lane looks one or a few up, for all of them, by way of shared memory.
struct Row {
    Slice from; // its first element that the lane loads; where it is quantised, its first
    bool there; // not a number of a list that is no key
};
const bool ROWS_COUNTED = KEPT + PAGE_SIZE % 16 + KV_TYPE == 0;
const bool RUNS_SHORT = ROWS_COUNTED && !TILES_WHOLE;
const uint RUNS = RUNS_SHORT ? KEY_TILES : 1;
const uint KEYS_EACH = (BLOCK_COLS + SUBGROUP_SIZE - 1) / SUBGROUP_SIZE; // that a lane looks up
const uint ASKED = ROWS_COUNTED ? RUNS : KEYS_EACH;
const bool ASKED_AHEAD = MAP_ROWS == 0; // else it is not known which tile is next but one

shared uvec4 rowsOfKey[ROWS_COUNTED ? 1 : SUBGROUPS * BLOCK_COLS];
#define OF_COLUMN(col) (gl_SubgroupID * BLOCK_COLS + (col))
const uint NOWHERE = 0xffffffffu;
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
#define K_COLUMN (FIRST_QK + QUARTER * 8)
#define V_COLUMN (work.col0 + FIRST_OUT + LINE(0) * 8)

// What of memory says where the n-th run of a tile, or the n-th key that the lane looks up, lies.
uint runStart(uint index, uint n) { return min(index * BLOCK_COLS + n * 16, work.keys - 1 & ~15u); }
uint slotOf(uint index, uint n) { return min(index * BLOCK_COLS + n * SUBGROUP_SIZE + gl_SubgroupInvocationID, work.listed - 1); }
uint asksFor(uint index, uint n) {
    if (KEPT != 0) return keyAt(slotOf(index, n));
    return PAGE_SIZE != 0 ? pageOf(ROWS_COUNTED ? runStart(index, n) : slotOf(index, n)) : 0;
}
Place placeOfAsked(uint key, uint answer) { return PAGE_SIZE != 0 && KEPT == 0 ? placeIn(answer, key) : placeOf(key); }
#define ASK(index) [[unroll]] for (uint n = 0; n < ASKED; ++n) asked[n] = asksFor(index, n);

// The lane looks a key up. True where it is one that every row sees.
bool lookUp(uint index, uint n, uint answer, uint lastRow, out vec2 scales) {
    const uint col = n * SUBGROUP_SIZE + gl_SubgroupInvocationID;
    scales = vec2(0.0);
    if (BLOCK_COLS % SUBGROUP_SIZE != 0 && col >= BLOCK_COLS) return true;
    const uint key = KEPT != 0 ? answer : slotOf(index, n);
    if (key == NO_KEY) {
        rowsOfKey[ROWS_COUNTED ? 0 : OF_COLUMN(col)] = uvec4(NOWHERE);
        return false;
    }
    const Place at = placeOfAsked(key, answer);
    rowsOfKey[ROWS_COUNTED ? 0 : OF_COLUMN(col)] = packRows(rowsK(at), rowsV(at));
    if (ROW_SCALES) scales = vec2(rowScaleK(at), rowScaleV(at));
    return index * BLOCK_COLS + col < work.listed && key >= visibleStart(lastRow) && key < visibleEnd(work.row0);
}
#define LOOK_UP(nth)                                                                                \
    {                                                                                               \
        const uint index = tileAt(walk, nth);                                                       \
        fetched = index * BLOCK_COLS;                                                               \
        if (!ASKED_AHEAD) ASK(index)                                                                \
        if (ROWS_COUNTED) {                                                                         \
            [[unroll]] for (uint run = 0; run < RUNS; ++run) { /* one past the last takes the last */ \
                const uint start = RUNS_SHORT ? runStart(index, run) : fetched;                     \
                const Place first = placeOfAsked(start, asked[ROWS_COUNTED ? run : 0]);             \
                lastSlot[run] = work.keys - 1 - start;                                              \
                kRun[run] = fromColumn(rowsK(first), K_COLUMN);                                     \
                vRun[run] = fromColumn(rowsV(first), V_COLUMN);                                     \
            }                                                                                       \
        } else {                                                                                    \
            subgroupSync(); /* what was looked up before is read */                                 \
            bool all = true;                                                                        \
            [[unroll]] for (uint n = 0; n < KEYS_EACH; ++n)                                         \
                all = lookUp(index, n, asked[ROWS_COUNTED ? 0 : n], lastRow, scales[n]) && all;     \
            if (KEPT != 0) seen = subgroupAll(all);                                                 \
            subgroupSync();                                                                         \
        }                                                                                           \
        if (ASKED_AHEAD) ASK(tileAt(walk, nth + WALKERS)) /* or for the last key again */           \
    }
// The scales of the tile that was looked up, which have been on their way for as long as a tile takes, become those of the
// tile that is multiplied.
#define TAKE_SCALES                                                                                 \
    if (ROW_SCALES) {                                                                               \
        subgroupSync(); /* those before are read */                                                 \
        [[unroll]] for (uint n = 0; n < KEYS_EACH; ++n) {                                           \
            const uint col = n * SUBGROUP_SIZE + gl_SubgroupInvocationID;                           \
            if ((BLOCK_COLS % SUBGROUP_SIZE == 0 || col < BLOCK_COLS) && putScales(col, scales[n])) wild = true; \
        }                                                                                           \
        subgroupSync();                                                                             \
    }
#define RUN_OF(n, each) (RUNS_SHORT ? (n) / (each * SHARES) : 0)
#define COUNTED(T, list, n, slot, each)                                                             \
    Row(advance##T(list[RUN_OF(n, each)], min(RUNS_SHORT ? (slot) % 16 : slot, lastSlot[RUN_OF(n, each)])), true)
#define ROW_OF_KEY(T)                                                                               \
    Row rowOf##T(uint col) {                                                                        \
        const uvec4 rows = rowsOfKey[ROWS_COUNTED ? 0 : OF_COLUMN(col)];                            \
        const Slice first = ROWS_##T(rows);                                                         \
        return Row(KV_TYPE == 0 ? fromColumn(first, T##_COLUMN) : first, KEPT == 0 || rows.y != NOWHERE); \
    }
ROW_OF_KEY(K)
ROW_OF_KEY(V)
#define K_ROW(n) (ROWS_COUNTED ? COUNTED(K, kRun, n, K_SLOT(n), 2) : rowOfK(K_SLOT(n)))
#define V_ROW(n) (ROWS_COUNTED ? COUNTED(V, vRun, n, V_SLOT(n), 4) : rowOfV(V_SLOT(n)))

// The lane's part of block b of a row: 16 bytes, or of quantised rows eight, of blocks with what they are multiplied by.
// Whether there is such a part is known beforehand but for the last blocks of the last subgroup.
bool hasK(Row row, uint b) {
    return (HEAD_DIM >= ((SCORE_SHARES - 1) * QK_BLOCKS + b + 1) * 32 || FIRST_QK + b * 32 + QUARTER * 8 < HEAD_DIM) &&
        row.there;
}
bool hasV(Row row, uint b, uint mine) {
    return (HEAD_DIM_V % 64 == 0 && DV_SLICE % 64 == 0 && DV_SLICE >= ((COLUMN_SHARES - 1) * OUT_BLOCKS + b + 1) * 64 ||
            mine < DV_SLICE && work.col0 + mine < HEAD_DIM_V) &&
        row.there;
}
#define VALID_K(col) (HEAD_DIM % 8 == 0 ? 8 : elementsFromK(col))
#define VALID_V(col) (HEAD_DIM_V % 8 == 0 ? 8 : elementsFromV(col))
uvec4 partK(Row row, uint b) {
    const uint col = FIRST_QK + b * 32 + QUARTER * 8;
    if (!hasK(row, b)) return uvec4(0);
    return KV_TYPE == 0 ? load8K(row.from, b * 32, VALID_K(col)) : partK8(row.from, 0, col);
}
uvec4 partV(Row row, uint b, uint line) {
    const uint mine = FIRST_OUT + b * 64 + line * 8, col = work.col0 + mine;
    if (!hasV(row, b, mine)) return uvec4(0);
    return KV_TYPE == 0 ? load8V(row.from, b * 64 + (line - LINE(0)) * 8, VALID_V(col)) : partV8(row.from, 0, col);
}
const uint K_ALL = K_KEYS * QK_BLOCKS, V_ALL = V_KEYS * OUT_BLOCKS;
#define FETCH_K(part)                                                                               \
    [[unroll]] for (uint n = 0; n < K_KEYS; ++n) {                                                  \
        const Row row = K_ROW(n);                                                                   \
        [[unroll]] for (uint b = 0; b < QK_BLOCKS; ++b) part[n * QK_BLOCKS + b] = partK(row, b);    \
    }
#define FETCH_V(part)                                                                               \
    [[unroll]] for (uint n = 0; n < V_KEYS; ++n) {                                                  \
        const Row row = V_ROW(n);                                                                   \
        [[unroll]] for (uint b = 0; b < OUT_BLOCKS; ++b)                                            \
            part[n * OUT_BLOCKS + b] = partV(row, b, LINE(n % SHARES));                             \
    }

// What was fetched of block b, as operands take it. Only now, so that who fetches waits for nothing.
uvec4 taken(uvec4 part, uint col) {
    if (KV_TYPE == 0) return part;
    return ROW_SCALES ? exactPairs(part.xy) : decodeBytes16(part.xy, uintBitsToFloat(part.z), shiftOfColumn(col));
}
#define TAKE_K(now, b)                                                                              \
    [[unroll]] for (uint n = 0; n < K_KEYS; ++n) now[n] = taken(kPart[n * QK_BLOCKS + (b)], QUARTER * 8);
#define TAKE_V(now, b)                                                                              \
    [[unroll]] for (uint n = 0; n < V_KEYS; ++n)                                                    \
        now[n] = taken(vPart[n * OUT_BLOCKS + (b)], work.col0 + LINE(n % SHARES) * 8);

// A lane's words of the operands. t: fragment of keys; i: of the block's columns; low and high halves of words of two
// keys make one.
#define K_WORD(h, w) now[(t * 2 + (h)) * SHARES + s][i * 2 + (w)]
#define V_AT(u) now[(t * 4 + (u)) * SHARES + s][i]
#define V_LOW(u) lowHalves(V_AT(u), V_AT((u) + 1))
#define V_HIGH(u) highHalves(V_AT(u), V_AT((u) + 1))

#endif
