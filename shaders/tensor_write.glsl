// Stores to outputs: O and LSE, or (BACKWARD) a gradient, or additions to what it holds (ACCUMULATE). For gradients it
// is a template: it is included once per tensor with OF, STRIDE, BINDING, ALIGNMENT and COLUMNS as in tensor_read.glsl.
//
// If rows of an output have an odd number of 16-bit elements, a word may be shared with another invocation, another
// workgroup, or memory outside of the output. A word is stored whole only if both of its halves are written; else an
// atomic AND and an atomic OR change one half.

#ifndef ATOMIC_AND
// Modules under the Vulkan memory model (cooperative matrices imply it) define SCOPED_ATOMICS=1: atomics then have
// queue family scope. The default, device scope, needs vulkanMemoryModelDeviceScope, which is optional.
#ifndef SCOPED_ATOMICS
#define SCOPED_ATOMICS 0
#endif
#if SCOPED_ATOMICS
#extension GL_KHR_memory_scope_semantics : require
#define ATOMIC_AND(word, bits) atomicAnd(word, bits, gl_ScopeQueueFamily, 0, 0)
#define ATOMIC_OR(word, bits) atomicOr(word, bits, gl_ScopeQueueFamily, 0, 0)
#else
#define ATOMIC_AND(word, bits) atomicAnd(word, bits)
#define ATOMIC_OR(word, bits) atomicOr(word, bits)
#endif
#endif

#ifdef BACKWARD
// -- slices of a gradient -------------------------------------------------------------------------
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
#else
// -- slices of O, LSE -----------------------------------------------------------------------------
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

#define OF(name) name##O
#define WORD(s, i) WORD_O(s, i)
#endif

// -- half of a word -------------------------------------------------------------------------------
// One 16-bit element, in the low half of bits; the other half of the word keeps its bits.
void OF(storeHalf)(Slice s, uint element, uint bits) {
    const uint halfIndex = element + s.phase, shift = (halfIndex & 1u) * 16u;
    ATOMIC_AND(WORD(s, halfIndex >> 1), 0xffff0000u >> shift);
    ATOMIC_OR(WORD(s, halfIndex >> 1), bits << shift);
}
#undef WORD

#ifdef BACKWARD
// -- gradients ------------------------------------------------------------------------------------
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
#else
#undef OF
// -- O by element of the slice --------------------------------------------------------------------
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

// -- O by row of the slice and column; nothing past HEAD_DIM_V is written -------------------------

// Eight 16-bit elements, packed as loadK8 returns them, at a column that is a multiple of 8.
void storeO8(Slice s, uint row, uint col, uvec4 words) {
    store8O(s, row * p.strideOSeq + col, words, max(HEAD_DIM_V, col) - col);
}

// Four elements of any type, at a column that is a multiple of 4.
void storeO4(Slice s, uint row, uint col, vec4 value) {
    store4O(s, row * p.strideOSeq + col, value, max(HEAD_DIM_V, col) - col);
}
#endif
