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
#include "coopmat_extensions.glsl"
#define CONSTANTS_FORWARD
#define CONSTANTS_BACKWARD_COOPMAT
#define CONSTANTS_BACKWARD_RARE
#define CONSTANTS_DROPOUT
#include "constants_coopmat.glsl"
#define CHUNK_OF_HEADS (STORE_DS != 0)
#include "backward_interface.glsl"
#include "dropout.glsl"
#include "backward_dropout.glsl"

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
const uint KEPT_SIZE = M_FRAGS * KV_STEP / 4; // of a subgroup, see backward_fragment_dropout.glsl
// Behind the loop the subgroups' scratch takes the place of the tile. In the loop it is used with OPERANDS_IN_SMEM alone.
const uint SCRATCH_BASE = NV2 == 0 && OPERANDS_IN_SMEM != 0 ? LOOP_SIZE : 0;
const uint SCRATCH_END = SCRATCH_BASE + SCRATCH_TOTAL;
const uint PLACES_BASE = LOOP_SIZE > SCRATCH_END ? LOOP_SIZE : SCRATCH_END;
const uint KEPT_BASE = PLACES_BASE + PLACES_SIZE;
shared uvec4 smem[KEPT_BASE + (DROPOUT != 0 ? SUBGROUPS * KEPT_SIZE : 0)];

#include "backward_score.glsl"
#include "backward_fragments.glsl"
const bool KEYS_ARE_ROWS = true;
#include "backward_fragment_dropout.glsl"
#include "backward_own_rows.glsl"
#include "backward_row_range.glsl"
#include "backward_row_tile.glsl"
#include "backward_scratch.glsl"
#include "backward_non_finite.glsl"
#include "backward_rare_work.glsl"

// Exponent of P, in log2 units, of key i and row j of a fragment: without LSE if scores are modified.
float exponentElement(const in uint32_t i, const in uint32_t j, const in float x, const in uint firstKey, const in uint firstRow) {
    const uint key = firstKey + i, row = firstRow + j;
    if (!attends(row, key)) return MASKED_EXPONENT;
    return SCORE_MOD ? scoreMod(x * p.scoreScale, row, key) * LOG2E : x;
}
float slopeElement(const in uint32_t i, const in uint32_t j, const in float product, const in uint a, const in uint b) {
    return softcapSlope(product * p.scoreScale);
}

void main() {
    const uint tid = gl_LocalInvocationIndex;
    openChunk();
    uint firstKey, extentKeys;
    if (!findKeyTile(WORKGROUP_KEYS, firstKey, extentKeys)) return;
    if (RARE_WORK == 2 && !isMarked()) return;
    if (DROPOUT != 0) openDropout();
    const uint keyInTile = gl_SubgroupID * SUBGROUP_KEYS, keyBase = firstKey + keyInTile; // of the subgroup
    const uint lastKey = max(min(firstKey + WORKGROUP_KEYS, work.seqlenK), firstKey + 1) - 1;
    const float scale2 = p.scoreScale * LOG2E;

    const RowTiles tiles = rowTiles(firstKey, lastKey);
    const Slice qHead = sliceQ(rowBatch(), work.head, work.offsetQ), doHead = sliceDO(rowBatch(), work.head, work.offsetQ);
    uint n = nextRowTile(tiles, 0, firstKey, lastKey);
    uvec4 qVec[Q_VECS], doVec[DO_VECS];
    float statVec[STAT_VALUES];
    if (n < tiles.count) PREFETCH_ROWS(rowTileAt(tiles, n))

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
    const uint maskedEnd = (seen & SEEN_LARGE) != 0 ? tiles.count : tiles.masked;

    FragC dK[M_FRAGS * QK_CHUNKS], dV[M_FRAGS * V_CHUNKS];
    [[unroll]] for (uint i = 0; i < M_FRAGS * QK_CHUNKS; ++i) dK[i] = FragC(0.0);
    [[unroll]] for (uint i = 0; i < M_FRAGS * V_CHUNKS; ++i) dV[i] = FragC(0.0);

#define STAT_AT(which) (STATS_BASE + ((which) * ROW_TILE + first + f % KV_FRAGS * FRAG_N) / 4)
    // The masked loop comes first: behind the unmasked one, its values would push accumulators out of registers there
    // (docs/backward-log.md, 5).
    if (!LEAVES_RARE_WORK)
    [[dont_unroll]] for (; n < maskedEnd;) {
#define MASKED 1
#include "backward_tile_kv.glsl"
#undef MASKED
    }
    [[dont_unroll]] for (; n < tiles.count;) {
#define MASKED 0
#include "backward_tile_kv.glsl"
#undef MASKED
    }

    barrier(); // the tile's shared memory becomes scratch
    const KVRow out_ = KVRow(kvBatch(), work.offsetK + keyBase);
#include "backward_store_keys.glsl"
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
