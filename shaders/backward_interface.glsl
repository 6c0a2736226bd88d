// Parameters of the backward kernels, and everything that each of them includes: the work of a workgroup, row
// statistics, tensors, scores. Names and the two ways to reach memory are the same as in interface.glsl. GENERAL is
// always 1: the options of a call are specialization constants.
//
//   backward_delta.comp      row statistics; runs first, with parameters of its own
//   backward_scalar_lse.comp more digits of LSE, for the scalar kernels (see "row statistics" below)
//   backward_*_q.comp        dQ: a workgroup owns rows and loops over keys
//   backward_*_kv.comp       dK and dV: a workgroup owns keys of a KV head and loops over the rows of its query heads
//   tile_map.comp            the tiles that a mask modifier leaves to each workgroup of these two
//   backward_*_bias.comp     dBias: a workgroup owns elements of the bias and loops over the broadcast axes
//   backward_sinks.comp      dSinks, with parameters of its own
//   backward_scalar_table.comp  the gradient of a table of the score modifier: a workgroup owns rows of a head
//   backward_table_sum.comp  and the sum of what the workgroups have found, with parameters of its own
//
// With x the score of (row, key), S the product Q K^T, and P = exp(x - LSE), which includes sinks:
//
//   dP = dO V^T   dX = P (dP - delta)   dS = scale * dX * (derivatives of the score modifier and of the softcap)
//   dQ = dS K     dK = dS^T Q           dV = P^T dO     dSink = -sum of exp(sink - LSE) delta
//   dBias = sum of dX * (derivative of the score modifier)
//
// delta = rowsum(dO * O) - dLSE. Slots whose P is 0 contribute nothing, whatever memory holds there: P and dX of a
// masked slot are selected to be 0, and a product with a P or dS of 0 is skipped wherever its other factor may not be
// finite. The derivative of a score modifier too may be infinite or NaN where P is 0.
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

// 256 bytes, with CONSTANTS_MODIFIERS and descriptors 320. Strides are in elements and below 2^32; a row is contiguous.
#if !BDA // more than the 128 bytes of push constants that every device has; not readonly, see interface.glsl
layout(set = 0, binding = 15, std430) buffer Params {
#else
layout(push_constant, std430) uniform Params {
#endif
    uvec2 addrQ;         // BDA=1: byte address of the first element, low word first. BDA=0: index of the
    uvec2 addrK;         // first element in the bound range
    uvec2 addrV;
    uvec2 addrDO;
    uvec2 addrStats;     // scratch of backward_delta.comp, see "row statistics" below; in pairs of float32
    uvec2 addrDX;        // output: dQ, dK, dBias or sums for a table, whichever the kernel computes; or the rests of LSE
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
    uint strideMaskBatch, strideMaskHead, strideMaskRow; // SPARSE_TOKENS: address of the tokens, and their number or that of a list; of the bias with MASK
    uint sequences;      // B
    uint Sq, Sk;         // most queries and keys of a sequence
    uint Hq;             // query heads
    uint groupSize;      // Hq / Hkv
    uint totalQ, totalK; // rows of packed Q, dO, LSE, dQ and of packed K, V, dK, dV
    float scoreScale;    // S to scores. All scores are natural exponents: LSE is in the same unit
    int causalOffset;    // 1 if the last query is aligned with the last key
    int windowLeft, windowRight;
    float softcap;       // in natural units, as scoreScale
#if !BDA && defined(CONSTANTS_MODIFIERS)
    ivec4 tables[4];     // of modifiers, see score.Rewrite: first element in its binding, sizes of the axes
#endif
} p;

// Bindings with BDA=0, set 0: 0 Q, 1 K, 2 V, 3 dO, 4 stats, 5 cu_seqlens_q, 6 cu_seqlens_k, 7 seqused_q, 8 seqused_k,
// 9 DX, 10 ALiBi, 11 DV, 12 bias, 13 mask, 14 sparse tokens, 15 Params; tables of modifiers follow.

const uint DV_SLICES = 1; // a workgroup has all columns of its outputs
const bool IS_16 = DTYPE != TYPE_F32;
const bool GRADIENT_IS_16 = IS_16 && F32_GRADIENTS == 0;

#include "addressing.glsl"
#include "rounding.glsl"
#include "grid.glsl"
#include "work_tile_general.glsl"

// -- work of a workgroup --------------------------------------------------------------------------
// The rows, keys or elements of the bias that a workgroup of a backward kernel owns. Rows and keys are numbered within
// their sequence, as in work_tile_general.glsl, whose WorkTile and PACK_GQA these kernels share: row r is query
// r / PACK_GQA of head r % PACK_GQA of the group.
//
// Grid of the dQ kernel: x = Q tile, y = KV head with PACK_GQA, else query head, z = sequence. Of the dK and dV kernel:
// x = KV tile, y = KV head, z = sequence. With cu_seqlens x counts the tiles of all sequences, one sequence after the
// other, and z is 1. A workgroup also owns what its sequence has in the tensor past the sequence's end (seqused): its
// gradient is 0.

// The range of a sequence in the tensors: its rows or keys are the first of them.
struct Extent { uint first, count; };
Extent extentQ(uint sequence) {
    if ((VARLEN & CU_Q) == 0) return Extent(0, p.Sq);
    const uint first = clampCount(loadCuQ(sequence), p.totalQ), end = clampCount(loadCuQ(sequence + 1), p.totalQ);
    return Extent(first, max(end, first) - first);
}
Extent extentK(uint sequence) {
    if ((VARLEN & CU_K) == 0) return Extent(0, p.Sk);
    const uint first = clampCount(loadCuK(sequence), p.totalK), end = clampCount(loadCuK(sequence + 1), p.totalK);
    return Extent(first, max(end, first) - first);
}

// Sets what work says of a sequence and a KV head. head is the query head, or the first of the group with PACK_GQA.
void setSequence(uint sequence, uint head, uint kvHead) {
    work.batch = sequence;
    work.head = head;
    work.kvHead = kvHead;
    setMapRow();
    work.split = 0;
    work.splits = 1;
    work.col0 = 0;
    const Extent q = extentQ(sequence), k = extentK(sequence);
    work.offsetQ = q.first;
    work.seqlenQ = min(q.count, p.Sq);
    if ((VARLEN & USED_Q) != 0) work.seqlenQ = clampCount(loadUsedQ(sequence), work.seqlenQ);
    work.rows = work.seqlenQ * ROWS_PER_QUERY;
    work.offsetK = k.first;
    work.seqlenK = min(k.count, p.Sk);
    if ((VARLEN & USED_K) != 0) work.seqlenK = clampCount(loadUsedK(sequence), work.seqlenK);
    work.kvLength = work.seqlenK;
    if (SPARSE_TOKENS != 0) {
        setSparseTokens(sequence * (p.Hq / p.groupSize) + kvHead);
    }
    work.causalOffset = p.causalOffset != 0 ? int(work.seqlenK) - int(work.seqlenQ) : 0;
}

// First tile of packed sequence b in the grid, see firstQTile.
uint firstPackedTile(uint b, bool ofKeys, uint rowsPerPosition, uint tileRows) {
    const uint first = ofKeys ? clampCount(loadCuK(b), p.totalK) : clampCount(loadCuQ(b), p.totalQ);
    return first * rowsPerPosition / tileRows + b;
}

// The last packed sequence whose first tile is not after this one.
uint packedSequence(uint tile, bool ofKeys, uint rowsPerPosition, uint tileRows) {
    uint low = 0, count = p.sequences;
    while (count > 1) {
        const uint half_ = count / 2;
        const bool starts = firstPackedTile(low + half_, ofKeys, rowsPerPosition, tileRows) <= tile;
        if (starts) low += half_;
        count = starts ? count - half_ : half_;
    }
    return low;
}

// The sequence and the head of the grid that a workgroup has. Where CHUNK_OF_HEADS is not 0 the kernel takes a chunk of heads
// (backward_scratch.glsl): y counts the (sequence, KV head) of the chunk, the first of which is addrUsedQ.x.
#ifndef CHUNK_OF_HEADS
#define CHUNK_OF_HEADS 0
#endif
uvec2 sequenceAndHead() {
    if (CHUNK_OF_HEADS == 0) return WORKGROUP_ID.zy;
    const uint head = p.addrUsedQ.x + WORKGROUP_ID.y, heads = p.Hq / p.groupSize;
    return uvec2(head / heads, head % heads);
}

// Sets work for a workgroup of the dQ kernel. extentRows is the number of rows that the sequence has in dQ, rows past
// its end included. False if the workgroup has none of them.
bool findRowTile(uint tileRows, out uint extentRows) {
    const uvec2 grid = sequenceAndHead();
    uint tile = WORKGROUP_ID.x, sequence = grid.x;
    if ((VARLEN & CU_Q) != 0) {
        sequence = packedSequence(tile, false, ROWS_PER_QUERY, tileRows);
        const uint first = firstPackedTile(sequence, false, ROWS_PER_QUERY, tileRows);
        if (tile < first) return false;
        tile -= first;
    }
    const uint head = grid.y * ROWS_PER_QUERY;
    setSequence(sequence, head, head / p.groupSize);
    extentRows = extentQ(sequence).count * ROWS_PER_QUERY;
    const uint tiles = (extentRows + tileRows - 1) / tileRows;
    if (tile >= tiles) return false;
    if (CAUSAL + LAST_ROWS_FIRST != 0) tile = tiles - 1 - tile; // longest tiles first: later rows see more keys
    work.row0 = tile * tileRows;
    return true;
}

// Sets work, without row0, and the first key for a workgroup of the dK and dV kernel. extentKeys is the number of keys
// that the sequence has in dK and dV. False if the workgroup has none of them.
bool findKeyTile(uint tileKeys, out uint firstKey, out uint extentKeys) {
    const uvec2 grid = sequenceAndHead();
    uint tile = WORKGROUP_ID.x, sequence = grid.x;
    if ((VARLEN & CU_K) != 0) {
        sequence = packedSequence(tile, true, 1, tileKeys);
        const uint first = firstPackedTile(sequence, true, 1, tileKeys);
        if (tile < first) return false;
        tile -= first;
    }
    setSequence(sequence, grid.y * p.groupSize, grid.y);
    extentKeys = extentK(sequence).count;
    firstKey = tile * tileKeys; // a causal mask: the first keys are seen by most rows, and come first
    return firstKey < extentKeys;
}

#include "attended_keys.glsl"

// -- row statistics -------------------------------------------------------------------------------
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
#include "tensor_write.glsl"

#define OF(name) name##DV
#define STRIDE(axis) p.strideDV##axis
#define BINDING 11
#define ALIGNMENT ALIGN_DV
#define COLUMNS HEAD_DIM_V
#include "tensor_write.glsl"

#ifdef CONSTANTS_DROPOUT
#include "dropout.glsl"
#endif

// -- scores ---------------------------------------------------------------------------------------
// P of a slot (row, key), and the derivative of its score with respect to the product Q K^T.

const float LOG2E = 1.4426950408889634;

// Derivative of the softcap at a score: 1 - tanh(y)^2 with y = score / softcap, as 4 e / (1 + e)^2 with e = exp(-2 |y|),
// which does not cancel far from 0.
float softcapSlope(float score) {
    const float e = exp2(-abs(score * softcapRate));
    return 4.0 * e / ((1.0 + e) * (1.0 + e));
}

// A kernel of gradients with respect to scores behind the softcap, and not to products, defines SOFTCAP_SLOPE 0.
#ifndef SOFTCAP_SLOPE
#define SOFTCAP_SLOPE 1
#endif
#define HAS_SLOPE (SOFTCAP_SLOPE * SOFTCAP PLUS_SCORE_EXPR != 0) // slotSlope may not be 1

// Derivative of the score of a slot with respect to its scaled product, or with SOFTCAP_SLOPE 0 to its bias.
float slotSlope(float product, uint row, uint key) {
    float slope = SOFTCAP_SLOPE * SOFTCAP != 0 ? softcapSlope(product * p.scoreScale) : 1.0;
#ifdef CONSTANTS_MODIFIERS
    if (SCORE_EXPR != 0) {
        float x = product * p.scoreScale;
        CHANGE_BY_OPTIONS(x, row, key)
        slope *= slopeExpr(SLOT(row, key), x);
    }
#endif
    return slope;
}

// exp(score - LSE) from the product of a slot that the row attends to, and slotSlope.
float slotP(float product, uint row, uint key, RowStats stats, out float slope) {
    slope = slotSlope(product, row, key);
    float exponent;
    if (SCORE_MOD) exponent = scoreMod(product * p.scoreScale, row, key) - stats.lse;
    // fma subtracts LSE from the exact product; but see LARGE_SCORE.
    else if (abs(stats.lse) < LARGE_SCORE) exponent = fma(product, p.scoreScale, -stats.lse);
    else exponent = roundedDifference(product, p.scoreScale, stats.lse);
    exponent -= stats.rest;
    // exp2 need not keep a NaN: SwiftShader's makes it infinity.
    return isNaN(exponent) ? exponent : exp2(exponent * LOG2E);
}

// dX = P (dP - delta + dLSE); 0 where P is, whatever dP is.
float slotDX(float prob, float dP, RowStats stats) { return prob == 0.0 ? 0.0 : prob * (dP - stats.delta + stats.dLSE); }

#endif
