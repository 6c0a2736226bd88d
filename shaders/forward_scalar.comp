#version 460
// Exact attention forward on any device, in float32 and core Vulkan 1.1.
//
// Idea: a workgroup owns BLOCK_ROWS query rows of one head and one slice of O's columns, and walks
// over the keys in tiles of BLOCK_COLS. Its invocations form a grid THREADS_X wide, as in a blocked
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
const uint ROWS = BLOCK_ROWS / THREADS_Y;                 // of an invocation
const uint COLS = BLOCK_COLS / THREADS_X;                 // scores per row of an invocation
const uint QUADS = (DV_SLICE + 4 * THREADS_X - 1) / (4 * THREADS_X); // groups of 4 columns of O, likewise
const uint D_CHUNKS = (HEAD_DIM + CHUNK_D - 1) / CHUNK_D;

// Shared memory, in vec4. A staged row of Q or K has an odd number of them: neighbours lie in different banks.
const uint D_ROW = CHUNK_D / 4 + 1;
const uint V_ROW = QUADS * THREADS_X;
const uint P_ROW = (BLOCK_COLS + THREADS_X) / 4;
const uint K_FIRST = BLOCK_ROWS * D_ROW;
const uint K_SIZE = BLOCK_COLS * D_ROW;
const uint V_SIZE = CHUNK_V * V_ROW;
shared vec4 staged[K_FIRST + (K_SIZE > V_SIZE ? K_SIZE : V_SIZE)]; // Q, then K or V
shared vec4 weights[BLOCK_ROWS * P_ROW];                           // P, then THREADS_X partial results per row

#if FEATURES
#define SCALE (MODIFIED ? 1.0 : p.scoreScale)
#define HIDDEN (SCALE < 0.0 ? INFINITY : -INFINITY) // times the scale, -Inf
#else
#define SCALE p.scoreScale
#endif

uint x, y;              // this invocation's place in the grid
float S[ROWS][COLS];
vec4 O[ROWS][QUADS];
float rowMax[ROWS];     // in units of scores; the same in all invocations of a row
float rowSum[ROWS];     // of this invocation's columns
#if !FEATURES
uint visible[ROWS];     // the row sees columns [0, visible)
#endif

// Loops over an invocation's own rows and columns are unrolled, so that its arrays are registers. The
// others must not be: Mesa unrolls them, and lavapipe on LLVM 15 then took 74 s to compile what takes 4 s.
uint rowOf(uint i) { return y + i * THREADS_Y; }

// Eight columns at a time; rows past `rows` are zero, as are columns past the tensor's last.
#define STAGE(first, rowLength, blockRows, columns, col0, rows, LOAD)                                 \
    {                                                                                                \
        const uint eights = (columns) / 8;                                                           \
        [[dont_unroll]] for (uint at = gl_LocalInvocationIndex; at < (blockRows) * eights; at += LOCAL_SIZE) { \
            const uint row = at / eights, col = at % eights * 8;                                     \
            vec4 low = vec4(0.0), high = vec4(0.0);                                                  \
            if (row < (rows)) LOAD(slice, row, (col0) + col, low, high);                             \
            staged[(first) + row * (rowLength) + col / 4] = low;                                     \
            staged[(first) + row * (rowLength) + col / 4 + 1] = high;                                \
        }                                                                                            \
    }

#if FEATURES
void loadRowQ(Slice slice, uint row, uint col, out vec4 low, out vec4 high) {
    loadFloatsAtQ(slice, elementQ(work.row0 + row), col, low, high);
}
// A key of the walk by its place there: zeros where there is none.
#define LOAD_KEY(T)                                                                                  \
    const uint key = keyAt(at);                                                                      \
    if (key == NO_KEY) return;                                                                       \
    const Place place = placeOf(key);                                                                \
    if (KV_TYPE == 0) loadFloats##T(rows##T(place), 0, col, low, high);                              \
    else decodeRaw(raw##T##8(rows##T(place), 0, col, place), low, high);
void loadKeyK(uint at, uint col, inout vec4 low, inout vec4 high) { LOAD_KEY(K) }
void loadKeyV(uint at, uint col, inout vec4 low, inout vec4 high) { LOAD_KEY(V) }
#define KEY_K(firstCol, row, col, low, high) loadKeyK(firstCol + row, col, low, high)
#define KEY_V(firstCol, row, col, low, high) loadKeyV(firstCol + row, col, low, high)
void stageQ(Slice slice, uint rows, uint d0) { STAGE(0, D_ROW, BLOCK_ROWS, CHUNK_D, d0, rows, loadRowQ) }
void stageK(uint slice, uint rows, uint d0) { STAGE(K_FIRST, D_ROW, BLOCK_COLS, CHUNK_D, d0, rows, KEY_K) }
void stageV(uint slice, uint rows, uint col0) { STAGE(K_FIRST, V_ROW, CHUNK_V, V_ROW * 4, col0, rows, KEY_V) }
#define Tile uint // the walk's number of its first key
#else
void stageQ(Slice slice, uint rows, uint d0) { STAGE(0, D_ROW, BLOCK_ROWS, CHUNK_D, d0, rows, loadFloatsQ) }
void stageK(Slice slice, uint rows, uint d0) { STAGE(K_FIRST, D_ROW, BLOCK_COLS, CHUNK_D, d0, rows, loadFloatsK) }
void stageV(Slice slice, uint rows, uint col0) { STAGE(K_FIRST, V_ROW, CHUNK_V, V_ROW * 4, col0, rows, loadFloatsV) }
#define Tile Slice
#endif

// S += Q K^T over the staged columns.
void multiplyChunk() {
    [[dont_unroll]] for (uint d = 0; d < CHUNK_D / 4; d += 2) {
        vec4 low[ROWS], high[ROWS];
        [[unroll]] for (uint i = 0; i < ROWS; i++) {
            low[i] = staged[rowOf(i) * D_ROW + d];
            high[i] = staged[rowOf(i) * D_ROW + d + 1];
        }
        [[unroll]] for (uint j = 0; j < COLS; j++) {
            const vec4 k = staged[K_FIRST + (x + j * THREADS_X) * D_ROW + d];
            const vec4 l = staged[K_FIRST + (x + j * THREADS_X) * D_ROW + d + 1];
            [[unroll]] for (uint i = 0; i < ROWS; i++) {
                // Eight products a sum of their own: a large score is rounded once for them.
                float part = fma(low[i].w, k.w, fma(low[i].z, k.z, fma(low[i].y, k.y, low[i].x * k.x)));
                part = fma(high[i].w, l.w, fma(high[i].z, l.z, fma(high[i].y, l.y, fma(high[i].x, l.x, part))));
                S[i][j] += part;
            }
        }
    }
}

void computeScores(Slice sliceQ_, Tile tileK, uint rowsQ, uint rowsK) {
    [[unroll]] for (uint i = 0; i < ROWS; i++)
        [[unroll]] for (uint j = 0; j < COLS; j++) S[i][j] = 0.0;
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
    weights[rowOf(i) * P_ROW + (BLOCK_COLS + x) / 4][(BLOCK_COLS + x) % 4] = value;
}

vec4 partials(uint i, uint quad) {
    return weights[rowOf(i) * P_ROW + BLOCK_COLS / 4 + quad];
}

// Scores to P, with the running maximum and sum; O and the sum are rescaled.
void softmax(Work w, uint firstCol, bool masked) {
    [[unroll]] for (uint i = 0; i < ROWS; i++) {
        float top = NO_ROW_MAX;
        [[unroll]] for (uint j = 0; j < COLS; j++) {
            // Selected, not added: a masked score may be NaN.
#if FEATURES
            const uint key = keyAt(firstCol + x + j * THREADS_X), row = w.row0 + rowOf(i);
            if (MODIFIED) S[i][j] = modified(S[i][j] * p.scoreScale, row, key);
            if (masked && (key == NO_KEY || !attends(row, key))) S[i][j] = HIDDEN;
            top = max(top, S[i][j] * SCALE);
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
        const float factor = exp2(EXPONENT(rowMax[i] - top));
        rowMax[i] = top;
        rowSum[i] *= factor;
        [[unroll]] for (uint n = 0; n < QUADS; n++) O[i][n] *= factor;
        [[unroll]] for (uint j = 0; j < COLS; j++) {
            // Fused, so that the product is not rounded before the row max is subtracted; but see LARGE_SCORE.
            const float exponent = NATURAL ? (S[i][j] - top) * LOG2E
                : abs(top) < LARGE_SCORE ? fma(S[i][j], SCALE, -top) : roundedDifference(S[i][j], SCALE, top);
            // exp2 need not keep a NaN, and SwiftShader's makes it infinity.
            float weight = isnan(exponent) ? exponent : exp2(exponent);
#if !FEATURES
            if (masked && firstCol + x + j * THREADS_X >= visible[i]) weight = 0.0;
#endif
            rowSum[i] += weight;
            const uint col = x + j * THREADS_X;
            weights[rowOf(i) * P_ROW + col / 4][col % 4] = weight;
        }
    }
}

// O += P V over the staged keys, which start at key of the tile.
void accumulateChunk(uint firstCol, uint key, bool masked) {
    [[dont_unroll]] for (uint k = 0; k < CHUNK_V; k += 4) {
        vec4 weight[ROWS];
        [[unroll]] for (uint i = 0; i < ROWS; i++) weight[i] = weights[rowOf(i) * P_ROW + (key + k) / 4];
        [[unroll]] for (uint kk = 0; kk < 4; kk++) {
            [[unroll]] for (uint n = 0; n < QUADS; n++) {
                const vec4 v = staged[K_FIRST + (k + kk) * V_ROW + x + n * THREADS_X];
                [[unroll]] for (uint i = 0; i < ROWS; i++) {
                    const vec4 sum = fma(vec4(weight[i][kk]), v, O[i][n]);
                    // 0 * NaN is NaN: a value the row does not see is not even multiplied in.
#if FEATURES
                    if (!masked || weight[i][kk] != 0.0) O[i][n] = sum;
#else
                    if (!masked || firstCol + key + k + kk < visible[i]) O[i][n] = sum;
#endif
                }
            }
        }
    }
}

void accumulateOutput(Tile tileV, uint firstCol, uint col0, bool masked) {
    [[dont_unroll]] for (uint key = 0; key < BLOCK_COLS; key += CHUNK_V) {
        if (key > 0) barrier(); // the chunk before has been used
#if FEATURES
        stageV(tileV + key, CHUNK_V, col0);
#else
        const uint done = firstCol + key;
        stageV(advanceV(tileV, key), max(p.Sk, done) - done, col0);
#endif
        barrier(); // the chunk is there; with the first one, P too
        accumulateChunk(firstCol, key, masked);
    }
}

void attendTile(Work w, Slice sliceQ_, uint firstCol, bool masked) {
#if FEATURES
    computeScores(sliceQ_, firstCol, w.rows - w.row0, BLOCK_COLS);
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
#if FEATURES
    if (!findWork(BLOCK_ROWS)) return;
    const Work w = work;
    const uint rows = w.rows, lastRow = min(w.row0 + BLOCK_ROWS, rows) - 1;
    const Slice q = blockQ();
#else
    const Work w = workOf(BLOCK_ROWS);
    const uint rows = p.Sq;
    const Slice q = sliceQ(w.batch, w.head, w.row0);
#endif
    [[unroll]] for (uint i = 0; i < ROWS; i++) {
        [[unroll]] for (uint n = 0; n < QUADS; n++) O[i][n] = vec4(0.0);
        rowMax[i] = NO_ROW_MAX;
        rowSum[i] = 0.0;
#if !FEATURES
        visible[i] = visibleColumns(w.row0 + rowOf(i));
#endif
    }
    if (D_CHUNKS == 1) stageQ(q, rows - w.row0, 0); // stays

#if FEATURES
    const Walk walk = walkOf(lastRow);
    const uint whole = walk.wholeLast - walk.wholeFirst, tiles = walk.last - walk.first;
    for (uint n = 0; n < whole; n++) attendTile(w, q, tileAt(walk, n) * BLOCK_COLS, false);
    for (uint n = nextTile(walk, whole, lastRow); n < tiles; n = nextTile(walk, n + 1, lastRow))
        attendTile(w, q, tileAt(walk, n) * BLOCK_COLS, true);
#else

    // Under a causal mask a later row sees more: the first row decides which tiles are whole, the last which exist.
    const uint whole = visibleColumns(w.row0) / BLOCK_COLS * BLOCK_COLS;
    const uint end = visibleColumns(min(w.row0 + BLOCK_ROWS, p.Sq) - 1);
    for (uint firstCol = 0; firstCol < whole; firstCol += BLOCK_COLS) attendTile(w, q, firstCol, false);
    for (uint firstCol = whole; firstCol < end; firstCol += BLOCK_COLS) attendTile(w, q, firstCol, true);
#endif

    barrier(); // the last P has been used
    [[unroll]] for (uint i = 0; i < ROWS; i++) sharePartial(i, rowSum[i]);
    barrier();
#if FEATURES
    const Slice o = blockO();
#else
    const Slice o = sliceO(w.batch, w.head, w.row0);
#endif
    [[unroll]] for (uint i = 0; i < ROWS; i++) {
        const uint row = w.row0 + rowOf(i);
        if (row < rows) {
            float sum = 0.0;
            [[unroll]] for (uint quad = 0; quad < THREADS_X / 4; quad++) sum += dot(partials(i, quad), vec4(1.0));
#if FEATURES
            const bool empty = sum == 0.0;
            const float sink = SINKS != 0 ? sinkWeight(row, rowMax[i]) : 0.0;
            const float inverse = isNaN(sink) ? sink : empty ? 0.0 : 1.0 / (sum + sink);
            [[unroll]] for (uint n = 0; n < QUADS; n++) {
                const uint mine = 4 * (x + n * THREADS_X), col = w.col0 + mine;
                if (mine >= DV_SLICE || col >= HEAD_DIM_V) continue;
                if (SPLIT != 0) storeState4(row, col, O[i][n] * inverse);
                else store4O(o, elementO(row) + col, O[i][n] * inverse, HEAD_DIM_V - col);
            }
            if (HAS_LSE != 0 && w.col0 == 0 && x == 0)
                storeRowLSE(row, withSink(row, empty ? -INFINITY : logSumExp(rowMax[i], sum)));
#else
            const bool empty = visible[i] == 0;
            const float inverse = empty ? 0.0 : 1.0 / sum;
            [[unroll]] for (uint n = 0; n < QUADS; n++) {
                const uint col = 4 * (x + n * THREADS_X);
                if (col < DV_SLICE) storeO4(o, rowOf(i), w.col0 + col, O[i][n] * inverse);
            }
            if (HAS_LSE != 0 && w.col0 == 0 && x == 0)
                storeLSE(w.batch, w.head, row, empty ? -INFINITY : logSumExp(rowMax[i], sum));
#endif
        }
    }
}
