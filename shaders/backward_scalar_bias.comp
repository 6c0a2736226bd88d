#version 460
// dBias on any device, float32 in core Vulkan 1.1, with every option of a call.
//
// A workgroup owns a tile of the bias's own elements: Q_TILE of its rows by KV_TILE keys of one of its batches and heads,
// in registers. It loops over the sequences and query heads that share them, and with SUM_QUERIES, a bias of one row,
// over the row tiles of each, in ascending order, and adds dX = P (dP - delta), times the derivative of a score modifier.
// S and dP are computed as for dQ. At the end SUM_QUERIES sums the tile's rows through shared memory. No atomics on floats: the order of every sum is fixed.
//
// Grid: x = row tile of the bias * KV tiles + KV tile, y = head of the bias, z = batch of the bias.
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#define ANY_DTYPE
#define CONSTANTS_SCALAR
#define CONSTANTS_DROPOUT
#define CONSTANTS_MODIFIERS
#define SOFTCAP_SLOPE 0
#include "backward_interface.glsl"

const uint OWN_TILE = Q_TILE, STREAM_TILE = KV_TILE;
const bool OWNS_ROWS = true, LISTED_KEYS = false;
#include "backward_scalar_tile.glsl"
#include "backward_row_range.glsl"

float dBias[OWN][STREAM];

void storeDBias(uint row, uint key, float value) {
    const Slice s = sliceAt(p.addrDX, position64(gl_WorkGroupID.z, p.strideDXBatch, gl_WorkGroupID.y, p.strideDXHead, row, p.strideDXSeq), false, 1);
#if BDA
    WriteWords(s.word).at[key] = floatBitsToUint(value);
#else
    wordsDX[s.word + key] = floatBitsToUint(value);
#endif
}

// Adds dX of the tile that begins at row0.
void addTile(uint row0) {
    const uint lastRow = min(row0 + Q_TILE, work.rows) - 1, lastKey = min(firstKey + KV_TILE, work.seqlenK) - 1;
    if (skipsSparseTile(row0, lastRow, firstKey, lastKey)) return;
    openRows(row0);
    TILE_PRODUCT(S, HEAD_DIM, readQ, readK)
    computeP(tileIsMasked(lastRow));
    TILE_PRODUCT(dP, HEAD_DIM_V, readDO, readV)
    computeDX();
    [[unroll]] for (uint i = 0; i < OWN; i++)
        [[unroll]] for (uint j = 0; j < STREAM; j++) dBias[i][j] += slotDS(i, j);
}

void main() {
    x = gl_LocalInvocationIndex % THREADS_X;
    y = gl_LocalInvocationIndex / THREADS_X;
    const uint kvTiles = (p.Sk + KV_TILE - 1) / KV_TILE, ownRow0 = gl_WorkGroupID.x / kvTiles * Q_TILE;
    firstKey = gl_WorkGroupID.x % kvTiles * KV_TILE;
    if (DROPOUT != 0) openDropout();
    [[unroll]] for (uint i = 0; i < OWN; i++)
        [[unroll]] for (uint j = 0; j < STREAM; j++) dBias[i][j] = 0.0;

    [[dont_unroll]] for (uint sequence = gl_WorkGroupID.z; sequence < p.sequences; sequence += gl_NumWorkGroups.z)
        [[dont_unroll]] for (uint head = gl_WorkGroupID.y; head < p.Hq; head += gl_NumWorkGroups.y) {
            setSequence(sequence, head, head / p.groupSize);
            if (firstKey >= work.seqlenK) continue;
            if (COUNTS_TOKENS) countTokens();
            const RowRange rows = rowRange(firstKey, min(firstKey + KV_TILE, work.seqlenK) - 1);
            if (SUM_QUERIES != 0) {
                [[dont_unroll]] for (uint row0 = rows.first / Q_TILE * Q_TILE; row0 < rows.end; row0 += Q_TILE) addTile(row0);
            } else if (ownRow0 < rows.end && ownRow0 + Q_TILE > rows.first) {
                addTile(ownRow0);
            }
        }

    if (SUM_QUERIES == 0) {
        [[unroll]] for (uint i = 0; i < OWN; i++)
            [[unroll]] for (uint j = 0; j < STREAM; j++)
                if (ownRow0 + ownOf(i) < p.Sq && firstKey + streamOf(j) < p.Sk)
                    storeDBias(ownRow0 + ownOf(i), firstKey + streamOf(j), dBias[i][j]);
        return;
    }
    // smemW has a row per owned row: the first THREADS_Y take the sums of the invocations.
    [[unroll]] for (uint j = 0; j < STREAM; j++) {
        float sum = 0.0;
        [[unroll]] for (uint i = 0; i < OWN; i++) sum += dBias[i][j];
        storeW(0, j, sum);
    }
    barrier();
    [[dont_unroll]] for (uint n = gl_LocalInvocationIndex; n < KV_TILE; n += LOCAL_SIZE) {
        float sum = 0.0;
        [[dont_unroll]] for (uint row = 0; row < THREADS_Y; row++) sum += smemW[row * W_ROW + n / 4][n % 4];
        if (firstKey + n < p.Sk) storeDBias(0, firstKey + n, sum);
    }
}
