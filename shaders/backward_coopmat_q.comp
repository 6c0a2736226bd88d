#version 460
// dQ on cooperative matrices (tiers coopmat and coopmat2).
//
// A workgroup owns WORKGROUP_ROWS rows of one head (of a group, packed, with PACK_GQA); each subgroup owns
// M_FRAGS * FRAG_M of them alone. All loop over the KV tiles that some row attends to:
//
//   S = Q K^T   P = exp(score - LSE)   dP = dO V^T - delta   dS = P dP   dQ += dS K
//
//   registers      dQ, Q, dO, -LSE (in log2 units) and -delta of the rows, and this invocation's vectors of the next tile
//   shared memory  tiles of K and V
//   barriers       two per KV tile, before and after it is stored to shared memory
// KV tiles that every row attends to have a loop of their own. The order of every sum is fixed.
#extension GL_GOOGLE_include_directive : require
#define CONSTANTS_FORWARD
#define CONSTANTS_BACKWARD_COOPMAT
#define CONSTANTS_DROPOUT
#define CONSTANTS_MODIFIERS
#define CONSTANTS_TILE_MAP
#define MODIFIES_FULL_TILES
#include "constants_coopmat.glsl"
#include "backward_interface.glsl"

const uint SUBGROUPS = LOCAL_SIZE / SUBGROUP_SIZE;
const uint SUBGROUP_ROWS = M_FRAGS * FRAG_M;
const uint WORKGROUP_ROWS = SUBGROUPS * SUBGROUP_ROWS;
const uint QK_CHUNKS = (HEAD_DIM + FRAG_K - 1) / FRAG_K;
const uint V_CHUNKS = (HEAD_DIM_V + FRAG_K - 1) / FRAG_K;

// Shared memory, in vectors of 16 bytes. Strides are odd: rows start in different banks.
const uint K_ROW_VECS = QK_CHUNKS * FRAG_K / 8;
const uint V_ROW_VECS = V_CHUNKS * FRAG_K / 8;
const uint K_STRIDE = K_ROW_VECS | 1;
const uint V_STRIDE = V_ROW_VECS | 1;
const uint V_BASE = KV_TILE * K_STRIDE;
const uint KV_SIZE = V_BASE + KV_TILE * V_STRIDE;
const uint STATS_SIZE = WORKGROUP_ROWS / 2;
const uint OWN_SIZE = SUBGROUPS * FRAG_M * (FRAG_K / 8 + 1); // the least that backward_own_rows.glsl needs
const uint OTHER_SIZE = STATS_SIZE > OWN_SIZE ? STATS_SIZE : OWN_SIZE;
const uint TILE_SIZE = KV_SIZE > OTHER_SIZE ? KV_SIZE : OTHER_SIZE;
const uint SCRATCH_TOTAL = SUBGROUPS * FRAG_M * ((FRAG_N / 4) | 1);
const uint KEPT_SIZE = SUBGROUP_ROWS * (KV_STEP / FRAG_N) / 4; // of a subgroup, see backward_own_rows.glsl
const uint REST_BASE = TILE_SIZE; // the negated rests of LSE, in log2 units
const uint LOOP_SIZE = REST_BASE + WORKGROUP_ROWS / 4;
// Behind the loop the subgroups' scratch takes the place of the tile. In the loop it is used with OPERANDS_IN_SMEM alone.
const uint SCRATCH_BASE = NV2 == 0 && OPERANDS_IN_SMEM != 0 ? LOOP_SIZE : 0;
const uint SCRATCH_END = SCRATCH_BASE + SCRATCH_TOTAL;
const uint PLACES_BASE = LOOP_SIZE > SCRATCH_END ? LOOP_SIZE : SCRATCH_END;
const uint KEPT_BASE = PLACES_BASE + PLACES_SIZE;
shared uvec4 smem[KEPT_BASE + (DROPOUT != 0 ? SUBGROUPS * KEPT_SIZE : 0)];

#include "backward_fragments.glsl"
#define OWNS_KEYS 0
#include "backward_own_rows.glsl"

// -- tile of K and V ------------------------------------------------------------------------------
// The KV tiles of the dQ kernel on their way to shared memory.

uint kvBatch() { return (VARLEN & CU_K) != 0 ? 0 : work.batch; }

const uint K_VECS = (KV_TILE * K_ROW_VECS + LOCAL_SIZE - 1) / LOCAL_SIZE;
const uint V_VECS = (KV_TILE * V_ROW_VECS + LOCAL_SIZE - 1) / LOCAL_SIZE;

// Eight elements of a row. If rows fill their fragments no column is compared.
uvec4 loadVecK(Slice s, uint key, uint col) {
    return HEAD_DIM % FRAG_K == 0 ? load8K(s, key * p.strideKSeq + col) : loadK8(s, key, col);
}
uvec4 loadVecV(Slice s, uint key, uint col) {
    return HEAD_DIM_V % FRAG_K == 0 ? load8V(s, key * p.strideVSeq + col) : loadV8(s, key, col);
}

// Loads a KV tile. Keys past the end, which are masked, have the elements of the last key.
#define PREFETCH_KEYS(tile)                                                                         \
    {                                                                                               \
        const uint firstKey_ = (tile) * KV_TILE, lastKey_ = work.seqlenK - 1 - firstKey_;           \
        const Slice kRows = advanceK(kHead, firstKey_), vRows = advanceV(vHead, firstKey_);         \
        [[unroll]] for (uint i = 0; i < K_VECS; ++i) {                                              \
            const uint at = i * LOCAL_SIZE + tid;                                                   \
            kVec[i] = loadVecK(kRows, min(at / K_ROW_VECS, lastKey_), at % K_ROW_VECS * 8);         \
        }                                                                                           \
        [[unroll]] for (uint i = 0; i < V_VECS; ++i) {                                              \
            const uint at = i * LOCAL_SIZE + tid;                                                   \
            vVec[i] = loadVecV(vRows, min(at / V_ROW_VECS, lastKey_), at % V_ROW_VECS * 8);         \
        }                                                                                           \
    }

// Stores the tile, and notes Inf and NaN in K of a masked one; of V nothing but dP depends, which is selected.
#define STORE_KEYS(masked)                                                                          \
    {                                                                                               \
        [[unroll]] for (uint i = 0; i < K_VECS; ++i) {                                              \
            const uint at = i * LOCAL_SIZE + tid;                                                   \
            if (masked != 0) NOTE_NON_FINITE(kVec[i])                                               \
            if (KV_TILE * K_ROW_VECS % LOCAL_SIZE == 0 || at < KV_TILE * K_ROW_VECS)                \
                smem[at / K_ROW_VECS * K_STRIDE + at % K_ROW_VECS] = kVec[i];                       \
        }                                                                                           \
        [[unroll]] for (uint i = 0; i < V_VECS; ++i) {                                              \
            const uint at = i * LOCAL_SIZE + tid;                                                   \
            if (KV_TILE * V_ROW_VECS % LOCAL_SIZE == 0 || at < KV_TILE * V_ROW_VECS)                \
                smem[V_BASE + at / V_ROW_VECS * V_STRIDE + at % V_ROW_VECS] = vVec[i];              \
        }                                                                                           \
    }

// Exponent of P, in log2 units, of row i and key j of a fragment: without LSE if scores are modified.
float exponentElement(const in uint32_t i, const in uint32_t j, const in float x, const in uint firstRow, const in uint firstKey) {
    if (LOADS_OF_LANES_OFF && firstRow + i >= work.rows) return 0.0;
    return SCORE_MOD ? scoreMod(x * p.scoreScale, firstRow + i, firstKey + j) * LOG2E : x;
}
// The same in a masked tile; without a branch, as in attends.
float attendedElement(const in uint32_t i, const in uint32_t j, const in float x, const in uint firstRow, const in uint firstKey) {
    const float exponent = exponentElement(i, j, x, firstRow, firstKey);
    return attends(firstRow + i, firstKey + j) ? exponent : MASKED_EXPONENT;
}
float slopeElement(const in uint32_t i, const in uint32_t j, const in float product, const in uint firstRow, const in uint firstKey) {
    return slotSlope(product, firstRow + i, firstKey + j);
}

// Tile n: the masked tiles come first, as in backward_coopmat_kv.comp.
#define KV_TILE_AT(n) kvTileAt(kv, (n) < masked ? (n) + unmasked : (n) - masked)

void main() {
    const uint tid = gl_LocalInvocationIndex;
    uint extentRows;
    if (!findRowTile(WORKGROUP_ROWS, extentRows)) return;
    if (DROPOUT != 0) openDropout();
    const uint rowInTile = gl_SubgroupID * SUBGROUP_ROWS, rowBase = work.row0 + rowInTile; // of the subgroup
    const uint lastRow = max(min(work.row0 + WORKGROUP_ROWS, work.rows), work.row0 + 1) - 1;
    const uint subgroupLast = max(min(rowBase + SUBGROUP_ROWS, work.rows), rowBase + 1) - 1;
    const float scale2 = p.scoreScale * LOG2E;

    KVRange kv = KVRange(0, 0, 0, 0);
    if (work.row0 < work.rows) kv = kvRange(lastRow);
    const Slice kHead = sliceK(kvBatch(), work.kvHead, work.offsetK), vHead = sliceV(kvBatch(), work.kvHead, work.offsetK);
    uint n = nextKVTile(kv, 0, lastRow);
    const uint tiles = kvTileCount(kv);
    uvec4 kVec[K_VECS], vVec[V_VECS];
    const uint unmasked = kv.unmaskedLast - kv.unmaskedFirst, masked = tiles - unmasked;
    if (n < tiles) PREFETCH_KEYS(KV_TILE_AT(n))

    FragA Q[M_FRAGS * QK_CHUNKS], dO[M_FRAGS * V_CHUNKS];
    {
        const Slice qRows = sliceQ(rowBatch(), work.head, work.offsetQ + queryOf(work.row0));
        const Slice doRows = sliceDO(rowBatch(), work.head, work.offsetQ + queryOf(work.row0));
#define LOAD_OWN_Q(row, col) rowBase + (row) < work.rows                                            \
        ? load8Q(qRows, rowElement(rowBase + (row), p.strideQHead, p.strideQSeq) + (col), elementsFromQ(col)) : uvec4(0)
#define LOAD_OWN_DO(row, col) rowBase + (row) < work.rows                                           \
        ? load8DO(doRows, rowElement(rowBase + (row), p.strideDOHead, p.strideDOSeq) + (col), elementsFromDO(col)) : uvec4(0)
        LOAD_OWN(qVec, QK_CHUNKS, LOAD_OWN_Q)
        LOAD_OWN(doVec, V_CHUNKS, LOAD_OWN_DO)
        OWN_FRAGMENTS(Q, qVec, QK_CHUNKS, 0, 0)
        OWN_FRAGMENTS(dO, doVec, V_CHUNKS, 0, 0)
    }
    // Fragments whose rows are one value each.
    FragC negLSE[M_FRAGS], negDelta[M_FRAGS];
    if (tid == 0) seen = 0;
    storePlaces();
    barrier();
    [[unroll]] for (uint at0 = 0; at0 < WORKGROUP_ROWS; at0 += LOCAL_SIZE) {
        const uint at = at0 + tid, row = work.row0 + at;
        const vec2 two = at < WORKGROUP_ROWS && row < work.rows ? loadStatsAt(rowIndex(row)) : vec2(INFINITY, 0.0);
        if (at < WORKGROUP_ROWS) {
            const bool large = isLarge(two.x);
            if (large) atomicOr(seen, SEEN_LARGE);
            smem[REST_BASE + at / 4][at % 4] = floatBitsToUint(large ? -LOG2E * loadRest(rowIndex(row)) : 0.0);
            smem[at / 4][at % 4] = floatBitsToUint(-toLog2(two.x));
            smem[(WORKGROUP_ROWS + at) / 4][at % 4] = floatBitsToUint(-two.y);
        }
    }
    barrier();
    [[unroll]] for (uint r = 0; r < M_FRAGS; ++r) {
        coopMatLoad(negLSE[r], smem, (rowInTile + r * FRAG_M) / 4, 0, COLUMN_MAJOR);
        coopMatLoad(negDelta[r], smem, (WORKGROUP_ROWS + rowInTile + r * FRAG_M) / 4, 0, COLUMN_MAJOR);
    }

    FragC dQ[M_FRAGS * QK_CHUNKS];
    [[unroll]] for (uint i = 0; i < M_FRAGS * QK_CHUNKS; ++i) dQ[i] = FragC(0.0);

    const uint maskedEnd = CHANGES_SLOTS || (seen & SEEN_LARGE) != 0 ? tiles : masked;
    [[dont_unroll]] for (; n < maskedEnd;) {
#define MASKED 1
#include "backward_tile.glsl"
#undef MASKED
    }
    [[dont_unroll]] for (; n < tiles;) {
#define MASKED 0
#include "backward_tile.glsl"
#undef MASKED
    }

    barrier(); // the tile's shared memory becomes scratch
    const Slice outDQ = sliceDX(rowBatch(), work.head, work.offsetQ + queryOf(work.row0));
    STORE_GRADIENT(dQ, QK_CHUNKS, DROPOUT != 0 ? p.scoreScale * keptScale : p.scoreScale, WIDE_DX, STORE_DQ8, STORE_DQ4)
}
