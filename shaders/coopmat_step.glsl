// The parts of one step of KV_STEP keys, as macros over the variables of forward_coopmat.comp's main.
// S is FragC[M_FRAGS * KV_FRAGS], the step's scores; firstKey counts from the start of the tile.

// How many elements of a fragment of scores are looked at, the first ones: a kernel may know that the others are rows
// that do not exist.
#ifndef LIVE_ELEMENTS
#define LIVE_ELEMENTS(x) x.length()
#endif

#if GENERAL
#include "key_scales.glsl"
#else
const bool KEY_SCALES = false;
#define SCALE_P(P, S, first)
#endif

// The shifts of row fragment r lie here, FRAG_M floats.
#define rowMaxAt(r) (ROW_MAX_BASE + (gl_SubgroupID * M_FRAGS + (r)) * ROW_MAX_SIZE)
#define rowMaxOfRow(r, row) uintBitsToFloat(smem[rowMaxAt(r) + (row) / 4][(row) % 4])
// Stride 0: every column of the fragment is the same FRAG_M floats.
#define loadRowMax(r) coopMatLoad(rowMax[r], smem, rowMaxAt(r), 0, gl_CooperativeMatrixLayoutColumnMajor)

// S = Q K^T
#define GEMM_QK(S, firstKey)                                                                         \
    {                                                                                               \
        [[unroll]] for (uint f = 0; f < M_FRAGS * KV_FRAGS; ++f) S[f] = FragC(0.0);              \
        [[unroll]] for (uint i = 0; i < QK_CHUNKS; ++i) {                                           \
            FragA Qi[M_FRAGS];                                                                    \
            [[unroll]] for (uint r = 0; r < M_FRAGS; ++r) {                                       \
                if (i < Q_REG_CHUNKS) Qi[r] = Q[Q_REG_CHUNKS > 0 ? r * Q_REG_CHUNKS + i : 0];                         \
                else coopMatLoad(Qi[r], smem, Q_BASE + (rowInTile + r * FRAG_M) * Q_STRIDE + (i - Q_REG_CHUNKS) * FRAG_K / 8, \
                                 Q_STRIDE, gl_CooperativeMatrixLayoutRowMajor);                     \
            }                                                                                       \
            [[unroll]] for (uint c = 0; c < KV_FRAGS; ++c) {                                       \
                FragB Kt;                                                                           \
                coopMatLoad(Kt, smem, ((firstKey) + c * FRAG_N) * K_STRIDE + i * FRAG_K / 8, K_STRIDE, \
                            gl_CooperativeMatrixLayoutColumnMajor);                                 \
                [[unroll]] for (uint r = 0; r < M_FRAGS; ++r)                                     \
                    S[r * KV_FRAGS + c] = coopMatMulAdd(Qi[r], Kt, S[r * KV_FRAGS + c]);          \
            }                                                                                       \
        }                                                                                           \
    }

// The largest scores among the elements that lie at the same place in a row's fragments.
#define LANE_MAX(top, S, r)                                                                          \
    FragC top = S[(r) * KV_FRAGS];                                                                 \
    [[unroll]] for (uint c = 1; c < KV_FRAGS; ++c)                                                 \
        [[unroll]] for (uint e = 0; e < LIVE_ELEMENTS(top); ++e) top[e] = max(top[e], S[(r) * KV_FRAGS + c][e]);

// What a row has added up so far, times factor; a kernel that keeps O otherwise has its own.
#ifndef RESCALE_O
#define RESCALE_ROW_SUM(r, factor)                                                                     \
    {                                                                                               \
        FragSum narrowFactor;                                                                       \
        narrowRows(narrowFactor, factor);                                                               \
        rowSum[r] *= narrowFactor;                                                               \
    }
#define RESCALE_O(r, factor)                                                                          \
    [[unroll]] for (uint i = 0; i < DV_FRAGS; ++i) O[r * DV_FRAGS + i] *= factor;
#endif

// The rescale threshold, in units of scores.
#define SCORE_THRESHOLD (NATURAL_SCORES ? RESCALE_THRESHOLD * LN2 : RESCALE_THRESHOLD)

// Moves the shift of the rows that need it. The test looks at each lane's own elements only; the same
// comparison decides for each row, so that none moves because another one did.
#define UPDATE_ROW_MAX(S)                                                                              \
    {                                                                                               \
        bool passed = false;                                                                        \
        [[unroll]] for (uint r = 0; r < M_FRAGS; ++r) {                                           \
            LANE_MAX(top, S, r)                                                                      \
            [[unroll]] for (uint e = 0; e < LIVE_ELEMENTS(top); ++e)                                         \
                passed = passed || top[e] > fma(rowMax[r][e], invScale, SCORE_THRESHOLD * invScale);      \
        }                                                                                           \
        if (subgroupAny(passed)) {                                                                  \
            [[unroll]] for (uint r = 0; r < M_FRAGS; ++r) {                                       \
                LANE_MAX(top, S, r)                                                                  \
                FragC moved, factor;                                                                \
                reduceRowMax(moved, top);                                                                 \
                [[unroll]] for (uint e = 0; e < moved.length(); ++e) {                              \
                    const bool moves = moved[e] > fma(rowMax[r][e], invScale, SCORE_THRESHOLD * invScale); \
                    moved[e] = moves ? moved[e] * scale : rowMax[r][e];                           \
                    factor[e] = exp2(TO_LOG2(rowMax[r][e] - moved[e]));                          \
                }                                                                                   \
                if (NEEDS_F32_SUM) rowSumF32[r] *= factor;                                                  \
                if (KEY_SCALES) rowSumScaled[KEY_SCALES ? r : 0] *= factor;                            \
                RESCALE_ROW_SUM(r, factor)                                                             \
                subgroupSync();                                                                     \
                storeFirstColumn(moved, rowMaxAt(r));                                                   \
                subgroupSync();                                                                     \
                loadRowMax(r);                                                                       \
                RESCALE_O(r, factor)                                                                  \
            }                                                                                       \
        }                                                                                           \
    }

// P = 2^(scale S - shift), with V's scales where keys have them. EXP2 0 takes the natural exponential instead.
#define SOFTMAX_P(P, S, first)                                                                        \
    FragA P[M_FRAGS * KV_FRAGS];                                                                 \
    [[unroll]] for (uint f = 0; f < M_FRAGS * KV_FRAGS; ++f) {                                   \
        [[unroll]] for (uint e = 0; e < LIVE_ELEMENTS(S[f]); ++e) {                                          \
            const float x = NATURAL_SCORES ? (S[f][e] - rowMax[f / KV_FRAGS][e]) * LOG2E               \
                : fma(S[f][e], scale, -rowMax[f / KV_FRAGS][e]);                                 \
            S[f][e] = ABLATE == ABLATE_SOFTMAX ? x : EXP2 != 0 ? exp2(x) : exp(x * LN2);            \
        }                                                                                           \
        if (!KEY_SCALES) {                                                                          \
            if (NEEDS_F32_SUM) rowSumF32[f / KV_FRAGS] += S[f];                                            \
            toOperandA(P[f], S[f]);                                                                 \
        }                                                                                           \
    }                                                                                               \
    SCALE_P(P, S, first)

// O += P V. O is divided by the sum of the rounded P, so that what rounding does to a weight cancels; where
// one key has all the weight the result is that row of V, exactly. Where keys have scales, rowSumScaled is that sum.
#define GEMM_PV(P, firstKey)                                                                     \
    [[unroll]] for (uint c = 0; c < KV_FRAGS; ++c) {                                               \
        [[unroll]] for (uint r = 0; r < (KEY_SCALES ? 0 : M_FRAGS); ++r)                          \
            rowSum[r] = coopMatMulAdd(P[r * KV_FRAGS + c], FragOnes(1.0), rowSum[r]);        \
        [[unroll]] for (uint i = 0; i < DV_FRAGS; ++i) {                                           \
            FragB Vt;                                                                               \
            coopMatLoad(Vt, smem, V_BASE + ((firstKey) + c * FRAG_K) * V_STRIDE + i * FRAG_N / 8, V_STRIDE, \
                        gl_CooperativeMatrixLayoutRowMajor);                                        \
            [[unroll]] for (uint r = 0; r < M_FRAGS; ++r)                                         \
                O[r * DV_FRAGS + i] = coopMatMulAdd(P[r * KV_FRAGS + c], Vt, O[r * DV_FRAGS + i]); \
        }                                                                                           \
    }
