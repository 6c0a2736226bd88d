#version 460
// The highest rate at which the device computes, to which rates of attention are compared: products of cooperative
// matrices (PRODUCTS 1) or float32 FMAs (PRODUCTS 0) whose operands stay in registers.
//
// Every subgroup owns 8 accumulator fragments, one A fragment and two B fragments; a step adds A B to each accumulator.
// Without PRODUCTS an invocation owns 16 float32 accumulators; a step computes x * sum + y for each. No shared memory, no
// barrier. Registers allow two workgroups of 8 subgroups per multiprocessor and more.
//
// Why the accumulators suffice: a product of 16x16x16 fragments is two HMMA.16816 on NVIDIA. 8 accumulators are 16
// independent HMMA in flight per subgroup, and each scheduler has 4 subgroups. One such instruction takes about 33 clocks,
// and at 628 TFLOP/s (H200) a scheduler starts one every 6. An FMA takes 4 clocks and a scheduler starts one every clock.
//
// Why a compiler cannot leave work out: operands are push constants, accumulators begin with different numbers, float
// sums must not be reordered, and each invocation stores the sum of what it holds. Host code verifies the stored sums.
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference_uvec2 : require
#if PRODUCTS
#define NV2 0
#include "coopmat_extensions.glsl"
#endif
#include "constants.glsl"
#include "constants_peak.glsl"

layout(buffer_reference, std430, buffer_reference_align = 4) writeonly buffer Sums { float at[]; };

layout(push_constant, std430) uniform Params {
    uvec2 addrSums; // one float32 an invocation
    float x, y;     // operands
} p;

#if PRODUCTS
#include "constants_coopmat.glsl"

#ifdef DTYPE_BF16
#define ELEMENT bfloat16_t
#else
#define ELEMENT float16_t
#endif

float compute() {
    // Half of A is x/2, the other half 3x/2: a matrix of one number could be a special case.
    ELEMENT a = ELEMENT(p.x * (0.5 + float(gl_LocalInvocationIndex % 2)));
    coopmat<ELEMENT, gl_ScopeSubgroup, FRAG_M, FRAG_K, gl_MatrixUseA> A = coopmat<ELEMENT, gl_ScopeSubgroup, FRAG_M, FRAG_K, gl_MatrixUseA>(a);
    [[unroll]] for (uint e = 0; e < A.length(); ++e) A[e] = a;
    coopmat<ELEMENT, gl_ScopeSubgroup, FRAG_K, FRAG_N, gl_MatrixUseB> B[2];
    [[unroll]] for (uint i = 0; i < 2; ++i)
        B[i] = coopmat<ELEMENT, gl_ScopeSubgroup, FRAG_K, FRAG_N, gl_MatrixUseB>(ELEMENT(p.y + float(i)));
    coopmat<float, gl_ScopeSubgroup, FRAG_M, FRAG_N, gl_MatrixUseAccumulator> sums[8];
    [[unroll]] for (uint i = 0; i < 8; ++i) sums[i] = coopmat<float, gl_ScopeSubgroup, FRAG_M, FRAG_N, gl_MatrixUseAccumulator>(float(i));
    [[dont_unroll]] for (uint step = 0; step < PEAK_STEPS; ++step)
        [[unroll]] for (uint i = 0; i < 8; ++i) sums[i] = coopMatMulAdd(A, B[i % 2], sums[i]);
    float total = 0.0;
    [[unroll]] for (uint i = 0; i < 8; ++i)
        [[unroll]] for (uint e = 0; e < sums[i].length(); ++e) total += sums[i][e];
    return total;
}
#else
float compute() {
    float sums[16];
    [[unroll]] for (uint i = 0; i < 16; ++i) sums[i] = float(i);
    [[dont_unroll]] for (uint step = 0; step < PEAK_STEPS; step += 8) // 128 FMAs for 3 instructions of the loop
        [[unroll]] for (uint inner = 0; inner < 8; ++inner)
            [[unroll]] for (uint i = 0; i < 16; ++i) sums[i] = fma(sums[i], p.x, p.y);
    float total = 0.0;
    [[unroll]] for (uint i = 0; i < 16; ++i) total += sums[i];
    return total;
}
#endif

void main() {
    if (PEAK_STEPS == 0) return;
    Sums(p.addrSums).at[gl_WorkGroupID.x * LOCAL_SIZE + gl_LocalInvocationIndex] = compute();
}
