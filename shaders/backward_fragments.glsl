// Operations on fragments that the backward kernels have and the forward kernels lack: functions of an element's row and
// column, gradients to memory. Macros over the variables of main, see gemm.glsl.
#define TILE_KEY(col) 0 // of sparse tokens, which these kernels do not take
#include "fragments.glsl"
#include "fragment_ops.glsl"

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

#include "backward_places.glsl"

// Products with rows in shared memory from base on, KV_STEP of them, of which fragments f % KV_FRAGS are columns:
// result += own rows^T and acc += weights rows, with weights that have these rows as columns. The last smemChunks
// chunks of own are in shared memory at ownBase, the others in registers. Their indices are literals for bfloat16:
// NVIDIA's compiler keeps K and V of bfloat16 in memory, 320 bytes a lane, where a loop indexes them, unrolled or not.
// With literals the pass is 1.19 times as fast at head dim 128 (docs/log/backward.md, 15).
#ifdef DTYPE_BF16
#define OWN_INDEX(regs, r, i) ((r) < M_FRAGS && (i) < (regs) ? (r) * (regs) + (i) : 0)
#define MULTIPLY_OWN_ROW(result, own, smemChunks, ownBase, r, i)                                    \
    if ((r) < M_FRAGS) {                                                                            \
        if ((i) < regs) {                                                                           \
            result[(r) * KV_FRAGS + c] = coopMatMulAdd(own[OWN_INDEX(regs, r, i)], rows, result[(r) * KV_FRAGS + c]); \
        } else {                                                                                    \
            FragA owni;                                                                             \
            coopMatLoad(owni, smem, (ownBase) + (gl_SubgroupID * M_FRAGS + (r)) * FRAG_M * ownStride \
                        + ((i) - regs) * FRAG_K / 8, ownStride, ROW_MAJOR);                         \
            result[(r) * KV_FRAGS + c] = coopMatMulAdd(owni, rows, result[(r) * KV_FRAGS + c]);     \
        }                                                                                           \
    }
#define MULTIPLY_OWN_CHUNK(result, own, chunks, smemChunks, ownBase, base, stride, i)               \
    if ((i) < (chunks)) {                                                                           \
        const uint regs = (chunks) - (smemChunks), ownStride = ((smemChunks) * FRAG_K / 8) | 1;     \
        [[unroll]] for (uint c = 0; c < KV_FRAGS; ++c) {                                            \
            FragB rows;                                                                             \
            coopMatLoad(rows, smem, (base) + c * FRAG_N * (stride) + (i) * FRAG_K / 8, stride, COLUMN_MAJOR); \
            MULTIPLY_OWN_ROW(result, own, smemChunks, ownBase, 0, i)                                \
            MULTIPLY_OWN_ROW(result, own, smemChunks, ownBase, 1, i)                                \
            if (M_FRAGS > 2) [[unroll]] for (uint r = 2; r < M_FRAGS; ++r) MULTIPLY_OWN_ROW(result, own, smemChunks, ownBase, r, i) \
        }                                                                                           \
    }
#define MULTIPLY_OWN(result, own, chunks, smemChunks, ownBase, base, stride)                        \
    MULTIPLY_OWN_CHUNK(result, own, chunks, smemChunks, ownBase, base, stride, 0)                   \
    MULTIPLY_OWN_CHUNK(result, own, chunks, smemChunks, ownBase, base, stride, 1)                   \
    MULTIPLY_OWN_CHUNK(result, own, chunks, smemChunks, ownBase, base, stride, 2)                   \
    MULTIPLY_OWN_CHUNK(result, own, chunks, smemChunks, ownBase, base, stride, 3)                   \
    MULTIPLY_OWN_CHUNK(result, own, chunks, smemChunks, ownBase, base, stride, 4)                   \
    MULTIPLY_OWN_CHUNK(result, own, chunks, smemChunks, ownBase, base, stride, 5)                   \
    MULTIPLY_OWN_CHUNK(result, own, chunks, smemChunks, ownBase, base, stride, 6)                   \
    MULTIPLY_OWN_CHUNK(result, own, chunks, smemChunks, ownBase, base, stride, 7)                   \
    if ((chunks) > 8)                                                                               \
        [[unroll]] for (uint i = 8; i < (chunks); ++i)                                              \
            MULTIPLY_OWN_CHUNK(result, own, chunks, smemChunks, ownBase, base, stride, i)
#else
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
#endif
#define ADD_PRODUCT(acc, weights, chunks, base, stride)                                             \
    [[unroll]] for (uint c = 0; c < KV_FRAGS; ++c)                                                  \
        [[unroll]] for (uint i = 0; i < (chunks); ++i) {                                            \
            FragB rows;                                                                             \
            coopMatLoad(rows, smem, (base) + c * FRAG_K * (stride) + i * FRAG_N / 8, stride, ROW_MAJOR); \
            [[unroll]] for (uint r = 0; r < M_FRAGS; ++r)                                           \
                acc[r * (chunks) + i] = coopMatMulAdd(weights[r * KV_FRAGS + c], rows, acc[r * (chunks) + i]); \
        }


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
