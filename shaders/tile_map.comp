#version 460
// Tile map of a kernel: which of the tiles that it loops over the rows and keys of a workgroup attend to in full, in part, or not
// at all. FlexAttention's create_block_mask makes the same. Kernels that own rows loop over KV tiles, and the kernel of dK and dV
// (MAP_OF_KEYS), which owns keys, over row tiles. With OF_GRADIENTS the map is one of a backward kernel. Core Vulkan 1.1.
//
// A workgroup owns 32 tiles of a workgroup of that kernel, in a grid of the same x and z. An invocation asks tileExpr about a
// tile, which answers by interval arithmetic if it can. All invocations then ask `attends` of every slot of the tiles that it
// left open.
//   shared memory  what is known of each tile
//   barriers       two: behind tileExpr, and behind the slots
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#define ANY_DTYPE
#define CONSTANTS_SCALAR
#ifdef OF_GRADIENTS
#define CONSTANTS_MODIFIERS
#define CONSTANTS_MAP_MAKER
#define HEAD_OF_GRID (gl_WorkGroupID.y % (gl_NumWorkGroups.y / mapWords()))
uint mapWords();
#include "backward_interface.glsl"
#define STRIDE_MAP(axis) p.strideDX##axis
#else
const uint MAP_OF_KEYS = 0;
#include "interface.glsl"
#define STRIDE_MAP(axis) p.strideO##axis
#endif

// The host writes an expression in place of the body, see scoreExpr: 0 the mask excludes every slot of a tile, 1 it is not
// known, 2 the mask excludes none, 3 some. i, j, row and h are the first positions, keys, rows and heads of the tile, those
// with End the last.
int tileExpr(const int b, const int h, const int hkv, const int i, const int j, const int row, const int sq, const int sk,
             const int hEnd, const int iEnd, const int jEnd, const int rowEnd) { return 1; }

// Words of a row of bits of the map.
uint mapWords() {
    const uint tiles = MAP_OF_KEYS != 0 ? (p.Sq * ROWS_PER_QUERY + Q_TILE - 1) / Q_TILE : (p.Sk + KV_TILE - 1) / KV_TILE;
    return (tiles + 31) / 32;
}

#ifdef OF_GRADIENTS
bool findOwn(out uint firstKey) {
    uint extent;
    firstKey = 0;
    work.row0 = 0;
    if (MAP_OF_KEYS != 0) return findKeyTile(KV_TILE, firstKey, extent);
    return findRowTile(Q_TILE, extent);
}
uint wordOfRow() { return gl_WorkGroupID.y / (gl_NumWorkGroups.y / mapWords()); }
void storeWord(uint i, uint word) {
#if BDA
    WriteWords(p.addrDX).at[i] = word;
#else
    wordsDX[p.addrDX.x + i] = word;
#endif
}
#else
bool findOwn(out uint firstKey) {
    firstKey = 0;
    return findWorkTile(Q_TILE);
}
uint wordOfRow() { return work.split; }
void storeWord(uint i, uint word) { WORD_LSE(sliceAt(p.addrLSE, uvec2(i, 0), false, 1), 0) = word; }
#endif

const uint ATTENDED = 1, EXCLUDED = 2; // bits: some slot is
const uint ROUND = 8;                  // slots of an invocation until it asks what the others have seen
shared uint seen[32], asked[32];

// What is known of the tile of rows from row0 on and keys from firstKey on, without asking its slots; 0: nothing.
uint stateOf(uint row0, uint firstKey) {
    const uint lastRow = min(row0 + Q_TILE, work.rows) - 1;
    if (row0 >= work.rows || firstKey >= visibleEnd(lastRow) || firstKey + KV_TILE <= visibleStart(row0)) return EXCLUDED;
    if (MASK + SPARSE_BLOCK_Q != 0) return 0;
    const int query = int(queryOf(row0)), lastQuery = int(queryOf(lastRow));
    const int answer = tileExpr(int(work.batch), int(work.head), int(work.kvHead), query + work.causalOffset, int(firstKey), query,
        int(work.seqlenQ), int(work.seqlenK), int(work.head + ROWS_PER_QUERY - 1), lastQuery + work.causalOffset,
        int(min(firstKey + KV_TILE, work.seqlenK)) - 1, lastQuery);
    const bool inside = firstKey + KV_TILE <= visibleEnd(row0) && firstKey >= visibleStart(lastRow); // by positions every slot is attended
    return answer == 0 ? EXCLUDED : answer == 1 ? 0 : answer == 2 && inside ? ATTENDED : ATTENDED | EXCLUDED;
}

void main() {
    uint ownKey;
    if (!findOwn(ownKey)) return;
    const uint lane = gl_LocalInvocationIndex, firstTile = wordOfRow() * 32, ownRow = work.row0;
#define ROW_OF(tile) (MAP_OF_KEYS != 0 ? (tile) * Q_TILE : ownRow)
#define KEY_OF(tile) (MAP_OF_KEYS != 0 ? ownKey : (tile) * KV_TILE)

    if (lane < 32) {
        const uint state = stateOf(ROW_OF(firstTile + lane), KEY_OF(firstTile + lane));
        seen[lane] = state;
        asked[lane] = state;
    }
    barrier();
    [[dont_unroll]] for (uint t = 0; t < 32; ++t) {
        if (asked[t] != 0) continue;
        const uint row0 = ROW_OF(firstTile + t), firstKey = KEY_OF(firstTile + t);
        const uint slots = (min(row0 + Q_TILE, work.rows) - row0) * KV_TILE;
        uint found = 0, all = 0;
        [[dont_unroll]] for (uint slot = lane; slot < slots && all != (ATTENDED | EXCLUDED);) {
            [[dont_unroll]] for (uint n = 0; n < ROUND && slot < slots; ++n, slot += LOCAL_SIZE)
                found |= attends(row0 + slot / KV_TILE, firstKey + slot % KV_TILE) ? ATTENDED : EXCLUDED;
            all = atomicOr(seen[t], found) | found;
        }
    }
    barrier();
    if (lane < 2 && wordOfRow() < mapWords()) { // the word of the full tiles, and of those that need masks
        uint word = 0;
        [[dont_unroll]] for (uint t = 0; t < 32; ++t)
            if (seen[t] == (lane == 0 ? ATTENDED : ATTENDED | EXCLUDED)) word |= 1u << t;
        const uint row = gl_WorkGroupID.z * STRIDE_MAP(Batch) + work.kvHead * STRIDE_MAP(Head) + gl_WorkGroupID.x * STRIDE_MAP(Seq);
        storeWord(row + lane * mapWords() + wordOfRow(), word);
    }
}
