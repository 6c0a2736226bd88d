#version 460
// Attention forward on cooperative matrices (tiers coopmat and coopmat2), calls without options: FlashAttention-2
// with a lagged row max. forward_coopmat_general.comp takes the options.
//
// A workgroup owns WORKGROUP_ROWS query rows of one head and DV_SLICE columns of O. Each subgroup owns M_FRAGS *
// FRAG_M of these rows alone; all subgroups share the KV tiles.
//   registers      O, row sums, Q but for Q_SMEM_CHUNKS chunks (the registers of those decide whether 32 rows of head
//                  dim 128 fit), and this invocation's vectors of the next KV tile
//   shared memory  the K tile, the V tile, the other chunks of Q, the row max (forward_fragments.glsl)
//   barriers       two per KV tile, before and after it is stored to shared memory
// Unmasked tiles, which every row attends to in full, have a loop of their own. Masked tiles, at the causal diagonal
// and at the end of the keys, have a second one; subgroups whose rows attend to no key of a tile skip it.
#extension GL_GOOGLE_include_directive : require
#define CONSTANTS_FORWARD
#define CONSTANTS_ROW_SUM
#define CONSTANTS_DENSE
#include "constants_coopmat.glsl"
#include "interface.glsl"

#define ROWS p.Sq
#define SUBGROUP_FIRST_ROW (gl_SubgroupID * SUBGROUP_ROWS)
#define DROPS_NON_FINITE (CAUSAL != 0)
#define SCORE_SCALE abs(p.scoreScale) // of products Q K^T
#define NEEDS_F32_SUM (HAS_LSE != 0)
#define EXP2_SCORE(x) (ABLATE == ABLATE_SOFTMAX ? x : EXP2 != 0 ? exp2(x) : exp(x * LN2))

#include "forward_fragments.glsl"
#include "softmax.glsl"
#include "gemm.glsl"
#include "forward_load.glsl"
#include "epilogue_functions.glsl"

void main() {
    const WorkTile work = workTile(WORKGROUP_ROWS);
    const uint tid = gl_LocalInvocationIndex;
    const uint rowInTile = SUBGROUP_FIRST_ROW; // first row of the subgroup, in the workgroup's rows
    const uint rowBase = work.row0 + rowInTile;           // and in the tensor

    // The last row attends to most keys; every row attends to the unmasked tiles in full.
    const uint end = CAUSAL_SKIP != 0 ? visibleKeys(min(work.row0 + WORKGROUP_ROWS, p.Sq) - 1) : p.Sk;
    const uint tiles = (end + KV_TILE - 1) / KV_TILE;
    const uint unmaskedTiles = UNMASKED_LOOP != 0 ? visibleKeys(work.row0) / KV_TILE : 0;
    const uint keyEnd = CAUSAL_SKIP != 0 ? visibleKeys(min(rowBase + SUBGROUP_ROWS, p.Sq) - 1) : p.Sk; // of the subgroup

    const uint flipQ = p.scoreScale < 0.0 ? 0x80008000u : 0u; // Q has the sign of the scale, see forward_load.glsl

    uvec4 kVec[K_VECS], vVec[V_VECS];
    Slice kRows = sliceK(work.batch, work.kvHead, SUBGROUP_FIRST_KEY), vRows = sliceV(work.batch, work.kvHead, SUBGROUP_FIRST_KEY);
    PREFETCH_KV(0, 1)

    {
        const Slice qBlock = sliceQ(work.batch, work.head, work.row0);
#define LOAD_VEC_Q(row, col) loadVecQ(qBlock, row, col)
        if (tid == 0) nonFiniteSeen = 0;
        LOAD_Q_TILE(LOAD_VEC_Q)
    }

    clearSums();
    startSoftmax();

    uint j = 0;
    [[dont_unroll]] for (; j + (1 - CHECK_KV_END) < unmaskedTiles; ++j) {
#define MASKED 0
#include "forward_tile.glsl"
#undef MASKED
    }
    [[dont_unroll]] for (; j < tiles; ++j) {
#define MASKED 1
#include "forward_tile.glsl"
#undef MASKED
    }

#include "epilogue.glsl"
}
