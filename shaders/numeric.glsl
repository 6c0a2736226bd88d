// Conversions between the storage types and float32 in core GLSL, without any 16-bit capability, and the logarithm.
// Encoding rounds to nearest even, subnormals included. A number out of range becomes infinity, a NaN keeps its
// sign and upper payload. packHalf2x16 is not used, as drivers choose its rounding.
#ifndef NUMERIC_GLSL
#define NUMERIC_GLSL

const float LN2 = 0.6931471805599453;
#define INFINITY uintBitsToFloat(0x7f800000u)

// Natural logarithm of a positive number to about 2 units in the last place. Near 1 the built-in may be off by 2^-21,
// more than a small LSE. With the mantissa m in [sqrt(1/2), sqrt(2)) and s = (m - 1) / (m + 1), ln m = 2 atanh s.
// Inf and NaN are returned as they are.
float naturalLog(float x) {
    if (!(x < 3.0e38)) return x;
    const uint bits = floatBitsToUint(x);
    int exponent = int(bits >> 23) - 127;
    float m = uintBitsToFloat((bits & 0x007fffffu) | 0x3f800000u);
    if (m > 1.41421356) {
        m *= 0.5;
        exponent++;
    }
    const float f = m - 1.0, s = f / (2.0 + f), z = s * s;
    const float tail = z * (0.33333333 + z * (0.2 + z * (0.14285714 + z * 0.11111111)));
    return fma(float(exponent), LN2, 2.0 * fma(s, tail, s));
}

uint encodeF16(float value) {
    const uint bits = floatBitsToUint(value);
    const uint sign = (bits >> 16) & 0x8000u;
    const uint magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return sign | 0x7e00u | ((magnitude >> 13) & 0x1ffu); // NaN, made quiet
    if (magnitude >= 0x477ff000u) return sign | 0x7c00u; // from 65520 on the nearest is infinity
    if (magnitude >= 0x38800000u) {                      // from 2^-14 on: normal in f16
        const uint rebased = magnitude - 0x38000000u;    // exponent bias 127 -> 15
        return sign | ((rebased + 0xfffu + ((rebased >> 13) & 1u)) >> 13);
    }
    if (magnitude < 0x33000000u) return sign;            // under 2^-25: nearer to zero
    const uint mantissa = (magnitude & 0x7fffffu) | 0x800000u;
    const uint shift = 126u - (magnitude >> 23);         // 14..24: the subnormal step is 2^-24
    const uint rounded = mantissa >> shift;
    const uint rest = mantissa & ((1u << shift) - 1u);
    const uint tie = 1u << (shift - 1u);
    return sign | (rounded + uint(rest > tie || (rest == tie && (rounded & 1u) != 0u)));
}

uint encodeBF16(float value) {
    const uint bits = floatBitsToUint(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (bits >> 16) | 0x40u; // NaN, made quiet
    return (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
}

// One 16-bit element, in the low half of the result.
uint encode16(float value) {
    return DTYPE == TYPE_BF16 ? encodeBF16(value) : encodeF16(value);
}

// Two 16-bit elements in one word, x in the low half.
uint encode16x2(float x, float y) {
    return encode16(x) | (encode16(y) << 16);
}

// The two 16-bit elements of a word. unpackHalf2x16 is exact, as every f16 is a normal float32 or zero; lavapipe and
// SwiftShader were tested with all 65536. A subnormal bf16 is a subnormal float32, which arithmetic may flush to
// zero; both drivers do.
vec2 decode16x2(uint word) {
    if (DTYPE == TYPE_BF16) return vec2(uintBitsToFloat(word << 16), uintBitsToFloat(word & 0xffff0000u));
    return unpackHalf2x16(word);
}

float decode16(uint bits) {
    return decode16x2(bits).x;
}

#endif
