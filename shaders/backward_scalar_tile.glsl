// Tiles, shared memory and registers of the scalar backward kernels. A workgroup owns OWN_TILE rows (or keys) and loops
// over tiles of STREAM_TILE keys (or rows). Its invocations form a grid: x along the streamed side, y along the owned
// side.
//
// Before it includes this file the kernel defines OWN_TILE and STREAM_TILE, OWNS_ROWS (else it owns keys), and
// LISTED_KEYS: its tiles hold the keys of the list of sparse tokens, if the call has one.

const uint THREADS_Y = LOCAL_SIZE / THREADS_X;
const uint OWN = OWN_TILE / THREADS_Y;                    // owned rows per invocation
const uint STREAM = STREAM_TILE / THREADS_X;              // scores per owned row of an invocation
const uint FEWER = STREAM < OWN ? STREAM : OWN;
// Groups of 4 columns of a gradient per owned row of an invocation.
const uint D_QUADS = (HEAD_DIM + 4 * THREADS_X - 1) / (4 * THREADS_X);
const uint DV_QUADS = (HEAD_DIM_V + 4 * THREADS_X - 1) / (4 * THREADS_X);

// Shared memory, in vec4. swizzled() spreads a column of neighbouring rows of a chunk over all banks, without padding.
const uint D_ROW = CHUNK_D / 4; // a power of two
const uint FULL_ROW = (D_QUADS > DV_QUADS ? D_QUADS : DV_QUADS) * THREADS_X;
const uint STREAM_BASE = OWN_TILE * D_ROW;
const uint CHUNKS_SIZE = STREAM_BASE + STREAM_TILE * D_ROW;
const uint FULL_SIZE = CHUNK_V * FULL_ROW;
const uint W_ROW = STREAM_TILE / 4;
shared vec4 smem[CHUNKS_SIZE > FULL_SIZE ? CHUNKS_SIZE : FULL_SIZE + 1]; // a chunk of columns of both tiles, or whole streamed rows and the tag
shared vec4 smemW[OWN_TILE * W_ROW];                      // P or dS: a row per owned row

uint x, y;               // this invocation's place in the grid
uint firstKey;           // first key of the tile; LISTED_KEYS: its first slot, see keyAt
Slice tileQ, tileDO;     // from the first query of the row tile on
float S[OWN][STREAM];    // Q K^T, then P
float dP[OWN][STREAM];   // dO V^T, then dX
float slope[OWN][STREAM]; // derivative of the softcap
float chunkTag = 0.0;    // number of the chunk of whole rows; smem[FULL_SIZE].x has it if the chunk holds an Inf or a NaN

// Loops over an invocation's own rows and columns are unrolled and others are not, see scalar_tile.glsl.
uint ownOf(uint i) { return y + i * THREADS_Y; }
uint streamOf(uint j) { return x + j * THREADS_X; }
uint rowOf(uint i, uint j) { return work.row0 + (OWNS_ROWS ? ownOf(i) : streamOf(j)); }

// Key n of the tile, NO_KEY past the end.
uint keyOf(uint n) {
    if (LISTED_KEYS) return keyAt(firstKey + n);
    return firstKey + n < work.seqlenK ? firstKey + n : NO_KEY;
}

// Before the first chunk: no chunk has tag 0. The barrier of the first chunk follows.
void openChunks() {
    if (gl_LocalInvocationIndex == 0) smem[FULL_SIZE].x = 0.0;
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

// Element d of row n of a chunk of columns.
uint swizzled(uint n, uint d) { return n * D_ROW + (d ^ (D_ROW >= 8 ? n : n * D_ROW / 8) % D_ROW); }
// Element d of row n of a chunk of whole rows.
uint inFullRow(uint n, uint d) { return n * FULL_ROW + d; }

// Some of the eight elements are Inf or NaN.
bool anyNonFinite(vec4 low, vec4 high) {
    const uvec4 bits = max(floatBitsToUint(low) & 0x7fffffffu, floatBitsToUint(high) & 0x7fffffffu);
    return max(max(bits.x, bits.y), max(bits.z, bits.w)) >= 0x7f800000u;
}

// Stores `columns` columns of tileRows rows, from row0 and col0 on, in smem, eight at a time. READ leaves the zeros
// where there is no row; columns past the last one are zero too. NOTICE may look at the eight elements.
#define NOTICE_NOTHING(low, high)
#define STAGE(first, PLACE, row0, tileRows, col0, columns, READ, NOTICE)                            \
    {                                                                                               \
        const uint eights = (columns) / 8;                                                          \
        [[unroll]] for (uint step = 0; step < ((tileRows) * eights + LOCAL_SIZE - 1) / LOCAL_SIZE; step++) { \
            const uint at = gl_LocalInvocationIndex + step * LOCAL_SIZE;                            \
            if (at < (tileRows) * eights) {                                                         \
                const uint n = at / eights, col = at % eights * 8;                                  \
                vec4 low = vec4(0.0), high = vec4(0.0);                                             \
                READ((row0) + n, (col0) + col, low, high);                                          \
                NOTICE(low, high)                                                                   \
                smem[(first) + PLACE(n, col / 4)] = low;                                            \
                smem[(first) + PLACE(n, col / 4 + 1)] = high;                                       \
            }                                                                                       \
        }                                                                                           \
    }

// A sum of eight products first: a large score is then rounded once per eight.
float dot8(vec4 a, vec4 b, vec4 c, vec4 d) {
    const float sum = fma(a.w, c.w, fma(a.z, c.z, fma(a.y, c.y, a.x * c.x)));
    return fma(b.w, d.w, fma(b.z, d.z, fma(b.y, d.y, fma(b.x, d.x, sum))));
}

#define OWN_VEC(i, d) smem[swizzled(ownOf(i), d)]
#define STREAM_VEC(j, d) smem[STREAM_BASE + swizzled(streamOf(j), d)]

// result += own streamed^T over the chunk in shared memory. The side with fewer rows waits in registers.
#define MULTIPLY_CHUNK(result)                                                                      \
    [[dont_unroll]] for (uint d = 0; d < CHUNK_D / 4; d += 2) {                                     \
        vec4 low[FEWER], high[FEWER];                                                               \
        [[unroll]] for (uint i = 0; i < FEWER; i++) {                                               \
            low[i] = STREAM < OWN ? STREAM_VEC(i, d) : OWN_VEC(i, d);                               \
            high[i] = STREAM < OWN ? STREAM_VEC(i, d + 1) : OWN_VEC(i, d + 1);                      \
        }                                                                                           \
        if (STREAM < OWN) {                                                                         \
            [[unroll]] for (uint i = 0; i < OWN; i++) {                                             \
                const vec4 a = OWN_VEC(i, d), b = OWN_VEC(i, d + 1);                                \
                [[unroll]] for (uint j = 0; j < STREAM; j++) result[i][j] += dot8(a, b, low[j], high[j]); \
            }                                                                                       \
        } else {                                                                                    \
            [[unroll]] for (uint j = 0; j < STREAM; j++) {                                          \
                const vec4 a = STREAM_VEC(j, d), b = STREAM_VEC(j, d + 1);                          \
                [[unroll]] for (uint i = 0; i < OWN; i++) result[i][j] += dot8(low[i], high[i], a, b); \
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
            STAGE(0, swizzled, 0, OWN_TILE, d0, CHUNK_D, READ_OWN, NOTICE_NOTHING)                  \
            STAGE(STREAM_BASE, swizzled, 0, STREAM_TILE, d0, CHUNK_D, READ_STREAM, NOTICE_NOTHING)  \
            barrier();                                                                              \
            MULTIPLY_CHUNK(result)                                                                  \
        }                                                                                           \
    }

// sum += W streamed over the chunk of whole rows in shared memory. With SKIP a W of 0 is skipped.
#define ADD_CHUNK(sum, quads, first, SKIP)                                                          \
    [[dont_unroll]] for (uint k = 0; k < CHUNK_V; k += 4) {                                         \
        vec4 w[OWN];                                                                                \
        [[unroll]] for (uint i = 0; i < OWN; i++) w[i] = smemW[ownOf(i) * W_ROW + ((first) + k) / 4]; \
        [[unroll]] for (uint kk = 0; kk < 4; kk++) {                                                \
            [[unroll]] for (uint n = 0; n < (quads); n++) {                                         \
                const vec4 streamed = smem[inFullRow(k + kk, x + n * THREADS_X)];                   \
                [[unroll]] for (uint i = 0; i < OWN; i++) {                                         \
                    const vec4 next = fma(vec4(w[i][kk]), streamed, sum[i][n]);                     \
                    if (!(SKIP) || w[i][kk] != 0.0) sum[i][n] = next;                               \
                }                                                                                   \
            }                                                                                       \
        }                                                                                           \
    }

// sum += W streamed, in chunks of CHUNK_V streamed rows, with W (P or dS) stored by storeW before. A W of 0 is skipped
// in chunks with an Inf or a NaN: 0 * NaN is NaN. Such a selection takes as many instructions as the products.
#define NOTICE_NON_FINITE(low, high) if (anyNonFinite(low, high)) smem[FULL_SIZE].x = chunkTag;
#define ADD_STREAMED(sum, quads, READ_STREAM)                                                       \
    [[dont_unroll]] for (uint first = 0; first < STREAM_TILE; first += CHUNK_V) {                   \
        barrier(); /* the last chunk is used */                                                     \
        chunkTag += 1.0;                                                                            \
        STAGE(0, inFullRow, first, CHUNK_V, 0, (quads) * THREADS_X * 4, READ_STREAM, NOTICE_NON_FINITE) \
        barrier(); /* the chunk is stored; before the first one W too */                            \
        if (smem[FULL_SIZE].x == chunkTag) {                                                        \
            ADD_CHUNK(sum, quads, first, true)                                                      \
        } else {                                                                                    \
            ADD_CHUNK(sum, quads, first, false)                                                     \
        }                                                                                           \
    }

void storeW(uint i, uint j, float value) {
    smemW[ownOf(i) * W_ROW + streamOf(j) / 4][streamOf(j) % 4] = value;
}

// The columns of an owned row that an invocation has in a gradient begin at this one, for n of its quads.
uint columnOf(uint n) { return 4 * (x + n * THREADS_X); }

// False if every row of the tile attends to every one of its keys.
bool tileIsMasked(uint lastRow) {
    return MASK_EVERY_TILE || SPARSE_TOKENS != 0 || visibleStart(lastRow) > firstKey || visibleEnd(work.row0) < firstKey + KV_TILE;
}
