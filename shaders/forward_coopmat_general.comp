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
#include "kv_load.glsl"
#include "epilogue_functions.glsl"

void main() {
    if (!findWorkTile(WORKGROUP_ROWS)) return;
    const uint tid = gl_LocalInvocationIndex;
    if (DROPOUT != 0) dropout = Dropout(p.addrKScale, p.addrVScale.x, p.addrVScale.y);
    const uint rowInTile = SUBGROUP_FIRST_ROW;      // first row of the subgroup, in the workgroup's rows
    const uint rowBase = work.row0 + rowInTile;     // and in the sequence

    const KVRange kv = kvRange(min(work.row0 + WORKGROUP_ROWS, work.rows) - 1);
    const uint lastRow = min(work.row0 + WORKGROUP_ROWS, work.rows) - 1;
    const uint tiles = kv.last - kv.first, unmaskedTiles = kv.unmaskedLast - kv.unmaskedFirst;
    const uint keyEnd = SPARSE_TOKENS != 0 ? work.kvLength : visibleEnd(min(rowBase + SUBGROUP_ROWS, work.rows) - 1);
    const bool hasRows = rowBase < work.rows; // a subgroup without rows only loads KV tiles

    const uint flipQ = p.scoreScale < 0.0 ? 0x80008000u : 0u; // Q has the sign of the scale, see load_q.glsl

    uvec4 kVec[K_VECS], vVec[V_VECS];
    uint laneKey[LANE_KEYS];
    vec2 laneScale[LANE_KEYS];
    uint page[PAGE_INDICES];
    uint j = nextKVTile(kv, 0, lastRow), afterNext = j + 1; // of the KV loop
    if (j < tiles) {
        if (PREFETCH_PAGES) LOAD_PAGE_INDICES(kvTileAt(kv, j))
        PREFETCH_K(kvTileAt(kv, j))
        PREFETCH_V(kvTileAt(kv, j))
        afterNext = nextKVTile(kv, j + 1, lastRow);
        if (PREFETCH_PAGES) LOAD_PAGE_INDICES(kvTileAt(kv, afterNext))
    }

    {
        const Slice qBlock = blockQ();
#define LOAD_Q(row, col) interleavePairs(load8Q(qBlock, elementQ(work.row0 + (row)) + (col), HEAD_DIM % FRAG_K == 0 ? 8 : elementsFromQ(col)))
        if (tid == 0) nonFiniteSeen = 0;
#include "load_q.glsl"
    }

    clearSums();
    startSoftmax();

#define CURRENT_TILE kvTileAt(kv, j)
    uint next = tiles;
    [[dont_unroll]] while (j < unmaskedTiles) {
#define MASKED 0
#include "forward_tile_general.glsl"
#undef MASKED
        j = next;
    }
    [[dont_unroll]] while (j < tiles) {
#define MASKED 1
#include "forward_tile_general.glsl"
#undef MASKED
        j = next;
    }

    // -- epilogue ---------------------------------------------------------------------------------
    // O / row sum is stored, as the storage type or, with SPLIT, as partial state; LSE.
    // Sinks join the row sum here. O leaves in passes or in pairs of fragments (epilogue_functions.glsl),
    // or fragment by fragment through scratch. Inf and NaN of V are added to what was stored.
#define STORE_O8(row, col, words) store8O(oBlock, elementO(rowBase + (row)) + (col), words, max(HEAD_DIM_V, col) - (col))
#define STORE_LSE(row, value)                                                                       \
        if (SPLIT != 0) storeStateSum(row, value);                                                      \
        else storeRowLSE(row, lseWithSink(headOf(row), value));
#define STORE_GROUP(group, row, col)                                                                \
        if (SPLIT != 0) {                                                                               \
            const uint at = subgroupScratch() + group / (FRAG_N / 8) * SCRATCH_STRIDE + group % (FRAG_N / 8) * 2; \
            storeState4(rowBase + row, col, uintBitsToFloat(smem[at]));                                 \
            if (col + 4 < HEAD_DIM_V) storeState4(rowBase + row, col + 4, uintBitsToFloat(smem[at + 1])); \
        } else                                                                                          \
            STORE_O8(row, col, packScratch8(group));
    subgroupSync();
    [[unroll]] for (uint r = 0; r < M_FRAGS; ++r) loadRowMax(r);
    if (SINKS != 0 && SPLIT == 0) {
        for (uint i = gl_SubgroupInvocationID; i < SUBGROUP_ROWS; i += SUBGROUP_SIZE)
            if (rowBase + i < ROWS)
                sinkTerms[gl_SubgroupID * SUBGROUP_ROWS + i] = sinkTerm(headOf(rowBase + i), rowMaxOfRow(i / FRAG_M, i % FRAG_M));
    }
    barrier(); // the KV tile's shared memory becomes scratch
    const Slice oBlock = blockO();
#include "epilogue_row_sums.glsl"
    if (USE_PASSES != 0) {
        barrier(); // a subgroup's passes overlay the scratch of others, which may still store LSE
        STORE_STATE_PASS(0) STORE_STATE_PASS(1) STORE_STATE_PASS(2) STORE_STATE_PASS(3)
    }
#if NV2
    if (USE_PAIRS != 0) {
        STORE_PAIRS
    }
#endif
    if (USE_PASSES + USE_PAIRS == 0)
#include "epilogue_fragments.glsl"
    if (DROPS_NON_FINITE && nonFiniteSeen != 0) {
        [[dont_unroll]] for (uint n = 0; n < EPILOGUE_STORES; ++n) {
            uint row, sliceCol;
            const bool exists = epilogueColumns(n, row, sliceCol);
            const uint col = work.col0 + sliceCol, eight = col - col % 8;
            if (!exists || rowBase + row >= ROWS || col >= HEAD_DIM_V) continue;
            vec4 four[2] = { vec4(0.0), vec4(0.0) };
            addNonFinite(kv, KEY_SCALES ? 0 : unmaskedTiles, rowBase + row, eight, four[0], four[1]);
            if (SPLIT == 0) patch8O(oBlock, elementO(rowBase + row) + col, four[0], four[1], HEAD_DIM_V - col);
            [[unroll]] for (uint i = 0; i < (SPLIT != 0 ? 2 : 0); ++i)
                if ((USE_PASSES == 0 || eight + 4 * i == col) && eight + 4 * i < HEAD_DIM_V) patchState4(rowBase + row, eight + 4 * i, four[i]);
        }
    }
}
