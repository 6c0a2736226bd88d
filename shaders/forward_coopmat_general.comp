#version 460
// Attention forward on cooperative matrices, calls with options: varlen, paged KV, sparse tokens, masks, score
// modifiers, quantized K and V, splits. forward_coopmat.comp is the same without options, and says how the work is
// divided.
//
// With SPLIT_KV, where a KV head has no more rows than one fragment (decoding), all subgroups own the same rows: each
// processes one step of every KV tile and is a split of its own. With ALIAS_KV the V tile overwrites the K tile once
// S is computed: two more barriers per tile, but twice as many workgroups per multiprocessor, and decoding needs
// loads in flight.
#extension GL_GOOGLE_include_directive : require
#define CONSTANTS_FORWARD
#define CONSTANTS_ROW_SUM
#define CONSTANTS_DROPOUT
#include "constants_coopmat.glsl"
#define HAS_DROPOUT
#define SUBGROUPS_PER_SPLIT (LOCAL_SIZE / SUBGROUP_SIZE) // with SPLIT_KV
#include "interface.glsl"
#include "dropout.glsl"

#define ROWS work.rows // of the sequence
#define DROPS_NON_FINITE (ROW_MASKS || KEY_SCALES)
#define SCORE_SCALE (SCORE_MOD || KEY_SCALES ? 1.0 : abs(p.scoreScale)) // of S, when softmax takes it
#define NEEDS_F32_SUM (HAS_LSE + SINKS != 0)
#define SUBGROUP_FIRST_ROW (SPLIT_KV != 0 ? 0 : gl_SubgroupID * SUBGROUP_ROWS)
#define SUBGROUP_FIRST_STEP (SPLIT_KV != 0 ? gl_SubgroupID : 0) // of a KV tile
#define SUBGROUP_STEPS (SPLIT_KV != 0 ? 1 : KV_STEPS)

#include "forward_fragments.glsl"
#include "kv_scales.glsl"
#include "softmax.glsl"
#include "gemm.glsl"
#include "forward_load.glsl"
#include "epilogue_functions.glsl"

void main() {
    if (!findWorkTile(WORKGROUP_ROWS)) return;
    const uint tid = gl_LocalInvocationIndex;
    if (DROPOUT != 0) dropout = Dropout(p.addrKScale, p.addrVScale.x, p.addrVScale.y);
    const uint rowInTile = SUBGROUP_FIRST_ROW;      // first row of the subgroup, in the workgroup's rows
    const uint rowBase = work.row0 + rowInTile;     // and in the sequence

    const KVRange kv = kvRange(min(work.row0 + WORKGROUP_ROWS, work.rows) - 1);
    const uint lastRow = min(work.row0 + WORKGROUP_ROWS, work.rows) - 1;
    const uint tiles = kvTileCount(kv), unmaskedTiles = kv.unmaskedLast - kv.unmaskedFirst;
    const uint keyEnd = SPARSE_TOKENS != 0 ? work.kvLength : visibleEnd(min(rowBase + SUBGROUP_ROWS, work.rows) - 1);
    const bool hasRows = rowBase < work.rows; // a subgroup without rows only loads KV tiles

    const uint flipQ = p.scoreScale < 0.0 ? 0x80008000u : 0u; // Q has the sign of the scale, see forward_load.glsl

    uvec4 kVec[K_VECS], vVec[V_VECS];
    uint laneKey[LANE_KEYS];
    vec2 laneScale[LANE_KEYS];
    uint page[PAGE_INDICES];
    uint j = nextKVTile(kv, 0, lastRow), afterNext = j + 1; // of the KV loop
    if (j < tiles) {
        if (PREFETCH_PAGES) LOAD_PAGE_INDICES(kvTileAt(kv, j))
        PREFETCH_K(kvTileAt(kv, j))
        PREFETCH_V(kvTileAt(kv, j))
        if (PREFETCH_PAGES) {
            afterNext = nextKVTile(kv, j + 1, lastRow);
            LOAD_PAGE_INDICES(kvTileAt(kv, afterNext))
        }
    }

    {
        const Slice qBlock = blockQ();
#define LOAD_VEC_Q(row, col) interleavePairs(load8Q(qBlock, elementQ(work.row0 + (row)) + (col), HEAD_DIM % FRAG_K == 0 ? 8 : elementsFromQ(col)))
        if (tid == 0) nonFiniteSeen = 0;
        LOAD_Q_TILE(LOAD_VEC_Q)
    }

    clearSums();
    startSoftmax();

#define CURRENT_TILE kvTileAt(kv, j)
    uint next = tiles;
    [[dont_unroll]] while (j < unmaskedTiles) {
#define MASKED 0
#include "forward_tile.glsl"
#undef MASKED
        j = next;
    }
    [[dont_unroll]] while (j < tiles) {
#define MASKED 1
#include "forward_tile.glsl"
#undef MASKED
        j = next;
    }

#include "epilogue.glsl"
}
