// Fragments of the backward kernels on cooperative matrices: places of elements, operands, rare rows, products with
// rows in shared memory, gradients to memory. Macros over the variables of main, see gemm.glsl. The kernels of float32
// take what is not of 16-bit types; backward_f32_fragments.glsl has the rest of theirs.
#define TILE_KEY(col) 0 // of sparse tokens, which these kernels do not take
#ifndef DTYPE_F32
#include "fragments.glsl"
#endif
#include "fragment_ops.glsl"
#define ROW_MAJOR gl_CooperativeMatrixLayoutRowMajor
#define COLUMN_MAJOR gl_CooperativeMatrixLayoutColumnMajor

#ifndef DTYPE_F32
const uint KV_FRAGS = KV_STEP / FRAG_N;

// LSE in log2 units. The factor is scale2 / scoreScale of the rounded numbers, so that the rounding of scale2 cancels in
// the exponent of P: with logits in the thousands, one that takes all of P must come out as 1 within float16. precise:
// otherwise NVIDIA's compiler cancels the quotient in one kernel and not in the next, and dV gets another P than LSE.
float toLog2(float lse) {
    precise float scale2 = p.scoreScale * LOG2E, high = scale2 / p.scoreScale, low = fma(-high, p.scoreScale, scale2) / p.scoreScale;
    precise float result = SCORE_MOD || isinf(lse) || p.scoreScale == 0.0 ? lse * LOG2E : fma(lse, high, lse * low);
    return result;
}
#endif

// -- places of elements ---------------------------------------------------------------------------
// Functions of the row and column of an element.

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

#ifndef DTYPE_F32
// -- operands -------------------------------------------------------------------------------------
// P and dS, accumulators, as operands A rounded to storage.
//
// Vulkan leaves open which lane holds which element of a fragment. The host asks the device (fragment_probe.comp) and sets
// OPERANDS_IN_SMEM to 0 if accumulators and operands A of its size have one order: each element then stays where it is.
// Otherwise VK_NV_cooperative_matrix2 converts whole fragments, and without it they pass through shared memory.
#ifdef DTYPE_BF16
// Half a unit in the last place is added, the lower half is cut off: halves are rounded away from zero, as toOperandA
// does. min keeps a NaN from becoming 0 by the carry, save a negative one whose upper 17 bits are all set. NVIDIA's own
// conversion takes some twenty instructions and truncates. The upper half is moved as a float16, which the compiler
// packs by one permutation (docs/log/backward.md, 8).
STORAGE_T rounded(float x) {
    const uint bits = uint(min(floatBitsToInt(x), 0x7fff7fff)) + 0x8000u;
    return uintBitsToBFloat16EXT(float16BitsToUint16(unpackFloat2x16(bits).y));
}
#else
STORAGE_T rounded(float x) { return float16_t(x); }
#endif

// toOperandA takes P alone: its carry may reach the sign bit.
#if NV2 && defined(DTYPE_BF16)
#define convertedOperandA(result, x)                                                                \
    {                                                                                               \
        [[unroll]] for (uint e = 0; e < x.length(); ++e)                                            \
            x[e] = uintBitsToFloat(((floatBitsToUint(x[e]) & 0x7fffffffu) > 0x7f800000u ? NAN_BITS  \
                : floatBitsToUint(x[e]) + 0x8000u) & 0xffff0000u);                                  \
        result = FragA(x);                                                                          \
    }
#else
#define convertedOperandA(result, x) toOperandA(result, x)
#endif

#if NV2 && !defined(DTYPE_BF16) // the driver converts fragments in registers
#define operandA(result, x) result = FragA(x);
#else
#define operandA(result, x)                                                                         \
    if (OPERANDS_IN_SMEM != 0) {                                                                    \
        convertedOperandA(result, x)                                                                \
    } else {                                                                                        \
        [[unroll]] for (uint e = 0; e < x.length(); ++e) result[e] = rounded(x[e]);                 \
    }
#endif
#endif

// -- rare rows ------------------------------------------------------------------------------------
// Two rare cases, large LSE and non-finite inputs, and how the masked loops of the kernels of dQ and of dK and dV treat
// them.
//
// Large LSE. float32 rounds an LSE of 10,000 by up to 0.0005, and so every P of the row by 0.05 %, one unit of float16.
// backward_coopmat_lse.comp stores what it rounds off. Tiles with such a row go through the masked loop, which
// subtracts the rest: the unmasked loop has no instruction for it.
//
// Inf and NaN. P and dS of a masked slot are 0, but 0 x Inf is NaN. If a masked tile holds any, they are removed from
// shared memory before the last products, a step at a time. dQ and dK lose nothing by that: where K or Q is not finite the score is
// not finite either, and dS is 0 or NaN. dV does: addNonFiniteDO corrects it in memory.
const uint SEEN_LARGE = 1, SEEN_NON_FINITE = 2;
shared uint seen;

#ifdef MODIFIES_FULL_TILES
// lavapipe (Mesa 26.2) loads what is the same in all lanes, such as a slope, also where no lane is on, and then from address 0.
// On other devices rows past the end need no branch.
const bool LOADS_OF_LANES_OFF = SUBGROUP_BARRIER == 0;
#endif

// Exponent of a masked slot: its P is 0 whatever LSE is, NaN included.
const float MASKED_EXPONENT = -3.402823466e38;

#define NOTE_NON_FINITE(v)                                                                          \
    {                                                                                               \
        uvec4 finite = v;                                                                           \
        if (dropNonFinite(finite)) atomicOr(seen, SEEN_NON_FINITE);                                 \
    }

// Inf and NaN of `rows` rows of a tile in shared memory become 0, for the last products. All invocations call it, behind the
// products that need them.
void dropNonFiniteRows(uint base, uint stride, uint rows, uint rowVecs) {
    [[dont_unroll]] for (uint at = gl_LocalInvocationIndex; at < rows * rowVecs; at += LOCAL_SIZE)
        dropNonFinite(smem[base + at / rowVecs * stride + at % rowVecs]);
}

// -- gradients to memory --------------------------------------------------------------------------
// Gradients from fragments to memory. Macros over the variables of main.

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

#ifndef DTYPE_F32
// How STORE_GRADIENT stores the rows of dQ. A row past the end of its sequence has gradient 0; adding that changes
// nothing.
#define ROW_IS_STORED(row) (rowBase + (row) < extentRows && (ACCUMULATE == 0 || rowBase + (row) < work.rows))
#define ROW_EXISTS(row) (rowBase + (row) < work.rows)
#define DQ_ELEMENT(row) rowElement(rowBase + (row), p.strideDXHead, p.strideDXSeq)
#define STORE_DQ8(row, col, words)                                                                  \
    { if (ROW_IS_STORED(row) && (col) < HEAD_DIM) storeEightDX(outDQ, DQ_ELEMENT(row) + (col), ROW_EXISTS(row) ? words : uvec4(0)); }
#define STORE_DQ4(row, col, four)                                                                   \
    { if (ROW_IS_STORED(row)) storeFourDX(outDQ, DQ_ELEMENT(row), col, ROW_EXISTS(row) ? four : vec4(0.0)); }

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

// -- products with rows in shared memory ----------------------------------------------------------
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
#endif
