#version 460
// Softmax of plain attention over rows of scores in memory, and its backward pass. Core Vulkan, float32 arithmetic.
//
// A workgroup owns a row. Forward replaces S by P: one pass for the row's maximum and sum, one that writes. Backward
// replaces dP by dS = P (dP - sum(P dP)): one pass for the sum, one that writes. Invocations read and write 16 bytes at a
// time; the second pass finds the row in the cache. A row's padding and its masked keys become 0. One barrier for each
// level of the reduction.
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference_uvec2 : require
#define BDA 1
#define ANY_DTYPE
#define READ_ONLY // P is stored over S, dS over dP
#include "constants.glsl"
#define CONSTANTS_PLAIN
#include "constants_other.glsl"
#include "numeric.glsl"
#include "addressing.glsl"

layout(push_constant, std430) uniform Params {
    uvec2 addrP, addrD; // S or P, and dP
    uint rows, stride;  // rows of all heads; elements from one to the next, a multiple of 8
    uint Sq, Sk;
    uint causal;
    int causalOffset;   // row r sees the keys up to r + causalOffset
} p;

const uint WIDTH = DTYPE == TYPE_F32 ? 4 : 8; // elements of a vector
const float LOWEST = -3.402823466e38;
shared vec2 partial[LOCAL_SIZE];

void unpack(uvec4 v, out float x[8]) {
    [[unroll]] for (uint i = 0; i < 4; ++i) {
        if (DTYPE == TYPE_F32) {
            x[i] = uintBitsToFloat(v[i]);
            x[i + 4] = 0.0;
        } else {
            const vec2 pair = decode16x2(v[i]);
            x[2 * i] = pair.x;
            x[2 * i + 1] = pair.y;
        }
    }
}

uvec4 pack(float x[8]) {
    uvec4 v;
    [[unroll]] for (uint i = 0; i < 4; ++i) v[i] = DTYPE == TYPE_F32 ? floatBitsToUint(x[i]) : encode16x2(x[2 * i], x[2 * i + 1]);
    return v;
}

// Maximum and sum of exp(S - maximum) of both.
vec2 join(vec2 a, vec2 b) {
    if (PLAIN_BACKWARD != 0) return a + b;
    const float m = max(a.x, b.x);
    return vec2(m, a.y * exp(a.x - m) + b.y * exp(b.x - m));
}

void main() {
    const uint row = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
    if (row >= p.rows) return; // the whole workgroup
    const uint seen = p.causal != 0 ? uint(clamp(int(row % p.Sq) + p.causalOffset + 1, 0, int(p.Sk))) : p.Sk;
    const bool is16 = DTYPE != TYPE_F32;
    const uvec2 P = sliceAt(p.addrP, mul64(row, p.stride), is16, 8).word, D = sliceAt(p.addrD, mul64(row, p.stride), is16, 8).word;
    const uint vecs = p.stride / WIDTH;
    float x[8], d[8];

    vec2 own = vec2(PLAIN_BACKWARD != 0 ? 0.0 : LOWEST, 0.0);
    for (uint i = gl_LocalInvocationIndex; i * WIDTH < seen; i += LOCAL_SIZE) {
        unpack(ReadQuads(P).at[i], x);
        if (PLAIN_BACKWARD != 0) unpack(ReadQuads(D).at[i], d);
        float most = own.x;
        [[unroll]] for (uint e = 0; e < WIDTH; ++e)
            if (i * WIDTH + e < seen) most = max(most, x[e]);
        float sum = PLAIN_BACKWARD != 0 ? own.y : own.y * exp(own.x - most);
        [[unroll]] for (uint e = 0; e < WIDTH; ++e)
            if (i * WIDTH + e < seen) sum += PLAIN_BACKWARD != 0 ? x[e] * d[e] : exp(x[e] - most);
        own = vec2(PLAIN_BACKWARD != 0 ? 0.0 : most, sum);
    }
    partial[gl_LocalInvocationIndex] = own;
    [[unroll]] for (uint half_ = LOCAL_SIZE / 2; half_ > 0; half_ /= 2) {
        barrier();
        if (gl_LocalInvocationIndex < half_)
            partial[gl_LocalInvocationIndex] = join(partial[gl_LocalInvocationIndex], partial[gl_LocalInvocationIndex + half_]);
    }
    barrier();
    const vec2 all = partial[0];
    const float inverse = 1.0 / all.y;

    for (uint i = gl_LocalInvocationIndex; i < vecs; i += LOCAL_SIZE) {
        [[unroll]] for (uint e = 0; e < 8; ++e) x[e] = d[e] = 0.0;
        if (i * WIDTH < seen) {
            unpack(ReadQuads(P).at[i], x);
            if (PLAIN_BACKWARD != 0) unpack(ReadQuads(D).at[i], d);
        }
        [[unroll]] for (uint e = 0; e < WIDTH; ++e) {
            const float y = PLAIN_BACKWARD != 0 ? x[e] * (d[e] - all.y) : exp(x[e] - all.x) * inverse;
            x[e] = i * WIDTH + e < seen ? y : 0.0;
        }
        if (PLAIN_BACKWARD != 0) WriteQuads(D).at[i] = pack(x);
        else WriteQuads(P).at[i] = pack(x);
    }
}
