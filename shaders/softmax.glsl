// Online softmax with a lagged row max. The row max of earlier steps is subtracted from the scores as long as none
// exceeds it by more than RESCALE_THRESHOLD: P stays under 2^8, far inside float16, and the usual step has no
// reduction across lanes and no rescaling of O. The result is exact whichever maximum is subtracted.
//
// The row max is in shared memory, one float per row. It is read with stride 0, as a fragment whose rows are one
// value each: the compiler then knows which elements are equal and keeps two registers instead of eight.
//
// Over the fragments of forward_fragments.glsl.

const float RESCALE_THRESHOLD = 7.5; // log2 units; at most 8 after it is added to a large row max

// exp2; in the dense kernel also the ladder's and the ablation's.
#ifndef EXP2_SCORE
#define EXP2_SCORE(x) exp2(x)
#endif

// Offset in smem of the row max of row fragment r, and its loads as a fragment and as the float of a row.
uint rowMaxAt(uint r) { return ROW_MAX_BASE + (gl_SubgroupID * M_FRAGS + r) * ROW_MAX_SIZE; }
float rowMaxOfRow(uint r, uint row) { return uintBitsToFloat(smem[rowMaxAt(r) + row / 4][row % 4]); }
void loadRowMax(uint r) { coopMatLoad(rowMax[r], smem, rowMaxAt(r), 0, gl_CooperativeMatrixLayoutColumnMajor); }
float scale, invScale; // of S, when softmax takes it, and 1 / scale

void startSoftmax() {
    scale = SCORE_SCALE;
    invScale = 1.0 / scale;
    for (uint i = gl_SubgroupInvocationID; i < M_FRAGS * ROW_MAX_SIZE; i += SUBGROUP_SIZE)
        smem[rowMaxAt(0) + i] = uvec4(floatBitsToUint(ROW_MAX_INIT));
}

// fma(S, scale, -rowMax) subtracts a rounded row max from an exact score. From this row max on (attention.MaxFastScore in
// log2 units) they differ by more than 1, and P may overflow or vanish: the epilogues make such a row NaN. Modified
// scores, and those times a scale per key, are rounded too, and the difference is exact.
const float MAX_FAST_SCORE = 16777216.0 * LOG2E;
bool isFarRow(float rowMax) { return !SCORE_MOD && !KEY_SCALES && abs(rowMax) > MAX_FAST_SCORE && rowMax != ROW_MAX_INIT; }
float nanIfFar(float rowMax, float x) { return isFarRow(rowMax) ? uintBitsToFloat(NAN_BITS) : x; }
// 1 / (row sum * sinkFactor). P of a NaN score may have been rounded to Inf. The row sum is Inf then, its inverse 0, and O
// times 0 is NaN, as O is Inf or NaN.
float inverseSum(float rowSum, float sinkFactor) {
    return isNaN(sinkFactor) ? sinkFactor : rowSum == 0.0 ? 0.0 : 1.0 / (rowSum * sinkFactor);
}

// Maximum over a row's fragments, element by element: the maximum of the elements that this lane has of each row.
#define LANE_MAX(top, r)                                                                            \
    FragC top = S[(r) * KV_FRAGS];                                                                  \
    [[unroll]] for (uint c = 1; c < KV_FRAGS; ++c)                                                  \
        [[unroll]] for (uint e = 0; e < LIVE_ELEMENTS(top); ++e) top[e] = max(top[e], S[(r) * KV_FRAGS + c][e]);

// Rescale the row sum and O; decode_coopmat.comp keeps O transposed and has its own.
#ifndef OWN_RESCALE
void rescaleRowSum(uint r, FragC factor) {
    FragSum narrowFactor;
    narrowRows(narrowFactor, factor);
    rowSum[r] *= narrowFactor;
}
void rescaleO(uint r, FragC factor) {
    [[unroll]] for (uint i = 0; i < DV_FRAGS; ++i) O[r * DV_FRAGS + i] *= factor;
}
#endif

// The rescale threshold in units of scores.
const float SCORE_THRESHOLD = NATURAL_SCORES ? RESCALE_THRESHOLD * LN2 : RESCALE_THRESHOLD;

// Updates the row max of rows with a score above the threshold, and rescales their O and row sums. The vote compares
// each lane's own elements; the branch, which most steps skip, reduces rows and compares again, so that a row's update
// depends on its own scores alone. As a function it makes the dense kernel 1.9 % slower (docs/log/vulkan.md, 53).
#if GENERAL
#define RESCALE_SCALED_SUM(r, factor) if (KEY_SCALES) rowSumScaled[KEY_SCALES ? r : 0] *= factor;
#else
#define RESCALE_SCALED_SUM(r, factor)
#endif
#define UPDATE_ROW_MAX                                                                              \
    {                                                                                               \
        bool passed = false;                                                                        \
        [[unroll]] for (uint r = 0; r < M_FRAGS; ++r) {                                             \
            LANE_MAX(top, r)                                                                        \
            [[unroll]] for (uint e = 0; e < LIVE_ELEMENTS(top); ++e)                                \
                passed = passed || top[e] > fma(rowMax[r][e], invScale, SCORE_THRESHOLD * invScale); \
        }                                                                                           \
        if (subgroupAny(passed)) {                                                                  \
            [[unroll]] for (uint r = 0; r < M_FRAGS; ++r) {                                         \
                LANE_MAX(top, r)                                                                    \
                FragC moved, factor;                                                                \
                reduceRowMax(moved, top);                                                           \
                [[unroll]] for (uint e = 0; e < moved.length(); ++e) {                              \
                    const bool moves = moved[e] > fma(rowMax[r][e], invScale, SCORE_THRESHOLD * invScale); \
                    moved[e] = moves ? moved[e] * scale : rowMax[r][e];                             \
                    factor[e] = exp2(TO_LOG2(rowMax[r][e] - moved[e]));                             \
                }                                                                                   \
                if (NEEDS_F32_SUM) RESCALE_ROW_SUM_F32(r, factor)                                   \
                RESCALE_SCALED_SUM(r, factor)                                                       \
                rescaleRowSum(r, factor);                                                           \
                subgroupSync();                                                                     \
                storeFirstColumn(moved, rowMaxAt(r));                                               \
                subgroupSync();                                                                     \
                loadRowMax(r);                                                                      \
                rescaleO(r, factor);                                                                \
            }                                                                                       \
        }                                                                                           \
    }

// P = exp2(scale * S - row max), rounded as an A operand, and its float32 sum. firstKey counts from the start of the KV
// tile.
void softmaxP(uint firstKey) {
    [[unroll]] for (uint f = 0; f < M_FRAGS * KV_FRAGS; ++f) {
        [[unroll]] for (uint e = 0; e < LIVE_ELEMENTS(S[f]); ++e) {
            const float x = NATURAL_SCORES ? (S[f][e] - rowMax[f / KV_FRAGS][e]) * LOG2E
                : fma(S[f][e], scale, -rowMax[f / KV_FRAGS][e]);
            S[f][e] = EXP2_SCORE(x);
        }
        if (!KEY_SCALES) {
            if (NEEDS_F32_SUM) ADD_TO_ROW_SUM_F32(f / KV_FRAGS, S[f])
            toOperandA(P[f], S[f]);
        }
    }
#if GENERAL
    if (KEY_SCALES) scaleP(firstKey);
#endif
}
