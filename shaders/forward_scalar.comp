#version 460
// Attention forward on any device, float32 in core Vulkan 1.1, calls without options. forward_scalar_general.comp
// takes the options.
//
// A workgroup owns Q_TILE query rows of one head and DV_SLICE columns of O. Its invocations form a grid THREADS_X
// wide, as in a blocked matrix product: invocation (x, y) owns rows y, y + THREADS_Y, ..., keys x, x + THREADS_X, ...
// of a KV tile and, four at a time, columns x, x + THREADS_X, ... of O.
//   registers      S, O, row max, row sum over the invocation's keys
//   shared memory  a chunk of CHUNK_D columns of Q, and of K; a chunk of CHUNK_V keys of V in K's place; P of the tile
//   barriers       two per chunk, one when the partial row maxima are stored behind P
// A row is summed in a fixed order without atomics: the same bits every run. Unmasked KV tiles, which every row
// attends to in full, have a loop of their own.
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#define ANY_DTYPE
#define CONSTANTS_SCALAR
#include "interface.glsl"

#define SCORE_SCALE p.scoreScale
#include "scalar_tile.glsl"

// The KV tile that begins at key firstCol.
void attendTile(WorkTile w, Slice qBlock, uint firstCol, bool masked) {
    computeScores(qBlock, sliceK(w.batch, w.kvHead, firstCol), p.Sq - w.row0, p.Sk - firstCol);
    softmax(w, firstCol, masked);
    // Keys past the end are zero in shared memory: only the causal mask concerns P V.
    accumulateOutput(sliceV(w.batch, w.kvHead, firstCol), firstCol, w.col0, masked && CAUSAL != 0);
}

void main() {
    x = gl_LocalInvocationIndex % THREADS_X;
    y = gl_LocalInvocationIndex / THREADS_X;
    const WorkTile w = workTile(Q_TILE);
    const uint rows = p.Sq;
    const Slice q = sliceQ(w.batch, w.head, w.row0);
    [[unroll]] for (uint i = 0; i < ROWS; i++) {
        [[unroll]] for (uint n = 0; n < DV_QUADS; n++) O[i][n] = vec4(0.0);
        rowMax[i] = ROW_MAX_INIT;
        rowSum[i] = 0.0;
        visible[i] = visibleKeys(w.row0 + rowOf(i));
    }
    if (D_CHUNKS == 1) stageQ(q, rows - w.row0, 0); // Q stays in shared memory

    // The first row attends to the fewest keys: they are the unmasked ones. The last row attends to most.
    const uint unmasked = visibleKeys(w.row0) / KV_TILE * KV_TILE;
    const uint end = visibleKeys(min(w.row0 + Q_TILE, p.Sq) - 1);
    for (uint firstCol = 0; firstCol < unmasked; firstCol += KV_TILE) attendTile(w, q, firstCol, false);
    for (uint firstCol = unmasked; firstCol < end; firstCol += KV_TILE) attendTile(w, q, firstCol, true);

    barrier(); // the last P is used
    [[unroll]] for (uint i = 0; i < ROWS; i++) sharePartial(i, rowSum[i]);
    barrier();
    const Slice o = sliceO(w.batch, w.head, w.row0);
    [[unroll]] for (uint i = 0; i < ROWS; i++) {
        const uint row = w.row0 + rowOf(i);
        if (row < rows) {
            float sum = 0.0;
            [[unroll]] for (uint quad = 0; quad < THREADS_X / 4; quad++) sum += dot(partials(i, quad), vec4(1.0));
            const bool empty = visible[i] == 0;
            const float inverse = empty ? 0.0 : 1.0 / sum;
            [[unroll]] for (uint n = 0; n < DV_QUADS; n++) {
                const uint col = 4 * (x + n * THREADS_X);
                if (col < DV_SLICE) storeO4(o, rowOf(i), w.col0 + col, O[i][n] * inverse);
            }
            if (HAS_LSE != 0 && w.col0 == 0 && x == 0)
                storeLSE(w.batch, w.head, row, empty ? -INFINITY : logSumExp(rowMax[i], sum));
        }
    }
}
