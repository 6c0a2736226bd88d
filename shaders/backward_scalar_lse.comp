#version 460
// Exact row statistics where LSE is large. float32 rounds an LSE of 10,000 by up to 0.0005, and with it every P of the
// row by 0.05 %; forward divides by the row sum and has no such error. delta comes from a rounded O. If the dP of the
// keys are much larger than their differences, delta misses sum of P dP by as much. For row tiles with a large LSE this
// kernel computes
//
//   rest = log(sum of exp(score - LSE)), sink included     delta = sum of P dP
//
// from the scores and dP of all keys, in the arithmetic of the kernels that follow: their P add up to 1. For other tiles
// the rest is 0, delta stays, and the workgroup computes nothing. Core Vulkan 1.1, float32.
//
// A workgroup owns Q_TILE rows, as in the dQ kernel, and loops over their KV tiles. An invocation adds up the P and P dP
// of its own slots in registers. At the end the sums of a row go to shared memory and are added in a fixed order.
#define READ_ONLY readonly // the statistics are read and written
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#define ANY_DTYPE
#define CONSTANTS_SCALAR
#define CONSTANTS_DROPOUT
#define CONSTANTS_MODIFIERS
#include "backward_interface.glsl"

const uint OWN_TILE = Q_TILE, STREAM_TILE = KV_TILE;
const bool OWNS_ROWS = true, LISTED_KEYS = true;
#include "backward_scalar_tile.glsl"

shared uint anyLarge;

float rowSum[OWN], deltaSum[OWN];

RowStats statsWithoutRest(uint row) {
    return RowStats(row < work.rows ? loadStatsAt(rowIndex(row)).x : INFINITY, 0.0, 0.0, 0.0);
}

// Word `word` of a row's pair, of the first pairs or those behind them.
void storeWord(uint row, bool behind, uint word, float value) {
    const uvec2 index = add64(uvec2(behind ? statRows() : 0, 0), uvec2(rowIndex(row), 0));
#if BDA
    WriteWords(add64(p.addrDX, uvec2(index.x << 3, index.y << 3 | index.x >> 29))).at[word] = floatBitsToUint(value);
#else
    wordsDX[p.addrDX.x + 2 * index.x + word] = floatBitsToUint(value);
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

void addTile(uint lastRow) {
    TILE_PRODUCT(S, HEAD_DIM, readQ, readK)
    TILE_PRODUCT(dP, HEAD_DIM_V, readDO, readV)
    if (DROPOUT != 0) findKept();
    const bool masked = tileIsMasked(lastRow);
    [[unroll]] for (uint i = 0; i < OWN; i++)
        [[unroll]] for (uint j = 0; j < STREAM; j++) {
            const uint row = rowOf(i, j), key = keyOf(streamOf(j));
            if (masked && (key == NO_KEY || !attends(row, key))) continue;
            float slope_;
            const float prob = slotP(S[i][j], row, key, statsWithoutRest(row), slope_);
            rowSum[i] += prob;
            if (prob != 0.0) deltaSum[i] += prob * dropped(i, j, dP[i][j]);
        }
}

// The sum of a number of each invocation of row n of the tile, which storeW has stored as its first THREADS_X.
float sumOfRow(uint n) {
    float sum = 0.0;
    [[dont_unroll]] for (uint i = 0; i < THREADS_X; i++) sum += smemW[n * W_ROW + i / 4][i % 4];
    return sum;
}

void main() {
    x = gl_LocalInvocationIndex % THREADS_X;
    y = gl_LocalInvocationIndex / THREADS_X;
    uint extentRows;
    if (!findRowTile(Q_TILE, extentRows) || work.row0 >= work.rows) return;
    if (gl_LocalInvocationIndex == 0) anyLarge = 0;
    barrier();
    [[dont_unroll]] for (uint n = gl_LocalInvocationIndex; n < Q_TILE; n += LOCAL_SIZE)
        if (isLarge(statsWithoutRest(work.row0 + n).lse)) atomicOr(anyLarge, 1);
    barrier();
    if (anyLarge == 0) {
        [[dont_unroll]] for (uint n = gl_LocalInvocationIndex; n < Q_TILE; n += LOCAL_SIZE)
            if (work.row0 + n < work.rows) storeWord(work.row0 + n, true, 0, 0.0);
        return;
    }

    if (DROPOUT != 0) openDropout();
    [[unroll]] for (uint i = 0; i < OWN; i++) rowSum[i] = deltaSum[i] = 0.0;
    openRows(work.row0);
    const uint lastRow = min(work.row0 + Q_TILE, work.rows) - 1;
    const KVRange kv = kvRange(lastRow);
    [[dont_unroll]] for (uint tile = kv.first; tile < kv.last; tile++) {
        firstKey = tile * KV_TILE;
        if (SPARSE_BLOCK_Q != 0 && skipsSparseTile(work.row0, lastRow, firstKey, min(firstKey + KV_TILE, work.seqlenK) - 1)) continue;
        addTile(lastRow);
    }

    [[unroll]] for (uint i = 0; i < OWN; i++) storeW(i, 0, rowSum[i]);
    barrier();
    // Q_TILE is at most LOCAL_SIZE: an invocation per row.
    const uint row = work.row0 + gl_LocalInvocationIndex;
    const bool owns = gl_LocalInvocationIndex < Q_TILE && row < work.rows;
    const float lse = owns ? statsWithoutRest(row).lse : 0.0;
    float sum = 1.0, keys = 0.0; // with the sink, and without
    if (owns) {
        keys = sumOfRow(gl_LocalInvocationIndex);
        sum = keys + sinkP(row, lse);
    }
    barrier();
    [[unroll]] for (uint i = 0; i < OWN; i++) storeW(i, 0, deltaSum[i]);
    barrier();
    if (!owns) return;
    const bool exact = isLarge(lse) && sum > 0.0 && sum < INFINITY;
    storeWord(row, true, 0, exact ? naturalLog(sum) : 0.0);
    if (exact) storeWord(row, false, 1, keys == 0.0 ? 0.0 : sumOfRow(gl_LocalInvocationIndex) / sum);
}
