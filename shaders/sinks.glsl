// Attention sinks: one logit per head takes part in the softmax and adds no value. Split 0 alone counts it.

// A sink of NaN or +Inf makes its rows NaN, even a row without keys.
bool invalidatesRow(uint sink) { return sink == 0x7f800000u || isNaN(uintBitsToFloat(sink)); }

// exp(sink - row max): the term of the sink in the row sum. NaN makes O NaN.
float sinkTerm(uint row, float rowMax) {
    if (splitIndex() != 0) return 0.0;
    const uint bits = loadSinks(headOf(row));
    if (invalidatesRow(bits)) return uintBitsToFloat(NAN_BITS);
    const float sink = uintBitsToFloat(bits);
    return NATURAL_SCORES ? exp2((sink - rowMax) * LOG2E) : exp2(LOG2E * sink - rowMax);
}

// LSE over keys and sink, from the LSE over the keys.
float lseWithSink(uint row, float lse) {
    if (SINKS == 0 || splitIndex() != 0 || isNaN(lse)) return lse;
    const uint bits = loadSinks(headOf(row));
    if (invalidatesRow(bits)) return uintBitsToFloat(NAN_BITS);
    const float sink = uintBitsToFloat(bits);
    if (floatBitsToUint(lse) == 0xff800000u) return sink;
    const float highest = max(lse, sink);
    return highest + naturalLog(exp(lse - highest) + exp(sink - highest));
}
