// Loads from one tensor. A template: it is included once per tensor with
//   OF(name)      name with the tensor's letter appended
//   STRIDE(axis)  its stride in Params
//   BINDING       its storage buffer
//   ALIGNMENT     its alignment constant
//   COLUMNS       elements per row
//   LOAD8         name of its load of 8 elements by row and column
// No load touches a 32-bit word without a requested element.

#if !BDA
layout(set = 0, binding = BINDING, std430) READ_ONLY buffer OF(Words) { uint OF(words)[]; };
layout(set = 0, binding = BINDING, std430) READ_ONLY buffer OF(Quads) { uvec4 OF(quads)[]; };
#if GENERAL
layout(set = 0, binding = BINDING, std430) READ_ONLY buffer OF(Pairs) { uvec2 OF(pairs)[]; };
#endif
#endif

uvec2 OF(position)(uint batch, uint head, uint row) {
    return position64(batch, STRIDE(Batch), head, STRIDE(Head), row, STRIDE(Seq));
}

Slice OF(slice)(uint batch, uint head, uint row) {
    return sliceAt(p.OF(addr), OF(position)(batch, head, row), IS_16, ALIGNMENT);
}

Slice OF(advance)(Slice s, uint rows) {
    return advance(s, rows, STRIDE(Seq), IS_16, ALIGNMENT);
}

// Word of the slice; word 0 holds its first element.
uint OF(loadWord)(Slice s, uint word) {
#if BDA
    return ReadWords(s.word).at[word];
#else
    return OF(words)[s.word + word];
#endif
}

#if GENERAL
// Two words; their address must be a multiple of 8 bytes.
uvec2 OF(loadPair)(Slice s, uint pair) {
#if BDA
    return ReadPairs(s.word).at[pair];
#else
    return OF(pairs)[(s.word >> 1) + pair];
#endif
}
#endif

// Four words; their address must be a multiple of 16 bytes.
uvec4 OF(loadQuad)(Slice s, uint quad) {
#if BDA
    return ReadQuads(s.word).at[quad];
#else
    return OF(quads)[(s.word >> 2) + quad];
#endif
}

uvec4 OF(load4Words)(Slice s, uint word) {
    return uvec4(OF(loadWord)(s, word), OF(loadWord)(s, word + 1), OF(loadWord)(s, word + 2), OF(loadWord)(s, word + 3));
}

// One 16-bit element, as stored, in the low half.
uint OF(loadHalf)(Slice s, uint element) {
    const uint halfIndex = element + s.phase;
    return (OF(loadWord)(s, halfIndex >> 1) >> ((halfIndex & 1u) * 16u)) & 0xffffu;
}

// Eight 16-bit elements, as stored: element e in word e / 2, even ones in the low half.
// element is a multiple of 8 within its row.
uvec4 OF(load8)(Slice s, uint element) {
    if (ALIGNMENT >= 8) return OF(loadQuad)(s, element >> 3);
    if (ALIGNMENT >= 2) return OF(load4Words)(s, element >> 1);
    const uint halfIndex = element + s.phase;
    const uint word = halfIndex >> 1;
    const uvec4 low = OF(load4Words)(s, word);
    if ((halfIndex & 1u) == 0u) return low;
    const uint last = OF(loadWord)(s, word + 4);
    return (low >> 16) | (uvec4(low.yzw, last) << 16);
}

// The same at the end of a row: only `valid` of the eight exist, the others are zero.
uvec4 OF(load8)(Slice s, uint element, uint valid) {
    if (valid >= 8) return OF(load8)(s, element);
    uvec4 result = uvec4(0);
    [[dont_unroll]] for (uint i = 0; i < 4; i++) {
        if (2 * i < valid) result[i] = OF(loadHalf)(s, element + 2 * i);
        if (2 * i + 1 < valid) result[i] |= OF(loadHalf)(s, element + 2 * i + 1) << 16;
    }
    return result;
}

// Four float32 elements, as stored, of which `valid` exist.
uvec4 OF(load4)(Slice s, uint element, uint valid) {
    if (valid >= 4) {
        if (ALIGNMENT >= 4) return OF(loadQuad)(s, element >> 2);
        return OF(load4Words)(s, element);
    }
    uvec4 result = uvec4(0);
    [[dont_unroll]] for (uint i = 0; i < valid; i++) result[i] = OF(loadWord)(s, element + i);
    return result;
}

// -- by row of the slice and column --------------------------------------------------------------

uint OF(elementsFrom)(uint col) {
    return max(COLUMNS, col) - col;
}

// Eight 16-bit elements as stored, from a column that is a multiple of 8; zero past the last column.
uvec4 LOAD8(Slice s, uint row, uint col) {
    return OF(load8)(s, row * STRIDE(Seq) + col, OF(elementsFrom)(col));
}

// Eight elements of any type as float32, zero past the last column, of the row that begins rowStart elements into the
// slice.
void OF(loadFloatsAt)(Slice s, uint rowStart, uint col, out vec4 low, out vec4 high) {
    const uint element = rowStart + col;
    const uint valid = OF(elementsFrom)(col);
    if (IS_16) {
        const uvec4 words = OF(load8)(s, element, valid);
        low = vec4(decode16x2(words.x), decode16x2(words.y));
        high = vec4(decode16x2(words.z), decode16x2(words.w));
    } else {
        low = uintBitsToFloat(OF(load4)(s, element, valid));
        high = uintBitsToFloat(OF(load4)(s, element + 4, max(valid, 4u) - 4u));
    }
}

void OF(loadFloats)(Slice s, uint row, uint col, out vec4 low, out vec4 high) {
    OF(loadFloatsAt)(s, row * STRIDE(Seq), col, low, high);
}

// One element of any type.
float OF(loadElement)(Slice s, uint row, uint col) {
    const uint element = row * STRIDE(Seq) + col;
    if (!IS_16) return uintBitsToFloat(OF(loadWord)(s, element));
    return decode16(OF(loadHalf)(s, element));
}

#undef OF
#undef LOAD8
#undef STRIDE
#undef BINDING
#undef ALIGNMENT
#undef COLUMNS
