// Quantized K and V: bytes with one float32 scale per KV_SCALE_BLOCK keys; ggml's blocks of QUANT_BLOCK elements, which
// begin with a float16 scale; and DeepSeek's rows of latent attention, with scales and bfloat16 in the row. kv_read.glsl loads eight elements as stored; here they are turned into numbers.

#include "kv_types.glsl"

const bool KEY_SCALES = IN(SCALED, K_TYPE) != 0; // a key has a scale; else a block has
const uint SCALE_KINDS = DTYPE == TYPE_BF16 ? 5 : HAS_LSE + SINKS != 0 ? 5 : 4; // numbers per key, see kv_scales.glsl
const bool HAS_P_FACTOR = SCALE_KINDS == 5;
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
// Index into the scales, float32 [batches or pages, Hkv, ceil(keys / KV_SCALE_BLOCK)], or of heads [Hkv], or one.
const uint SCALE_OF_HEAD = 0xffffffffu, SCALE_OF_TENSOR = 0xfffffffeu; // values of KV_SCALE_BLOCK
uint scaleEntry(KVRow at) {
    if (KV_SCALE_BLOCK >= SCALE_OF_TENSOR) return KV_SCALE_BLOCK == SCALE_OF_HEAD ? work.kvHead : 0;
    uint keys = p.Sk;
    if (PAGE_SIZE != 0) keys = PAGE_SIZE;
    else if ((VARLEN & CU_K) != 0) keys = p.totalK;
    const uint blocks = (keys + KV_SCALE_BLOCK - 1) / KV_SCALE_BLOCK;
    return (at.batch * KV_HEADS + work.kvHead) * blocks + at.row / KV_SCALE_BLOCK;
}

// Scale and minimum of a block or key: a float32, or with a minimum two float16.
vec2 scalesOf(uint type, uint bits) { return IN(MINIMUM, type) != 0 ? unpackHalf2x16(bits) : vec2(uintBitsToFloat(bits), 0.0); }

// Four elements from four bytes, the first one in the lowest. Integers go into the low bits of a float32 with a known
// exponent: GPUs convert few integers per clock. float8 has the fields of float16, e4m3 with a bias that is 8 smaller.
vec4 decode4(uint type, uint bytes, vec2 scales) {
    if (IN(E4M3, type) != 0) {
        const uvec2 two = uvec2(bytes & 0xffu | (bytes & 0xff00u) << 8, bytes >> 16 & 0xffu | (bytes >> 8 & 0xff0000u));
        const uvec2 nan = (two & 0x007f007fu) + 0x00010001u & 0x00800080u; // e4m3fn: all bits set is NaN, there is no Inf
        const uvec2 halves = (two & 0x00800080u) << 8 | (two & 0x007f007fu) << 7 | nan * 0xf8u;
        return vec4(unpackHalf2x16(halves.x), unpackHalf2x16(halves.y)) * 256.0 * scales.x;
    }
    if (type == FLOAT8_E5M2) {
        const uvec2 halves = uvec2((bytes & 0xffu) << 8 | (bytes & 0xff00u) << 16, bytes >> 8 & 0xff00u | bytes & 0xff000000u);
        return vec4(unpackHalf2x16(halves.x), unpackHalf2x16(halves.y)) * scales.x;
    }
    const uint unsigned_ = IN(SIGNED, type) != 0 ? bytes ^ 0x80808080u : bytes;
    const float zero = 8388608.0 + ZERO_OF(type);
    const uvec4 each = uvec4(unsigned_, unsigned_ >> 8, unsigned_ >> 16, unsigned_ >> 24) & 0xffu;
    const vec4 numbers = uintBitsToFloat(each | 0x4b000000u) - zero;
    return IN(MINIMUM, type) != 0 ? fma(numbers, vec4(scales.x), vec4(scales.y)) : numbers * scales.x;
}

// Numbers of IQ4_NL that four bytes, 0 to 15, stand for: a tree of selections by their bits.
#define SELECT(mask, zero, one) ((one) & (mask) | (zero) & ~(mask))
#define FOUR(x) (uint((x) & 0xff) * 0x01010101u)
#define OF_TWO(x, y) SELECT(bit[0], FOUR(x), FOUR(y))
#define OF_FOUR(x, y, z, w) SELECT(bit[1], OF_TWO(x, y), OF_TWO(z, w))
uint lookUp(uint codes) {
    uint bit[4];
    [[unroll]] for (uint i = 0; i < 4; ++i) bit[i] = (codes >> i & 0x01010101u) * 0xffu;
    const uint low = SELECT(bit[2], OF_FOUR(-127, -104, -83, -65), OF_FOUR(-49, -35, -22, -10));
    const uint high = SELECT(bit[2], OF_FOUR(1, 13, 25, 38), OF_FOUR(53, 69, 89, 113));
    return SELECT(bit[3], low, high);
}
// Four bits as bit 4 of four bytes.
uint fifthBits(uint bits) { return (bits & 0xfu) * 0x02040810u & 0x10101010u; }

// Eight numbers from eight bytes. A byte of two elements holds i and i + 16: shift selects the half. which has the shift
// and with FIFTH_BITS from bit 8 on the fifth bits of the eight.
uint shiftOfColumn(uint type, uint col) { return IN(NIBBLES, type) != 0 ? col % QUANT_BLOCK / 16 * 4 : 0; }
uvec2 numbersOf(uint type, uvec2 bytes, uint which) {
    if (IN(NIBBLES, type) == 0) return bytes;
    bytes = bytes >> (IN(FIFTH_BITS, type) != 0 ? which & 7u : which) & 0x0f0f0f0fu;
    if (IN(FIFTH_BITS, type) != 0) bytes |= uvec2(fifthBits(which >> 8), fifthBits(which >> 12));
    return type == IQ4_NL ? uvec2(lookUp(bytes.x), lookUp(bytes.y)) : bytes;
}
#ifdef ANY_DTYPE
#define PACK2(x, y) encode16x2(x, y)
#elif defined(DTYPE_BF16)
// Rounded to bfloat16, in the upper half. The bounds keep a NaN from becoming a number by the carry.
uint roundedBits(float x) {
    const uint bits = min(uint(min(floatBitsToInt(x), 0x7fff7fff)), 0xffff7fffu);
    return bits + 0x7fffu + (bits >> 16 & 1u);
}
uint pack16(float x, float y) { return packFloat2x16(f16vec2(unpackFloat2x16(roundedBits(x)).y, unpackFloat2x16(roundedBits(y)).y)); } // one permutation
#define PACK2(x, y) pack16(x, y)
#else
#define PACK2(x, y) packFloat2x16(f16vec2(x, y)) // rounds as P is rounded; encode16x2 takes 20 times as long
#endif

// Whether the elements from a column on are stored as bfloat16, and eight of these as float32 and as the 16-bit storage type.
#define IS_REST(type, col) (LATENT_ROWS(type) * ((col) / LATENT_VALUES) != 0)
vec4 widenBF16(uvec2 words) { return uintBitsToFloat(uvec4(words.x << 16, words.x & 0xffff0000u, words.y << 16, words.y & 0xffff0000u)); }
uvec4 rest16(uvec4 raw) {
#ifdef DTYPE_BF16
    return raw;
#else
    const vec4 low = widenBF16(raw.xy), high = widenBF16(raw.zw);
    return uvec4(PACK2(low.x, low.y), PACK2(low.z, low.w), PACK2(high.x, high.y), PACK2(high.z, high.w));
#endif
}

// Eight other elements from what scaledK8 and scaledV8 load, likewise.
void dequantize(uint type, uvec4 raw, out vec4 low, out vec4 high) {
    const uvec2 numbers = numbersOf(type, raw.xy, raw.w);
    const vec2 scales = scalesOf(type, raw.z);
    low = decode4(type, numbers.x, scales);
    high = decode4(type, numbers.y, scales);
}
uvec4 dequantize16(uint type, uvec4 raw) {
    vec4 low, high;
    dequantize(type, raw, low, high);
    return uvec4(PACK2(low.x, low.y), PACK2(low.z, low.w), PACK2(high.x, high.y), PACK2(high.z, high.w));
}

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
