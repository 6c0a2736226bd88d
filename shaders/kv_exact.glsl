// Eight int8 or float8 elements as exact 16-bit elements, without their scale. exactPairs takes the fewest
// instructions: of each four columns a word has columns 0 and 2, or 1 and 3, so Q's columns are put in the same
// order.

#ifdef DTYPE_BF16
uint pairOf(float x, float y) { return floatBitsToUint(x) >> 16 | floatBitsToUint(y) & 0xffff0000u; }
uvec4 exactPairs(uvec2 bytes) {
    vec4 low, high;
    decode8(bytes, 1.0, 0, low, high);
    return uvec4(pairOf(low.x, low.z), pairOf(low.y, low.w), pairOf(high.x, high.z), pairOf(high.y, high.w));
}
#else
// float8 has the fields of float16, with a bias that is 8 smaller.
uvec2 exactPairs(uint bytes) {
    uvec2 two;
    if (KV_TYPE == FLOAT8) {
        two = uvec2(bytes << 8, bytes) & 0x80008000u | uvec2(bytes << 7, bytes >> 1) & 0x3f803f80u;
        // e4m3fn: all bits set is NaN, there is no Inf.
        const uint nan = (bytes & 0x7f7f7f7fu) + 0x01010101u & 0x80808080u;
        if (nan != 0) two |= (uvec2(nan << 8, nan) & 0x80008000u) >> 1;
        return uvec2(packFloat2x16(unpackFloat2x16(two.x) * f16vec2(256.0)), packFloat2x16(unpackFloat2x16(two.y) * f16vec2(256.0)));
    }
    bytes ^= 0x80808080u; // 1024 + byte, in the low bits of a float16
    two = uvec2(bytes, bytes >> 8) & 0x00ff00ffu | 0x64006400u;
    return uvec2(packFloat2x16(unpackFloat2x16(two.x) - f16vec2(1152.0)), packFloat2x16(unpackFloat2x16(two.y) - f16vec2(1152.0)));
}
uvec4 exactPairs(uvec2 bytes) { return uvec4(exactPairs(bytes.x), exactPairs(bytes.y)); }
#endif
// The same in the order of the columns.
uvec4 exact16(uvec2 bytes) {
    const uvec4 pairs = exactPairs(bytes);
    return uvec4(lowHalves(pairs.x, pairs.y), highHalves(pairs.x, pairs.y), lowHalves(pairs.z, pairs.w), highHalves(pairs.z, pairs.w));
}
// Q's columns in the order of K's words.
uvec4 interleavePairs(uvec4 q) {
    if (!KEY_SCALES) return q;
    return uvec4(lowHalves(q.x, q.y), highHalves(q.x, q.y), lowHalves(q.z, q.w), highHalves(q.z, q.w));
}
