#version 460
// Quantized K and V in the storage type, for a call of many rows: each element is converted once, not for each row block, and
// the kernels behind take K and V as they take those of calls that are not quantized. Core Vulkan 1.1.
//
// Grid: x = KEYS keys of a sequence, y = KV head, z = 2 * sequence, and 1 more for V. An invocation loads LOADS times eight
// elements before it converts any. Each is rounded to the storage type once, from its number times its scale, as it is for
// reference attention in the storage type. Keys behind the end of their sequence are left out.
//   K  packed [sequences, KV heads, Sk, HEAD_DIM] from O on; with CU_K [KV heads, totalK, HEAD_DIM]
//   V  likewise, from quad strideOBatch of O on
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#define ANY_DTYPE
#define WORKGROUP_ID uvec3(0, gl_WorkGroupID.y, gl_WorkGroupID.z / 2)
#define K_LOAD_MULTIPLE 8 // the host takes head dims that are multiples
#define V_LOAD_MULTIPLE 8
#define KV_HEADS kvHeads
uint kvHeads;
#include "interface.glsl"

const uint KEYS = 32, LOADS = 4; // KEYS: plan.ConvertKeys

// encode16 in half of its instructions: below 2^-14 the bits of a float32 that is 0.5 more are those of the subnormal float16 from
// 0x3f000000 on.
uint convertedF16(float x) {
    precise const float up = abs(x) + 0.5;
    const uint bits = floatBitsToUint(x), size = bits & 0x7fffffffu;
    const uint normal = min(size - 0x37fff001u + (bits >> 13 & 1u) >> 13, 0x7c00u);
    const uint number = size < 0x38800000u ? floatBitsToUint(up) - 0x3f000000u : size > 0x7f800000u ? 0x7e00u : normal;
    return bits >> 16 & 0x8000u | number;
}
uint packed16x2(float x, float y) { return DTYPE == TYPE_BF16 ? encode16x2(x, y) : convertedF16(x) | convertedF16(y) << 16; }
uvec4 converted8(uint type, uvec4 stored) {
    vec4 low, high;
    dequantize(type, stored, low, high);
    return uvec4(packed16x2(low.x, low.y), packed16x2(low.z, low.w), packed16x2(high.x, high.y), packed16x2(high.z, high.w));
}

void storeQuad(uint first, uint row, uint octets, uint octet, uvec4 words) {
    const uvec2 at = add64(mul64(row, octets), uvec2(octet, 0));
#if BDA
    const uvec2 quads = add64(at, uvec2(first, 0));
    WriteQuads(add64(p.addrO, uvec2(quads.x << 4, quads.y << 4 | quads.x >> 28))).at[0] = words;
#else
    quadsO[p.addrO.x + first + at.x] = words;
#endif
}

// Without pages the keys of a workgroup are rows of one slice.
#define CONVERT(first, TYPE, COLUMNS, ROWS, LOAD)                                                   \
    {                                                                                               \
        const uint octets = COLUMNS / 8, count = keys * octets;                                     \
        const Slice rows = ROWS(kvRowOf(key0));                                                     \
        [[dont_unroll]] for (uint from = gl_LocalInvocationIndex; from < count; from += LOADS * LOCAL_SIZE) { \
            uvec4 stored[LOADS];                                                                    \
            [[unroll]] for (uint n = 0; n < LOADS; ++n) {                                           \
                const uint i = min(from + n * LOCAL_SIZE, count - 1), row = i / octets;             \
                const KVRow at = kvRowOf(key0 + row);                                               \
                if (PAGE_SIZE != 0) stored[n] = LOAD(ROWS(at), 0, i % octets * 8, at);              \
                else stored[n] = LOAD(rows, row, i % octets * 8, at);                               \
            }                                                                                       \
            [[unroll]] for (uint n = 0; n < LOADS; ++n) {                                           \
                const uint i = from + n * LOCAL_SIZE;                                               \
                if (i < count) storeQuad(first, row0 + i / octets, octets, i % octets, converted8(TYPE, stored[n])); \
            }                                                                                       \
        }                                                                                           \
    }

void main() {
    kvHeads = p.Hq / p.groupSize;
    if (!findWorkTile(1)) return;
    const uint key0 = gl_WorkGroupID.x * KEYS;
    if (key0 >= work.seqlenK) return;
    const uint keys = min(work.seqlenK - key0, KEYS);
    const bool packed_ = (VARLEN & CU_K) != 0;
    const uint row0 = key0 + (packed_ ? work.kvHead * p.totalK + work.offsetK : (work.batch * KV_HEADS + work.kvHead) * p.Sk);
    if (gl_WorkGroupID.z % 2 == 0) CONVERT(0, K_TYPE, HEAD_DIM, rowsK, scaledK8)
    else CONVERT(p.strideOBatch, V_TYPE, HEAD_DIM_V, rowsV, scaledV8)
}
