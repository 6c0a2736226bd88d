#version 460
// What float32 rounds off LSE, on cooperative matrices (tiers coopmat and coopmat2): for every row with a large LSE
//
//   rest = log(sum of exp(score - LSE)), sink included
//
// from the same scores that the kernels of dQ and of dK and dV compute (backward_fragments.glsl). With it the P of
// these kernels add up to 1.
//
// A workgroup owns WORKGROUP_ROWS rows, as in the dQ kernel, and returns at once if none has a large LSE. Otherwise it
// loops over the KV tiles, masks all of them, and adds up P in fragments. Few calls have such rows: nothing is
// prefetched.
//   registers      Q, -LSE (in log2 units), sums of P
//   shared memory  the K tile; before it -LSE of the rows, after it the sums of P
//   barriers       two per KV tile, before and after it is stored to shared memory
#define READ_ONLY readonly // the statistics are read and written
#extension GL_GOOGLE_include_directive : require
#define CONSTANTS_FORWARD
#define CONSTANTS_BACKWARD_COOPMAT
#define CONSTANTS_MODIFIERS
#include "constants_coopmat.glsl"
#include "backward_interface.glsl"

const uint SUBGROUPS = LOCAL_SIZE / SUBGROUP_SIZE;
const uint SUBGROUP_ROWS = M_FRAGS * FRAG_M;
const uint WORKGROUP_ROWS = SUBGROUPS * SUBGROUP_ROWS;
const uint QK_CHUNKS = (HEAD_DIM + FRAG_K - 1) / FRAG_K;

// Shared memory, in vectors of 16 bytes. The stride is odd: rows start in different banks.
const uint K_ROW_VECS = QK_CHUNKS * FRAG_K / 8;
const uint K_STRIDE = K_ROW_VECS | 1;
const uint K_SIZE = KV_TILE * K_STRIDE;
const uint STATS_SIZE = WORKGROUP_ROWS / 4;
const uint OWN_SIZE = SUBGROUPS * FRAG_M * (FRAG_K / 8 + 1); // the least that backward_own_rows.glsl needs
const uint OTHER_SIZE = STATS_SIZE > OWN_SIZE ? STATS_SIZE : OWN_SIZE;
const uint TILE_SIZE = K_SIZE > OTHER_SIZE ? K_SIZE : OTHER_SIZE;
const uint SCRATCH_TOTAL = SUBGROUPS * FRAG_M * ((FRAG_N / 4) | 1);
const uint SCRATCH_BASE = 0; // behind the loop
const uint PLACES_BASE = TILE_SIZE > SCRATCH_TOTAL ? TILE_SIZE : SCRATCH_TOTAL;
shared uvec4 smem[PLACES_BASE + PLACES_SIZE];

#include "backward_fragments.glsl"
#include "backward_own_rows.glsl"

// As in backward_coopmat_q.comp.
float exponentElement(const in uint32_t i, const in uint32_t j, const in float x, const in uint firstRow, const in uint firstKey) {
    const uint row = firstRow + i, key = firstKey + j;
    if (!attends(row, key)) return MASKED_EXPONENT;
    return SCORE_MOD ? scoreMod(x * p.scoreScale, row, key) * LOG2E : x;
}

void storeRest(uint row, float rest) {
    const uvec2 index = add64(uvec2(statRows(), 0), uvec2(rowIndex(row), 0));
#if BDA
    WriteWords(add64(p.addrDX, uvec2(index.x << 3, index.y << 3 | index.x >> 29))).at[0] = floatBitsToUint(rest);
#else
    wordsDX[p.addrDX.x + 2 * index.x] = floatBitsToUint(rest);
#endif
}

// exp(sink - LSE) of a row.
float sinkP(uint row, float lse) {
    if (SINKS == 0) return 0.0;
#if BDA
    const uint bits = ReadWords(p.addrDV).at[headOf(row)];
#else
    const uint bits = wordsDV[p.addrDV.x + headOf(row)];
#endif
    return exp2((uintBitsToFloat(bits) - lse) * LOG2E);
}

void main() {
    const uint tid = gl_LocalInvocationIndex;
    uint extentRows;
    if (!findRowTile(WORKGROUP_ROWS, extentRows) || work.row0 >= work.rows) return;
    const uint rowInTile = gl_SubgroupID * SUBGROUP_ROWS, rowBase = work.row0 + rowInTile; // of the subgroup
    const uint lastRow = min(work.row0 + WORKGROUP_ROWS, work.rows) - 1;
    const uint subgroupLast = max(min(rowBase + SUBGROUP_ROWS, work.rows), rowBase + 1) - 1;
    const float scale2 = p.scoreScale * LOG2E;

    if (tid == 0) seen = 0;
    storePlaces();
    barrier();
    [[dont_unroll]] for (uint at = tid; at < WORKGROUP_ROWS; at += LOCAL_SIZE) {
        const float lse = work.row0 + at < work.rows ? loadStatsAt(rowIndex(work.row0 + at)).x : INFINITY;
        if (isLarge(lse)) atomicOr(seen, SEEN_LARGE);
        smem[at / 4][at % 4] = floatBitsToUint(-toLog2(lse));
    }
    barrier();
    if (seen == 0) return;

    FragC negLSE[M_FRAGS], sum[M_FRAGS];
    [[unroll]] for (uint r = 0; r < M_FRAGS; ++r) {
        coopMatLoad(negLSE[r], smem, (rowInTile + r * FRAG_M) / 4, 0, COLUMN_MAJOR);
        sum[r] = FragC(0.0);
    }
    barrier();
    FragA Q[M_FRAGS * QK_CHUNKS];
    {
        const Slice qRows = sliceQ(rowBatch(), work.head, work.offsetQ + queryOf(work.row0));
#define LOAD_OWN_Q(row, col) rowBase + (row) < work.rows                                            \
        ? load8Q(qRows, rowElement(rowBase + (row), p.strideQHead, p.strideQSeq) + (col), elementsFromQ(col)) : uvec4(0)
        LOAD_OWN(qVec, QK_CHUNKS, LOAD_OWN_Q)
        OWN_FRAGMENTS(Q, qVec, QK_CHUNKS, 0, 0)
    }

    const uint batch = (VARLEN & CU_K) != 0 ? 0 : work.batch;
    const KVRange kv = kvRange(lastRow);
    [[dont_unroll]] for (uint n = nextKVTile(kv, 0, lastRow); n < kv.last - kv.first; n = nextKVTile(kv, n + 1, lastRow)) {
        const uint firstKey = kvTileAt(kv, n) * KV_TILE;
        const Slice kRows = sliceK(batch, work.kvHead, work.offsetK + firstKey);
        barrier(); // all subgroups have finished the last tile
        [[dont_unroll]] for (uint at = tid; at < KV_TILE * K_ROW_VECS; at += LOCAL_SIZE) {
            const uint key = at / K_ROW_VECS, vec = at % K_ROW_VECS;
            smem[key * K_STRIDE + vec] = firstKey + key < work.seqlenK ? loadK8(kRows, key, vec * 8) : uvec4(0);
        }
        barrier(); // the tile is complete
        if (firstKey < visibleEnd(subgroupLast) && firstKey + KV_TILE > visibleStart(rowBase))
        [[dont_unroll]] for (uint first = 0; first < KV_TILE; first += KV_STEP) {
            FragC S[M_FRAGS * KV_FRAGS];
            [[unroll]] for (uint f = 0; f < M_FRAGS * KV_FRAGS; ++f) S[f] = FragC(0.0);
            MULTIPLY_OWN(S, Q, QK_CHUNKS, 0, 0, first * K_STRIDE, K_STRIDE)
            [[unroll]] for (uint f = 0; f < M_FRAGS * KV_FRAGS; ++f) {
                if (!SCORE_MOD) {
                    [[unroll]] for (uint e = 0; e < S[f].length(); ++e) S[f][e] = fma(S[f][e], scale2, negLSE[f / KV_FRAGS][e]);
                }
                PER_ELEMENT(S[f], exponentElement, rowBase + f / KV_FRAGS * FRAG_M, firstKey + first + f % KV_FRAGS * FRAG_N)
                [[unroll]] for (uint e = 0; e < S[f].length(); ++e) {
                    if (SCORE_MOD && S[f][e] != MASKED_EXPONENT) S[f][e] += negLSE[f / KV_FRAGS][e];
                    sum[f / KV_FRAGS][e] += exp2(S[f][e]);
                }
            }
        }
    }

    barrier();
    [[unroll]] for (uint r = 0; r < M_FRAGS; ++r) {
        fragmentToScratch(sum[r]);
        [[dont_unroll]] for (uint i = gl_SubgroupInvocationID; i < FRAG_M; i += SUBGROUP_SIZE) {
            const uint row = rowBase + r * FRAG_M + i;
            if (row >= work.rows) continue;
            const float lse = loadStatsAt(rowIndex(row)).x;
            float all = 0.0;
            [[dont_unroll]] for (uint j = 0; j < FRAG_N; ++j) all += loadScratch(i, j);
            const float sink = sinkP(row, lse), keys = all;
            all += sink;
            // A far LSE that is the sink's leaves the keys nothing, and needs no product near it.
            if (IS_FAR_LSE(lse) && (keys != 0.0 || sink == 0.0)) storeRest(row, uintBitsToFloat(NAN_BITS));
            else if (isLarge(lse) && all > 0.0 && all < INFINITY) storeRest(row, naturalLog(all));
        }
    }
}
