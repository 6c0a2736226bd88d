#version 460
// dQ, three products. A workgroup owns WORKGROUP_ROWS rows of one query head; each subgroup owns M_FRAGS * FRAG_M of
// them alone and visits the keys TILE at a time.
//   registers      dQ; Q and dO but for A_SMEM and B_SMEM chunks; this invocation's vectors of the next KV tile
//   shared memory  tiles of K and V, -LSE and -delta of the rows, the other chunks of Q and dO
#include "lab.glsl"
layout(binding = 0) readonly buffer Qd { uvec4 q[]; };
layout(binding = 1) readonly buffer Kd { uvec4 k[]; };
layout(binding = 2) readonly buffer Vd { uvec4 v[]; };
layout(binding = 3) readonly buffer dOd { uvec4 dO_[]; };
layout(binding = 4) readonly buffer Ld { float lse[]; };
layout(binding = 5) readonly buffer Dd { float delta[]; };
layout(binding = 6) buffer dQd { uvec4 dq[]; };

const uint STEPS = TILE / STEP;
const uint N_FRAGS = STEP / FRAG_N;
const uint V_TILE = TILE * STRIDE;
const uint BUFFER_SIZE = V_TILE + TILE * STRIDE_V;
const uint A_STRIDE = (A_SMEM * FRAG_K / 8) | 1;
const uint B_STRIDE = (B_SMEM * FRAG_K / 8) | 1;
const uint STATS_BASE = BUFFERS * BUFFER_SIZE;
const uint Q_BASE = STATS_BASE + WORKGROUP_ROWS / 2;
const uint DO_BASE = Q_BASE + (A_SMEM > 0 ? WORKGROUP_ROWS * A_STRIDE : 0);
const uint LOOP_SIZE = DO_BASE + (B_SMEM > 0 ? WORKGROUP_ROWS * B_STRIDE : 0);
const uint PAIR_VECS = 2 * FRAG_N / 8;
const uint PAIR_STRIDE = PAIR_VECS | 1;
const uint SCRATCH_SIZE = SUBGROUPS * FRAG_M * PAIR_STRIDE;
shared uvec4 smem[LOOP_SIZE > SCRATCH_SIZE ? LOOP_SIZE : SCRATCH_SIZE];

const uint K_VECS = (TILE * ROW_VECS + LOCAL_SIZE - 1) / LOCAL_SIZE;
const uint V_VECS = (TILE * ROW_VECS_V + LOCAL_SIZE - 1) / LOCAL_SIZE;
const uint Q_REG = CHUNKS - A_SMEM, DO_REG = CHUNKS_V - B_SMEM;

float maskedElement(const in uint32_t row, const in uint32_t col, const in float x, const in int firstRow, const in int firstKey) {
    const int key = firstKey + int(col), query = firstRow + int(row);
    return key < int(p.Sk) && (CAUSAL == 0 || key <= query + p.causalOffset) ? x : -INFINITY;
}

#define PREFETCH(key0)                                                                              \
    {                                                                                               \
        const uint keysLeft = min(TILE, p.Sk - (key0)), base = kvRow + (key0);                      \
        [[unroll]] for (uint i = 0; i < K_VECS; ++i) {                                              \
            const uint at = i * LOCAL_SIZE + tid;                                                   \
            kVec[i] = at / ROW_VECS < keysLeft ? k[base * ROW_VECS + at] : uvec4(0);                \
        }                                                                                           \
        [[unroll]] for (uint i = 0; i < V_VECS; ++i) {                                              \
            const uint at = i * LOCAL_SIZE + tid;                                                   \
            vVec[i] = at / ROW_VECS_V < keysLeft ? v[base * ROW_VECS_V + at] : uvec4(0);            \
        }                                                                                           \
    }
#define STORE_TILE(buf)                                                                             \
    {                                                                                               \
        [[unroll]] for (uint i = 0; i < K_VECS; ++i) {                                              \
            const uint at = i * LOCAL_SIZE + tid;                                                   \
            if (TILE * ROW_VECS % LOCAL_SIZE == 0 || at < TILE * ROW_VECS)                          \
                smem[(buf) + at / ROW_VECS * STRIDE + at % ROW_VECS] = kVec[i];                     \
        }                                                                                           \
        [[unroll]] for (uint i = 0; i < V_VECS; ++i) {                                              \
            const uint at = i * LOCAL_SIZE + tid;                                                   \
            if (TILE * ROW_VECS_V % LOCAL_SIZE == 0 || at < TILE * ROW_VECS_V)                      \
                smem[(buf) + V_TILE + at / ROW_VECS_V * STRIDE_V + at % ROW_VECS_V] = vVec[i];      \
        }                                                                                           \
    }
#define GEMM_S(S, first)                                                                            \
    {                                                                                               \
        [[unroll]] for (uint f = 0; f < M_FRAGS * N_FRAGS; ++f) S[f] = FragC(0.0);                  \
        [[unroll]] for (uint i = 0; i < CHUNKS; ++i) {                                              \
            FragA Qi[M_FRAGS];                                                                      \
            [[unroll]] for (uint r = 0; r < M_FRAGS; ++r) {                                         \
                if (i < Q_REG) Qi[r] = Q[Q_REG > 0 ? r * Q_REG + i : 0];                            \
                else coopMatLoad(Qi[r], smem, Q_BASE + (rowInTile + r * FRAG_M) * A_STRIDE + (i - Q_REG) * FRAG_K / 8, A_STRIDE, ROW_MAJOR); \
            }                                                                                       \
            [[unroll]] for (uint c = 0; c < N_FRAGS; ++c) {                                         \
                FragB Kt;                                                                           \
                coopMatLoad(Kt, smem, buf + ((first) + c * FRAG_N) * STRIDE + i * FRAG_K / 8, STRIDE, COLUMN_MAJOR); \
                [[unroll]] for (uint r = 0; r < M_FRAGS; ++r)                                       \
                    S[r * N_FRAGS + c] = coopMatMulAdd(Qi[r], Kt, S[r * N_FRAGS + c]);              \
            }                                                                                       \
        }                                                                                           \
    }
#define GEMM_DP(dP, first)                                                                          \
    {                                                                                               \
        [[unroll]] for (uint f = 0; f < M_FRAGS * N_FRAGS; ++f) dP[f] = negDelta[f / N_FRAGS];      \
        [[unroll]] for (uint i = 0; i < CHUNKS_V; ++i) {                                            \
            FragA dOi[M_FRAGS];                                                                     \
            [[unroll]] for (uint r = 0; r < M_FRAGS; ++r) {                                         \
                if (i < DO_REG) dOi[r] = dO[DO_REG > 0 ? r * DO_REG + i : 0];                       \
                else coopMatLoad(dOi[r], smem, DO_BASE + (rowInTile + r * FRAG_M) * B_STRIDE + (i - DO_REG) * FRAG_K / 8, B_STRIDE, ROW_MAJOR); \
            }                                                                                       \
            [[unroll]] for (uint c = 0; c < N_FRAGS; ++c) {                                         \
                FragB Vt;                                                                           \
                coopMatLoad(Vt, smem, buf + V_TILE + ((first) + c * FRAG_N) * STRIDE_V + i * FRAG_K / 8, STRIDE_V, COLUMN_MAJOR); \
                [[unroll]] for (uint r = 0; r < M_FRAGS; ++r)                                       \
                    dP[r * N_FRAGS + c] = coopMatMulAdd(dOi[r], Vt, dP[r * N_FRAGS + c]);           \
            }                                                                                       \
        }                                                                                           \
    }
#include "store_acc.glsl"

void main() {
    const uint tid = gl_LocalInvocationIndex;
    const uint head = gl_WorkGroupID[ORDER == 1 ? 0 : 1]; // batch * Hq + query head
    const uint kvRow = (head / p.Hq * p.Hkv + head % p.Hq / (p.Hq / p.Hkv)) * p.Sk, headRow = head * p.Sq;
    const uint rowInTile = gl_SubgroupID * SUBGROUP_ROWS;
    const uint groupIndex = gl_WorkGroupID[ORDER == 1 ? 1 : 0], groups = gl_NumWorkGroups[ORDER == 1 ? 1 : 0];
    const uint block = (CAUSAL != 0 ? groups - 1 - groupIndex : groupIndex) * WORKGROUP_ROWS; // the longest rows first
    const uint rowBase = block + rowInTile;
    const float scale2 = p.scale * LOG2E;

    const int lastVisible = int(min(block + WORKGROUP_ROWS, p.Sq)) + p.causalOffset; // keys of the last row
    const uint end = CAUSAL != 0 ? uint(clamp(lastVisible, 0, int(p.Sk))) : p.Sk;
    const uint tiles = (end + TILE - 1) / TILE;
    const uint unmasked = CAUSAL != 0 ? uint(clamp(int(block) + 1 + p.causalOffset, 0, int(p.Sk))) / TILE : p.Sk / TILE;

    uvec4 kVec[K_VECS], vVec[V_VECS];
    if (tiles > 0) PREFETCH(0)

    FragA Q[Q_REG > 0 ? M_FRAGS * Q_REG : 1], dO[DO_REG > 0 ? M_FRAGS * DO_REG : 1];
    [[unroll]] for (uint f = 0; f < M_FRAGS * Q_REG; ++f)
        coopMatLoad(Q[Q_REG > 0 ? f : 0], q, (headRow + rowBase + f / max(Q_REG, 1) * FRAG_M) * ROW_VECS + f % max(Q_REG, 1) * FRAG_K / 8, ROW_VECS, ROW_MAJOR);
    [[unroll]] for (uint f = 0; f < M_FRAGS * DO_REG; ++f)
        coopMatLoad(dO[DO_REG > 0 ? f : 0], dO_, (headRow + rowBase + f / max(DO_REG, 1) * FRAG_M) * ROW_VECS_V + f % max(DO_REG, 1) * FRAG_K / 8, ROW_VECS_V, ROW_MAJOR);
    for (uint at = tid; at < WORKGROUP_ROWS * A_SMEM * FRAG_K / 8; at += LOCAL_SIZE) {
        const uint row = at / max(A_SMEM * FRAG_K / 8, 1), col = at % max(A_SMEM * FRAG_K / 8, 1);
        smem[Q_BASE + row * A_STRIDE + col] = block + row < p.Sq ? q[(headRow + block + row) * ROW_VECS + Q_REG * FRAG_K / 8 + col] : uvec4(0);
    }
    for (uint at = tid; at < WORKGROUP_ROWS * B_SMEM * FRAG_K / 8; at += LOCAL_SIZE) {
        const uint row = at / max(B_SMEM * FRAG_K / 8, 1), col = at % max(B_SMEM * FRAG_K / 8, 1);
        smem[DO_BASE + row * B_STRIDE + col] = block + row < p.Sq ? dO_[(headRow + block + row) * ROW_VECS_V + DO_REG * FRAG_K / 8 + col] : uvec4(0);
    }
    for (uint at = tid; at < 2 * WORKGROUP_ROWS; at += LOCAL_SIZE) {
        const uint row = block + at % WORKGROUP_ROWS;
        float x = at < WORKGROUP_ROWS ? -INFINITY : 0.0;
        if (row < p.Sq) {
            x = at < WORKGROUP_ROWS ? lse[headRow + row] * -LOG2E : -delta[headRow + row];
            if (isinf(x)) x = -INFINITY;
        }
        smem[STATS_BASE + at / 4][at % 4] = floatBitsToUint(x);
    }
    barrier();
    FragC negLSE[M_FRAGS], negDelta[M_FRAGS];
    [[unroll]] for (uint r = 0; r < M_FRAGS; ++r) {
        coopMatLoad(negLSE[r], smem, STATS_BASE + (rowInTile + r * FRAG_M) / 4, 0, COLUMN_MAJOR);
        coopMatLoad(negDelta[r], smem, STATS_BASE + (WORKGROUP_ROWS + rowInTile + r * FRAG_M) / 4, 0, COLUMN_MAJOR);
    }

    FragC dQ[M_FRAGS * CHUNKS];
    [[unroll]] for (uint i = 0; i < M_FRAGS * CHUNKS; ++i) dQ[i] = FragC(0.0);

    uint buf = 0;
    if (BUFFERS == 2 && tiles > 0) {
        STORE_TILE(0)
    }
    uint j = 0;
    [[dont_unroll]] for (; j < unmasked; ++j) {
#define MASKED 0
#include "dq_tile.glsl"
#undef MASKED
    }
    [[dont_unroll]] for (; j < tiles; ++j) {
#define MASKED 1
#include "dq_tile.glsl"
#undef MASKED
    }
    barrier();
    STORE_ACC(dQ, CHUNKS, dq, ROW_VECS, p.scale, rowBase, headRow, p.Sq)
}
