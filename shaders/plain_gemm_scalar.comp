#version 460
// GEMM of plain attention on any device, float32: C = alpha A B for all heads in one dispatch.
//
// A workgroup of 16 x 16 invocations owns a tile of C. An invocation owns every 16th row and every 16th column of it, in
// registers. A step of PLAIN_TILE_K columns of A and rows of B lies in shared memory, which holds both with the depth as
// the outer dimension. The loads of the next step are issued before the products of this one and stay in registers.
// Two barriers a step.
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference_uvec2 : require
#define BDA 1
#define ANY_DTYPE
#include "constants.glsl"
#define CONSTANTS_PLAIN
#include "constants_other.glsl"
#include "plain_gemm.glsl"

const uint SIDE = 16;
const uint PER_M = PLAIN_TILE_M / SIDE, PER_N = PLAIN_TILE_N / SIDE;
const uint STRIDE_A = PLAIN_TILE_M + 1, STRIDE_B = PLAIN_TILE_N + 1;
const uint LOADS_A = PLAIN_TILE_M * PLAIN_TILE_K / (SIDE * SIDE), LOADS_B = PLAIN_TILE_N * PLAIN_TILE_K / (SIDE * SIDE);
shared float tileA[PLAIN_TILE_K * STRIDE_A];
shared float tileB[PLAIN_TILE_K * STRIDE_B];

float loadElement(uvec2 head, uint row, uint rowStride, uint col) {
    return uintBitsToFloat(ReadWords(rowAddress(head, row, rowStride, false)).at[col]);
}

// Element i of this invocation's loads of a tile: x along the tile, y the depth. Neighbours read contiguous memory.
uvec2 loadAt(uint i, uint tile, bool depthIsContiguous) {
    const uint at = i * SIDE * SIDE + gl_LocalInvocationIndex;
    return depthIsContiguous ? uvec2(at / PLAIN_TILE_K, at % PLAIN_TILE_K) : uvec2(at % tile, at / tile);
}

void main() {
    const uint batch = gl_WorkGroupID.z / p.heads, head = gl_WorkGroupID.z % p.heads;
    const uint firstM = gl_WorkGroupID.y * PLAIN_TILE_M, firstN = gl_WorkGroupID.x * PLAIN_TILE_N;
    const uint x = gl_LocalInvocationIndex % SIDE, y = gl_LocalInvocationIndex / SIDE;
    const uint steps = (p.K + PLAIN_TILE_K - 1) / PLAIN_TILE_K;
    float sums[PER_M * PER_N];
    [[unroll]] for (uint i = 0; i < PER_M * PER_N; ++i) sums[i] = 0.0;
    float nextA[LOADS_A], nextB[LOADS_B];

    for (uint step = 0; step <= steps * p.repeat; ++step) {
        if (step > 0) {
            barrier(); // the products of the step before are done
            [[unroll]] for (uint i = 0; i < LOADS_A; ++i) {
                const uvec2 at = loadAt(i, PLAIN_TILE_M, PLAIN_TRANS_A == 0);
                tileA[at.y * STRIDE_A + at.x] = nextA[i];
            }
            [[unroll]] for (uint i = 0; i < LOADS_B; ++i) {
                const uvec2 at = loadAt(i, PLAIN_TILE_N, PLAIN_TRANS_B != 0);
                tileB[at.y * STRIDE_B + at.x] = nextB[i];
            }
            barrier();
        }
        if (step < steps * p.repeat) {
            const uint from = head * p.repeat + step / steps, k = step % steps * PLAIN_TILE_K;
            const uvec2 A = headAddress(p.addrA, p.batchA, batch, p.headA, from / p.groupA, false);
            const uvec2 B = headAddress(p.addrB, p.batchB, batch, p.headB, from / p.groupB, false);
            [[unroll]] for (uint i = 0; i < LOADS_A; ++i) {
                const uvec2 at = loadAt(i, PLAIN_TILE_M, PLAIN_TRANS_A == 0) + uvec2(firstM, k);
                nextA[i] = 0.0;
                if (at.x < p.M && at.y < p.K)
                    nextA[i] = PLAIN_TRANS_A != 0 ? loadElement(A, at.y, p.rowA, at.x) : loadElement(A, at.x, p.rowA, at.y);
            }
            [[unroll]] for (uint i = 0; i < LOADS_B; ++i) {
                const uvec2 at = loadAt(i, PLAIN_TILE_N, PLAIN_TRANS_B != 0) + uvec2(firstN, k);
                nextB[i] = 0.0;
                if (at.x < p.N && at.y < p.K)
                    nextB[i] = PLAIN_TRANS_B != 0 ? loadElement(B, at.x, p.rowB, at.y) : loadElement(B, at.y, p.rowB, at.x);
            }
        }
        if (step == 0) continue;
        [[dont_unroll]] for (uint k = 0; k < PLAIN_TILE_K; ++k) {
            float a[PER_M], b[PER_N];
            [[unroll]] for (uint i = 0; i < PER_M; ++i) a[i] = tileA[k * STRIDE_A + y + i * SIDE];
            [[unroll]] for (uint j = 0; j < PER_N; ++j) b[j] = tileB[k * STRIDE_B + x + j * SIDE];
            [[unroll]] for (uint i = 0; i < PER_M; ++i)
                [[unroll]] for (uint j = 0; j < PER_N; ++j) sums[i * PER_N + j] = fma(a[i], b[j], sums[i * PER_N + j]);
        }
    }

    const uvec2 C = headAddress(p.addrC, p.batchC, batch, p.headC, head, false);
    [[unroll]] for (uint i = 0; i < PER_M; ++i) {
        const uint row = firstM + y + i * SIDE;
        [[unroll]] for (uint j = 0; j < PER_N; ++j) {
            const uint col = firstN + x + j * SIDE;
            if (row < p.M && col < p.N)
                WriteWords(rowAddress(C, row, p.rowC, false)).at[col] = floatBitsToUint(p.alpha * sums[i * PER_N + j]);
        }
    }
}
