#version 460
// dQ on any device, float32 in core Vulkan 1.1, with every option of a call.
//
// A workgroup owns Q_TILE rows: the queries of all heads of a group, packed. It loops over the KV tiles that they see,
// in ascending order:
//
//   S = Q K^T            chunks of CHUNK_D columns of both tiles in shared memory, S in registers
//   P = exp(score - LSE)
//   dP = dO V^T          as S
//   dS = P (dP - delta)  through shared memory
//   dQ += dS K           chunks of CHUNK_V keys in shared memory, dQ in registers
//
// and stores dQ once, times the scale. Barriers are around the chunks alone. No atomics: the order of every sum is fixed.
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#define ANY_DTYPE
#define CONSTANTS_SCALAR
#define CONSTANTS_DROPOUT
#define CONSTANTS_MODIFIERS
#define CONSTANTS_TILE_MAP
#include "backward_interface.glsl"

const uint OWN_TILE = Q_TILE, STREAM_TILE = KV_TILE;
const bool OWNS_ROWS = true, LISTED_KEYS = true;
#include "backward_scalar_tile.glsl"

vec4 dQ[OWN][D_QUADS];
SELECT_SUM(sumDQ, dQ, D_QUADS)

void main() {
    x = gl_LocalInvocationIndex % THREADS_X;
    y = gl_LocalInvocationIndex / THREADS_X;
    uint extentRows;
    if (!findRowTile(Q_TILE, extentRows)) return;
    if (DROPOUT != 0) openDropout();
    openRows(work.row0);
    [[unroll]] for (uint i = 0; i < OWN; i++)
        [[unroll]] for (uint n = 0; n < D_QUADS; n++) dQ[i][n] = vec4(0.0);

    if (work.row0 < work.rows) {
        const uint lastRow = min(work.row0 + Q_TILE, work.rows) - 1;
        const KVRange kv = kvRange(lastRow);
        [[dont_unroll]] for (uint tile = kv.first; tile < kv.last; tile++) {
            if (TILE_MAP != 0) {
                tile = nextTileOfMap(tileMapWords(), tile, kv.last);
                if (tile == kv.last) break;
            }
            firstKey = tile * KV_TILE;
            if (SPARSE_BLOCK_Q != 0 && skipsSparseTile(work.row0, lastRow, firstKey, min(firstKey + KV_TILE, work.seqlenK) - 1)) continue;
            TILE_PRODUCT(S, HEAD_DIM, readQ, readK)
            computeP(tileIsMasked(lastRow));
            TILE_PRODUCT(dP, HEAD_DIM_V, readDO, readV)
            computeDX();
            [[unroll]] for (uint i = 0; i < OWN; i++)
                [[unroll]] for (uint j = 0; j < STREAM; j++) storeW(i, j, slotDS(i, j));
            ADD_STREAMED(dQ, D_QUADS, readK)
        }
    }

    const Slice out_ = sliceDX(rowBatch(), work.head, work.offsetQ + queryOf(work.row0));
    [[unroll]] for (uint i = 0; i < OWN; i++) {
        const uint row = work.row0 + ownOf(i);
        const bool exists = row < work.rows; // else its gradient is 0, and adding it changes nothing
        if (row >= extentRows || ACCUMULATE != 0 && !exists) continue;
        [[unroll]] for (uint n = 0; n < D_QUADS; n++)
            storeFourDX(out_, rowElement(row, p.strideDXHead, p.strideDXSeq), columnOf(n), exists ? sumDQ(i, n) * p.scoreScale : vec4(0.0));
    }
}
