// How splits are combined: O = sum(exp(LSE_i - max) O_i) / sum(exp(LSE_i - max)). combine.comp and
// decode_combine.glsl do the same operations in the same order and so give the same bits: chain c adds splits c, c +
// CHAINS, c + 2 CHAINS, ... in this order, the chains are added to the first one in order, and the weights are added
// in the order of the splits.
#ifndef SPLIT_WEIGHTS_GLSL
#define SPLIT_WEIGHTS_GLSL

const uint MAX_SPLITS = 1024;   // of combine.comp
const uint OCTETS = (HEAD_DIM_V + 7) / 8;
// combine.comp has 128 invocations, one per eight columns of a chain; decode_combine.glsl loads eight splits at a time.
const uint CHAINS = 128 / OCTETS >= 8 ? 8 : 128 / OCTETS >= 4 ? 4 : 128 / OCTETS >= 2 ? 2 : 1;
const float MIN_WEIGHT_EXPONENT = -80.0;   // below it the weight is 0: divided by the total it might be subnormal
const uint EMPTY_LSE = 0xff800000u;        // -Inf: LSE of a row that attended to nothing
const uint NAN_ROW = 0x7fc00000u;          // a row with an LSE of NaN or +Inf

// An LSE that makes its row NaN. Tests the bits: a compiler may assume that no float is NaN.
bool invalidatesLSE(uint bits) { return (bits & 0x7fffffffu) > 0x7f800000u || bits == 0x7f800000u; }

// exp(lse - maxLSE), exactly 1 for the largest: exp need not be exact.
float splitWeight(float lse, float maxLSE) {
    precise const float below = lse - maxLSE;
    return floatBitsToUint(lse) == EMPTY_LSE || below < MIN_WEIGHT_EXPONENT ? 0.0 : lse == maxLSE ? 1.0 : exp(below);
}

// LSE of a row that attended to something.
float combinedLSE(float maxLSE, float total) {
    precise const float lse = maxLSE + naturalLog(total);
    return lse;
}

// 1 / total. total is at least 1 if any split attended to anything.
float inverseTotal(float total) { return total == 1.0 ? 1.0 : 1.0 / total; }

#endif
