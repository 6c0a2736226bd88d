// A tile of the scalar forward kernels: shared memory and registers, loads, and what the KV loop does with it: S = Q
// K^T, softmax, O += P V. The kernel defines SCORE_SCALE, of S.

// -- tile -----------------------------------------------------------------------------------------
const uint THREADS_Y = LOCAL_SIZE / THREADS_X;
const uint ROWS = Q_TILE / THREADS_Y;                     // per invocation
const uint KEYS = KV_TILE / THREADS_X;                    // scores per row of an invocation
// Groups of 4 columns of O per row of an invocation.
const uint DV_QUADS = (DV_SLICE + 4 * THREADS_X - 1) / (4 * THREADS_X);
const uint D_CHUNKS = (HEAD_DIM + CHUNK_D - 1) / CHUNK_D;

// Shared memory, in vec4. Rows of Q and K have an odd length: neighbouring rows start in different banks.
const uint D_ROW = CHUNK_D / 4 + 1;
const uint V_ROW = DV_QUADS * THREADS_X;
const uint P_ROW = (KV_TILE + THREADS_X) / 4;
const uint KV_BASE = Q_TILE * D_ROW;
const uint K_SIZE = KV_TILE * D_ROW;
const uint V_SIZE = CHUNK_V * V_ROW;
shared vec4 smem[KV_BASE + (K_SIZE > V_SIZE ? K_SIZE : V_SIZE)]; // a chunk of Q, then one of K or V
shared vec4 smemP[Q_TILE * P_ROW];                        // P, then THREADS_X partial results per row

uint x, y;              // this invocation's place in the grid
float S[ROWS][KEYS];
vec4 O[ROWS][DV_QUADS];
float rowMax[ROWS];     // in units of scores; the same in all invocations of a row
float rowSum[ROWS];     // over this invocation's keys

// Loops over an invocation's own rows and columns are unrolled: its arrays are registers then. Other loops must not be:
// Mesa unrolls them, and lavapipe on LLVM 15 took 74 s instead of 4 s to compile the kernel.
uint rowOf(uint i) { return y + i * THREADS_Y; }

// Loads `columns` columns of tileRows rows into smem, eight at a time. Zero past `rows` and past the last column.
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

// -- loads and masks, dense and general -----------------------------------------------------------
//   stageQ, stageK        load CHUNK_D columns of the tile
//   STAGE_V(key)          loads the chunk of V at `key` of the tile
//   MASK_AND_MAX          masks S[i][j] and takes its maximum with top: it selects, as a masked score may be NaN
//   CLEAR_MASKED          sets P of a masked score to 0
//   ATTENDS(i, kk)        row i attends to key kk of four
#if GENERAL
void loadRowQ(Slice slice, uint row, uint col, out vec4 low, out vec4 high) {
    loadFloatsAtQ(slice, elementQ(work.row0 + row), col, low, high);
}
// Eight columns of the key in slot `at` of the KV loop; unchanged if there is none.
#define LOAD_KEY(T)                                                                                 \
    const uint key = keyAt(at);                                                                     \
    if (key == NO_KEY) return;                                                                      \
    const KVRow kvRow = kvRowOf(key);                                                               \
    if (T##_TYPE == 0) loadFloats##T(rows##T(kvRow), 0, col, low, high);                             \
    else {                                                                                          \
        const uvec4 raw = scaled##T##8(rows##T(kvRow), 0, col, kvRow);                              \
        if (IS_REST(T##_TYPE, col)) { low = widenBF16(raw.xy); high = widenBF16(raw.zw); }          \
        else dequantize(T##_TYPE, raw, low, high);                                                  \
    }
void loadKeyK(uint at, uint col, inout vec4 low, inout vec4 high) { LOAD_KEY(K) }
void loadKeyV(uint at, uint col, inout vec4 low, inout vec4 high) { LOAD_KEY(V) }
#define KEY_K(firstCol, row, col, low, high) loadKeyK(firstCol + row, col, low, high)
#define KEY_V(firstCol, row, col, low, high) loadKeyV(firstCol + row, col, low, high)
void stageQ(Slice slice, uint rows, uint d0) { STAGE(0, D_ROW, Q_TILE, CHUNK_D, d0, rows, loadRowQ) }
void stageK(uint slice, uint rows, uint d0) { STAGE(KV_BASE, D_ROW, KV_TILE, CHUNK_D, d0, rows, KEY_K) }
void stageV(uint slice, uint rows, uint col0) { STAGE(KV_BASE, V_ROW, CHUNK_V, V_ROW * 4, col0, rows, KEY_V) }
#define KVTile uint // first slot of the tile

#define MASK_AND_MAX(i, j, top)                                                                     \
    const uint key = keyAt(firstCol + x + j * THREADS_X), row = w.row0 + rowOf(i);                  \
    if (SCORE_MOD) S[i][j] = scoreMod(S[i][j] * p.scoreScale, row, key);                            \
    if (masked && (key == NO_KEY || !attends(row, key))) S[i][j] = MASKED_PRODUCT;                  \
    top = max(top, S[i][j] * SCORE_SCALE);
#define CLEAR_MASKED(i, j, prob) // exp2(-Inf) is 0
#define STAGE_V(key) stageV(tileV + key, CHUNK_V, col0);
#define ATTENDS(i, kk) (prob[i][kk] != 0.0)
#else
uint visible[ROWS];     // a row attends to keys [0, visible)

void stageQ(Slice slice, uint rows, uint d0) { STAGE(0, D_ROW, Q_TILE, CHUNK_D, d0, rows, loadFloatsQ) }
void stageK(Slice slice, uint rows, uint d0) { STAGE(KV_BASE, D_ROW, KV_TILE, CHUNK_D, d0, rows, loadFloatsK) }
void stageV(Slice slice, uint rows, uint col0) { STAGE(KV_BASE, V_ROW, CHUNK_V, V_ROW * 4, col0, rows, loadFloatsV) }
#define KVTile Slice // of K or V, from the tile's first key on

#define MASK_AND_MAX(i, j, top)                                                                     \
    const bool hidden = masked && firstCol + x + j * THREADS_X >= visible[i];                       \
    top = max(top, hidden ? -INFINITY : S[i][j] * p.scoreScale);
#define CLEAR_MASKED(i, j, prob) if (masked && firstCol + x + j * THREADS_X >= visible[i]) prob = 0.0;
#define STAGE_V(key)                                                                                \
    const uint done = firstCol + key;                                                               \
    stageV(advanceV(tileV, key), max(p.Sk, done) - done, col0);
#define ATTENDS(i, kk) (firstCol + key + k + kk < visible[i])
#endif

// -- S = Q K^T ------------------------------------------------------------------------------------
// In chunks of CHUNK_D columns; and exchange of one value per row and invocation.

// S += Q K^T over the chunk in shared memory.
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
                // A sum of eight products first: a large score is then rounded once per eight.
                float dot8 = fma(low[i].w, k.w, fma(low[i].z, k.z, fma(low[i].y, k.y, low[i].x * k.x)));
                dot8 = fma(high[i].w, l.w, fma(high[i].z, l.z, fma(high[i].y, l.y, fma(high[i].x, l.x, dot8))));
                S[i][j] += dot8;
            }
        }
    }
}

void computeScores(Slice qBlock, KVTile tileK, uint rowsQ, uint rowsK) {
    [[unroll]] for (uint i = 0; i < ROWS; i++)
        [[unroll]] for (uint j = 0; j < KEYS; j++) S[i][j] = 0.0;
    [[dont_unroll]] for (uint d0 = 0; d0 < HEAD_DIM; d0 += CHUNK_D) {
        barrier(); // the last chunk is used
        if (D_CHUNKS > 1) stageQ(qBlock, rowsQ, d0);
        stageK(tileK, rowsK, d0);
        barrier();
        multiplyChunk();
    }
}

// One value per row and invocation is stored behind P; all invocations of a row load all of them.
void sharePartial(uint i, float value) {
    smemP[rowOf(i) * P_ROW + (KV_TILE + x) / 4][(KV_TILE + x) % 4] = value;
}

vec4 partials(uint i, uint quad) {
    return smemP[rowOf(i) * P_ROW + KV_TILE / 4 + quad];
}

// -- softmax --------------------------------------------------------------------------------------
// Online softmax (Milakov 2018, Dao 2022): S becomes P, O and the row sum are rescaled to the new row max.

void softmax(WorkTile w, uint firstCol, bool masked) {
    [[unroll]] for (uint i = 0; i < ROWS; i++) {
        float top = ROW_MAX_INIT;
        [[unroll]] for (uint j = 0; j < KEYS; j++) {
            MASK_AND_MAX(i, j, top)
        }
        sharePartial(i, top);
    }
    barrier(); // the partial maxima are stored, and K is used
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
            // fma subtracts the row max from the exact product; but see LARGE_SCORE.
            const float exponent = NATURAL_SCORES ? (S[i][j] - top) * LOG2E
                : abs(top) < LARGE_SCORE ? fma(S[i][j], SCORE_SCALE, -top) : roundedDifference(S[i][j], SCORE_SCALE, top);
            // exp2 need not keep a NaN: SwiftShader's makes it infinity.
            float prob = isnan(exponent) ? exponent : exp2(exponent);
            CLEAR_MASKED(i, j, prob)
            rowSum[i] += prob;
            const uint col = x + j * THREADS_X;
            smemP[rowOf(i) * P_ROW + col / 4][col % 4] = prob;
        }
    }
}

// -- O += P V -------------------------------------------------------------------------------------
// In chunks of CHUNK_V keys.

// O += P V over the chunk in shared memory, keys `key` and on of the tile.
void accumulateChunk(uint firstCol, uint key, bool masked) {
    [[dont_unroll]] for (uint k = 0; k < CHUNK_V; k += 4) {
        vec4 prob[ROWS];
        [[unroll]] for (uint i = 0; i < ROWS; i++) prob[i] = smemP[rowOf(i) * P_ROW + (key + k) / 4];
        [[unroll]] for (uint kk = 0; kk < 4; kk++) {
            [[unroll]] for (uint n = 0; n < DV_QUADS; n++) {
                const vec4 v = smem[KV_BASE + (k + kk) * V_ROW + x + n * THREADS_X];
                [[unroll]] for (uint i = 0; i < ROWS; i++) {
                    const vec4 sum = fma(vec4(prob[i][kk]), v, O[i][n]);
                    // 0 * NaN is NaN: V of a key that the row does not attend to is skipped.
                    if (!masked || ATTENDS(i, kk)) O[i][n] = sum;
                }
            }
        }
    }
}

void accumulateOutput(KVTile tileV, uint firstCol, uint col0, bool masked) {
    [[dont_unroll]] for (uint key = 0; key < KV_TILE; key += CHUNK_V) {
        if (key > 0) barrier(); // the last chunk is used
        STAGE_V(key)
        barrier(); // the chunk is stored; before the first one P too
        accumulateChunk(firstCol, key, masked);
    }
}
