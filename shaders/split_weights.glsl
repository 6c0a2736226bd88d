// How splits are combined. A split has O, its row max m and its row sum s: O = sum(w_i O_i) / sum(w_i) with the weights
// w_i = s_i exp(m_i - max of m). Their logarithms, the LSE, would lose s where m is large. A sink joins the sum of the
// weights. combine.comp and decode_combine.glsl do the same operations in the same order and so give the same bits: chain c adds splits c, c +
// CHAINS, c + 2 CHAINS, ... in this order, the chains are added to the first one in order, and the weights are added
// in the order of the splits.
#ifndef SPLIT_WEIGHTS_GLSL
#define SPLIT_WEIGHTS_GLSL

const uint MAX_SPLITS = 1024;   // of combine.comp
const uint OCTETS = (HEAD_DIM_V + 7) / 8;
// combine.comp has 128 invocations, one per eight columns of a chain; decode_combine.glsl loads eight splits at a time.
const uint CHAINS = 128 / OCTETS >= 8 ? 8 : 128 / OCTETS >= 4 ? 4 : 128 / OCTETS >= 2 ? 2 : 1;
const float MIN_WEIGHT_EXPONENT = -115.0;  // of two; below it the weight is 0: divided by the sum it might be subnormal

// The weight of a split; 0 for a split without keys, whose row sum is 0. A row sum of NaN makes the row NaN, one of Inf (a
// far row, softmax.glsl) only if it has weight. exp2 need not be exact at 0.
float splitWeight(float rowMax, float rowSum, float maxOfMaxima) {
    precise const float below = TO_LOG2(rowMax - maxOfMaxima);
    precise const float weight = rowSum * (rowMax == maxOfMaxima ? 1.0 : exp2(below));
    return below < MIN_WEIGHT_EXPONENT ? 0.0 : weight;
}

// 1 / sum of the weights, the sink's term included; 0 for a row without keys, NaN for a row that is NaN.
float inverseTotal(uint head, float rowMax, float total) {
    const float sink = SINKS != 0 ? sinkTerm(head, rowMax) : 0.0;
    if (isNaN(sink) || (floatBitsToUint(total) & 0x7f800000u) == 0x7f800000u) return uintBitsToFloat(NAN_BITS);
    return total == 0.0 ? 0.0 : 1.0 / (total + sink);
}

#endif
