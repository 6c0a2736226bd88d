#version 460
// The highest rate at which the device copies memory (COPY 1) or reads it (COPY 0), to which rates of attention are
// compared.
//
// A workgroup owns tiles of LOCAL_SIZE * COPY_VECTORS vectors of 16 bytes; it takes every tile whose index is its own
// modulo the number of workgroups. An invocation loads COPY_VECTORS vectors, LOCAL_SIZE vectors from each other, before it
// stores the first, so that a subgroup's load covers contiguous memory and enough loads are in flight. The last tile may
// end early: its loads repeat the last vector, which nobody stores or adds. No shared memory, no barrier.
//
// A read adds up all words, modulo 2^32, so that a compiler cannot leave a load out. Each invocation stores its sum.
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference_uvec2 : require
#include "constants.glsl"
#define CONSTANTS_COPY
#include "constants_other.glsl"

layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer From { uvec4 at[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) writeonly buffer To { uvec4 at[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) writeonly buffer Sums { uint at[]; };

layout(push_constant, std430) uniform Params {
    uvec2 addrFrom;
    uvec2 addrTo; // of a read: one word an invocation
    uint count;   // vectors, at least 1 and below 2^31
} p;

void main() {
    const uint tile = LOCAL_SIZE * COPY_VECTORS;
    uint sum = 0;
    for (uint first = gl_WorkGroupID.x * tile; first < p.count; first += gl_NumWorkGroups.x * tile) {
        const uint own = first + gl_LocalInvocationIndex;
        uvec4 v[COPY_VECTORS];
        [[unroll]] for (uint i = 0; i < COPY_VECTORS; ++i) v[i] = From(p.addrFrom).at[min(own + i * LOCAL_SIZE, p.count - 1)];
        [[unroll]] for (uint i = 0; i < COPY_VECTORS; ++i) {
            if (own + i * LOCAL_SIZE >= p.count) continue;
#if COPY
            To(p.addrTo).at[own + i * LOCAL_SIZE] = v[i];
#else
            sum += v[i].x + v[i].y + v[i].z + v[i].w;
#endif
        }
    }
#if !COPY
    Sums(p.addrTo).at[gl_WorkGroupID.x * LOCAL_SIZE + gl_LocalInvocationIndex] = sum;
#endif
}
