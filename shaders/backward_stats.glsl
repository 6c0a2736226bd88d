// Row statistics of the backward pass: two float32 per row in scratch memory, (LSE, delta), packed [B, Hq, Sq] as LSE is.
// backward_delta.comp writes them. LSE is the natural logarithm of forward, but +Inf where that is -Inf: exp(x - LSE)
// of a row with nothing to attend to is then 0.

#if BDA
vec2 loadStatsAt(uint index) {
    const uvec2 two = ReadPairs(add64(p.addrStats, uvec2(index << 3, index >> 29))).at[0];
    return uintBitsToFloat(two);
}
#else
layout(set = 0, binding = 4, std430) READ_ONLY buffer Stats { uvec2 stats[]; };
vec2 loadStatsAt(uint index) { return uintBitsToFloat(stats[p.addrStats.x + index]); }
#endif

// (LSE, delta) of a row of the sequence; (+Inf, 0) past its end.
vec2 loadStats(uint row) {
    return row < work.rows ? loadStatsAt(rowIndex(row)) : vec2(INFINITY, 0.0);
}
