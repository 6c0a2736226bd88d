// Row statistics of the backward pass, in scratch memory: pairs of float32 (LSE, delta), packed [B, Hq, Sq] as LSE is.
// backward_delta.comp writes them. LSE is the natural logarithm of forward, but +Inf where that is -Inf:
// exp(score - LSE) of a row with nothing to attend to is then 0.
//
// The pairs (rest, dLSE) of all rows follow. rest is what float32 rounds off LSE, 0 but for a large LSE: the kernels of LSE
// write it. The scalar kernels have dLSE there: where one key takes all of P, dP - delta is exactly 0 and dLSE keeps its
// bits. For the coopmat kernels backward_delta.comp subtracts dLSE from delta (DLSE_IN_DELTA) and writes 0.
//
// With DROPOUT seed, offset and threshold follow, see backward_dropout.glsl; dS, if it is stored, is behind them.

uint statRows() { return (VARLEN & CU_Q) != 0 ? p.Hq * p.totalQ : p.sequences * p.Hq * p.Sq; }

// Pair `index` of the statistics, below 2^33.
#if BDA
vec2 loadPairAt(uvec2 index) {
    const uvec2 two = ReadPairs(add64(p.addrStats, uvec2(index.x << 3, index.y << 3 | index.x >> 29))).at[0];
    return uintBitsToFloat(two);
}
#else
layout(set = 0, binding = 4, std430) READ_ONLY buffer Stats { uvec2 stats[]; };
vec2 loadPairAt(uvec2 index) { return uintBitsToFloat(stats[p.addrStats.x + index.x]); }
#endif
vec2 loadStatsAt(uint index) { return loadPairAt(uvec2(index, 0)); }
vec2 loadMoreAt(uint index) { return loadPairAt(add64(uvec2(statRows(), 0), uvec2(index, 0))); }
float loadRest(uint index) { return loadMoreAt(index).x; }

// From this |LSE| on, rounding LSE errs as much as products in the storage type.
const float LARGE_LSE = IS_16 ? 256.0 : 16.0;
bool isLarge(float lse) { return abs(lse) >= LARGE_LSE && abs(lse) < INFINITY; } // and not NaN

// From this |LSE| on (attention.MaxFastScore) the coopmat kernels cannot subtract it from a product: fma(S, scale, -LSE) is
// off by more than 1. Their kernels of LSE write NaN as the rest, and the gradients of the row are NaN.
#define IS_FAR_LSE(lse) (!SCORE_MOD && abs(lse) > 16777216.0 && abs(lse) < INFINITY)

struct RowStats { float lse, delta, rest, dLSE; };

// The statistics of a row of the sequence; an LSE of +Inf past its end.
RowStats loadStats(uint row) {
    if (row >= work.rows) return RowStats(INFINITY, 0.0, 0.0, 0.0);
    const uint index = rowIndex(row);
    const vec2 two = loadStatsAt(index), more = loadMoreAt(index);
    return RowStats(two.x, two.y, more.x, more.y);
}
