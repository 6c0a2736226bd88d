#version 460
// Exact attention of few query rows over many keys (decoding) on cooperative matrices.
//
// Idea: memory is the limit, so nothing stands between it and the tensor cores. A workgroup owns SUM_N query
// rows, the heads of a group side by side, and a part of the keys; its subgroups walk over that part each for
// itself, taking turns at tiles of KV_TILE keys, so that they read side by side. K and V go from memory straight
// into the registers that are multiplied: a lane loads 16 bytes of a row, and which of Q's columns meet which of K's,
// and which column of O a line of a fragment is, is renumbered so that these bytes are the lane's elements of a
// fragment. Scores are Q K^T, with rows to spare; O is kept the other way round, V^T P^T, SUM_N rows across, so that it
// takes registers for those alone: P as an operand on the left and P^T as one on the right are the same elements.
// There is no shared memory in the walk but for a shift per row and where keys of lists lie, and no barrier: K of the
// next tile is on its way as soon as the scores of this one are there, V as soon as its values are added up; with PREFETCH
// V, or all of the next tile, before this one is multiplied, as far as registers go.
//
// That takes knowing where the elements of a fragment lie. Vulkan does not say it; the host asks the device
// (fragment_probe.comp) and sets REGISTER_OPERANDS where the answer is the order of operandA and operandB below.
// Elsewhere a lane puts its elements into shared memory, from where the fragment is loaded.
//
// Where a row is too long for one subgroup's registers, DIM_SPLIT of them walk together: each multiplies a part of
// Dqk, their scores are added up in shared memory, with one barrier a tile, and each has a part of O's columns. Where
// a workgroup has several such groups, whose walks may be of different lengths, each subgroup works all scores out by
// itself, without a barrier.
//
// At the end the subgroups' states meet in shared memory, a block or two of 64 columns at a time, and the workgroup
// leaves O, or with SPLIT a state of its own; with COMBINE the last of those that share rows puts the states together
// (decode_combine.glsl). Softmax is that of forward_coopmat.comp.
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_shader_explicit_arithmetic_types_int32 : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_vote : require
#extension GL_KHR_shader_subgroup_ballot : require
#if NV2
#extension GL_NV_cooperative_matrix2 : require
#endif
#ifdef DTYPE_BF16
#extension GL_EXT_bfloat16 : require
#endif

#define SCOPED_ATOMICS 1 // cooperative matrices imply the Vulkan memory model
#define CHECKS_SPARSE_TILES 1
#define SEARCH_LANES SUBGROUP_SIZE // that look for the sequence of a block
#define KV_LOOPS (LOCAL_SIZE / SUBGROUP_SIZE / DIM_SPLIT)
// Columns are asked for eight at a time; those past a row's end are left out here.
#define K_LOAD_MULTIPLE 8
#define V_LOAD_MULTIPLE 8
#include "interface.glsl"

#define SCORE_SCALE (SCORE_MOD || KEY_SCALES ? 1.0 : abs(p.scoreScale)) // S to scores
#define NEEDS_F32_SUM (HAS_LSE + SINKS != 0) // rowSumF32 is asked for
const float RESCALE_THRESHOLD = 7.5;                         // rescale threshold, in log2 units; added to a large row max it is at most 8

const uint SUBGROUPS = LOCAL_SIZE / SUBGROUP_SIZE;
const uint KV_FRAGS = KV_TILE / 16;          // fragments along a tile's keys
const uint QK_SPLIT = SUBGROUPS == DIM_SPLIT ? DIM_SPLIT : 1; // subgroups that share a score
const uint QK_BLOCKS = ((HEAD_DIM + 31) / 32 + QK_SPLIT - 1) / QK_SPLIT;    // of a subgroup, two fragments along Dqk each
const uint DV_BLOCKS = ((DV_SLICE + 63) / 64 + DIM_SPLIT - 1) / DIM_SPLIT; // and four fragments of O each
const uint DV_FRAGS = 4 * DV_BLOCKS;
#define DIM_INDEX (DIM_SPLIT == 1 ? 0 : gl_SubgroupID % DIM_SPLIT)
#define QK_FIRST_COL (QK_SPLIT == 1 ? 0 : DIM_INDEX * QK_BLOCKS * 32) // columns where the subgroup's begin
#define DV_FIRST_COL (DIM_INDEX * DV_BLOCKS * 64)

// Blocks of Q that a subgroup brings: its own, or of what all of them read in shared memory every so manieth.
const uint Q_LOAD_BLOCKS = Q_SMEM_CHUNKS != 0 ? (QK_BLOCKS + SUBGROUPS - 1) / SUBGROUPS : QK_BLOCKS;
#define Q_BLOCK(b) (Q_SMEM_CHUNKS != 0 ? (b) * SUBGROUPS + gl_SubgroupID : (b))
// Columns from col on, of the b-th of them, exist.
bool hasQ(uint b, uint col) {
    const uint before = Q_SMEM_CHUNKS != 0 ? b * SUBGROUPS + SUBGROUPS - 1 : (QK_SPLIT - 1) * QK_BLOCKS + b; // at most
    return HEAD_DIM >= (before + 1) * 32 || col < HEAD_DIM;
}

// Parts of 16 bytes are numbered as 32 lanes hold them; where subgroups are smaller each lane has several lanes' share.
const uint LANE_FOLD = 32 / SUBGROUP_SIZE;
#define VIRTUAL_LANE(s) ((s) * SUBGROUP_SIZE + gl_SubgroupInvocationID)
#define GROUP_ID(s) (VIRTUAL_LANE(s) / 4) // of eight
#define THREAD_IN_GROUP (gl_SubgroupInvocationID % 4)

// Shared memory in units of 8 elements (uvec4): blocks of a subgroup's O, which lie over its scratch; then what
// it says of its rows: shifts, factors of what moved and after the walk sums of weights, and sums of exact ones.
// Where nothing goes through scratch, Q lies in the areas during the walk. A core has room for two workgroups.
#if NV2
const bool NO_SCRATCH = REGISTER_OPERANDS != 0;
#else
const bool NO_SCRATCH = false;
#endif
const bool AREAS_ONLY = Q_SMEM_CHUNKS == 0 || NO_SCRATCH;
const bool TWO_BLOCKS = SUM_N == 8 && AREAS_ONLY && DV_BLOCKS > 1 && QK_SPLIT == 1;
const uint AREA_BLOCKS = TWO_BLOCKS ? 2 : 1;
const uint AREA_STRIDE = 16 * AREA_BLOCKS + 1;
const uint AREA_ROWS = QK_SPLIT > 1 ? 16 : SUM_N; // so that scores have room
const uint AREA_SIZE = AREA_ROWS * AREA_STRIDE;
const uint SCRATCH_BASE = 0;
#define SUBGROUP_SCRATCH AREA_SIZE
const uint ROW_MAX_SIZE = FRAG_M / 4;
const uint ROW_MAX_BASE = SUBGROUPS * AREA_SIZE;
const uint FACTOR_BASE = ROW_MAX_BASE + SUBGROUPS * ROW_MAX_SIZE;
const uint ROW_SUM_F32_BASE = FACTOR_BASE + SUBGROUPS * ROW_MAX_SIZE;
const uint ROW_STATS_END = ROW_SUM_F32_BASE + SUBGROUPS * ROW_MAX_SIZE;
const uint Q_STRIDE = 4 * QK_BLOCKS | 1; // with Q_SMEM_CHUNKS all of Q, which registers have no room for
const uint Q_SIZE = Q_SMEM_CHUNKS != 0 ? FRAG_M * Q_STRIDE : 0;
const bool Q_IN_AREAS = NO_SCRATCH && Q_SIZE <= ROW_MAX_BASE;
const uint Q_BASE = Q_IN_AREAS ? 0 : ROW_STATS_END;
// Scales of a subgroup's keys lie in its area too, where that is free, or behind all of these.
const uint SCALES_SIZE = KEY_SCALES ? KV_TILE / 4 * SCALE_KINDS : 0;
const bool AREAS_FREE = NO_SCRATCH && Q_SMEM_CHUNKS == 0 && QK_SPLIT == 1;
const uint SCALES_EXTRA = (AREAS_FREE ? AREA_SIZE : 0) < SCALES_SIZE ? SUBGROUPS * SCALES_SIZE : 0;
const uint SCALES_BASE = ROW_STATS_END + (Q_IN_AREAS ? 0 : Q_SIZE);
#define SUBGROUP_SCALES (SCALES_EXTRA == 0 ? gl_SubgroupID * AREA_SIZE : SCALES_BASE + gl_SubgroupID * SCALES_SIZE)
shared uvec4 smem[SCALES_BASE + SCALES_EXTRA];
// With DIM_SPLIT a subgroup's scores of a tile of 16 keys, of two tiles in turn, lie in its area behind its scratch.
const uint QK_PARTIAL_STRIDE = 5;
const uint QK_PARTIAL_SIZE = 16 * QK_PARTIAL_STRIDE;
#define QK_PARTIAL(subgroup) ((subgroup) * AREA_SIZE + QK_PARTIAL_SIZE * (1 + parity))
shared uint nonFiniteSeen; // a masked tile had Inf or NaN in V, or any in its scales
#define DROPS_NON_FINITE (ROW_MASKS || KEY_SCALES)
shared uint tileKeys[SPARSE_TOKENS != 0 ? SUBGROUPS * KV_TILE : 1]; // a tile's keys where they are those of a list
#define TILE_KEY(col) tileKeys[gl_SubgroupID * KV_TILE + (col)]

// O and the sums of P are the other way round: FragSum has a row of the problem in each column. A factor for each row
// gets there by way of shared memory.
#define RESCALE_FACTOR (FACTOR_BASE + gl_SubgroupID * ROW_MAX_SIZE)
#define RESCALE_ROW_SUM(r, factor)                                                                     \
    subgroupSync();                                                                                 \
    storeFirstColumn(factor, RESCALE_FACTOR);
#define RESCALE_O(r, factor)                                                                          \
    {                                                                                               \
        FragSum across;                                                                             \
        coopMatLoad(across, smem, RESCALE_FACTOR, 0, gl_CooperativeMatrixLayoutRowMajor);                   \
        rowSum[r] *= across;                                                                     \
        [[unroll]] for (uint i = 0; i < DV_FRAGS; ++i) O[i] *= across;                             \
    }

// With 8 rows, the second half of a lane's scores are of rows that do not exist (transposeP leaves them out).
#define LIVE_ELEMENTS(x) (REGISTER_OPERANDS != 0 && SUM_N == 8 ? x.length() / 2 : x.length())

// lavapipe (Mesa 26.2) reduces half of the columns of rows 8 to 15 of these fragments, which are larger than its own.
#define REDUCE_BY_SCRATCH (REGISTER_OPERANDS == 0)
#include "coopmat_fragments.glsl"
#include "coopmat_step.glsl"

// The first line of x, a float of each of its SUM_N columns, from tile[place] on.
#if NV2
float storeFirstRowElement(const in uint32_t row, const in uint32_t col, const in float x, const in uint place) {
    if (row == 0) smem[place + col / 4][col % 4] = floatBitsToUint(x);
    return x;
}
#define storeFirstRow(x, place) coopMatPerElementNV(x, x, storeFirstRowElement, place)
#else
#define storeFirstRow(x, place)                                                                       \
    {                                                                                               \
        fragmentToScratch(x);                                                                       \
        for (uint col = gl_SubgroupInvocationID; col < SUM_N; col += SUBGROUP_SIZE)                 \
            smem[(place) + col / 4][col % 4] = floatBitsToUint(loadScratch(0, col));               \
    }
#endif

// -- operands from registers --------------------------------------------------------------------------
// An operand is 16 lines of 16 elements, rows of A or columns of B. Lane 4 g + q has words q and q + 4 of lines g
// and g + 8: first, second of line g, third, fourth of line g + 8.

#ifdef DTYPE_BF16
#define PUT_WORD(frag, e, word)                                                                     \
    frag[e] = bfloat16_t(uintBitsToFloat((word) << 16));                                            \
    frag[(e) + 1] = bfloat16_t(uintBitsToFloat((word) & 0xffff0000u));
#else
#define PUT_WORD(frag, e, word)                                                                     \
    {                                                                                               \
        const f16vec2 two = unpackFloat2x16(word);                                                  \
        frag[e] = two.x;                                                                            \
        frag[(e) + 1] = two.y;                                                                      \
    }
#endif
// The words are expressions of s, the share.
#define OPERAND(frag, first, second, third, fourth, layout_)                                        \
    if (REGISTER_OPERANDS != 0) {                                                                      \
        const uint s = 0;                                                                           \
        PUT_WORD(frag, 0, first)                                                                    \
        PUT_WORD(frag, 2, second)                                                                   \
        PUT_WORD(frag, 4, third)                                                                    \
        PUT_WORD(frag, 6, fourth)                                                                   \
    } else {                                                                                        \
        subgroupSync();                                                                             \
        [[unroll]] for (uint s = 0; s < LANE_FOLD; ++s) {                                              \
            const uint line = subgroupScratch() + 2 * GROUP_ID(s);                                          \
            smem[line][THREAD_IN_GROUP] = first;                                                            \
            smem[line + 1][THREAD_IN_GROUP] = second;                                                       \
            smem[line + 16][THREAD_IN_GROUP] = third;                                                       \
            smem[line + 17][THREAD_IN_GROUP] = fourth;                                                      \
        }                                                                                           \
        subgroupSync();                                                                             \
        coopMatLoad(frag, smem, subgroupScratch(), 2, layout_);                                         \
    }
#define operandA(frag, first, second, third, fourth)                                                \
    OPERAND(frag, first, second, third, fourth, gl_CooperativeMatrixLayoutRowMajor)
#define operandB(frag, first, second, third, fourth)                                                \
    OPERAND(frag, first, second, third, fourth, gl_CooperativeMatrixLayoutColumnMajor)

// P^T of P, whose lines are rows in both: those of A are its rows, those of B its columns.
#define FragPt FragOnes
#define transposeP(result, x)                                                                       \
    if (REGISTER_OPERANDS != 0) {                                                                      \
        [[unroll]] for (uint e = 0; e < result.length(); ++e) result[e] = x[e];                     \
    } else {                                                                                        \
        subgroupSync();                                                                             \
        coopMatStore(x, smem, subgroupScratch(), 2, gl_CooperativeMatrixLayoutRowMajor);                \
        subgroupSync();                                                                             \
        coopMatLoad(result, smem, subgroupScratch(), 2, gl_CooperativeMatrixLayoutColumnMajor);         \
    }

#include "non_finite.glsl"
#include "decode_fetch.glsl"

// Adds four columns of a subgroup's O, those of its area from a multiple of 4 on: O's column 8 g + 2 f + i of a block is
// column 16 f + 8 i + g of the area; or 8 g + 4 (f / 2) + 2 i + f % 2 is.
void addScaled4(inout vec4 four, float factor, uint subgroup, uint row, uint first) {
    const uint at = first / 64 * 64 + first % 8 * 8 + first % 64 / 8;
    [[unroll]] for (uint e = 0; e < 4; ++e) {
        const uint f = KEY_SCALES ? e % 2 : e / 2, i = KEY_SCALES ? e / 2 : e % 2, col = at + f * 16 + i * 8;
        four[e] = fma(factor, uintBitsToFloat(smem[subgroup * AREA_SIZE + row * AREA_STRIDE + col / 4][col % 4]), four[e]);
    }
}
// What a walker, by the first of its subgroups, said of a row.
float rowStat(uint first, uint loop, uint row) {
    return uintBitsToFloat(smem[first + loop * DIM_SPLIT * ROW_MAX_SIZE + row / 4][row % 4]);
}

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
    const uint flipQ = p.scoreScale < 0.0 ? 0x80008000u : 0u; // so that the largest score is the largest logit
    const float scale = SCORE_SCALE, invScale = 1.0 / scale;

    // Q is asked for first: a core's memory answers in order, and nothing can be multiplied without it.
    const Slice qBlock = blockQ();
    uvec4 qVec[2 * LANE_FOLD * Q_LOAD_BLOCKS];
    [[unroll]] for (uint n = 0; n < 2 * LANE_FOLD; ++n) {
        const uint row = n / LANE_FOLD * 8 + GROUP_ID(n % LANE_FOLD);
        const uint element = elementQ(work.row0 + row);
        [[unroll]] for (uint b = 0; b < Q_LOAD_BLOCKS; ++b) {
            const uint col = QK_FIRST_COL + Q_BLOCK(b) * 32 + THREAD_IN_GROUP * 8;
            qVec[n * Q_LOAD_BLOCKS + b] = (SUM_N > 8 || n < LANE_FOLD) && row < rows && hasQ(b, col)
                ? interleavePairs(load8Q(qBlock, element + col, HEAD_DIM % 8 == 0 ? 8 : elementsFromQ(col)) ^ flipQ) : uvec4(0);
        }
    }

    uvec4 kVec[K_LANE_VECS], vVec[V_LANE_VECS];
    uvec4 kNext[K_LANE_VECS], vNext[V_LANE_VECS]; // of the next tile, with PREFETCH
    Slice kRun[RUNS], vRun[RUNS]; // where keys lie one after another
    uint lastSlot[RUNS]; // from where a run of keys starts on, of those that exist
    uint indices[INDICES];   // of the tile after the one that was looked up
    uint loadedSlot = 0;    // slot of the walk where that one starts
    vec2 scales[LANE_KEYS]; // of keys that the lane looked up
    bool nonFiniteScale = false;   // a scale of V was Inf or NaN
    uint j = nextKVTile(kv, gl_SubgroupID / DIM_SPLIT, lastRow), next = tiles;
#define CURRENT_TILE kvTileAt(kv, j)
    // Tiles from the first on that need no masks. Of a list those up to the first that has a key not every row sees.
    uint unmaskedTiles = kv.unmaskedLast - kv.unmaskedFirst;
    bool allSeen = true; // all keys of the tile that was looked up last
#define STORE_KEY_INDICES /* the keys of the smem that was just loadedSlot */                               \
    if (SPARSE_TOKENS != 0) {                                                                                \
        if (!allSeen) unmaskedTiles = 0;                                                                  \
        if (unmaskedTiles == 0) {                                                                      \
            subgroupSync();                                                                         \
            for (uint i = gl_SubgroupInvocationID; i < KV_TILE; i += SUBGROUP_SIZE) TILE_KEY(i) = keyAt(loadedSlot + i); \
            subgroupSync();                                                                         \
        }                                                                                           \
    }
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

    FragA Q[Q_SMEM_CHUNKS != 0 ? 1 : 2 * QK_BLOCKS];
#define Q_WORD(h, w) qVec[((h) * LANE_FOLD + s) * Q_LOAD_BLOCKS + i / 2][i % 2 * 2 + (w)]
    [[unroll]] for (uint i = 0; i < 2 * Q_LOAD_BLOCKS; ++i) {
        FragA Qi;
        operandA(Qi, Q_WORD(0, 0), Q_WORD(0, 1), Q_WORD(1, 0), Q_WORD(1, 1))
        if (Q_SMEM_CHUNKS == 0) Q[Q_SMEM_CHUNKS != 0 ? 0 : i] = Qi;
        else if (Q_BLOCK(i / 2) < QK_BLOCKS)
            coopMatStore(Qi, smem, Q_BASE + 4 * Q_BLOCK(i / 2) + 2 * (i % 2), Q_STRIDE, gl_CooperativeMatrixLayoutRowMajor);
    }
    if (DROPS_NON_FINITE && tid == 0) nonFiniteSeen = 0;

    FragSum O[DV_FRAGS];
    FragC rowMax[1];    // what is subtracted from a row's scores, as read from shared memory
    FragSum rowSum[1]; // sums of P as V meets it, rounded: ones times P^T, all lines the same
    FragC rowSumF32[1];    // sums of P in float32, for LSE and sinks; not yet reduced along the row
    FragC rowSumScaled[1];   // nor are these, instead of rowSum where keys have scales
    [[unroll]] for (uint i = 0; i < DV_FRAGS; ++i) O[i] = FragSum(0.0);
    rowSum[0] = FragSum(0.0);
    rowSumF32[0] = FragC(0.0);
    rowSumScaled[0] = FragC(0.0);
    for (uint i = gl_SubgroupInvocationID; i < ROW_MAX_SIZE; i += SUBGROUP_SIZE)
        smem[rowMaxAt(0) + i] = uvec4(floatBitsToUint(ROW_MAX_INIT));
    if (DROPS_NON_FINITE || Q_SMEM_CHUNKS != 0) barrier();
    else subgroupSync();
    loadRowMax(0);

    uint parity = 0; // whose place scores take
    [[dont_unroll]] while (j < unmaskedTiles) {
#define MASKED 0
#include "decode_tile.glsl"
#undef MASKED
    }
    [[dont_unroll]] while (j < tiles) {
#define MASKED 1
#include "decode_tile.glsl"
#undef MASKED
    }

    // Every subgroup says what it has of each row, and lays out its O; then an invocation has some columns of a row.
    if (KEY_SCALES && nonFiniteScale) atomicOr(nonFiniteSeen, 1);
    subgroupSync(); // the factors of what moved are read
    if (NEEDS_F32_SUM) {
        FragC sumF32;
        reduceRowSum(sumF32, rowSumF32[0]);
        storeFirstColumn(sumF32, ROW_SUM_F32_BASE + gl_SubgroupID * ROW_MAX_SIZE);
    }
    if (KEY_SCALES) {
        FragC sumF32;
        reduceRowSum(sumF32, rowSumScaled[0]);
        storeFirstColumn(sumF32, RESCALE_FACTOR);
    } else {
        storeFirstRow(rowSum[0], RESCALE_FACTOR);
    }
    if (QK_SPLIT > 1 || Q_SMEM_CHUNKS != 0 && Q_IN_AREAS) barrier(); // the last tile's scores, or Q, are read
    else subgroupSync();
    const Slice oBlock = blockO();
    [[unroll]] for (uint pass = 0; pass < DV_BLOCKS; pass += AREA_BLOCKS) {
        if (pass > 0) barrier(); // the areas are read
        [[unroll]] for (uint f = 0; f < 4 * AREA_BLOCKS; ++f)
            if (4 * pass + f < DV_FRAGS)
                coopMatStore(O[4 * pass + f], smem, gl_SubgroupID * AREA_SIZE + f * 4, AREA_STRIDE, gl_CooperativeMatrixLayoutColumnMajor);
        barrier();
        // An invocation has four columns: the fewer, the sooner the last one is done.
        const uint areaEach = 64 * AREA_BLOCKS / 4, rowEach = DIM_SPLIT * areaEach;
        for (uint at = tid; at < rows * rowEach; at += LOCAL_SIZE) {
            const uint row = at / rowEach, dimIndex = at % rowEach / areaEach, first = at % areaEach * 4;
            const uint sliceCol = (dimIndex * DV_BLOCKS + pass) * 64 + first, col = work.col0 + sliceCol;
            if (pass * 64 + first >= DV_BLOCKS * 64 || sliceCol >= DV_SLICE || col >= HEAD_DIM_V) continue;
            // What each walker's O counts for. Those that share columns have the same.
            float rowMax_ = ROW_MAX_INIT, factors[KV_LOOPS], sum = 0.0, sumF32 = 0.0;
            [[unroll]] for (uint n = 0; n < KV_LOOPS; ++n) rowMax_ = max(rowMax_, rowStat(ROW_MAX_BASE, n, row));
            [[unroll]] for (uint n = 0; n < KV_LOOPS; ++n) {
                factors[n] = exp2(TO_LOG2(rowStat(ROW_MAX_BASE, n, row) - rowMax_));
                sum += factors[n] * rowStat(FACTOR_BASE, n, row);
                if (NEEDS_F32_SUM) sumF32 += factors[n] * rowStat(ROW_SUM_F32_BASE, n, row);
            }
            if (HAS_LSE != 0 && sliceCol == 0 && (COMBINE != 0 || work.col0 == 0))
                storeSplitLSE(work.row0 + row, lseWithSink(work.row0 + row, logSumExp(rowMax_, sumF32)));
            // A sink is not rounded as weights are: its share is that of the sum before.
            if (SINKS != 0) {
                const float sink = sinkTerm(work.row0 + row, rowMax_);
                if (sum != 0.0 || isNaN(sink)) sum *= 1.0 + sink / sumF32;
            }
            const float inverse = sum == 0.0 ? 0.0 : 1.0 / sum;
            vec4 o = vec4(0.0);
            [[unroll]] for (uint n = 0; n < KV_LOOPS; ++n) {
                const float factor = factors[n] * inverse;
                if (factor == 0.0) continue; // whatever its O holds
                addScaled4(o, factor, n * DIM_SPLIT + dimIndex, row, first);
            }
            if (DROPS_NON_FINITE && nonFiniteSeen != 0) {
                vec4 four[2] = { vec4(0.0), vec4(0.0) };
                addNonFinite(kv, 0, work.row0 + row, col - first % 8, four[0], four[1]);
                addIfNonFinite(o, four[first % 8 / 4]); // and not zeros, which make subnormal numbers zero
            }
            if (SPLIT != 0) storeSplit4(work.row0 + row, col, o);
            else store4O(oBlock, elementO(work.row0 + row) + col, o, HEAD_DIM_V - col);
        }
    }
    if (COMBINE != 0) combineSplits(rows);
}
