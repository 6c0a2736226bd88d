#version 460
// Row statistics of the backward pass: LSE and delta = rowsum(dO * O) - dLSE of every row, which the other backward
// kernels load from scratch memory (backward_interface.glsl). Core Vulkan 1.1, float32.
//
// A workgroup owns LOCAL_SIZE / STAT_LANES rows. A lane owns every STAT_LANES-th group of eight columns of one row. Lanes
// store their sums in shared memory, and after the only barrier the first lane of a row adds them up in order: the bits
// do not depend on subgroups. The kernel does not know sequences: rows past the end of a sequence get numbers that no
// kernel loads.
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#ifndef BDA
#define BDA 0
#endif
#if BDA
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference_uvec2 : require
#endif
#define ANY_DTYPE
#define CONSTANTS_BACKWARD
#define CONSTANTS_DROPOUT
#include "constants.glsl"
#include "numeric.glsl"

// 96 bytes, units as in backward_interface.glsl. BDA=0: bindings 0 O, 1 dO, 2 LSE, 3 dLSE, 4 stats.
layout(push_constant, std430) uniform Params {
    uvec2 addrO, addrDO, addrLSE, addrDLSE, addrStats;
    uint strideOBatch, strideOHead, strideOSeq;
    uint strideDOBatch, strideDOHead, strideDOSeq;
    uint Sq, Hq;         // of O: with cu_seqlens_q its packed rows
    uint rows;           // B * Hq * Sq < 2^32
    uint firstRow;       // the first row of this dispatch
    uint dropoutSeedLow, dropoutSeedHigh, dropoutOffset, dropoutThreshold; // for the other kernels, see dropout.glsl
} p;

#include "addressing.glsl"

const bool IS_16 = DTYPE != TYPE_F32;

#define OF(name) name##O
#define LOAD8 loadO8
#define STRIDE(axis) p.strideO##axis
#define BINDING 0
#define ALIGNMENT ALIGN_O
#define COLUMNS HEAD_DIM_V
#include "tensor_read.glsl"

#define OF(name) name##DO
#define LOAD8 loadDO8
#define STRIDE(axis) p.strideDO##axis
#define BINDING 1
#define ALIGNMENT ALIGN_DO
#define COLUMNS HEAD_DIM_V
#include "tensor_read.glsl"

#if BDA
float loadFloat(uvec2 address, uint i) { return uintBitsToFloat(ReadWords(add64(address, uvec2(i << 2, i >> 30))).at[0]); }
float loadLSE(uint row) { return loadFloat(p.addrLSE, row); }
float loadDLSE(uint row) { return loadFloat(p.addrDLSE, row); }
void storeWords(uvec2 index, uvec2 pair) {
    const uvec2 address = add64(p.addrStats, uvec2(index.x << 3, index.y << 3 | index.x >> 29));
    WriteWords(address).at[0] = pair.x;
    WriteWords(address).at[1] = pair.y;
}
#else
layout(set = 0, binding = 2, std430) READ_ONLY buffer LSE { float arrayLSE[]; };
layout(set = 0, binding = 3, std430) READ_ONLY buffer DLSE { float arrayDLSE[]; };
layout(set = 0, binding = 4, std430) restrict writeonly buffer Stats { uvec2 arrayStats[]; };
float loadLSE(uint row) { return arrayLSE[p.addrLSE.x + row]; }
float loadDLSE(uint row) { return arrayDLSE[p.addrDLSE.x + row]; }
void storeWords(uvec2 index, uvec2 pair) { arrayStats[p.addrStats.x + index.x] = pair; }
#endif
void storePair(uvec2 index, vec2 pair) { storeWords(index, floatBitsToUint(pair)); }

// The statistics of a row, see backward_interface.glsl.
void storeStats(uint row, float lse, float delta, float dLSE) {
    storePair(uvec2(row, 0), vec2(lse, DLSE_IN_DELTA != 0 ? delta - dLSE : delta));
    storePair(add64(uvec2(p.rows, 0), uvec2(row, 0)), vec2(0.0, DLSE_IN_DELTA != 0 ? 0.0 : dLSE));
}

void storeDropout() {
    const uvec2 end = add64(uvec2(p.rows, 0), uvec2(p.rows, 0));
    storeWords(end, uvec2(p.dropoutSeedLow, p.dropoutSeedHigh));
    storeWords(add64(end, uvec2(1, 0)), uvec2(p.dropoutOffset, p.dropoutThreshold));
}

const uint ROWS = LOCAL_SIZE / STAT_LANES;
shared float partial[LOCAL_SIZE];

// d, but 0 where o is: a row that attends to its sink alone has O = 0, and may have any dO.
vec4 whereNot0(vec4 o, vec4 d) {
    return vec4(o.x == 0.0 ? 0.0 : d.x, o.y == 0.0 ? 0.0 : d.y, o.z == 0.0 ? 0.0 : d.z, o.w == 0.0 ? 0.0 : d.w);
}

// The sum of eight products in the order of the tile product of the scalar kernels: if O is V of one key, delta has the
// bits of dP.
float dot8(vec4 a, vec4 b, vec4 k, vec4 l) {
    const float first = fma(a.w, k.w, fma(a.z, k.z, fma(a.y, k.y, a.x * k.x)));
    return fma(b.w, l.w, fma(b.z, l.z, fma(b.y, l.y, fma(b.x, l.x, first))));
}

void main() {
    const uint lane = gl_LocalInvocationIndex % STAT_LANES;
    const uint row = p.firstRow + gl_WorkGroupID.x * ROWS + gl_LocalInvocationIndex / STAT_LANES;
    const bool exists = row < p.rows;
    if (DROPOUT != 0 && row == 0 && lane == 0) storeDropout();
    float sum = 0.0;
    if (exists) {
        const uint head = row / p.Sq % p.Hq, batch = row / p.Sq / p.Hq;
        const Slice o = sliceO(batch, head, row % p.Sq), dO = sliceDO(batch, head, row % p.Sq);
        [[dont_unroll]] for (uint col = lane * 8; col < HEAD_DIM_V; col += STAT_LANES * 8) {
            vec4 lowO, highO, lowD, highD;
            loadFloatsO(o, 0, col, lowO, highO);
            loadFloatsDO(dO, 0, col, lowD, highD);
            sum += dot8(whereNot0(lowO, lowD), whereNot0(highO, highD), lowO, highO);
        }
    }
    partial[gl_LocalInvocationIndex] = sum;
    barrier();
    if (!exists || lane != 0) return;
    float delta = 0.0;
    [[dont_unroll]] for (uint i = 0; i < STAT_LANES; i++) delta += partial[gl_LocalInvocationIndex + i];
    const float lse = loadLSE(row);
    if (floatBitsToUint(lse) == 0xff800000u) { // nothing to attend to: dO and dLSE may hold anything
        storeStats(row, INFINITY, 0.0, 0.0);
        return;
    }
    storeStats(row, lse, delta, HAS_DLSE != 0 ? loadDLSE(row) : 0.0);
}
