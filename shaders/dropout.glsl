// Dropout: which slots (row, key) keep their weight. The mask is a function of position, seed and offset, so that forward
// and backward have the same one whatever their tiles, splits and layouts, and none is stored.
//
// The slot of query i and key j, counted from the start of their sequence, of query head h of sequence b takes word j % 4
// of Philox4x32-10 (Salmon, Moraes, Dror and Shaw, 2011) with the counter (j / 4, i, b * Hq + h, offset) and the key seed.
// It keeps its weight if the word is at least the threshold, which is the probability times 2^32.
//
// The kernel has the section CONSTANTS_DROPOUT of constants.glsl and sets `dropout` before the first mask.
struct Dropout {
    uvec2 seed;
    uint offset, threshold;
};
Dropout dropout;

uvec4 philox4x32(uvec4 counter, uvec2 key) {
    [[unroll]] for (uint round = 0; round < 10; ++round) {
        uint high0, low0, high1, low1;
        umulExtended(0xD2511F53u, counter.x, high0, low0);
        umulExtended(0xCD9E8D57u, counter.z, high1, low1);
        counter = uvec4(high1 ^ counter.y ^ key.x, low1, high0 ^ counter.w ^ key.y, low0);
        key += uvec2(0x9E3779B9u, 0xBB67AE85u);
    }
    return counter;
}

// Bit i is 1 if the row keeps key 4 * quad + i.
uint keptOfFour(uint row, uint quad) {
    const uvec4 words = philox4x32(uvec4(quad, queryOf(row), work.batch * p.Hq + headOf(row), dropout.offset), dropout.seed);
    const uvec4 keep = uvec4(greaterThanEqual(words, uvec4(dropout.threshold)));
    return keep.x | keep.y << 1 | keep.z << 2 | keep.w << 3;
}

// The same of four slots of the KV loop from slot `first` on, a multiple of 4. Slots are keys, or with `listed` those that
// KEY_OF_SLOT(slot) gives, which are anywhere.
#define KEPT_OF_SLOTS(result, row, first, listed, KEY_OF_SLOT)                                      \
    {                                                                                               \
        if (!(listed)) result = keptOfFour(row, (first) / 4);                                       \
        else {                                                                                      \
            result = 0;                                                                             \
            [[dont_unroll]] for (uint slot = 0; slot < 4; ++slot) {                                 \
                const uint key = KEY_OF_SLOT((first) + slot);                                       \
                result |= (keptOfFour(row, key / 4) >> key % 4 & 1u) << slot;                       \
            }                                                                                       \
        }                                                                                           \
    }

// The factor of the weights that remain, 1 / (1 - probability).
float dropoutScale() { return 4294967296.0 / float(~dropout.threshold + 1u); }

#ifdef BACKWARD
// -- backward -------------------------------------------------------------------------------------
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
#endif
