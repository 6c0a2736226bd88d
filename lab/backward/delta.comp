#version 460
// delta = rowsum(dO * O): LANES invocations per row.
#include "lab.glsl"
#extension GL_KHR_shader_subgroup_clustered : require
#extension GL_KHR_shader_subgroup_shuffle : require
layout(binding = 0) readonly buffer Od { uvec4 o[]; };
layout(binding = 1) readonly buffer dOd { uvec4 dO_[]; };
layout(binding = 2) buffer Dd { float delta[]; };
vec2 decode(uint w) {
#ifdef DTYPE_BF16
    return vec2(uintBitsToFloat(w << 16), uintBitsToFloat(w & 0xffff0000u));
#else
    return unpackHalf2x16(w);
#endif
}
void main() {
    const uint vecs = HEAD_DIM_V / 8;
    // vecs is a power of two of at most SUBGROUP_SIZE, or the lane loops alone
    uint lanes = 1;
    if (vecs <= SUBGROUP_SIZE && (vecs & (vecs - 1)) == 0) lanes = vecs;
    const uint row = gl_GlobalInvocationID.x / lanes, lane = gl_GlobalInvocationID.x % lanes;
    const uint rows = p.Sq; // all rows of all heads
    float sum = 0;
    if (row < rows)
        for (uint v = lane; v < vecs; v += lanes) {
            const uvec4 a = o[row * vecs + v], b = dO_[row * vecs + v];
            [[unroll]] for (uint i = 0; i < 4; ++i) {
                const vec2 x = decode(a[i]), y = decode(b[i]);
                sum = fma(x.x, y.x, fma(x.y, y.y, sum));
            }
        }
    for (uint step = 1; step < lanes; step *= 2) sum += subgroupShuffleXor(sum, step);
    if (row < rows && lane == 0) delta[row] = sum;
}
