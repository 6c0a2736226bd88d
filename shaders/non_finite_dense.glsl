// Inf and NaN in V. P of a masked key is 0, but 0 x Inf is NaN: masked tiles are multiplied without them, and the
// epilogue adds them to the rows that attend to such a key, while a fragment of O is in scratch.

// Adds x to element e of vector `group` of the fragment in scratch.
void addToScratch(uint group, uint e, float x) {
    const uint r = group / (FRAG_N / 8), c = group % (FRAG_N / 8) * 8 + e;
    storeScratch(r, c, loadScratch(r, c) + x);
}

// Adds the Inf and NaN of the keys from firstKey on.
void addNonFinite(WorkTile work, uint group, uint row, uint col, uint firstKey) {
    const uint end = visibleKeys(row);
    for (uint key = firstKey; key < end; ++key) {
        const uvec4 v = loadV8(sliceV(work.batch, work.kvHead, key), 0, col);
        for (uint e = 0; e < 8; ++e) {
            const uint bits = (v[e / 2] >> (e % 2 * 16)) & 0xffffu;
            if (nonFinite(bits)) addToScratch(group, e, decode16(bits));
        }
    }
}
