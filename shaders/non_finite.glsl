// Inf and NaN in V, and in dO of the backward pass. P of a masked key is 0, but 0 x Inf is NaN: masked tiles are
// multiplied without them, and the results of the rows, or keys, that attend to such a value are corrected at the end.
// That is rare, so it is code behind everything else.

#ifdef BACKWARD
// -- dV in memory, where masked tiles hold Inf or NaN in dO ---------------------------------------

// P of a slot behind dropout is not 0.
bool hasWeight(uint row, uint key) {
    if (DROPOUT != 0 && (keptOfFour(row, key / 4) >> key % 4 & 1u) == 0) return false;
    const Slice q = sliceQ(rowBatch(), work.head, work.offsetQ + queryOf(work.row0));
    const Slice k = sliceK(kvBatch(), work.kvHead, work.offsetK + key);
    float product = 0.0;
    [[dont_unroll]] for (uint col = 0; col < HEAD_DIM; col += 8) {
        vec4 lowQ, highQ, lowK, highK;
        loadFloatsAtQ(q, rowElement(row, p.strideQHead, p.strideQSeq), col, lowQ, highQ);
        loadFloatsK(k, 0, col, lowK, highK);
        product += dot(lowQ, lowK) + dot(highQ, highK);
    }
    const float lse = loadStatsAt(rowIndex(row)).x;
    const float exponent = SCORE_MOD ? scoreMod(product * p.scoreScale, row, key) - lse : fma(product, p.scoreScale, -lse);
    return exponent != exponent || exp2(exponent * LOG2E) != 0.0;
}

// Adds to dV what the rows that attend to a key have in columns [col, col + columns) of dO, if it is not finite.
void addNonFiniteDO(Slice dV, RowTiles tiles, uint key, uint rowOfKey, uint col, uint columns) {
    const uint end = min((tiles.first + tiles.count) * ROW_TILE, work.rows);
    [[dont_unroll]] for (uint row = tiles.first * ROW_TILE; row < end; ++row) {
        if (!attends(row, key)) continue;
        work.row0 = row - row % ROWS_PER_QUERY;
        const Slice dO = sliceDO(rowBatch(), work.head, work.offsetQ + queryOf(work.row0));
        const uint element = rowElement(row, p.strideDOHead, p.strideDOSeq);
        [[dont_unroll]] for (uint i = col; i < min(col + columns, HEAD_DIM_V); ++i) {
#ifdef DTYPE_F32
            const float x = uintBitsToFloat(loadWordDO(dO, element + i));
            if (nonFinite(x) && hasWeight(row, key)) addOneDV(dV, rowOfKey * p.strideDVSeq + i, x);
#else
            const uint half_ = loadHalfDO(dO, element + i);
            if (nonFinite(half_) && hasWeight(row, key)) addOneDV(dV, rowOfKey * p.strideDVSeq + i, decode16(half_));
#endif
        }
    }
}

#elif GENERAL
// -- O of the general kernels, in memory ----------------------------------------------------------
// One loop over O in memory: unrolled over the fragments of O it took NVIDIA's compiler three times as long as the rest
// (docs/log/vulkan.md, 46).

void addIfNonFinite(inout vec4 sum, vec4 x) {
    [[unroll]] for (uint e = 0; e < 4; ++e)
        if (nonFinite(x[e])) sum[e] += x[e];
}

// Adds the Inf and NaN in eight columns of V, from a multiple of 8 on, of the keys that a row attends to, in tiles n
// and on of the KV loop. Where several loops take turns at tiles, LEFT_OUT says which ones the row leaves out.
void addNonFinite(KVRange kv, uint n, uint row, uint col, inout vec4 low, inout vec4 high) {
    [[dont_unroll]] for (uint i = n * KV_TILE; i < kvTileCount(kv) * KV_TILE; ++i) {
#ifdef LEFT_OUT
        if (LEFT_OUT(i / KV_TILE)) continue;
#endif
        const uint key = keyAt(kvTileAt(kv, i / KV_TILE) * KV_TILE + i % KV_TILE);
        if (key == NO_KEY || !attends(row, key)) continue;
        const KVRow at = kvRowOf(key);
        uvec4 v = HEAD_DIM_V % 8 == 0 && V_TYPE == 0 ? load8V(rowsV(at), col) : scaledV8(rowsV(at), 0, col, at);
        vec4 four[2];
        if (KEY_SCALES) { // in float32: P may make finite what 16 bits do not hold
            dequantize(V_TYPE, v, four[0], four[1]);
        } else {
            if (V_TYPE != 0) v = dequantize16(V_TYPE, v);
            four[0] = vec4(decode16x2(v.x), decode16x2(v.y));
            four[1] = vec4(decode16x2(v.z), decode16x2(v.w));
        }
        addIfNonFinite(low, four[0]);
        addIfNonFinite(high, four[1]);
    }
}

// Corrections of O in memory.
// The invocation that stored O reads it back: it sees its own writes, through the same buffer names, as others may
// not alias.

// A 16-bit element with x added if x is not finite.
uint patchedHalf(uint half_, float x) { return nonFinite(x) ? pack2(decode16(half_) + x, 0.0) & 0xffffu : half_; }
uint patchedPair(uint word, vec2 x) { return patchedHalf(word & 0xffffu, x.x) | patchedHalf(word >> 16, x.y) << 16; }

// Corrects what store8O stored.
void patch8O(Slice s, uint element, vec4 low, vec4 high, uint valid) {
    if (ALIGN_O >= 8 && valid >= 8) {
        const uvec4 words = QUAD_O(s, element >> 3);
        QUAD_O(s, element >> 3) = uvec4(patchedPair(words.x, low.xy), patchedPair(words.y, low.zw),
                                        patchedPair(words.z, high.xy), patchedPair(words.w, high.zw));
        return;
    }
    [[dont_unroll]] for (uint e = 0; e < min(valid, 8u); ++e) {
        const float x = e < 4 ? low[e % 4] : high[e % 4];
        if (!nonFinite(x)) continue;
        // The other half may be another invocation's.
        const uint halfIndex = element + e + s.phase, word = ATOMIC_OR(WORD_O(s, halfIndex >> 1), 0u);
        storeHalfO(s, element + e, patchedHalf(word >> (halfIndex & 1u) * 16u & 0xffffu, x));
    }
}

// Corrects what storeState4 stored.
void patchState4(uint row, uint col, vec4 x) {
    const Slice s = stateSlice(row, col);
    if (HEAD_DIM_V % 4 == 0) {
        vec4 sum = uintBitsToFloat(QUAD_O(s, 0));
        addIfNonFinite(sum, x);
        QUAD_O(s, 0) = floatBitsToUint(sum);
        return;
    }
    for (uint i = 0; i < min(HEAD_DIM_V - col, 4u); ++i)
        if (nonFinite(x[i])) WORD_O(s, i) = floatBitsToUint(uintBitsToFloat(WORD_O(s, i)) + x[i]);
}

#else
// -- O of the dense kernel, in scratch ------------------------------------------------------------
// The epilogue adds the values to the rows that attend to such a key, while a fragment of O is in scratch.

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
#endif
