// Dropout in the backward kernels. With M the mask times 1 / (1 - probability): O = (P M) V, so dV = (P M)^T dO,
// dP = M (dO V^T), and delta = rowsum(dO * O) still is rowsum(P * dP).
//
// backward_delta.comp stores seed, offset and threshold in scratch memory, behind the statistics: parameters are full.
float keptScale; // 1 / (1 - probability)

void openDropout() {
    const uvec2 end = add64(uvec2(statRows(), 0), uvec2(statRows(), 0));
    uvec2 pairs[2];
    [[unroll]] for (uint i = 0; i < 2; ++i) {
        const uvec2 index = add64(end, uvec2(i, 0));
#if BDA
        pairs[i] = ReadPairs(add64(p.addrStats, uvec2(index.x << 3, index.y << 3 | index.x >> 29))).at[0];
#else
        pairs[i] = stats[p.addrStats.x + index.x];
#endif
    }
    dropout = Dropout(pairs[0], pairs[1].x, pairs[1].y);
    keptScale = dropoutScale();
}
