#version 460
// dK and dV on any device, float32 in core Vulkan 1.1, with every option of a call.
//
// A workgroup owns KV_TILE keys of a KV head. It loops over the row tiles that see them, in ascending order; rows are
// the queries of all heads of the group, packed, so that the loop sums over the group too:
//
//   S = K Q^T            chunks of CHUNK_D columns of both tiles in shared memory, S in registers
//   P = exp(score - LSE) through shared memory
//   dV += P dO           chunks of CHUNK_V rows in shared memory, dV in registers
//   dP = V dO^T          as S
//   dS = P (dP - delta)  through shared memory
//   dK += dS Q           as dV
//
// S, P, dP and dS are transposed: a row of them is a key. dK and dV are stored once, dK times the scale. Barriers are
// around the chunks alone. No atomics on floats: the order of every sum is fixed.
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#define ANY_DTYPE
#define CONSTANTS_SCALAR
#define CONSTANTS_DROPOUT
#define CONSTANTS_MODIFIERS
#define CONSTANTS_TILE_MAP
#include "backward_interface.glsl"

const uint OWN_TILE = KV_TILE, STREAM_TILE = Q_TILE;
const bool OWNS_ROWS = false, LISTED_KEYS = false;
#include "backward_scalar_tile.glsl"
#include "backward_row_range.glsl"

vec4 dK[OWN][D_QUADS];
vec4 dV[OWN][DV_QUADS];
SELECT_SUM(sumDK, dK, D_QUADS)
SELECT_SUM(sumDV, dV, DV_QUADS)

void main() {
    x = gl_LocalInvocationIndex % THREADS_X;
    y = gl_LocalInvocationIndex / THREADS_X;
    uint extentKeys;
    if (!findKeyTile(KV_TILE, firstKey, extentKeys)) return;
    if (DROPOUT != 0) openDropout();
    [[unroll]] for (uint i = 0; i < OWN; i++) {
        [[unroll]] for (uint n = 0; n < D_QUADS; n++) dK[i][n] = vec4(0.0);
        [[unroll]] for (uint n = 0; n < DV_QUADS; n++) dV[i][n] = vec4(0.0);
    }

    if (firstKey < work.seqlenK) {
        const uint lastKey = min(firstKey + KV_TILE, work.seqlenK) - 1;
        if (COUNTS_TOKENS) countTokens();
        const RowRange rows = rowRange(firstKey, lastKey);
        [[dont_unroll]] for (uint row0 = rows.first / Q_TILE * Q_TILE; row0 < rows.end; row0 += Q_TILE) {
            if (TILE_MAP != 0) {
                row0 = nextTileOfMap(rowMapWords(), row0 / Q_TILE, (rows.end + Q_TILE - 1) / Q_TILE) * Q_TILE;
                if (row0 >= rows.end) break;
            }
            const uint lastRow = min(row0 + Q_TILE, work.rows) - 1;
            if (SPARSE_BLOCK_Q != 0 && skipsSparseTile(row0, lastRow, firstKey, lastKey)) continue;
            openRows(row0);
            TILE_PRODUCT(S, HEAD_DIM, readK, readQ)
            computeP(tileIsMasked(lastRow));
            if (HAS_DV != 0) {
                [[unroll]] for (uint i = 0; i < OWN; i++)
                    [[unroll]] for (uint j = 0; j < STREAM; j++) storeW(i, j, dropped(i, j, S[i][j]));
                ADD_STREAMED(dV, DV_QUADS, readDO)
            }
            if (HAS_DK != 0) {
                TILE_PRODUCT(dP, HEAD_DIM_V, readV, readDO)
                computeDX();
                [[unroll]] for (uint i = 0; i < OWN; i++)
                    [[unroll]] for (uint j = 0; j < STREAM; j++) storeW(i, j, slotDS(i, j));
                ADD_STREAMED(dK, D_QUADS, readQ)
            }
        }
    }

    [[unroll]] for (uint i = 0; i < OWN; i++) {
        const uint key = firstKey + ownOf(i);
        const bool exists = key < work.seqlenK; // else its gradient is 0, and adding it changes nothing
        if (key >= extentKeys || ACCUMULATE != 0 && !exists) continue;
        const KVRow at = kvRowOf(key);
        if (HAS_DK != 0) {
            const Slice out_ = sliceDX(at.batch, work.kvHead, at.row);
            [[unroll]] for (uint n = 0; n < D_QUADS; n++)
                storeFourDX(out_, 0, columnOf(n), exists ? sumDK(i, n) * p.scoreScale : vec4(0.0));
        }
        if (HAS_DV != 0) {
            const Slice out_ = sliceDV(at.batch, work.kvHead, at.row);
            [[unroll]] for (uint n = 0; n < DV_QUADS; n++)
                storeFourDV(out_, 0, columnOf(n), exists ? sumDV(i, n) : vec4(0.0));
        }
    }
}
