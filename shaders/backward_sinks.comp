#version 460
// dSinks: the gradient of a head's sink is -exp(sink - LSE) delta, summed over its rows. Core Vulkan 1.1, float32.
//
// A workgroup owns a head, an invocation every LOCAL_SIZE-th row of each sequence. It adds up its rows in registers and
// stores the sum in shared memory; after the one barrier the first invocation adds the sums in their order.
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
#define CONSTANTS_BACKWARD
#include "constants.glsl"
#include "numeric.glsl"

// 56 bytes, units as in backward_interface.glsl. BDA=0: bindings 0 stats, 1 sinks, 2 dSinks, 3 cu_seqlens_q, 4 seqused_q.
layout(push_constant, std430) uniform Params {
    uvec2 addrStats, addrSinks, addrDSinks, addrCuQ, addrUsedQ;
    uint sequences, Sq, Hq, totalQ;
} p;

#include "addressing.glsl"
#include "rounding.glsl"

const uint CU_Q = 1, USED_Q = 2; // bits of VARLEN

#if BDA
uint loadWord(uvec2 address, uint i) { return ReadWords(add64(address, uvec2(i << 2, i >> 30))).at[0]; }
uint loadSink(uint i) { return loadWord(p.addrSinks, i); }
uint loadCuQ(uint i) { return loadWord(p.addrCuQ, i); }
uint loadUsedQ(uint i) { return loadWord(p.addrUsedQ, i); }
vec2 loadStats(uint i) { return uintBitsToFloat(ReadPairs(add64(p.addrStats, uvec2(i << 3, i >> 29))).at[0]); }
void storeDSink(uint i, float value) { WriteWords(p.addrDSinks).at[i] = floatBitsToUint(value); }
#else
layout(set = 0, binding = 0, std430) READ_ONLY buffer Stats { vec2 arrayStats[]; };
layout(set = 0, binding = 1, std430) READ_ONLY buffer Sinks { uint arraySinks[]; };
layout(set = 0, binding = 2, std430) restrict writeonly buffer DSinks { float arrayDSinks[]; };
layout(set = 0, binding = 3, std430) READ_ONLY buffer CuQ { uint arrayCuQ[]; };
layout(set = 0, binding = 4, std430) READ_ONLY buffer UsedQ { uint arrayUsedQ[]; };
uint loadSink(uint i) { return arraySinks[p.addrSinks.x + i]; }
uint loadCuQ(uint i) { return arrayCuQ[p.addrCuQ.x + i]; }
uint loadUsedQ(uint i) { return arrayUsedQ[p.addrUsedQ.x + i]; }
vec2 loadStats(uint i) { return arrayStats[p.addrStats.x + i]; }
void storeDSink(uint i, float value) { arrayDSinks[p.addrDSinks.x + i] = value; }
#endif

uint clampCount(uint number, uint most) { return int(number) < 0 ? 0 : min(number, most); }

shared float partial[LOCAL_SIZE];

void main() {
    const uint head = gl_WorkGroupID.x;
    const float sink = uintBitsToFloat(loadSink(head));
    const uint rows = (VARLEN & CU_Q) != 0 ? p.Hq * p.totalQ : p.sequences * p.Hq * p.Sq;
    float sum = 0.0;
    [[dont_unroll]] for (uint sequence = 0; sequence < p.sequences; sequence++) {
        uint first = (sequence * p.Hq + head) * p.Sq, count = p.Sq;
        if ((VARLEN & CU_Q) != 0) {
            const uint begin = clampCount(loadCuQ(sequence), p.totalQ), end = clampCount(loadCuQ(sequence + 1), p.totalQ);
            first = head * p.totalQ + begin;
            count = min(max(end, begin) - begin, p.Sq);
        }
        if ((VARLEN & USED_Q) != 0) count = clampCount(loadUsedQ(sequence), count);
        [[dont_unroll]] for (uint row = gl_LocalInvocationIndex; row < count; row += LOCAL_SIZE) {
            const vec2 stats = loadStats(first + row), more = loadStats(rows + first + row);
            const float exponent = sink - stats.x - more.x;
            const float prob = isNaN(exponent) ? exponent : exp2(exponent * 1.4426950408889634);
            if (prob != 0.0) sum -= prob * (stats.y - more.y); // delta of a row with weight 0 may be NaN
        }
    }
    partial[gl_LocalInvocationIndex] = sum;
    barrier();
    if (gl_LocalInvocationIndex != 0) return;
    float all = 0.0;
    [[dont_unroll]] for (uint i = 0; i < LOCAL_SIZE; i++) all += partial[i];
    storeDSink(head, all);
}
