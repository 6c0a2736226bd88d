#version 460
// The gradient of a float table that the score modifier reads, on any device, float32 in core Vulkan 1.1, with every option of
// a call. Each slot adds dX times entrySlopeExpr to the entry entryExpr of the table, for each of the TABLE_PLACES of the
// expression that read it.
//
// A workgroup owns a head, the sequences gl_WorkGroupID.z, + gl_NumWorkGroups.z, ... and of those the row tiles
// gl_WorkGroupID.x, + gl_NumWorkGroups.x, ... It computes P and dX of its tiles as the dQ kernel does. Of a tile all invocations
// write entry and summand of their slots to shared memory. Then each adds up those of its own entries, in the order of the
// slots. With few entries several invocations own the same one and have the slots in turns, each with a sum of its own:
//
//   OWNERS = min(TABLE_ENTRIES, LOCAL_SIZE) owners, SHARES = LOCAL_SIZE / OWNERS sums of each entry, in shared memory
//
// At the end the workgroup adds the sums of each entry and stores one number per entry; backward_table_sum.comp adds those of the
// workgroups. No atomics on floats: the order of every sum is fixed.
//
// Grid: x = share of the row tiles, y = query head, z = share of the sequences.
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#define ANY_DTYPE
#define CONSTANTS_SCALAR
#define CONSTANTS_DROPOUT
#define CONSTANTS_MODIFIERS
#define CONSTANTS_TABLE
#include "backward_interface.glsl"

const uint OWN_TILE = Q_TILE, STREAM_TILE = KV_TILE;
const bool OWNS_ROWS = true, LISTED_KEYS = true;
#include "backward_scalar_tile.glsl"

const uint OWNERS = TABLE_ENTRIES < LOCAL_SIZE ? TABLE_ENTRIES : LOCAL_SIZE;
const uint SHARES = LOCAL_SIZE / OWNERS;
const uint NO_ENTRY = 0xffffffffu;
const uint QUADS = Q_TILE * W_ROW; // slots of a tile, four at a time
shared uvec4 smemEntries[QUADS];   // of the slots in smemW, which has the summands
shared float sums[TABLE_ENTRIES > LOCAL_SIZE ? TABLE_ENTRIES : LOCAL_SIZE];

float products[OWN][STREAM]; // Q K^T, which computeP replaces

// The score in front of the modifier.
float modifiedFrom(float product, uint row, uint key) {
    float x = product * p.scoreScale;
    CHANGE_BY_OPTIONS(x, row, key)
    return x;
}

// Writes entry and summand of an invocation's slots for one of the places.
void storeSummands(uint place) {
    [[unroll]] for (uint i = 0; i < OWN; i++)
        [[unroll]] for (uint j = 0; j < STREAM; j++) {
            const uint row = rowOf(i, j), key = keyOf(streamOf(j));
            uint entry = NO_ENTRY;
            float summand = 0.0;
            if (S[i][j] != 0.0) { // a weight of 0 adds nothing, whatever the derivative is
                const float s = modifiedFrom(products[i][j], row, key);
                entry = uint(entryExpr(int(place), s, SLOT(row, key)));
                summand = dP[i][j] * entrySlopeExpr(int(place), s, SLOT(row, key));
            }
            smemEntries[ownOf(i) * W_ROW + streamOf(j) / 4][streamOf(j) % 4] = entry;
            storeW(i, j, summand);
        }
}

// Adds the summands of the invocation's entries to their sums. An entry that it has alone is summed for the tile first.
void addSummands() {
    const uint owner = gl_LocalInvocationIndex % OWNERS, share = gl_LocalInvocationIndex / OWNERS;
    if (share >= SHARES) return;
    float tileSum = 0.0;
    [[dont_unroll]] for (uint quad = share; quad < QUADS; quad += SHARES) {
        const uvec4 entries = smemEntries[quad];
        const vec4 summands = smemW[quad];
        [[unroll]] for (uint n = 0; n < 4; n++) {
            if (entries[n] == NO_ENTRY || entries[n] % OWNERS != owner) continue;
            if (TABLE_ENTRIES > LOCAL_SIZE) sums[entries[n]] += summands[n];
            else tileSum += summands[n];
        }
    }
    if (TABLE_ENTRIES <= LOCAL_SIZE) sums[gl_LocalInvocationIndex] += tileSum;
}

// Adds the row tile that begins at row0.
void addRows(uint row0) {
    openRows(row0);
    const uint lastRow = min(row0 + Q_TILE, work.rows) - 1;
    const KVRange kv = kvRange(lastRow);
    [[dont_unroll]] for (uint tile = kv.first; tile < kv.last; tile++) {
        firstKey = tile * KV_TILE;
        if (SPARSE_BLOCK_Q != 0 && skipsSparseTile(row0, lastRow, firstKey, min(firstKey + KV_TILE, work.seqlenK) - 1)) continue;
        TILE_PRODUCT(S, HEAD_DIM, readQ, readK)
        [[unroll]] for (uint i = 0; i < OWN; i++)
            [[unroll]] for (uint j = 0; j < STREAM; j++) products[i][j] = S[i][j];
        computeP(tileIsMasked(lastRow));
        TILE_PRODUCT(dP, HEAD_DIM_V, readDO, readV)
        computeDX();
        [[dont_unroll]] for (uint place = 0; place < TABLE_PLACES; place++) {
            barrier(); // smemW and smemEntries are used
            storeSummands(place);
            barrier();
            addSummands();
        }
    }
}

void main() {
    x = gl_LocalInvocationIndex % THREADS_X;
    y = gl_LocalInvocationIndex / THREADS_X;
    if (DROPOUT != 0) openDropout();
    [[dont_unroll]] for (uint n = gl_LocalInvocationIndex; n < max(TABLE_ENTRIES, LOCAL_SIZE); n += LOCAL_SIZE) sums[n] = 0.0;
    [[dont_unroll]] for (uint sequence = gl_WorkGroupID.z; sequence < p.sequences; sequence += gl_NumWorkGroups.z) {
        setSequence(sequence, gl_WorkGroupID.y, gl_WorkGroupID.y / p.groupSize);
        [[dont_unroll]] for (uint row0 = gl_WorkGroupID.x * Q_TILE; row0 < work.rows; row0 += gl_NumWorkGroups.x * Q_TILE) addRows(row0);
    }
    barrier();
    const uint first = p.addrDX.x + ((gl_WorkGroupID.y * gl_NumWorkGroups.z + gl_WorkGroupID.z) * gl_NumWorkGroups.x + gl_WorkGroupID.x) * TABLE_ENTRIES;
    [[dont_unroll]] for (uint n = gl_LocalInvocationIndex; n < TABLE_ENTRIES; n += LOCAL_SIZE) {
        float sum = 0.0;
        [[dont_unroll]] for (uint share = 0; share < SHARES; share++) sum += sums[share * OWNERS + n];
        wordsDX[first + n] = floatBitsToUint(sum);
    }
}
