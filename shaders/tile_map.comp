#version 460
// Tile map of a general forward kernel: which KV tiles the rows of each of its row tiles attend to in full, in part, or not
// at all. FlexAttention's create_block_mask makes the same. Core Vulkan 1.1.
//
// A workgroup owns 32 KV tiles of one row tile, in a grid whose x and z are those of the forward kernel. An invocation asks
// tileExpr about a tile, which answers by interval arithmetic if it can. All invocations then ask `attends` of every slot
// of the tiles that it left open.
//   shared memory  what is known of each tile
//   barriers       two: behind tileExpr, and behind the slots
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#define ANY_DTYPE
#define CONSTANTS_SCALAR
#define POSITIONS_ONLY // of kvRange
#include "interface.glsl"

// The host writes an expression in place of the body, see scoreExpr: 0 the mask excludes every slot of a tile, 1 it is not
// known, 2 the mask excludes none, 3 some. i, j, row and h are the first positions, keys, rows and heads of the tile, those
// with End the last.
int tileExpr(const int b, const int h, const int hkv, const int i, const int j, const int row, const int sq, const int sk,
             const int hEnd, const int iEnd, const int jEnd, const int rowEnd) { return 1; }

const uint ATTENDED = 1, EXCLUDED = 2; // bits: some slot is
const uint ROUND = 8;                  // slots of an invocation until it asks what the others have seen
shared uint seen[32], asked[32];

void main() {
    if (!findWorkTile(Q_TILE)) return;
    const uint lane = gl_LocalInvocationIndex, firstTile = work.split * 32;
    const uint rows = min(work.rows - work.row0, Q_TILE), lastRow = work.row0 + rows - 1;
    const KVRange kv = kvRange(lastRow);

    if (lane < 32) {
        const uint tile = firstTile + lane;
        uint state = 0;
        if (tile < kv.first || tile >= kv.last) {
            state = EXCLUDED;
        } else if (MASK + SPARSE_BLOCK_Q == 0) {
            const int row0 = int(queryOf(work.row0)), rowEnd = int(queryOf(lastRow));
            const uint key = tile * KV_TILE;
            const int answer = tileExpr(int(work.batch), int(work.head), int(work.kvHead), row0 + work.causalOffset, int(key), row0,
                int(work.seqlenQ), int(work.seqlenK), int(work.head + ROWS_PER_QUERY - 1), rowEnd + work.causalOffset,
                int(min(key + KV_TILE, work.seqlenK)) - 1, rowEnd);
            const bool inside = tile >= kv.unmaskedFirst && tile < kv.unmaskedLast; // by positions every slot is attended
            state = answer == 0 ? EXCLUDED : answer == 1 ? 0 : answer == 2 && inside ? ATTENDED : ATTENDED | EXCLUDED;
        }
        seen[lane] = state;
        asked[lane] = state;
    }
    barrier();
    [[dont_unroll]] for (uint t = 0; t < 32; ++t) {
        if (asked[t] != 0) continue;
        const uint firstKey = (firstTile + t) * KV_TILE;
        uint found = 0, all = 0;
        [[dont_unroll]] for (uint slot = lane; slot < rows * KV_TILE && all != (ATTENDED | EXCLUDED);) {
            [[dont_unroll]] for (uint n = 0; n < ROUND && slot < rows * KV_TILE; ++n, slot += LOCAL_SIZE)
                found |= attends(work.row0 + slot / KV_TILE, firstKey + slot % KV_TILE) ? ATTENDED : EXCLUDED;
            all = atomicOr(seen[t], found) | found;
        }
    }
    barrier();
    if (lane < 2) { // the word of the full tiles, and of those that need masks
        uint word = 0;
        [[dont_unroll]] for (uint t = 0; t < 32; ++t)
            if (seen[t] == (lane == 0 ? ATTENDED : ATTENDED | EXCLUDED)) word |= 1u << t;
        const uint at = gl_WorkGroupID.z * p.strideOBatch + work.kvHead * p.strideOHead + gl_WorkGroupID.x * p.strideOSeq;
        const uint words = (p.Sk + 32 * KV_TILE - 1) / (32 * KV_TILE);
        if (work.split < words) WORD_LSE(sliceAt(p.addrLSE, uvec2(at + lane * words + work.split, 0), false, 1), 0) = word;
    }
}
