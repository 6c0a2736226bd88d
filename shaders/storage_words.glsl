// Words of two 16-bit storage values: packing, Inf and NaN, interleaving.

// Two float32 rounded to the storage type.
uint pack2(float x, float y) {
#ifdef DTYPE_BF16
    return encode16x2(x, y);
#else
    return packFloat2x16(f16vec2(x, y));
#endif
}

// Inf and NaN: all exponent bits are set.
const uint EXPONENT_MASK = DTYPE == TYPE_BF16 ? 0x7f80u : 0x7c00u;

bool nonFinite(uint half_) { return (half_ & EXPONENT_MASK) == EXPONENT_MASK; }
bool nonFinite(float x) { return (floatBitsToUint(x) & 0x7f800000u) == 0x7f800000u; }

// Replaces Inf and NaN by zero. True if there were any.
bool dropNonFinite(inout uvec4 v) {
    bool any_ = false;
    for (uint i = 0; i < 4; ++i) {
        if (nonFinite(v[i] & 0xffffu)) { v[i] &= 0xffff0000u; any_ = true; }
        if (nonFinite(v[i] >> 16)) { v[i] &= 0xffffu; any_ = true; }
    }
    return any_;
}

// The low halves of two words, and the high halves. Moving them as float16, whatever the type, takes one instruction.
uint lowHalves(uint a, uint b) { return packFloat2x16(f16vec2(unpackFloat2x16(a).x, unpackFloat2x16(b).x)); }
uint highHalves(uint a, uint b) { return packFloat2x16(f16vec2(unpackFloat2x16(a).y, unpackFloat2x16(b).y)); }
