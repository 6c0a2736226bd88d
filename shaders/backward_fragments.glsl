// Operations on fragments that the backward kernels have and the forward kernels lack: functions of an element's row and
// column, gradients to memory. Macros over the variables of main, see gemm.glsl.
#define TILE_KEY(col) 0 // of sparse tokens, which these kernels do not take
#include "coopmat_fragments.glsl"

const uint KV_FRAGS = KV_STEP / FRAG_N;
#define ROW_MAJOR gl_CooperativeMatrixLayoutRowMajor
#define COLUMN_MAJOR gl_CooperativeMatrixLayoutColumnMajor

// LSE in log2 units. The factor is scale2 / scoreScale of the rounded numbers, so that the rounding of scale2 cancels in
// the exponent of P: with logits in the thousands, one that takes all of P must come out as 1 within float16. precise:
// otherwise NVIDIA's compiler cancels the quotient in one kernel and not in the next, and dV gets another P than LSE.
float toLog2(float lse) {
    precise float scale2 = p.scoreScale * LOG2E, high = scale2 / p.scoreScale, low = fma(-high, p.scoreScale, scale2) / p.scoreScale;
    precise float result = SCORE_MOD || isinf(lse) || p.scoreScale == 0.0 ? lse * LOG2E : fma(lse, high, lse * low);
    return result;
}

// x[i][j] = f(i, j, x[i][j], a, b). Without VK_NV_cooperative_matrix2, elements learn their row and column from a table in
// shared memory, which is loaded as a fragment: fragments of one type have one order. The kernel defines PLACES_BASE, calls
// storePlaces() and has a barrier before it computes fragments.
#if NV2
void storePlaces() {}
#define PER_ELEMENT(x, f, a, b) coopMatPerElementNV(x, x, f, a, b);
#else
const float PLACES_ZERO = 8388608.0; // 2^23: the low bits of PLACES_ZERO + n are n
void storePlaces() {
    for (uint n = gl_LocalInvocationIndex; n < FRAG_M * FRAG_N; n += LOCAL_SIZE)
        smem[PLACES_BASE + n / 4][n % 4] = floatBitsToUint(PLACES_ZERO + float(n));
}
#define PER_ELEMENT(x, f, a, b)                                                                     \
    {                                                                                               \
        FragC places;                                                                               \
        coopMatLoad(places, smem, PLACES_BASE, FRAG_N / 4, ROW_MAJOR);                              \
        [[unroll]] for (uint e_ = 0; e_ < x.length(); ++e_) {                                       \
            const uint n_ = floatBitsToUint(places[e_]) & 0xffffu;                                  \
            x[e_] = f(n_ / FRAG_N, n_ % FRAG_N, x[e_], a, b);                                       \
        }                                                                                           \
    }
#endif

#include "backward_operands.glsl"
#include "backward_rare.glsl"

// Products with rows in shared memory from base on, KV_STEP of them, of which fragments f % KV_FRAGS are columns:
// result += own rows^T and acc += weights rows, with weights that have these rows as columns. The last smemChunks chunks
// of own are in shared memory at ownBase, the others in registers.
#define MULTIPLY_OWN(result, own, chunks, smemChunks, ownBase, base, stride)                        \
    [[unroll]] for (uint i = 0; i < (chunks); ++i) {                                                \
        const uint regs = (chunks) - (smemChunks), ownStride = ((smemChunks) * FRAG_K / 8) | 1;     \
        FragA owni[M_FRAGS];                                                                        \
        [[unroll]] for (uint r = 0; r < M_FRAGS; ++r) {                                             \
            if (i < regs) owni[r] = own[regs > 0 ? r * regs + min(i, regs - 1) : 0];                \
            else coopMatLoad(owni[r], smem, (ownBase) + (gl_SubgroupID * M_FRAGS + r) * FRAG_M * ownStride  \
                             + (i - regs) * FRAG_K / 8, ownStride, ROW_MAJOR);                      \
        }                                                                                           \
        [[unroll]] for (uint c = 0; c < KV_FRAGS; ++c) {                                            \
            FragB rows;                                                                             \
            coopMatLoad(rows, smem, (base) + c * FRAG_N * (stride) + i * FRAG_K / 8, stride, COLUMN_MAJOR); \
            [[unroll]] for (uint r = 0; r < M_FRAGS; ++r)                                           \
                result[r * KV_FRAGS + c] = coopMatMulAdd(owni[r], rows, result[r * KV_FRAGS + c]);  \
        }                                                                                           \
    }
#define ADD_PRODUCT(acc, weights, chunks, base, stride)                                             \
    [[unroll]] for (uint c = 0; c < KV_FRAGS; ++c)                                                  \
        [[unroll]] for (uint i = 0; i < (chunks); ++i) {                                            \
            FragB rows;                                                                             \
            coopMatLoad(rows, smem, (base) + c * FRAG_K * (stride) + i * FRAG_N / 8, stride, ROW_MAJOR); \
            [[unroll]] for (uint r = 0; r < M_FRAGS; ++r)                                           \
                acc[r * (chunks) + i] = coopMatMulAdd(weights[r * KV_FRAGS + c], rows, acc[r * (chunks) + i]); \
        }

// Stores fragment n of a gradient, times factor, by way of scratch: eight columns a lane rounded to storage (STORE_EIGHT)
// if WIDE, else four float32 columns (STORE_FOUR). Both are called with (row, col, value), the row within the subgroup's
// rows. n is a literal: in a loop with a barrier inside, the accumulators would not stay in registers.
#define STORE_FRAGMENT(acc, chunks, factor, WIDE, STORE_EIGHT, STORE_FOUR, n)                       \
    if ((n) < M_FRAGS * (chunks)) {                                                                 \
        FragC whole = acc[(n) < M_FRAGS * (chunks) ? (n) : 0] * (factor);                           \
        fragmentToScratch(whole);                                                                   \
        const uint row0_ = (n) / (chunks) * FRAG_M, col0_ = (n) % (chunks) * FRAG_N;                \
        if (WIDE) {                                                                                 \
            [[unroll]] for (uint s = 0; s < LANE_VECS; ++s) {                                       \
                const uint group = s * SUBGROUP_SIZE + gl_SubgroupInvocationID;                     \
                if (group < FRAG_VECS)                                                              \
                    STORE_EIGHT(row0_ + group / (FRAG_N / 8), col0_ + group % (FRAG_N / 8) * 8, packScratch8(group)) \
            }                                                                                       \
        } else {                                                                                    \
            [[dont_unroll]] for (uint at = gl_SubgroupInvocationID; at < FRAG_M * FRAG_N / 4; at += SUBGROUP_SIZE) { \
                const uint row_ = at / (FRAG_N / 4), quad = at % (FRAG_N / 4);                      \
                STORE_FOUR(row0_ + row_, col0_ + quad * 4,                                          \
                           uintBitsToFloat(smem[subgroupScratch() + row_ * SCRATCH_STRIDE + quad])) \
            }                                                                                       \
        }                                                                                           \
    }
#define STORE_4(acc, chunks, factor, WIDE, STORE_EIGHT, STORE_FOUR, n)                              \
    STORE_FRAGMENT(acc, chunks, factor, WIDE, STORE_EIGHT, STORE_FOUR, n)                           \
    STORE_FRAGMENT(acc, chunks, factor, WIDE, STORE_EIGHT, STORE_FOUR, (n) + 1)                     \
    STORE_FRAGMENT(acc, chunks, factor, WIDE, STORE_EIGHT, STORE_FOUR, (n) + 2)                     \
    STORE_FRAGMENT(acc, chunks, factor, WIDE, STORE_EIGHT, STORE_FOUR, (n) + 3)
// All fragments of a gradient. M_FRAGS * chunks is at most 16: more do not fit in registers.
#define STORE_GRADIENT(acc, chunks, factor, WIDE, STORE_EIGHT, STORE_FOUR)                          \
    STORE_4(acc, chunks, factor, WIDE, STORE_EIGHT, STORE_FOUR, 0)                                  \
    STORE_4(acc, chunks, factor, WIDE, STORE_EIGHT, STORE_FOUR, 4)                                  \
    STORE_4(acc, chunks, factor, WIDE, STORE_EIGHT, STORE_FOUR, 8)                                  \
    STORE_4(acc, chunks, factor, WIDE, STORE_EIGHT, STORE_FOUR, 12)

// Eight 16-bit columns of a gradient at once: rows are aligned and nothing is added.
const bool WIDE_DX = F32_GRADIENTS + ACCUMULATE + HEAD_DIM % 8 + (8 / ALIGN_DX - 1) == 0;
const bool WIDE_DV = F32_GRADIENTS + ACCUMULATE + HEAD_DIM_V % 8 + (8 / ALIGN_DV - 1) == 0;
#if BDA
void storeEightDX(Slice s, uint element, uvec4 words) { WriteQuads(s.word).at[element >> 3] = words; }
void storeEightDV(Slice s, uint element, uvec4 words) { WriteQuads(s.word).at[element >> 3] = words; }
#else
void storeEightDX(Slice s, uint element, uvec4 words) { quadsDX[(s.word >> 2) + (element >> 3)] = words; }
void storeEightDV(Slice s, uint element, uvec4 words) { quadsDV[(s.word >> 2) + (element >> 3)] = words; }
#endif
