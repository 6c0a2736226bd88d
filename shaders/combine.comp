#version 460
// Combines splits: partial states, in float32, that workgroups stored when they split the keys of a row. Core Vulkan 1.1.
//
// A workgroup owns one row. Its invocations form groups, one invocation per eight columns; each group adds up one
// chain of splits (split_weights.glsl) in registers.
//   shared memory  row maxima; row sums, then weights; the sums of the chains
//   barriers       when all row sums are stored, when all have read them, when the weights are stored, when the chains are
// The splits of a chain are loaded before the weights are known. The first group adds up the chains in order: the same
// bits every run. A row that no sequence has is marked in the row sum of its first split and is left alone.
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#ifndef BDA
#define BDA 0
#endif
#if BDA
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference_uvec2 : require
#endif
#define ANY_DTYPE
#define CONSTANTS_GENERAL
#include "constants.glsl"
#include "numeric.glsl"

// 80 bytes, units as in interface.glsl. BDA=0: storage buffers 0 and 1 are O and statistics of the splits, 2 the sinks, 3
// and 4 are O and LSE of the output.
layout(push_constant, std430) uniform Params {
    uvec2 addrSplitO;     // float32 [splits, rows, HEAD_DIM_V]
    uvec2 addrSplitStats; // float32 [splits, rows, 2], row max and row sum
    uvec2 addrO, addrLSE;
    uvec2 addrSinks;      // float32 [Hq]
    uint strideOBatch, strideOHead, strideOSeq;
    uint splits;         // at most MAX_SPLITS; splits * rows < 2^32
    uint rows;           // batches * Hq * Sq
    uint Sq, Hq;
    uint naturalScores;  // 1: row maxima are exponents of e, see score_units.glsl
    float unitHigh, unitLow;
} p;

#define NATURAL_SCORES (p.naturalScores != 0)
#include "score_units.glsl"
#include "addressing.glsl"
#include "rounding.glsl"

const bool IS_16 = DTYPE != TYPE_F32;
#include "tensor_write.glsl"

#if !BDA
layout(set = 0, binding = 0, std430) READ_ONLY buffer WordsSplitO { uint wordsSplitO[]; };
layout(set = 0, binding = 0, std430) READ_ONLY buffer QuadsSplitO { uvec4 quadsSplitO[]; };
layout(set = 0, binding = 1, std430) READ_ONLY buffer WordsSplitStats { uint wordsSplitStats[]; };
layout(set = 0, binding = 2, std430) READ_ONLY buffer ArraySinks { uint arraySinks[]; };
uint loadSinks(uint head) { return arraySinks[p.addrSinks.x + head]; }
#else
uint loadSinks(uint head) { return ReadWords(p.addrSinks).at[head]; }
#endif
#include "sinks.glsl"
#include "split_weights.glsl"

const uint NO_SEQUENCE = 0xff8a5a5au;      // row sum of a row that no sequence has: a NaN that arithmetic does not give

const uint PREFETCHED_SPLITS = 4;          // splits of its chain that an invocation loads before it knows their weights

shared float rowMaxima[MAX_SPLITS];
shared float splitWeights[MAX_SPLITS];     // row sums until the maximum is known
shared vec4 sums[2 * LOCAL_SIZE];

// Row max (0) or row sum (1).
float statOf(uint split, uint row, uint word) {
    const Slice s = sliceAt(p.addrSplitStats, add64(mul64(split * p.rows + row, 2), uvec2(word, 0)), false, 1);
#if BDA
    return uintBitsToFloat(ReadWords(s.word).at[0]);
#else
    return uintBitsToFloat(wordsSplitStats[s.word]);
#endif
}

// Four columns of a split.
vec4 loadSplit4(Slice s, uint col) {
#if BDA
    if (HEAD_DIM_V % 4 == 0) return uintBitsToFloat(ReadQuads(s.word).at[col / 4]);
#else
    if (HEAD_DIM_V % 4 == 0) return uintBitsToFloat(quadsSplitO[(s.word + col) / 4]);
#endif
    vec4 four = vec4(0.0);
    for (uint i = 0; i < 4; ++i)
        if (col + i < HEAD_DIM_V)
#if BDA
            four[i] = uintBitsToFloat(ReadWords(s.word).at[col + i]);
#else
            four[i] = uintBitsToFloat(wordsSplitO[s.word + col + i]);
#endif
    return four;
}

// Eight columns of split n of a row.
void loadSplit8(uint n, uint rowIndex, uint col, out vec4 low, out vec4 high) {
    const Slice s = sliceAt(p.addrSplitO, mul64(n * p.rows + rowIndex, HEAD_DIM_V), false, 1);
    low = loadSplit4(s, col);
    high = col + 4 < HEAD_DIM_V ? loadSplit4(s, col + 4) : vec4(0.0);
}

void main() {
    const uint rowIndex = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
    if (rowIndex >= p.rows) return;
    const uint tid = gl_LocalInvocationIndex, group = tid / OCTETS, col = tid % OCTETS * 8;
    vec4 lows[PREFETCHED_SPLITS], highs[PREFETCHED_SPLITS];
    [[unroll]] for (uint i = 0; i < PREFETCHED_SPLITS; i++)
        if (group < CHAINS && group + i * CHAINS < p.splits) loadSplit8(group + i * CHAINS, rowIndex, col, lows[i], highs[i]);
    for (uint n = tid; n < p.splits; n += LOCAL_SIZE) {
        rowMaxima[n] = statOf(n, rowIndex, 0);
        splitWeights[n] = statOf(n, rowIndex, 1);
    }
    barrier();
    if (floatBitsToUint(splitWeights[0]) == NO_SEQUENCE) return;
    bool invalid = false;
    float rowMax = ROW_MAX_INIT; // that of a split without keys
    for (uint n = 0; n < p.splits; n++) {
        invalid = invalid || isNaN(splitWeights[n]);
        rowMax = max(rowMax, rowMaxima[n]);
    }
    barrier(); // all have read the row sums
    for (uint n = tid; n < p.splits; n += LOCAL_SIZE) splitWeights[n] = splitWeight(rowMaxima[n], splitWeights[n], rowMax);
    barrier();
    precise vec4 low = vec4(0.0), high = vec4(0.0);
    if (group < CHAINS && !invalid) {
#define ADD(n, splitLow, splitHigh)                                                                 \
        {                                                                                           \
            precise const vec4 first = splitWeights[n] * splitLow, second = splitWeights[n] * splitHigh; \
            low += first;                                                                           \
            high += second;                                                                         \
        }
        [[unroll]] for (uint i = 0; i < PREFETCHED_SPLITS; i++) {
            const uint n = group + i * CHAINS;
            if (n < p.splits && splitWeights[n] != 0.0) ADD(n, lows[i], highs[i]) // else its O may hold anything
        }
        for (uint n = group + PREFETCHED_SPLITS * CHAINS; n < p.splits; n += CHAINS) {
            if (splitWeights[n] == 0.0) continue;
            vec4 splitLow, splitHigh;
            loadSplit8(n, rowIndex, col, splitLow, splitHigh);
            ADD(n, splitLow, splitHigh)
        }
    }
    sums[2 * tid] = low;
    sums[2 * tid + 1] = high;
    barrier();
    if (group != 0) return;
    for (uint g = 1; g < min(CHAINS, p.splits); g++) {
        low += sums[2 * (tid + g * OCTETS)];
        high += sums[2 * (tid + g * OCTETS) + 1];
    }
    precise float total = 0.0;
    for (uint n = 0; n < p.splits; n++) total += splitWeights[n];
    const uint heads = rowIndex / p.Sq, row = rowIndex % p.Sq, batch = heads / p.Hq, head = heads % p.Hq;
    const float inverse = inverseTotal(head, rowMax, total);
    invalid = invalid || isNaN(inverse);
    low = invalid ? vec4(uintBitsToFloat(NAN_BITS)) : low * inverse;
    high = invalid ? vec4(uintBitsToFloat(NAN_BITS)) : high * inverse;
    const float lse = invalid ? uintBitsToFloat(NAN_BITS) : lseWithSink(head, logSumExp(rowMax, total));
    const Slice s = sliceO(batch, head, row);
    if (IS_16) {
        storeO8(s, 0, col, uvec4(encode16x2(low.x, low.y), encode16x2(low.z, low.w),
                                 encode16x2(high.x, high.y), encode16x2(high.z, high.w)));
    } else {
        storeO4(s, 0, col, low);
        storeO4(s, 0, col + 4, high);
    }
    if (HAS_LSE != 0 && col == 0) storeLSE(batch, head, row, lse);
}
