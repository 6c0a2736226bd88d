// Quantized K and V on fragments: scales per key, and elements as exact 16-bit numbers.

// -- scales ---------------------------------------------------------------------------------------
// Scales of K and V per key. Elements without their scale are exact in 16 bits; scales are applied in float32:
// K's to the scores, V's to P.
//
// V's scale is m 2^e with 1 <= |m| < 2. Softmax takes its row max from scores + e, so operands fit 16 bits whatever the
// scales. P is multiplied by m and rounded toward zero; the row sum takes the rounded number divided by the scale, so
// rounding cancels as in gemmPV, and an error that all of P shares cancels too.
//
// The kernel defines SUBGROUP_SCALES, offset in smem of the scales of a KV tile,
// SCALES_SIZE long. firstKey is the column of the tile where S and P begin.

// What a number of the operand is multiplied by, to be the element.
#define STORED_FACTOR(type) ((type) == FLOAT8 ? 256.0 : 1.0)

// V as an operand from exactPairs may have Inf or NaN; of the others the loads leave it out, or there is none.
const bool MAY_BE_NON_FINITE = IN(SCALED, V_TYPE) == 0;

// Numbers per key, an array of each in shared memory: K's scale (times that of the scores, without SCORE_MOD); V's e,
// m and 1 / (m 2^e); with HAS_P_FACTOR the factor of P itself in the row sums.
const uint K_SCALE = 0, V_EXPONENT = 1, V_MANTISSA = 2, V_INVERSE = 3, P_FACTOR = 4;
#define SCALES_AT(kind, col) (SUBGROUP_SCALES + (kind) * (KV_TILE / 4) + (col) / 4)
#define loadScales(frag, kind, col)                                                                 \
    coopMatLoad(frag, smem, SCALES_AT(kind, col), 0, gl_CooperativeMatrixLayoutRowMajor)

void storeScale(uint kind, uint col, float x) { smem[SCALES_AT(kind, col)][col % 4] = floatBitsToUint(x); }

// Stores the numbers of a key, from its scales of K and V. True if V's scale is Inf or NaN: such a key is added after
// the KV loop, since P = 0 of a masked key times Inf is NaN.
//   e is the exponent of V's scale, at most 96; m may then reach 2^7.
//   A scale below 2^MIN_EXPONENT, or 0, is small: m is below 1 or 0, and the row sums take P itself times P_FACTOR. In
//   float16 without LSE and sinks m becomes UNDERFLOWS instead: P vanishes as an operand, while float32 holds its sum.
const int MIN_EXPONENT = -30;
const float UNDERFLOWS = 1.0 / 17179869184.0; // 2^-34: times P < 2^8 it rounds to 0 in float16
bool storeScales(uint col, vec2 scales) {
    const int exponent = int(floatBitsToUint(scales.y) >> 23 & 0xffu) - 127;
    const bool nonFiniteScale = exponent == 128, small = exponent < MIN_EXPONENT;
    const int e = nonFiniteScale ? 0 : max(max(min(exponent, 96), exponent - 6), MIN_EXPONENT);
    const float one = uintBitsToFloat(uint(127 - e) << 23);
    const float m = nonFiniteScale ? 1.0 : small && !HAS_P_FACTOR ? UNDERFLOWS : scales.y * one;
    const float down = one / STORED_FACTOR(V_TYPE);
    // Elements times a scale of Inf are Inf of both signs. Their products with Q add up to NaN, not to Inf.
    const float kScale = nonFinite(scales.x) ? uintBitsToFloat(NAN_BITS) : scales.x;
    storeScale(K_SCALE, col, SCORE_MOD ? kScale : kScale * abs(p.scoreScale));
    const float up = float(e) + log2(STORED_FACTOR(V_TYPE));
    storeScale(V_EXPONENT, col, NATURAL_SCORES ? up * LN2 : up);
    storeScale(V_MANTISSA, col, m);
    storeScale(V_INVERSE, col, small && HAS_P_FACTOR ? 0.0 : down / m);
    if (HAS_P_FACTOR) storeScale(P_FACTOR, col, small ? down : 0.0);
    return nonFiniteScale;
}

// Multiplies the products by K's scales. Then, after mask and score modifiers, adds e.
void scaleS(uint firstKey) {
    if (KEY_SCALES) {
        [[unroll]] for (uint c = 0; c < KV_FRAGS; ++c) {
            FragC scales;
            loadScales(scales, K_SCALE, firstKey + c * FRAG_N);
            if (STORED_FACTOR(K_TYPE) != 1.0) {
                [[unroll]] for (uint r = 0; r < M_FRAGS; ++r) S[r * KV_FRAGS + c] *= STORED_FACTOR(K_TYPE);
            }
            [[unroll]] for (uint r = 0; r < M_FRAGS; ++r) S[r * KV_FRAGS + c] *= scales;
        }
    }
}
void addVExponent(uint firstKey) {
    if (KEY_SCALES) {
        [[unroll]] for (uint c = 0; c < KV_FRAGS; ++c) {
            FragC exponents;
            loadScales(exponents, V_EXPONENT, firstKey + c * FRAG_N);
            [[unroll]] for (uint r = 0; r < M_FRAGS; ++r) S[r * KV_FRAGS + c] += exponents;
        }
    }
}

// P times m, rounded as an A operand, and the row sums: rowSumScaled of what was rounded, rowSumF32 of what was not.
// P is rounded by its bits, as a compiler may undo a conversion to 16 bits and back.
const uint STORAGE_BITS = DTYPE == TYPE_BF16 ? 0xffff0000u : 0xffffe000u; // bits of a float32 that the storage type has
void scaleP(uint firstKey) {
    [[unroll]] for (uint c = 0; c < KV_FRAGS; ++c) {
        FragC mantissas, inverse, adds;
        loadScales(mantissas, V_MANTISSA, firstKey + c * FRAG_N);
        loadScales(inverse, V_INVERSE, firstKey + c * FRAG_N);
        if (HAS_P_FACTOR) loadScales(adds, P_FACTOR, firstKey + c * FRAG_N);
        [[unroll]] for (uint r = 0; r < M_FRAGS; ++r) {
            FragC x = S[r * KV_FRAGS + c];
            [[unroll]] for (uint e = 0; e < LIVE_ELEMENTS(x); ++e) {
                const float scaledP = x[e] * mantissas[e];
                if (NEEDS_F32_SUM) ADD_PRODUCT_TO_ROW_SUM_F32(r, e, scaledP, inverse[e])
                if (NEEDS_F32_SUM && HAS_P_FACTOR) ADD_PRODUCT_TO_ROW_SUM_F32(r, e, x[e], adds[e])
                if (HAS_P_FACTOR) rowSumScaled[KEY_SCALES ? r : 0][e] = fma(x[e], adds[e], rowSumScaled[KEY_SCALES ? r : 0][e]);
                x[e] = uintBitsToFloat(floatBitsToUint(scaledP) & STORAGE_BITS);
                rowSumScaled[KEY_SCALES ? r : 0][e] = fma(x[e], inverse[e], rowSumScaled[KEY_SCALES ? r : 0][e]);
            }
            exactOperandA(P[r * KV_FRAGS + c], x);
        }
    }
}

// A split stores its row max and row sum. With KEY_SCALES the row max has exponents of V's scales, up to 121, and the row
// sum their inverse: times the weight of a small split it may be 0 in float32, while O of that split is large. So the
// exponent of the row sum moves to the row max.
float splitMax(float rowMax, float rowSum) {
    if (!KEY_SCALES || rowSum == 0.0 || nonFinite(rowSum)) return rowMax;
    const float e = float(int(floatBitsToUint(rowSum) >> 23) - 127);
    return rowMax + (NATURAL_SCORES ? e * LN2 : e);
}
float splitSum(float rowSum) {
    if (!KEY_SCALES || rowSum == 0.0 || nonFinite(rowSum)) return rowSum;
    return uintBitsToFloat(floatBitsToUint(rowSum) & 0x7fffffu | 0x3f800000u);
}

// -- exact elements -------------------------------------------------------------------------------
// Eight quantized elements as 16-bit elements: of int8 and float8 exact, without their scale, of blocks times the scale of
// the block. They take the fewest instructions in pairs: of each four columns a word has columns 0 and 2, or 1 and 3, so
// Q's columns are put in the same order.

// A number that the compiler takes for a variable. Then it stays in a register, and NVIDIA's compiler makes one
// instruction of (x & a) ^ b, not two (docs/log/vulkan.md, 72).
uint variable(uint x) { return p.groupSize == 0 ? 0 : x; }
f16vec2 halves(uint bits) { return unpackFloat2x16(bits); }
// Bytes 0 and 2, and 1 and 3: 1024 + the byte, or its low four bits, in the low bits of a float16.
uvec2 bytePairs(uint bytes, uint mask, uint flip) { return uvec2(bytes, bytes >> 8) & mask ^ variable(flip); }
// float8 has the fields of float16, with a bias that is 8 smaller: STORED_FACTOR. Its NaN is a number here.
uvec2 float8Pairs(uint bytes) { return uvec2(bytes << 8, bytes) & 0x80008000u | uvec2(bytes << 7, bytes >> 1) & 0x3f803f80u; }
// A pair of float16 of at most 8 significant bits in the storage type.
#ifdef DTYPE_BF16
uint storedPair(uint pair) {
    const uvec2 bits = floatBitsToUint(unpackHalf2x16(pair));
    return highHalves(bits.x, bits.y);
}
#else
#define storedPair(pair) (pair)
#endif
uvec2 exactPairs(uint type, uint bytes) {
    uvec2 pairs;
    if (type == FLOAT8_E5M2) pairs = uvec2(bytes << 8, bytes) & 0xff00ff00u; // the upper bytes of float16
    else if (type == FLOAT8) pairs = float8Pairs(bytes);
    else {
        const uvec2 two = bytePairs(bytes, 0x00ff00ffu, 0x64806480u);
        pairs = uvec2(packFloat2x16(halves(two.x) - f16vec2(1152.0)), packFloat2x16(halves(two.y) - f16vec2(1152.0)));
    }
    return uvec2(storedPair(pairs.x), storedPair(pairs.y));
}
uvec4 exactPairs(uint type, uvec2 bytes) { return uvec4(exactPairs(type, bytes.x), exactPairs(type, bytes.y)); }
// Bit 7 of each byte that is a NaN of float8 (e4m3fn: all bits set is NaN, there is no Inf); other bits may be set.
uint nanBytes(uint bytes) { return (bytes & 0x7f7f7f7fu) + 0x01010101u; }
bool hasNaN(uvec2 bytes) { return ((nanBytes(bytes.x) | nanBytes(bytes.y)) & 0x80808080u) != 0; }
// The pairs of float8, with a NaN for each NaN.
uvec4 float8OrNaN(uvec4 pairs, uvec2 bytes) {
    const uvec2 nan = uvec2(nanBytes(bytes.x), nanBytes(bytes.y));
    return pairs | (uvec4(nan.x << 8, nan.x, nan.y << 8, nan.y) & 0x80008000u) >> 1;
}
#define BYTES_ARE_NIBBLES(type) (IN(NIBBLES & ~FIFTH_BITS & ~(1 << IQ4_NL), type) != 0)
#ifdef DTYPE_BF16
// Numbers times their scale, plus the minimum, rounded to bfloat16: fma(x, 65536, x) has the eight highest bits of x, rounded to
// nearest even, behind those of x 65536. That takes three instructions an element, rounding by bits six. x is below 2^24. Where a scale is
// Inf, factor is too, and the numbers are themselves: products of 0 are NaN, others Inf.
uint roundedPair(bool minimum, vec2 numbers, vec2 scales, float factor) {
    const vec2 x = minimum ? fma(numbers, vec2(scales.x), vec2(scales.y)) : numbers * scales.x;
    const uvec2 bits = floatBitsToUint(fma(x, vec2(-65536.0), fma(x, vec2(factor), x)));
    return highHalves(bits.x, bits.y);
}
#define BLOCK_PAIR(number) roundedPair(minimum, vec2(number), scales, factor)
#else
#define BLOCK_PAIR(number)                                                                          \
    packFloat2x16(minimum ? fma(number, f16vec2(scales.x), f16vec2(scales.y)) : (number) * f16vec2(scales.x))
#endif
// Eight numbers of a block times their scale, plus the minimum. The upper halves of BYTES_ARE_NIBBLES may hold anything.
uvec4 blockPairs(uint type, uvec2 bytes, vec2 scales) {
    if (LATENT_ROWS(type) != 0) { // scales are below 2^120, as the largest number times one is a float32
        const uvec4 pairs = float8OrNaN(uvec4(float8Pairs(bytes.x), float8Pairs(bytes.y)), bytes);
        const float times = scales.x * STORED_FACTOR(FLOAT8);
#define LATENT_PAIR(pair) PACK2(unpackHalf2x16(pair).x * times, unpackHalf2x16(pair).y * times)
        return uvec4(LATENT_PAIR(pairs.x), LATENT_PAIR(pairs.y), LATENT_PAIR(pairs.z), LATENT_PAIR(pairs.w));
    }
    const uint mask = BYTES_ARE_NIBBLES(type) ? 0x000f000fu : 0x00ff00ffu, flip = IN(SIGNED, type) != 0 ? 0x64806480u : 0x64006400u;
    const f16vec2 zero = f16vec2(1024.0 + ZERO_OF(type));
    const uvec2 low = bytePairs(bytes.x, mask, flip), high = bytePairs(bytes.y, mask, flip);
    const bool minimum = IN(MINIMUM, type) != 0;
#ifdef DTYPE_BF16
    const bool infinite = abs(scales.x) > 65504.0;
    const float factor = infinite || abs(scales.y) > 65504.0 ? INFINITY : 65536.0;
    if (infinite) { // a minimum that is Inf too leaves Inf if the signs are the same: 1 and 0 do that
        const bool same = minimum && abs(scales.y) > 65504.0 && sign(scales.x) == sign(scales.y);
        scales = vec2(sign(scales.x), same ? 0.0 : scales.y * 0.0);
    } else if (minimum && abs(scales.y) > 65504.0) {
        scales = vec2(scales.x * 0.0, sign(scales.y));
    }
#endif
    return uvec4(BLOCK_PAIR(halves(low.x) - zero), BLOCK_PAIR(halves(low.y) - zero), BLOCK_PAIR(halves(high.x) - zero), BLOCK_PAIR(halves(high.y) - zero));
}
// The same of what storedK8 or storedV8 loads, and of a vector of storedBlockK or storedBlockV.
uvec4 blockPairs(uint type, uvec4 stored, uint shift) {
    const vec2 scales = scalesOf(type, stored.z);
    if (BYTES_ARE_NIBBLES(type)) return blockPairs(type, stored.xy >> shift, scales);
    return blockPairs(type, numbersOf(type, stored.xy, stored.w), scales);
}
uvec4 blockPairs(uint type, uvec4 stored, bool odd, uint part) {
    const bool whole = UNIT_BYTES_OF(type) % 4 == 0;
    const vec2 scales = unpackHalf2x16(whole ? stored.w : odd ? stored.w >> 16 : stored.w & 0xffffu);
    uvec2 bytes = stored.xy;
    if (!odd && !whole) bytes = uvec2(stored.x >> 16 | stored.y << 16, stored.y >> 16 | stored.z << 16);
    if (IN(NIBBLES, type) != 0) bytes = uvec2(bytes.x, bytes.x >> 4);
    if (!BYTES_ARE_NIBBLES(type)) bytes &= IN(NIBBLES, type) != 0 ? 0x0f0f0f0fu : 0xffffffffu;
    if (IN(FIFTH_BITS, type) != 0) {
        const uint fifth = (odd || whole ? stored.z : stored.w >> 16 | stored.z << 16) >> 4 * part;
        bytes |= uvec2(fifthBits(fifth), fifthBits(fifth >> 16));
    }
    if (type == IQ4_NL) bytes = uvec2(lookUp(bytes.x), lookUp(bytes.y));
    return blockPairs(type, bytes, scales);
}
// The same of Inf and NaN of float8 e5m2: all bits of the exponent set.
uint nonFiniteBytes(uint bytes) { return (bytes & 0x7c7c7c7cu) + 0x04040404u; }
uint dropNonFiniteBytes(uint bytes) { return bytes & ~((nonFiniteBytes(bytes) >> 7 & 0x01010101u) * 0xffu); }
bool dropsNonFiniteBytes(inout uvec4 vec) {
    const bool any = ((nonFiniteBytes(vec.x) | nonFiniteBytes(vec.y)) & 0x80808080u) != 0;
    if (any) vec.xy = uvec2(dropNonFiniteBytes(vec.x), dropNonFiniteBytes(vec.y));
    return any;
}
// The pairs of one vector with NaN.
uvec4 exactPairsOrNaN(uint type, uvec2 bytes) {
    const uvec4 pairs = exactPairs(type, bytes);
    return STORED_FACTOR(type) != 1.0 && hasNaN(bytes) ? float8OrNaN(pairs, bytes) : pairs;
}
// The same in the order of the columns.
uvec4 inOrder(uvec4 pairs) {
    return uvec4(lowHalves(pairs.x, pairs.y), highHalves(pairs.x, pairs.y), lowHalves(pairs.z, pairs.w), highHalves(pairs.z, pairs.w));
}
// Eight elements in pairs from what storedK8 and storedV8 load. In float16 a product and a minimum are rounded once in float32 alone: a
// driver need not fuse them.
uvec4 storedPairs(uint type, uvec4 stored) {
    if (KEY_SCALES) return exactPairsOrNaN(type, stored.xy);
    return DTYPE != TYPE_BF16 && IN(MINIMUM, type) != 0 ? inOrder(dequantize16(type, stored)) : blockPairs(type, stored, stored.w);
}
// Q's columns in the order of K's words.
#ifndef PAIRED_COLUMNS
#define PAIRED_COLUMNS (IN(SCALED | BLOCKS, K_TYPE) != 0)
#endif
uvec4 interleavePairs(uvec4 q) { return PAIRED_COLUMNS ? inOrder(q) : q; }
