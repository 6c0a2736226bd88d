// Attention sinks: one logit per head takes part in the softmax and adds no value. Where the keys are split, the combine
// adds it. The includer has loadSinks(head), p.unitHigh, p.unitLow and SPLIT.

// A sink of NaN or +Inf makes its rows NaN, even a row without keys.
bool invalidatesRow(uint sink) { return sink == 0x7f800000u || isNaN(uintBitsToFloat(sink)); }

// exp(sink - row max): the term of the sink in the row sum. NaN makes O NaN.
float sinkTerm(uint head, float rowMax) {
    const uint bits = loadSinks(head);
    if (invalidatesRow(bits)) return uintBitsToFloat(NAN_BITS);
    const float sink = uintBitsToFloat(bits);
    return NATURAL_SCORES ? exp2((sink - rowMax) * LOG2E) : exp2(LOG2E * sink - rowMax);
}

// What the sink multiplies a row sum by: 1 + its term / the row sum.
float sinkFactor(float term, float rowSum) { return isNaN(term) ? term : rowSum == 0.0 ? 1.0 : 1.0 + term / rowSum; }

// LSE over keys and sink, from the LSE over the keys.
float lseWithSink(uint head, float lse) {
    if (SINKS == 0 || isNaN(lse)) return lse;
    const uint bits = loadSinks(head);
    if (invalidatesRow(bits)) return uintBitsToFloat(NAN_BITS);
    const float sink = uintBitsToFloat(bits);
    if (floatBitsToUint(lse) == 0xff800000u) return sink;
    const float highest = max(lse, sink);
    return highest + naturalLog(exp(lse - highest) + exp(sink - highest));
}
