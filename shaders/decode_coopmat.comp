#version 460
// Exact attention of few query rows over many keys (decoding) on cooperative matrices.
//
// Idea: memory is the limit, so nothing stands between it and the tensor cores. A workgroup owns SUM_N query
// rows, the heads of a group side by side, and a part of the keys; its subgroups walk over that part each for
// itself, taking turns at tiles of BLOCK_COLS keys, so that they read side by side. K and V go from memory straight
// into the registers that are multiplied: a lane loads 16 bytes of a row, and which of Q's columns meet which of K's,
// and which column of O a line of a fragment is, is renumbered so that these bytes are the lane's elements of a
// fragment. Scores are Q K^T, with rows to spare; O is kept the other way round, V^T P^T, SUM_N rows across, so that it
// takes registers for those alone: P as an operand on the left and P^T as one on the right are the same elements.
// There is no shared memory in the walk but for a shift per row and where keys of lists lie, and no barrier: K of the
// next tile is on its way as soon as the scores of this one are there, V as soon as its values are added up; with AHEAD
// V, or all of the next tile, before this one is multiplied, as far as registers go.
//
// That takes knowing where the elements of a fragment lie. Vulkan does not say it; the host asks the device
// (fragment_probe.comp) and sets FRAGMENT_ORDER where the answer is the order of operandA and operandB below.
// Elsewhere a lane puts its elements into shared memory, from where the fragment is loaded.
//
// Where a row is too long for one subgroup's registers, COLUMN_SHARES of them walk together: each multiplies a part of
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
#define LISTS_LOOKED_AT 1
#define LANES SUBGROUP_SIZE // that look for the sequence of a block
#define WALKERS (LOCAL_SIZE / SUBGROUP_SIZE / COLUMN_SHARES)
// Columns are asked for eight at a time; those past a row's end are left out here.
#define FRAGMENT_K 8
#define FRAGMENT_V 8
#include "interface.glsl"

#define SCALED (MODIFIED || ROW_SCALES ? 1.0 : abs(p.scoreScale)) // S to scores
#define TOTALS (HAS_LSE + SINKS != 0) // rowTotal is asked for
const float LAG = 7.5;                         // rescale threshold, in log2 units; added to a large row max it is at most 8

const uint SUBGROUPS = LOCAL_SIZE / SUBGROUP_SIZE;
const uint KEY_TILES = BLOCK_COLS / 16;          // fragments along a tile's keys
const uint SCORE_SHARES = SUBGROUPS == COLUMN_SHARES ? COLUMN_SHARES : 1; // subgroups that share a score
const uint QK_BLOCKS = ((HEAD_DIM + 31) / 32 + SCORE_SHARES - 1) / SCORE_SHARES;    // of a subgroup, two fragments along Dqk each
const uint OUT_BLOCKS = ((DV_SLICE + 63) / 64 + COLUMN_SHARES - 1) / COLUMN_SHARES; // and four fragments of O each
const uint OUT_TILES = 4 * OUT_BLOCKS;
#define MY_SHARE (COLUMN_SHARES == 1 ? 0 : gl_SubgroupID % COLUMN_SHARES)
#define FIRST_QK (SCORE_SHARES == 1 ? 0 : MY_SHARE * QK_BLOCKS * 32) // columns where the subgroup's begin
#define FIRST_OUT (MY_SHARE * OUT_BLOCKS * 64)

// Blocks of Q that a subgroup brings: its own, or of what all of them read in shared memory every so manieth.
const uint MY_Q_BLOCKS = Q_STAGED != 0 ? (QK_BLOCKS + SUBGROUPS - 1) / SUBGROUPS : QK_BLOCKS;
#define Q_BLOCK(b) (Q_STAGED != 0 ? (b) * SUBGROUPS + gl_SubgroupID : (b))
// Columns from col on, of the b-th of them, exist.
bool hasQ(uint b, uint col) {
    const uint before = Q_STAGED != 0 ? b * SUBGROUPS + SUBGROUPS - 1 : (SCORE_SHARES - 1) * QK_BLOCKS + b; // at most
    return HEAD_DIM >= (before + 1) * 32 || col < HEAD_DIM;
}

// Parts of 16 bytes are numbered as 32 lanes hold them; where subgroups are smaller each lane has several lanes' share.
const uint SHARES = 32 / SUBGROUP_SIZE;
#define SHARE_LANE(s) ((s) * SUBGROUP_SIZE + gl_SubgroupInvocationID)
#define LINE(s) (SHARE_LANE(s) / 4) // of eight
#define QUARTER (gl_SubgroupInvocationID % 4)

// Shared memory in units of 8 elements (uvec4): blocks of a subgroup's O, which lie over its scratch; then what
// it says of its rows: shifts, factors of what moved and after the walk sums of weights, and sums of exact ones.
// Where nothing goes through scratch, Q lies in the areas during the walk. A core has room for two workgroups.
#if NV2
const bool NO_SCRATCH = FRAGMENT_ORDER != 0;
#else
const bool NO_SCRATCH = false;
#endif
const bool AREAS_ONLY = Q_STAGED == 0 || NO_SCRATCH;
const bool TWO_BLOCKS = SUM_N == 8 && AREAS_ONLY && OUT_BLOCKS > 1 && SCORE_SHARES == 1;
const uint AREA_BLOCKS = TWO_BLOCKS ? 2 : 1;
const uint AREA_STRIDE = 16 * AREA_BLOCKS + 1;
const uint AREA_ROWS = SCORE_SHARES > 1 ? 16 : SUM_N; // so that scores have room
const uint AREA_SIZE = AREA_ROWS * AREA_STRIDE;
const uint SCRATCH_FIRST = 0;
#define SCRATCH_EACH AREA_SIZE
const uint SHIFT_SIZE = TILE_M / 4;
const uint SHIFT_FIRST = SUBGROUPS * AREA_SIZE;
const uint FACTOR_FIRST = SHIFT_FIRST + SUBGROUPS * SHIFT_SIZE;
const uint TOTAL_FIRST = FACTOR_FIRST + SUBGROUPS * SHIFT_SIZE;
const uint AFTER_ROWS = TOTAL_FIRST + SUBGROUPS * SHIFT_SIZE;
const uint Q_STRIDE = 4 * QK_BLOCKS | 1; // with Q_STAGED all of Q, which registers have no room for
const uint Q_SIZE = Q_STAGED != 0 ? TILE_M * Q_STRIDE : 0;
const bool Q_BELOW = NO_SCRATCH && Q_SIZE <= SHIFT_FIRST;
const uint Q_FIRST = Q_BELOW ? 0 : AFTER_ROWS;
// Scales of a subgroup's keys lie in its area too, where that is free, or behind all of these.
const uint SCALES_SIZE = ROW_SCALES ? BLOCK_COLS / 4 * SCALE_KINDS : 0;
const bool AREAS_FREE = NO_SCRATCH && Q_STAGED == 0 && SCORE_SHARES == 1;
const uint SCALES_BEHIND = (AREAS_FREE ? AREA_SIZE : 0) < SCALES_SIZE ? SUBGROUPS * SCALES_SIZE : 0;
const uint SCALES_FIRST = AFTER_ROWS + (Q_BELOW ? 0 : Q_SIZE);
#define MY_SCALES (SCALES_BEHIND == 0 ? gl_SubgroupID * AREA_SIZE : SCALES_FIRST + gl_SubgroupID * SCALES_SIZE)
shared uvec4 tile[SCALES_FIRST + SCALES_BEHIND];
// With COLUMN_SHARES a subgroup's scores of a tile of 16 keys, of two tiles in turn, lie in its area behind its scratch.
const uint SCORES_STRIDE = 5;
const uint SCORES_SIZE = 16 * SCORES_STRIDE;
#define SCORES_OF(subgroup) ((subgroup) * AREA_SIZE + SCORES_SIZE * (1 + turn))
shared uint nonFiniteSeen; // a masked tile had Inf or NaN in V, or any in its scales
#define MAY_DROP (MASKS || ROW_SCALES)
shared uint keyOfColumn[KEPT != 0 ? SUBGROUPS * BLOCK_COLS : 1]; // a tile's keys where they are those of a list
#define KEY_OF_COLUMN(col) keyOfColumn[gl_SubgroupID * BLOCK_COLS + (col)]

// O and the sums of P are the other way round: FragSum has a row of the problem in each column. A factor for each row
// gets there by way of shared memory.
#define FACTOR (FACTOR_FIRST + gl_SubgroupID * SHIFT_SIZE)
#define SCALE_WEIGHT(r, factor)                                                                     \
    subgroupSync();                                                                                 \
    firstColumnTo(factor, FACTOR);
#define SCALE_O(r, factor)                                                                          \
    {                                                                                               \
        FragSum across;                                                                             \
        coopMatLoad(across, tile, FACTOR, 0, gl_CooperativeMatrixLayoutRowMajor);                   \
        rowWeight[r] *= across;                                                                     \
        [[unroll]] for (uint i = 0; i < OUT_TILES; ++i) O[i] *= across;                             \
    }

// With 8 rows, the second half of a lane's scores are of rows that do not exist (transposeP leaves them out).
#define LIVE(x) (FRAGMENT_ORDER != 0 && SUM_N == 8 ? x.length() / 2 : x.length())

// lavapipe (Mesa 26.2) reduces half of the columns of rows 8 to 15 of these fragments, which are larger than its own.
#define SCRATCH_ROWS (FRAGMENT_ORDER == 0)
#include "coopmat_fragments.glsl"
#include "coopmat_step.glsl"

// The first line of x, a float of each of its SUM_N columns, from tile[place] on.
#if NV2
float firstLine(const in uint32_t row, const in uint32_t col, const in float x, const in uint place) {
    if (row == 0) tile[place + col / 4][col % 4] = floatBitsToUint(x);
    return x;
}
#define firstLineTo(x, place) coopMatPerElementNV(x, x, firstLine, place)
#else
#define firstLineTo(x, place)                                                                       \
    {                                                                                               \
        fragmentToScratch(x);                                                                       \
        for (uint col = gl_SubgroupInvocationID; col < SUM_N; col += SUBGROUP_SIZE)                 \
            tile[(place) + col / 4][col % 4] = floatBitsToUint(scratchFloat(0, col));               \
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
    if (FRAGMENT_ORDER != 0) {                                                                      \
        const uint s = 0;                                                                           \
        PUT_WORD(frag, 0, first)                                                                    \
        PUT_WORD(frag, 2, second)                                                                   \
        PUT_WORD(frag, 4, third)                                                                    \
        PUT_WORD(frag, 6, fourth)                                                                   \
    } else {                                                                                        \
        subgroupSync();                                                                             \
        [[unroll]] for (uint s = 0; s < SHARES; ++s) {                                              \
            const uint line = scratchBase() + 2 * LINE(s);                                          \
            tile[line][QUARTER] = first;                                                            \
            tile[line + 1][QUARTER] = second;                                                       \
            tile[line + 16][QUARTER] = third;                                                       \
            tile[line + 17][QUARTER] = fourth;                                                      \
        }                                                                                           \
        subgroupSync();                                                                             \
        coopMatLoad(frag, tile, scratchBase(), 2, layout_);                                         \
    }
#define operandA(frag, first, second, third, fourth)                                                \
    OPERAND(frag, first, second, third, fourth, gl_CooperativeMatrixLayoutRowMajor)
#define operandB(frag, first, second, third, fourth)                                                \
    OPERAND(frag, first, second, third, fourth, gl_CooperativeMatrixLayoutColumnMajor)

// P^T of P, whose lines are rows in both: those of A are its rows, those of B its columns.
#define FragPt FragOnes
#define transposeP(result, x)                                                                       \
    if (FRAGMENT_ORDER != 0) {                                                                      \
        [[unroll]] for (uint e = 0; e < result.length(); ++e) result[e] = x[e];                     \
    } else {                                                                                        \
        subgroupSync();                                                                             \
        coopMatStore(x, tile, scratchBase(), 2, gl_CooperativeMatrixLayoutRowMajor);                \
        subgroupSync();                                                                             \
        coopMatLoad(result, tile, scratchBase(), 2, gl_CooperativeMatrixLayoutColumnMajor);         \
    }

#include "non_finite.glsl"
#include "decode_fetch.glsl"

// Adds four columns of a subgroup's O, those of its area from a multiple of 4 on: O's column 8 g + 2 f + i of a block is
// column 16 f + 8 i + g of the area; or 8 g + 4 (f / 2) + 2 i + f % 2 is.
void addFour(inout vec4 four, float factor, uint subgroup, uint row, uint first) {
    const uint at = first / 64 * 64 + first % 8 * 8 + first % 64 / 8;
    [[unroll]] for (uint e = 0; e < 4; ++e) {
        const uint f = ROW_SCALES ? e % 2 : e / 2, i = ROW_SCALES ? e / 2 : e % 2, col = at + f * 16 + i * 8;
        four[e] = fma(factor, uintBitsToFloat(tile[subgroup * AREA_SIZE + row * AREA_STRIDE + col / 4][col % 4]), four[e]);
    }
}
// What a walker, by the first of its subgroups, said of a row.
float ofRow(uint first, uint walker, uint row) {
    return uintBitsToFloat(tile[first + walker * COLUMN_SHARES * SHIFT_SIZE + row / 4][row % 4]);
}

#include "decode_combine.glsl"

void main() {
    if (!findWork(SUM_N)) {
        leaveNoPart();
        return;
    }
    const uint tid = gl_LocalInvocationIndex;
    const uint rows = min(work.rows - work.row0, SUM_N), lastRow = work.row0 + rows - 1;
    const Walk walk = walkOf(lastRow);
    const uint tiles = walk.last - walk.first;
    const uint flipQ = p.scoreScale < 0.0 ? 0x80008000u : 0u; // so that the largest score is the largest logit
    const float scale = SCALED, unscale = 1.0 / scale;

    // Q is asked for first: a core's memory answers in order, and nothing can be multiplied without it.
    const Slice qBlock = blockQ();
    uvec4 qPart[2 * SHARES * MY_Q_BLOCKS];
    [[unroll]] for (uint n = 0; n < 2 * SHARES; ++n) {
        const uint row = n / SHARES * 8 + LINE(n % SHARES);
        const uint element = elementQ(work.row0 + row);
        [[unroll]] for (uint b = 0; b < MY_Q_BLOCKS; ++b) {
            const uint col = FIRST_QK + Q_BLOCK(b) * 32 + QUARTER * 8;
            qPart[n * MY_Q_BLOCKS + b] = (SUM_N > 8 || n < SHARES) && row < rows && hasQ(b, col)
                ? inPairs(load8Q(qBlock, element + col, HEAD_DIM % 8 == 0 ? 8 : elementsFromQ(col)) ^ flipQ) : uvec4(0);
        }
    }

    uvec4 kPart[K_ALL], vPart[V_ALL];
    uvec4 kAhead[K_ALL], vAhead[V_ALL]; // of the next tile, with AHEAD
    Slice kRun[RUNS], vRun[RUNS]; // where keys lie one after another
    uint lastSlot[RUNS]; // from where a run of keys starts on, of those that exist
    uint asked[ASKED];   // of the tile after the one that was looked up
    uint fetched = 0;    // slot of the walk where that one starts
    vec2 scales[KEYS_EACH]; // of keys that the lane looked up
    bool wild = false;   // a scale of V was Inf or NaN
    uint j = nextTile(walk, gl_SubgroupID / COLUMN_SHARES, lastRow), after = tiles;
#define TILE tileAt(walk, j)
    // Tiles from the first on that need no masks. Of a list those up to the first that has a key not every row sees.
    uint wholeTiles = walk.wholeLast - walk.wholeFirst;
    bool seen = true; // all keys of the tile that was looked up last
#define NAME_COLUMNS /* the keys of the tile that was just fetched */                               \
    if (KEPT != 0) {                                                                                \
        if (!seen) wholeTiles = 0;                                                                  \
        if (wholeTiles == 0) {                                                                      \
            subgroupSync();                                                                         \
            for (uint i = gl_SubgroupInvocationID; i < BLOCK_COLS; i += SUBGROUP_SIZE) KEY_OF_COLUMN(i) = keyAt(fetched + i); \
            subgroupSync();                                                                         \
        }                                                                                           \
    }
    if (j < tiles) {
        if (ASKED_AHEAD) ASK(TILE)
        LOOK_UP(j)
        FETCH_K(kPart)
        FETCH_V(vPart)
        NAME_COLUMNS
        TAKE_SCALES
        after = nextTile(walk, j + WALKERS, lastRow);
        if (after < tiles) LOOK_UP(after)
    }

    FragA Q[Q_STAGED != 0 ? 1 : 2 * QK_BLOCKS];
#define Q_WORD(h, w) qPart[((h) * SHARES + s) * MY_Q_BLOCKS + i / 2][i % 2 * 2 + (w)]
    [[unroll]] for (uint i = 0; i < 2 * MY_Q_BLOCKS; ++i) {
        FragA Qi;
        operandA(Qi, Q_WORD(0, 0), Q_WORD(0, 1), Q_WORD(1, 0), Q_WORD(1, 1))
        if (Q_STAGED == 0) Q[Q_STAGED != 0 ? 0 : i] = Qi;
        else if (Q_BLOCK(i / 2) < QK_BLOCKS)
            coopMatStore(Qi, tile, Q_FIRST + 4 * Q_BLOCK(i / 2) + 2 * (i % 2), Q_STRIDE, gl_CooperativeMatrixLayoutRowMajor);
    }
    if (MAY_DROP && tid == 0) nonFiniteSeen = 0;

    FragSum O[OUT_TILES];
    FragC rowShift[1];    // what is subtracted from a row's scores, as read from shared memory
    FragSum rowWeight[1]; // sums of P as V meets it, rounded: ones times P^T, all lines the same
    FragC rowTotal[1];    // sums of P in float32, for LSE and sinks; not yet reduced along the row
    FragC rowScaled[1];   // nor are these, instead of rowWeight where keys have scales
    [[unroll]] for (uint i = 0; i < OUT_TILES; ++i) O[i] = FragSum(0.0);
    rowWeight[0] = FragSum(0.0);
    rowTotal[0] = FragC(0.0);
    rowScaled[0] = FragC(0.0);
    for (uint i = gl_SubgroupInvocationID; i < SHIFT_SIZE; i += SUBGROUP_SIZE)
        tile[shiftOf(0) + i] = uvec4(floatBitsToUint(NO_ROW_MAX));
    if (MAY_DROP || Q_STAGED != 0) barrier();
    else subgroupSync();
    loadShift(0);

    uint turn = 0; // whose place scores take
    [[dont_unroll]] while (j < wholeTiles) {
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
    if (ROW_SCALES && wild) atomicOr(nonFiniteSeen, 1);
    subgroupSync(); // the factors of what moved are read
    if (TOTALS) {
        FragC total;
        rowSum(total, rowTotal[0]);
        firstColumnTo(total, TOTAL_FIRST + gl_SubgroupID * SHIFT_SIZE);
    }
    if (ROW_SCALES) {
        FragC total;
        rowSum(total, rowScaled[0]);
        firstColumnTo(total, FACTOR);
    } else {
        firstLineTo(rowWeight[0], FACTOR);
    }
    if (SCORE_SHARES > 1 || Q_STAGED != 0 && Q_BELOW) barrier(); // the last tile's scores, or Q, are read
    else subgroupSync();
    const Slice oBlock = blockO();
    [[unroll]] for (uint pass = 0; pass < OUT_BLOCKS; pass += AREA_BLOCKS) {
        if (pass > 0) barrier(); // the areas are read
        [[unroll]] for (uint f = 0; f < 4 * AREA_BLOCKS; ++f)
            if (4 * pass + f < OUT_TILES)
                coopMatStore(O[4 * pass + f], tile, gl_SubgroupID * AREA_SIZE + f * 4, AREA_STRIDE, gl_CooperativeMatrixLayoutColumnMajor);
        barrier();
        // An invocation has four columns: the fewer, the sooner the last one is done.
        const uint areaEach = 64 * AREA_BLOCKS / 4, rowEach = COLUMN_SHARES * areaEach;
        for (uint at = tid; at < rows * rowEach; at += LOCAL_SIZE) {
            const uint row = at / rowEach, share = at % rowEach / areaEach, first = at % areaEach * 4;
            const uint mine = (share * OUT_BLOCKS + pass) * 64 + first, col = work.col0 + mine;
            if (pass * 64 + first >= OUT_BLOCKS * 64 || mine >= DV_SLICE || col >= HEAD_DIM_V) continue;
            // What each walker's O counts for. Those that share columns have the same.
            float shift = NO_ROW_MAX, factors[WALKERS], weights = 0.0, total = 0.0;
            [[unroll]] for (uint n = 0; n < WALKERS; ++n) shift = max(shift, ofRow(SHIFT_FIRST, n, row));
            [[unroll]] for (uint n = 0; n < WALKERS; ++n) {
                factors[n] = exp2(EXPONENT(ofRow(SHIFT_FIRST, n, row) - shift));
                weights += factors[n] * ofRow(FACTOR_FIRST, n, row);
                if (TOTALS) total += factors[n] * ofRow(TOTAL_FIRST, n, row);
            }
            if (HAS_LSE != 0 && mine == 0 && (COMBINE != 0 || work.col0 == 0))
                storePartLSE(work.row0 + row, withSink(work.row0 + row, logSumExp(shift, total)));
            // A sink is not rounded as weights are: its share is that of the sum before.
            if (SINKS != 0) {
                const float sink = sinkWeight(work.row0 + row, shift);
                if (weights != 0.0 || isNaN(sink)) weights *= 1.0 + sink / total;
            }
            const float inverse = weights == 0.0 ? 0.0 : 1.0 / weights;
            vec4 o = vec4(0.0);
            [[unroll]] for (uint n = 0; n < WALKERS; ++n) {
                const float factor = factors[n] * inverse;
                if (factor == 0.0) continue; // whatever its O holds
                addFour(o, factor, n * COLUMN_SHARES + share, row, first);
            }
            if (MAY_DROP && nonFiniteSeen != 0) {
                vec4 four[2] = { vec4(0.0), vec4(0.0) };
                addNonFinite(walk, 0, work.row0 + row, col - first % 8, four[0], four[1]);
                addIfNonFinite(o, four[first % 8 / 4]); // and not zeros, which make subnormal numbers zero
            }
            if (SPLIT != 0) storePart4(work.row0 + row, col, o);
            else store4O(oBlock, elementO(work.row0 + row) + col, o, HEAD_DIM_V - col);
        }
    }
    if (COMBINE != 0) combineParts(rows);
}
