// Stores to a gradient, or additions to what it holds (ACCUMULATE). A template: it is included once per tensor with
// OF, STRIDE, BINDING, ALIGNMENT and COLUMNS as in tensor_read.glsl. half_words.glsl stores halves of words that
// others may own.

#if BDA
#define GRADIENT_WORD(s, i) WriteWords(s.word).at[i]
#define GRADIENT_QUAD(s, i) WriteQuads(s.word).at[i]
#else
layout(set = 0, binding = BINDING, std430) buffer OF(Words) { uint OF(words)[]; };
layout(set = 0, binding = BINDING, std430) buffer OF(Quads) { uvec4 OF(quads)[]; };
#define GRADIENT_WORD(s, i) OF(words)[s.word + (i)]
#define GRADIENT_QUAD(s, i) OF(quads)[(s.word >> 2) + (i)]
#endif

// Slice from a row of a batch and head on.
Slice OF(slice)(uint batch, uint head, uint row) {
    return sliceAt(p.OF(addr), position64(batch, STRIDE(Batch), head, STRIDE(Head), row, STRIDE(Seq)), GRADIENT_IS_16, ALIGNMENT);
}

#define WORD(s, i) GRADIENT_WORD(s, i)
#include "half_words.glsl"
#undef WORD

// Two 16-bit elements, packed. element is even, and so is the slice's phase.
void OF(storePair)(Slice s, uint element, vec2 value) {
    if (ACCUMULATE != 0) value += decode16x2(GRADIENT_WORD(s, element >> 1));
    GRADIENT_WORD(s, element >> 1) = encode16x2(value.x, value.y);
}

void OF(storeOne)(Slice s, uint element, float value) {
    if (!GRADIENT_IS_16) {
        if (ACCUMULATE != 0) value += uintBitsToFloat(GRADIENT_WORD(s, element));
        GRADIENT_WORD(s, element) = floatBitsToUint(value);
        return;
    }
    const uint halfIndex = element + s.phase;
    if (ACCUMULATE != 0) value += decode16(GRADIENT_WORD(s, halfIndex >> 1) >> ((halfIndex & 1u) * 16u) & 0xffffu);
    OF(storeHalf)(s, element, encode16(value));
}

float OF(gradientAt)(Slice s, uint element) {
    if (!GRADIENT_IS_16) return uintBitsToFloat(GRADIENT_WORD(s, element));
    const uint halfIndex = element + s.phase;
    return decode16(GRADIENT_WORD(s, halfIndex >> 1) >> ((halfIndex & 1u) * 16u) & 0xffffu);
}

// Adds to one element that this invocation has stored.
void OF(addOne)(Slice s, uint element, float value) {
    if (!GRADIENT_IS_16) {
        GRADIENT_WORD(s, element) = floatBitsToUint(value + uintBitsToFloat(GRADIENT_WORD(s, element)));
        return;
    }
    const uint halfIndex = element + s.phase;
    OF(storeHalf)(s, element, encode16(value + decode16(GRADIENT_WORD(s, halfIndex >> 1) >> ((halfIndex & 1u) * 16u) & 0xffffu)));
}

// Four columns, from a multiple of 4 on, of the row that begins rowStart elements into the slice. Columns past the last
// one are not stored.
void OF(storeFour)(Slice s, uint rowStart, uint col, vec4 value) {
    const uint element = rowStart + col, valid = min(max(COLUMNS, col) - col, 4u);
    if (!GRADIENT_IS_16 && ALIGNMENT >= 4 && valid == 4) {
        if (ACCUMULATE != 0) value += uintBitsToFloat(GRADIENT_QUAD(s, element >> 2));
        GRADIENT_QUAD(s, element >> 2) = floatBitsToUint(value);
    } else if (GRADIENT_IS_16 && ALIGNMENT >= 2 && valid == 4) {
        OF(storePair)(s, element, value.xy);
        OF(storePair)(s, element + 2, value.zw);
    } else {
        [[dont_unroll]] for (uint i = 0; i < valid; i++) OF(storeOne)(s, element + i, value[i]);
    }
}

// Adds four columns to what an earlier dispatch of the call has stored.
void OF(addFour)(Slice s, uint rowStart, uint col, vec4 value) {
    const uint element = rowStart + col, valid = min(max(COLUMNS, col) - col, 4u);
    if (ACCUMULATE == 0) { // otherwise storeFour adds
        if (!GRADIENT_IS_16 && ALIGNMENT >= 4 && valid == 4) {
            value += uintBitsToFloat(GRADIENT_QUAD(s, element >> 2));
        } else {
            [[unroll]] for (uint i = 0; i < 4; ++i)
                if (i < valid) value[i] += OF(gradientAt)(s, element + i);
        }
    }
    OF(storeFour)(s, rowStart, col, value);
}

#undef GRADIENT_WORD
#undef GRADIENT_QUAD
#undef OF
#undef STRIDE
#undef BINDING
#undef ALIGNMENT
#undef COLUMNS
