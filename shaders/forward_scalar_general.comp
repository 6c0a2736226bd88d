#version 460
// Attention forward on any device, float32 in core Vulkan 1.1, calls with options: varlen, paged KV, sparse tokens,
// masks, score modifiers, quantized K and V, splits. forward_scalar.comp is the same without options, and says how
// the work is divided.
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#define ANY_DTYPE
#define CONSTANTS_SCALAR
#define CONSTANTS_DROPOUT
#include "interface.glsl"
#include "dropout.glsl"

#define SCORE_SCALE (SCORE_MOD ? 1.0 : p.scoreScale) // of S, when softmax takes it
#define MASKED_PRODUCT (SCORE_SCALE < 0.0 ? INFINITY : -INFINITY) // times SCORE_SCALE, -Inf
#include "scalar_tile.glsl"

// Sets P of dropped slots of the tile to 0, which must be stored. The row sums have it already.
void dropP(uint row0, uint firstCol) {
    barrier(); // P is stored
    [[dont_unroll]] for (uint i = gl_LocalInvocationIndex; i < Q_TILE * KV_TILE / 4; i += LOCAL_SIZE) {
        const uint row = i / (KV_TILE / 4), quad = i % (KV_TILE / 4);
        uint keep;
        KEPT_OF_SLOTS(keep, row0 + row, firstCol + 4 * quad, SPARSE_TOKENS != 0, keyAt)
        const vec4 prob = smemP[row * P_ROW + quad];
        smemP[row * P_ROW + quad] = vec4((keep & 1u) != 0 ? prob.x : 0.0, (keep & 2u) != 0 ? prob.y : 0.0,
                                         (keep & 4u) != 0 ? prob.z : 0.0, (keep & 8u) != 0 ? prob.w : 0.0);
    }
}

// The KV tile that begins at slot firstCol.
void attendTile(WorkTile w, Slice qBlock, uint firstCol, bool masked) {
    computeScores(qBlock, firstCol, w.rows - w.row0, KV_TILE);
    softmax(w, firstCol, masked);
    if (DROPOUT != 0) dropP(w.row0, firstCol);
    accumulateOutput(firstCol, firstCol, w.col0, masked);
}

void main() {
    x = gl_LocalInvocationIndex % THREADS_X;
    y = gl_LocalInvocationIndex / THREADS_X;
    if (!findWorkTile(Q_TILE)) return;
    const WorkTile w = work;
    if (DROPOUT != 0) dropout = Dropout(p.addrKScale, p.addrVScale.x, p.addrVScale.y);
    const uint rows = w.rows, lastRow = min(w.row0 + Q_TILE, rows) - 1;
    const Slice q = blockQ();
    [[unroll]] for (uint i = 0; i < ROWS; i++) {
        [[unroll]] for (uint n = 0; n < DV_QUADS; n++) O[i][n] = vec4(0.0);
        rowMax[i] = ROW_MAX_INIT;
        rowSum[i] = 0.0;
    }
    if (D_CHUNKS == 1) stageQ(q, rows - w.row0, 0); // Q stays in shared memory

    const KVRange kv = kvRange(lastRow);
    const uint unmasked = kv.unmaskedLast - kv.unmaskedFirst, tiles = kvTileCount(kv);
    uint n = nextKVTile(kv, 0, lastRow);
    for (; n < unmasked; n = nextKVTile(kv, n + 1, lastRow)) attendTile(w, q, kvTileAt(kv, n) * KV_TILE, false);
    for (; n < tiles; n = nextKVTile(kv, n + 1, lastRow)) attendTile(w, q, kvTileAt(kv, n) * KV_TILE, true);

    barrier(); // the last P is used
    [[unroll]] for (uint i = 0; i < ROWS; i++) sharePartial(i, rowSum[i]);
    barrier();
    const Slice o = blockO();
    [[unroll]] for (uint i = 0; i < ROWS; i++) {
        const uint row = w.row0 + rowOf(i);
        if (row < rows) {
            float sum = 0.0;
            [[unroll]] for (uint quad = 0; quad < THREADS_X / 4; quad++) sum += dot(partials(i, quad), vec4(1.0));
            const bool empty = sum == 0.0;
            const float sink = SINKS != 0 && SPLIT == 0 ? sinkTerm(headOf(row), rowMax[i]) : 0.0;
            float inverse = isNaN(sink) ? sink : empty ? 0.0 : 1.0 / (sum + sink);
            if (DROPOUT != 0) inverse *= dropoutScale();
            [[unroll]] for (uint n = 0; n < DV_QUADS; n++) {
                const uint sliceCol = 4 * (x + n * THREADS_X), col = w.col0 + sliceCol;
                if (sliceCol >= DV_SLICE || col >= HEAD_DIM_V) continue;
                if (SPLIT != 0) storeState4(row, col, O[i][n] * inverse);
                else store4O(o, elementO(row) + col, O[i][n] * inverse, HEAD_DIM_V - col);
            }
            if (w.col0 != 0 || x != 0) continue;
            if (SPLIT != 0) storeStateStats(row, rowMax[i], sum);
            else if (HAS_LSE != 0) storeRowLSE(row, lseWithSink(headOf(row), logSumExp(rowMax[i], sum)));
        }
    }
}
