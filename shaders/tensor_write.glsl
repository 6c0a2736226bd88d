// Stores to O and LSE. half_words.glsl stores halves of words that others may own.

#if BDA
#define WORD_O(s, word_) WriteWords(s.word).at[word_]
#define QUAD_O(s, quad_) WriteQuads(s.word).at[quad_]
#define WORD_LSE(s, word_) WriteWords(s.word).at[word_]
#else
layout(set = 0, binding = 3, std430) buffer WordsO { uint wordsO[]; };
layout(set = 0, binding = 3, std430) buffer QuadsO { uvec4 quadsO[]; };
layout(set = 0, binding = 4, std430) buffer WordsLSE { uint wordsLSE[]; };
#define WORD_O(s, word_) wordsO[s.word + (word_)]
#define QUAD_O(s, quad_) quadsO[(s.word >> 2) + (quad_)]
#define WORD_LSE(s, word_) wordsLSE[s.word + (word_)]
#endif

Slice sliceO(uint batch, uint head, uint row) {
    return sliceAt(p.addrO, position64(batch, p.strideOBatch, head, p.strideOHead, row, p.strideOSeq),
                   IS_16, ALIGN_O);
}

void storeLSE(uint batch, uint head, uint row, float value) {
    const uint heads = batch * p.Hq + head; // B * Hq stays below 2^32
    const Slice s = sliceAt(p.addrLSE, add64(mul64(heads, p.Sq), uvec2(row, 0)), false, 1);
    WORD_LSE(s, 0) = floatBitsToUint(value);
}

// -- by element of the slice ---------------------------------------------------------------------

#define OF(name) name##O
#define WORD(s, i) WORD_O(s, i)
#include "half_words.glsl"
#undef OF
#undef WORD

// Eight 16-bit elements, packed as load8 returns them; the first `valid` are written.
void store8O(Slice s, uint element, uvec4 words, uint valid) {
    if (ALIGN_O >= 8 && valid >= 8) {
        QUAD_O(s, element >> 3) = words;
        return;
    }
    const uint count = min(valid, 8u);
    if (ALIGN_O < 2 && ((element + s.phase) & 1u) != 0u) { // elements 0 and 7 are halves of words that others share
        if (count == 0) return;
        storeHalfO(s, element, words.x & 0xffffu);
        for (uint i = 0; i < 4; i++) {
            const uint high = words[i] >> 16;
            if (2 * i + 2 < count) WORD_O(s, (element + s.phase + 1 + 2 * i) >> 1) = high | (words[min(i + 1, 3u)] << 16);
            else if (2 * i + 1 < count) storeHalfO(s, element + 2 * i + 1, high);
        }
        return;
    }
    for (uint i = 0; i < 4; i++) {
        if (2 * i + 1 < count) WORD_O(s, ((element + s.phase) >> 1) + i) = words[i];
        else if (2 * i < count) storeHalfO(s, element + 2 * i, words[i] & 0xffffu);
    }
}

// Element i of four packed 16-bit elements.
uint halfOf(uvec2 words, uint i) {
    return ((i < 2u ? words.x : words.y) >> (16u * (i & 1u))) & 0xffffu;
}

// Four elements of any type; the first `valid` are written.
void store4O(Slice s, uint element, vec4 value, uint valid) {
    if (!IS_16) {
        if (ALIGN_O >= 4 && valid >= 4) QUAD_O(s, element >> 2) = floatBitsToUint(value);
        else for (uint i = 0; i < min(valid, 4u); i++) WORD_O(s, element + i) = floatBitsToUint(value[i]);
        return;
    }
    const uvec2 words = uvec2(encode16x2(value.x, value.y), encode16x2(value.z, value.w));
    if (ALIGN_O >= 2 && valid >= 4) {
        WORD_O(s, element >> 1) = words.x;
        WORD_O(s, (element >> 1) + 1) = words.y;
        return;
    }
    // Not unrolled: drivers inline this once per four columns of an invocation.
    const uint count = min(valid, 4u);
    [[dont_unroll]] for (uint i = 0; i < count;) {
        if (((element + i + s.phase) & 1u) == 0u && i + 1 < count) {
            WORD_O(s, (element + i + s.phase) >> 1) = halfOf(words, i) | (halfOf(words, i + 1) << 16);
            i += 2;
        } else {
            storeHalfO(s, element + i, halfOf(words, i));
            i += 1;
        }
    }
}

// -- by row of the slice and column; nothing past HEAD_DIM_V is written -----------------------------

// Eight 16-bit elements, packed as loadK8 returns them, at a column that is a multiple of 8.
void storeO8(Slice s, uint row, uint col, uvec4 words) {
    store8O(s, row * p.strideOSeq + col, words, max(HEAD_DIM_V, col) - col);
}

// Four elements of any type, at a column that is a multiple of 4.
void storeO4(Slice s, uint row, uint col, vec4 value) {
    store4O(s, row * p.strideOSeq + col, value, max(HEAD_DIM_V, col) - col);
}
