#version 460
// GEMM of plain attention on cooperative matrices, f16 or bf16 with float32 sums: C = alpha A B for all heads in one
// dispatch.
//
// A workgroup owns a tile of C, each of its subgroups a rectangle of fragments of it, in registers. A step of
// PLAIN_TILE_K columns of A and rows of B lies in shared memory as it lies in memory: a transposed operand is transposed
// by the load of its fragments. Rows are padded by 16 bytes against bank conflicts. The loads of the next step, 16 bytes
// per invocation each, are issued before the products of this one and stay in registers. Two barriers a step. At the
// end each fragment passes through shared memory as float32 and is stored 16 bytes per lane.
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference_uvec2 : require
#define BDA 1
#define NV2 0
#include "constants.glsl"
#include "constants_coopmat.glsl"
#define CONSTANTS_PLAIN
#include "constants_other.glsl"
#include "numeric.glsl"
#include "plain_gemm.glsl"

#ifdef DTYPE_BF16
#define ELEMENT bfloat16_t
#else
#define ELEMENT float16_t
#endif
#define ROW_MAJOR gl_CooperativeMatrixLayoutRowMajor
#define COLUMN_MAJOR gl_CooperativeMatrixLayoutColumnMajor

const uint SUBGROUPS = PLAIN_SUBGROUPS_M * PLAIN_SUBGROUPS_N;
const uint WORKERS = SUBGROUPS * SUBGROUP_SIZE;
const uint FRAGS_M = PLAIN_TILE_M / PLAIN_SUBGROUPS_M / FRAG_M, FRAGS_N = PLAIN_TILE_N / PLAIN_SUBGROUPS_N / FRAG_N;
// Rows of the tiles as they lie in memory, and vectors of 8 elements in a row.
const uint ROWS_A = PLAIN_TRANS_A != 0 ? PLAIN_TILE_K : PLAIN_TILE_M, VECS_A = (PLAIN_TRANS_A != 0 ? PLAIN_TILE_M : PLAIN_TILE_K) / 8;
const uint ROWS_B = PLAIN_TRANS_B != 0 ? PLAIN_TILE_N : PLAIN_TILE_K, VECS_B = (PLAIN_TRANS_B != 0 ? PLAIN_TILE_K : PLAIN_TILE_N) / 8;
const uint STRIDE_A = VECS_A + 1, STRIDE_B = VECS_B + 1;
const uint LOADS_A = (ROWS_A * VECS_A + WORKERS - 1) / WORKERS, LOADS_B = (ROWS_B * VECS_B + WORKERS - 1) / WORKERS;
const uint BASE_B = ROWS_A * STRIDE_A;
const uint TILES = BASE_B + ROWS_B * STRIDE_B;
const uint FRAG_VECS = FRAG_M * FRAG_N / 4; // of a fragment as float32
const uint SMEM = TILES > SUBGROUPS * FRAG_VECS ? TILES : SUBGROUPS * FRAG_VECS;
shared uvec4 smem[SMEM];

// Loads of a step. A position past the end of a row or of the rows is zero.
#define LOAD_STEP(next, loads, vecs, rows, address, stride, firstRow, firstCol, endRow, endCol)     \
    [[unroll]] for (uint i = 0; i < loads; ++i) {                                                   \
        const uint at = i * WORKERS + gl_LocalInvocationIndex;                                      \
        const uint row = (firstRow) + at / vecs, col = (firstCol) + at % vecs * 8;                  \
        next[i] = uvec4(0);                                                                         \
        if (at < rows * vecs && row < (endRow) && col < (endCol))                                   \
            next[i] = ReadQuads(rowAddress(address, row, stride, true)).at[col / 8];                \
    }
#define STORE_STEP(next, loads, vecs, rows, base, stride)                                           \
    [[unroll]] for (uint i = 0; i < loads; ++i) {                                                   \
        const uint at = i * WORKERS + gl_LocalInvocationIndex;                                      \
        if (at < rows * vecs) smem[(base) + at / vecs * stride + at % vecs] = next[i];              \
    }

uint pack(float x, float y) {
#ifdef DTYPE_BF16
    return encode16x2(x, y);
#else
    return packFloat2x16(f16vec2(x, y));
#endif
}

void subgroupSync() {
    controlBarrier(gl_ScopeSubgroup, gl_ScopeSubgroup, gl_StorageSemanticsShared, gl_SemanticsAcquireRelease);
}

void main() {
    const uint batch = gl_WorkGroupID.z / p.heads, head = gl_WorkGroupID.z % p.heads;
    const uint firstM = gl_WorkGroupID.y * PLAIN_TILE_M, firstN = gl_WorkGroupID.x * PLAIN_TILE_N;
    const uint ownM = gl_SubgroupID / PLAIN_SUBGROUPS_N * FRAGS_M * FRAG_M, ownN = gl_SubgroupID % PLAIN_SUBGROUPS_N * FRAGS_N * FRAG_N;
    const uint steps = (p.K + PLAIN_TILE_K - 1) / PLAIN_TILE_K;
    coopmat<float, gl_ScopeSubgroup, FRAG_M, FRAG_N, gl_MatrixUseAccumulator> sums[FRAGS_M * FRAGS_N];
    [[unroll]] for (uint i = 0; i < FRAGS_M * FRAGS_N; ++i)
        sums[i] = coopmat<float, gl_ScopeSubgroup, FRAG_M, FRAG_N, gl_MatrixUseAccumulator>(0.0);
    uvec4 nextA[LOADS_A], nextB[LOADS_B];

    [[dont_unroll]] for (uint step = 0; step <= steps * p.repeat; ++step) {
        if (step > 0) {
            barrier(); // the products of the step before are done
            STORE_STEP(nextA, LOADS_A, VECS_A, ROWS_A, 0, STRIDE_A)
            STORE_STEP(nextB, LOADS_B, VECS_B, ROWS_B, BASE_B, STRIDE_B)
            barrier();
        }
        if (step < steps * p.repeat) {
            const uint from = head * p.repeat + step / steps, k = step % steps * PLAIN_TILE_K;
            const uvec2 A = headAddress(p.addrA, p.batchA, batch, p.headA, from / p.groupA, true);
            const uvec2 B = headAddress(p.addrB, p.batchB, batch, p.headB, from / p.groupB, true);
            if (PLAIN_TRANS_A != 0) LOAD_STEP(nextA, LOADS_A, VECS_A, ROWS_A, A, p.rowA, k, firstM, p.K, p.M)
            else LOAD_STEP(nextA, LOADS_A, VECS_A, ROWS_A, A, p.rowA, firstM, k, p.M, p.K)
            if (PLAIN_TRANS_B != 0) LOAD_STEP(nextB, LOADS_B, VECS_B, ROWS_B, B, p.rowB, firstN, k, p.N, p.K)
            else LOAD_STEP(nextB, LOADS_B, VECS_B, ROWS_B, B, p.rowB, k, firstN, p.K, p.N)
        }
        if (step == 0) continue;
        [[unroll]] for (uint k = 0; k < PLAIN_TILE_K; k += FRAG_K) {
            coopmat<ELEMENT, gl_ScopeSubgroup, FRAG_M, FRAG_K, gl_MatrixUseA> a[FRAGS_M];
            [[unroll]] for (uint i = 0; i < FRAGS_M; ++i) {
                const uint m = ownM + i * FRAG_M;
                if (PLAIN_TRANS_A != 0) coopMatLoad(a[i], smem, k * STRIDE_A + m / 8, STRIDE_A, COLUMN_MAJOR);
                else coopMatLoad(a[i], smem, m * STRIDE_A + k / 8, STRIDE_A, ROW_MAJOR);
            }
            [[unroll]] for (uint j = 0; j < FRAGS_N; ++j) {
                const uint n = ownN + j * FRAG_N;
                coopmat<ELEMENT, gl_ScopeSubgroup, FRAG_K, FRAG_N, gl_MatrixUseB> b;
                if (PLAIN_TRANS_B != 0) coopMatLoad(b, smem, BASE_B + n * STRIDE_B + k / 8, STRIDE_B, COLUMN_MAJOR);
                else coopMatLoad(b, smem, BASE_B + k * STRIDE_B + n / 8, STRIDE_B, ROW_MAJOR);
                [[unroll]] for (uint i = 0; i < FRAGS_M; ++i) sums[i * FRAGS_N + j] = coopMatMulAdd(a[i], b, sums[i * FRAGS_N + j]);
            }
        }
    }

    barrier(); // from here on fragments use the shared memory of the tiles
    const uvec2 C = headAddress(p.addrC, p.batchC, batch, p.headC, head, true);
    const uint base = gl_SubgroupID * FRAG_VECS;
    [[unroll]] for (uint i = 0; i < FRAGS_M * FRAGS_N; ++i) {
        subgroupSync();
        coopMatStore(sums[i], smem, base, FRAG_N / 4, ROW_MAJOR);
        subgroupSync();
        for (uint at = gl_SubgroupInvocationID; at < FRAG_M * FRAG_N / 8; at += SUBGROUP_SIZE) {
            const uint row = firstM + ownM + i / FRAGS_N * FRAG_M + at / (FRAG_N / 8);
            const uint col = firstN + ownN + i % FRAGS_N * FRAG_N + at % (FRAG_N / 8) * 8;
            if (row >= p.M || col >= p.N) continue; // the last vector of a row of S has its padding, which is 0
            const vec4 low = p.alpha * uintBitsToFloat(smem[base + 2 * at]), high = p.alpha * uintBitsToFloat(smem[base + 2 * at + 1]);
            WriteQuads(rowAddress(C, row, p.rowC, true)).at[col / 8] = uvec4(pack(low.x, low.y), pack(low.z, low.w), pack(high.x, high.y), pack(high.z, high.w));
        }
    }
}
