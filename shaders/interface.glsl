// Parameters of the forward kernels, and everything that each of them includes. The sources compile for
// two ways to reach memory:
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
#endif
#include "constants.glsl"
#include "numeric.glsl"

// 120 bytes, 256 with GENERAL. Strides are in elements and below 2^32; a row is contiguous.
#if GENERAL && !BDA
layout(set = 0, binding = 17, std430) restrict readonly buffer Params {
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
    uint strideMaskBatch, strideMaskHead, strideMaskRow; // SPARSE_TOKENS: address of the tokens, and their number
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
#endif
} p;

const uint DV_SLICES = (HEAD_DIM_V + DV_SLICE - 1) / DV_SLICE;
const bool IS_16 = DTYPE != TYPE_F32;

#if !GENERAL
#include "work_tile_dense.glsl"
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
#include "split_state.glsl"
#endif

#endif
