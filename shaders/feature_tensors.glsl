// Rows of K and V where they lie in pages or are quantised, and of O and LSE where a row is any of several
// heads or part of a state. Included once, after the tensors themselves.
#ifndef FEATURE_TENSORS_GLSL
#define FEATURE_TENSORS_GLSL

const uint INT8 = 1, FLOAT8 = 2, Q8_0 = 3, Q4_0 = 4; // KV_TYPE
const uint Q_ELEMENTS = 32;                          // of a block of q8_0 and q4_0, whose scale comes first
// Bytes of what positions of K and V count: elements, or blocks of 32 of them.
const uint KV_UNIT = (KV_TYPE == Q8_0 ? 34 : 1) * (KV_TYPE == Q4_0 ? 18 : 1);

// A slice of quantised rows; its phase is the byte of its word that comes first.
Slice byteSlice(uvec2 base, uvec2 position) {
    Slice s;
    const uvec2 low = mul64(position.x, KV_UNIT);
    const uvec2 bytes = add64(base, uvec2(low.x, low.y + position.y * KV_UNIT));
#if BDA
    s.word = uvec2(bytes.x & ~3u, bytes.y);
#else
    s.word = bytes.x >> 2;
#endif
    s.phase = bytes.x & 3u;
    return s;
}

// Entry of a scale, of the float32 [batches or pages, Hkv, ceil(keys / KV_BLOCK)].
uint scaleEntry(Place at) {
    uint keys = p.Sk;
    if (PAGE_SIZE != 0) keys = PAGE_SIZE;
    else if ((LENGTHS & CU_K) != 0) keys = p.totalK;
    const uint blocks = (keys + KV_BLOCK - 1) / KV_BLOCK;
    return (at.batch * (p.Hq / p.groupSize) + work.kvHead) * blocks + at.row / KV_BLOCK;
}

float float8(uint bits) { // e4m3, finite only: a float16 has the same fields but for 8 more in the exponent
    const float x = unpackHalf2x16((bits & 0x80u) << 8 | (bits & 0x7fu) << 7).x * 256.0;
    return (bits & 0x7fu) == 0x7fu ? uintBitsToFloat(0x7fc00000u) : x;
}

// Element e of eight raw ones, as rawK8 and rawV8 give them.
float rawElement(uvec4 raw, uint e) {
    const uint bits = (e < 4 ? raw.x : raw.y) >> (8u * (e & 3u));
    const float scale = uintBitsToFloat(raw.z);
    if (KV_TYPE == FLOAT8) return float8(bits & 0xffu) * scale;
    if (KV_TYPE == Q4_0) return float(int((bits >> raw.w) & 15u) - 8) * scale;
    return float(int(bits << 24) >> 24) * scale;
}

// Eight raw ones as float32, and as 16-bit storage.
void decodeRaw(uvec4 raw, out vec4 low, out vec4 high) {
    low = vec4(rawElement(raw, 0), rawElement(raw, 1), rawElement(raw, 2), rawElement(raw, 3));
    high = vec4(rawElement(raw, 4), rawElement(raw, 5), rawElement(raw, 6), rawElement(raw, 7));
}
uvec4 decodeRaw16(uvec4 raw) {
    vec4 low, high;
    decodeRaw(raw, low, high);
    return uvec4(encode16x2(low.x, low.y), encode16x2(low.z, low.w), encode16x2(high.x, high.y), encode16x2(high.z, high.w));
}

#ifdef FRAGMENT_K // a kernel's own
#elif defined(ANY_DTYPE) // the scalar tier has chunks of columns instead, which may reach past a row
#define FRAGMENT_K 0x7fffffffu
#define FRAGMENT_V 0x7fffffffu
#else
#define FRAGMENT_K TILE_K
#define FRAGMENT_V TILE_N
#endif

#define OF(name) name##K
#define RAW8 rawK8
#define STRIDE_SEQ p.strideKSeq
#define ALIGNMENT ALIGN_K
#define COLUMNS HEAD_DIM
#define FRAGMENT FRAGMENT_K
#include "feature_read.glsl"

#define OF(name) name##V
#define RAW8 rawV8
#define STRIDE_SEQ p.strideVSeq
#define ALIGNMENT ALIGN_V
#define COLUMNS HEAD_DIM_V
#define FRAGMENT FRAGMENT_V
#include "feature_read.glsl"

// -- Q, O and LSE -------------------------------------------------------------------------------------

// Where the block's rows are counted from, see rowElement.
Slice blockQ() { return sliceQ(rowBatch(), work.head, work.firstQ + queryOf(work.row0)); }
Slice blockO() { return sliceO(rowBatch(), work.head, work.firstQ + queryOf(work.row0)); }
uint elementQ(uint row) { return rowElement(row, p.strideQHead, p.strideQSeq); }
uint elementO(uint row) { return rowElement(row, p.strideOHead, p.strideOSeq); }

void storeRowLSE(uint row, float value) {
    const Slice s = sliceAt(p.addrLSE, uvec2(rowNumber(row), 0), false, 1);
    WORD_LSE(s, 0) = floatBitsToUint(value);
}

// Columns of a row of a state, float32: four of them, of which those past the last do not exist.
void storeState4(uint row, uint col, vec4 value) {
    const Slice s = sliceAt(p.addrO, add64(mul64(rowNumber(row), HEAD_DIM_V), uvec2(col, 0)), false, 1);
    if (HEAD_DIM_V % 4 == 0) {
        QUAD_O(s, 0) = floatBitsToUint(value);
        return;
    }
    for (uint i = 0; i < min(HEAD_DIM_V - col, 4u); ++i) WORD_O(s, i) = floatBitsToUint(value[i]);
}

#endif
