// 64-bit addressing for both ways to reach memory (BDA, see interface.glsl). Positions in a tensor are computed in 64
// bits once per slice, as two uints: shaderInt64 is optional in Vulkan. Within a slice an index is a uint, counted in
// elements from the slice's first row. The including file sets BDA and its extensions.
#ifndef ADDRESSING_GLSL
#define ADDRESSING_GLSL

// Qualifiers of the tensors that a kernel reads. A kernel whose output may alias an input defines it empty.
#ifndef READ_ONLY
#define READ_ONLY restrict readonly
#endif

uvec2 add64(uvec2 a, uvec2 b) {
    uint carry;
    const uint low = uaddCarry(a.x, b.x, carry);
    return uvec2(low, a.y + b.y + carry);
}

uvec2 mul64(uint a, uint b) {
    uint high, low;
    umulExtended(a, b, high, low);
    return uvec2(low, high);
}

// Element offset of a row.
uvec2 position64(uint batch, uint batchStride, uint head, uint headStride, uint row, uint rowStride) {
    return add64(add64(mul64(batch, batchStride), mul64(head, headStride)), mul64(row, rowStride));
}

// A position in a tensor: a 32-bit word, and the half of it that holds the first 16-bit element.
struct Slice {
#if BDA
    uvec2 word;          // byte address, a multiple of 4 (of 16 where the alignment is 8 elements)
#else
    uint word;           // index into the binding
#endif
    uint phase;          // 0 or 1; 0 when the alignment is at least 2 or the type is float32
};

Slice sliceAt(uvec2 base, uvec2 position, bool is16, uint alignment) {
    Slice s;
#if BDA
    const uint shift = is16 ? 1u : 2u;
    const uvec2 address = add64(base, uvec2(position.x << shift, (position.y << shift) | (position.x >> (32u - shift))));
    s.word = uvec2(address.x & ~3u, address.y);
    s.phase = is16 && alignment < 2u ? (address.x >> 1) & 1u : 0u;
#else
    const uint element = base.x + position.x; // the host binds no range with more than 2^32 elements
    s.word = is16 ? element >> 1 : element;
    s.phase = is16 && alignment < 2u ? element & 1u : 0u;
#endif
    return s;
}

// The slice `words` words further.
Slice fromWord(Slice s, uint words) {
#if BDA
    s.word = add64(s.word, uvec2(words * 4, 0));
#else
    s.word += words;
#endif
    return s;
}

// The slice `rows` rows further.
Slice advance(Slice s, uint rows, uint rowStride, bool is16, uint alignment) {
    const uvec2 halves = add64(mul64(rows, rowStride), uvec2(s.phase, 0)); // of float32: words
    const uvec2 words = is16 ? uvec2((halves.x >> 1) | (halves.y << 31), halves.y >> 1) : halves;
    Slice t;
#if BDA
    t.word = add64(s.word, uvec2(words.x << 2, (words.y << 2) | (words.x >> 30)));
#else
    t.word = s.word + words.x;
#endif
    t.phase = is16 && alignment < 2u ? halves.x & 1u : 0u;
    return t;
}

#if BDA
layout(buffer_reference, std430, buffer_reference_align = 4) READ_ONLY buffer ReadWords { uint at[]; };
layout(buffer_reference, std430, buffer_reference_align = 8) READ_ONLY buffer ReadPairs { uvec2 at[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) READ_ONLY buffer ReadQuads { uvec4 at[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) buffer WriteWords { uint at[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) buffer WriteQuads { uvec4 at[]; };
#endif

#endif
