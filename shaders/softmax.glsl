// Online softmax with a lagged row max. The row max of earlier steps is subtracted from the scores as long as none
// exceeds it by more than RESCALE_THRESHOLD: P stays under 2^8, far inside float16, and the usual step has no
// reduction across lanes and no rescaling of O. The result is exact whichever maximum is subtracted.
//
// The row max is in shared memory, one float per row. It is read with stride 0, as a fragment whose rows are one
// value each: the compiler then knows which elements are equal and keeps two registers instead of eight.
//
// Macros over the variables of main, as in gemm.glsl: rowMax, rowSum, rowSumF32, rowSumScaled, O, scale, invScale.

const float RESCALE_THRESHOLD = 7.5; // log2 units; at most 8 after it is added to a large row max

// exp2; in the dense kernel also the ladder's and the ablation's.
#ifndef EXP2_SCORE
#define EXP2_SCORE(x) exp2(x)
#endif

#if !GENERAL // no scales of K and V, see kv_scales.glsl
#define RESCALE_SCALED_SUM(r, factor)
#define SCALE_P(P, S, first)
#endif

// Offset in smem of the row max of row fragment r, and its loads as a fragment and as the float of a row.
#define rowMaxAt(r) (ROW_MAX_BASE + (gl_SubgroupID * M_FRAGS + (r)) * ROW_MAX_SIZE)
#define rowMaxOfRow(r, row) uintBitsToFloat(smem[rowMaxAt(r) + (row) / 4][(row) % 4])
#define loadRowMax(r) coopMatLoad(rowMax[r], smem, rowMaxAt(r), 0, gl_CooperativeMatrixLayoutColumnMajor)
#define INIT_ROW_MAX(size)                                                                          \
    for (uint i = gl_SubgroupInvocationID; i < (size); i += SUBGROUP_SIZE)                          \
        smem[rowMaxAt(0) + i] = uvec4(floatBitsToUint(ROW_MAX_INIT));

// Maximum over a row's fragments, element by element: the maximum of the elements that this lane has of each row.
#define LANE_MAX(top, S, r)                                                                         \
    FragC top = S[(r) * KV_FRAGS];                                                                  \
    [[unroll]] for (uint c = 1; c < KV_FRAGS; ++c)                                                  \
        [[unroll]] for (uint e = 0; e < LIVE_ELEMENTS(top); ++e) top[e] = max(top[e], S[(r) * KV_FRAGS + c][e]);

// Rescale the row sum and O; decode_coopmat.comp keeps O transposed and has its own.
#ifndef RESCALE_O
#define RESCALE_ROW_SUM(r, factor)                                                                  \
    {                                                                                               \
        FragSum narrowFactor;                                                                       \
        narrowRows(narrowFactor, factor);                                                           \
        rowSum[r] *= narrowFactor;                                                                  \
    }
#define RESCALE_O(r, factor)                                                                        \
    [[unroll]] for (uint i = 0; i < DV_FRAGS; ++i) O[r * DV_FRAGS + i] *= factor;
#endif

// The rescale threshold in units of scores.
#define SCORE_THRESHOLD (NATURAL_SCORES ? RESCALE_THRESHOLD * LN2 : RESCALE_THRESHOLD)

// Updates the row max of rows with a score above the threshold, and rescales their O and row sums. The vote compares
// each lane's own elements; the branch, which most steps skip, reduces rows and compares again, so that a row's
// update depends on its own scores alone.
#define UPDATE_ROW_MAX(S)                                                                           \
    {                                                                                               \
        bool passed = false;                                                                        \
        [[unroll]] for (uint r = 0; r < M_FRAGS; ++r) {                                             \
            LANE_MAX(top, S, r)                                                                     \
            [[unroll]] for (uint e = 0; e < LIVE_ELEMENTS(top); ++e)                                \
                passed = passed || top[e] > fma(rowMax[r][e], invScale, SCORE_THRESHOLD * invScale); \
        }                                                                                           \
        if (subgroupAny(passed)) {                                                                  \
            [[unroll]] for (uint r = 0; r < M_FRAGS; ++r) {                                         \
                LANE_MAX(top, S, r)                                                                 \
                FragC moved, factor;                                                                \
                reduceRowMax(moved, top);                                                           \
                [[unroll]] for (uint e = 0; e < moved.length(); ++e) {                              \
                    const bool moves = moved[e] > fma(rowMax[r][e], invScale, SCORE_THRESHOLD * invScale); \
                    moved[e] = moves ? moved[e] * scale : rowMax[r][e];                             \
                    factor[e] = exp2(TO_LOG2(rowMax[r][e] - moved[e]));                             \
                }                                                                                   \
                if (NEEDS_F32_SUM) rowSumF32[r] *= factor;                                          \
                RESCALE_SCALED_SUM(r, factor)                                                       \
                RESCALE_ROW_SUM(r, factor)                                                          \
                subgroupSync();                                                                     \
                storeFirstColumn(moved, rowMaxAt(r));                                               \
                subgroupSync();                                                                     \
                loadRowMax(r);                                                                      \
                RESCALE_O(r, factor)                                                                \
            }                                                                                       \
        }                                                                                           \
    }

// P = exp2(scale * S - row max), rounded as an A operand, and its float32 sum.
#define SOFTMAX_P(P, S, first)                                                                      \
    FragA P[M_FRAGS * KV_FRAGS];                                                                    \
    [[unroll]] for (uint f = 0; f < M_FRAGS * KV_FRAGS; ++f) {                                      \
        [[unroll]] for (uint e = 0; e < LIVE_ELEMENTS(S[f]); ++e) {                                 \
            const float x = NATURAL_SCORES ? (S[f][e] - rowMax[f / KV_FRAGS][e]) * LOG2E            \
                : fma(S[f][e], scale, -rowMax[f / KV_FRAGS][e]);                                    \
            S[f][e] = EXP2_SCORE(x);                                                                \
        }                                                                                           \
        if (!KEY_SCALES) {                                                                          \
            if (NEEDS_F32_SUM) rowSumF32[f / KV_FRAGS] += S[f];                                     \
            toOperandA(P[f], S[f]);                                                                 \
        }                                                                                           \
    }                                                                                               \
    SCALE_P(P, S, first)
