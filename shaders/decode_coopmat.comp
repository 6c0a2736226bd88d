#version 460
// Attention forward for few query rows and many keys (decoding) on cooperative matrices. Memory bandwidth is the
// limit: K and V go from global memory straight into the registers that are multiplied.
//
// A workgroup owns SUM_N query rows, with PACK_GQA the heads of a group, and a split of the keys. Its subgroups run
// KV loops of their own (KV_LOOPS of them) and take turns at KV tiles. Where a row is too long for the registers of a
// subgroup, DIM_SPLIT subgroups share a KV loop: each has a part of O's columns and, if there is one KV loop, a part
// of Dqk; their partial scores are added in shared memory, with one barrier per tile.
//   registers      Q, O (transposed, decode_fragments.glsl), the vectors of this KV tile and of the next (decode_load.glsl)
//   shared memory  the row max; the keys or addresses of a tile if its rows are not contiguous; scratch (decode_smem.glsl)
//   barriers       in the KV loop none, but for partial scores
// K of the next tile is loaded as soon as S is computed, V as soon as O is; PREFETCH loads V, or K and V, before that. At
// the end the subgroups' O are combined in shared memory. With SPLIT the workgroup stores a partial state, and with
// COMBINE the last workgroup of a row combines the splits (decode_combine.glsl). Softmax is the same as in
// forward_coopmat.comp.
#extension GL_GOOGLE_include_directive : require
#include "coopmat_extensions.glsl"
#include "constants_coopmat.glsl"
#include "constants_decode.glsl"

#define CHECKS_SPARSE_TILES 1
#define KV_LOOPS (LOCAL_SIZE / SUBGROUP_SIZE / DIM_SPLIT)
// Vectors have eight columns; hasK and hasV leave out those past the end of a row.
#define K_LOAD_MULTIPLE 8
#define V_LOAD_MULTIPLE 8
#include "interface.glsl"

#define SCORE_SCALE (SCORE_MOD || KEY_SCALES ? 1.0 : abs(p.scoreScale)) // of S, when softmax takes it
#define NEEDS_F32_SUM (HAS_LSE + SINKS != 0)

#include "decode_division.glsl"
#include "decode_smem.glsl"
#include "decode_fragments.glsl"
#include "non_finite_general.glsl"
#include "decode_q.glsl"
#include "decode_load.glsl"
#include "decode_stats.glsl"
#include "decode_combine.glsl"

void main() {
    if (!findWorkTile(SUM_N)) {
        countEmptySplit();
        return;
    }
    const uint tid = gl_LocalInvocationIndex;
    const uint rows = min(work.rows - work.row0, SUM_N), lastRow = work.row0 + rows - 1;
    const KVRange kv = kvRange(lastRow);
    const uint tiles = kv.last - kv.first;
    // Q has the sign of the scale: the largest score is the largest logit.
    const uint flipQ = p.scoreScale < 0.0 ? 0x80008000u : 0u;

    // Q first: memory answers in order, and no product can start without Q.
    const Slice qBlock = blockQ();
    uvec4 qVec[2 * LANE_FOLD * Q_LOAD_BLOCKS];
    LOAD_Q_VECS

    uvec4 kVec[K_LANE_VECS], vVec[V_LANE_VECS];
    uvec4 kNext[K_LANE_VECS], vNext[V_LANE_VECS]; // of the next tile, with PREFETCH
    // Of the tile whose rows were resolved last (RESOLVE_KV_ROWS), one ahead of the loads:
    Slice kRun[RUNS], vRun[RUNS];  // start of each run of contiguous keys
    uint lastSlot[RUNS];           // last existing key of each run, relative to its start
    uint indices[INDICES];         // page indices or tokens of the tile after that
    uint loadedSlot = 0;           // first slot of the tile
    vec2 scales[LANE_KEYS];        // of K and V
    bool nonFiniteScale = false;   // a scale of V was Inf or NaN
    uint j = nextKVTile(kv, gl_SubgroupID / DIM_SPLIT, lastRow), next = tiles;
#define CURRENT_TILE kvTileAt(kv, j)
    // With sparse tokens it becomes 0 at the first tile that is not allSeen.
    uint unmaskedTiles = kv.unmaskedLast - kv.unmaskedFirst;
    bool allSeen = true; // every row attends to every key of the tile whose rows were resolved last
    if (j < tiles) {
        if (INDICES_AHEAD) PREFETCH_INDICES(CURRENT_TILE)
        RESOLVE_KV_ROWS(j)
        LOAD_K(kVec)
        LOAD_V(vVec)
        STORE_KEY_INDICES
        STORE_KV_SCALES
        next = nextKVTile(kv, j + KV_LOOPS, lastRow);
        if (next < tiles) RESOLVE_KV_ROWS(next)
    }

    FILL_Q
    if (DROPS_NON_FINITE && tid == 0) nonFiniteSeen = 0;

    [[unroll]] for (uint i = 0; i < DV_FRAGS; ++i) O[i] = FragSum(0.0);
    rowSum[0] = FragSum(0.0);
    rowSumF32[0] = FragC(0.0);
    rowSumScaled[0] = FragC(0.0);
    startSoftmax();
    if (DROPS_NON_FINITE || Q_SMEM_CHUNKS != 0) barrier();
    else subgroupSync();
    loadRowMax(0);

    uint parity = 0; // of the buffer of partial scores
#define MASKED 0
#define KV_LOOP_END unmaskedTiles
#include "decode_kv_loop.glsl"
#undef MASKED
#undef KV_LOOP_END

#define MASKED 1
#define KV_LOOP_END tiles
#include "decode_kv_loop.glsl"
#undef MASKED
#undef KV_LOOP_END

#include "decode_epilogue.glsl"
}
