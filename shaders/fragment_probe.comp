#version 460
// Reports which lane of a subgroup holds which element of square fragments. Vulkan leaves this open.
// decode_coopmat.comp fills operands from registers where the answer is the order that it assumes
// (decode_fragments.glsl); the backward kernels turn an accumulator into an operand in registers where both have one
// order (backward_fragments.glsl). One subgroup loads a matrix whose elements are their own indices, row by row, as A,
// as B, its first SUM_N columns as B, and as an accumulator, and writes what each lane holds: lane * length + element,
// one matrix after the other. bfloat16 holds the indices up to 256 exactly: a fragment has 16 rows at most.
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_shader_subgroup_basic : require
#ifdef DTYPE_BF16
#extension GL_EXT_bfloat16 : require
#define STORAGE_T bfloat16_t
#else
#define STORAGE_T float16_t
#endif
#extension GL_GOOGLE_include_directive : require
#include "constants.glsl"
#include "constants_coopmat.glsl"
#include "numeric.glsl"

layout(set = 0, binding = 0, std430) buffer Answer { uint answer[]; };

const uint SIZE = FRAG_M;
shared uint matrix[SIZE * SIZE / 2];
shared float matrix32[SIZE * SIZE];

void main() {
    const uint lane = gl_LocalInvocationIndex;
    for (uint i = lane; i < SIZE * SIZE / 2; i += LOCAL_SIZE) matrix[i] = encode16x2(float(2 * i), float(2 * i + 1));
    for (uint i = lane; i < SIZE * SIZE; i += LOCAL_SIZE) matrix32[i] = float(i);
    barrier();
    coopmat<STORAGE_T, gl_ScopeSubgroup, SIZE, SIZE, gl_MatrixUseA> a;
    coopmat<STORAGE_T, gl_ScopeSubgroup, SIZE, SIZE, gl_MatrixUseB> b;
    coopmat<STORAGE_T, gl_ScopeSubgroup, SIZE, SUM_N, gl_MatrixUseB> narrow;
    coopmat<float, gl_ScopeSubgroup, SIZE, SIZE, gl_MatrixUseAccumulator> c;
    coopMatLoad(a, matrix, 0, SIZE / 2, gl_CooperativeMatrixLayoutRowMajor);
    coopMatLoad(b, matrix, 0, SIZE / 2, gl_CooperativeMatrixLayoutRowMajor);
    coopMatLoad(narrow, matrix, 0, SIZE / 2, gl_CooperativeMatrixLayoutRowMajor);
    coopMatLoad(c, matrix32, 0, SIZE, gl_CooperativeMatrixLayoutRowMajor);
    for (uint e = 0; e < a.length(); ++e) answer[lane * a.length() + e] = uint(float(a[e]));
    for (uint e = 0; e < b.length(); ++e) answer[SIZE * SIZE + lane * b.length() + e] = uint(float(b[e]));
    for (uint e = 0; e < narrow.length(); ++e) answer[2 * SIZE * SIZE + lane * narrow.length() + e] = uint(float(narrow[e]));
    for (uint e = 0; e < c.length(); ++e) answer[(2 * SIZE + SUM_N) * SIZE + lane * c.length() + e] = uint(c[e]);
}
