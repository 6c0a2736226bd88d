// Loads of the decode kernel: Q once, then the rows of K and V of each KV tile, ahead of their use.

// -- Q --------------------------------------------------------------------------------------------
// Q of decode_coopmat.comp: vectors of 16 bytes become operands. Macros over the variables of main, as the
// loads of forward_load.glsl and for the same reason.

// The lane's eight columns of a block of 32: 8 t to 8 t + 7, with K_NIBBLES 4 t to 4 t + 3 and 16 more.
uvec4 loadVecQ(Slice qBlock, uint element, uint col) {
    if (!K_NIBBLES) return load8Q(qBlock, element + THREAD_IN_GROUP * 8, HEAD_DIM % 8 == 0 ? 8 : elementsFromQ(col));
    const uint at = element + THREAD_IN_GROUP / 2 * 8;
    const uvec4 low = load8Q(qBlock, at), high = load8Q(qBlock, at + 16);
    return THREAD_IN_GROUP % 2 == 0 ? uvec4(low.xy, high.xy) : uvec4(low.zw, high.zw);
}
// Block b of rows g and g + 8. Rows and columns past the end are zero.
#define LOAD_Q_VECS                                                                                 \
    [[unroll]] for (uint n = 0; n < 2 * LANE_FOLD; ++n) {                                           \
        const uint row = n / LANE_FOLD * 8 + GROUP_ID(n % LANE_FOLD);                               \
        const uint element = elementQ(work.row0 + row);                                             \
        [[unroll]] for (uint b = 0; b < Q_LOAD_BLOCKS; ++b) {                                       \
            const uint col = QK_FIRST_COL + Q_BLOCK(b) * 32 + THREAD_IN_GROUP * 8;                  \
            qVec[n * Q_LOAD_BLOCKS + b] = (SUM_N > 8 || n < LANE_FOLD) && row < rows && hasQ(b, col) \
                ? interleavePairs(loadVecQ(qBlock, element + QK_FIRST_COL + Q_BLOCK(b) * 32, col) ^ flipQ) : uvec4(0); \
        }                                                                                           \
    }

// Fragments of Q in registers, or with Q_SMEM_CHUNKS in shared memory, where all subgroups read them.
#define Q_WORD(h, w) qVec[((h) * LANE_FOLD + s) * Q_LOAD_BLOCKS + i / 2][i % 2 * 2 + (w)]
#define FILL_Q                                                                                      \
    [[unroll]] for (uint i = 0; i < 2 * Q_LOAD_BLOCKS; ++i) {                                       \
        FragA Qi;                                                                                   \
        operandA(Qi, Q_WORD(0, 0), Q_WORD(0, 1), Q_WORD(1, 0), Q_WORD(1, 1))                        \
        if (Q_SMEM_CHUNKS == 0) Q[Q_SMEM_CHUNKS != 0 ? 0 : i] = Qi;                                 \
        else if (Q_BLOCK(i / 2) < QK_BLOCKS)                                                        \
            coopMatStore(Qi, smem, Q_BASE + 4 * Q_BLOCK(i / 2) + 2 * (i % 2), Q_STRIDE, gl_CooperativeMatrixLayoutRowMajor); \
    }

// -- K and V --------------------------------------------------------------------------------------
// Loads of K and V in decode_coopmat.comp: a lane loads vectors of 16 bytes that are its elements of fragments as
// they are, since keys and columns are renumbered to that end. No lane waits for another subgroup. With g = GROUP_ID,
// t = THREAD_IN_GROUP:
//   K  of each 16 keys of a tile keys g and g + 8, of each block of 32 columns columns 8 t to 8 t + 7. The first four are the
//      lane's of the block's first fragment, the others of the second; Q's columns follow (LOAD_Q_VECS).
//   V  of each 16 keys keys 2 t, 2 t + 1, 2 t + 8, 2 t + 9, of each block of 64 columns columns 8 g to 8 g + 7. Columns g and
//      g + 8 of fragment f are the block's columns 8 g + 2 f and 8 g + 2 f + 1.
// With quantized rows the middle two of each four columns are swapped (kv_scales.glsl), in Q and O too. Where a byte has
// two elements a lane takes both (K_NIBBLES, V_NIBBLES): of each block 4 n to 4 n + 3 and 16 more.

const uint K_LANE_KEYS = 2 * KV_FRAGS * LANE_FOLD; // keys a lane has vectors of
const uint V_LANE_KEYS = 4 * KV_FRAGS * LANE_FOLD;
#define K_SLOT(n) ((n) / (2 * LANE_FOLD) * 16 + (n) / LANE_FOLD % 2 * 8 + GROUP_ID((n) % LANE_FOLD))
#define V_SLOT(n) ((n) / (4 * LANE_FOLD) * 16 + THREAD_IN_GROUP * 2 + (n) / LANE_FOLD % 2 + (n) / LANE_FOLD / 2 % 2 * 8)

// -- rows of K and V in memory --------------------------------------------------------------------
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
const bool CONTIGUOUS_RUNS = SPARSE_TOKENS + PAGE_SIZE % 16 == 0;
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

// The slice from the lane's first column on. Where rows with KEY_SCALES begin at a word they are as rows of 16-bit
// elements here, and rows of blocks begin at the block of the subgroup's first column (storedBlock); other quantized rows begin at
// their first byte.
#define FROM_COLUMN(T, s)                                                                           \
    (T##_TYPE == 0 ? fromWord(s, T##_COLUMN / 2) : T##_WORDS && KEY_SCALES ? fromWord(s, T##_COLUMN / 4) :     \
     T##_WORDS ? fromWord(s, T##_FIRST_COL / QUANT_BLOCK * T##_UNIT_BYTES / 4) : s)
#define K_FIRST_COL QK_FIRST_COL
#define V_FIRST_COL (work.col0 + DV_FIRST_COL)
#define K_COLUMN (K_FIRST_COL + THREAD_IN_GROUP * 8)
#define V_COLUMN (V_FIRST_COL + GROUP_ID(0) * 8)

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
            if (KEY_SCALES) {                                                                       \
                [[unroll]] for (uint n = 0; n < LANE_KEYS; ++n) {                                   \
                    uint page = indices[0];                                                         \
                    [[unroll]] for (uint run = 1; run < (CONTIGUOUS_RUNS ? RUNS : 1); ++run)        \
                        if (n * SUBGROUP_SIZE + gl_SubgroupInvocationID >= run * 16) page = indices[run]; \
                    const KVRow at = kvRowOfIndex(slotOf(index, n), page);                          \
                    scales[n] = vec2(rowScaleK(at), rowScaleV(at));                                 \
                }                                                                                   \
            }                                                                                       \
            [[unroll]] for (uint run = 0; run < RUNS; ++run) { /* past the end: the last one */     \
                const uint start = RUNS_OF_16 ? runStart(index, run) : loadedSlot;                  \
                const KVRow first = kvRowOfIndex(start, indices[CONTIGUOUS_RUNS ? run : 0]);        \
                lastSlot[run] = work.seqlenK - 1 - start;                                           \
                kRun[run] = FROM_COLUMN(K, rowsK(first));                                           \
                vRun[run] = FROM_COLUMN(V, rowsV(first));                                           \
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
    LaneRow(rowsOn##T(list[RUN_OF(n, each)], min(RUNS_OF_16 ? (slot) % 16 : slot, lastSlot[RUN_OF(n, each)])), true)
#define ROW_OF_KEY(T)                                                                               \
    LaneRow rowOf##T(uint col) {                                                                    \
        const uvec4 rows = rowsOfKey[CONTIGUOUS_RUNS ? 0 : SUBGROUP_SLOT(col)];                     \
        const Slice first = ROWS_##T(rows);                                                         \
        return LaneRow(FROM_COLUMN(T, first), SPARSE_TOKENS == 0 || rows.y != NO_ROW);             \
    }
ROW_OF_KEY(K)
ROW_OF_KEY(V)
#define K_ROW(n) (CONTIGUOUS_RUNS ? RUN_ROW(K, kRun, n, K_SLOT(n), 2) : rowOfK(K_SLOT(n)))
#define V_ROW(n) (CONTIGUOUS_RUNS ? RUN_ROW(V, vRun, n, V_SLOT(n), 4) : rowOfV(V_SLOT(n)))

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
    if (K_TYPE == 0) return load8K(row.start, b * 32, VALID_K(col));
    if (!K_WORDS) return storedK8(row.start, 0, col);
    return KEY_SCALES ? uvec4(quantizedK(row.start, 0, b * 32, 8), 0, 0) : storedBlockK(row.start, b, THREAD_IN_GROUP);
}
uvec4 loadVecV(LaneRow row, uint b, uint line) {
    const uint sliceCol = DV_FIRST_COL + b * 64 + line * 8, col = work.col0 + sliceCol;
    if (!hasV(row, b, sliceCol)) return uvec4(0);
    if (V_TYPE == 0) return load8V(row.start, b * 64 + (line - GROUP_ID(0)) * 8, VALID_V(col));
    if (!V_WORDS) return storedV8(row.start, 0, col);
    return KEY_SCALES ? uvec4(quantizedV(row.start, 0, b * 64 + (line - GROUP_ID(0)) * 8, 8), 0, 0) : storedBlockV(row.start, 2 * b + line / 4, line % 4);
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
// Two tiles in a turn of the KV loop instead. On an H200 pages of one key then take 4 to 5 % less time, contiguous rows
// 1 % more, quantized ones 15 to 33 % more (docs/log/vulkan.md, 56).
const bool TWO_TILES = PREFETCH > 1 && !CONTIGUOUS_RUNS && K_TYPE == 0;

// Words of operands from a vector. Quantized elements are converted here and not after their load: a use waits for
// the load.
// block: the one of the row of which the vector is a part; its parity counts.
uvec4 toOperandWords(uint type, bool words, uvec4 vec, uint col, uint block) {
    if (type == 0) return vec;
    if (KEY_SCALES) return exactPairs(type, vec.xy);
    return words ? blockPairs(type, vec, block % 2 != 0, col / 8 % 4) : blockPairs(type, vec, shiftOfColumn(type, col));
}
// NaN of float8 is no NaN in an operand (exactPairs). A key of which K has one gets a scale that is NaN. Where subgroups have
// parts of a row, the operand gets a NaN instead.
#define MARK_NAN_KEYS                                                                               \
    if (KEY_SCALES && STORED_FACTOR(K_TYPE) != 1.0 && QK_SPLIT == 1) {                              \
        uint nan[K_LANE_KEYS], any = 0;                                                             \
        [[unroll]] for (uint n = 0; n < K_LANE_KEYS; ++n) {                                         \
            nan[n] = 0;                                                                             \
            [[unroll]] for (uint b = 0; b < QK_BLOCKS; ++b)                                         \
                nan[n] |= nanBytes(K_TILE[n * QK_BLOCKS + b].x) | nanBytes(K_TILE[n * QK_BLOCKS + b].y); \
            any |= nan[n];                                                                          \
        }                                                                                           \
        if (subgroupAny((any & 0x80808080u) != 0)) {                                                \
            [[unroll]] for (uint n = 0; n < K_LANE_KEYS; ++n)                                       \
                if ((nan[n] & 0x80808080u) != 0) storeScale(K_SCALE, K_SLOT(n), uintBitsToFloat(NAN_BITS)); \
            subgroupSync();                                                                         \
        }                                                                                           \
    }
// V's is added after the KV loop, as that of a key whose scale is no finite number. So are Inf and NaN of e5m2, which P
// that rounds to 0 would make NaN: the operand has 0.
#define NOTE_NAN_VALUES                                                                             \
    if (KEY_SCALES && STORED_FACTOR(V_TYPE) != 1.0) {                                               \
        uint any = 0;                                                                               \
        [[unroll]] for (uint n = 0; n < V_LANE_VECS; ++n) any |= nanBytes(V_TILE[n].x) | nanBytes(V_TILE[n].y); \
        nonFiniteScale = nonFiniteScale || (any & 0x80808080u) != 0;                                \
    }                                                                                               \
    if (V_TYPE == FLOAT8_E5M2) {                                                                    \
        uint any = 0;                                                                               \
        [[unroll]] for (uint n = 0; n < V_LANE_VECS; ++n) any |= nonFiniteBytes(V_TILE[n].x) | nonFiniteBytes(V_TILE[n].y); \
        if ((any & 0x80808080u) != 0) {                                                             \
            nonFiniteScale = true;                                                                  \
            [[unroll]] for (uint n = 0; n < V_LANE_VECS; ++n)                                       \
                V_TILE[n].xy = uvec2(dropNonFiniteBytes(V_TILE[n].x), dropNonFiniteBytes(V_TILE[n].y)); \
        }                                                                                           \
    }
#define CONVERT_K(words, b)                                                                         \
    [[unroll]] for (uint n = 0; n < K_LANE_KEYS; ++n)                                               \
        words[n] = IS_REST(K_TYPE, QK_FIRST_COL + (b) * 32) ? inOrder(rest16(K_TILE[n * QK_BLOCKS + (b)])) \
            : QK_SPLIT > 1 && KEY_SCALES ? exactPairsOrNaN(K_TYPE, K_TILE[n * QK_BLOCKS + (b)].xy)  \
            : toOperandWords(K_TYPE, K_WORDS, K_TILE[n * QK_BLOCKS + (b)], THREAD_IN_GROUP * 8, b);
#define CONVERT_V(words, b)                                                                         \
    [[unroll]] for (uint n = 0; n < V_LANE_KEYS; ++n)                                               \
        words[n] = toOperandWords(V_TYPE, V_WORDS, V_TILE[n * DV_BLOCKS + (b)], work.col0 + GROUP_ID(n % LANE_FOLD) * 8, GROUP_ID(n % LANE_FOLD) / 4);

// A lane's words of the operands: fragment t of the keys, fragment i of the block's columns. A word of V^T has the
// low or the high halves of words of two keys.
#define K_WORD(h, w) words[(t * 2 + (h)) * LANE_FOLD + s][i * 2 + (w)]
#define V_AT(u) words[(t * 4 + (u)) * LANE_FOLD + s][i]
#define V_LOW(u) lowHalves(V_AT(u), V_AT((u) + 1))
#define V_HIGH(u) highHalves(V_AT(u), V_AT((u) + 1))
