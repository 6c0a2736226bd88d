// Scales of int8 and float8, of which every key has one for K and one for V. Elements are exact in 16 bits without them;
// scales are met where there is float32: K's in the scores, V's in the weights.
//
// V's scale is m 2^e, with 1 <= |m| < 2 as a rule. Softmax takes its shift from scores plus e, so that what is multiplied fits 16
// bits whatever the scales of the keys that a row sees are. A weight is multiplied with m and then rounded, and what it
// is then, over the scale again, is what the sum of weights gets: rounding cancels as it does where there are no scales
// (GEMM_PV). Towards zero will do, since what all weights lose alike is nothing.
//
// Included by coopmat_step.glsl. Macros over the variables of a kernel's main; SUBGROUP_SCALES is where in tile the scales of a
// tile of keys lie, SCALES_SIZE large, and first the column of that tile where S and P begin.
#ifndef KEY_SCALES_GLSL
#define KEY_SCALES_GLSL

// Numbers of every key, an array of each kind: K's scale, with that of the scores where nothing is done to them
// in between, and of V's e, m, 1 / (m 2^e) and, with HAS_P_FACTOR, what a weight itself is multiplied by where the row sums take it.
const uint K_SCALE = 0, V_EXPONENT = 1, V_MANTISSA = 2, V_INVERSE = 3, P_FACTOR = 4;
#define SCALES_AT(kind, col) (SUBGROUP_SCALES + (kind) * (KV_TILE / 4) + (col) / 4)
#define loadScales(frag, kind, col)                                                                 \
    coopMatLoad(frag, smem, SCALES_AT(kind, col), 0, gl_CooperativeMatrixLayoutRowMajor)

void storeScale(uint kind, uint col, float x) { smem[SCALES_AT(kind, col)][col % 4] = floatBitsToUint(x); }

// The scales of a column's key, K's and V's. Below 2^MIN_EXPONENT a scale is small, and 0 too, whose key counts in the row
// sum all the same. Its m is less than 1 or 0, and the row sums get the weight itself, by P_FACTOR. In float16 such values are
// nothing; where nobody asks for LSE m is so small that P vanishes as an operand, while float32 holds what is summed. With
// an e of 96 at most m may be up to 2^7. True where V's is Inf or NaN: it is added at the end, since a slot that a row does not
// see has a weight of zero.
const int MIN_EXPONENT = -30;
const float UNDERFLOWS = 1.0 / 17179869184.0; // 2^-34: times P <= 2^RESCALE_THRESHOLD it rounds to 0 in float16
bool storeScales(uint col, vec2 scales) {
    const int exponent = int(floatBitsToUint(scales.y) >> 23 & 0xffu) - 127;
    const bool nonFiniteScale = exponent == 128, small = exponent < MIN_EXPONENT;
    const int e = nonFiniteScale ? 0 : max(max(min(exponent, 96), exponent - 6), MIN_EXPONENT);
    const float down = uintBitsToFloat(uint(127 - e) << 23);
    const float m = nonFiniteScale ? 1.0 : small && !HAS_P_FACTOR ? UNDERFLOWS : scales.y * down;
    storeScale(K_SCALE, col, SCORE_MOD ? scales.x : scales.x * abs(p.scoreScale));
    storeScale(V_EXPONENT, col, NATURAL_SCORES ? float(e) * LN2 : float(e));
    storeScale(V_MANTISSA, col, m);
    storeScale(V_INVERSE, col, small && HAS_P_FACTOR ? 0.0 : down / m);
    if (HAS_P_FACTOR) storeScale(P_FACTOR, col, small ? down : 0.0);
    return nonFiniteScale;
}

// Products of rows and keys become scores; after these are modified, e is added.
#define SCALE_S(S, first)                                                                      \
    if (KEY_SCALES) {                                                                               \
        [[unroll]] for (uint c = 0; c < KV_FRAGS; ++c) {                                           \
            FragC scales;                                                                           \
            loadScales(scales, K_SCALE, (first) + c * FRAG_N);                                         \
            [[unroll]] for (uint r = 0; r < M_FRAGS; ++r) S[r * KV_FRAGS + c] *= scales;         \
        }                                                                                           \
    }
#define ADD_V_EXPONENT(S, first)                                                                      \
    if (KEY_SCALES) {                                                                               \
        [[unroll]] for (uint c = 0; c < KV_FRAGS; ++c) {                                           \
            FragC exponents;                                                                        \
            loadScales(exponents, V_EXPONENT, (first) + c * FRAG_N);                             \
            [[unroll]] for (uint r = 0; r < M_FRAGS; ++r) S[r * KV_FRAGS + c] += exponents;      \
        }                                                                                           \
    }

// Weights S as operands P, and their sums: rowSumScaled of what they are then, rowSumF32 of what they were. They are rounded
// by their bits: what is made narrow and wide again a compiler takes for what it was.
const uint STORAGE_BITS = DTYPE == TYPE_BF16 ? 0xffff0000u : 0xffffe000u; // that storage has of float32
#define SCALE_P(P, S, first)                                                                  \
    if (KEY_SCALES) {                                                                               \
        [[unroll]] for (uint c = 0; c < KV_FRAGS; ++c) {                                           \
            FragC mantissas, inverse, adds;                                                         \
            loadScales(mantissas, V_MANTISSA, (first) + c * FRAG_N);                             \
            loadScales(inverse, V_INVERSE, (first) + c * FRAG_N);                                \
            if (HAS_P_FACTOR) loadScales(adds, P_FACTOR, (first) + c * FRAG_N);                  \
            [[unroll]] for (uint r = 0; r < M_FRAGS; ++r) {                                       \
                FragC x = S[r * KV_FRAGS + c];                                                     \
                [[unroll]] for (uint e = 0; e < LIVE_ELEMENTS(x); ++e) {                                     \
                    const float scaledP = x[e] * mantissas[e];                                       \
                    if (NEEDS_F32_SUM) rowSumF32[r][e] = fma(scaledP, inverse[e], rowSumF32[r][e]);           \
                    if (NEEDS_F32_SUM && HAS_P_FACTOR) rowSumF32[r][e] = fma(x[e], adds[e], rowSumF32[r][e]); \
                    if (HAS_P_FACTOR) rowSumScaled[r][e] = fma(x[e], adds[e], rowSumScaled[r][e]);        \
                    x[e] = uintBitsToFloat(floatBitsToUint(scaledP) & STORAGE_BITS);                    \
                    rowSumScaled[r][e] = fma(x[e], inverse[e], rowSumScaled[r][e]);                       \
                }                                                                                   \
                exactOperandA(P[r * KV_FRAGS + c], x);                                             \
            }                                                                                       \
        }                                                                                           \
    }

// Eight elements without their scale, exact. In pairs, as it takes the fewest instructions, elements 0 and 2, 1 and 3 of
// each four; and in order.
#ifdef DTYPE_BF16
uint pairOf(float x, float y) { return floatBitsToUint(x) >> 16 | floatBitsToUint(y) & 0xffff0000u; }
uvec4 exactPairs(uvec2 bytes) {
    vec4 low, high;
    decode8(bytes, 1.0, 0, low, high);
    return uvec4(pairOf(low.x, low.z), pairOf(low.y, low.w), pairOf(high.x, high.z), pairOf(high.y, high.w));
}
#else
// float8 has the fields of float16 but for 8 more in the exponent.
uvec2 exactPairs(uint bytes) {
    uvec2 two;
    if (KV_TYPE == FLOAT8) {
        two = uvec2(bytes << 8, bytes) & 0x80008000u | uvec2(bytes << 7, bytes >> 1) & 0x3f803f80u;
        const uint nan = (bytes & 0x7f7f7f7fu) + 0x01010101u & 0x80808080u; // finite only: all ones are none
        if (nan != 0) two |= (uvec2(nan << 8, nan) & 0x80008000u) >> 1;
        return uvec2(packFloat2x16(unpackFloat2x16(two.x) * f16vec2(256.0)), packFloat2x16(unpackFloat2x16(two.y) * f16vec2(256.0)));
    }
    bytes ^= 0x80808080u; // a byte in the low bits of 1024 is that many more
    two = uvec2(bytes, bytes >> 8) & 0x00ff00ffu | 0x64006400u;
    return uvec2(packFloat2x16(unpackFloat2x16(two.x) - f16vec2(1152.0)), packFloat2x16(unpackFloat2x16(two.y) - f16vec2(1152.0)));
}
uvec4 exactPairs(uvec2 bytes) { return uvec4(exactPairs(bytes.x), exactPairs(bytes.y)); }
#endif
uvec4 exact16(uvec2 bytes) {
    const uvec4 pairs = exactPairs(bytes);
    return uvec4(lowHalves(pairs.x, pairs.y), highHalves(pairs.x, pairs.y), lowHalves(pairs.z, pairs.w), highHalves(pairs.z, pairs.w));
}
// Q's columns in the order of pairs of K's.
uvec4 interleavePairs(uvec4 q) {
    if (!KEY_SCALES) return q;
    return uvec4(lowHalves(q.x, q.y), highHalves(q.x, q.y), lowHalves(q.z, q.w), highHalves(q.z, q.w));
}

#endif
