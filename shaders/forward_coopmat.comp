#version 460
// Exact attention forward on cooperative matrices (tiers coopmat and coopmat2).
//
// Idea: a workgroup owns WORKGROUP_ROWS query rows of one head and one slice of the columns of O, and
// walks over the keys in tiles of BLOCK_COLS. Each subgroup owns ROW_TILES x TILE_M of those rows
// alone: its O accumulators stay in registers for the whole walk, and so do its fragments of Q but for
// the last Q_STAGED chunks of the head dim, which are read from shared memory again for every step: the
// registers they would take decide whether 32 rows of head dim 128 fit. K and V tiles are shared by all
// subgroups: every invocation fetches its part of the next tile into registers while the present one is
// being multiplied, then the tile is written to shared memory between two barriers. These two a tile are
// the only workgroup barriers of the loop.
//
// Within a tile a subgroup works in steps of STEP_COLS keys. The scores of the next step are multiplied
// while the exponentials of the present one are taken: the two do not depend on each other, so that the
// tensor cores have work while the others are busy.
//
// Softmax is online (Dao 2023) with a lagged maximum: a row's shift is a maximum of earlier steps, and it
// moves only when a score of this step passes it by more than LAG (in log2 units), so that the usual
// step has no reduction across lanes and no rescaling of O. P then stays under 2^LAG, far inside
// float16, and the result is exact whichever maximum is subtracted. Each row decides for itself, so
// that no row's bits depend on the others. Shifts lie in shared memory, one float a row, and are read as
// fragments whose rows are one value each (a column-major load with stride 0): the compiler then knows
// which elements of a fragment are equal and keeps two registers instead of eight.
//
// Tiles in which every row sees every key go through a loop without masks; the few at the causal
// diagonal and at the end of the keys go through a second one, where subgroups that see no key of a
// tile do nothing.
//
// Modules with FEATURES may have subgroups that share the keys instead of the rows: where there are no more rows
// than one fragment has (decoding), each takes one step of every tile and leaves a part of its own.
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
#define LANES SUBGROUP_SIZE // that look for the sequence of a block
#include "interface.glsl"

#if FEATURES
#define ROWS work.rows                 // of the sequence
#define MAY_MASK (MASKS || ROW_SCALES) // V may be multiplied without some of its Inf and NaN
#define SCALED (MODIFIED || ROW_SCALES ? 1.0 : abs(p.scoreScale)) // S to scores
#define TOTALS (HAS_LSE + SINKS != 0) // rowTotal is asked for
#else
#define ROWS p.Sq
#define MAY_MASK (CAUSAL != 0)
#define SCALED abs(p.scoreScale)
#define TOTALS (HAS_LSE != 0)
#endif

const float LAG = 7.5;                         // rescale threshold, in log2 units; added to a large row max it is at most 8

const uint SUBGROUPS = LOCAL_SIZE / SUBGROUP_SIZE;
const uint SUBGROUP_ROWS = ROW_TILES * TILE_M;
#if FEATURES
const uint WORKGROUP_ROWS = (SHARE_KEYS != 0 ? 1 : SUBGROUPS) * SUBGROUP_ROWS;
#define SUBGROUP_FIRST_ROW (SHARE_KEYS != 0 ? 0 : gl_SubgroupID * SUBGROUP_ROWS)
#define FIRST_STEP (SHARE_KEYS != 0 ? gl_SubgroupID : 0) // of a tile
#define TILE_STEPS (SHARE_KEYS != 0 ? 1 : STEPS)
#else
const uint WORKGROUP_ROWS = SUBGROUPS * SUBGROUP_ROWS;
#define SUBGROUP_FIRST_ROW (gl_SubgroupID * SUBGROUP_ROWS)
#endif
const uint QK_CHUNKS = (HEAD_DIM + TILE_K - 1) / TILE_K;  // fragments along Dqk
const uint Q_HELD = Q_STAGED < QK_CHUNKS ? QK_CHUNKS - Q_STAGED : 0; // of Q, in registers
const uint STEPS = BLOCK_COLS / STEP_COLS;
const uint KEY_TILES = STEP_COLS / TILE_N;                // score fragments along a step's keys
const uint OUT_TILES = (DV_SLICE + TILE_N - 1) / TILE_N;  // O fragments along the slice of Dv

// Shared memory in units of 8 elements (uvec4). Rows have an odd stride: no bank conflicts.
const uint K_ROW8 = QK_CHUNKS * TILE_K / 8;
const uint V_ROW8 = OUT_TILES * TILE_N / 8;
const uint Q_HELD8 = Q_HELD * TILE_K / 8;
const uint Q_STAGED8 = K_ROW8 - Q_HELD8;
const uint K_STRIDE = K_ROW8 | 1;
const uint V_STRIDE = V_ROW8 | 1;
const uint Q_STRIDE = Q_STAGED8 | 1;
#if FEATURES
const uint V_FIRST = REUSE != 0 ? 0 : BLOCK_COLS * K_STRIDE;
const uint WIDER_STRIDE = K_STRIDE > V_STRIDE ? K_STRIDE : V_STRIDE;
const uint KV_SIZE = REUSE != 0 ? BLOCK_COLS * WIDER_STRIDE : V_FIRST + BLOCK_COLS * V_STRIDE;
#else
const uint V_FIRST = BLOCK_COLS * K_STRIDE;
const uint KV_SIZE = V_FIRST + BLOCK_COLS * V_STRIDE;
#endif
const uint Q_FIRST = KV_SIZE;                             // the chunks of Q that are not held
const uint SHIFT_FIRST = Q_FIRST + (Q_STAGED8 > 0 ? WORKGROUP_ROWS * Q_STRIDE : 0);
const uint SHIFT_SIZE = TILE_M / 4;                       // shifts of the rows of one fragment
const uint WALK_SIZE = SHIFT_FIRST + SUBGROUPS * ROW_TILES * SHIFT_SIZE;
const uint ALL_SCRATCH = SUBGROUPS * TILE_M * ((TILE_N / 4) | 1);
#if NV2
// Scratch serves only before and after the walk, so it lies over the tile.
const uint SCRATCH_FIRST = 0;
const uint SCALES_FIRST = WALK_SIZE > ALL_SCRATCH ? WALK_SIZE : ALL_SCRATCH;
#else
const uint SCRATCH_FIRST = WALK_SIZE;
const uint SCALES_FIRST = WALK_SIZE + ALL_SCRATCH;
#endif
#if FEATURES
const uint SCALES_SIZE = ROW_SCALES ? BLOCK_COLS / 4 * SCALE_KINDS : 0; // of the tile's keys
#define MY_SCALES SCALES_FIRST
shared uvec4 tile[SCALES_FIRST + SCALES_SIZE];
#else
shared uvec4 tile[SCALES_FIRST];
#endif
shared uint nonFiniteSeen; // a masked tile had Inf or NaN in V
#if FEATURES
shared float sinkWeights[SINKS != 0 ? SUBGROUPS * SUBGROUP_ROWS : 1]; // by way of memory every row gets its own
shared uint keyOfColumn[KEPT != 0 ? BLOCK_COLS : 1]; // the tile's keys where they are those of a list
#define KEY_OF_COLUMN(col) keyOfColumn[col]
#endif

#include "coopmat_fragments.glsl"
#include "coopmat_step.glsl"
#include "non_finite.glsl"

// Parts of a K and of a V tile that one invocation carries. With OWN_KEYS a subgroup has those of as many keys side by side,
// else the i-th parts of all invocations are side by side.
const uint K_PARTS = (BLOCK_COLS * K_ROW8 + LOCAL_SIZE - 1) / LOCAL_SIZE;
const uint V_PARTS = (BLOCK_COLS * V_ROW8 + LOCAL_SIZE - 1) / LOCAL_SIZE;
#define PART_OF(parts, i)                                                                           \
    (OWN_KEYS != 0 ? (tid / SUBGROUP_SIZE * (parts) + (i)) * SUBGROUP_SIZE + tid % SUBGROUP_SIZE : (i) * LOCAL_SIZE + tid)
#define FIRST_KEY (OWN_KEYS != 0 ? tid / SUBGROUP_SIZE * OWN_KEYS : 0) // of a tile, of a subgroup's parts
#define OWN_PART(i) ((i) * SUBGROUP_SIZE + tid % SUBGROUP_SIZE)        // counted from that key

// Eight elements of a row. Where rows fill their fragments no column has to be compared.
uvec4 fetchQ(Slice s, uint row, uint col) {
    return HEAD_DIM % TILE_K == 0 ? load8Q(s, row * p.strideQSeq + col) : loadQ8(s, row, col);
}
uvec4 fetchK(Slice s, uint key, uint col) {
    return HEAD_DIM % TILE_K == 0 ? load8K(s, key * p.strideKSeq + col) : loadK8(s, key, col);
}
uvec4 fetchV(Slice s, uint key, uint col) {
    return HEAD_DIM_V % TILE_N == 0 ? load8V(s, key * p.strideVSeq + col) : loadV8(s, key, col);
}

// Parts of Q that pass through the space of the tiles, Q_ROWS_AT_ONCE rows at a time.
const uint Q_HELD_STRIDE = Q_HELD8 | 1;
const uint Q_ROWS_AT_ONCE = KV_SIZE / Q_HELD_STRIDE / TILE_M * TILE_M;
const uint Q_PASSES = (WORKGROUP_ROWS + Q_ROWS_AT_ONCE - 1) / Q_ROWS_AT_ONCE;
const uint Q_PASS_ROWS = Q_PASSES > 1 ? Q_ROWS_AT_ONCE : WORKGROUP_ROWS;
const uint Q_PARTS = Q_HELD > 0 ? (Q_PASS_ROWS * Q_HELD8 + LOCAL_SIZE - 1) / LOCAL_SIZE : 1; // of one pass

const uint K_RAGGED = BLOCK_COLS * K_ROW8 % LOCAL_SIZE; // not 0: an invocation's last part may be no part of the tile
const uint V_RAGGED = BLOCK_COLS * V_ROW8 % LOCAL_SIZE;

#if FEATURES
#include "feature_fetch.glsl"
#else
// Fetches tile number index, the next one of kTile and vTile, into kPart and vPart. Where it may be the
// LAST, keys are compared with their end; else only CHECK_FETCH asks for that. BLOCK_ADDRESSING 0 finds the
// place of every part from the start of the tensor instead of from the start of the tile.
#define FETCH_TILE(index, LAST)                                                                     \
    {                                                                                               \
        const uint firstKey = (index) * BLOCK_COLS, keys = min(p.Sk - firstKey, BLOCK_COLS);        \
        [[unroll]] for (uint i = 0; i < K_PARTS; ++i) {                                             \
            const uint at = PART_OF(K_PARTS, i), key = at / K_ROW8, col = at % K_ROW8 * 8;         \
            kPart[i] = (LAST) + CHECK_FETCH + K_RAGGED != 0 && key >= keys ? uvec4(0)              \
                : BLOCK_ADDRESSING != 0 ? fetchK(kTile, OWN_KEYS != 0 ? OWN_PART(i) / K_ROW8 : key, col) \
                : fetchK(sliceK(work.batch, work.kvHead, firstKey + key), 0, col);                  \
        }                                                                                           \
        [[unroll]] for (uint i = 0; i < V_PARTS; ++i) {                                             \
            const uint at = PART_OF(V_PARTS, i), key = at / V_ROW8, col = work.col0 + at % V_ROW8 * 8; \
            vPart[i] = (LAST) + CHECK_FETCH + V_RAGGED != 0 && key >= keys ? uvec4(0)              \
                : BLOCK_ADDRESSING != 0 ? fetchV(vTile, OWN_KEYS != 0 ? OWN_PART(i) / V_ROW8 : key, col) \
                : fetchV(sliceV(work.batch, work.kvHead, firstKey + key), 0, col);                  \
        }                                                                                           \
        kTile = advanceK(kTile, BLOCK_COLS);                                                        \
        vTile = advanceV(vTile, BLOCK_COLS);                                                        \
    }

#endif

#include "forward_store.glsl"

void main() {
#if FEATURES
    if (!findWork(WORKGROUP_ROWS)) return;
#else
    const Work work = workOf(WORKGROUP_ROWS);
#endif
    const uint tid = gl_LocalInvocationIndex;
    const uint mySubgroupRow = SUBGROUP_FIRST_ROW;
    const uint myRow = work.row0 + mySubgroupRow;

#if FEATURES
    const Walk walk = walkOf(min(work.row0 + WORKGROUP_ROWS, work.rows) - 1);
    const uint lastRow = min(work.row0 + WORKGROUP_ROWS, work.rows) - 1;
    const uint tiles = walk.last - walk.first, fullTiles = walk.wholeLast - walk.wholeFirst;
    const uint myEnd = KEPT != 0 ? work.listed : visibleEnd(min(myRow + SUBGROUP_ROWS, work.rows) - 1);
    const bool mine = myRow < work.rows; // else there is nothing to compute, but to fetch
#else
    // The keys this block sees end where its last row's do; tiles below fullTiles are seen by every row.
    const uint end = CUT_CAUSAL != 0 ? visibleColumns(min(work.row0 + WORKGROUP_ROWS, p.Sq) - 1) : p.Sk;
    const uint tiles = (end + BLOCK_COLS - 1) / BLOCK_COLS;
    const uint fullTiles = SPLIT_MASKED != 0 ? visibleColumns(work.row0) / BLOCK_COLS : 0;
    const uint myEnd = CUT_CAUSAL != 0 ? visibleColumns(min(myRow + SUBGROUP_ROWS, p.Sq) - 1) : p.Sk;
#endif

    // A negative scale flips the sign of Q instead, so that the largest score is the largest logit.
    const uint flipQ = p.scoreScale < 0.0 ? 0x80008000u : 0u;
    const float scale = SCALED, unscale = 1.0 / scale;

    uvec4 kPart[K_PARTS], vPart[V_PARTS];

    // The first tile and all of Q are fetched at once, so that their latencies overlap. Q_HELD chunks of Q pass
    // through the space of the tiles, as many rows at a time as fit; the others stay in shared memory.
#if FEATURES
    uint keyPart[KEY_PARTS];
    vec2 scalePart[KEY_PARTS];
    uint page[PAGES];
    uint j = nextTile(walk, 0, lastRow), beyond = j + 1; // of the walk
    if (j < tiles) {
        if (PAGES_AHEAD) LOOK_UP(tileAt(walk, j))
        FETCH_K(tileAt(walk, j))
        FETCH_V(tileAt(walk, j))
        beyond = nextTile(walk, j + 1, lastRow);
        if (PAGES_AHEAD) LOOK_UP(tileAt(walk, beyond))
    }
#else
    Slice kTile = sliceK(work.batch, work.kvHead, FIRST_KEY), vTile = sliceV(work.batch, work.kvHead, FIRST_KEY);
    FETCH_TILE(0, 1)
#endif
    FragA Q[Q_HELD > 0 ? ROW_TILES * Q_HELD : 1];
    {
#if FEATURES
        const Slice qBlock = blockQ();
#define FETCH_Q(row, col) inPairs(load8Q(qBlock, elementQ(work.row0 + (row)) + (col), HEAD_DIM % TILE_K == 0 ? 8 : elementsFromQ(col)))
#else
        const Slice qBlock = sliceQ(work.batch, work.head, work.row0);
#define FETCH_Q(row, col) fetchQ(qBlock, row, col)
#endif
        if (tid == 0) nonFiniteSeen = 0;
        uvec4 qPart[Q_PASSES * Q_PARTS];
        [[unroll]] for (uint i = 0; i < Q_PASSES * Q_PARTS; ++i) {
            const uint at = i % Q_PARTS * LOCAL_SIZE + tid, inPass = Q_HELD > 0 ? at / Q_HELD8 : Q_PASS_ROWS;
            const uint row = i / Q_PARTS * Q_PASS_ROWS + inPass, col = Q_HELD > 0 ? at % Q_HELD8 : 0;
            qPart[i] = inPass < Q_PASS_ROWS && row < WORKGROUP_ROWS && work.row0 + row < ROWS
                ? FETCH_Q(row, col * 8) ^ flipQ : uvec4(0);
        }
        [[unroll]] for (uint at0 = 0; at0 < WORKGROUP_ROWS * Q_STAGED8; at0 += LOCAL_SIZE) {
            const uint at = at0 + tid, row = at / Q_STAGED8, col = at % Q_STAGED8;
            if (row < WORKGROUP_ROWS)
                tile[Q_FIRST + row * Q_STRIDE + col] = work.row0 + row < ROWS
                    ? FETCH_Q(row, (Q_HELD8 + col) * 8) ^ flipQ : uvec4(0);
        }
        if (Q_HELD > 0) {
            [[unroll]] for (uint pass = 0; pass < Q_PASSES; ++pass) {
                barrier();
                [[unroll]] for (uint i = 0; i < Q_PARTS; ++i) {
                    const uint at = i * LOCAL_SIZE + tid, row = at / Q_HELD8;
                    if (row < Q_PASS_ROWS) tile[row * Q_HELD_STRIDE + at % Q_HELD8] = qPart[pass * Q_PARTS + i];
                }
                barrier();
                [[unroll]] for (uint r = 0; r < ROW_TILES; ++r) {
                    const uint row = mySubgroupRow + r * TILE_M, first = pass * Q_PASS_ROWS;
                    if (row >= first && row < first + Q_PASS_ROWS) {
                        [[unroll]] for (uint i = 0; i < Q_HELD; ++i)
                            coopMatLoad(Q[r * Q_HELD + i], tile, (row - first) * Q_HELD_STRIDE + i * TILE_K / 8,
                                        Q_HELD_STRIDE, gl_CooperativeMatrixLayoutRowMajor);
                    }
                }
            }
        }
    }

    FragC O[ROW_TILES * OUT_TILES];
    FragC rowShift[ROW_TILES];    // what is subtracted from a row's scores, as read from shared memory
    FragSum rowWeight[ROW_TILES]; // sums of P as V meets it, rounded: P times ones, the same along the row
    FragC rowTotal[ROW_TILES];    // sums of P in float32, for LSE and sinks; not yet reduced along the row
    FragC rowScaled[ROW_SCALES ? ROW_TILES : 1]; // nor are these, instead of rowWeight where keys have scales
    [[unroll]] for (uint r = 0; r < ROW_TILES; ++r) {
        [[unroll]] for (uint i = 0; i < OUT_TILES; ++i) O[r * OUT_TILES + i] = FragC(0.0);
        rowWeight[r] = FragSum(0.0);
        rowTotal[r] = FragC(0.0);
        if (ROW_SCALES) rowScaled[ROW_SCALES ? r : 0] = FragC(0.0);
    }
    for (uint i = gl_SubgroupInvocationID; i < ROW_TILES * SHIFT_SIZE; i += SUBGROUP_SIZE)
        tile[shiftOf(0) + i] = uvec4(floatBitsToUint(NO_ROW_MAX));

#if FEATURES
#define TILE tileAt(walk, j)
    uint after = tiles; // the next one of the walk
    [[dont_unroll]] while (j < fullTiles) {
#define MASKED 0
#include "feature_tile.glsl"
#undef MASKED
        j = after;
    }
    [[dont_unroll]] while (j < tiles) {
#define MASKED 1
#include "feature_tile.glsl"
#undef MASKED
        j = after;
    }
#else
    uint j = 0;
    [[dont_unroll]] for (; j + (1 - CHECK_FETCH) < fullTiles; ++j) {
#define MASKED 0
#include "coopmat_tile.glsl"
#undef MASKED
    }
    [[dont_unroll]] for (; j < tiles; ++j) {
#define MASKED 1
#include "coopmat_tile.glsl"
#undef MASKED
    }
#endif

    subgroupSync();
    [[unroll]] for (uint r = 0; r < ROW_TILES; ++r) loadShift(r);
#if FEATURES
    if (SINKS != 0) {
        for (uint i = gl_SubgroupInvocationID; i < SUBGROUP_ROWS; i += SUBGROUP_SIZE)
            if (myRow + i < ROWS)
                sinkWeights[gl_SubgroupID * SUBGROUP_ROWS + i] = sinkWeight(myRow + i, shiftOfRow(i / TILE_M, i % TILE_M));
    }
#endif
    barrier(); // the tile becomes scratch
#if FEATURES
    const Slice oBlock = blockO();
#else
    const Slice oBlock = sliceO(work.batch, work.head, myRow);
#endif
    FragC inverse[ROW_TILES];
    [[unroll]] for (uint r = 0; r < ROW_TILES; ++r) {
        if (ROW_SCALES) { rowSum(inverse[r], rowScaled[ROW_SCALES ? r : 0]); }
        else { widen(inverse[r], rowWeight[r]); }
        FragC total;
        if (TOTALS) { rowSum(total, rowTotal[r]); }
#if FEATURES
        if (SINKS != 0) { // it is not rounded as weights are: its share is that of the sum before
            FragC sink;
            coopMatLoad(sink, sinkWeights, (gl_SubgroupID * ROW_TILES + r) * TILE_M, 0, gl_CooperativeMatrixLayoutColumnMajor);
            [[unroll]] for (uint e = 0; e < sink.length(); ++e)
                inverse[r][e] = isNaN(sink[e]) ? sink[e] : inverse[r][e] == 0.0 ? 0.0 : inverse[r][e] * (1.0 + sink[e] / total[e]);
        }
#endif
        [[unroll]] for (uint e = 0; e < inverse[r].length(); ++e)
            inverse[r][e] = inverse[r][e] == 0.0 ? 0.0 : 1.0 / inverse[r][e];
        if (HAS_LSE != 0 && work.col0 == 0) {
            [[unroll]] for (uint e = 0; e < total.length(); ++e) total[e] = logSumExp(rowShift[r][e], total[e]);
            fragmentToScratch(total);
            [[unroll]] for (uint s = 0; s < TILE_M; s += SUBGROUP_SIZE) {
                const uint row = s + gl_SubgroupInvocationID, mine = myRow + r * TILE_M + row;
#if FEATURES
                if (row < TILE_M && mine < ROWS) storeRowLSE(mine, withSink(mine, scratchFloat(row, 0)));
#else
                if (row < TILE_M && mine < p.Sq) storeLSE(work.batch, work.head, mine, scratchFloat(row, 0));
#endif
            }
        }
    }
#if FEATURES
    if (IN_PARTS != 0) {
        barrier(); // a subgroup's share lies over the scratch of others, who may still be at their LSE
        STORE_PART(0) STORE_PART(1) STORE_PART(2) STORE_PART(3)
    }
#endif
#if NV2
    if (PAIRED) {
        STORE_PAIR(0) STORE_PAIR(1) STORE_PAIR(2) STORE_PAIR(3)
        STORE_PAIR(4) STORE_PAIR(5) STORE_PAIR(6) STORE_PAIR(7)
        STORE_PAIR(8) STORE_PAIR(9) STORE_PAIR(10) STORE_PAIR(11)
        STORE_PAIR(12) STORE_PAIR(13) STORE_PAIR(14) STORE_PAIR(15)
#if !FEATURES
        return;
#endif
    }
#endif
    if (BY_FRAGMENT) {
        // As float32. One loop over all: nested ones are not unrolled, and O would leave the registers.
        [[unroll]] for (uint i = 0; i < ROW_TILES * OUT_TILES; ++i) {
            O[i] *= inverse[i / OUT_TILES];
            fragmentToScratch(O[i]);
            [[unroll]] for (uint s = 0; s < PACK_STEPS; ++s) {
                const uint group = s * SUBGROUP_SIZE + gl_SubgroupInvocationID;
                const uint row = i / OUT_TILES * TILE_M + group / (TILE_N / 8);
                const uint col = work.col0 + i % OUT_TILES * TILE_N + group % (TILE_N / 8) * 8;
                if (group < PACK_GROUPS && myRow + row < ROWS && col < HEAD_DIM_V) {
#if FEATURES
                    if (SPLIT != 0) {
                        const uint at = scratchBase() + group / (TILE_N / 8) * SCRATCH_STRIDE + group % (TILE_N / 8) * 2;
                        storeState4(myRow + row, col, uintBitsToFloat(tile[at]));
                        if (col + 4 < HEAD_DIM_V) storeState4(myRow + row, col + 4, uintBitsToFloat(tile[at + 1]));
                    } else
#else
                    if (CAUSAL != 0 && nonFiniteSeen != 0) addNonFinite(work, group, myRow + row, col, fullTiles * BLOCK_COLS);
#endif
                        STORE_O8(row, col, scratchPacked8(group));
                }
            }
        }
    }
#if FEATURES
    if (MAY_MASK && nonFiniteSeen != 0) {
        [[dont_unroll]] for (uint n = 0; n < STORES; ++n) {
            uint row, mine;
            const bool there = storesAt(n, row, mine);
            const uint col = work.col0 + mine, eight = col - col % 8;
            if (!there || myRow + row >= ROWS || col >= HEAD_DIM_V) continue;
            vec4 four[2] = { vec4(0.0), vec4(0.0) };
            addNonFinite(walk, ROW_SCALES ? 0 : fullTiles, myRow + row, eight, four[0], four[1]);
            if (SPLIT == 0) mend8O(oBlock, elementO(myRow + row) + col, four[0], four[1], HEAD_DIM_V - col);
            [[unroll]] for (uint i = 0; i < (SPLIT != 0 ? 2 : 0); ++i)
                if ((IN_PARTS == 0 || eight + 4 * i == col) && eight + 4 * i < HEAD_DIM_V) mendState4(myRow + row, eight + 4 * i, four[i]);
        }
    }
#endif
}
