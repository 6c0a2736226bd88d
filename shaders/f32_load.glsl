// Q, K and V of forward_coopmat_f32.comp on their way to shared memory: pairs of float16 and what they are good for, the
// layout of shared memory, and the loads as terms and as pairs.

// -- pairs of float16 -----------------------------------------------------------------------------
// A float32 as a pair of float16 numbers, for unmasked KV tiles whose numbers are in range. Three products of a pair with a
// pair take half the time of six products of terms (f32_terms.glsl), and Q takes two thirds of the registers.
//
//   x 2^8 = hi + lo   hi is the float16 nearest to x 2^8, lo that nearest to the rest
//   x y 2^16 = hi hi + (hi lo + lo hi) + what is left out, at most 2^-22 |x y| 2^16
//
// hi and lo hold 23 of the 24 bits of x: the rest has at most 13, and one is rounded off if it has 13. float16 ends, though:
// x 2^8 is at most 65504, and the pair of a small x is off by up to 2^-33. So a tile is multiplied in pairs only if
//   K and Q   eight neighbours of a row add up to PAIR_LIMIT_QK at most in absolute value: what the ends of float16 change
//             in a score is under 2^-22 in log2 units, one rounding of a score of 4
//   V         eight neighbours of a row are zero, or add up to 2^-4 at least and 2^7 at most: 2^-33 is under 2^-26 of the
//             largest of them
// Inf and NaN are out of range. With the first tile out of range a workgroup leaves the loop for that with terms.
//
// P is a pair of P 2^7: it is at most 2^8, and off by up to 2^-32 where the largest P of the row is at least 1. Bits of a
// row depend on whether its tiles are in range. The loop has only keys that all rows of the workgroup attend to, so these
// bits do not depend on masked keys.
const uint PAIR = 2;
const uint PAIR_HI = 0, PAIR_LO = 1;
const float PAIR_SCALE = 256.0;                 // of Q, K and V
const float PAIR_P_SHIFT = 7.0, PAIR_P_SCALE = 128.0; // of P: log2 and itself
const float PAIR_LEAST_V = 0.0625, PAIR_MOST = 127.0;
// Errors of 2^-33 in K add up to 2^-33 |Q|, and |Q| is the sum of HEAD_DIM / 8 sums of eight; those in Q likewise.
#define PAIR_LIMIT_QK min(PAIR_MOST, 8192.0 / (float((HEAD_DIM + 7) / 8 * 8) * SCORE_SCALE))

#define PairA coopmat<float16_t, SCOPE, FRAG_M, FRAG_K, gl_MatrixUseA>
#define PairB coopmat<float16_t, SCOPE, FRAG_K, FRAG_N, gl_MatrixUseB>

// The float16 nearest to x, halves away from zero, as a float32; x becomes the rest. By its bits: a compiler may take a
// float16 that becomes a float32 again for x (lavapipe of Mesa 26.2 does).
float takeHalf(inout float x) {
    const float hi = uintBitsToFloat((floatBitsToUint(x) + 0x1000u) & 0xffffe000u);
    x -= hi;
    return hi;
}
uint takeHalves(inout float x, inout float y) {
    const float a = takeHalf(x), b = takeHalf(y);
    return packFloat2x16(f16vec2(a, b));
}
// The pairs of eight numbers, in place, and the sum of their absolute values before they are scaled.
float splitPairs(inout uvec4 low, inout uvec4 high) {
    vec4 a = uintBitsToFloat(low), b = uintBitsToFloat(high);
    const float sum = ((abs(a.x) + abs(a.y)) + (abs(a.z) + abs(a.w))) + ((abs(b.x) + abs(b.y)) + (abs(b.z) + abs(b.w)));
    a *= PAIR_SCALE;
    b *= PAIR_SCALE;
    low = uvec4(takeHalves(a.x, a.y), takeHalves(a.z, a.w), takeHalves(b.x, b.y), takeHalves(b.z, b.w));
    high = uvec4(packFloat2x16(f16vec2(a.x, a.y)), packFloat2x16(f16vec2(a.z, a.w)),
                 packFloat2x16(f16vec2(b.x, b.y)), packFloat2x16(f16vec2(b.z, b.w)));
    return sum;
}
// By the sum of eight neighbours. Tests bits, as a compiler may assume that no float is NaN: positive floats are in the order
// of their bits, and NaN and Inf are the last.
bool atMost(float sum, float limit) { return floatBitsToUint(sum) <= floatBitsToUint(limit); }
bool inRangeV(float sum) { return sum == 0.0 || atMost(PAIR_LEAST_V, sum) && atMost(sum, PAIR_MOST); }

// -- shared memory --------------------------------------------------------------------------------
// Tile sizes and shared memory of forward_coopmat_f32.comp. Shared memory is smem, in vectors of 16 bytes, eight terms
// each. The terms of a row follow each other. In the loop with pairs the
// K tile is at 0 and the V tile at PAIR_V_BASE; they overlay the chunks of Q, which are loaded after that loop. ALIAS_KV is
// the sum of 1 the V tile overlays the K tile in the loops with terms, 2 in the loop with pairs.
//   0             K tile, KV_TILE rows of K_STRIDE
//   V_BASE        V tile, KV_TILE rows of V_STRIDE
//   Q_BASE        the chunks of Q that are not in registers, SUBGROUP_ROWS rows of Q_STRIDE of each subgroup
//   ROW_MAX_BASE  row max, FRAG_M floats per row fragment
//   PARTIAL_BASE  with DIM_SPLIT 2, the partial scores of each subgroup
//   SCRATCH_BASE  scratch of each subgroup: a fragment as float32, or its terms. With NV2 only the code before and after
//                 the KV loop uses it: it overlays the tiles if it fits
// Strides are odd: rows start in different banks.

const uint SUBGROUPS = LOCAL_SIZE / SUBGROUP_SIZE;
const uint SUBGROUP_ROWS = M_FRAGS * FRAG_M;
const uint WORKGROUP_ROWS = SUBGROUPS / DIM_SPLIT * SUBGROUP_ROWS;
#define SUBGROUP_FIRST_ROW (gl_SubgroupID / DIM_SPLIT * SUBGROUP_ROWS)
#define DIM_INDEX (DIM_SPLIT == 1 ? 0 : gl_SubgroupID % DIM_SPLIT)
const uint QK_CHUNKS = (HEAD_DIM + FRAG_K * DIM_SPLIT - 1) / (FRAG_K * DIM_SPLIT); // fragments along Dqk, of a subgroup
const uint Q_REG_CHUNKS = Q_SMEM_CHUNKS < QK_CHUNKS ? QK_CHUNKS - Q_SMEM_CHUNKS : 0;
const uint KV_STEPS = KV_TILE / KV_STEP;
const uint PAIR_STEPS = PAIR_TILE / KV_STEP;
const uint KV_FRAGS = KV_STEP / FRAG_N;                   // fragments of S along the keys of a step
const uint DV_FRAGS = (DV_SLICE + FRAG_N * DIM_SPLIT - 1) / (FRAG_N * DIM_SPLIT); // fragments of O along its columns, of a subgroup

const uint Q_FRAGS = Q_REG_CHUNKS > 0 ? M_FRAGS * Q_REG_CHUNKS : 1; // in registers, of each term
const uint S_FRAGS = M_FRAGS * KV_FRAGS, O_FRAGS = M_FRAGS * DV_FRAGS;

const uint CHUNK_VECS = FRAG_K / 8;
const uint K_ROW_VECS = DIM_SPLIT * QK_CHUNKS * CHUNK_VECS; // of one term
const uint V_ROW_VECS = DIM_SPLIT * DV_FRAGS * FRAG_N / 8;
const uint Q_ROW_VECS = (QK_CHUNKS - Q_REG_CHUNKS) * CHUNK_VECS;
const uint K_STRIDE = (TERMS * K_ROW_VECS) | 1;
const uint V_STRIDE = (TERMS * V_ROW_VECS) | 1;
const uint Q_STRIDE = (TERMS * Q_ROW_VECS) | 1;
const uint TERMS_STRIDE = (TERMS * CHUNK_VECS) | 1;       // of the terms of a fragment in scratch

const uint ALIAS_TERMS = ALIAS_KV % 2, ALIAS_PAIRS = ALIAS_KV / 2;
const uint K_SIZE = KV_TILE * K_STRIDE, V_SIZE = KV_TILE * V_STRIDE;
const uint V_BASE = ALIAS_TERMS != 0 ? 0 : K_SIZE;
const uint Q_BASE = V_BASE + V_SIZE > K_SIZE ? V_BASE + V_SIZE : K_SIZE;
const uint Q_END = Q_BASE + (Q_ROW_VECS > 0 ? SUBGROUPS * SUBGROUP_ROWS * Q_STRIDE : 0);
const uint PAIR_K_STRIDE = (PAIR * K_ROW_VECS) | 1;
const uint PAIR_V_STRIDE = (PAIR * V_ROW_VECS) | 1;
const uint PAIR_K_SIZE = PAIR_TILE * PAIR_K_STRIDE, PAIR_V_SIZE = PAIR_TILE * PAIR_V_STRIDE;
const uint PAIR_V_BASE = ALIAS_PAIRS != 0 ? 0 : PAIR_K_SIZE;
const uint PAIR_END = PAIR_V_BASE + PAIR_V_SIZE > PAIR_K_SIZE ? PAIR_V_BASE + PAIR_V_SIZE : PAIR_K_SIZE;
const uint ROW_MAX_BASE = Q_END > PAIR_END ? Q_END : PAIR_END;
const uint ROW_MAX_SIZE = FRAG_M / 4; // of one row fragment
const uint PARTIAL_BASE = ROW_MAX_BASE + SUBGROUPS * M_FRAGS * ROW_MAX_SIZE;
const uint PARTIAL_SIZE = FRAG_M * FRAG_N / 4;            // of a fragment
const uint KV_LOOP_SIZE = PARTIAL_BASE + (DIM_SPLIT > 1 ? SUBGROUPS * S_FRAGS * PARTIAL_SIZE : 0);
const uint FLOATS_SIZE = FRAG_M * ((FRAG_N / 4) | 1), TERMS_SIZE = FRAG_M * TERMS_STRIDE;
#define SUBGROUP_SCRATCH (FLOATS_SIZE > TERMS_SIZE ? FLOATS_SIZE : TERMS_SIZE)
const uint SCRATCH_TOTAL = SUBGROUPS * SUBGROUP_SCRATCH;
#if NV2
const uint SCRATCH_BASE = SCRATCH_TOTAL <= Q_BASE ? 0 : KV_LOOP_SIZE;
#else
const uint SCRATCH_BASE = KV_LOOP_SIZE;
#endif
shared uvec4 smem[SCRATCH_BASE == 0 ? KV_LOOP_SIZE : KV_LOOP_SIZE + SCRATCH_TOTAL];
shared uint outOfRange;    // K or V of a tile, or Q, is not in the range of pairs
shared uint outOfRangeV;   // with DIM_SPLIT 2, which stores V later: V of a tile
shared uint nonFiniteSeen; // V of a masked tile has Inf or NaN, see f32_gemm.glsl

// -- loads as terms -------------------------------------------------------------------------------
// Loads of Q, K and V of float32 into shared memory as terms, in vectors of eight elements. PREFETCH_K and PREFETCH_V load
// the next KV tile into kVec and vVec while this one is multiplied, SPLIT_K and SPLIT_V replace the vectors by their terms
// before the workgroup barrier, where subgroups wait for each other anyway, and STORE_K and STORE_V store these behind it.

const uint K_VECS = (KV_TILE * K_ROW_VECS + LOCAL_SIZE - 1) / LOCAL_SIZE;
const uint V_VECS = (KV_TILE * V_ROW_VECS + LOCAL_SIZE - 1) / LOCAL_SIZE;

// Not 0: the last vector of some invocations is past the end of the tile.
const uint K_RAGGED = KV_TILE * K_ROW_VECS % LOCAL_SIZE;
const uint V_RAGGED = KV_TILE * V_ROW_VECS % LOCAL_SIZE;

// Four elements of a row. If rows fill their fragments no column is compared.
uvec4 loadVecQ(Slice s, uint row, uint col) {
    return load4Q(s, row * p.strideQSeq + col, HEAD_DIM % (FRAG_K * DIM_SPLIT) == 0 ? 4 : elementsFromQ(col));
}
uvec4 loadVecK(Slice s, uint key, uint col) {
    return load4K(s, key * p.strideKSeq + col, HEAD_DIM % (FRAG_K * DIM_SPLIT) == 0 ? 4 : elementsFromK(col));
}
uvec4 loadVecV(Slice s, uint key, uint col) {
    return load4V(s, key * p.strideVSeq + col, HEAD_DIM_V % (FRAG_N * DIM_SPLIT) == 0 ? 4 : elementsFromV(col));
}

// Loads the subgroup's rows of Q into qVec, fragment by fragment; all loads are issued before the first wait. Rows past the
// end are zero. flipQ flips the sign of Q for a negative scale, so that the largest score is the largest logit.
#define LOAD_Q_VECS                                                                                 \
    const Slice qRows = sliceQ(work.batch, work.head, work.row0);                                   \
    const uint frags = M_FRAGS * QK_CHUNKS;                                                         \
    uvec4 qVec[2 * M_FRAGS * QK_CHUNKS * LANE_VECS];                                                \
    [[unroll]] for (uint n = 0; n < frags * LANE_VECS; ++n) {                                       \
        const uint group = n % LANE_VECS * SUBGROUP_SIZE + gl_SubgroupInvocationID, f = n / LANE_VECS; \
        const uint row = rowInTile + f / QK_CHUNKS * FRAG_M + group / CHUNK_VECS, col = ((DIM_INDEX * QK_CHUNKS + f % QK_CHUNKS) * CHUNK_VECS + group % CHUNK_VECS) * 8; \
        const bool there = group < FRAG_VECS && work.row0 + row < p.Sq;                             \
        qVec[2 * n] = there ? loadVecQ(qRows, row, col) ^ flipQ : uvec4(0);                         \
        qVec[2 * n + 1] = there ? loadVecQ(qRows, row, col + 4) ^ flipQ : uvec4(0);                 \
    }

#include "f32_products.glsl"

// Load tile `index`, where kRows and vRows are, and advance these. Keys past Sk are zero: compared if the tile may be the
// last one (checkEnd), or with CHECK_KV_END.
#define PREFETCH_K(index, checkEnd)                                                                 \
    {                                                                                               \
        const uint keys = min(p.Sk - (index) * KV_TILE, KV_TILE);                                   \
        [[unroll]] for (uint i = 0; i < K_VECS; ++i) {                                              \
            const uint at = i * LOCAL_SIZE + tid, key = at / K_ROW_VECS, col = at % K_ROW_VECS * 8; \
            const bool past = (checkEnd) + CHECK_KV_END + K_RAGGED != 0 && key >= keys;             \
            kVec[3 * i] = past ? uvec4(0) : loadVecK(kRows, key, col);                              \
            kVec[3 * i + 1] = past ? uvec4(0) : loadVecK(kRows, key, col + 4);                      \
        }                                                                                           \
        kRows = advanceK(kRows, KV_TILE);                                                           \
    }
#define PREFETCH_V(index, checkEnd)                                                                 \
    {                                                                                               \
        const uint keys = min(p.Sk - (index) * KV_TILE, KV_TILE);                                   \
        [[unroll]] for (uint i = 0; i < V_VECS; ++i) {                                              \
            const uint at = i * LOCAL_SIZE + tid, key = at / V_ROW_VECS, col = work.col0 + at % V_ROW_VECS * 8; \
            const bool past = (checkEnd) + CHECK_KV_END + V_RAGGED != 0 && key >= keys;             \
            vVec[3 * i] = past ? uvec4(0) : loadVecV(vRows, key, col);                              \
            vVec[3 * i + 1] = past ? uvec4(0) : loadVecV(vRows, key, col + 4);                      \
        }                                                                                           \
        vRows = advanceV(vRows, KV_TILE);                                                           \
    }

// Masked tiles are stored without the Inf and NaN of V: P of a masked key is 0, but 0 x Inf is NaN. They are added to O
// after the KV loop (f32_gemm.glsl).
#define KEEP_NON_FINITE(low, high)
#define DROP_NON_FINITE(low, high)                                                                  \
    if (CAUSAL != 0) {                                                                              \
        const bool dropsLow = dropNonFinite4(low), dropsHigh = dropNonFinite4(high);                \
        if (dropsLow || dropsHigh) atomicOr(nonFiniteSeen, 1);                                      \
    }

#define SPLIT_K                                                                                     \
    [[unroll]] for (uint i = 0; i < K_VECS; ++i)                                                    \
        splitTerms(kVec[3 * i], kVec[3 * i + 1], kVec[3 * i], kVec[3 * i + 1], kVec[3 * i + 2]);
#define SPLIT_V(FILTER_V)                                                                           \
    {                                                                                               \
        [[unroll]] for (uint i = 0; i < V_VECS; ++i) {                                              \
            FILTER_V(vVec[3 * i], vVec[3 * i + 1])                                                  \
            splitTerms(vVec[3 * i], vVec[3 * i + 1], vVec[3 * i], vVec[3 * i + 1], vVec[3 * i + 2]); \
        }                                                                                           \
    }

#define STORE_K                                                                                     \
    {                                                                                               \
        [[unroll]] for (uint i = 0; i < K_VECS; ++i) {                                              \
            const uint at = i * LOCAL_SIZE + tid;                                                   \
            if (K_RAGGED == 0 || at < KV_TILE * K_ROW_VECS)                                         \
                storeTerms(at / K_ROW_VECS * K_STRIDE + at % K_ROW_VECS, K_ROW_VECS, kVec[3 * i], kVec[3 * i + 1], kVec[3 * i + 2]); \
        }                                                                                           \
    }
#define STORE_V                                                                                     \
    {                                                                                               \
        [[unroll]] for (uint i = 0; i < V_VECS; ++i) {                                              \
            const uint at = i * LOCAL_SIZE + tid;                                                   \
            if (V_RAGGED == 0 || at < KV_TILE * V_ROW_VECS)                                         \
                storeTerms(V_BASE + at / V_ROW_VECS * V_STRIDE + at % V_ROW_VECS, V_ROW_VECS, vVec[3 * i], vVec[3 * i + 1], vVec[3 * i + 2]); \
        }                                                                                           \
    }

// -- loads as pairs -------------------------------------------------------------------------------
// Loads of K and V into shared memory as pairs of float16, like those as terms above. Every key of the
// tiles exists. With PAIR_TILE 0 the code is dead, but its arrays need a length.

const uint PAIR_K_VECS = PAIR_TILE > 0 ? (PAIR_TILE * K_ROW_VECS + LOCAL_SIZE - 1) / LOCAL_SIZE : 1;
const uint PAIR_V_VECS = PAIR_TILE > 0 ? (PAIR_TILE * V_ROW_VECS + LOCAL_SIZE - 1) / LOCAL_SIZE : 1;
const bool PAIR_K_RAGGED = PAIR_TILE * K_ROW_VECS % LOCAL_SIZE != 0, PAIR_V_RAGGED = PAIR_TILE * V_ROW_VECS % LOCAL_SIZE != 0;

#define PREFETCH_PAIRS_OF_K                                                                         \
    {                                                                                               \
        [[unroll]] for (uint i = 0; i < PAIR_K_VECS; ++i) {                                         \
            const uint at = i * LOCAL_SIZE + tid, key = at / K_ROW_VECS, col = at % K_ROW_VECS * 8; \
            const bool past = PAIR_K_RAGGED && key >= PAIR_TILE;                                    \
            kPair[2 * i] = past ? uvec4(0) : loadVecK(kRows, key, col);                             \
            kPair[2 * i + 1] = past ? uvec4(0) : loadVecK(kRows, key, col + 4);                     \
        }                                                                                           \
        kRows = advanceK(kRows, PAIR_TILE);                                                         \
    }
#define PREFETCH_PAIRS_OF_V                                                                         \
    {                                                                                               \
        [[unroll]] for (uint i = 0; i < PAIR_V_VECS; ++i) {                                         \
            const uint at = i * LOCAL_SIZE + tid, key = at / V_ROW_VECS, col = work.col0 + at % V_ROW_VECS * 8; \
            const bool past = PAIR_V_RAGGED && key >= PAIR_TILE;                                    \
            vPair[2 * i] = past ? uvec4(0) : loadVecV(vRows, key, col);                             \
            vPair[2 * i + 1] = past ? uvec4(0) : loadVecV(vRows, key, col + 4);                     \
        }                                                                                           \
        vRows = advanceV(vRows, PAIR_TILE);                                                         \
    }

// Split the vectors in place, and mark a tile that is out of range.
#define SPLIT_PAIRS_OF_K                                                                            \
    {                                                                                               \
        bool inRange = true;                                                                        \
        [[unroll]] for (uint i = 0; i < PAIR_K_VECS; ++i)                                           \
            inRange = atMost(splitPairs(kPair[2 * i], kPair[2 * i + 1]), limitQK) && inRange;       \
        if (!inRange) outOfRange = 1;                                                               \
    }
#define SPLIT_PAIRS_OF_V(mark)                                                                      \
    {                                                                                               \
        bool inRange = true;                                                                        \
        [[unroll]] for (uint i = 0; i < PAIR_V_VECS; ++i)                                           \
            inRange = inRangeV(splitPairs(vPair[2 * i], vPair[2 * i + 1])) && inRange;              \
        if (!inRange) mark = 1;                                                                     \
    }

#define STORE_PAIRS_OF_K                                                                            \
    {                                                                                               \
        [[unroll]] for (uint i = 0; i < PAIR_K_VECS; ++i) {                                         \
            const uint at = i * LOCAL_SIZE + tid, to = at / K_ROW_VECS * PAIR_K_STRIDE + at % K_ROW_VECS; \
            if (!PAIR_K_RAGGED || at < PAIR_TILE * K_ROW_VECS) {                                    \
                smem[to] = kPair[2 * i];                                                            \
                smem[to + K_ROW_VECS] = kPair[2 * i + 1];                                           \
            }                                                                                       \
        }                                                                                           \
    }
#define STORE_PAIRS_OF_V                                                                            \
    {                                                                                               \
        [[unroll]] for (uint i = 0; i < PAIR_V_VECS; ++i) {                                         \
            const uint at = i * LOCAL_SIZE + tid, to = PAIR_V_BASE + at / V_ROW_VECS * PAIR_V_STRIDE + at % V_ROW_VECS; \
            if (!PAIR_V_RAGGED || at < PAIR_TILE * V_ROW_VECS) {                                    \
                smem[to] = vPair[2 * i];                                                            \
                smem[to + V_ROW_VECS] = vPair[2 * i + 1];                                           \
            }                                                                                       \
        }                                                                                           \
    }
