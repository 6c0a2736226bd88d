#version 460
// Puts the parts together that workgroups left when they shared the keys of a row: states of O and LSE in
// float32, as many for each row as there were parts. Any device, core Vulkan 1.1.
//
// Idea: a workgroup owns one row. Its invocations form groups of as many as a row has columns / 8, each of which has
// a chain of parts (combine_parts.glsl) and asks for the first of them. Then they read one LSE each into shared memory,
// find the largest, turn them into weights, and the groups add up their chains. Barriers: when the LSE are there,
// when the weights are, when the chains' sums are; the first group adds these up in order, so that the bits are the
// same every run. A row that no sequence has keeps a mark in its first LSE and is left alone.
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
#include "constants.glsl"
#include "numeric.glsl"

// 60 bytes, in units as in interface.glsl. BDA=0: storage buffers 0 and 1 are the parts' O and LSE, 3 and 4
// the output's; 2 is nothing.
layout(push_constant, std430) uniform Params {
    uvec2 addrParts;     // float32 [parts, rows, HEAD_DIM_V]
    uvec2 addrPartLSE;   // float32 [parts, rows]
    uvec2 addrO, addrLSE;
    uint strideOBatch, strideOHead, strideOSeq;
    uint parts;          // at most MOST_PARTS; parts * rows < 2^32
    uint rows;           // batches * Hq * Sq
    uint Sq, Hq;
} p;

#include "positions.glsl"
#include "combine_parts.glsl"

const bool IS_16 = DTYPE != TYPE_F32;
#include "tensor_write.glsl"

#if !BDA
layout(set = 0, binding = 0, std430) READ_ONLY buffer WordsParts { uint wordsParts[]; };
layout(set = 0, binding = 0, std430) READ_ONLY buffer QuadsParts { uvec4 quadsParts[]; };
layout(set = 0, binding = 1, std430) READ_ONLY buffer WordsPartLSE { uint wordsPartLSE[]; };
layout(set = 0, binding = 2, std430) READ_ONLY buffer WordsNothing { uint wordsNothing[]; };
#endif

const uint ABSENT = 0xff8a5a5au;           // that of a row that no sequence has, a NaN no arithmetic gives

const uint FIRST_PARTS = 4;                // of its chain that an invocation asks for before it knows what they count

shared float weights[MOST_PARTS];          // LSE first
shared vec4 sums[2 * LOCAL_SIZE];

float lseOf(uint part, uint row) {
    const Slice s = sliceAt(p.addrPartLSE, uvec2(part * p.rows + row, 0), false, 1);
#if BDA
    return uintBitsToFloat(ReadWords(s.word).at[0]);
#else
    return uintBitsToFloat(wordsPartLSE[s.word]);
#endif
}

// Four columns of a part.
vec4 partOf(Slice s, uint col) {
#if BDA
    if (HEAD_DIM_V % 4 == 0) return uintBitsToFloat(ReadQuads(s.word).at[col / 4]);
#else
    if (HEAD_DIM_V % 4 == 0) return uintBitsToFloat(quadsParts[(s.word + col) / 4]);
#endif
    vec4 four = vec4(0.0);
    for (uint i = 0; i < 4; ++i)
        if (col + i < HEAD_DIM_V)
#if BDA
            four[i] = uintBitsToFloat(ReadWords(s.word).at[col + i]);
#else
            four[i] = uintBitsToFloat(wordsParts[s.word + col + i]);
#endif
    return four;
}

// Eight columns of part n of a row.
void loadPart(uint n, uint number, uint col, out vec4 low, out vec4 high) {
    const Slice s = sliceAt(p.addrParts, mul64(n * p.rows + number, HEAD_DIM_V), false, 1);
    low = partOf(s, col);
    high = col + 4 < HEAD_DIM_V ? partOf(s, col + 4) : vec4(0.0);
}

void main() {
    const uint number = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
    if (number >= p.rows) return;
    const uint tid = gl_LocalInvocationIndex, group = tid / OCTETS, col = tid % OCTETS * 8;
    vec4 lows[FIRST_PARTS], highs[FIRST_PARTS];
    [[unroll]] for (uint i = 0; i < FIRST_PARTS; i++)
        if (group < CHAINS && group + i * CHAINS < p.parts) loadPart(group + i * CHAINS, number, col, lows[i], highs[i]);
    for (uint n = tid; n < p.parts; n += LOCAL_SIZE) weights[n] = lseOf(n, number);
    barrier();
    if (floatBitsToUint(weights[0]) == ABSENT) return;
    bool attended = false, invalid = false;
    float most = 0.0;
    for (uint n = 0; n < p.parts; n++) {
        const float lse = weights[n];
        const uint bits = floatBitsToUint(lse);
        invalid = invalid || spoils(bits);
        most = bits == NONE ? most : attended ? max(most, lse) : lse;
        attended = attended || bits != NONE;
    }
    barrier(); // all have read the LSE
    for (uint n = tid; n < p.parts; n += LOCAL_SIZE) weights[n] = partWeight(weights[n], most);
    barrier();
    precise vec4 low = vec4(0.0), high = vec4(0.0);
    if (group < CHAINS && !invalid) {
#define ADD(n, lowPart, highPart)                                                                   \
        {                                                                                           \
            precise const vec4 first = weights[n] * lowPart, second = weights[n] * highPart;        \
            low += first;                                                                           \
            high += second;                                                                         \
        }
        [[unroll]] for (uint i = 0; i < FIRST_PARTS; i++) {
            const uint n = group + i * CHAINS;
            if (n < p.parts && weights[n] != 0.0) ADD(n, lows[i], highs[i]) // else whatever its O holds
        }
        for (uint n = group + FIRST_PARTS * CHAINS; n < p.parts; n += CHAINS) {
            if (weights[n] == 0.0) continue;
            vec4 lowPart, highPart;
            loadPart(n, number, col, lowPart, highPart);
            ADD(n, lowPart, highPart)
        }
    }
    sums[2 * tid] = low;
    sums[2 * tid + 1] = high;
    barrier();
    if (group != 0) return;
    for (uint g = 1; g < min(CHAINS, p.parts); g++) {
        low += sums[2 * (tid + g * OCTETS)];
        high += sums[2 * (tid + g * OCTETS) + 1];
    }
    precise float total = 0.0;
    for (uint n = 0; n < p.parts; n++) total += weights[n];
    float lse = -INFINITY;
    if (invalid) {
        lse = uintBitsToFloat(NOT_A_NUMBER);
        low = high = vec4(lse);
    } else if (attended) {
        low *= overTotal(total);
        high *= overTotal(total);
        lse = most + naturalLog(total);
    }
    const uint heads = number / p.Sq, row = number % p.Sq, batch = heads / p.Hq, head = heads % p.Hq;
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
