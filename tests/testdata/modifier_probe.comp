#version 450
// Calls scoreExpr, slopeExpr and maskExpr, whose bodies score.Rewrite replaces, with the slots of an array. Compiled with shaderc
// 2026.4: glslc -O0 --target-env=vulkan1.1 modifier_probe.comp -o modifier_probe.spv
layout(local_size_x = 64) in;
struct Slot { float s; int b, h, hkv, i, j, row, sq, sk; };
layout(set = 0, binding = 0, std430) readonly buffer Slots { Slot slots[]; };
layout(set = 0, binding = 1, std430) buffer Results { uvec4 results[]; };
layout(set = 0, binding = 2, std430) readonly buffer Params { ivec4 tables[4]; };
float scoreExpr(const float s, const int b, const int h, const int hkv, const int i, const int j, const int row,
                const int sq, const int sk) { return s; }
bool maskExpr(const int b, const int h, const int hkv, const int i, const int j, const int row, const int sq,
              const int sk) { return true; }
float slopeExpr(const int b, const int h, const int hkv, const int i, const int j, const int row, const int sq, const int sk,
                const float s) { return 1.0; }
void main() {
    const uint n = gl_GlobalInvocationID.x;
    if (n >= results.length()) return;
    const Slot a = slots[n];
    const float x = scoreExpr(a.s, a.b, a.h, a.hkv, a.i, a.j, a.row, a.sq, a.sk);
    const bool yes = maskExpr(a.b, a.h, a.hkv, a.i, a.j, a.row, a.sq, a.sk);
    const float slope = slopeExpr(a.b, a.h, a.hkv, a.i, a.j, a.row, a.sq, a.sk, a.s);
    results[n] = uvec4(floatBitsToUint(x) + uint(tables[0].x) * 0u, yes ? 1u : 0u, floatBitsToUint(slope), 0u);
}
