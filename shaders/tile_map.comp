#version 460
// Tile map of a kernel: which of the tiles that it loops over the rows and keys of a workgroup attend to in full, in part, or not
// at all. FlexAttention's create_block_mask makes the same. Kernels that own rows loop over KV tiles, and the kernel of dK and dV
// (MAP_OF_KEYS), which owns keys, over row tiles. With OF_GRADIENTS the map is one of a backward kernel. Core Vulkan 1.1.
//
// A workgroup owns 32 tiles of a workgroup of that kernel, in a grid of the same x and z. An invocation asks tileExpr about a
// tile, which answers by interval arithmetic if it can. What rows alone or keys alone decide, such as the document of a row in a
// table, is a side of the tile: all invocations find its bounds first, of 32 tiles and of what they share. Of the tiles that are
// still open they ask `attends` of some slots, and if all of these are of one kind, of every slot.
//   shared memory  what is known of each tile, and the bounds of its sides
//   barriers       three: behind tileExpr, behind the first slots of the open tiles, and behind the others; two more with sides
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#define ANY_DTYPE
#define CONSTANTS_SCALAR
#define CONSTANTS_MAP_MAKER
#ifdef OF_GRADIENTS
#define CONSTANTS_MODIFIERS
#define WORKGROUP_ID uvec3(gl_WorkGroupID.x, gl_WorkGroupID.y % (gl_NumWorkGroups.y / mapWords()), gl_WorkGroupID.z)
uint mapWords();
#include "backward_interface.glsl"
#define STRIDE_MAP(axis) p.strideDX##axis
#else
#include "interface.glsl"
#define STRIDE_MAP(axis) p.strideO##axis
#endif

// The host writes an expression in place of the body, see scoreExpr: 0 the mask excludes every slot of a tile, 1 it is not
// known, 2 the mask excludes none, 3 some. i, j, row and h are the first positions, keys, rows and heads of the tile, those
// with End the last; least and most are the bounds of its sides.
int tileExpr(const int b, const int h, const int hkv, const int i, const int j, const int row, const int sq, const int sk,
             const int hEnd, const int iEnd, const int jEnd, const int rowEnd, const int least0, const int most0, const int least1,
             const int most1, const int least2, const int most2, const int least3, const int most3) { return 1; }

// Likewise a side of a slot, which depends on its row alone (sides 0 and 1) or on its key alone (2 and 3).
int sideExpr(const int side, const int b, const int h, const int hkv, const int i, const int j, const int row, const int sq,
             const int sk) { return 0; }

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
const uint PROBES = 32;                // slots all over a tile that are asked first
shared uint seen[32], asked[32];

// -- sides ----------------------------------------------------------------------------------------
// The bounds of the sides of the 32 tiles, and behind them of those that the tiles share: of the workgroup's own rows or keys.
const uint SIDES = 4, PLACES = 33;
shared int least[SIDES * PLACES], most[SIDES * PLACES];

bool isShared(uint side) { return (side < SIDES / 2) == (MAP_OF_KEYS == 0); }

// Adds to the bounds of a side at a place those of every step-th row or key of a tile, from number n on.
void boundSide(uint side, uint place, uint row0, uint firstKey, uint n, uint step) {
    const bool ofRows = side < SIDES / 2;
    const uint first = ofRows ? row0 : firstKey;
    const uint end = ofRows ? min(row0 + Q_TILE, work.rows) : min(firstKey + KV_TILE, work.seqlenK);
    int low = 0x7fffffff, high = -0x7fffffff - 1;
    [[dont_unroll]] for (uint from = first + n; from < end; from += step * ROUND)
        [[unroll]] for (uint i = 0; i < ROUND; ++i) { // the last one again where there are no more: without a branch loads overlap
            const uint at = min(from + i * step, end - 1);
            const int x = sideExpr(int(side), SLOT((ofRows ? at : row0), (ofRows ? firstKey : at)));
            low = min(low, x);
            high = max(high, x);
        }
    atomicMin(least[side * PLACES + place], low);
    atomicMax(most[side * PLACES + place], high);
}

#define LEAST(side, tile) least[side * PLACES + (isShared(side) ? 32 : tile)]
#define MOST(side, tile) most[side * PLACES + (isShared(side) ? 32 : tile)]

// -- tiles ----------------------------------------------------------------------------------------
// What is known of tile number `tile`, of rows from row0 on and keys from firstKey on, without asking its slots; 0: nothing.
uint stateOf(uint tile, uint row0, uint firstKey) {
    const uint lastRow = min(row0 + Q_TILE, work.rows) - 1;
    if (row0 >= work.rows || firstKey >= visibleEnd(lastRow) || firstKey + KV_TILE <= visibleStart(row0)) return EXCLUDED;
    const int query = int(queryOf(row0)), lastQuery = int(queryOf(lastRow));
    const int answer = tileExpr(int(work.batch), int(work.head), int(work.kvHead), query + work.causalOffset, int(firstKey), query,
        int(work.seqlenQ), int(work.seqlenK), int(work.head + ROWS_PER_QUERY - 1), lastQuery + work.causalOffset,
        int(min(firstKey + KV_TILE, work.seqlenK)) - 1, lastQuery, LEAST(0, tile), MOST(0, tile), LEAST(1, tile), MOST(1, tile),
        LEAST(2, tile), MOST(2, tile), LEAST(3, tile), MOST(3, tile));
    if (MASK + SPARSE_BLOCK_Q != 0) return answer == 0 ? EXCLUDED : 0;
    const bool inside = firstKey + KV_TILE <= visibleEnd(row0) && firstKey >= visibleStart(lastRow); // by positions every slot is attended
    return answer == 0 ? EXCLUDED : answer == 1 ? 0 : answer == 2 && inside ? ATTENDED : ATTENDED | EXCLUDED;
}

void main() {
    uint ownKey;
    if (!findOwn(ownKey)) return;
    const uint lane = gl_LocalInvocationIndex, firstTile = wordOfRow() * 32, ownRow = work.row0;
    const uint LANES = LOCAL_SIZE / 32; // of a tile
#define ROW_OF(tile) (MAP_OF_KEYS != 0 ? (tile) * Q_TILE : ownRow)
#define KEY_OF(tile) (MAP_OF_KEYS != 0 ? ownKey : (tile) * KV_TILE)

    if (MAP_SIDES != 0) {
        [[dont_unroll]] for (uint i = lane; i < SIDES * PLACES; i += LOCAL_SIZE) {
            least[i] = 0x7fffffff;
            most[i] = -0x7fffffff - 1;
        }
        barrier();
        [[dont_unroll]] for (uint side = 0; side < SIDES; ++side) {
            if ((MAP_SIDES >> side & 1u) == 0) continue;
            if (isShared(side)) boundSide(side, 32, ownRow, ownKey, lane, LOCAL_SIZE);
            else boundSide(side, lane / LANES, ROW_OF(firstTile + lane / LANES), KEY_OF(firstTile + lane / LANES), lane % LANES, LANES);
        }
        barrier();
    }
    if (lane < 32) {
        const uint state = stateOf(lane, ROW_OF(firstTile + lane), KEY_OF(firstTile + lane));
        seen[lane] = state;
        asked[lane] = state;
    }
    barrier();
    {
        const uint t = lane / LANES, row0 = ROW_OF(firstTile + t), firstKey = KEY_OF(firstTile + t);
        if (asked[t] == 0) {
            const uint rows = min(row0 + Q_TILE, work.rows) - row0;
            uint found = 0;
            [[dont_unroll]] for (uint m = lane % LANES; m < PROBES; m += LANES) {
                const uint row = row0 + m * (rows - 1) / (PROBES - 1), key = firstKey + m * 11 % PROBES * (KV_TILE - 1) / (PROBES - 1);
                found |= attends(row, key) ? ATTENDED : EXCLUDED;
            }
            atomicOr(seen[t], found);
        }
    }
    barrier();
    [[dont_unroll]] for (uint t = 0; t < 32; ++t) {
        if (asked[t] != 0 || seen[t] == (ATTENDED | EXCLUDED)) continue;
        const uint row0 = ROW_OF(firstTile + t), firstKey = KEY_OF(firstTile + t);
        const uint slots = (min(row0 + Q_TILE, work.rows) - row0) * KV_TILE;
        uint found = 0, all = 0;
        [[dont_unroll]] for (uint slot = lane; slot < slots && all != (ATTENDED | EXCLUDED);) {
            [[unroll]] for (uint n = 0; n < ROUND; ++n) {
                const uint at = min(slot + n * LOCAL_SIZE, slots - 1);
                found |= attends(row0 + at / KV_TILE, firstKey + at % KV_TILE) ? ATTENDED : EXCLUDED;
            }
            slot += ROUND * LOCAL_SIZE;
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
