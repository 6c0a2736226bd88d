// What every forward kernel shares with the host: the push constants, the grid, and access to the
// five tensors. One source for two kinds of memory:
//   BDA=1  64-bit buffer device addresses in the push constants, no descriptors;
//   BDA=0  storage buffers, set 0, bindings 0..4 = Q, K, V, O, LSE.
// Positions across a tensor are computed in 64 bits (two uints; shaderInt64 is optional in Vulkan)
// once per slice; within a slice, a position is a uint counted in elements from its first row, and
// rows are counted from there too.
//
//   Slice head = sliceK(batch, kvHead, 0);            // likewise Q, V, O
//   Slice tile = advanceK(head, j * BLOCK_COLS);      // so many rows further
//   uvec4 eight = loadK8(tile, row, column);          // 8 packed elements; zero past HEAD_DIM
//   storeO8(sliceO(batch, head, row0), row, column, eight);
#ifndef INTERFACE_GLSL
#define INTERFACE_GLSL

#ifndef BDA
#define BDA 0
#endif
#if BDA
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference_uvec2 : require
#endif

#include "constants.glsl"
#include "numeric.glsl"

// 120 bytes. Strides are in elements and below 2^32; a row is contiguous.
layout(push_constant, std430) uniform Params {
    uvec2 addrQ;         // BDA: byte address of the first element; else its position in the
    uvec2 addrK;         // bound range, in elements. Low word, high word.
    uvec2 addrV;
    uvec2 addrO;
    uvec2 addrLSE;       // float32, packed [B, Hq, Sq]
    uint strideQBatch, strideQHead, strideQSeq;
    uint strideKBatch, strideKHead, strideKSeq;
    uint strideVBatch, strideVHead, strideVSeq;
    uint strideOBatch, strideOHead, strideOSeq;
    uint Sq;             // query rows
    uint Sk;             // keys
    uint Hq;             // query heads
    uint groupSize;      // Hq / Hkv
    float scaleLog2;     // scale * log2(e): scores are exponents of two
    int causalOffset;    // row r sees columns <= r + causalOffset
    float unitHigh;      // |scale| / |scaleLog2| in two parts, high + low: what turns exponents of two
    float unitLow;       // into natural logarithms, the rounding of scaleLog2 made good
} p;

// -- grid ----------------------------------------------------------------------------------------
// x = row block, y = query head, z = batch * DV_SLICES + slice of O's columns.

const uint DV_SLICES = (HEAD_DIM_V + DV_SLICE - 1) / DV_SLICE;

struct Work {
    uint batch, head, kvHead;
    uint row0;           // first query row
    uint col0;           // first column of V and O
};

Work workOf(uint blockRows) {
    Work w;
    w.batch = gl_WorkGroupID.z / DV_SLICES;
    w.head = gl_WorkGroupID.y;
    w.kvHead = w.head / p.groupSize;
    uint rowBlock = gl_WorkGroupID.x;
    // Under a causal mask later rows see more keys: heavy blocks first, so that none is left alone at the end.
    if (CAUSAL != 0) rowBlock = (p.Sq - 1) / blockRows - rowBlock;
    w.row0 = rowBlock * blockRows;
    w.col0 = (gl_WorkGroupID.z % DV_SLICES) * DV_SLICE;
    return w;
}

// Columns that a row sees: [0, visibleColumns(row)).
uint visibleColumns(uint row) {
    if (CAUSAL == 0) return p.Sk;
    return uint(clamp(int(row) + p.causalOffset + 1, 0, int(p.Sk)));
}

// LSE of a row from what was subtracted from its scores, in log2 units, and the sum of the weights.
// shift is far larger than the logarithm for large logits: one rounding, by fma, is all it gets.
float logSumExp(float shift, float total) {
    if (total == 0.0) return -INFINITY;
    return fma(shift, p.unitHigh, fma(shift, p.unitLow, naturalLog(total)));
}

// -- positions -----------------------------------------------------------------------------------

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

// Elements from the first element of a tensor to the row (batch, head, row).
uvec2 position64(uint batch, uint batchStride, uint head, uint headStride, uint row, uint rowStride) {
    return add64(add64(mul64(batch, batchStride), mul64(head, headStride)), mul64(row, rowStride));
}

// A place in a tensor: its 32-bit word, and which half of the word the first 16-bit element is.
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
    const uint element = base.x + position.x; // the host binds no range whose elements need more than 32 bits
    s.word = is16 ? element >> 1 : element;
    s.phase = is16 && alignment < 2u ? element & 1u : 0u;
#endif
    return s;
}

// The slice that starts so many rows further.
Slice advance(Slice s, uint rows, uint rowStride, bool is16, uint alignment) {
    const uvec2 halves = add64(mul64(rows, rowStride), uvec2(s.phase, 0)); // or whole words, of float32
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

// -- tensors -------------------------------------------------------------------------------------

#if BDA
layout(buffer_reference, std430, buffer_reference_align = 4) restrict readonly buffer ReadWords { uint at[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) restrict readonly buffer ReadQuads { uvec4 at[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) buffer WriteWords { uint at[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) buffer WriteQuads { uvec4 at[]; };
#endif

const bool IS_16 = DTYPE != TYPE_F32;

#define OF(name) name##Q
#define LOAD8 loadQ8
#define STRIDE(axis) p.strideQ##axis
#define BINDING 0
#define ALIGNMENT ALIGN_Q
#define COLUMNS HEAD_DIM
#include "tensor_read.glsl"

#define OF(name) name##K
#define LOAD8 loadK8
#define STRIDE(axis) p.strideK##axis
#define BINDING 1
#define ALIGNMENT ALIGN_K
#define COLUMNS HEAD_DIM
#include "tensor_read.glsl"

#define OF(name) name##V
#define LOAD8 loadV8
#define STRIDE(axis) p.strideV##axis
#define BINDING 2
#define ALIGNMENT ALIGN_V
#define COLUMNS HEAD_DIM_V
#include "tensor_read.glsl"

#include "tensor_write.glsl"

#endif
