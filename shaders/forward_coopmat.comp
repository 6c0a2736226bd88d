#version 460
// Exact attention forward on cooperative matrices (tiers coopmat and coopmat2).
//
// Idea: a workgroup owns WORKGROUP_ROWS query rows of one head and one slice of the columns of O, and
// walks over the keys in tiles of KV_TILE. Each subgroup owns M_FRAGS x FRAG_M of those rows
// alone: its O accumulators stay in registers for the whole walk, and so do its fragments of Q but for
// the last Q_SMEM_CHUNKS chunks of the head dim, which are read from shared memory again for every step: the
// registers they would take decide whether 32 rows of head dim 128 fit. K and V tiles are shared by all
// subgroups: every invocation fetches its part of the next tile into registers while the present one is
// being multiplied, then the tile is written to shared memory between two barriers. These two a tile are
// the only workgroup barriers of the loop.
//
// Within a tile a subgroup works in steps of KV_STEP keys. The scores of the next step are multiplied
// while the exponentials of the present one are taken: the two do not depend on each other, so that the
// tensor cores have work while the others are busy.
//
// Softmax is online (Dao 2023) with a lagged maximum: a row's shift is a maximum of earlier steps, and it
// moves only when a score of this step passes it by more than RESCALE_THRESHOLD (in log2 units), so that the usual
// step has no reduction across lanes and no rescaling of O. P then stays under 2^RESCALE_THRESHOLD, far inside
// float16, and the result is exact whichever maximum is subtracted. Each row decides for itself, so
// that no row's bits depend on the others. Shifts lie in shared memory, one float a row, and are read as
// fragments whose rows are one value each (a column-major load with stride 0): the compiler then knows
// which elements of a fragment are equal and keeps two registers instead of eight.
//
// Tiles in which every row sees every key go through a loop without masks; the few at the causal
// diagonal and at the end of the keys go through a second one, where subgroups that see no key of a
// tile do nothing.
//
// Modules with GENERAL may have subgroups that share the keys instead of the rows: where there are no more rows
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
#define SEARCH_LANES SUBGROUP_SIZE // that look for the sequence of a block
#include "interface.glsl"

#if GENERAL
#define ROWS work.rows                 // of the sequence
#define DROPS_NON_FINITE (ROW_MASKS || KEY_SCALES) // V may be multiplied without some of its Inf and NaN
#define SCORE_SCALE (SCORE_MOD || KEY_SCALES ? 1.0 : abs(p.scoreScale)) // S to scores
#define NEEDS_F32_SUM (HAS_LSE + SINKS != 0) // rowSumF32 is asked for
#else
#define ROWS p.Sq
#define DROPS_NON_FINITE (CAUSAL != 0)
#define SCORE_SCALE abs(p.scoreScale)
#define NEEDS_F32_SUM (HAS_LSE != 0)
#endif

const float RESCALE_THRESHOLD = 7.5;                         // rescale threshold, in log2 units; added to a large row max it is at most 8

const uint SUBGROUPS = LOCAL_SIZE / SUBGROUP_SIZE;
const uint SUBGROUP_ROWS = M_FRAGS * FRAG_M;
#if GENERAL
const uint WORKGROUP_ROWS = (SPLIT_KV != 0 ? 1 : SUBGROUPS) * SUBGROUP_ROWS;
#define SUBGROUP_FIRST_ROW (SPLIT_KV != 0 ? 0 : gl_SubgroupID * SUBGROUP_ROWS)
#define SUBGROUP_FIRST_STEP (SPLIT_KV != 0 ? gl_SubgroupID : 0) // of a tile
#define SUBGROUP_STEPS (SPLIT_KV != 0 ? 1 : KV_STEPS)
#else
const uint WORKGROUP_ROWS = SUBGROUPS * SUBGROUP_ROWS;
#define SUBGROUP_FIRST_ROW (gl_SubgroupID * SUBGROUP_ROWS)
#endif
const uint QK_CHUNKS = (HEAD_DIM + FRAG_K - 1) / FRAG_K;  // fragments along Dqk
const uint Q_REG_CHUNKS = Q_SMEM_CHUNKS < QK_CHUNKS ? QK_CHUNKS - Q_SMEM_CHUNKS : 0; // of Q, in registers
const uint KV_STEPS = KV_TILE / KV_STEP;
const uint KV_FRAGS = KV_STEP / FRAG_N;                // score fragments along a step's keys
const uint DV_FRAGS = (DV_SLICE + FRAG_N - 1) / FRAG_N;  // O fragments along the slice of Dv

// Shared memory in units of 8 elements (uvec4). Rows have an odd stride: no bank conflicts.
const uint K_ROW_VECS = QK_CHUNKS * FRAG_K / 8;
const uint V_ROW_VECS = DV_FRAGS * FRAG_N / 8;
const uint Q_REG_VECS = Q_REG_CHUNKS * FRAG_K / 8;
const uint Q_SMEM_VECS = K_ROW_VECS - Q_REG_VECS;
const uint K_STRIDE = K_ROW_VECS | 1;
const uint V_STRIDE = V_ROW_VECS | 1;
const uint Q_STRIDE = Q_SMEM_VECS | 1;
#if GENERAL
const uint V_BASE = ALIAS_KV != 0 ? 0 : KV_TILE * K_STRIDE;
const uint WIDER_STRIDE = K_STRIDE > V_STRIDE ? K_STRIDE : V_STRIDE;
const uint KV_SIZE = ALIAS_KV != 0 ? KV_TILE * WIDER_STRIDE : V_BASE + KV_TILE * V_STRIDE;
#else
const uint V_BASE = KV_TILE * K_STRIDE;
const uint KV_SIZE = V_BASE + KV_TILE * V_STRIDE;
#endif
const uint Q_BASE = KV_SIZE;                             // the chunks of Q that are not held
const uint ROW_MAX_BASE = Q_BASE + (Q_SMEM_VECS > 0 ? WORKGROUP_ROWS * Q_STRIDE : 0);
const uint ROW_MAX_SIZE = FRAG_M / 4;                       // shifts of the rows of one fragment
const uint KV_LOOP_SIZE = ROW_MAX_BASE + SUBGROUPS * M_FRAGS * ROW_MAX_SIZE;
const uint SCRATCH_TOTAL = SUBGROUPS * FRAG_M * ((FRAG_N / 4) | 1);
#if NV2
// Scratch serves only before and after the walk, so it lies over the tile.
const uint SCRATCH_BASE = 0;
const uint SCALES_BASE = KV_LOOP_SIZE > SCRATCH_TOTAL ? KV_LOOP_SIZE : SCRATCH_TOTAL;
#else
const uint SCRATCH_BASE = KV_LOOP_SIZE;
const uint SCALES_BASE = KV_LOOP_SIZE + SCRATCH_TOTAL;
#endif
#if GENERAL
const uint SCALES_SIZE = KEY_SCALES ? KV_TILE / 4 * SCALE_KINDS : 0; // of the tile's keys
#define SUBGROUP_SCALES SCALES_BASE
shared uvec4 smem[SCALES_BASE + SCALES_SIZE];
#else
shared uvec4 smem[SCALES_BASE];
#endif
shared uint nonFiniteSeen; // a masked tile had Inf or NaN in V
#if GENERAL
shared float sinkTerms[SINKS != 0 ? SUBGROUPS * SUBGROUP_ROWS : 1]; // by way of memory every row gets its own
shared uint tileKeys[SPARSE_TOKENS != 0 ? KV_TILE : 1]; // the tile's keys where they are those of a list
#define TILE_KEY(col) tileKeys[col]
#endif

#include "coopmat_fragments.glsl"
#include "coopmat_step.glsl"
#include "non_finite.glsl"

// Parts of a K and of a V tile that one invocation carries. With KEYS_PER_SUBGROUP a subgroup has those of as many keys side by side,
// else the i-th parts of all invocations are side by side.
const uint K_VECS = (KV_TILE * K_ROW_VECS + LOCAL_SIZE - 1) / LOCAL_SIZE;
const uint V_VECS = (KV_TILE * V_ROW_VECS + LOCAL_SIZE - 1) / LOCAL_SIZE;
#define VEC_INDEX(parts, i)                                                                           \
    (KEYS_PER_SUBGROUP != 0 ? (tid / SUBGROUP_SIZE * (parts) + (i)) * SUBGROUP_SIZE + tid % SUBGROUP_SIZE : (i) * LOCAL_SIZE + tid)
#define SUBGROUP_FIRST_KEY (KEYS_PER_SUBGROUP != 0 ? tid / SUBGROUP_SIZE * KEYS_PER_SUBGROUP : 0) // of a tile, of a subgroup's parts
#define SUBGROUP_VEC(i) ((i) * SUBGROUP_SIZE + tid % SUBGROUP_SIZE)        // counted from that key

// Eight elements of a row. Where rows fill their fragments no column has to be compared.
uvec4 loadVecQ(Slice s, uint row, uint col) {
    return HEAD_DIM % FRAG_K == 0 ? load8Q(s, row * p.strideQSeq + col) : loadQ8(s, row, col);
}
uvec4 loadVecK(Slice s, uint key, uint col) {
    return HEAD_DIM % FRAG_K == 0 ? load8K(s, key * p.strideKSeq + col) : loadK8(s, key, col);
}
uvec4 loadVecV(Slice s, uint key, uint col) {
    return HEAD_DIM_V % FRAG_N == 0 ? load8V(s, key * p.strideVSeq + col) : loadV8(s, key, col);
}

// Parts of Q that pass through the space of the tiles, Q_FIT_ROWS rows at a time.
const uint Q_REG_STRIDE = Q_REG_VECS | 1;
const uint Q_FIT_ROWS = KV_SIZE / Q_REG_STRIDE / FRAG_M * FRAG_M;
const uint Q_PASSES = (WORKGROUP_ROWS + Q_FIT_ROWS - 1) / Q_FIT_ROWS;
const uint Q_PASS_ROWS = Q_PASSES > 1 ? Q_FIT_ROWS : WORKGROUP_ROWS;
const uint Q_PASS_VECS = Q_REG_CHUNKS > 0 ? (Q_PASS_ROWS * Q_REG_VECS + LOCAL_SIZE - 1) / LOCAL_SIZE : 1; // of one pass

const uint K_RAGGED = KV_TILE * K_ROW_VECS % LOCAL_SIZE; // not 0: an invocation's last part may be no part of the tile
const uint V_RAGGED = KV_TILE * V_ROW_VECS % LOCAL_SIZE;

#if GENERAL
#include "feature_fetch.glsl"
#else
// Fetches tile number index, the next one of kRows and vRows, into kVec and vVec. Where it may be the
// LAST, keys are compared with their end; else only CHECK_KV_END asks for that. TILE_ADDRESSING 0 finds the
// place of every part from the start of the tensor instead of from the start of the tile.
#define PREFETCH_KV(index, LAST)                                                                     \
    {                                                                                               \
        const uint firstKey = (index) * KV_TILE, keys = min(p.Sk - firstKey, KV_TILE);        \
        [[unroll]] for (uint i = 0; i < K_VECS; ++i) {                                             \
            const uint at = VEC_INDEX(K_VECS, i), key = at / K_ROW_VECS, col = at % K_ROW_VECS * 8;         \
            kVec[i] = (LAST) + CHECK_KV_END + K_RAGGED != 0 && key >= keys ? uvec4(0)              \
                : TILE_ADDRESSING != 0 ? loadVecK(kRows, KEYS_PER_SUBGROUP != 0 ? SUBGROUP_VEC(i) / K_ROW_VECS : key, col) \
                : loadVecK(sliceK(work.batch, work.kvHead, firstKey + key), 0, col);                  \
        }                                                                                           \
        [[unroll]] for (uint i = 0; i < V_VECS; ++i) {                                             \
            const uint at = VEC_INDEX(V_VECS, i), key = at / V_ROW_VECS, col = work.col0 + at % V_ROW_VECS * 8; \
            vVec[i] = (LAST) + CHECK_KV_END + V_RAGGED != 0 && key >= keys ? uvec4(0)              \
                : TILE_ADDRESSING != 0 ? loadVecV(vRows, KEYS_PER_SUBGROUP != 0 ? SUBGROUP_VEC(i) / V_ROW_VECS : key, col) \
                : loadVecV(sliceV(work.batch, work.kvHead, firstKey + key), 0, col);                  \
        }                                                                                           \
        kRows = advanceK(kRows, KV_TILE);                                                        \
        vRows = advanceV(vRows, KV_TILE);                                                        \
    }

#endif

#include "forward_store.glsl"

void main() {
#if GENERAL
    if (!findWorkTile(WORKGROUP_ROWS)) return;
#else
    const WorkTile work = workTile(WORKGROUP_ROWS);
#endif
    const uint tid = gl_LocalInvocationIndex;
    const uint rowInTile = SUBGROUP_FIRST_ROW;
    const uint rowBase = work.row0 + rowInTile;

#if GENERAL
    const KVRange kv = kvRange(min(work.row0 + WORKGROUP_ROWS, work.rows) - 1);
    const uint lastRow = min(work.row0 + WORKGROUP_ROWS, work.rows) - 1;
    const uint tiles = kv.last - kv.first, unmaskedTiles = kv.unmaskedLast - kv.unmaskedFirst;
    const uint keyEnd = SPARSE_TOKENS != 0 ? work.kvLength : visibleEnd(min(rowBase + SUBGROUP_ROWS, work.rows) - 1);
    const bool hasRows = rowBase < work.rows; // else there is nothing to compute, but to fetch
#else
    // The keys this block sees end where its last row's do; tiles below unmaskedTiles are seen by every row.
    const uint end = CAUSAL_SKIP != 0 ? visibleKeys(min(work.row0 + WORKGROUP_ROWS, p.Sq) - 1) : p.Sk;
    const uint tiles = (end + KV_TILE - 1) / KV_TILE;
    const uint unmaskedTiles = UNMASKED_LOOP != 0 ? visibleKeys(work.row0) / KV_TILE : 0;
    const uint keyEnd = CAUSAL_SKIP != 0 ? visibleKeys(min(rowBase + SUBGROUP_ROWS, p.Sq) - 1) : p.Sk;
#endif

    // A negative scale flips the sign of Q instead, so that the largest score is the largest logit.
    const uint flipQ = p.scoreScale < 0.0 ? 0x80008000u : 0u;
    const float scale = SCORE_SCALE, invScale = 1.0 / scale;

    uvec4 kVec[K_VECS], vVec[V_VECS];

    // The first tile and all of Q are fetched at once, so that their latencies overlap. Q_REG_CHUNKS chunks of Q pass
    // through the space of the tiles, as many rows at a time as fit; the others stay in shared memory.
#if GENERAL
    uint laneKey[LANE_KEYS];
    vec2 laneScale[LANE_KEYS];
    uint page[PAGE_INDICES];
    uint j = nextKVTile(kv, 0, lastRow), afterNext = j + 1; // of the walk
    if (j < tiles) {
        if (PREFETCH_PAGES) LOAD_PAGE_INDICES(kvTileAt(kv, j))
        PREFETCH_K(kvTileAt(kv, j))
        PREFETCH_V(kvTileAt(kv, j))
        afterNext = nextKVTile(kv, j + 1, lastRow);
        if (PREFETCH_PAGES) LOAD_PAGE_INDICES(kvTileAt(kv, afterNext))
    }
#else
    Slice kRows = sliceK(work.batch, work.kvHead, SUBGROUP_FIRST_KEY), vRows = sliceV(work.batch, work.kvHead, SUBGROUP_FIRST_KEY);
    PREFETCH_KV(0, 1)
#endif
    FragA Q[Q_REG_CHUNKS > 0 ? M_FRAGS * Q_REG_CHUNKS : 1];
    {
#if GENERAL
        const Slice qBlock = blockQ();
#define LOAD_Q(row, col) interleavePairs(load8Q(qBlock, elementQ(work.row0 + (row)) + (col), HEAD_DIM % FRAG_K == 0 ? 8 : elementsFromQ(col)))
#else
        const Slice qBlock = sliceQ(work.batch, work.head, work.row0);
#define LOAD_Q(row, col) loadVecQ(qBlock, row, col)
#endif
        if (tid == 0) nonFiniteSeen = 0;
        uvec4 qVec[Q_PASSES * Q_PASS_VECS];
        [[unroll]] for (uint i = 0; i < Q_PASSES * Q_PASS_VECS; ++i) {
            const uint at = i % Q_PASS_VECS * LOCAL_SIZE + tid, inPass = Q_REG_CHUNKS > 0 ? at / Q_REG_VECS : Q_PASS_ROWS;
            const uint row = i / Q_PASS_VECS * Q_PASS_ROWS + inPass, col = Q_REG_CHUNKS > 0 ? at % Q_REG_VECS : 0;
            qVec[i] = inPass < Q_PASS_ROWS && row < WORKGROUP_ROWS && work.row0 + row < ROWS
                ? LOAD_Q(row, col * 8) ^ flipQ : uvec4(0);
        }
        [[unroll]] for (uint at0 = 0; at0 < WORKGROUP_ROWS * Q_SMEM_VECS; at0 += LOCAL_SIZE) {
            const uint at = at0 + tid, row = at / Q_SMEM_VECS, col = at % Q_SMEM_VECS;
            if (row < WORKGROUP_ROWS)
                smem[Q_BASE + row * Q_STRIDE + col] = work.row0 + row < ROWS
                    ? LOAD_Q(row, (Q_REG_VECS + col) * 8) ^ flipQ : uvec4(0);
        }
        if (Q_REG_CHUNKS > 0) {
            [[unroll]] for (uint pass = 0; pass < Q_PASSES; ++pass) {
                barrier();
                [[unroll]] for (uint i = 0; i < Q_PASS_VECS; ++i) {
                    const uint at = i * LOCAL_SIZE + tid, row = at / Q_REG_VECS;
                    if (row < Q_PASS_ROWS) smem[row * Q_REG_STRIDE + at % Q_REG_VECS] = qVec[pass * Q_PASS_VECS + i];
                }
                barrier();
                [[unroll]] for (uint r = 0; r < M_FRAGS; ++r) {
                    const uint row = rowInTile + r * FRAG_M, first = pass * Q_PASS_ROWS;
                    if (row >= first && row < first + Q_PASS_ROWS) {
                        [[unroll]] for (uint i = 0; i < Q_REG_CHUNKS; ++i)
                            coopMatLoad(Q[r * Q_REG_CHUNKS + i], smem, (row - first) * Q_REG_STRIDE + i * FRAG_K / 8,
                                        Q_REG_STRIDE, gl_CooperativeMatrixLayoutRowMajor);
                    }
                }
            }
        }
    }

    FragC O[M_FRAGS * DV_FRAGS];
    FragC rowMax[M_FRAGS];    // what is subtracted from a row's scores, as read from shared memory
    FragSum rowSum[M_FRAGS]; // sums of P as V meets it, rounded: P times ones, the same along the row
    FragC rowSumF32[M_FRAGS];    // sums of P in float32, for LSE and sinks; not yet reduced along the row
    FragC rowSumScaled[KEY_SCALES ? M_FRAGS : 1]; // nor are these, instead of rowSum where keys have scales
    [[unroll]] for (uint r = 0; r < M_FRAGS; ++r) {
        [[unroll]] for (uint i = 0; i < DV_FRAGS; ++i) O[r * DV_FRAGS + i] = FragC(0.0);
        rowSum[r] = FragSum(0.0);
        rowSumF32[r] = FragC(0.0);
        if (KEY_SCALES) rowSumScaled[KEY_SCALES ? r : 0] = FragC(0.0);
    }
    for (uint i = gl_SubgroupInvocationID; i < M_FRAGS * ROW_MAX_SIZE; i += SUBGROUP_SIZE)
        smem[rowMaxAt(0) + i] = uvec4(floatBitsToUint(ROW_MAX_INIT));

#if GENERAL
#define CURRENT_TILE kvTileAt(kv, j)
    uint next = tiles; // the next one of the walk
    [[dont_unroll]] while (j < unmaskedTiles) {
#define MASKED 0
#include "feature_tile.glsl"
#undef MASKED
        j = next;
    }
    [[dont_unroll]] while (j < tiles) {
#define MASKED 1
#include "feature_tile.glsl"
#undef MASKED
        j = next;
    }
#else
    uint j = 0;
    [[dont_unroll]] for (; j + (1 - CHECK_KV_END) < unmaskedTiles; ++j) {
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
    [[unroll]] for (uint r = 0; r < M_FRAGS; ++r) loadRowMax(r);
#if GENERAL
    if (SINKS != 0) {
        for (uint i = gl_SubgroupInvocationID; i < SUBGROUP_ROWS; i += SUBGROUP_SIZE)
            if (rowBase + i < ROWS)
                sinkTerms[gl_SubgroupID * SUBGROUP_ROWS + i] = sinkTerm(rowBase + i, rowMaxOfRow(i / FRAG_M, i % FRAG_M));
    }
#endif
    barrier(); // the tile becomes scratch
#if GENERAL
    const Slice oBlock = blockO();
#else
    const Slice oBlock = sliceO(work.batch, work.head, rowBase);
#endif
    FragC inverse[M_FRAGS];
    [[unroll]] for (uint r = 0; r < M_FRAGS; ++r) {
        if (KEY_SCALES) { reduceRowSum(inverse[r], rowSumScaled[KEY_SCALES ? r : 0]); }
        else { widenRows(inverse[r], rowSum[r]); }
        FragC total;
        if (NEEDS_F32_SUM) { reduceRowSum(total, rowSumF32[r]); }
#if GENERAL
        if (SINKS != 0) { // it is not rounded as weights are: its share is that of the sum before
            FragC sink;
            coopMatLoad(sink, sinkTerms, (gl_SubgroupID * M_FRAGS + r) * FRAG_M, 0, gl_CooperativeMatrixLayoutColumnMajor);
            [[unroll]] for (uint e = 0; e < sink.length(); ++e)
                inverse[r][e] = isNaN(sink[e]) ? sink[e] : inverse[r][e] == 0.0 ? 0.0 : inverse[r][e] * (1.0 + sink[e] / total[e]);
        }
#endif
        [[unroll]] for (uint e = 0; e < inverse[r].length(); ++e)
            inverse[r][e] = inverse[r][e] == 0.0 ? 0.0 : 1.0 / inverse[r][e];
        if (HAS_LSE != 0 && work.col0 == 0) {
            [[unroll]] for (uint e = 0; e < total.length(); ++e) total[e] = logSumExp(rowMax[r][e], total[e]);
            fragmentToScratch(total);
            [[unroll]] for (uint s = 0; s < FRAG_M; s += SUBGROUP_SIZE) {
                const uint row = s + gl_SubgroupInvocationID, seqRow = rowBase + r * FRAG_M + row;
#if GENERAL
                if (row < FRAG_M && seqRow < ROWS) storeRowLSE(seqRow, lseWithSink(seqRow, loadScratch(row, 0)));
#else
                if (row < FRAG_M && seqRow < p.Sq) storeLSE(work.batch, work.head, seqRow, loadScratch(row, 0));
#endif
            }
        }
    }
#if GENERAL
    if (USE_PASSES != 0) {
        barrier(); // a subgroup's share lies over the scratch of others, who may still be at their LSE
        STORE_STATE_PASS(0) STORE_STATE_PASS(1) STORE_STATE_PASS(2) STORE_STATE_PASS(3)
    }
#endif
#if NV2
    if (EPILOGUE_BY_PAIR) {
        STORE_PAIR(0) STORE_PAIR(1) STORE_PAIR(2) STORE_PAIR(3)
        STORE_PAIR(4) STORE_PAIR(5) STORE_PAIR(6) STORE_PAIR(7)
        STORE_PAIR(8) STORE_PAIR(9) STORE_PAIR(10) STORE_PAIR(11)
        STORE_PAIR(12) STORE_PAIR(13) STORE_PAIR(14) STORE_PAIR(15)
#if !GENERAL
        return;
#endif
    }
#endif
    if (EPILOGUE_BY_FRAGMENT) {
        // As float32. One loop over all: nested ones are not unrolled, and O would leave the registers.
        [[unroll]] for (uint i = 0; i < M_FRAGS * DV_FRAGS; ++i) {
            O[i] *= inverse[i / DV_FRAGS];
            fragmentToScratch(O[i]);
            [[unroll]] for (uint s = 0; s < LANE_VECS; ++s) {
                const uint group = s * SUBGROUP_SIZE + gl_SubgroupInvocationID;
                const uint row = i / DV_FRAGS * FRAG_M + group / (FRAG_N / 8);
                const uint col = work.col0 + i % DV_FRAGS * FRAG_N + group % (FRAG_N / 8) * 8;
                if (group < FRAG_VECS && rowBase + row < ROWS && col < HEAD_DIM_V) {
#if GENERAL
                    if (SPLIT != 0) {
                        const uint at = subgroupScratch() + group / (FRAG_N / 8) * SCRATCH_STRIDE + group % (FRAG_N / 8) * 2;
                        storeState4(rowBase + row, col, uintBitsToFloat(smem[at]));
                        if (col + 4 < HEAD_DIM_V) storeState4(rowBase + row, col + 4, uintBitsToFloat(smem[at + 1]));
                    } else
#else
                    if (CAUSAL != 0 && nonFiniteSeen != 0) addNonFinite(work, group, rowBase + row, col, unmaskedTiles * KV_TILE);
#endif
                        STORE_O8(row, col, packScratch8(group));
                }
            }
        }
    }
#if GENERAL
    if (DROPS_NON_FINITE && nonFiniteSeen != 0) {
        [[dont_unroll]] for (uint n = 0; n < EPILOGUE_STORES; ++n) {
            uint row, sliceCol;
            const bool there = epilogueColumns(n, row, sliceCol);
            const uint col = work.col0 + sliceCol, eight = col - col % 8;
            if (!there || rowBase + row >= ROWS || col >= HEAD_DIM_V) continue;
            vec4 four[2] = { vec4(0.0), vec4(0.0) };
            addNonFinite(kv, KEY_SCALES ? 0 : unmaskedTiles, rowBase + row, eight, four[0], four[1]);
            if (SPLIT == 0) patch8O(oBlock, elementO(rowBase + row) + col, four[0], four[1], HEAD_DIM_V - col);
            [[unroll]] for (uint i = 0; i < (SPLIT != 0 ? 2 : 0); ++i)
                if ((USE_PASSES == 0 || eight + 4 * i == col) && eight + 4 * i < HEAD_DIM_V) patchState4(rowBase + row, eight + 4 * i, four[i]);
        }
    }
#endif
}
