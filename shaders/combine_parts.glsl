// How parts of split keys are added up: the same operations in the same order, so the same bits, in combine.comp
// and in decode_combine.glsl. A part counts with exp(its LSE - the largest). Chain c adds parts c, c + CHAINS,
// c + 2 CHAINS, ... in this order, and chain after chain is added to the first; the sum is divided by that of the
// weights, which are added in the order of the parts.
#ifndef SPLIT_WEIGHTS_GLSL
#define SPLIT_WEIGHTS_GLSL

const uint MAX_SPLITS = 1024;   // of combine.comp
const uint OCTETS = (HEAD_DIM_V + 7) / 8;
// combine.comp has 128 invocations, each with eight columns of a chain; decode_combine.glsl asks for eight parts at a time.
const uint CHAINS = 128 / OCTETS >= 8 ? 8 : 128 / OCTETS >= 4 ? 4 : 128 / OCTETS >= 2 ? 2 : 1;
const float MIN_WEIGHT_EXPONENT = -80.0;                 // less is no weight at all: its exp, over the total, may be subnormal
const uint EMPTY_LSE = 0xff800000u;             // -Inf: the LSE of a row that attended to nothing
const uint NAN_ROW = 0x7fc00000u;     // what a row is with an LSE of NaN or +Inf

// Bits of an LSE that make its row NaN. Looked at as bits: compilers may take NaN for impossible.
bool invalidatesLSE(uint bits) { return (bits & 0x7fffffffu) > 0x7f800000u || bits == 0x7f800000u; }

// What a part counts. Exactly 1 for the largest: exp need not be exact.
float splitWeight(float lse, float maxLSE) {
    precise const float below = lse - maxLSE;
    return floatBitsToUint(lse) == EMPTY_LSE || below < MIN_WEIGHT_EXPONENT ? 0.0 : lse == maxLSE ? 1.0 : exp(below);
}

// The factor of the sum of weighted parts; total is at least 1 where any part attended to anything.
float inverseTotal(float total) { return total == 1.0 ? 1.0 : 1.0 / total; }

#endif
