// Which keys a row attends to: causal, window, sequence end, mask bytes, block-sparse mask. And the bias.

// Causal mask and window: a row attends to no key outside [visibleStart(row), visibleEnd(row)).
uint visibleEnd(uint row) {
    int end = int(work.seqlenK);
    const int at = int(queryOf(row)) + work.causalOffset;
    if (CAUSAL != 0) end = min(end, at + 1);
    if ((WINDOW & 2u) != 0) end = min(end, at + p.windowRight + 1); // the host keeps this within 32 bits
    return uint(max(end, 0));
}

uint visibleStart(uint row) {
    if ((WINDOW & 1u) == 0) return 0;
    return uint(max(int(queryOf(row)) + work.causalOffset - p.windowLeft, 0));
}

// Every KV tile goes through the masked loop: its mask or bias depends on row and key. A kernel that checks the keys of
// a tile of sparse tokens by itself (CHECKS_SPARSE_TILES) may leave those unmasked.
#ifndef CHECKS_SPARSE_TILES
#define CHECKS_SPARSE_TILES 0
#endif
const bool MASK_EVERY_TILE = (1 - CHECKS_SPARSE_TILES) * SPARSE_TOKENS + SPARSE_BLOCK_Q + ALIBI + BIAS + MASK != 0;
// Scores are modified (score_mod.glsl); otherwise they stay products Q K^T until the row max is subtracted.
const bool SCORE_MOD = SOFTCAP + ALIBI + BIAS != 0;
// Scores are exponents of e: other libraries mask with a bias of the lowest finite float32, which would overflow
// times log2(e).
const bool NATURAL_SCORES = ALIBI + BIAS != 0;
// Rows of a KV tile may attend to different keys of it.
const bool ROW_MASKS = CAUSAL + WINDOW + SPARSE_TOKENS + SPARSE_BLOCK_Q + MASK != 0;

float loadBias(uint head, uint query, uint key) {
    const uint at = biasStart() + work.batch * p.strideBiasBatch + head * p.strideBiasHead + query * p.strideBiasRow + key;
    if (BIAS == 3) return uintBitsToFloat(loadBiasWord(at));
    const uint half_ = (loadBiasWord(at >> 1) >> ((at & 1u) * 16u)) & 0xffffu;
    return BIAS == 2 ? uintBitsToFloat(half_ << 16) : unpackHalf2x16(half_).x;
}

// Row and key may be past the end of the sequence.
bool attends(uint row, uint key) {
    bool yes = row < work.rows && key >= visibleStart(row) && key < visibleEnd(row);
    if (MASK != 0 && yes) {
        const uint at = maskStart() + work.batch * p.strideMaskBatch + headOf(row) * p.strideMaskHead
            + queryOf(row) * p.strideMaskRow + key;
        yes = ((loadMaskWord(at >> 2) >> ((at & 3u) * 8u)) & 0xffu) != 0;
    }
    if (SPARSE_BLOCK_Q != 0 && yes) {
        const uint j = key / SPARSE_BLOCK_K;
        const uint at = work.batch * p.strideMaskBatch + headOf(row) * p.strideMaskHead + queryOf(row) / SPARSE_BLOCK_Q * p.strideMaskRow;
        yes = (loadMask(at + j / 32) >> (j % 32) & 1u) != 0;
    }
    return yes;
}

// The block-sparse mask excludes every (row, key) of a tile.
bool skipsSparseTile(uint firstRow, uint lastRow, uint firstKey, uint lastKey) {
    if (SPARSE_BLOCK_Q == 0) return false;
    const uint heads = p.strideMaskHead != 0 ? ROWS_PER_QUERY : 1;
    for (uint h = 0; h < heads; ++h)
        for (uint i = queryOf(firstRow) / SPARSE_BLOCK_Q; i <= queryOf(lastRow) / SPARSE_BLOCK_Q; ++i)
            for (uint j = firstKey / SPARSE_BLOCK_K; j <= lastKey / SPARSE_BLOCK_K; ++j) {
                const uint at = work.batch * p.strideMaskBatch + (work.head + h) * p.strideMaskHead + i * p.strideMaskRow;
                if ((loadMask(at + j / 32) >> (j % 32) & 1u) != 0) return false;
            }
    return true;
}
