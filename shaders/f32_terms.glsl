// A float32 as the sum of three terms of 16 bits, for products of float32 on matrices of 16-bit operands.
//
//   x = hi + mid + lo   each is the 16-bit number nearest to the rest; the rest, a difference of neighbours, is exact
//   x y = hi hi + (hi mid + mid hi) + (hi lo + mid mid + lo hi) + what is left out, at most 2^-24 |x y|
//
// With bfloat16 terms (TERMS_BF16, all products of float32's exponents) the three hold all 24 bits of x. With float16
// terms x must be in float16's range; tests run these on drivers of the CPU, which have no matrices of bfloat16.
//
// Inf and NaN are terms (1 or -1, 0, x): only hi of the other factor multiplies lo, so a product with Inf has the right
// sign, and Inf times Inf is Inf. As hi, Inf would meet mid and lo too, which are 0 or have another sign: the sum would be NaN.
const uint TERMS = 3;
const uint HI = 0, MID = 1, LO = 2;

#ifdef TERMS_BF16
// The 16-bit number nearest to x, halves away from zero, in the upper half of the result; x becomes the rest.
uint takeBits(inout float x) {
    const uint bits = floatBitsToUint(x) + 0x8000u;
    x -= uintBitsToFloat(bits & 0xffff0000u);
    return bits;
}
// A compiler moves the upper half by one instruction if it is a float16 (docs/log/backward.md, 8).
STORAGE_T upperTerm(uint bits) { return uintBitsToBFloat16EXT(float16BitsToUint16(unpackFloat2x16(bits).y)); }
STORAGE_T takeTerm(inout float x) { return upperTerm(takeBits(x)); }
STORAGE_T lastTerm(float x) { return upperTerm(floatBitsToUint(x)); }
uint takeTerms(inout float x, inout float y) {
    const uint a = takeBits(x), b = takeBits(y);
    return highHalves(a, b);
}
uint lastTerms(float x, float y) { return highHalves(floatBitsToUint(x), floatBitsToUint(y)); }
// Numbers from 0x1.ffp127 on would become Inf: they are rounded down instead.
float belowOverflow(float x) {
    const uint bits = floatBitsToUint(x);
    return uintBitsToFloat((bits & 0x80000000u) | min(bits & 0x7fffffffu, 0x7f7f7fffu));
}
// Inf or NaN as a term.
uint nonFiniteTerm(uint bits) { return bits >> 16 | ((bits & 0x007fffffu) != 0 ? 0x40u : 0u); }
#else
// Rounded by its bits: a compiler may take a float16 that becomes a float32 again for x (lavapipe of Mesa 26.2 does).
STORAGE_T takeTerm(inout float x) {
    const float term = uintBitsToFloat((floatBitsToUint(x) + 0x1000u) & 0xffffe000u);
    x -= term;
    return STORAGE_T(term);
}
STORAGE_T lastTerm(float x) { return STORAGE_T(x); }
uint takeTerms(inout float x, inout float y) {
    const STORAGE_T a = takeTerm(x), b = takeTerm(y);
    return packFloat2x16(f16vec2(a, b));
}
uint lastTerms(float x, float y) { return packFloat2x16(f16vec2(x, y)); }
float belowOverflow(float x) { return x; }
uint nonFiniteTerm(uint bits) { return (bits >> 16 & 0x8000u) | ((bits & 0x007fffffu) != 0 ? 0x7e00u : 0x7c00u); }
#endif

uvec4 take8(inout vec4 a, inout vec4 b) {
    return uvec4(takeTerms(a.x, a.y), takeTerms(a.z, a.w), takeTerms(b.x, b.y), takeTerms(b.z, b.w));
}

// Eight numbers with Inf, NaN or numbers that rounding would make Inf among them.
uvec4 takeLarge8(inout vec4 a, inout vec4 b) {
    vec4 c = vec4(belowOverflow(a.x), belowOverflow(a.y), belowOverflow(a.z), belowOverflow(a.w));
    vec4 d = vec4(belowOverflow(b.x), belowOverflow(b.y), belowOverflow(b.z), belowOverflow(b.w));
    const vec4 overC = a - c, overD = b - d;
    const uvec4 hi = take8(c, d);
    a = c + overC; // exact: both are multiples of the last place of the number
    b = d + overD;
    return hi;
}
uint withNonFinite(uint terms, uint x, uint y) {
    if (nonFinite(uintBitsToFloat(x))) terms = (terms & 0xffff0000u) | nonFiniteTerm(x);
    if (nonFinite(uintBitsToFloat(y))) terms = (terms & 0xffffu) | nonFiniteTerm(y) << 16;
    return terms;
}
// x, or `instead` with the sign of x for Inf and NaN.
uint onlyFinite(uint x, float instead) { return nonFinite(uintBitsToFloat(x)) ? (x & 0x80000000u) | floatBitsToUint(instead) : x; }
uvec4 onlyFinite(uvec4 x, float instead) {
    return uvec4(onlyFinite(x.x, instead), onlyFinite(x.y, instead), onlyFinite(x.z, instead), onlyFinite(x.w, instead));
}

// Terms of eight numbers.
void splitTerms(uvec4 low, uvec4 high, out uvec4 hi, out uvec4 mid, out uvec4 lo) {
    vec4 a = uintBitsToFloat(low), b = uintBitsToFloat(high);
    hi = take8(a, b);
    mid = take8(a, b);
    lo = uvec4(lastTerms(a.x, a.y), lastTerms(a.z, a.w), lastTerms(b.x, b.y), lastTerms(b.z, b.w));
    if (isNaN((a.x + a.y) + (a.z + a.w) + ((b.x + b.y) + (b.z + b.w)))) { // Inf - Inf
        a = uintBitsToFloat(onlyFinite(low, 1.0));
        b = uintBitsToFloat(onlyFinite(high, 1.0));
        hi = takeLarge8(a, b);
        mid = take8(a, b);
        lo = uvec4(withNonFinite(lastTerms(a.x, a.y), low.x, low.y), withNonFinite(lastTerms(a.z, a.w), low.z, low.w),
                   withNonFinite(lastTerms(b.x, b.y), high.x, high.y), withNonFinite(lastTerms(b.z, b.w), high.z, high.w));
    }
}

// Replaces Inf and NaN by zero. True if there were any.
bool dropNonFinite4(inout uvec4 v) {
    const uvec4 finite = onlyFinite(v, 0.0);
    const bool any_ = finite != v;
    v = finite;
    return any_;
}
