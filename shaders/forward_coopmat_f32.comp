#version 460
// Attention forward of float32 on cooperative matrices (tiers coopmat and coopmat2), calls without options. Each float32 is
// the sum of three terms of 16 bits, and six products of terms make a product of float32 (f32_terms.glsl). The structure is
// that of forward_coopmat.comp: FlashAttention-2 with a lagged row max.
//
// A workgroup owns WORKGROUP_ROWS query rows of one head and DV_SLICE columns of O. Each subgroup owns M_FRAGS * FRAG_M of
// these rows alone; all subgroups share the KV tiles.
//   registers      O, row sums, the terms of Q but for Q_SMEM_CHUNKS chunks, and this invocation's vectors of the next KV tile
//   shared memory  the terms of the K tile and of the V tile, the other chunks of Q, the row max (f32_smem.glsl)
//   barriers       two per KV tile, before and after it is stored to shared memory
// Unmasked tiles, which every row attends to in full, have a loop of their own. Masked tiles, at the causal diagonal and at
// the end of the keys, have a second one; subgroups whose rows attend to no key of a tile skip it. With PAIR_TILE a loop before
// them multiplies unmasked tiles as pairs of float16, up to the first that is not in their range (f32_pairs.glsl).
#extension GL_GOOGLE_include_directive : require
#include "coopmat_extensions.glsl"
#define CONSTANTS_FORWARD
#define CONSTANTS_ROW_SUM
#define CONSTANTS_DENSE
#define CONSTANTS_F32
#define CONSTANTS_F32_PAIRS
#include "constants_coopmat.glsl"
#define LONGEST_FIRST (ORDER != 0) // in work_tile_dense.glsl
#include "interface.glsl"

#define SUBGROUP_FIRST_ROW (gl_SubgroupID * SUBGROUP_ROWS)
#define SCORE_SCALE abs(p.scoreScale) // of products Q K^T
#define NEEDS_F32_SUM true
#define EXP2_SCORE(x) (ABLATE == ABLATE_SOFTMAX ? x : exp2(x))

#include "storage_words.glsl"
#include "fragments.glsl"
#include "f32_terms.glsl"
#include "f32_pairs.glsl"
#include "f32_smem.glsl"
#include "f32_load.glsl"
#include "f32_pair_load.glsl"
#include "scratch.glsl"
#if NV2
#include "fragment_ops_nv2.glsl"
#else
#include "fragment_ops_khr.glsl"
#endif
#include "f32_fragments.glsl"
#include "softmax.glsl"
#include "f32_gemm.glsl"
#include "f32_pair_gemm.glsl"
#include "non_finite_f32.glsl"

void main() {
    const WorkTile work = workTile(WORKGROUP_ROWS);
    const uint tid = gl_LocalInvocationIndex;
    const uint rowInTile = SUBGROUP_FIRST_ROW; // first row of the subgroup, in the workgroup's rows
    const uint rowBase = work.row0 + rowInTile;           // and in the tensor

    // The last row attends to most keys; every row attends to the unmasked tiles in full.
    const uint tiles = (visibleKeys(min(work.row0 + WORKGROUP_ROWS, p.Sq) - 1) + KV_TILE - 1) / KV_TILE;
    const uint unmaskedTiles = visibleKeys(work.row0) / KV_TILE;
    const uint keyEnd = visibleKeys(min(rowBase + SUBGROUP_ROWS, p.Sq) - 1); // of the subgroup

    const uint flipQ = p.scoreScale < 0.0 ? 0x80000000u : 0u; // Q has the sign of the scale

    Slice kRows = sliceK(work.batch, work.kvHead, 0), vRows = sliceV(work.batch, work.kvHead, 0);
    if (tid == 0) {
        nonFiniteSeen = 0;
        outOfRange = 0;
    }
    clearSums();
    startSoftmax();

    uint j = 0; // KV tile
    if (PAIR_TILE > 0) {
#include "f32_pair_loop.glsl"
    }
    uvec4 kVec[3 * K_VECS], vVec[3 * V_VECS];
    if (PAIR_TILE == 0 || j < tiles) {
        PREFETCH_KV(j, 1)
#include "f32_load_q.glsl"
    }
    [[dont_unroll]] for (; j + (1 - CHECK_KV_END) < unmaskedTiles; ++j) {
#define MASKED 0
#include "f32_tile.glsl"
#undef MASKED
    }
    [[dont_unroll]] for (; j < tiles; ++j) {
#define MASKED 1
#include "f32_tile.glsl"
#undef MASKED
    }
#include "epilogue_f32.glsl"
}
