#version 460
// The highest rate at which the device computes, to which rates of attention are compared: products of cooperative
// matrices (PRODUCTS 1) or float32 FMAs (PRODUCTS 0) whose operands stay in registers.
//
// Every subgroup owns 8 accumulator fragments, PEAK_A fragments A and PEAK_B fragments B; a step adds a product A B to each
// accumulator. Without PRODUCTS an invocation owns 16 float32 accumulators; a step computes x * sum + y for each. No shared
// memory, no barrier. The host times several numbers of fragments and sizes of workgroups and takes the fastest.
//
// Why a compiler cannot leave work out: operands come from push constants, accumulators begin with different numbers,
// float sums must not be reordered, and each invocation stores the sum of what it holds. Host code verifies the stored
// sums. A matrix instruction multiplies and adds at once, so that nothing of it is the same in two steps. A driver without
// such instructions multiplies element by element: with operands that no step changes, lavapipe computed the products once.
// There PEAK_CHANGE makes both A new in every step, no two accumulators share a pair (2 A, 4 B), and the elements of B
// differ. On a GPU that costs 12 more instructions for 16 HMMA and a wait for the new A.
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference_uvec2 : require
#include "constants.glsl"
#define CONSTANTS_PEAK
#include "constants_other.glsl"

layout(buffer_reference, std430, buffer_reference_align = 4) writeonly buffer Sums { float at[]; };

layout(push_constant, std430) uniform Params {
    uvec2 addrSums; // one float32 an invocation
    float x, y;     // operands
} p;

#if PRODUCTS
#define NV2 0
#include "constants_coopmat.glsl"

#ifdef DTYPE_BF16
#define ELEMENT bfloat16_t
#else
#define ELEMENT float16_t
#endif

#define MATRIX_A coopmat<ELEMENT, gl_ScopeSubgroup, FRAG_M, FRAG_K, gl_MatrixUseA>
#define MATRIX_B coopmat<ELEMENT, gl_ScopeSubgroup, FRAG_K, FRAG_N, gl_MatrixUseB>
#define MATRIX_C coopmat<float, gl_ScopeSubgroup, FRAG_M, FRAG_N, gl_MatrixUseAccumulator>

float compute() {
    MATRIX_A A[PEAK_A];
    [[unroll]] for (uint m = 0; m < PEAK_A; ++m) A[m] = MATRIX_A(ELEMENT(p.x * float(m + 1)));
    // The elements of B[n] that an invocation holds differ by 1/8, and their mean is (n + 1) y. Values are multiples of
    // 1/16 below 8, exact in f16 and bf16.
    MATRIX_B B[PEAK_B];
    [[unroll]] for (uint n = 0; n < PEAK_B; ++n) {
        B[n] = MATRIX_B(ELEMENT(0.0));
        [[unroll]] for (uint e = 0; e < B[n].length(); ++e)
            B[n][e] = ELEMENT(p.y * float(n + 1) + float(2 * int(e) + 1 - int(B[n].length())) / 16.0);
    }
    MATRIX_C sums[8];
    [[unroll]] for (uint i = 0; i < 8; ++i) sums[i] = MATRIX_C(float(i));
    float a = p.x;
    [[dont_unroll]] for (uint turn = 0; turn < PEAK_STEPS; turn += PEAK_UNROLL)
        [[unroll]] for (uint step = 0; step < PEAK_UNROLL; ++step) {
            if (PEAK_CHANGE != 0) {
                a = 3.0 * p.x - a; // 2x, x, 2x, x
                A[0] = MATRIX_A(ELEMENT(a));
                A[PEAK_A - 1] = MATRIX_A(ELEMENT(3.0 * p.x - a));
            }
            [[unroll]] for (uint i = 0; i < 8; ++i) sums[i] = coopMatMulAdd(A[i * PEAK_A / 8], B[i % PEAK_B], sums[i]);
        }
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
