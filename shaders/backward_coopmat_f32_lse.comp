#version 460
// Exact row statistics of float32 where LSE is large, on cooperative matrices (tiers coopmat and coopmat2), as
// backward_scalar_lse.comp explains:
//
//   rest = log(sum of exp(score - LSE))     delta = sum of P dP
//
// from the same scores and dP that backward_coopmat_f32_kv.comp computes, by the same products in the same order.
//
// A workgroup owns ROW_TILE rows and returns at once if none has a large LSE. Otherwise the pairs of subgroups divide the keys,
// as in that kernel, and all tiles are masked. Few calls have such rows: nothing is prefetched.
//   registers      the terms of K or V of SUBGROUP_KEYS keys; sums of P or of P dP
//   shared memory  the terms of the rows of Q and dO; P
//   barriers       two per step of the pairs over the keys: when P is complete, and when it is read
#define READ_ONLY readonly // the statistics are read and written
#extension GL_GOOGLE_include_directive : require
#define CONSTANTS_FORWARD
#define CONSTANTS_BACKWARD_COOPMAT
#define CONSTANTS_DROPOUT
#define CONSTANTS_F32
#include "constants_coopmat.glsl"
#include "backward_interface.glsl"
#include "fragments.glsl"
#include "f32_terms.glsl"
#define SCRATCH_IN_LOOP 1
#define PAIRS_OF_SUBGROUPS
#include "backward_f32_fragments.glsl"
#include "backward_f32_rows.glsl"

uint kvBatch() { return work.batch; }

// Word `word` of a row's pair, of the first pairs or those behind them.
void storeWord(uint row, bool behind, uint word, float value) {
    const uvec2 index = add64(uvec2(behind ? statRows() : 0, 0), uvec2(rowIndex(row), 0));
#if BDA
    WriteWords(add64(p.addrDX, uvec2(index.x << 3, index.y << 3 | index.x >> 29))).at[word] = floatBitsToUint(value);
#else
    wordsDX[p.addrDX.x + 2 * index.x + word] = floatBitsToUint(value);
#endif
}

// The sum of column `row` of the fragments that the subgroups of a pair's first or second half have left in the exchange.
float sumOfRow(uint half_, uint row) {
    float sum = 0.0;
    [[dont_unroll]] for (uint i = 0; i < PAIRS; ++i) sum += uintBitsToFloat(smem[EXCHANGE_BASE + (half_ * PAIRS + i) * ROW_TILE / 4 + row / 4][row % 4]);
    return sum;
}

void main() {
    const uint tid = gl_LocalInvocationIndex;
    uint extentRows;
    if (!findRowTile(ROW_TILE, extentRows) || work.row0 >= work.rows) return;
    if (tid == 0) seen = 0;
    storePlaces();
    barrier();
    const uint row0 = work.row0;
    if (tid < ROW_TILE && row0 + tid < work.rows && isLarge(loadStatsAt(rowIndex(row0 + tid)).x)) atomicOr(seen, SEEN_LARGE);
    barrier();
    if (seen == 0) return;

    const Slice qHead = sliceQ(rowBatch(), work.head, work.offsetQ), doHead = sliceDO(rowBatch(), work.head, work.offsetQ);
    uvec4 tileVec[3 * TILE_VECS];
    float statVec[3];
    PREFETCH_ROWS(row0 / ROW_TILE)
    SPLIT_ROWS(0)
    STORE_ROWS
    barrier();

    FragC sum[M_FRAGS * ROW_FRAGS];
    [[unroll]] for (uint f = 0; f < M_FRAGS * ROW_FRAGS; ++f) sum[f] = FragC(0.0);
    const uint firstBase = isSecond() ? DO_BASE : 0;
    const uint end = visibleEnd(min(row0 + ROW_TILE, work.rows) - 1);
    [[dont_unroll]] for (uint firstKey = 0; firstKey < end; firstKey += WORKGROUP_KEYS) {
        const uint keyBase = firstKey + pairOfSubgroup() * SUBGROUP_KEYS;
        LOAD_OWN_KEYS
        subgroupSync(); // chunks of the keys may stay in shared memory
        multiplyOwn(firstBase);
        if (!isSecond()) {
            COMPUTE_P(true, keyBase, row0)
            [[unroll]] for (uint f = 0; f < M_FRAGS * ROW_FRAGS; ++f) sum[f] += X[f];
        }
        barrier(); // P is complete
        if (isSecond()) {
            [[unroll]] for (uint f = 0; f < M_FRAGS * ROW_FRAGS; ++f) {
                FragC prob;
                LOAD_ELEMENTS(prob, exchangeAt(f))
                [[unroll]] for (uint e = 0; e < X[f].length(); ++e) sum[f][e] += prob[e] == 0.0 ? 0.0 : prob[e] * X[f][e];
            }
        }
        barrier(); // P is read
    }

    // Sums over the keys: of a subgroup in scratch, of all subgroups in the exchange.
    [[unroll]] for (uint f = 0; f < M_FRAGS * ROW_FRAGS; ++f) {
        fragmentToScratch(sum[f]);
        [[dont_unroll]] for (uint i = gl_SubgroupInvocationID; i < FRAG_N; i += SUBGROUP_SIZE) {
            const uint row = f % ROW_FRAGS * FRAG_N + i, at = EXCHANGE_BASE + gl_SubgroupID * ROW_TILE / 4 + row / 4;
            float all = f < ROW_FRAGS ? 0.0 : uintBitsToFloat(smem[at][row % 4]);
            [[dont_unroll]] for (uint key = 0; key < FRAG_M; ++key) all += loadScratch(key, i);
            smem[at][row % 4] = floatBitsToUint(all);
        }
    }
    barrier();
    if (tid >= ROW_TILE || row0 + tid >= work.rows) return;
    const float lse = loadStatsAt(rowIndex(row0 + tid)).x, all = sumOfRow(0, tid);
    if (IS_FAR_LSE(lse)) {
        storeWord(row0 + tid, true, 0, uintBitsToFloat(NAN_BITS));
    } else if (isLarge(lse) && all > 0.0 && all < INFINITY) {
        storeWord(row0 + tid, true, 0, naturalLog(all));
        storeWord(row0 + tid, false, 1, sumOfRow(1, tid) / all);
    }
}
