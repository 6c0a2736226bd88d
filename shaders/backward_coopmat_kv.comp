#version 460
// dK and dV on cooperative matrices (tiers coopmat and coopmat2).
//
// A workgroup owns WORKGROUP_KEYS keys of a KV head; each subgroup owns M_FRAGS * FRAG_M of them alone. All loop over the
// row tiles that see the keys; rows are the queries of all heads of the group, packed, so that the loop sums over the
// group too:
//
//   S = K Q^T   P = exp(score - LSE)   dP = V dO^T - delta   dS = P dP   dV += P dO   dK += dS Q
//
// S, P, dP and dS are transposed, keys by rows: P and dS are accumulators that become operands A of the last two
// products without leaving their registers.
//   registers      dK, dV, V, K but for Q_SMEM_CHUNKS chunks, and this invocation's vectors of the next row tile
//   shared memory  tiles of Q and dO, -LSE (in log2 units) and -delta of their rows, the other chunks of K
//   barriers       two per row tile, before and after it is stored to shared memory
// Row tiles that attend to every key have a loop of their own. The order of every sum is fixed.
#extension GL_GOOGLE_include_directive : require
#define CONSTANTS_FORWARD
#define CONSTANTS_BACKWARD_COOPMAT
#define CONSTANTS_BACKWARD_RARE
#define CONSTANTS_DROPOUT
#define CONSTANTS_MODIFIERS
#define CONSTANTS_TILE_MAP
#define MODIFIES_FULL_TILES
#include "constants_coopmat.glsl"
#define CHUNK_OF_HEADS STORE_DS
#define HEADS_IN_TURN (TILE_MAP + STORE_DS * CAUSAL != 0)
#include "backward_interface.glsl"

const uint SUBGROUPS = LOCAL_SIZE / SUBGROUP_SIZE;
const uint SUBGROUP_KEYS = M_FRAGS * FRAG_M;
const uint WORKGROUP_KEYS = SUBGROUPS * SUBGROUP_KEYS;
const uint SCAN_ROWS = 8; // of a lane at a time, in the search for a large LSE
const uint QK_CHUNKS = (HEAD_DIM + FRAG_K - 1) / FRAG_K;
const uint V_CHUNKS = (HEAD_DIM_V + FRAG_K - 1) / FRAG_K;

// Shared memory, in vectors of 16 bytes. Strides are odd: rows start in different banks.
const uint Q_ROW_VECS = QK_CHUNKS * FRAG_K / 8;
const uint DO_ROW_VECS = V_CHUNKS * FRAG_K / 8;
const uint Q_STRIDE = Q_ROW_VECS | 1;
const uint DO_STRIDE = DO_ROW_VECS | 1;
const uint DO_BASE = ROW_TILE * Q_STRIDE;
const uint STATS_BASE = DO_BASE + ROW_TILE * DO_STRIDE;
const uint OWN_SIZE = SUBGROUPS * FRAG_M * (FRAG_K / 8 + 1); // the least that backward_own_rows.glsl needs
const uint ROWS_SIZE = STATS_BASE + ROW_TILE / 4 * 3;
const uint TILE_SIZE = ROWS_SIZE > OWN_SIZE ? ROWS_SIZE : OWN_SIZE;
const uint SCRATCH_TOTAL = SUBGROUPS * FRAG_M * ((FRAG_N / 4) | 1);
const uint K_SMEM_CHUNKS = Q_SMEM_CHUNKS < QK_CHUNKS ? Q_SMEM_CHUNKS : QK_CHUNKS - 1;
const uint K_BASE = TILE_SIZE;
const uint LOOP_SIZE = K_BASE + (K_SMEM_CHUNKS > 0 ? WORKGROUP_KEYS * ((K_SMEM_CHUNKS * FRAG_K / 8) | 1) : 0);
const uint KEPT_SIZE = M_FRAGS * KV_STEP / 4; // of a subgroup, see backward_own_rows.glsl
// Behind the loop the subgroups' scratch takes the place of the tile. In the loop it is used with OPERANDS_IN_SMEM alone.
const uint SCRATCH_BASE = NV2 == 0 && OPERANDS_IN_SMEM != 0 ? LOOP_SIZE : 0;
const uint SCRATCH_END = SCRATCH_BASE + SCRATCH_TOTAL;
const uint PLACES_BASE = LOOP_SIZE > SCRATCH_END ? LOOP_SIZE : SCRATCH_END;
const uint KEPT_BASE = PLACES_BASE + PLACES_SIZE;
shared uvec4 smem[KEPT_BASE + (DROPOUT != 0 ? SUBGROUPS * KEPT_SIZE : 0)];

#include "backward_fragments.glsl"
#define OWNS_KEYS 1
#include "backward_own_rows.glsl"
#include "backward_row_range.glsl"

// -- row tile -------------------------------------------------------------------------------------
// A row tile of the dK and dV kernel on its way to shared memory.

const uint Q_VECS = (ROW_TILE * Q_ROW_VECS + LOCAL_SIZE - 1) / LOCAL_SIZE;
const uint DO_VECS = (ROW_TILE * DO_ROW_VECS + LOCAL_SIZE - 1) / LOCAL_SIZE;
const uint STAT_VALUES = (2 * ROW_TILE + LOCAL_SIZE - 1) / LOCAL_SIZE;

// Eight elements of a row. If rows fill their fragments no column is compared.
uvec4 loadVecQ(Slice s, uint row, uint col) {
    const uint element = rowElement(row, p.strideQHead, p.strideQSeq) + col;
    return HEAD_DIM % FRAG_K == 0 ? load8Q(s, element) : load8Q(s, element, elementsFromQ(col));
}
uvec4 loadVecDO(Slice s, uint row, uint col) {
    const uint element = rowElement(row, p.strideDOHead, p.strideDOSeq) + col;
    return HEAD_DIM_V % FRAG_K == 0 ? load8DO(s, element) : load8DO(s, element, elementsFromDO(col));
}

// Loads a row tile. Rows past the end have an LSE of +Inf, so that their P is 0, and elements of the last row.
#define PREFETCH_ROWS(tile)                                                                         \
    {                                                                                               \
        work.row0 = (tile) * ROW_TILE;                                                              \
        const Slice qRows = advanceQ(qHead, queryOf(work.row0)), doRows = advanceDO(doHead, queryOf(work.row0)); \
        [[unroll]] for (uint i = 0; i < Q_VECS; ++i) {                                              \
            const uint at = i * LOCAL_SIZE + tid;                                                   \
            qVec[i] = loadVecQ(qRows, min(work.row0 + at / Q_ROW_VECS, work.rows - 1), at % Q_ROW_VECS * 8); \
        }                                                                                           \
        [[unroll]] for (uint i = 0; i < DO_VECS; ++i) {                                             \
            const uint at = i * LOCAL_SIZE + tid;                                                   \
            doVec[i] = loadVecDO(doRows, min(work.row0 + at / DO_ROW_VECS, work.rows - 1), at % DO_ROW_VECS * 8); \
        }                                                                                           \
        [[unroll]] for (uint i = 0; i < STAT_VALUES; ++i) {                                         \
            const uint at = i * LOCAL_SIZE + tid, row = work.row0 + at % ROW_TILE;                  \
            const vec2 two = at < 2 * ROW_TILE && row < work.rows ? loadStatsAt(rowIndex(row)) : vec2(INFINITY, 0.0); \
            statVec[i] = at < ROW_TILE ? two.x : two.y;                                             \
        }                                                                                           \
    }

// Stores the tile and the statistics of its rows, in log2 units: -LSE, -delta, and for a masked tile the negated rest of
// LSE. Notes what it finds in seen.
#define STORE_ROWS(masked)                                                                          \
    {                                                                                               \
        [[unroll]] for (uint i = 0; i < Q_VECS; ++i) {                                              \
            const uint at = i * LOCAL_SIZE + tid;                                                   \
            if (masked != 0) NOTE_NON_FINITE(qVec[i])                                               \
            if (ROW_TILE * Q_ROW_VECS % LOCAL_SIZE == 0 || at < ROW_TILE * Q_ROW_VECS)              \
                smem[at / Q_ROW_VECS * Q_STRIDE + at % Q_ROW_VECS] = qVec[i];                       \
        }                                                                                           \
        [[unroll]] for (uint i = 0; i < DO_VECS; ++i) {                                             \
            const uint at = i * LOCAL_SIZE + tid;                                                   \
            if (masked != 0) NOTE_NON_FINITE(doVec[i])                                              \
            if (ROW_TILE * DO_ROW_VECS % LOCAL_SIZE == 0 || at < ROW_TILE * DO_ROW_VECS)            \
                smem[DO_BASE + at / DO_ROW_VECS * DO_STRIDE + at % DO_ROW_VECS] = doVec[i];         \
        }                                                                                           \
        [[unroll]] for (uint i = 0; i < STAT_VALUES; ++i) {                                         \
            const uint at = i * LOCAL_SIZE + tid;                                                   \
            if (at < 2 * ROW_TILE)                                                                  \
                smem[STATS_BASE + at / 4][at % 4] = floatBitsToUint(at < ROW_TILE ? -toLog2(statVec[i]) : -statVec[i]); \
            if (masked != 0 && at < ROW_TILE)                                                       \
                smem[STATS_BASE + ROW_TILE / 2 + at / 4][at % 4] =                                  \
                    floatBitsToUint(isLarge(statVec[i]) ? -LOG2E * loadRest(rowIndex(work.row0 + at)) : 0.0);     \
        }                                                                                           \
    }

#include "backward_scratch.glsl"
#include "non_finite.glsl"

// -- rare work ------------------------------------------------------------------------------------
// Rare work of the kernel of dK and dV in a dispatch of its own.
//
// The loop for masked tiles costs registers in the loop behind it. Calls without a mask need it for rare inputs alone:
// keys past the end of their sequence, and rows with a large LSE (backward_fragments.glsl). They have two dispatches
// over the same workgroups (head dim 128, length 4096, on an H100: 10.38 ms for the pass in place of 10.93):
//
//   RARE_WORK 1  has the unmasked loop alone. Workgroups with rare inputs mark themselves and return.
//   RARE_WORK 2  computes the marked workgroups with both loops.
//
// Marks are in scratch memory behind dS, a vector per workgroup: p.addrUsedK says where.
const bool LEAVES_RARE_WORK = RARE_WORK == 1;

uint markIndex() { return gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x; }
bool isMarked() { return loadScratchVec(p.addrUsedK, markIndex()).x != 0; }
void mark(bool rare) {
    if (gl_LocalInvocationIndex == 0) storeScratchVec(p.addrUsedK, markIndex(), uvec4(rare));
}

// Exponent of P, in log2 units, of key i and row j of a fragment: without LSE if scores are modified.
float exponentElement(const in uint32_t i, const in uint32_t j, const in float x, const in uint firstKey, const in uint firstRow) {
    if (LOADS_OF_LANES_OFF && firstRow + j >= work.rows) return 0.0;
    return SCORE_MOD ? scoreMod(x * p.scoreScale, firstRow + j, firstKey + i) * LOG2E : x;
}
// The same in a masked tile; without a branch, as in attends.
float attendedElement(const in uint32_t i, const in uint32_t j, const in float x, const in uint firstKey, const in uint firstRow) {
    const float exponent = exponentElement(i, j, x, firstKey, firstRow);
    return attends(firstRow + j, firstKey + i) ? exponent : MASKED_EXPONENT;
}
float slopeElement(const in uint32_t i, const in uint32_t j, const in float product, const in uint firstKey, const in uint firstRow) {
    return slotSlope(product, firstRow + j, firstKey + i);
}

void main() {
    const uint tid = gl_LocalInvocationIndex;
    uint firstKey, extentKeys;
    if (!findKeyTile(WORKGROUP_KEYS, firstKey, extentKeys)) return;
    if (RARE_WORK == 2 && !isMarked()) return;
    if (DROPOUT != 0) openDropout();
    const uint keyInTile = gl_SubgroupID * SUBGROUP_KEYS, keyBase = firstKey + keyInTile; // of the subgroup
    const uint lastKey = max(min(firstKey + WORKGROUP_KEYS, work.seqlenK), firstKey + 1) - 1;
    const float scale2 = p.scoreScale * LOG2E;

    const RowTiles tiles = rowTiles(firstKey, lastKey);
    const Slice qHead = sliceQ(rowBatch(), work.head, work.offsetQ), doHead = sliceDO(rowBatch(), work.head, work.offsetQ);
    const uint tileCount = rowTileCount(tiles);
    uint n = nextRowTile(tiles, 0, firstKey, lastKey);
    uvec4 qVec[Q_VECS], doVec[DO_VECS];
    float statVec[STAT_VALUES];
    if (n < tileCount) PREFETCH_ROWS(rowTileAt(tiles, n))

    FragA K[M_FRAGS * (QK_CHUNKS - K_SMEM_CHUNKS)], V[M_FRAGS * V_CHUNKS];
    {
        const Slice kRows = sliceK(kvBatch(), work.kvHead, work.offsetK + firstKey);
        const Slice vRows = sliceV(kvBatch(), work.kvHead, work.offsetK + firstKey);
#define LOAD_OWN_K(row, col) keyBase + (row) < work.seqlenK ? loadK8(kRows, keyInTile + (row), col) : uvec4(0)
#define LOAD_OWN_V(row, col) keyBase + (row) < work.seqlenK ? loadV8(vRows, keyInTile + (row), col) : uvec4(0)
        LOAD_OWN(kVec, QK_CHUNKS, LOAD_OWN_K)
        LOAD_OWN(vVec, V_CHUNKS, LOAD_OWN_V)
        OWN_FRAGMENTS(K, kVec, QK_CHUNKS, K_SMEM_CHUNKS, K_BASE)
        OWN_FRAGMENTS(V, vVec, V_CHUNKS, 0, 0)
    }

    if (tid == 0) seen = 0;
    storePlaces();
    // Rows with a large LSE: all tiles are masked.
    barrier();
    const uint endRow = min((tiles.first + tiles.count) * ROW_TILE, work.rows);
    [[dont_unroll]] for (uint row0 = tiles.first * ROW_TILE + tid; row0 < endRow; row0 += SCAN_ROWS * LOCAL_SIZE) {
        bool large = false;
        [[unroll]] for (uint i = 0; i < SCAN_ROWS; ++i) large = isLarge(loadStatsAt(rowIndex(min(row0 + i * LOCAL_SIZE, endRow - 1))).x) || large;
        if (large) atomicOr(seen, SEEN_LARGE);
    }
    barrier();
    if (LEAVES_RARE_WORK) {
        const bool rare = seen != 0 || tiles.masked != 0;
        mark(rare);
        if (rare) return;
    }
    const uint maskedEnd = CHANGES_SLOTS || (seen & SEEN_LARGE) != 0 ? tileCount : tiles.masked;

    FragC dK[M_FRAGS * QK_CHUNKS], dV[M_FRAGS * V_CHUNKS];
    [[unroll]] for (uint i = 0; i < M_FRAGS * QK_CHUNKS; ++i) dK[i] = FragC(0.0);
    [[unroll]] for (uint i = 0; i < M_FRAGS * V_CHUNKS; ++i) dV[i] = FragC(0.0);

#define STAT_AT(which) (STATS_BASE + ((which) * ROW_TILE + first + f % KV_FRAGS * FRAG_N) / 4)
    // The masked loop comes first: behind the unmasked one, its values would push accumulators out of registers there
    // (docs/log/backward.md, 5).
    if (!LEAVES_RARE_WORK)
    [[dont_unroll]] for (; n < maskedEnd;) {
#define MASKED 1
#include "backward_tile.glsl"
#undef MASKED
    }
    [[dont_unroll]] for (; n < tileCount;) {
#define MASKED 0
#include "backward_tile.glsl"
#undef MASKED
    }

    barrier(); // the tile's shared memory becomes scratch
    const KVRow out_ = KVRow(kvBatch(), work.offsetK + keyBase);

    // -- gradients of keys ------------------------------------------------------------------------
    // Part of main of the kernels of dK and dV: how STORE_GRADIENT stores their keys.
        // A key past the end of its sequence has gradient 0; adding that changes nothing.
#define STORES(row) (keyBase + (row) < extentKeys && (ACCUMULATE == 0 || keyBase + (row) < work.seqlenK))
#define EXISTS(row) (keyBase + (row) < work.seqlenK)
#define STORE_DV8(row, col, words)                                                                  \
        { if (STORES(row) && (col) < HEAD_DIM_V) storeEightDV(outDV, (row) * p.strideDVSeq + (col), EXISTS(row) ? words : uvec4(0)); }
#define STORE_DV4(row, col, four)                                                                   \
        { if (STORES(row)) storeFourDV(outDV, (row) * p.strideDVSeq, col, EXISTS(row) ? four : vec4(0.0)); }
#define STORE_DK8(row, col, words)                                                                  \
        { if (STORES(row) && (col) < HEAD_DIM) storeEightDX(outDK, (row) * p.strideDXSeq + (col), EXISTS(row) ? words : uvec4(0)); }
#define STORE_DK4(row, col, four)                                                                   \
        { if (STORES(row)) storeFourDX(outDK, (row) * p.strideDXSeq, col, EXISTS(row) ? four : vec4(0.0)); }
    // Each invocation corrects what it has stored of dV.
#define CORRECT_DV(chunks)                                                                          \
        if ((seen & SEEN_NON_FINITE) != 0) {                                                            \
            const uint columns = WIDE_DV ? 8 : 4, quads = FRAG_N / columns;                             \
            [[dont_unroll]] for (uint f = 0; f < M_FRAGS * (chunks); ++f)                               \
                [[dont_unroll]] for (uint at = gl_SubgroupInvocationID; at < FRAG_M * quads; at += SUBGROUP_SIZE) { \
                    const uint row = f / (chunks) * FRAG_M + at / quads, col = f % (chunks) * FRAG_N + at % quads * columns; \
                    if (EXISTS(row)) addNonFiniteDO(outDV, tiles, keyBase + row, row, col, columns);    \
                }                                                                                       \
        }

    if (HAS_DV != 0) {
        const Slice outDV = sliceDV(out_.batch, work.kvHead, out_.row);
        STORE_GRADIENT(dV, V_CHUNKS, DROPOUT != 0 ? keptScale : 1.0, WIDE_DV, STORE_DV8, STORE_DV4)
        CORRECT_DV(V_CHUNKS)
    }
    if (HAS_DK != 0) {
        const Slice outDK = sliceDX(out_.batch, work.kvHead, out_.row);
        STORE_GRADIENT(dK, QK_CHUNKS, DROPOUT != 0 ? p.scoreScale * keptScale : p.scoreScale, WIDE_DX, STORE_DK8, STORE_DK4)
    }
}
