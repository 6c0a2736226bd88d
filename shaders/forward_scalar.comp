#version 460
// Exact attention forward on any device, in float32 and core Vulkan 1.1.
//
// Idea: a workgroup owns Q_TILE query rows of one head and one slice of O's columns, and walks
// over the keys in tiles of KV_TILE. Its invocations form a grid THREADS_X wide, as in a blocked
// matrix product: invocation (x, y) owns rows y, y + THREADS_Y, ... and, of a tile's scores, columns
// x, x + THREADS_X, ... In registers: its scores, its part of O, and its rows' maximum and sum. In
// shared memory: a chunk of CHUNK_D columns of Q and of K, in K's place later a chunk of CHUNK_V keys
// of V, and the tile's P. Everything is float32 there, zero where the tensors end.
// Softmax is online (Milakov 2018, Dao 2022): exact running maximum, exponents of two.
// Barriers, all uniform: two around each chunk that is staged, one when the partial maxima lie in the
// last THREADS_X columns of P. A row is summed in a fixed order and without atomics: the same bits
// every run. Tiles that every row sees whole go through one loop, the others through a masked one.
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#define ANY_DTYPE
#include "interface.glsl"

const uint THREADS_Y = LOCAL_SIZE / THREADS_X;
const uint ROWS = Q_TILE / THREADS_Y;                 // of an invocation
const uint KEYS = KV_TILE / THREADS_X;                 // scores per row of an invocation
const uint DV_QUADS = (DV_SLICE + 4 * THREADS_X - 1) / (4 * THREADS_X); // groups of 4 columns of O, likewise
const uint D_CHUNKS = (HEAD_DIM + CHUNK_D - 1) / CHUNK_D;

// Shared memory, in vec4. A staged row of Q or K has an odd number of them: neighbours lie in different banks.
const uint D_ROW = CHUNK_D / 4 + 1;
const uint V_ROW = DV_QUADS * THREADS_X;
const uint P_ROW = (KV_TILE + THREADS_X) / 4;
const uint KV_BASE = Q_TILE * D_ROW;
const uint K_SIZE = KV_TILE * D_ROW;
const uint V_SIZE = CHUNK_V * V_ROW;
shared vec4 smem[KV_BASE + (K_SIZE > V_SIZE ? K_SIZE : V_SIZE)]; // Q, then K or V
shared vec4 smemP[Q_TILE * P_ROW];                           // P, then THREADS_X partial results per row

#if GENERAL
#define SCORE_SCALE (SCORE_MOD ? 1.0 : p.scoreScale)
#define MASKED_PRODUCT (SCORE_SCALE < 0.0 ? INFINITY : -INFINITY) // times the scale, -Inf
#else
#define SCORE_SCALE p.scoreScale
#endif

uint x, y;              // this invocation's place in the grid
float S[ROWS][KEYS];
vec4 O[ROWS][DV_QUADS];
float rowMax[ROWS];     // in units of scores; the same in all invocations of a row
float rowSum[ROWS];     // of this invocation's columns
#if !GENERAL
uint visible[ROWS];     // the row sees columns [0, visible)
#endif

// Loops over an invocation's own rows and columns are unrolled, so that its arrays are registers. The
// others must not be: Mesa unrolls them, and lavapipe on LLVM 15 then took 74 s to compile what takes 4 s.
uint rowOf(uint i) { return y + i * THREADS_Y; }

// Eight columns at a time; rows past `rows` are zero, as are columns past the tensor's last.
#define STAGE(first, rowLength, tileRows, columns, col0, rows, LOAD)                                \
    {                                                                                               \
        const uint eights = (columns) / 8;                                                          \
        [[dont_unroll]] for (uint at = gl_LocalInvocationIndex; at < (tileRows) * eights; at += LOCAL_SIZE) { \
            const uint row = at / eights, col = at % eights * 8;                                    \
            vec4 low = vec4(0.0), high = vec4(0.0);                                                 \
            if (row < (rows)) LOAD(slice, row, (col0) + col, low, high);                            \
            smem[(first) + row * (rowLength) + col / 4] = low;                                      \
            smem[(first) + row * (rowLength) + col / 4 + 1] = high;                                 \
        }                                                                                           \
    }

#if GENERAL
void loadRowQ(Slice slice, uint row, uint col, out vec4 low, out vec4 high) {
    loadFloatsAtQ(slice, elementQ(work.row0 + row), col, low, high);
}
// A key of the walk by its place there: zeros where there is none.
#define LOAD_KEY(T)                                                                                 \
    const uint key = keyAt(at);                                                                     \
    if (key == NO_KEY) return;                                                                      \
    const KVRow kvRow = kvRowOf(key);                                                               \
    if (KV_TYPE == 0) loadFloats##T(rows##T(kvRow), 0, col, low, high);                             \
    else dequantize(scaled##T##8(rows##T(kvRow), 0, col, kvRow), low, high);
void loadKeyK(uint at, uint col, inout vec4 low, inout vec4 high) { LOAD_KEY(K) }
void loadKeyV(uint at, uint col, inout vec4 low, inout vec4 high) { LOAD_KEY(V) }
#define KEY_K(firstCol, row, col, low, high) loadKeyK(firstCol + row, col, low, high)
#define KEY_V(firstCol, row, col, low, high) loadKeyV(firstCol + row, col, low, high)
void stageQ(Slice slice, uint rows, uint d0) { STAGE(0, D_ROW, Q_TILE, CHUNK_D, d0, rows, loadRowQ) }
void stageK(uint slice, uint rows, uint d0) { STAGE(KV_BASE, D_ROW, KV_TILE, CHUNK_D, d0, rows, KEY_K) }
void stageV(uint slice, uint rows, uint col0) { STAGE(KV_BASE, V_ROW, CHUNK_V, V_ROW * 4, col0, rows, KEY_V) }
#define KVTile uint // the walk's number of its first key
#else
void stageQ(Slice slice, uint rows, uint d0) { STAGE(0, D_ROW, Q_TILE, CHUNK_D, d0, rows, loadFloatsQ) }
void stageK(Slice slice, uint rows, uint d0) { STAGE(KV_BASE, D_ROW, KV_TILE, CHUNK_D, d0, rows, loadFloatsK) }
void stageV(Slice slice, uint rows, uint col0) { STAGE(KV_BASE, V_ROW, CHUNK_V, V_ROW * 4, col0, rows, loadFloatsV) }
#define KVTile Slice
#endif

// S += Q K^T over the staged columns.
void multiplyChunk() {
    [[dont_unroll]] for (uint d = 0; d < CHUNK_D / 4; d += 2) {
        vec4 low[ROWS], high[ROWS];
        [[unroll]] for (uint i = 0; i < ROWS; i++) {
            low[i] = smem[rowOf(i) * D_ROW + d];
            high[i] = smem[rowOf(i) * D_ROW + d + 1];
        }
        [[unroll]] for (uint j = 0; j < KEYS; j++) {
            const vec4 k = smem[KV_BASE + (x + j * THREADS_X) * D_ROW + d];
            const vec4 l = smem[KV_BASE + (x + j * THREADS_X) * D_ROW + d + 1];
            [[unroll]] for (uint i = 0; i < ROWS; i++) {
                // Eight products a sum of their own: a large score is rounded once for them.
                float dot8 = fma(low[i].w, k.w, fma(low[i].z, k.z, fma(low[i].y, k.y, low[i].x * k.x)));
                dot8 = fma(high[i].w, l.w, fma(high[i].z, l.z, fma(high[i].y, l.y, fma(high[i].x, l.x, dot8))));
                S[i][j] += dot8;
            }
        }
    }
}

void computeScores(Slice sliceQ_, KVTile tileK, uint rowsQ, uint rowsK) {
    [[unroll]] for (uint i = 0; i < ROWS; i++)
        [[unroll]] for (uint j = 0; j < KEYS; j++) S[i][j] = 0.0;
    [[dont_unroll]] for (uint d0 = 0; d0 < HEAD_DIM; d0 += CHUNK_D) {
        barrier(); // what was staged before has been used
        if (D_CHUNKS > 1) stageQ(sliceQ_, rowsQ, d0);
        stageK(tileK, rowsK, d0);
        barrier();
        multiplyChunk();
    }
}

// One value per row and invocation goes beside P; all read all of their rows' values back.
void sharePartial(uint i, float value) {
    smemP[rowOf(i) * P_ROW + (KV_TILE + x) / 4][(KV_TILE + x) % 4] = value;
}

vec4 partials(uint i, uint quad) {
    return smemP[rowOf(i) * P_ROW + KV_TILE / 4 + quad];
}

// Scores to P, with the running maximum and sum; O and the sum are rescaled.
void softmax(WorkTile w, uint firstCol, bool masked) {
    [[unroll]] for (uint i = 0; i < ROWS; i++) {
        float top = ROW_MAX_INIT;
        [[unroll]] for (uint j = 0; j < KEYS; j++) {
            // Selected, not added: a masked score may be NaN.
#if GENERAL
            const uint key = keyAt(firstCol + x + j * THREADS_X), row = w.row0 + rowOf(i);
            if (SCORE_MOD) S[i][j] = scoreMod(S[i][j] * p.scoreScale, row, key);
            if (masked && (key == NO_KEY || !attends(row, key))) S[i][j] = MASKED_PRODUCT;
            top = max(top, S[i][j] * SCORE_SCALE);
#else
            const bool hidden = masked && firstCol + x + j * THREADS_X >= visible[i];
            top = max(top, hidden ? -INFINITY : S[i][j] * p.scoreScale);
#endif
        }
        sharePartial(i, top);
    }
    barrier(); // the partial maxima are there; and K's place is free
    [[unroll]] for (uint i = 0; i < ROWS; i++) {
        float top = rowMax[i];
        [[unroll]] for (uint quad = 0; quad < THREADS_X / 4; quad++) {
            const vec4 four = partials(i, quad);
            top = max(top, max(max(four.x, four.y), max(four.z, four.w)));
        }
        const float factor = exp2(TO_LOG2(rowMax[i] - top));
        rowMax[i] = top;
        rowSum[i] *= factor;
        [[unroll]] for (uint n = 0; n < DV_QUADS; n++) O[i][n] *= factor;
        [[unroll]] for (uint j = 0; j < KEYS; j++) {
            // Fused, so that the product is not rounded before the row max is subtracted; but see LARGE_SCORE.
            const float exponent = NATURAL_SCORES ? (S[i][j] - top) * LOG2E
                : abs(top) < LARGE_SCORE ? fma(S[i][j], SCORE_SCALE, -top) : roundedDifference(S[i][j], SCORE_SCALE, top);
            // exp2 need not keep a NaN, and SwiftShader's makes it infinity.
            float prob = isnan(exponent) ? exponent : exp2(exponent);
#if !GENERAL
            if (masked && firstCol + x + j * THREADS_X >= visible[i]) prob = 0.0;
#endif
            rowSum[i] += prob;
            const uint col = x + j * THREADS_X;
            smemP[rowOf(i) * P_ROW + col / 4][col % 4] = prob;
        }
    }
}

// O += P V over the staged keys, which start at key of the tile.
void accumulateChunk(uint firstCol, uint key, bool masked) {
    [[dont_unroll]] for (uint k = 0; k < CHUNK_V; k += 4) {
        vec4 prob[ROWS];
        [[unroll]] for (uint i = 0; i < ROWS; i++) prob[i] = smemP[rowOf(i) * P_ROW + (key + k) / 4];
        [[unroll]] for (uint kk = 0; kk < 4; kk++) {
            [[unroll]] for (uint n = 0; n < DV_QUADS; n++) {
                const vec4 v = smem[KV_BASE + (k + kk) * V_ROW + x + n * THREADS_X];
                [[unroll]] for (uint i = 0; i < ROWS; i++) {
                    const vec4 sum = fma(vec4(prob[i][kk]), v, O[i][n]);
                    // 0 * NaN is NaN: a value the row does not see is not even multiplied in.
#if GENERAL
                    if (!masked || prob[i][kk] != 0.0) O[i][n] = sum;
#else
                    if (!masked || firstCol + key + k + kk < visible[i]) O[i][n] = sum;
#endif
                }
            }
        }
    }
}

void accumulateOutput(KVTile tileV, uint firstCol, uint col0, bool masked) {
    [[dont_unroll]] for (uint key = 0; key < KV_TILE; key += CHUNK_V) {
        if (key > 0) barrier(); // the chunk before has been used
#if GENERAL
        stageV(tileV + key, CHUNK_V, col0);
#else
        const uint done = firstCol + key;
        stageV(advanceV(tileV, key), max(p.Sk, done) - done, col0);
#endif
        barrier(); // the chunk is there; with the first one, P too
        accumulateChunk(firstCol, key, masked);
    }
}

void attendTile(WorkTile w, Slice sliceQ_, uint firstCol, bool masked) {
#if GENERAL
    computeScores(sliceQ_, firstCol, w.rows - w.row0, KV_TILE);
    softmax(w, firstCol, masked);
    accumulateOutput(firstCol, firstCol, w.col0, masked);
#else
    computeScores(sliceQ_, sliceK(w.batch, w.kvHead, firstCol), p.Sq - w.row0, p.Sk - firstCol);
    softmax(w, firstCol, masked);
    // Keys past the end are staged as zeros, so only the causal mask needs care in P V.
    accumulateOutput(sliceV(w.batch, w.kvHead, firstCol), firstCol, w.col0, masked && CAUSAL != 0);
#endif
}

void main() {
    x = gl_LocalInvocationIndex % THREADS_X;
    y = gl_LocalInvocationIndex / THREADS_X;
#if GENERAL
    if (!findWorkTile(Q_TILE)) return;
    const WorkTile w = work;
    const uint rows = w.rows, lastRow = min(w.row0 + Q_TILE, rows) - 1;
    const Slice q = blockQ();
#else
    const WorkTile w = workTile(Q_TILE);
    const uint rows = p.Sq;
    const Slice q = sliceQ(w.batch, w.head, w.row0);
#endif
    [[unroll]] for (uint i = 0; i < ROWS; i++) {
        [[unroll]] for (uint n = 0; n < DV_QUADS; n++) O[i][n] = vec4(0.0);
        rowMax[i] = ROW_MAX_INIT;
        rowSum[i] = 0.0;
#if !GENERAL
        visible[i] = visibleKeys(w.row0 + rowOf(i));
#endif
    }
    if (D_CHUNKS == 1) stageQ(q, rows - w.row0, 0); // stays

#if GENERAL
    const KVRange kv = kvRange(lastRow);
    const uint unmasked = kv.unmaskedLast - kv.unmaskedFirst, tiles = kv.last - kv.first;
    for (uint n = 0; n < unmasked; n++) attendTile(w, q, kvTileAt(kv, n) * KV_TILE, false);
    for (uint n = nextKVTile(kv, unmasked, lastRow); n < tiles; n = nextKVTile(kv, n + 1, lastRow))
        attendTile(w, q, kvTileAt(kv, n) * KV_TILE, true);
#else

    // Under a causal mask a later row sees more: the first row decides which tiles are whole, the last which exist.
    const uint unmasked = visibleKeys(w.row0) / KV_TILE * KV_TILE;
    const uint end = visibleKeys(min(w.row0 + Q_TILE, p.Sq) - 1);
    for (uint firstCol = 0; firstCol < unmasked; firstCol += KV_TILE) attendTile(w, q, firstCol, false);
    for (uint firstCol = unmasked; firstCol < end; firstCol += KV_TILE) attendTile(w, q, firstCol, true);
#endif

    barrier(); // the last P has been used
    [[unroll]] for (uint i = 0; i < ROWS; i++) sharePartial(i, rowSum[i]);
    barrier();
#if GENERAL
    const Slice o = blockO();
#else
    const Slice o = sliceO(w.batch, w.head, w.row0);
#endif
    [[unroll]] for (uint i = 0; i < ROWS; i++) {
        const uint row = w.row0 + rowOf(i);
        if (row < rows) {
            float sum = 0.0;
            [[unroll]] for (uint quad = 0; quad < THREADS_X / 4; quad++) sum += dot(partials(i, quad), vec4(1.0));
#if GENERAL
            const bool empty = sum == 0.0;
            const float sink = SINKS != 0 ? sinkTerm(row, rowMax[i]) : 0.0;
            const float inverse = isNaN(sink) ? sink : empty ? 0.0 : 1.0 / (sum + sink);
            [[unroll]] for (uint n = 0; n < DV_QUADS; n++) {
                const uint sliceCol = 4 * (x + n * THREADS_X), col = w.col0 + sliceCol;
                if (sliceCol >= DV_SLICE || col >= HEAD_DIM_V) continue;
                if (SPLIT != 0) storeState4(row, col, O[i][n] * inverse);
                else store4O(o, elementO(row) + col, O[i][n] * inverse, HEAD_DIM_V - col);
            }
            if (HAS_LSE != 0 && w.col0 == 0 && x == 0)
                storeRowLSE(row, lseWithSink(row, empty ? -INFINITY : logSumExp(rowMax[i], sum)));
#else
            const bool empty = visible[i] == 0;
            const float inverse = empty ? 0.0 : 1.0 / sum;
            [[unroll]] for (uint n = 0; n < DV_QUADS; n++) {
                const uint col = 4 * (x + n * THREADS_X);
                if (col < DV_SLICE) storeO4(o, rowOf(i), w.col0 + col, O[i][n] * inverse);
            }
            if (HAS_LSE != 0 && w.col0 == 0 && x == 0)
                storeLSE(w.batch, w.head, row, empty ? -INFINITY : logSumExp(rowMax[i], sum));
#endif
        }
    }
}
