// Loads of K and V in decode_coopmat.comp: a lane loads vectors of 16 bytes that are its elements of fragments as
// they are, since keys and columns are renumbered to that end. No lane waits for another subgroup. With g = GROUP_ID,
// t = THREAD_IN_GROUP:
//   K  of each 16 keys of a tile keys g and g + 8, of each block of 32 columns columns 8 t to 8 t + 7. The first four are the
//      lane's of the block's first fragment, the others of the second; Q's columns follow (decode_q.glsl).
//   V  of each 16 keys keys 2 t, 2 t + 1, 2 t + 8, 2 t + 9, of each block of 64 columns columns 8 g to 8 g + 7. Columns g and
//      g + 8 of fragment f are the block's columns 8 g + 2 f and 8 g + 2 f + 1.
// With KEY_SCALES the middle two of each four columns are swapped (kv_exact.glsl), in Q and O too.

const uint K_LANE_KEYS = 2 * KV_FRAGS * LANE_FOLD; // keys a lane has vectors of
const uint V_LANE_KEYS = 4 * KV_FRAGS * LANE_FOLD;
#define K_SLOT(n) ((n) / (2 * LANE_FOLD) * 16 + (n) / LANE_FOLD % 2 * 8 + GROUP_ID((n) % LANE_FOLD))
#define V_SLOT(n) ((n) / (4 * LANE_FOLD) * 16 + THREAD_IN_GROUP * 2 + (n) / LANE_FOLD % 2 + (n) / LANE_FOLD / 2 % 2 * 8)

#include "decode_rows.glsl"

// The lane's vector of block b of a row: 16 bytes, or 8 quantized elements with the scale of their block. It may be
// missing only in the last blocks of the last subgroup; the compiler knows that all others exist.
bool hasK(LaneRow row, uint b) {
    return (HEAD_DIM >= ((QK_SPLIT - 1) * QK_BLOCKS + b + 1) * 32 || QK_FIRST_COL + b * 32 + THREAD_IN_GROUP * 8 < HEAD_DIM) &&
        row.exists;
}
bool hasV(LaneRow row, uint b, uint sliceCol) {
    return (HEAD_DIM_V % 64 == 0 && DV_SLICE % 64 == 0 && DV_SLICE >= ((DIM_SPLIT - 1) * DV_BLOCKS + b + 1) * 64 ||
            sliceCol < DV_SLICE && work.col0 + sliceCol < HEAD_DIM_V) &&
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
    const uint sliceCol = DV_FIRST_COL + b * 64 + line * 8, col = work.col0 + sliceCol;
    if (!hasV(row, b, sliceCol)) return uvec4(0);
    return KV_TYPE == 0 ? load8V(row.start, b * 64 + (line - GROUP_ID(0)) * 8, VALID_V(col)) : storedV8(row.start, 0, col);
}
const uint K_LANE_VECS = K_LANE_KEYS * QK_BLOCKS, V_LANE_VECS = V_LANE_KEYS * DV_BLOCKS;
#define LOAD_K(vec)                                                                                 \
    [[unroll]] for (uint n = 0; n < K_LANE_KEYS; ++n) {                                             \
        const LaneRow row = K_ROW(n);                                                               \
        [[unroll]] for (uint b = 0; b < QK_BLOCKS; ++b) vec[n * QK_BLOCKS + b] = loadVecK(row, b);  \
    }
#define LOAD_V(vec)                                                                                 \
    [[unroll]] for (uint n = 0; n < V_LANE_KEYS; ++n) {                                             \
        const LaneRow row = V_ROW(n);                                                               \
        [[unroll]] for (uint b = 0; b < DV_BLOCKS; ++b)                                             \
            vec[n * DV_BLOCKS + b] = loadVecV(row, b, GROUP_ID(n % LANE_FOLD));                     \
    }

// The vectors of the next tile become the vectors of this one.
#define COPY_NEXT_VECS                                                                              \
    {                                                                                               \
        [[unroll]] for (uint n = 0; n < (PREFETCH > 1 ? K_LANE_VECS : 0); ++n) kVec[n] = kNext[n];  \
        [[unroll]] for (uint n = 0; n < (PREFETCH > 0 ? V_LANE_VECS : 0); ++n) vVec[n] = vNext[n];  \
    }
// Two tiles in a turn of the KV loop instead. On an H200 pages of one key then take 4 to 5 % less time, contiguous rows 1 %
// more, quantized ones 15 to 33 % more (docs/log.md, 56).
const bool TWO_TILES = PREFETCH > 1 && !CONTIGUOUS_RUNS && KV_TYPE == 0;

// Words of operands from a vector. Quantized elements are converted here and not after their load: a use waits for
// the load.
uvec4 toOperandWords(uvec4 vec, uint col) {
    if (KV_TYPE == 0) return vec;
    return KEY_SCALES ? exactPairs(vec.xy) : decode8To16(vec.xy, uintBitsToFloat(vec.z), shiftOfColumn(col));
}
#define CONVERT_K(words, b)                                                                         \
    [[unroll]] for (uint n = 0; n < K_LANE_KEYS; ++n) words[n] = toOperandWords(K_TILE[n * QK_BLOCKS + (b)], THREAD_IN_GROUP * 8);
#define CONVERT_V(words, b)                                                                         \
    [[unroll]] for (uint n = 0; n < V_LANE_KEYS; ++n)                                               \
        words[n] = toOperandWords(V_TILE[n * DV_BLOCKS + (b)], work.col0 + GROUP_ID(n % LANE_FOLD) * 8);

// A lane's words of the operands: fragment t of the keys, fragment i of the block's columns. A word of V^T has the
// low or the high halves of words of two keys.
#define K_WORD(h, w) words[(t * 2 + (h)) * LANE_FOLD + s][i * 2 + (w)]
#define V_AT(u) words[(t * 4 + (u)) * LANE_FOLD + s][i]
#define V_LOW(u) lowHalves(V_AT(u), V_AT((u) + 1))
#define V_HIGH(u) highHalves(V_AT(u), V_AT((u) + 1))
