// What a lane of decode_coopmat.comp brings of K and V, and as what: which keys and columns, where their rows lie, the
// fetches of a tile, and the words of operands. By the lane throughout, without shared memory or barriers;
// of a list's keys the subgroup votes.
#ifndef DECODE_FETCH_GLSL
#define DECODE_FETCH_GLSL

// Of K, for each 16 keys of a tile, keys g and g + 8, and of each block of 32 columns the eight from 8 q on. Their first
// four are the lane's of the first fragment of the block, the others of the second; Q's columns follow.
// Of V keys 2 q, 2 q + 1, 2 q + 8, 2 q + 9, and of each block of 64 columns the eight from 8 g on: columns g and g + 8 of
// fragment f of the block are its columns 8 g + 2 f and 8 g + 2 f + 1.

const uint K_KEYS = 2 * KEY_TILES * SHARES; // keys a lane has parts of
const uint V_KEYS = 4 * KEY_TILES * SHARES;
#define K_SLOT(n) ((n) / (2 * SHARES) * 16 + (n) / SHARES % 2 * 8 + LINE((n) % SHARES))
#define V_SLOT(n) ((n) / (4 * SHARES) * 16 + QUARTER * 2 + (n) / SHARES % 2 + (n) / SHARES / 2 % 2 * 8)

// Where the rows of a tile lie that a lane has parts of is worked out a tile before they are fetched, so that a fetch
// is nothing but loads. A slot past the last key takes the last one's place: no score of it counts.
struct Row {
    Slice from; // its first element that the lane loads; where it is quantised, its first
    Place at;
    float scale; // of int8 and float8
};
const bool ROW_SCALES = KV_TYPE != 0 && KV_TYPE < Q8_0; // else of blocks, in them
const uint NOWHERE = 0xffffffffu; // a Place's batch: a number of a list that is no key
Place placeOrNone(uint slot) {
    const uint key = keyAt(min(slot, work.listed - 1));
    return key == NO_KEY ? Place(NOWHERE, 0) : placeOf(key);
}
// Every row sees the key that a list has at a slot.
bool seenByAll(uint slot, uint lastRow) {
    const uint key = keyAt(slot);
    return key != NO_KEY && key >= visibleStart(lastRow) && key < visibleEnd(work.row0);
}
// The slice from a column on, a multiple of 8.
Slice fromColumn(Slice s, uint col) {
#if BDA
    s.word = add64(s.word, uvec2(col * 2, 0));
#else
    s.word += col / 2;
#endif
    return s;
}
// Of keys that lie one after another only the first row is kept, of a tile or of 16 keys: the others are a multiplication
// away.
const bool ROWS_COUNTED = KEPT + PAGE_SIZE % 16 + KV_TYPE == 0;
const bool RUNS_SHORT = ROWS_COUNTED && !TILES_WHOLE;
const uint RUNS = RUNS_SHORT ? KEY_TILES : 1;
#define LOOK_UP_ROWS(list, KEYS, SLOT, rows, rowScale_, column)                                     \
    [[unroll]] for (uint n = 0; n < KEYS; ++n) {                                                    \
        const uint i = ROWS_COUNTED ? 0 : n;                                                        \
        if (TILES_WHOLE) list[i].at = Place(first.batch, first.row + min(SLOT(n), lastSlot[0]));    \
        else list[i].at = placeOrNone(fetched + SLOT(n));                                           \
        if (TILES_WHOLE || list[i].at.batch != NOWHERE) {                                           \
            list[i].from = rows(list[i].at);                                                        \
            if (KV_TYPE == 0) list[i].from = fromColumn(list[i].from, column);                      \
            if (ROW_SCALES) list[i].scale = rowScale_(list[i].at);                                  \
        }                                                                                           \
    }
#define K_COLUMN (FIRST_QK + QUARTER * 8)
#define V_COLUMN (work.col0 + FIRST_OUT + LINE(0) * 8)
#define LOOK_UP(index)                                                                              \
    {                                                                                               \
        fetched = (index) * BLOCK_COLS;                                                             \
        Place first;                                                                                \
        if (ROWS_COUNTED || TILES_WHOLE) {                                                          \
            [[unroll]] for (uint run = 0; run < RUNS; ++run) { /* one past the last takes the last */ \
                const uint start = RUNS_SHORT ? min(fetched + run * 16, work.keys - 1 & ~15u) : fetched; \
                first = placeOf(start);                                                             \
                lastSlot[run] = work.keys - 1 - start;                                              \
                if (ROWS_COUNTED) {                                                                 \
                    kRow[ROWS_COUNTED ? run : 0].from = fromColumn(rowsK(first), K_COLUMN);         \
                    vRow[ROWS_COUNTED ? run : 0].from = fromColumn(rowsV(first), V_COLUMN);         \
                }                                                                                   \
            }                                                                                       \
        }                                                                                           \
        if (KEPT != 0) {                                                                            \
            seen = true;                                                                            \
            [[unroll]] for (uint n = 0; n < K_KEYS; ++n) seen = seen && seenByAll(fetched + K_SLOT(n), lastRow); \
            seen = subgroupAll(seen);                                                               \
        }                                                                                           \
        if (!ROWS_COUNTED) {                                                                        \
            LOOK_UP_ROWS(kRow, K_KEYS, K_SLOT, rowsK, rowScaleK, K_COLUMN)                          \
            LOOK_UP_ROWS(vRow, V_KEYS, V_SLOT, rowsV, rowScaleV, V_COLUMN)                          \
        }                                                                                           \
    }
#define ROW_OF(list, advance_, n, slot, each)                                                       \
    (ROWS_COUNTED ? Row(advance_(list[RUN_OF(n, each)].from, min(RUNS_SHORT ? (slot) % 16 : slot, lastSlot[RUN_OF(n, each)])), list[0].at, 1.0) \
                  : list[ROWS_COUNTED ? 0 : n])
#define RUN_OF(n, each) (RUNS_SHORT ? (n) / (each * SHARES) : 0)
#define K_ROW(n) ROW_OF(kRow, advanceK, n, K_SLOT(n), 2)
#define V_ROW(n) ROW_OF(vRow, advanceV, n, V_SLOT(n), 4)

// The lane's part of block b of a row: 16 bytes, or of quantised rows eight and what they are multiplied by.
// Whether there is such a part is known beforehand but for the last blocks of the last subgroup.
bool hasK(Row row, uint b) {
    return (HEAD_DIM >= ((COLUMN_SHARES - 1) * QK_BLOCKS + b + 1) * 32 || FIRST_QK + b * 32 + QUARTER * 8 < HEAD_DIM) &&
        (ROWS_COUNTED || TILES_WHOLE || row.at.batch != NOWHERE);
}
bool hasV(Row row, uint b, uint mine) {
    return (HEAD_DIM_V % 64 == 0 && DV_SLICE % 64 == 0 && DV_SLICE >= ((COLUMN_SHARES - 1) * OUT_BLOCKS + b + 1) * 64 ||
            mine < DV_SLICE && work.col0 + mine < HEAD_DIM_V) &&
        (ROWS_COUNTED || TILES_WHOLE || row.at.batch != NOWHERE);
}
#define VALID_K(col) (HEAD_DIM % 8 == 0 ? 8 : elementsFromK(col))
#define VALID_V(col) (HEAD_DIM_V % 8 == 0 ? 8 : elementsFromV(col))
uvec4 partK(Row row, uint b) {
    const uint col = FIRST_QK + b * 32 + QUARTER * 8;
    return hasK(row, b) ? load8K(row.from, b * 32, VALID_K(col)) : uvec4(0);
}
uvec4 partV(Row row, uint b, uint line) {
    const uint mine = FIRST_OUT + b * 64 + line * 8;
    return hasV(row, b, mine) ? load8V(row.from, b * 64 + (line - LINE(0)) * 8, VALID_V(work.col0 + mine)) : uvec4(0);
}
uvec2 bytesOfK(Row row, uint b) {
    const uint col = FIRST_QK + b * 32 + QUARTER * 8;
    return hasK(row, b) ? quantisedK(row.from, 0, col, VALID_K(col)) : uvec2(0);
}
uvec2 bytesOfV(Row row, uint b, uint line) {
    const uint mine = FIRST_OUT + b * 64 + line * 8, col = work.col0 + mine;
    return hasV(row, b, mine) ? quantisedV(row.from, 0, col, VALID_V(col)) : uvec2(0);
}
float scaleOfK(Row row, uint b) {
    const uint col = FIRST_QK + b * 32 + QUARTER * 8;
    return hasK(row, b) ? blockScaleK(row.from, 0, col) : 0.0;
}
float scaleOfV(Row row, uint b, uint line) {
    const uint mine = FIRST_OUT + b * 64 + line * 8;
    return hasV(row, b, mine) ? blockScaleV(row.from, 0, work.col0 + mine) : 0.0;
}
const uint K_ALL = K_KEYS * QK_BLOCKS, V_ALL = V_KEYS * OUT_BLOCKS;
const uint SCALES_EACH = KV_TYPE < Q8_0 ? 0 : 1;
#define K_SCALE(n, b) kScale[SCALES_EACH == 0 ? n : (n) * QK_BLOCKS + (b)]
#define V_SCALE(n, b) vScale[SCALES_EACH == 0 ? n : (n) * OUT_BLOCKS + (b)]
#define FETCH_K FETCH_K_TO(kPart, KV_TYPE == 0)
#define FETCH_V FETCH_V_TO(vPart, KV_TYPE == 0)
#define FETCH_K_TO(part, whole)                                                                     \
    [[unroll]] for (uint n = 0; n < K_KEYS; ++n) {                                                  \
        const Row row = K_ROW(n);                                                                   \
        [[unroll]] for (uint b = 0; b < QK_BLOCKS; ++b) {                                           \
            if (whole) part[whole ? n * QK_BLOCKS + b : 0] = partK(row, b);                         \
            else {                                                                                  \
                kBytes[KV_TYPE == 0 ? 0 : n * QK_BLOCKS + b] = bytesOfK(row, b);                    \
                K_SCALE(n, b) = ROW_SCALES ? row.scale : scaleOfK(row, b);                          \
            }                                                                                       \
        }                                                                                           \
    }
#define FETCH_V_TO(part, whole)                                                                     \
    [[unroll]] for (uint n = 0; n < V_KEYS; ++n) {                                                  \
        const Row row = V_ROW(n);                                                                   \
        [[unroll]] for (uint b = 0; b < OUT_BLOCKS; ++b) {                                          \
            if (whole) part[whole ? n * OUT_BLOCKS + b : 0] = partV(row, b, LINE(n % SHARES));      \
            else {                                                                                  \
                vBytes[KV_TYPE == 0 ? 0 : n * OUT_BLOCKS + b] = bytesOfV(row, b, LINE(n % SHARES)); \
                V_SCALE(n, b) = ROW_SCALES ? row.scale : scaleOfV(row, b, LINE(n % SHARES));        \
            }                                                                                       \
        }                                                                                           \
    }

// What was fetched of block b, as operands take it.
#define TAKE_K(now, b)                                                                              \
    [[unroll]] for (uint n = 0; n < K_KEYS; ++n)                                                    \
        now[n] = KV_TYPE == 0 ? kPart[KV_TYPE == 0 ? n * QK_BLOCKS + (b) : 0]                       \
            : decodeBytes16(kBytes[KV_TYPE == 0 ? 0 : n * QK_BLOCKS + (b)], K_SCALE(n, b), shiftOfColumn(QUARTER * 8));
#define TAKE_V(now, b)                                                                              \
    [[unroll]] for (uint n = 0; n < V_KEYS; ++n)                                                    \
        now[n] = KV_TYPE == 0 ? vPart[KV_TYPE == 0 ? n * OUT_BLOCKS + (b) : 0]                      \
            : decodeBytes16(vBytes[KV_TYPE == 0 ? 0 : n * OUT_BLOCKS + (b)], V_SCALE(n, b), shiftOfColumn(work.col0 + LINE(n % SHARES) * 8));

// A lane's words of the operands. t: fragment of keys; i: of the block's columns; low and high halves of words of two
// keys make one. Bits are moved, whatever the type: as float16, so that one instruction does it.
uint lowHalves(uint a, uint b) { return packFloat2x16(f16vec2(unpackFloat2x16(a).x, unpackFloat2x16(b).x)); }
uint highHalves(uint a, uint b) { return packFloat2x16(f16vec2(unpackFloat2x16(a).y, unpackFloat2x16(b).y)); }
#define K_WORD(h, w) now[(t * 2 + (h)) * SHARES + s][i * 2 + (w)]
#define V_AT(u) now[(t * 4 + (u)) * SHARES + s][i]
#define V_LOW(u) lowHalves(V_AT(u), V_AT((u) + 1))
#define V_HIGH(u) highHalves(V_AT(u), V_AT((u) + 1))

#endif
