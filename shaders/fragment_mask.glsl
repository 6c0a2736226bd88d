// Mask, soft cap, ALiBi and bias of a fragment of scores, in calls with options.

// Score of a product x. firstKey is the first slot of the KV tile, col a column of the tile.
float maskedScore(uint row, uint firstKey, uint col, float x) {
    const uint key = SPARSE_TOKENS != 0 ? TILE_KEY(col) : firstKey + col;
    if (!attends(row, key)) return -INFINITY;
    return SCORE_MOD ? scoreMod(x * abs(p.scoreScale), row, key) : x;
}

// In masked tiles every element depends on its row and key; in unmasked tiles only the soft cap changes scores.
#define applyMaskAndBias(x, firstRow, firstKey, firstCol, masked)                                   \
    if (masked != 0) maskAndBiasElements(x, firstRow, firstKey, firstCol)                           \
    else if (SOFTCAP != 0) {                                                                        \
        [[unroll]] for (uint e = 0; e < x.length(); ++e) x[e] = applySoftcap(x[e] * abs(p.scoreScale)); \
    }
