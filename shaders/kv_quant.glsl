// Quantized K and V: int8 and float8 e4m3 with one float32 scale per KV_SCALE_BLOCK keys, and ggml's q8_0 and q4_0,
// blocks of QUANT_BLOCK elements with a float16 scale in front. kv_read.glsl loads eight elements as stored; here
// they are turned into numbers.

const uint INT8 = 1, FLOAT8 = 2, Q8_0 = 3, Q4_0 = 4; // K_TYPE, V_TYPE
const bool KEY_SCALES = K_TYPE == INT8 || K_TYPE == FLOAT8; // a key has a scale; else a block has
const uint SCALE_KINDS = DTYPE == TYPE_BF16 ? 5 : HAS_LSE + SINKS != 0 ? 5 : 4; // numbers per key, see kv_scales.glsl
const bool HAS_P_FACTOR = SCALE_KINDS == 5;
const uint QUANT_BLOCK = 32;
// Bytes of one unit of the strides of K and V: an element, or a block.
#define UNIT_BYTES_OF(type) ((type == Q8_0 ? 34 : 1) * (type == Q4_0 ? 18 : 1))
const uint K_UNIT_BYTES = UNIT_BYTES_OF(K_TYPE), V_UNIT_BYTES = UNIT_BYTES_OF(V_TYPE);

// Slice of quantized rows; its phase is a byte of its first word, 0 if the alignment is at least 4 bytes.
Slice byteSlice(uvec2 bytes, uint alignment) {
    Slice s;
#if BDA
    s.word = alignment >= 4 ? bytes : uvec2(bytes.x & ~3u, bytes.y);
#else
    s.word = bytes.x >> 2;
#endif
    s.phase = alignment >= 4 ? 0 : bytes.x & 3u;
    return s;
}
uvec2 bytesOf(uvec2 units, uint unitBytes) {
    const uvec2 low = mul64(units.x, unitBytes);
    return uvec2(low.x, low.y + units.y * unitBytes);
}

#ifndef KV_HEADS // a kernel that asks in a loop defines it: the compiler divides again in each turn
#define KV_HEADS (p.Hq / p.groupSize)
#endif
// Index into the scales, float32 [batches or pages, Hkv, ceil(keys / KV_SCALE_BLOCK)].
uint scaleEntry(KVRow at) {
    uint keys = p.Sk;
    if (PAGE_SIZE != 0) keys = PAGE_SIZE;
    else if ((VARLEN & CU_K) != 0) keys = p.totalK;
    const uint blocks = (keys + KV_SCALE_BLOCK - 1) / KV_SCALE_BLOCK;
    return (at.batch * KV_HEADS + work.kvHead) * blocks + at.row / KV_SCALE_BLOCK;
}

// Four elements from four bytes, the first one in the lowest. Integers go into the low bits of a float32 with a known
// exponent: GPUs convert few integers per clock. float8 has the fields of float16, with a bias that is 8 smaller.
vec4 decode4(uint type, uint bytes, float scale) {
    if (type == FLOAT8) {
        const uvec2 two = uvec2(bytes & 0xffu | (bytes & 0xff00u) << 8, bytes >> 16 & 0xffu | (bytes >> 8 & 0xff0000u));
        const uvec2 nan = (two & 0x007f007fu) + 0x00010001u & 0x00800080u; // e4m3fn: all bits set is NaN, there is no Inf
        const uvec2 halves = (two & 0x00800080u) << 8 | (two & 0x007f007fu) << 7 | nan * 0xf8u;
        return vec4(unpackHalf2x16(halves.x), unpackHalf2x16(halves.y)) * 256.0 * scale;
    }
    const uint unsigned_ = type == Q4_0 ? bytes : bytes ^ 0x80808080u;
    const float zero = 8388608.0 + (type == Q4_0 ? 8.0 : 128.0);
    const uvec4 each = uvec4(unsigned_, unsigned_ >> 8, unsigned_ >> 16, unsigned_ >> 24) & 0xffu;
    return (uintBitsToFloat(each | 0x4b000000u) - zero) * scale;
}

// Eight elements from eight bytes. A byte of q4_0 holds elements i and i + 16: shift selects the half.
uint shiftOfColumn(uint type, uint col) { return type == Q4_0 ? col % QUANT_BLOCK / 16 * 4 : 0; }
void decode8(uint type, uvec2 bytes, float scale, uint shift, out vec4 low, out vec4 high) {
    if (type == Q4_0) bytes = bytes >> shift & 0x0f0f0f0fu;
    low = decode4(type, bytes.x, scale);
    high = decode4(type, bytes.y, scale);
}
#if defined(ANY_DTYPE) || defined(DTYPE_BF16)
#define PACK2(x, y) encode16x2(x, y)
#else
#define PACK2(x, y) packFloat2x16(f16vec2(x, y)) // rounds as P is rounded; encode16x2 takes 20 times as long
#endif
uvec4 decode8To16(uint type, uvec2 bytes, float scale, uint shift) {
    vec4 low, high;
    decode8(type, bytes, scale, shift, low, high);
    return uvec4(PACK2(low.x, low.y), PACK2(low.z, low.w), PACK2(high.x, high.y), PACK2(high.z, high.w));
}

// The same from what scaledK8 and scaledV8 load, as float32 and as the 16-bit storage type.
void dequantize(uint type, uvec4 raw, out vec4 low, out vec4 high) { decode8(type, raw.xy, uintBitsToFloat(raw.z), raw.w, low, high); }
uvec4 dequantize16(uint type, uvec4 raw) { return decode8To16(type, raw.xy, uintBitsToFloat(raw.z), raw.w); }

// No load reads columns past the end of a row if this divides HEAD_DIM (K), or HEAD_DIM_V (V).
#ifdef K_LOAD_MULTIPLE // set by the kernel
#elif defined(ANY_DTYPE) // scalar tier: chunks of columns may reach past the end of a row
#define K_LOAD_MULTIPLE 0x7fffffffu
#define V_LOAD_MULTIPLE 0x7fffffffu
#else
#define K_LOAD_MULTIPLE FRAG_K
#define V_LOAD_MULTIPLE FRAG_N
#endif

#define OF(name) name##K
#define LOAD_STORED8 storedK8
#define LOAD_SCALED8 scaledK8
#define TYPE K_TYPE
#define UNIT_BYTES K_UNIT_BYTES
#define STRIDE_SEQ p.strideKSeq
#define ALIGNMENT ALIGN_K
#define COLUMNS HEAD_DIM
#define LOAD_MULTIPLE K_LOAD_MULTIPLE
#include "kv_read.glsl"

#define OF(name) name##V
#define LOAD_STORED8 storedV8
#define LOAD_SCALED8 scaledV8
#define TYPE V_TYPE
#define UNIT_BYTES V_UNIT_BYTES
#define STRIDE_SEQ p.strideVSeq
#define ALIGNMENT ALIGN_V
#define COLUMNS HEAD_DIM_V
#define LOAD_MULTIPLE V_LOAD_MULTIPLE
#include "kv_read.glsl"
