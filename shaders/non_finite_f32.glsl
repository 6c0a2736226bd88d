// Inf and NaN in V of float32, as in non_finite_dense.glsl: masked tiles are multiplied without them, and the epilogue adds
// them to the rows that attend to such a key, while a fragment of O is in scratch.
void addToScratch(uint row, uint col, float x) { storeScratch(row, col, loadScratch(row, col) + x); }

// Adds the Inf and NaN of four columns from col on, of the keys from firstKey on, to a row of the fragment in scratch.
void addNonFinite(WorkTile work, uint fragRow, uint fragCol, uint row, uint col, uint firstKey) {
    const uint end = visibleKeys(row);
    for (uint key = firstKey; key < end; ++key) {
        const uvec4 v = load4V(sliceV(work.batch, work.kvHead, key), col, elementsFromV(col));
        for (uint e = 0; e < 4; ++e) {
            const float x = uintBitsToFloat(v[e]);
            if (nonFinite(x)) addToScratch(fragRow, fragCol + e, x);
        }
    }
}
