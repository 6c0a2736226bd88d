#version 460
// Attention forward for few query rows and many keys (decoding) on cooperative matrices. Memory bandwidth is the
// limit: K and V go from global memory straight into the registers that are multiplied.
//
// A workgroup owns SUM_N query rows, with PACK_GQA the heads of a group, and a split of the keys. Its subgroups run
// KV loops of their own (KV_LOOPS of them) and take turns at KV tiles. Where a row is too long for the registers of a
// subgroup, DIM_SPLIT subgroups share a KV loop: each has a part of O's columns and, if there is one KV loop, a part
// of Dqk; their partial scores are added in shared memory, with one barrier per tile.
//   registers      Q, O (transposed, decode_fragments.glsl), the vectors of this KV tile and of the next (decode_load.glsl)
//   shared memory  the row max; the keys or addresses of a tile if its rows are not contiguous; scratch (decode_fragments.glsl)
//   barriers       in the KV loop none, but for partial scores
// K of the next tile is loaded as soon as S is computed, V as soon as O is; PREFETCH loads V, or K and V, before that. At
// the end the subgroups' O are combined in shared memory. With SPLIT the workgroup stores a partial state, and with
// COMBINE the last workgroup of a row combines the splits (decode_combine.glsl). Softmax is the same as in
// forward_coopmat.comp.
#extension GL_GOOGLE_include_directive : require
#define CONSTANTS_DECODE
#include "constants_coopmat.glsl"

#define CHECKS_SPARSE_TILES 1
#define KV_LOOPS (LOCAL_SIZE / SUBGROUP_SIZE / DIM_SPLIT)
// Vectors have eight columns; hasK and hasV leave out those past the end of a row.
#define K_LOAD_MULTIPLE 8
#define V_LOAD_MULTIPLE 8
uint kvHeads;
#define KV_HEADS kvHeads
#include "interface.glsl"

#define SCORE_SCALE (SCORE_MOD || KEY_SCALES ? 1.0 : abs(p.scoreScale)) // of S, when softmax takes it
#define NEEDS_F32_SUM (HAS_LSE + SINKS != 0)

#define PAIRED_COLUMNS (K_TYPE != 0)
#include "decode_fragments.glsl"
uint weightedLoops; // bit n: the KV loop has a weight in the row that is stored
#define LEFT_OUT(tile) ((weightedLoops >> (tile) % KV_LOOPS & 1u) == 0)
#include "non_finite.glsl"
#include "decode_load.glsl"
#include "decode_combine.glsl"

void main() {
    if (!findWorkTile(SUM_N)) {
        countEmptySplit();
        return;
    }
    kvHeads = p.Hq / p.groupSize;
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
    // A turn takes one tile and ends with copies of the next tile's vectors. With TWO_TILES a turn of the unmasked loop takes
    // two tiles and the arrays of vectors swap roles in the second, so nothing is copied.
    [[dont_unroll]] while (j < unmaskedTiles) {
#define MASKED 0
#define SWAPPED 0
#include "decode_tile.glsl"
        if (TWO_TILES) {
            if (j >= unmaskedTiles) {
                COPY_NEXT_VECS
                break;
            }
#define SWAPPED 1
#include "decode_tile.glsl"
        }
#undef MASKED
    }
    [[dont_unroll]] while (j < tiles) {
#define MASKED 1
#define SWAPPED 0
#include "decode_tile.glsl"
#undef MASKED
    }

    // -- epilogue ---------------------------------------------------------------------------------
    // combines the O of the subgroups' KV loops. Each subgroup stores its row sums, and
    // AREA_BLOCKS blocks of its O per pass, to shared memory; then an invocation adds up four columns of a row over the
    // KV loops, and stores O, or with SPLIT the partial state of this split. With COMBINE the last workgroup of a row
    // combines the splits.
    if (KEY_SCALES && nonFiniteScale) atomicOr(nonFiniteSeen, 1);
    subgroupSync(); // the rescale factors are read
    if (NEEDS_F32_SUM) {
        FragC sumF32;
        reduceRowSum(sumF32, rowSumF32[0]);
        storeFirstColumn(sumF32, ROW_SUM_F32_BASE + gl_SubgroupID * ROW_MAX_SIZE);
    }
    if (KEY_SCALES) {
        FragC sumScaled;
        reduceRowSum(sumScaled, rowSumScaled[0]);
        storeFirstColumn(sumScaled, RESCALE_FACTOR); // the factors are read: row sums take their place
    } else {
        storeFirstRow(rowSum[0], RESCALE_FACTOR);
    }
    if (QK_SPLIT > 1 || Q_SMEM_CHUNKS != 0 && Q_IN_AREAS) barrier(); // the last partial scores, or Q, are read
    else subgroupSync();
    const Slice oBlock = blockO();
    [[unroll]] for (uint pass = 0; pass < DV_BLOCKS; pass += AREA_BLOCKS) {
        if (pass > 0) barrier(); // the areas are read
        [[unroll]] for (uint f = 0; f < 4 * AREA_BLOCKS; ++f)
            if (4 * pass + f < DV_FRAGS)
                coopMatStore(O[4 * pass + f], smem, gl_SubgroupID * AREA_SIZE + f * 4, AREA_STRIDE, gl_CooperativeMatrixLayoutColumnMajor);
        barrier();
        // Four columns per invocation: with more, fewer invocations would share the work.
        const uint areaEach = 64 * AREA_BLOCKS / 4, rowEach = DIM_SPLIT * areaEach;
        for (uint at = tid; at < rows * rowEach; at += LOCAL_SIZE) {
            const uint row = at / rowEach, dimIndex = at % rowEach / areaEach, first = at % areaEach * 4;
            const uint sliceCol = (dimIndex * DV_BLOCKS + pass) * 64 + first, col = work.col0 + sliceCol;
            if (pass * 64 + first >= DV_BLOCKS * 64 || sliceCol >= DV_SLICE || col >= HEAD_DIM_V) continue;
            // Factor of each KV loop's O. Subgroups of one loop have the same row max and sums.
            float highest = ROW_MAX_INIT, factors[KV_LOOPS], sum = 0.0, sumF32 = 0.0;
            [[unroll]] for (uint n = 0; n < KV_LOOPS; ++n) highest = max(highest, rowStat(ROW_MAX_BASE, n, row));
            [[unroll]] for (uint n = 0; n < KV_LOOPS; ++n) {
                factors[n] = exp2(TO_LOG2(rowStat(ROW_MAX_BASE, n, row) - highest));
                sum += factors[n] * rowStat(FACTOR_BASE, n, row);
                if (NEEDS_F32_SUM) sumF32 += factors[n] * rowStat(ROW_SUM_F32_BASE, n, row);
            }
            if (HAS_LSE != 0 && sliceCol == 0 && (COMBINE != 0 || work.col0 == 0)) {
                if (SPLIT != 0) storeSplitStats(work.row0 + row, splitMax(highest, sumF32), isFarRow(highest) ? INFINITY : splitSum(sumF32));
                else storeRowLSE(work.row0 + row, lseWithSink(headOf(work.row0 + row), nanIfFar(highest, logSumExp(highest, sumF32))));
            }
            // A sink is not rounded as P is: it scales the rounded sum as it scales the float32 sum.
            const float sink = SINKS != 0 && SPLIT == 0 ? sinkFactor(sinkTerm(headOf(work.row0 + row), highest), sumF32) : 1.0;
            // A factor of 0 below leaves out O, which is Inf or NaN where the row sum is Inf.
            const float inverse = nonFinite(sum) ? uintBitsToFloat(NAN_BITS) : nanIfFar(highest, inverseSum(sum, sink));
            vec4 o = vec4(0.0);
            weightedLoops = 0;
            [[unroll]] for (uint n = 0; n < KV_LOOPS; ++n) {
                const float factor = factors[n] * inverse;
                if (factor == 0.0) continue; // its O may hold anything
                weightedLoops |= 1u << n;
                addScaled4(o, factor, n * DIM_SPLIT + dimIndex, row, first);
            }
            if (DROPS_NON_FINITE && nonFiniteSeen != 0) {
                vec4 four[2] = { vec4(0.0), vec4(0.0) };
                addNonFinite(kv, 0, work.row0 + row, col - first % 8, four[0], four[1]);
                addIfNonFinite(o, four[first % 8 / 4]); // not zeros: adding 0 may flush a subnormal
            }
            if (SPLIT != 0) storeSplit4(work.row0 + row, col, o);
            else store4O(oBlock, elementO(work.row0 + row) + col, o, HEAD_DIM_V - col);
        }
    }
    if (COMBINE != 0) combineSplits(rows);
}
