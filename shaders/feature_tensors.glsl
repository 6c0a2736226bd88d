// Rows of K and V where they lie in pages or are quantised, and of O and LSE where a row is any of several
// heads or part of a state. Included once, after the tensors themselves.
#ifndef GENERAL_TENSORS_GLSL
#define GENERAL_TENSORS_GLSL

const uint INT8 = 1, FLOAT8 = 2, Q8_0 = 3, Q4_0 = 4; // KV_TYPE
const bool KEY_SCALES = KV_TYPE == INT8 || KV_TYPE == FLOAT8; // scales are of keys, else of blocks, in them
const uint SCALE_KINDS = DTYPE == TYPE_BF16 ? 5 : HAS_LSE + SINKS != 0 ? 5 : 4; // numbers of a key, see key_scales.glsl
const bool HAS_P_FACTOR = SCALE_KINDS == 5;
const uint QUANT_BLOCK = 32;                          // of a block of q8_0 and q4_0, whose scale comes first
// Bytes of what positions of K and V count: elements, or blocks of 32 of them.
const uint KV_UNIT_BYTES = (KV_TYPE == Q8_0 ? 34 : 1) * (KV_TYPE == Q4_0 ? 18 : 1);

// A slice of quantised rows; its phase is the byte of its word that comes first.
Slice byteSlice(uvec2 base, uvec2 position) {
    Slice s;
    const uvec2 low = mul64(position.x, KV_UNIT_BYTES);
    const uvec2 bytes = add64(base, uvec2(low.x, low.y + position.y * KV_UNIT_BYTES));
#if BDA
    s.word = uvec2(bytes.x & ~3u, bytes.y);
#else
    s.word = bytes.x >> 2;
#endif
    s.phase = bytes.x & 3u;
    return s;
}

// Entry of a scale, of the float32 [batches or pages, Hkv, ceil(keys / KV_SCALE_BLOCK)].
uint scaleEntry(KVRow at) {
    uint keys = p.Sk;
    if (PAGE_SIZE != 0) keys = PAGE_SIZE;
    else if ((VARLEN & CU_K) != 0) keys = p.totalK;
    const uint blocks = (keys + KV_SCALE_BLOCK - 1) / KV_SCALE_BLOCK;
    return (at.batch * (p.Hq / p.groupSize) + work.kvHead) * blocks + at.row / KV_SCALE_BLOCK;
}

// Four elements from four bytes, the first in the lowest: numbers are put into the low bits of a float32 of a known
// exponent, which takes no conversion, of which there are few at a time; float8 has the fields of float16 but for
// 8 more in the exponent.
vec4 decode4(uint bytes, float scale) {
    if (KV_TYPE == FLOAT8) {
        const uvec2 two = uvec2(bytes & 0xffu | (bytes & 0xff00u) << 8, bytes >> 16 & 0xffu | (bytes >> 8 & 0xff0000u));
        const uvec2 nan = (two & 0x007f007fu) + 0x00010001u & 0x00800080u; // finite only: all ones are none
        const uvec2 halves = (two & 0x00800080u) << 8 | (two & 0x007f007fu) << 7 | nan * 0xf8u;
        return vec4(unpackHalf2x16(halves.x), unpackHalf2x16(halves.y)) * 256.0 * scale;
    }
    const uint unsigned_ = KV_TYPE == Q4_0 ? bytes : bytes ^ 0x80808080u;
    const float zero = 8388608.0 + (KV_TYPE == Q4_0 ? 8.0 : 128.0);
    const uvec4 each = uvec4(unsigned_, unsigned_ >> 8, unsigned_ >> 16, unsigned_ >> 24) & 0xffu;
    return (uintBitsToFloat(each | 0x4b000000u) - zero) * scale;
}

// Eight elements of eight bytes: of q4_0 of half of each, those that remain after a shift by so many bits.
uint shiftOfColumn(uint col) { return KV_TYPE == Q4_0 ? col % QUANT_BLOCK / 16 * 4 : 0; }
void decode8(uvec2 bytes, float scale, uint shift, out vec4 low, out vec4 high) {
    if (KV_TYPE == Q4_0) bytes = bytes >> shift & 0x0f0f0f0fu;
    low = decode4(bytes.x, scale);
    high = decode4(bytes.y, scale);
}
#if defined(ANY_DTYPE) || defined(DTYPE_BF16)
#define PACK2(x, y) encode16x2(x, y)
#else
#define PACK2(x, y) packFloat2x16(f16vec2(x, y)) // as weights are rounded; to do it by hand takes 20 times as long
#endif
uvec4 decode8To16(uvec2 bytes, float scale, uint shift) {
    vec4 low, high;
    decode8(bytes, scale, shift, low, high);
    return uvec4(PACK2(low.x, low.y), PACK2(low.z, low.w), PACK2(high.x, high.y), PACK2(high.z, high.w));
}

// Eight raw ones, as scaledK8 and scaledV8 give them, as float32, and as 16-bit storage.
void dequantize(uvec4 raw, out vec4 low, out vec4 high) { decode8(raw.xy, uintBitsToFloat(raw.z), raw.w, low, high); }
uvec4 dequantize16(uvec4 raw) { return decode8To16(raw.xy, uintBitsToFloat(raw.z), raw.w); }

#ifdef K_LOAD_MULTIPLE // a kernel's own
#elif defined(ANY_DTYPE) // the scalar tier has chunks of columns instead, which may reach past a row
#define K_LOAD_MULTIPLE 0x7fffffffu
#define V_LOAD_MULTIPLE 0x7fffffffu
#else
#define K_LOAD_MULTIPLE FRAG_K
#define V_LOAD_MULTIPLE FRAG_N
#endif

#define OF(name) name##K
#define LOAD_STORED8 storedK8
#define LOAD_SCALED8 scaledK8
#define STRIDE_SEQ p.strideKSeq
#define ALIGNMENT ALIGN_K
#define COLUMNS HEAD_DIM
#define LOAD_MULTIPLE K_LOAD_MULTIPLE
#include "feature_read.glsl"

#define OF(name) name##V
#define LOAD_STORED8 storedV8
#define LOAD_SCALED8 scaledV8
#define STRIDE_SEQ p.strideVSeq
#define ALIGNMENT ALIGN_V
#define COLUMNS HEAD_DIM_V
#define LOAD_MULTIPLE V_LOAD_MULTIPLE
#include "feature_read.glsl"

// -- Q, O and LSE -------------------------------------------------------------------------------------

// Where the block's rows are counted from, see rowElement.
Slice blockQ() { return sliceQ(rowBatch(), work.head, work.offsetQ + queryOf(work.row0)); }
Slice blockO() { return sliceO(rowBatch(), work.head, work.offsetQ + queryOf(work.row0)); }
uint elementQ(uint row) { return rowElement(row, p.strideQHead, p.strideQSeq); }
uint elementO(uint row) { return rowElement(row, p.strideOHead, p.strideOSeq); }

void storeRowLSE(uint row, float value) {
    const Slice s = sliceAt(p.addrLSE, uvec2(stateRow(row), 0), false, 1);
    WORD_LSE(s, 0) = floatBitsToUint(value);
}

// Columns of a row of a state, float32: four of them, of which those past the last do not exist.
Slice stateSlice(uint row, uint col) {
    return sliceAt(p.addrO, add64(mul64(stateRow(row), HEAD_DIM_V), uvec2(col, 0)), false, 1);
}
void storeState4(uint row, uint col, vec4 value) {
    const Slice s = stateSlice(row, col);
    if (HEAD_DIM_V % 4 == 0) {
        QUAD_O(s, 0) = floatBitsToUint(value);
        return;
    }
    for (uint i = 0; i < min(HEAD_DIM_V - col, 4u); ++i) WORD_O(s, i) = floatBitsToUint(value[i]);
}

#endif
