// The parts of one step of STEP_COLS keys, as macros over the variables of forward_coopmat.comp's main.
// S is FragC[ROW_TILES * KEY_TILES], the step's scores; firstKey counts from the start of the tile.

// How many elements of a fragment of scores are looked at, the first ones: a kernel may know that the others are rows
// that do not exist.
#ifndef LIVE
#define LIVE(x) x.length()
#endif

#if FEATURES
#include "key_scales.glsl"
#else
const bool ROW_SCALES = false;
#define SCALE_WEIGHTS(P, S, first)
#endif

// The shifts of row fragment r lie here, TILE_M floats.
#define shiftOf(r) (SHIFT_FIRST + (gl_SubgroupID * ROW_TILES + (r)) * SHIFT_SIZE)
#define shiftOfRow(r, row) uintBitsToFloat(tile[shiftOf(r) + (row) / 4][(row) % 4])
// Stride 0: every column of the fragment is the same TILE_M floats.
#define loadShift(r) coopMatLoad(rowShift[r], tile, shiftOf(r), 0, gl_CooperativeMatrixLayoutColumnMajor)

// S = Q K^T
#define SCORES(S, firstKey)                                                                         \
    {                                                                                               \
        [[unroll]] for (uint f = 0; f < ROW_TILES * KEY_TILES; ++f) S[f] = FragC(0.0);              \
        [[unroll]] for (uint i = 0; i < QK_CHUNKS; ++i) {                                           \
            FragA Qi[ROW_TILES];                                                                    \
            [[unroll]] for (uint r = 0; r < ROW_TILES; ++r) {                                       \
                if (i < Q_HELD) Qi[r] = Q[Q_HELD > 0 ? r * Q_HELD + i : 0];                         \
                else coopMatLoad(Qi[r], tile, Q_FIRST + (mySubgroupRow + r * TILE_M) * Q_STRIDE + (i - Q_HELD) * TILE_K / 8, \
                                 Q_STRIDE, gl_CooperativeMatrixLayoutRowMajor);                     \
            }                                                                                       \
            [[unroll]] for (uint c = 0; c < KEY_TILES; ++c) {                                       \
                FragB Kt;                                                                           \
                coopMatLoad(Kt, tile, ((firstKey) + c * TILE_N) * K_STRIDE + i * TILE_K / 8, K_STRIDE, \
                            gl_CooperativeMatrixLayoutColumnMajor);                                 \
                [[unroll]] for (uint r = 0; r < ROW_TILES; ++r)                                     \
                    S[r * KEY_TILES + c] = coopMatMulAdd(Qi[r], Kt, S[r * KEY_TILES + c]);          \
            }                                                                                       \
        }                                                                                           \
    }

// The largest scores among the elements that lie at the same place in a row's fragments.
#define HIGHEST(top, S, r)                                                                          \
    FragC top = S[(r) * KEY_TILES];                                                                 \
    [[unroll]] for (uint c = 1; c < KEY_TILES; ++c)                                                 \
        [[unroll]] for (uint e = 0; e < LIVE(top); ++e) top[e] = max(top[e], S[(r) * KEY_TILES + c][e]);

// What a row has added up so far, times factor; a kernel that keeps O otherwise has its own.
#ifndef SCALE_O
#define SCALE_WEIGHT(r, factor)                                                                     \
    {                                                                                               \
        FragSum narrowFactor;                                                                       \
        narrow(narrowFactor, factor);                                                               \
        rowWeight[r] *= narrowFactor;                                                               \
    }
#define SCALE_O(r, factor)                                                                          \
    [[unroll]] for (uint i = 0; i < OUT_TILES; ++i) O[r * OUT_TILES + i] *= factor;
#endif

// The rescale threshold, in units of scores.
#define THRESHOLD (NATURAL ? LAG * LN2 : LAG)

// Moves the shift of the rows that need it. The test looks at each lane's own elements only; the same
// comparison decides for each row, so that none moves because another one did.
#define MOVE_SHIFTS(S)                                                                              \
    {                                                                                               \
        bool passed = false;                                                                        \
        [[unroll]] for (uint r = 0; r < ROW_TILES; ++r) {                                           \
            HIGHEST(top, S, r)                                                                      \
            [[unroll]] for (uint e = 0; e < LIVE(top); ++e)                                         \
                passed = passed || top[e] > fma(rowShift[r][e], unscale, THRESHOLD * unscale);      \
        }                                                                                           \
        if (subgroupAny(passed)) {                                                                  \
            [[unroll]] for (uint r = 0; r < ROW_TILES; ++r) {                                       \
                HIGHEST(top, S, r)                                                                  \
                FragC moved, factor;                                                                \
                rowMax(moved, top);                                                                 \
                [[unroll]] for (uint e = 0; e < moved.length(); ++e) {                              \
                    const bool moves = moved[e] > fma(rowShift[r][e], unscale, THRESHOLD * unscale); \
                    moved[e] = moves ? moved[e] * scale : rowShift[r][e];                           \
                    factor[e] = exp2(EXPONENT(rowShift[r][e] - moved[e]));                          \
                }                                                                                   \
                if (TOTALS) rowTotal[r] *= factor;                                                  \
                if (ROW_SCALES) rowScaled[ROW_SCALES ? r : 0] *= factor;                            \
                SCALE_WEIGHT(r, factor)                                                             \
                subgroupSync();                                                                     \
                firstColumnTo(moved, shiftOf(r));                                                   \
                subgroupSync();                                                                     \
                loadShift(r);                                                                       \
                SCALE_O(r, factor)                                                                  \
            }                                                                                       \
        }                                                                                           \
    }

// P = 2^(scale S - shift), with V's scales where keys have them. EXP2 0 takes the natural exponential instead.
#define WEIGHTS(P, S, first)                                                                        \
    FragA P[ROW_TILES * KEY_TILES];                                                                 \
    [[unroll]] for (uint f = 0; f < ROW_TILES * KEY_TILES; ++f) {                                   \
        [[unroll]] for (uint e = 0; e < LIVE(S[f]); ++e) {                                          \
            const float x = NATURAL ? (S[f][e] - rowShift[f / KEY_TILES][e]) * LOG2E               \
                : fma(S[f][e], scale, -rowShift[f / KEY_TILES][e]);                                 \
            S[f][e] = ABLATE == ABLATE_SOFTMAX ? x : EXP2 != 0 ? exp2(x) : exp(x * LN2);            \
        }                                                                                           \
        if (!ROW_SCALES) {                                                                          \
            if (TOTALS) rowTotal[f / KEY_TILES] += S[f];                                            \
            toOperandA(P[f], S[f]);                                                                 \
        }                                                                                           \
    }                                                                                               \
    SCALE_WEIGHTS(P, S, first)

// O += P V. O is divided by the sum of the rounded P, so that what rounding does to a weight cancels; where
// one key has all the weight the result is that row of V, exactly. Where keys have scales, rowScaled is that sum.
#define ADD_VALUES(P, firstKey)                                                                     \
    [[unroll]] for (uint c = 0; c < KEY_TILES; ++c) {                                               \
        [[unroll]] for (uint r = 0; r < (ROW_SCALES ? 0 : ROW_TILES); ++r)                          \
            rowWeight[r] = coopMatMulAdd(P[r * KEY_TILES + c], FragOnes(1.0), rowWeight[r]);        \
        [[unroll]] for (uint i = 0; i < OUT_TILES; ++i) {                                           \
            FragB Vt;                                                                               \
            coopMatLoad(Vt, tile, V_FIRST + ((firstKey) + c * TILE_K) * V_STRIDE + i * TILE_N / 8, V_STRIDE, \
                        gl_CooperativeMatrixLayoutRowMajor);                                        \
            [[unroll]] for (uint r = 0; r < ROW_TILES; ++r)                                         \
                O[r * OUT_TILES + i] = coopMatMulAdd(P[r * KEY_TILES + c], Vt, O[r * OUT_TILES + i]); \
        }                                                                                           \
    }
