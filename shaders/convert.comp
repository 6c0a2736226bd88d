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
#include "interface.glsl"

const uint KEYS = 32, LOADS = 4; // KEYS: plan.ConvertKeys

void storeQuad(uint first, uint row, uint octets, uint octet, uvec4 words) {
    const uvec2 at = add64(mul64(row, octets), uvec2(octet, 0));
#if BDA
    const uvec2 quads = add64(at, uvec2(first, 0));
    WriteQuads(add64(p.addrO, uvec2(quads.x << 4, quads.y << 4 | quads.x >> 28))).at[0] = words;
#else
    quadsO[p.addrO.x + first + at.x] = words;
#endif
}

#define CONVERT(first, TYPE, COLUMNS, ROWS, LOAD)                                                   \
    {                                                                                               \
        const uint octets = COLUMNS / 8, count = keys * octets;                                     \
        [[dont_unroll]] for (uint from = gl_LocalInvocationIndex; from < count; from += LOADS * LOCAL_SIZE) { \
            uvec4 stored[LOADS];                                                                    \
            [[unroll]] for (uint n = 0; n < LOADS; ++n) {                                           \
                const uint i = min(from + n * LOCAL_SIZE, count - 1);                               \
                const KVRow at = kvRowOf(key0 + i / octets);                                        \
                stored[n] = LOAD(ROWS(at), 0, i % octets * 8, at);                                  \
            }                                                                                       \
            [[unroll]] for (uint n = 0; n < LOADS; ++n) {                                           \
                const uint i = from + n * LOCAL_SIZE;                                               \
                if (i < count) storeQuad(first, row0 + i / octets, octets, i % octets, dequantize16(TYPE, stored[n])); \
            }                                                                                       \
        }                                                                                           \
    }

void main() {
    if (!findWorkTile(1)) return;
    const uint key0 = gl_WorkGroupID.x * KEYS;
    if (key0 >= work.seqlenK) return;
    const uint keys = min(work.seqlenK - key0, KEYS);
    const bool packed_ = (VARLEN & CU_K) != 0;
    const uint row0 = key0 + (packed_ ? work.kvHead * p.totalK + work.offsetK : (work.batch * KV_HEADS + work.kvHead) * p.Sk);
    if (gl_WorkGroupID.z % 2 == 0) CONVERT(0, K_TYPE, HEAD_DIM, rowsK, scaledK8)
    else CONVERT(p.strideOBatch, V_TYPE, HEAD_DIM_V, rowsV, scaledV8)
}
