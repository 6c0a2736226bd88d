// What every forward kernel shares with the host: the push constants, the grid, and access to the
// five tensors. One source for two kinds of memory:
//   BDA=1  64-bit buffer device addresses in the push constants, no descriptors;
//   BDA=0  storage buffers, set 0, bindings 0..4 = Q, K, V, O, LSE.
// With PARAMS_BUFFER=1 and storage buffers, Params is the last binding, for devices with fewer push constants.
// Positions across a tensor are computed in 64 bits (two uints; shaderInt64 is optional in Vulkan)
// once per slice; within a slice, a position is a uint counted in elements from its first row, and
// rows are counted from there too.
//
//   Slice head = sliceK(batch, kvHead, 0);            // likewise Q, V, O
//   Slice tile = advanceK(head, j * KV_TILE);      // so many rows further
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
#define GENERAL 0 // 1: the module has the features of inference, features.glsl
#endif
#ifndef PARAMS_BUFFER
#define PARAMS_BUFFER 0
#endif

#include "constants.glsl"
#include "numeric.glsl"

// 120 bytes, 256 with GENERAL. Strides are in elements and below 2^32; a row is contiguous.
#if PARAMS_BUFFER
layout(set = 0, binding = 17, std430) restrict readonly buffer Params {
#else
layout(push_constant, std430) uniform Params {
#endif
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
    float scoreScale;    // turns Q K^T into scores: scale * log2(e), so that scores are exponents of two; with NATURAL_SCORES
                         // scale alone, so that they are natural exponents and no finite bias overflows
    int causalOffset;    // row r sees columns <= r + causalOffset
    float unitHigh;      // |scale| / |scoreScale| in two parts, high + low: what turns scores into natural
    float unitLow;       // exponents, the rounding of scoreScale made good
#if GENERAL
    // Addresses as above, of 32-bit elements unless said otherwise; of what is not given, anything.
    uvec2 addrCuQ, addrCuK, addrUsedQ, addrUsedK;
    uvec2 addrBlockTable;                  // of pages
    uvec2 addrALiBi, addrSinks;
    uvec2 addrBias;                   // in its elements
    uvec2 addrMask;                    // of the mask, in bytes; of the bitmap; of where lists of kept tokens start
    uvec2 addrKScale, addrVScale;
    uint strideBiasBatch, strideBiasHead, strideBiasRow;
    uint strideMaskBatch, strideMaskHead, strideMaskRow; // SPARSE_TOKENS: address of the tokens, and how many there are
    uint totalQ;                      // rows of packed Q and O
    uint totalK;                      // rows of packed K and V, or pages
    int windowLeft, windowRight;
    uint blockTableStride;
    float softcap;                    // times log2(e)
    // And of those above: strideQBatch is the number of sequences where Q is packed; causalOffset is 1 where the
    // last query lies at the last key; with SPLIT, O and LSE are states, float32 and packed, and strideOBatch is
    // how many rows a state has, but with COMBINE O is O, and addrLSE is that of scratch memory, decode_combine.glsl.
#endif
} p;

const uint DV_SLICES = (HEAD_DIM_V + DV_SLICE - 1) / DV_SLICE;

#if !GENERAL
const bool SCORE_MOD = false, NATURAL_SCORES = false; // scores are products times the scale, as exponents of two

// -- grid ----------------------------------------------------------------------------------------
// x = row block, y = query head, z = batch * DV_SLICES + slice of O's columns.

struct WorkTile {
    uint batch, head, kvHead;
    uint row0;           // first query row
    uint col0;           // first column of V and O
};

WorkTile workTile(uint tileRows) {
    WorkTile w;
    w.batch = gl_WorkGroupID.z / DV_SLICES;
    w.head = gl_WorkGroupID.y;
    w.kvHead = w.head / p.groupSize;
    uint qTile = gl_WorkGroupID.x;
    // Under a causal mask later rows see more keys: heavy blocks first, so that none is left alone at the end.
    if (CAUSAL != 0) qTile = (p.Sq - 1) / tileRows - qTile;
    w.row0 = qTile * tileRows;
    w.col0 = (gl_WorkGroupID.z % DV_SLICES) * DV_SLICE;
    return w;
}

// Columns that a row sees: [0, visibleKeys(row)).
uint visibleKeys(uint row) {
    if (CAUSAL == 0) return p.Sk;
    return uint(clamp(int(row) + p.causalOffset + 1, 0, int(p.Sk)));
}

#endif

// LSE of a row from what was subtracted from its scores and the sum of P.
// shift is far larger than the logarithm for large logits: one rounding, by fma, is all it gets.
float logSumExp(float shift, float total) {
    if (total == 0.0) return -INFINITY;
    return fma(shift, p.unitHigh, fma(shift, p.unitLow, naturalLog(total)));
}

#include "positions.glsl"

// -- tensors -------------------------------------------------------------------------------------

const bool IS_16 = DTYPE != TYPE_F32;

// -- scores --------------------------------------------------------------------------------------

const float LOG2E = 1.4426950408889634;

// A difference of scores as an exponent of two.
#define TO_LOG2(difference) (NATURAL_SCORES ? (difference) * LOG2E : (difference))

// The row max of a row that has seen no key: the least finite float32, so that no infinity is subtracted from
// another, and no finite score is below it.
const float ROW_MAX_INIT = -3.4028234663852886e38;

// fma(product, scale, -rowMax) takes an exact score off a rounded one. From this row max on, in log2 units, that is half a
// unit and more, and P may overflow or vanish. The scalar kernel rounds both scores there; the kernels of cooperative
// matrices, whose KV loop a remedy slows by 3 to 20 %, are for scores within attention.MaxFastScore (docs/log.md, 49).
const float LARGE_SCORE = 8388608.0;
float roundedDifference(float product, float scale, float rowMax) {
    precise const float score = product * scale;
    precise const float difference = score - rowMax;
    return difference;
}

// By its bits: a compiler may take NaN for impossible.
const uint NAN_BITS = 0x7fc00000u;
bool isNaN(float x) { return (floatBitsToUint(x) & 0x7fffffffu) > 0x7f800000u; }

#if GENERAL
#include "features.glsl"
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
#include "feature_tensors.glsl"
#endif

#endif
