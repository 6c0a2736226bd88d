#version 460
// dK and dV of float32 on cooperative matrices (tiers coopmat and coopmat2), calls without options. It also stores dS for the
// kernel of dQ (STORE_DS).
//
// A workgroup owns WORKGROUP_KEYS keys of a KV head. A pair of subgroups owns M_FRAGS * FRAG_M of them
// (backward_f32_fragments.glsl). All loop over the row tiles that see the keys; rows are the queries of all heads of the group,
// packed, so that the loop sums over the group too:
//
//   first subgroup   S = K Q^T     P = exp(score - LSE)     dV += P dO
//   second subgroup  dP = V dO^T   dS = P (dP - delta)      dK += dS Q
//
// S, P, dP and dS are transposed, keys by rows. Each product is six products of terms of 16 bits (f32_terms.glsl).
//   registers      the terms of K or V but for Q_SMEM_CHUNKS chunks, dV or dK, and this invocation's vectors of the next row tile
//   shared memory  the terms of the Q tile and of the dO tile, statistics of their rows, P
//   barriers       three per row tile: before and after it is stored to shared memory, and when P is complete
// Row tiles that attend to every key have a loop of their own, behind the masked tiles (docs/log/backward.md, 5). The
// order of every sum is fixed.
#extension GL_GOOGLE_include_directive : require
#define CONSTANTS_FORWARD
#define CONSTANTS_BACKWARD_COOPMAT
#define CONSTANTS_DROPOUT
#define CONSTANTS_F32
#include "constants_coopmat.glsl"
#define CHUNK_OF_HEADS STORE_DS
#define HEADS_IN_TURN (STORE_DS * CAUSAL != 0)
#include "backward_interface.glsl"
#include "fragments.glsl"
#include "f32_terms.glsl"
#define SCRATCH_IN_LOOP 0
#define PAIRS_OF_SUBGROUPS
#define HAS_GRADIENT
#include "backward_f32_fragments.glsl"
#include "backward_row_range.glsl"
#include "backward_f32_rows.glsl"
#include "backward_scratch.glsl"
#include "non_finite.glsl"

void main() {
    const uint tid = gl_LocalInvocationIndex;
    if (STORE_DS != 0) workgroupID.x += CHUNK_FIRST_KEY / WORKGROUP_KEYS;
    uint firstKey, extentKeys;
    if (!findKeyTile(WORKGROUP_KEYS, firstKey, extentKeys)) return;
    const uint keyBase = firstKey + pairOfSubgroup() * SUBGROUP_KEYS; // of the subgroup
    const uint lastKey = max(min(firstKey + WORKGROUP_KEYS, work.seqlenK), firstKey + 1) - 1;
    const uint firstBase = isSecond() ? DO_BASE : 0, secondBase = isSecond() ? 0 : DO_BASE; // tiles of its two products

    const RowTiles tiles = rowTiles(firstKey, lastKey);
    const Slice qHead = sliceQ(rowBatch(), work.head, work.offsetQ), doHead = sliceDO(rowBatch(), work.head, work.offsetQ);
    uvec4 tileVec[3 * TILE_VECS];
    float statVec[3];
    if (tiles.count > 0) PREFETCH_ROWS(rowTileAt(tiles, 0))
    if (tid == 0) seen = 0;
    storePlaces();
    LOAD_OWN_KEYS
    barrier(); // seen and the places are there
    [[unroll]] for (uint i = 0; i < M_FRAGS * CHUNKS; ++i) gradient[i] = FragC(0.0);

    uint n = 0;
    [[dont_unroll]] for (; n < tiles.masked;) {
#define MASKED 1
#include "backward_f32_tile_kv.glsl"
#undef MASKED
    }
    [[dont_unroll]] for (; n < tiles.count;) {
#define MASKED 0
#include "backward_f32_tile_kv.glsl"
#undef MASKED
    }

    barrier(); // the tile's shared memory becomes scratch
    const KVRow out_ = KVRow(kvBatch(), work.offsetK + keyBase);
    const Slice outDK = sliceDX(out_.batch, work.kvHead, out_.row), outDV = sliceDV(out_.batch, work.kvHead, out_.row);
    // A key past the end of its sequence has gradient 0; adding that changes nothing.
#define EXISTS(row) (keyBase + (row) < work.seqlenK)
#define STORES(row) (keyBase + (row) < extentKeys && (ACCUMULATE == 0 || EXISTS(row)))
#define NO_EIGHT(row, col, words) {}
#define STORE_FOUR_KV(row, col, four)                                                               \
    if (STORES(row)) {                                                                              \
        const vec4 four_ = EXISTS(row) ? four : vec4(0.0);                                          \
        if (isSecond()) {                                                                           \
            if (HAS_DK != 0) storeFourDX(outDK, (row) * p.strideDXSeq, col, four_);                 \
        } else if (HAS_DV != 0) storeFourDV(outDV, (row) * p.strideDVSeq, col, four_);              \
    }
    STORE_GRADIENT(gradient, CHUNKS, isSecond() ? p.scoreScale : 1.0, false, NO_EIGHT, STORE_FOUR_KV)
    if (HAS_DV != 0 && !isSecond() && (seen & SEEN_NON_FINITE) != 0) { // each invocation corrects what it has stored
        [[dont_unroll]] for (uint f = 0; f < M_FRAGS * V_CHUNKS; ++f)
            [[dont_unroll]] for (uint at = gl_SubgroupInvocationID; at < FRAG_M * FRAG_N / 4; at += SUBGROUP_SIZE) {
                const uint row = f / V_CHUNKS * FRAG_M + at / (FRAG_N / 4), col = f % V_CHUNKS * FRAG_N + at % (FRAG_N / 4) * 4;
                if (EXISTS(row)) addNonFiniteDO(outDV, tiles, keyBase + row, row, col, 4);
            }
    }
}
