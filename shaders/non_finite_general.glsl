// Inf and NaN in V. P of a masked key is 0, but 0 x Inf is NaN: masked tiles are multiplied without them, and O of
// the rows that attend to such a key is corrected at the end. That is rare, so it is one loop behind everything else,
// over O in memory: unrolled over the fragments of O it took NVIDIA's compiler three times as long as the rest
// (docs/log/vulkan.md, 46).

void addIfNonFinite(inout vec4 sum, vec4 x) {
    [[unroll]] for (uint e = 0; e < 4; ++e)
        if (nonFinite(x[e])) sum[e] += x[e];
}

// Adds the Inf and NaN in eight columns of V, from a multiple of 8 on, of the keys that a row attends to, in tiles n
// and on of the KV loop.
void addNonFinite(KVRange kv, uint n, uint row, uint col, inout vec4 low, inout vec4 high) {
    [[dont_unroll]] for (uint i = n * KV_TILE; i < (kv.last - kv.first) * KV_TILE; ++i) {
        const uint key = keyAt(kvTileAt(kv, i / KV_TILE) * KV_TILE + i % KV_TILE);
        if (key == NO_KEY || !attends(row, key)) continue;
        const KVRow at = kvRowOf(key);
        uvec4 v = HEAD_DIM_V % 8 == 0 && KV_TYPE == 0 ? load8V(rowsV(at), col) : scaledV8(rowsV(at), 0, col, at);
        vec4 four[2];
        if (KEY_SCALES) { // in float32: P may make finite what 16 bits do not hold
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

// -- correcting O in memory -----------------------------------------------------------------------------
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
