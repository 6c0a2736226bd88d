// What Inf and NaN of V are to O. A slot that a row does not see has a weight of 0, and 0 x Inf is NaN: masked tiles are
// multiplied without what is not finite, and the rows that see it get it at the end. That hardly ever happens.
#ifndef NON_FINITE_GLSL
#define NON_FINITE_GLSL

#if GENERAL
// One loop behind everything else, over O as it was stored: written out for each fragment of O, this took NVIDIA's compiler
// three times as long as all the rest of a kernel (docs/log.md, 46).

void addIfNonFinite(inout vec4 sum, vec4 x) {
    [[unroll]] for (uint e = 0; e < 4; ++e)
        if (nonFinite(x[e])) sum[e] += x[e];
}

// Adds what is not finite of eight columns of V, from a multiple of 8 on, of the keys that a row sees in the tiles of
// the walk from number n on.
void addNonFinite(KVRange kv, uint n, uint row, uint col, inout vec4 low, inout vec4 high) {
    [[dont_unroll]] for (uint i = n * KV_TILE; i < (kv.last - kv.first) * KV_TILE; ++i) {
        const uint key = keyAt(kvTileAt(kv, i / KV_TILE) * KV_TILE + i % KV_TILE);
        if (key == NO_KEY || !attends(row, key)) continue;
        const KVRow at = kvRowOf(key);
        uvec4 v = HEAD_DIM_V % 8 == 0 && KV_TYPE == 0 ? load8V(rowsV(at), col) : scaledV8(rowsV(at), 0, col, at);
        vec4 four[2];
        if (KEY_SCALES) { // of what float32 has, as 16 bits may not hold what the weights make finite
            dequantize(v, four[0], four[1]);
        } else {
            if (KV_TYPE != 0) v = dequantize16(v);
            four[0] = vec4(decode16x2(v.x), decode16x2(v.y));
            four[1] = vec4(decode16x2(v.z), decode16x2(v.w));
        }
        addIfNonFinite(low, four[0]);
        addIfNonFinite(high, four[1]);
    }
}

// -- O as it was stored, with that added ----------------------------------------------------------------
// By the invocation that stored it, which sees its own writes, and through the same names, as others may not alias.

// The half of a stored word, low or high, with x added where that is not finite.
uint patchedHalf(uint half_, float x) { return nonFinite(x) ? pack2(decode16(half_) + x, 0.0) & 0xffffu : half_; }
uint patchedPair(uint word, vec2 x) { return patchedHalf(word & 0xffffu, x.x) | patchedHalf(word >> 16, x.y) << 16; }

// What store8O stored there.
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
        const uint halfIndex = element + e + s.phase, word = ATOMIC_OR(WORD_O(s, halfIndex >> 1), 0u); // others have its neighbour
        storeHalfO(s, element + e, patchedHalf(word >> (halfIndex & 1u) * 16u & 0xffffu, x));
    }
}

// What storeState4 stored there.
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
// While a fragment is on its way out: 8 elements of it, in scratch, take the sum of what is not finite in V.
void addToScratch(uint group, uint e, float x) {
    const uint r = group / (FRAG_N / 8), c = group % (FRAG_N / 8) * 8 + e;
    storeScratch(r, c, loadScratch(r, c) + x);
}

// Of the keys from firstKey on.
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

#endif
