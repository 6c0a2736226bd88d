// Float operations that a compiler must not simplify.

// fma(product, scale, -rowMax) subtracts a rounded score from an exact one. From this row max on (log2 units)
// the difference is off by half and more, and P may overflow or vanish. The scalar kernel rounds both
// scores there. The cooperative-matrix kernels do not: a remedy slows their KV loop by 3 to 20 %, so they
// take scores up to attention.MaxFastScore, and their rows are NaN beyond (docs/log/vulkan.md, 49).
const float LARGE_SCORE = 8388608.0;
float roundedDifference(float product, float scale, float rowMax) {
    precise const float score = product * scale;
    precise const float difference = score - rowMax;
    return difference;
}

// Tests the bits: a compiler may assume that no float is NaN.
const uint NAN_BITS = 0x7fc00000u;
bool isNaN(float x) { return (floatBitsToUint(x) & 0x7fffffffu) > 0x7f800000u; }
