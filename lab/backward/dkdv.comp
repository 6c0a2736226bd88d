#version 460
// dK and dV. A workgroup owns WORKGROUP_ROWS keys of one KV head; each subgroup owns M_FRAGS * FRAG_M of them alone and
// visits the rows of all query heads of the group, TILE rows at a time.
//   registers      dK, dV; K and V but for A_SMEM and B_SMEM chunks; this invocation's vectors of the next row tile
//   shared memory  tiles of Q and dO, -LSE and -delta of their rows, the other chunks of K and V
// S^T and dP^T are computed transposed (keys x rows), so that P^T and dS^T are the operands A of dV and dK.
#include "lab.glsl"
#ifdef ROLLED
#define STEP_LOOP [[dont_unroll]]
#else
#define STEP_LOOP [[unroll]]
#endif
layout(binding = 0) readonly buffer Qd { uvec4 q[]; };
layout(binding = 1) readonly buffer Kd { uvec4 k[]; };
layout(binding = 2) readonly buffer Vd { uvec4 v[]; };
layout(binding = 3) readonly buffer dOd { uvec4 dO_[]; };
layout(binding = 4) readonly buffer Ld { float lse[]; };
layout(binding = 5) readonly buffer Dd { float delta[]; };
layout(binding = 6) buffer dKd { uvec4 dk[]; };
layout(binding = 7) buffer dVd { uvec4 dv[]; };
layout(binding = 8) buffer dSd { uvec4 ds[]; };

const uint STEPS = TILE / STEP;
const uint N_FRAGS = STEP / FRAG_N;
const uint DO_BASE = TILE * STRIDE;
const uint STATS_BASE = DO_BASE + TILE * STRIDE_V;
const uint BUFFER_SIZE = STATS_BASE + TILE / 2;
const uint A_STRIDE = (A_SMEM * FRAG_K / 8) | 1;
const uint B_STRIDE = (B_SMEM * FRAG_K / 8) | 1;
const uint K_BASE = BUFFERS * BUFFER_SIZE;
const uint V_BASE = K_BASE + (A_SMEM > 0 ? WORKGROUP_ROWS * A_STRIDE : 0);
const uint LOOP_SIZE = V_BASE + (B_SMEM > 0 ? WORKGROUP_ROWS * B_STRIDE : 0);
const uint PAIR_VECS = 2 * FRAG_N / 8;
const uint PAIR_STRIDE = PAIR_VECS | 1;
const uint SCRATCH_SIZE = SUBGROUPS * FRAG_M * PAIR_STRIDE;
shared uvec4 smem[LOOP_SIZE > SCRATCH_SIZE ? LOOP_SIZE : SCRATCH_SIZE];

const uint Q_VECS = (TILE * ROW_VECS + LOCAL_SIZE - 1) / LOCAL_SIZE;
const uint DO_VECS = (TILE * ROW_VECS_V + LOCAL_SIZE - 1) / LOCAL_SIZE;
const uint STATS = (2 * TILE + LOCAL_SIZE - 1) / LOCAL_SIZE;
const uint K_REG = CHUNKS - A_SMEM, V_REG = CHUNKS_V - B_SMEM;

float maskedElement(const in uint32_t row, const in uint32_t col, const in float x, const in int firstKey, const in int firstRow) {
    const int key = firstKey + int(row), query = firstRow + int(col);
    return key < int(p.Sk) && (CAUSAL == 0 || key <= query + p.causalOffset) ? x : -INFINITY;
}

#define PREFETCH(row0, headRow)                                                                     \
    {                                                                                               \
        const uint rowsLeft = min(TILE, p.Sq - (row0)), base = (headRow) + (row0);                  \
        [[unroll]] for (uint i = 0; i < Q_VECS; ++i) {                                              \
            const uint at = i * LOCAL_SIZE + tid;                                                   \
            qVec[i] = at / ROW_VECS < rowsLeft ? q[base * ROW_VECS + at] : uvec4(0);                \
        }                                                                                           \
        [[unroll]] for (uint i = 0; i < DO_VECS; ++i) {                                             \
            const uint at = i * LOCAL_SIZE + tid;                                                   \
            doVec[i] = at / ROW_VECS_V < rowsLeft ? dO_[base * ROW_VECS_V + at] : uvec4(0);         \
        }                                                                                           \
        [[unroll]] for (uint i = 0; i < STATS; ++i) {                                               \
            const uint at = i * LOCAL_SIZE + tid, r = at % TILE;                                    \
            stat[i] = at / TILE == 0 ? -INFINITY : 0.0;                                             \
            if (at < 2 * TILE && r < rowsLeft) stat[i] = at < TILE ? lse[base + r] : -delta[base + r]; \
        }                                                                                           \
    }
#define STORE_TILE(buf)                                                                             \
    {                                                                                               \
        [[unroll]] for (uint i = 0; i < Q_VECS; ++i) {                                              \
            const uint at = i * LOCAL_SIZE + tid;                                                   \
            if (TILE * ROW_VECS % LOCAL_SIZE == 0 || at < TILE * ROW_VECS)                          \
                smem[(buf) + at / ROW_VECS * STRIDE + at % ROW_VECS] = qVec[i];                     \
        }                                                                                           \
        [[unroll]] for (uint i = 0; i < DO_VECS; ++i) {                                             \
            const uint at = i * LOCAL_SIZE + tid;                                                   \
            if (TILE * ROW_VECS_V % LOCAL_SIZE == 0 || at < TILE * ROW_VECS_V)                      \
                smem[(buf) + DO_BASE + at / ROW_VECS_V * STRIDE_V + at % ROW_VECS_V] = doVec[i];    \
        }                                                                                           \
        [[unroll]] for (uint i = 0; i < STATS; ++i) {                                               \
            const uint at = i * LOCAL_SIZE + tid;                                                   \
            const float x = at < TILE ? (isinf(stat[i]) ? -INFINITY : stat[i] * -LOG2E) : stat[i];  \
            if (at < 2 * TILE) smem[(buf) + STATS_BASE + at / 4][at % 4] = floatBitsToUint(x);      \
        }                                                                                           \
    }

// The share of step s: vectors u of Q and dO, and with step 0 the statistics.
const uint TILE_VECS = Q_VECS + DO_VECS;
const uint PIECE = (TILE_VECS + STEPS - 1) / STEPS;
#define LOAD_PIECE(s)                                                                               \
    {                                                                                               \
        const uint rowsLeft = min(TILE, p.Sq - nextRow), base = nextHead + nextRow;                 \
        [[unroll]] for (uint u = 0; u < TILE_VECS; ++u)                                             \
            if (u * STEPS / TILE_VECS == (s)) {                                                     \
                const bool isQ = u < Q_VECS;                                                        \
                const uint at = (isQ ? u : u - Q_VECS) * LOCAL_SIZE + tid;                          \
                if (isQ) pieceVec[TILE_VECS >= STEPS ? u % PIECE : 0] = at / ROW_VECS < rowsLeft ? q[base * ROW_VECS + at] : uvec4(0); \
                else pieceVec[TILE_VECS >= STEPS ? u % PIECE : 0] = at / ROW_VECS_V < rowsLeft ? dO_[base * ROW_VECS_V + at] : uvec4(0); \
            }                                                                                       \
        if ((s) == 0)                                                                               \
            [[unroll]] for (uint i = 0; i < STATS; ++i) {                                           \
                const uint at = i * LOCAL_SIZE + tid, r = at % TILE;                                \
                stat[i] = at / TILE == 0 ? -INFINITY : 0.0;                                         \
                if (at < 2 * TILE && r < rowsLeft) stat[i] = at < TILE ? lse[base + r] : -delta[base + r]; \
            }                                                                                       \
    }
#define STORE_PIECE(s, buf)                                                                         \
    {                                                                                               \
        [[unroll]] for (uint u = 0; u < TILE_VECS; ++u)                                             \
            if (u * STEPS / TILE_VECS == (s)) {                                                     \
                const bool isQ = u < Q_VECS;                                                        \
                const uint at = (isQ ? u : u - Q_VECS) * LOCAL_SIZE + tid;                          \
                if (isQ) { if (at < TILE * ROW_VECS) smem[(buf) + at / ROW_VECS * STRIDE + at % ROW_VECS] = pieceVec[TILE_VECS >= STEPS ? u % PIECE : 0]; } \
                else if (at < TILE * ROW_VECS_V) smem[(buf) + DO_BASE + at / ROW_VECS_V * STRIDE_V + at % ROW_VECS_V] = pieceVec[TILE_VECS >= STEPS ? u % PIECE : 0]; \
            }                                                                                       \
        if ((s) == 0)                                                                               \
            [[unroll]] for (uint i = 0; i < STATS; ++i) {                                           \
                const uint at = i * LOCAL_SIZE + tid;                                               \
                const float x = at < TILE ? (isinf(stat[i]) ? -INFINITY : stat[i] * -LOG2E) : stat[i]; \
                if (at < 2 * TILE) smem[(buf) + STATS_BASE + at / 4][at % 4] = floatBitsToUint(x);  \
            }                                                                                       \
    }

// S^T = K Q^T and dP^T = V dO^T - delta of the STEP rows from `first` of the tile on.
#define GEMM_S(S, first)                                                                            \
    {                                                                                               \
        [[unroll]] for (uint f = 0; f < M_FRAGS * N_FRAGS; ++f) S[f] = FragC(0.0);                  \
        [[unroll]] for (uint i = 0; i < CHUNKS; ++i) {                                              \
            if (i % 2 == 0) FENCE_AT(3)                                                              \
            FragA Ki[M_FRAGS];                                                                      \
            [[unroll]] for (uint r = 0; r < M_FRAGS; ++r) {                                         \
                if (i < K_REG) Ki[r] = K[K_REG > 0 ? r * K_REG + i : 0];                            \
                else coopMatLoad(Ki[r], smem, K_BASE + (rowInTile + r * FRAG_M) * A_STRIDE + (i - K_REG) * FRAG_K / 8, A_STRIDE, ROW_MAJOR); \
            }                                                                                       \
            [[unroll]] for (uint c = 0; c < N_FRAGS; ++c) {                                         \
                FragB Qt;                                                                           \
                coopMatLoad(Qt, smem, buf + ((first) + c * FRAG_N) * STRIDE + i * FRAG_K / 8, STRIDE, COLUMN_MAJOR); \
                [[unroll]] for (uint r = 0; r < M_FRAGS; ++r)                                       \
                    S[r * N_FRAGS + c] = coopMatMulAdd(Ki[r], Qt, S[r * N_FRAGS + c]);              \
            }                                                                                       \
        }                                                                                           \
    }
#define GEMM_DP(dP, first)                                                                          \
    {                                                                                               \
        [[unroll]] for (uint f = 0; f < M_FRAGS * N_FRAGS; ++f)                                     \
            coopMatLoad(dP[f], smem, buf + STATS_BASE + (TILE + (first) + f % N_FRAGS * FRAG_N) / 4, 0, ROW_MAJOR); \
        [[unroll]] for (uint i = 0; i < CHUNKS_V; ++i) {                                            \
            if (i % 2 == 0) FENCE_AT(3)                                                              \
            FragA Vi[M_FRAGS];                                                                      \
            [[unroll]] for (uint r = 0; r < M_FRAGS; ++r) {                                         \
                if (i < V_REG) Vi[r] = V[V_REG > 0 ? r * V_REG + i : 0];                            \
                else coopMatLoad(Vi[r], smem, V_BASE + (rowInTile + r * FRAG_M) * B_STRIDE + (i - V_REG) * FRAG_K / 8, B_STRIDE, ROW_MAJOR); \
            }                                                                                       \
            [[unroll]] for (uint c = 0; c < N_FRAGS; ++c) {                                         \
                FragB dOt;                                                                          \
                coopMatLoad(dOt, smem, buf + DO_BASE + ((first) + c * FRAG_N) * STRIDE_V + i * FRAG_K / 8, STRIDE_V, COLUMN_MAJOR); \
                [[unroll]] for (uint r = 0; r < M_FRAGS; ++r)                                       \
                    dP[r * N_FRAGS + c] = coopMatMulAdd(Vi[r], dOt, dP[r * N_FRAGS + c]);           \
            }                                                                                       \
        }                                                                                           \
    }

#include "store_acc.glsl"

void main() {
    const uint tid = gl_LocalInvocationIndex;
    const uint group = p.Hq / p.Hkv;
    const uint kvHead = gl_WorkGroupID[ORDER == 1 ? 0 : 1]; // batch * Hkv + KV head
    const uint kvRow = kvHead * p.Sk;
    const uint rowInTile = gl_SubgroupID * SUBGROUP_ROWS;
    const uint block = p.firstKey + gl_WorkGroupID[ORDER == 1 ? 1 : 0] * WORKGROUP_ROWS;
    const uint keyBase = block + rowInTile;
    const float scale2 = p.scale * LOG2E;

    const uint tiles = (p.Sq + TILE - 1) / TILE;
    const bool ragged = block + WORKGROUP_ROWS > p.Sk;
    const uint first = CAUSAL != 0 ? min(uint(max(int(block) - p.causalOffset, 0)) / TILE, tiles) : 0;
    const uint unmasked = ragged ? tiles : CAUSAL != 0
        ? clamp((uint(max(int(block + WORKGROUP_ROWS) - 1 - p.causalOffset, 0)) + TILE - 1) / TILE, first, tiles) : 0;

    uvec4 qVec[Q_VECS], doVec[DO_VECS];
    float stat[STATS];
    uvec4 pieceVec[PIECE];
    uint headRow = (kvHead / p.Hkv * p.Hq + kvHead % p.Hkv * group) * p.Sq; // first row of the query head
    if (first < tiles) PREFETCH(first * TILE, headRow)

    FragA K[K_REG > 0 ? M_FRAGS * K_REG : 1], V[V_REG > 0 ? M_FRAGS * V_REG : 1];
    [[unroll]] for (uint f = 0; f < M_FRAGS * K_REG; ++f)
        coopMatLoad(K[K_REG > 0 ? f : 0], k, (kvRow + keyBase + f / max(K_REG, 1) * FRAG_M) * ROW_VECS + f % max(K_REG, 1) * FRAG_K / 8, ROW_VECS, ROW_MAJOR);
    [[unroll]] for (uint f = 0; f < M_FRAGS * V_REG; ++f)
        coopMatLoad(V[V_REG > 0 ? f : 0], v, (kvRow + keyBase + f / max(V_REG, 1) * FRAG_M) * ROW_VECS_V + f % max(V_REG, 1) * FRAG_K / 8, ROW_VECS_V, ROW_MAJOR);
    for (uint at = tid; at < WORKGROUP_ROWS * A_SMEM * FRAG_K / 8; at += LOCAL_SIZE) {
        const uint row = at / max(A_SMEM * FRAG_K / 8, 1), col = at % max(A_SMEM * FRAG_K / 8, 1);
        smem[K_BASE + row * A_STRIDE + col] = block + row < p.Sk ? k[(kvRow + block + row) * ROW_VECS + K_REG * FRAG_K / 8 + col] : uvec4(0);
    }
    for (uint at = tid; at < WORKGROUP_ROWS * B_SMEM * FRAG_K / 8; at += LOCAL_SIZE) {
        const uint row = at / max(B_SMEM * FRAG_K / 8, 1), col = at % max(B_SMEM * FRAG_K / 8, 1);
        smem[V_BASE + row * B_STRIDE + col] = block + row < p.Sk ? v[(kvRow + block + row) * ROW_VECS_V + V_REG * FRAG_K / 8 + col] : uvec4(0);
    }

    FragC dK[M_FRAGS * CHUNKS], dV[M_FRAGS * CHUNKS_V];
    [[unroll]] for (uint i = 0; i < M_FRAGS * CHUNKS; ++i) dK[i] = FragC(0.0);
    [[unroll]] for (uint i = 0; i < M_FRAGS * CHUNKS_V; ++i) dV[i] = FragC(0.0);

    uint buf = 0;
    if (first < tiles) {
        if (BUFFERS == 2) {
            STORE_TILE(0)
        }
        for (uint g = 0; g < group; ++g) {
            uint t = first;
            [[dont_unroll]] for (; t < unmasked; ++t) {
#define MASKED 1
#include "dkdv_tile.glsl"
#undef MASKED
            }
            [[dont_unroll]] for (; t < tiles; ++t) {
#define MASKED 0
#include "dkdv_tile.glsl"
#undef MASKED
            }
            headRow += p.Sq;
        }
    }
    barrier();
    STORE_ACC(dV, CHUNKS_V, dv, ROW_VECS_V, 1.0, keyBase, kvRow, p.Sk)
    STORE_ACC(dK, CHUNKS, dk, ROW_VECS, p.scale, keyBase, kvRow, p.Sk)
}
