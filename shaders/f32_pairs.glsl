// A float32 as a pair of float16 numbers, for unmasked KV tiles whose numbers are in range. Three products of a pair with a
// pair take half the time of six products of terms (f32_terms.glsl), and Q takes two thirds of the registers.
//
//   x 2^8 = hi + lo   hi is the float16 nearest to x 2^8, lo that nearest to the rest
//   x y 2^16 = hi hi + (hi lo + lo hi) + what is left out, at most 2^-22 |x y| 2^16
//
// hi and lo hold 23 of the 24 bits of x: the rest has at most 13, and one is rounded off if it has 13. float16 ends, though:
// x 2^8 is at most 65504, and the pair of a small x is off by up to 2^-33. So a tile is multiplied in pairs only if
//   K and Q   eight neighbours of a row add up to PAIR_LIMIT_QK at most in absolute value: what the ends of float16 change
//             in a score is under 2^-22 in log2 units, one rounding of a score of 4
//   V         eight neighbours of a row are zero, or add up to 2^-4 at least and 2^7 at most: 2^-33 is under 2^-26 of the
//             largest of them
// Inf and NaN are out of range. With the first tile out of range a workgroup leaves the loop for that with terms.
//
// P is a pair of P 2^7: it is at most 2^8, and off by up to 2^-32 where the largest P of the row is at least 1. Bits of a
// row depend on whether its tiles are in range. The loop has only keys that all rows of the workgroup attend to, so these
// bits do not depend on masked keys.
const uint PAIR = 2;
const uint PAIR_HI = 0, PAIR_LO = 1;
const float PAIR_SCALE = 256.0;                 // of Q, K and V
const float PAIR_P_SHIFT = 7.0, PAIR_P_SCALE = 128.0; // of P: log2 and itself
const float PAIR_LEAST_V = 0.0625, PAIR_MOST = 127.0;
// Errors of 2^-33 in K add up to 2^-33 |Q|, and |Q| is the sum of HEAD_DIM / 8 sums of eight; those in Q likewise.
#define PAIR_LIMIT_QK min(PAIR_MOST, 8192.0 / (float((HEAD_DIM + 7) / 8 * 8) * SCORE_SCALE))

#define PairA coopmat<float16_t, SCOPE, FRAG_M, FRAG_K, gl_MatrixUseA>
#define PairB coopmat<float16_t, SCOPE, FRAG_K, FRAG_N, gl_MatrixUseB>

// The float16 nearest to x, halves away from zero, as a float32; x becomes the rest. By its bits: a compiler may take a
// float16 that becomes a float32 again for x (lavapipe of Mesa 26.2 does).
float takeHalf(inout float x) {
    const float hi = uintBitsToFloat((floatBitsToUint(x) + 0x1000u) & 0xffffe000u);
    x -= hi;
    return hi;
}
uint takeHalves(inout float x, inout float y) {
    const float a = takeHalf(x), b = takeHalf(y);
    return packFloat2x16(f16vec2(a, b));
}
// The pairs of eight numbers, in place, and the sum of their absolute values before they are scaled.
float splitPairs(inout uvec4 low, inout uvec4 high) {
    vec4 a = uintBitsToFloat(low), b = uintBitsToFloat(high);
    const float sum = ((abs(a.x) + abs(a.y)) + (abs(a.z) + abs(a.w))) + ((abs(b.x) + abs(b.y)) + (abs(b.z) + abs(b.w)));
    a *= PAIR_SCALE;
    b *= PAIR_SCALE;
    low = uvec4(takeHalves(a.x, a.y), takeHalves(a.z, a.w), takeHalves(b.x, b.y), takeHalves(b.z, b.w));
    high = uvec4(packFloat2x16(f16vec2(a.x, a.y)), packFloat2x16(f16vec2(a.z, a.w)),
                 packFloat2x16(f16vec2(b.x, b.y)), packFloat2x16(f16vec2(b.z, b.w)));
    return sum;
}
// By the sum of eight neighbours. Tests bits, as a compiler may assume that no float is NaN: positive floats are in the order
// of their bits, and NaN and Inf are the last.
bool atMost(float sum, float limit) { return floatBitsToUint(sum) <= floatBitsToUint(limit); }
bool inRangeV(float sum) { return sum == 0.0 || atMost(PAIR_LEAST_V, sum) && atMost(sum, PAIR_MOST); }
