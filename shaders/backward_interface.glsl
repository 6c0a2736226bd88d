// Parameters of the backward kernels, and everything that each of them includes. Names and the two ways to reach memory
// are the same as in interface.glsl. GENERAL is always 1: the options of a call are specialization constants.
//
//   backward_delta.comp      row statistics; runs first, with parameters of its own
//   backward_scalar_lse.comp more digits of LSE, for the scalar kernels (see "row statistics" below)
//   backward_*_q.comp        dQ: a workgroup owns rows and loops over keys
//   backward_*_kv.comp       dK and dV: a workgroup owns keys of a KV head and loops over the rows of its query heads
//   backward_*_bias.comp     dBias: a workgroup owns elements of the bias and loops over the broadcast axes
//   backward_sinks.comp      dSinks, with parameters of its own
//
// With x the score of (row, key), S the product Q K^T, and P = exp(x - LSE), which includes sinks:
//
//   dP = dO V^T   dX = P (dP - delta)   dS = scale * dX * (derivative of the softcap)
//   dQ = dS K     dK = dS^T Q           dV = P^T dO     dBias = sum of dX     dSink = -sum of exp(sink - LSE) delta
//
// delta = rowsum(dO * O) - dLSE. Slots whose P is 0 contribute nothing, whatever memory holds there: P and dX of a
// masked slot are selected to be 0, and a product with a P or dS of 0 is skipped wherever its other factor may not be
// finite.
#ifndef BACKWARD_INTERFACE_GLSL
#define BACKWARD_INTERFACE_GLSL

#ifndef BDA
#define BDA 0
#endif
#if BDA
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference_uvec2 : require
#endif
#define BACKWARD

#define CONSTANTS_ATTENTION
#define CONSTANTS_GENERAL
#define CONSTANTS_BACKWARD
#include "constants.glsl"
#include "numeric.glsl"

// 256 bytes. Strides are in elements and below 2^32; a row is contiguous.
#if !BDA // more than the 128 bytes of push constants that every device has
layout(set = 0, binding = 15, std430) restrict readonly buffer Params {
#else
layout(push_constant, std430) uniform Params {
#endif
    uvec2 addrQ;         // BDA=1: byte address of the first element, low word first. BDA=0: index of the
    uvec2 addrK;         // first element in the bound range
    uvec2 addrV;
    uvec2 addrDO;
    uvec2 addrStats;     // scratch of backward_delta.comp, see "row statistics" below; in pairs of float32
    uvec2 addrDX;        // output: dQ, dK or dBias, whichever the kernel computes; or the rests of LSE
    uvec2 addrDV;        // output of the dK and dV kernel; sinks of the kernel of the rests
    // Options. The address of an absent one is not read. In 32-bit elements unless noted.
    uvec2 addrCuQ, addrCuK, addrUsedQ, addrUsedK;
    uvec2 addrALiBi;
    uvec2 addrBias;      // in elements of the bias
    uvec2 addrMask;      // in bytes: mask, or block-sparse mask, or offsets into the lists of sparse tokens
    uint strideQBatch, strideQHead, strideQSeq;
    uint strideKBatch, strideKHead, strideKSeq;
    uint strideVBatch, strideVHead, strideVSeq;
    uint strideDOBatch, strideDOHead, strideDOSeq;
    uint strideDXBatch, strideDXHead, strideDXSeq; // of dBias 0 where it has size 1
    uint strideDVBatch, strideDVHead, strideDVSeq;
    uint strideBiasBatch, strideBiasHead, strideBiasRow;
    uint strideMaskBatch, strideMaskHead, strideMaskRow; // SPARSE_TOKENS: address of the tokens, and their number
    uint sequences;      // B
    uint Sq, Sk;         // most queries and keys of a sequence
    uint Hq;             // query heads
    uint groupSize;      // Hq / Hkv
    uint totalQ, totalK; // rows of packed Q, dO, LSE, dQ and of packed K, V, dK, dV
    float scoreScale;    // S to scores. All scores are natural exponents: LSE is in the same unit
    int causalOffset;    // 1 if the last query is aligned with the last key
    int windowLeft, windowRight;
    float softcap;       // in natural units, as scoreScale
} p;

// Bindings with BDA=0, set 0: 0 Q, 1 K, 2 V, 3 dO, 4 stats, 5 cu_seqlens_q, 6 cu_seqlens_k, 7 seqused_q, 8 seqused_k,
// 9 DX, 10 ALiBi, 11 DV, 12 bias, 13 mask, 14 sparse tokens, 15 Params.

const uint DV_SLICES = 1; // a workgroup has all columns of its outputs
const bool IS_16 = DTYPE != TYPE_F32;
const bool GRADIENT_IS_16 = IS_16 && F32_GRADIENTS == 0;

#include "addressing.glsl"
#include "rounding.glsl"
#include "work_tile_general.glsl"
#include "backward_work_tile.glsl"
#include "attended_keys.glsl"

    // -- row statistics ---------------------------------------------------------------------------
    // Row statistics of the backward pass, in scratch memory: pairs of float32 (LSE, delta), packed [B, Hq, Sq] as LSE is.
    // backward_delta.comp writes them. LSE is the natural logarithm of forward, but +Inf where that is -Inf:
    // exp(score - LSE) of a row with nothing to attend to is then 0.
    //
    // The pairs (rest, dLSE) of all rows follow. rest is what float32 rounds off LSE, 0 but for a large LSE: the kernels of LSE
    // write it. The scalar kernels have dLSE there: where one key takes all of P, dP - delta is exactly 0 and dLSE keeps its
    // bits. For the coopmat kernels backward_delta.comp subtracts dLSE from delta (DLSE_IN_DELTA) and writes 0.
    //
    // With DROPOUT seed, offset and threshold follow, see dropout.glsl; dS, if it is stored, is behind them.

    uint statRows() { return (VARLEN & CU_Q) != 0 ? p.Hq * p.totalQ : p.sequences * p.Hq * p.Sq; }

    // Pair `index` of the statistics, below 2^33.
#if BDA
    vec2 loadPairAt(uvec2 index) {
        const uvec2 two = ReadPairs(add64(p.addrStats, uvec2(index.x << 3, index.y << 3 | index.x >> 29))).at[0];
        return uintBitsToFloat(two);
    }
#else
    layout(set = 0, binding = 4, std430) READ_ONLY buffer Stats { uvec2 stats[]; };
    vec2 loadPairAt(uvec2 index) { return uintBitsToFloat(stats[p.addrStats.x + index.x]); }
#endif
    vec2 loadStatsAt(uint index) { return loadPairAt(uvec2(index, 0)); }
    vec2 loadMoreAt(uint index) { return loadPairAt(add64(uvec2(statRows(), 0), uvec2(index, 0))); }
    float loadRest(uint index) { return loadMoreAt(index).x; }

    // From this |LSE| on, rounding LSE errs as much as products in the storage type.
    const float LARGE_LSE = IS_16 ? 256.0 : 16.0;
    bool isLarge(float lse) { return abs(lse) >= LARGE_LSE && abs(lse) < INFINITY; } // and not NaN

    // From this |LSE| on (attention.MaxFastScore) the coopmat kernels cannot subtract it from a product: fma(S, scale, -LSE) is
    // off by more than 1. Their kernels of LSE write NaN as the rest, and the gradients of the row are NaN.
#define IS_FAR_LSE(lse) (!SCORE_MOD && abs(lse) > 16777216.0 && abs(lse) < INFINITY)

    struct RowStats { float lse, delta, rest, dLSE; };

    // The statistics of a row of the sequence; an LSE of +Inf past its end.
    RowStats loadStats(uint row) {
        if (row >= work.rows) return RowStats(INFINITY, 0.0, 0.0, 0.0);
        const uint index = rowIndex(row);
        const vec2 two = loadStatsAt(index), more = loadMoreAt(index);
        return RowStats(two.x, two.y, more.x, more.y);
    }

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

#define OF(name) name##DO
#define LOAD8 loadDO8
#define STRIDE(axis) p.strideDO##axis
#define BINDING 3
#define ALIGNMENT ALIGN_DO
#define COLUMNS HEAD_DIM_V
#include "tensor_read.glsl"

// dQ and dK have HEAD_DIM columns. dBias is float32 and stored by its own kernel.
#define OF(name) name##DX
#define STRIDE(axis) p.strideDX##axis
#define BINDING 9
#define ALIGNMENT ALIGN_DX
#define COLUMNS HEAD_DIM
#include "tensor_add.glsl"

#define OF(name) name##DV
#define STRIDE(axis) p.strideDV##axis
#define BINDING 11
#define ALIGNMENT ALIGN_DV
#define COLUMNS HEAD_DIM_V
#include "tensor_add.glsl"

#endif
