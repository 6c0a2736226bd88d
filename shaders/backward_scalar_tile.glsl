// Tiles of the scalar backward kernels and the scores of a tile.

// -- tiles ----------------------------------------------------------------------------------------
// Tiles, shared memory and registers of the scalar backward kernels. A workgroup owns OWN_TILE rows (or keys) and loops
// over tiles of STREAM_TILE keys (or rows). Its invocations form a grid: x along the streamed side, y along the owned
// side.
//
// Before it includes this file the kernel defines OWN_TILE and STREAM_TILE, OWNS_ROWS (else it owns keys), and
// LISTED_KEYS: its tiles hold the keys of the list of sparse tokens, if the call has one.

const uint THREADS_Y = LOCAL_SIZE / THREADS_X;
const uint OWN = OWN_TILE / THREADS_Y;                    // owned rows per invocation
const uint STREAM = STREAM_TILE / THREADS_X;              // scores per owned row of an invocation
// Groups of 4 columns of a gradient per owned row of an invocation.
const uint D_QUADS = (HEAD_DIM + 4 * THREADS_X - 1) / (4 * THREADS_X);
const uint DV_QUADS = (HEAD_DIM_V + 4 * THREADS_X - 1) / (4 * THREADS_X);

// Shared memory, in vec4. Rows of a chunk of columns have an odd length: neighbouring rows start in different banks.
const uint D_ROW = CHUNK_D / 4 + 1;
const uint FULL_ROW = (D_QUADS > DV_QUADS ? D_QUADS : DV_QUADS) * THREADS_X;
const uint STREAM_BASE = OWN_TILE * D_ROW;
const uint CHUNKS_SIZE = STREAM_BASE + STREAM_TILE * D_ROW;
const uint FULL_SIZE = CHUNK_V * FULL_ROW;
const uint W_ROW = STREAM_TILE / 4;
shared vec4 smem[CHUNKS_SIZE > FULL_SIZE ? CHUNKS_SIZE : FULL_SIZE]; // a chunk of columns of both tiles, or whole streamed rows
shared vec4 smemW[OWN_TILE * W_ROW];                      // P or dS: a row per owned row

uint x, y;               // this invocation's place in the grid
uint firstKey;           // first key of the tile; LISTED_KEYS: its first slot, see keyAt
Slice tileQ, tileDO;     // from the first query of the row tile on
float S[OWN][STREAM];    // Q K^T, then P
float dP[OWN][STREAM];   // dO V^T, then dX
float slope[OWN][STREAM]; // slotSlope

// Loops over an invocation's own rows and columns are unrolled and others are not, see scalar_tile.glsl.
uint ownOf(uint i) { return y + i * THREADS_Y; }
uint streamOf(uint j) { return x + j * THREADS_X; }
uint rowOf(uint i, uint j) { return work.row0 + (OWNS_ROWS ? ownOf(i) : streamOf(j)); }

// Key n of the tile, NO_KEY past the end.
uint keyOf(uint n) {
    if (LISTED_KEYS) return keyAt(firstKey + n);
    return firstKey + n < work.seqlenK ? firstKey + n : NO_KEY;
}

// The row tile begins at row0.
void openRows(uint row0) {
    work.row0 = row0;
    tileQ = sliceQ(rowBatch(), work.head, work.offsetQ + queryOf(row0));
    tileDO = sliceDO(rowBatch(), work.head, work.offsetQ + queryOf(row0));
}

// Eight columns of a row or key of the tile; unchanged if there is none.
void readQ(uint n, uint col, inout vec4 low, inout vec4 high) {
    const uint row = work.row0 + n;
    if (row < work.rows) loadFloatsAtQ(tileQ, rowElement(row, p.strideQHead, p.strideQSeq), col, low, high);
}
void readDO(uint n, uint col, inout vec4 low, inout vec4 high) {
    const uint row = work.row0 + n;
    if (row < work.rows) loadFloatsAtDO(tileDO, rowElement(row, p.strideDOHead, p.strideDOSeq), col, low, high);
}
void readK(uint n, uint col, inout vec4 low, inout vec4 high) {
    const uint key = keyOf(n);
    if (key == NO_KEY) return;
    const KVRow at = kvRowOf(key);
    loadFloatsK(sliceK(at.batch, work.kvHead, at.row), 0, col, low, high);
}
void readV(uint n, uint col, inout vec4 low, inout vec4 high) {
    const uint key = keyOf(n);
    if (key == NO_KEY) return;
    const KVRow at = kvRowOf(key);
    loadFloatsV(sliceV(at.batch, work.kvHead, at.row), 0, col, low, high);
}

// Stores `columns` columns of tileRows rows, from row0 and col0 on, in smem, eight at a time. READ leaves the zeros
// where there is no row; columns past the last one are zero too.
#define STAGE(first, rowLength, row0, tileRows, col0, columns, READ)                                \
    {                                                                                               \
        const uint eights = (columns) / 8;                                                          \
        [[dont_unroll]] for (uint at = gl_LocalInvocationIndex; at < (tileRows) * eights; at += LOCAL_SIZE) { \
            const uint n = at / eights, col = at % eights * 8;                                      \
            vec4 low = vec4(0.0), high = vec4(0.0);                                                 \
            READ((row0) + n, (col0) + col, low, high);                                              \
            smem[(first) + n * (rowLength) + col / 4] = low;                                        \
            smem[(first) + n * (rowLength) + col / 4 + 1] = high;                                   \
        }                                                                                           \
    }

// result += own streamed^T over the chunk in shared memory.
#define MULTIPLY_CHUNK(result)                                                                      \
    [[dont_unroll]] for (uint d = 0; d < CHUNK_D / 4; d += 2) {                                     \
        vec4 low[OWN], high[OWN];                                                                   \
        [[unroll]] for (uint i = 0; i < OWN; i++) {                                                 \
            low[i] = smem[ownOf(i) * D_ROW + d];                                                    \
            high[i] = smem[ownOf(i) * D_ROW + d + 1];                                               \
        }                                                                                           \
        [[unroll]] for (uint j = 0; j < STREAM; j++) {                                              \
            const vec4 k = smem[STREAM_BASE + streamOf(j) * D_ROW + d];                             \
            const vec4 l = smem[STREAM_BASE + streamOf(j) * D_ROW + d + 1];                         \
            [[unroll]] for (uint i = 0; i < OWN; i++) {                                             \
                /* A sum of eight products first: a large score is then rounded once per eight. */  \
                float dot8 = fma(low[i].w, k.w, fma(low[i].z, k.z, fma(low[i].y, k.y, low[i].x * k.x))); \
                dot8 = fma(high[i].w, l.w, fma(high[i].z, l.z, fma(high[i].y, l.y, fma(high[i].x, l.x, dot8)))); \
                result[i][j] += dot8;                                                               \
            }                                                                                       \
        }                                                                                           \
    }

// result = own streamed^T, in chunks of CHUNK_D columns. Two barriers a chunk; the last chunk is still in use behind it.
#define TILE_PRODUCT(result, columns, READ_OWN, READ_STREAM)                                        \
    {                                                                                               \
        [[unroll]] for (uint i = 0; i < OWN; i++)                                                   \
            [[unroll]] for (uint j = 0; j < STREAM; j++) result[i][j] = 0.0;                        \
        [[dont_unroll]] for (uint d0 = 0; d0 < (columns); d0 += CHUNK_D) {                          \
            barrier();                                                                              \
            STAGE(0, D_ROW, 0, OWN_TILE, d0, CHUNK_D, READ_OWN)                                     \
            STAGE(STREAM_BASE, D_ROW, 0, STREAM_TILE, d0, CHUNK_D, READ_STREAM)                     \
            barrier();                                                                              \
            MULTIPLY_CHUNK(result)                                                                  \
        }                                                                                           \
    }

// sum += W streamed, in chunks of CHUNK_V streamed rows, with W (P or dS) stored by storeW before. A W of 0 is skipped:
// the streamed row may hold anything then, and 0 * NaN is NaN.
#define ADD_STREAMED(sum, quads, READ_STREAM)                                                       \
    [[dont_unroll]] for (uint first = 0; first < STREAM_TILE; first += CHUNK_V) {                   \
        barrier(); /* the last chunk is used */                                                     \
        STAGE(0, FULL_ROW, first, CHUNK_V, 0, (quads) * THREADS_X * 4, READ_STREAM)                 \
        barrier(); /* the chunk is stored; before the first one W too */                            \
        [[dont_unroll]] for (uint k = 0; k < CHUNK_V; k += 4) {                                     \
            vec4 w[OWN];                                                                            \
            [[unroll]] for (uint i = 0; i < OWN; i++) w[i] = smemW[ownOf(i) * W_ROW + (first + k) / 4]; \
            [[unroll]] for (uint kk = 0; kk < 4; kk++) {                                            \
                [[unroll]] for (uint n = 0; n < (quads); n++) {                                     \
                    const vec4 streamed = smem[(k + kk) * FULL_ROW + x + n * THREADS_X];            \
                    [[unroll]] for (uint i = 0; i < OWN; i++) {                                     \
                        const vec4 next = fma(vec4(w[i][kk]), streamed, sum[i][n]);                 \
                        if (w[i][kk] != 0.0) sum[i][n] = next;                                      \
                    }                                                                               \
                }                                                                                   \
            }                                                                                       \
        }                                                                                           \
    }

void storeW(uint i, uint j, float value) {
    smemW[ownOf(i) * W_ROW + streamOf(j) / 4][streamOf(j) % 4] = value;
}

// Defines name(i, n): sums[i][n] where i and n need not be constants. The loops that store sums are long, and compilers keep
// some of them as loops. An array indexed by their counters would leave the registers for all of the kernel (docs/log/vulkan.md, 66).
#define SELECT_SUM(name, sums, quads)                                                               \
    vec4 name(uint i, uint n) {                                                                     \
        vec4 value = sums[0][0];                                                                    \
        [[unroll]] for (uint own = 0; own < OWN; own++)                                             \
            [[unroll]] for (uint quad = 0; quad < (quads); quad++)                                  \
                value = own == i && quad == n ? sums[own][quad] : value;                            \
        return value;                                                                               \
    }

// The columns of an owned row that an invocation has in a gradient begin at this one, for n of its quads.
uint columnOf(uint n) { return 4 * (x + n * THREADS_X); }

#ifdef CONSTANTS_TILE_MAP
// The next tile of those that the workgroup loops over, from `tile` on, that the tile map has, and whether all of it is
// attended to; words are those of a row of bits.
bool fullTile;
uint nextTileOfMap(uint words, uint tile, uint last) {
    const uint row = work.mapRow;
    while (tile < last) {
        const uint low = tile % 32, full = loadTileMap(row + tile / 32) >> low;
        const uint some = full | loadTileMap(row + words + tile / 32) >> low;
        fullTile = some != 0 && (full >> findLSB(some) & 1u) != 0;
        if (some != 0) return min(tile + findLSB(some), last);
        tile += 32 - low;
    }
    return last;
}
#endif

// False if every row of the tile attends to every one of its keys.
bool tileIsMasked(uint lastRow) {
#ifdef CONSTANTS_TILE_MAP
    if (TILE_MAP != 0) return !fullTile || SCORE_MOD && work.row0 + Q_TILE > work.rows; // a modifier of rows past the end need not be finite
#endif
    return MASK_EVERY_TILE || SPARSE_TOKENS != 0 || visibleStart(lastRow) > firstKey || visibleEnd(work.row0) < firstKey + KV_TILE;
}

// -- scores ---------------------------------------------------------------------------------------
// P and dX of a tile, in S and dP; P is that in front of dropout. Without LISTED_KEYS timesListed counts how often the list of sparse
// tokens names each key of the tile: a key that is listed twice counts twice.

const bool COUNTS_TOKENS = SPARSE_TOKENS != 0 && !LISTED_KEYS;
shared uint timesListed[COUNTS_TOKENS ? KV_TILE : 1];

void countTokens() {
    barrier(); // the last counts are used
    [[dont_unroll]] for (uint i = gl_LocalInvocationIndex; i < KV_TILE; i += LOCAL_SIZE) timesListed[i] = 0;
    barrier();
    [[dont_unroll]] for (uint i = gl_LocalInvocationIndex; i < work.kvLength; i += LOCAL_SIZE) {
        const uint token = loadSparseToken(work.firstToken + i);
        if (token >= firstKey && token - firstKey < KV_TILE) atomicAdd(timesListed[token - firstKey], 1);
    }
    barrier();
}

// Bit j of element i is 1 if slot (i, j) keeps its weight. Only with DROPOUT.
uint keptSlots[OWN];

// Sets them by way of smemW, which must not be in use: an invocation has slots of many groups of four keys.
void findKept() {
    [[dont_unroll]] for (uint n = gl_LocalInvocationIndex; n < Q_TILE * KV_TILE / 4; n += LOCAL_SIZE) {
        const uint row = n / (KV_TILE / 4), quad = n % (KV_TILE / 4);
        uint keep;
        KEPT_OF_SLOTS(keep, work.row0 + row, firstKey + 4 * quad, LISTED_KEYS && SPARSE_TOKENS != 0, keyAt)
        [[unroll]] for (uint i = 0; i < 4; i++) {
            const uint key = 4 * quad + i, own = OWNS_ROWS ? row : key, stream = OWNS_ROWS ? key : row;
            smemW[own * W_ROW + stream / 4][stream % 4] = float(keep >> i & 1u);
        }
    }
    barrier();
    [[unroll]] for (uint i = 0; i < OWN; i++) {
        keptSlots[i] = 0;
        [[unroll]] for (uint j = 0; j < STREAM; j++)
            if (smemW[ownOf(i) * W_ROW + streamOf(j) / 4][streamOf(j) % 4] != 0.0) keptSlots[i] |= 1u << j;
    }
}

// P or dP of a slot behind dropout.
float dropped(uint i, uint j, float value) {
    if (DROPOUT == 0) return value;
    return (keptSlots[i] >> j & 1u) != 0 ? value * keptScale : 0.0;
}

void computeP(bool masked) {
    if (DROPOUT != 0) findKept();
    [[unroll]] for (uint i = 0; i < OWN; i++)
        [[unroll]] for (uint j = 0; j < STREAM; j++) {
            const uint row = rowOf(i, j), n = OWNS_ROWS ? streamOf(j) : ownOf(i), key = keyOf(n);
            float prob = 0.0, slope_ = 1.0;
            if (!masked || key != NO_KEY && attends(row, key)) prob = slotP(S[i][j], row, key, loadStats(row), slope_);
            if (COUNTS_TOKENS) prob = timesListed[n] == 0 ? 0.0 : prob * float(timesListed[n]);
            S[i][j] = prob;
            slope[i][j] = slope_;
        }
}

void computeDX() {
    [[unroll]] for (uint i = 0; i < OWN; i++)
        [[unroll]] for (uint j = 0; j < STREAM; j++) dP[i][j] = slotDX(S[i][j], dropped(i, j, dP[i][j]), loadStats(rowOf(i, j)));
}

// dS without the scale; 0 where P is, whatever the slope is.
float slotDS(uint i, uint j) { return !HAS_SLOPE || S[i][j] == 0.0 ? dP[i][j] : dP[i][j] * slope[i][j]; }
