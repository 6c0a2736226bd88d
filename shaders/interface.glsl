// Parameters of the forward kernels, and everything that each of them includes; the work of a workgroup of the dense
// kernels; rows and partial states of the general ones. The sources compile for two ways to reach memory:
//   BDA=1  64-bit buffer device addresses in the push constants, no descriptors;
//   BDA=0  storage buffers, set 0, bindings 0..4 = Q, K, V, O, LSE.
// GENERAL=1 adds the options of a call. With BDA=0 Params are then read from the last binding: they are larger than
// the 128 bytes of push constants that every device has.
//
//   Slice head = sliceK(batch, kvHead, 0);            // likewise Q, V, O; see addressing.glsl
//   Slice tile = advanceK(head, j * KV_TILE);         // j * KV_TILE rows further
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

#ifndef GENERAL
#define GENERAL 0
#endif

#define CONSTANTS_ATTENTION
#if GENERAL
#define CONSTANTS_GENERAL
#define CONSTANTS_MODIFIERS
#define CONSTANTS_TILE_MAP
#define CONSTANTS_V_TYPE
#endif
#include "constants.glsl"
#include "numeric.glsl"

// 120 bytes, 256 with GENERAL. Strides are in elements and below 2^32; a row is contiguous.
//
// The buffer is not readonly: from one that is, NVIDIA's compiler (driver 580.159) loads a member again where it needs it
// and takes p.Sk, the end of the keys, for a number that no key is below (docs/log/vulkan.md, 65).
#if GENERAL && !BDA
layout(set = 0, binding = 17, std430) buffer Params {
#else
layout(push_constant, std430) uniform Params {
#endif
    uvec2 addrQ;         // BDA=1: byte address of the first element, low word first. BDA=0: index of the
    uvec2 addrK;         // first element in the bound range
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
    float scoreScale;    // Q K^T to scores: scale * log2(e), see score_units.glsl; scale alone with NATURAL_SCORES
    int causalOffset;    // row r sees the keys up to r + causalOffset
    float unitHigh;      // |scale| / |scoreScale| = unitHigh + unitLow: scores to natural logarithms. The
    float unitLow;       // quotient of the rounded numbers cancels the rounding of scoreScale
#if GENERAL
    // Addresses as above, in 32-bit elements unless noted. The address of an absent option is not read.
    uvec2 addrCuQ, addrCuK, addrUsedQ, addrUsedK;
    uvec2 addrBlockTable;             // page indices [sequences, blockTableStride]
    uvec2 addrALiBi, addrSinks;
    uvec2 addrBias;                   // in elements of the bias
    uvec2 addrMask;                   // in bytes: mask, or block-sparse mask, or offsets into the lists of sparse tokens
    uvec2 addrKScale, addrVScale;
    uint strideBiasBatch, strideBiasHead, strideBiasRow;
    uint strideMaskBatch, strideMaskHead, strideMaskRow; // SPARSE_TOKENS: address of the tokens, and their number or that of a list; of the bias with MASK
    uint totalQ;                      // rows of packed Q and O
    uint totalK;                      // rows of packed K and V, or pages
    int windowLeft, windowRight;
    uint blockTableStride;
    float softcap;                    // times log2(e)
    // Members above that mean something else here:
    //   addrKScale, addrVScale  with DROPOUT the seed, and the offset and the threshold (dropout.glsl)
    //   strideQBatch  number of sequences, if Q is packed
    //   causalOffset  1 if the last query is aligned with the last key
    //   addrO, addrLSE, strideOBatch  with SPLIT the partial states, float32 and packed, and the rows of one state;
    //                 with COMBINE addrO points to O, and addrLSE to scratch memory (decode_combine.glsl)
#if !BDA
    ivec4 tables[4];                  // of modifiers, see score.Rewrite: first element in its binding, sizes of the axes
#endif
#endif
} p;

const uint DV_SLICES = (HEAD_DIM_V + DV_SLICE - 1) / DV_SLICE;
const bool IS_16 = DTYPE != TYPE_F32;

#include "grid.glsl"
#if !GENERAL
// -- work of a workgroup, dense kernels -----------------------------------------------------------
// The query rows and the columns of O that a workgroup computes, and the keys that its rows see. Grid: x = Q tile,
// y = query head, z = batch * DV_SLICES + slice of O's columns. work_tile_general.glsl has the same for the general
// kernels.

// Options that these calls do not have: attended_keys.glsl, kv_quant.glsl.
const bool SCORE_MOD = false, NATURAL_SCORES = false, KEY_SCALES = false;

struct WorkTile {
    uint batch, head, kvHead;
    uint row0;           // first query row
    uint col0;           // first column of V and O
};

WorkTile workTile(uint tileRows) {
    WorkTile w;
    w.batch = WORKGROUP_ID.z / DV_SLICES;
    w.head = WORKGROUP_ID.y;
    w.kvHead = w.head / p.groupSize;
    uint qTile = WORKGROUP_ID.x;
    // Longest tiles first: under a causal mask later rows see more keys, and a long tile started last would run alone.
    if (CAUSAL != 0) qTile = (p.Sq - 1) / tileRows - qTile;
    w.row0 = qTile * tileRows;
    w.col0 = (WORKGROUP_ID.z % DV_SLICES) * DV_SLICE;
    return w;
}

// A row sees keys [0, visibleKeys(row)).
uint visibleKeys(uint row) {
    if (CAUSAL == 0) return p.Sk;
    return uint(clamp(int(row) + p.causalOffset + 1, 0, int(p.Sk)));
}
#endif

#include "score_units.glsl"
#include "addressing.glsl"
#include "rounding.glsl"
#if GENERAL
#include "work_tile_general.glsl"
#include "attended_keys.glsl"
#include "sinks.glsl"
#endif

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

#if GENERAL
#include "kv_quant.glsl"

// -- rows of the tile -----------------------------------------------------------------------------
// Rows of the Q tile in Q and O, in calls with options: slices from the tile's first query on, and the first element of a
// row relative to them, see rowElement.
Slice blockQ() { return sliceQ(rowBatch(), work.head, work.offsetQ + queryOf(work.row0)); }
Slice blockO() { return sliceO(rowBatch(), work.head, work.offsetQ + queryOf(work.row0)); }
uint elementQ(uint row) { return rowElement(row, p.strideQHead, p.strideQSeq); }
uint elementO(uint row) { return rowElement(row, p.strideOHead, p.strideOSeq); }

// -- partial states -------------------------------------------------------------------------------
// LSE of the call, or with SPLIT the partial states: one row per split of float32 O, and of its row max and row sum, in
// pairs. An LSE in their place would lose the row sum where the row max is large.

void storeRowLSE(uint row, float value) {
    const Slice s = sliceAt(p.addrLSE, uvec2(stateRow(row), 0), false, 1);
    WORD_LSE(s, 0) = floatBitsToUint(value);
}

// A row without keys has the row sum 0.
void storeStateWord(uint row, uint word, float value) {
    const Slice s = sliceAt(p.addrLSE, add64(mul64(stateRow(row), 2), uvec2(word, 0)), false, 1);
    WORD_LSE(s, 0) = floatBitsToUint(value);
}
void storeStateMax(uint row, float rowMax) { storeStateWord(row, 0, rowMax); }
// What this invocation stored.
float loadStateMax(uint row) {
    const Slice s = sliceAt(p.addrLSE, mul64(stateRow(row), 2), false, 1);
    return uintBitsToFloat(WORD_LSE(s, 0));
}
void storeStateSum(uint row, float rowSum) { storeStateWord(row, 1, rowSum); }
void storeStateStats(uint row, float rowMax, float rowSum) {
    storeStateMax(row, rowMax);
    storeStateSum(row, rowSum);
}

// Four columns of the partial O of a split, float32; those past HEAD_DIM_V are not written.
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

#endif
