#version 460
// Attention forward of float32 on cooperative matrices (tiers coopmat and coopmat2), calls without options. Each float32 is
// the sum of three terms of 16 bits, and six products of terms make a product of float32 (f32_terms.glsl). The structure is
// that of forward_coopmat.comp: FlashAttention-2 with a lagged row max.
//
// A workgroup owns WORKGROUP_ROWS query rows of one head and DV_SLICE columns of O. Each subgroup owns M_FRAGS * FRAG_M of
// these rows alone; all subgroups share the KV tiles. With DIM_SPLIT 2, for head dims that one subgroup has no registers for,
// a pair of subgroups owns the rows: each has half of the columns of Q, K, V and O, and they exchange partial scores.
//   registers      O, row sums, the terms of Q but for Q_SMEM_CHUNKS chunks, and this invocation's vectors of the next KV tile
//   shared memory  the terms of the K tile and of the V tile, the other chunks of Q, the row max (f32_load.glsl)
//   barriers       two per KV tile, before and after it is stored to shared memory. With DIM_SPLIT 2 one when K is complete
//                  and one when V and the partial scores are; V is stored behind Q K^T, and the next K behind P V
// Unmasked tiles, which every row attends to in full, have a loop of their own. Masked tiles, at the causal diagonal and at
// the end of the keys, have a second one; subgroups whose rows attend to no key of a tile skip it. With PAIR_TILE a loop before
// them multiplies unmasked tiles as pairs of float16, up to the first that is not in their range (f32_load.glsl).
#extension GL_GOOGLE_include_directive : require
#define CONSTANTS_FORWARD
#define CONSTANTS_ROW_SUM
#define CONSTANTS_DENSE
#define CONSTANTS_F32
#define CONSTANTS_F32_PAIRS
#include "constants_coopmat.glsl"
#define HEADS_IN_TURN (ORDER * CAUSAL != 0)
#include "interface.glsl"

#define SCORE_SCALE abs(p.scoreScale) // of products Q K^T
#define NEEDS_F32_SUM true
#define EXP2_SCORE(x) (ABLATE == ABLATE_SOFTMAX ? x : exp2(x))

#include "fragments.glsl"
#include "f32_terms.glsl"
#include "f32_load.glsl"
#include "fragment_ops.glsl"
#include "f32_gemm.glsl"

void main() {
    const WorkTile work = workTile(WORKGROUP_ROWS);
    const uint tid = gl_LocalInvocationIndex;
    const uint rowInTile = SUBGROUP_FIRST_ROW; // first row of the subgroup, in the workgroup's rows
    const uint rowBase = work.row0 + rowInTile;           // and in the tensor

    // The last row attends to most keys; every row attends to the unmasked tiles in full.
    const uint tiles = (visibleKeys(min(work.row0 + WORKGROUP_ROWS, p.Sq) - 1) + KV_TILE - 1) / KV_TILE;
    const uint unmaskedTiles = visibleKeys(work.row0) / KV_TILE;
    const uint keyEnd = visibleKeys(min(rowBase + SUBGROUP_ROWS, p.Sq) - 1); // of the subgroup

    const uint flipQ = p.scoreScale < 0.0 ? 0x80000000u : 0u; // Q has the sign of the scale

    Slice kRows = sliceK(work.batch, work.kvHead, 0), vRows = sliceV(work.batch, work.kvHead, 0);
    if (tid == 0) {
        nonFiniteSeen = 0;
        outOfRange = outOfRangeV = 0;
    }
    clearSums();
    startSoftmax();

    uint j = 0; // KV tile
    if (PAIR_TILE > 0) {
        // -- loop with pairs ----------------------------------------------------------------------
        // The KV loop with pairs of float16 (f32_load.glsl). It sets j to the KV tiles that it has done. The row
        // sums count 2^7 times and O 2^15 times in it.
        const uint pairTiles = SCORE_SCALE >= 1e-20 ? unmaskedTiles * KV_TILE / PAIR_TILE : 0; // else scale is not a normal number
        if (pairTiles > 0) {
            const float limitQK = PAIR_LIMIT_QK;
            uvec4 kPair[2 * PAIR_K_VECS], vPair[2 * PAIR_V_VECS];
            PREFETCH_PAIRS_OF_K
            PREFETCH_PAIRS_OF_V
            {
                LOAD_Q_VECS
                barrier(); // outOfRange is 0
                [[unroll]] for (uint f = 0; f < frags; ++f) {
                    subgroupSync(); // the last fragment is read
                    [[unroll]] for (uint s = 0; s < LANE_VECS; ++s) {
                        const uint n = f * LANE_VECS + s, group = s * SUBGROUP_SIZE + gl_SubgroupInvocationID;
                        if (!atMost(splitPairs(qVec[2 * n], qVec[2 * n + 1]), limitQK)) outOfRange = 1;
                        const uint at = subgroupScratch() + group / CHUNK_VECS * TERMS_STRIDE + group % CHUNK_VECS;
                        if (group < FRAG_VECS) {
                            smem[at] = qVec[2 * n];
                            smem[at + CHUNK_VECS] = qVec[2 * n + 1];
                        }
                    }
                    subgroupSync();
                    [[unroll]] for (uint term = 0; term < PAIR; ++term)
                        coopMatLoad(pairQ[(term * M_FRAGS + f / QK_CHUNKS) * QK_CHUNKS + f % QK_CHUNKS], smem,
                                    subgroupScratch() + term * CHUNK_VECS, TERMS_STRIDE, gl_CooperativeMatrixLayoutRowMajor);
                }
            }

            scale = SCORE_SCALE / (PAIR_SCALE * PAIR_SCALE);
            invScale = 1.0 / scale;
            uint n = 0;
            if (DIM_SPLIT > 1) {
                SPLIT_PAIRS_OF_K
                barrier(); // all subgroups have loaded Q, whose scratch becomes the K tile
                STORE_PAIRS_OF_K
            }
            [[dont_unroll]] for (; n < pairTiles; ++n) {
                const bool hasNext = n + 1 < pairTiles;
                if (DIM_SPLIT > 1) {
                    if (ABLATE != ABLATE_BARRIER || n == 0) barrier(); // K is complete, and all subgroups have finished the last tile
                    if (outOfRange != 0) break;
                    if (ABLATE != ABLATE_LOAD && hasNext) PREFETCH_PAIRS_OF_K
                    gemmPairQK(0);
                    storePartialScores();
                    SPLIT_PAIRS_OF_V(outOfRangeV)
                    if (ALIAS_PAIRS != 0) barrier(); // all subgroups have finished K
                    STORE_PAIRS_OF_V
                    if (ABLATE != ABLATE_BARRIER) barrier(); // V and the partial scores are complete
                    if (outOfRangeV != 0) break;
                    if (ABLATE != ABLATE_LOAD && hasNext) PREFETCH_PAIRS_OF_V
                } else {
                    if (ABLATE != ABLATE_LOAD || n == 0) {
                        SPLIT_PAIRS_OF_K
                        SPLIT_PAIRS_OF_V(outOfRange)
                    }
                    if (ABLATE != ABLATE_BARRIER || n == 0) barrier(); // all subgroups have finished the last tile
                    if (outOfRange != 0) break;
                    if (ABLATE != ABLATE_LOAD || n == 0) {
                        STORE_PAIRS_OF_K
                        STORE_PAIRS_OF_V
                    }
                    if (ABLATE != ABLATE_BARRIER) barrier(); // the tile is complete
                    if (ABLATE != ABLATE_LOAD && hasNext) {
                        PREFETCH_PAIRS_OF_K
                        PREFETCH_PAIRS_OF_V
                    }
                }
                [[unroll]] for (uint r = 0; r < M_FRAGS; ++r) loadRowMax(r);
                if (DIM_SPLIT > 1) addPartialScores();
                else gemmPairQK(0);
                [[unroll]] for (uint s = 0; s < PAIR_STEPS; ++s) {
                    [[unroll]] for (uint f = 0; f < S_FRAGS; ++f) S[f] = nextS[f];
                    if (ABLATE != ABLATE_SOFTMAX) UPDATE_ROW_MAX
                    if (s + 1 < PAIR_STEPS) gemmPairQK((s + 1) * KV_STEP); // independent of softmaxPairs
                    softmaxPairs();
                    gemmPairPV(s * KV_STEP);
                }
                if (DIM_SPLIT > 1 && hasNext) { // K of the next tile, where no subgroup reads K
                    SPLIT_PAIRS_OF_K
                    if (ALIAS_PAIRS != 0) barrier(); // all subgroups have finished V
                    STORE_PAIRS_OF_K
                }
            }
            j = n * (PAIR_TILE / KV_TILE);
            const FragC onePart = FragC(1.0 / PAIR_P_SCALE);
            [[unroll]] for (uint r = 0; r < M_FRAGS; ++r) {
                RESCALE_ROW_SUM_F32(r, onePart)
                [[unroll]] for (uint i = 0; i < DV_FRAGS; ++i) O[r * DV_FRAGS + i] *= 1.0 / (PAIR_P_SCALE * PAIR_SCALE);
            }
            scale = SCORE_SCALE;
            invScale = 1.0 / scale;
            kRows = sliceK(work.batch, work.kvHead, j * KV_TILE);
            vRows = sliceV(work.batch, work.kvHead, j * KV_TILE);
            barrier(); // all subgroups have finished the last tile, whose shared memory becomes scratch
        }

    }
    uvec4 kVec[3 * K_VECS], vVec[3 * V_VECS];
    if (PAIR_TILE == 0 || j < tiles) {
        PREFETCH_K(j, 1)
        PREFETCH_V(j, 1)

        // -- load of Q ----------------------------------------------------------------------------
        // Loads the terms of the subgroup's rows of Q. Fragment by fragment, those of Q_REG_CHUNKS chunks pass through
        // the subgroup's scratch into registers; the terms of the other chunks stay in shared memory at Q_BASE.
        {
            LOAD_Q_VECS
            [[unroll]] for (uint f = 0; f < frags; ++f) {
                const uint r = f / QK_CHUNKS, chunk = f % QK_CHUNKS;
                const bool inRegisters = chunk < Q_REG_CHUNKS;
                const uint stride = inRegisters ? TERMS_STRIDE : Q_STRIDE, rowVecs = inRegisters ? CHUNK_VECS : Q_ROW_VECS;
                const uint base = inRegisters ? subgroupScratch() : Q_BASE + (gl_SubgroupID * SUBGROUP_ROWS + r * FRAG_M) * Q_STRIDE + (chunk - Q_REG_CHUNKS) * CHUNK_VECS;
                subgroupSync(); // the last fragment is read
                [[unroll]] for (uint s = 0; s < LANE_VECS; ++s) {
                    const uint n = f * LANE_VECS + s, group = s * SUBGROUP_SIZE + gl_SubgroupInvocationID;
                    uvec4 hi, mid, lo;
                    splitTerms(qVec[2 * n], qVec[2 * n + 1], hi, mid, lo);
                    if (group < FRAG_VECS) storeTerms(base + group / CHUNK_VECS * stride + group % CHUNK_VECS, rowVecs, hi, mid, lo);
                }
                subgroupSync();
                if (inRegisters) {
                    [[unroll]] for (uint term = 0; term < TERMS; ++term)
                        coopMatLoad(Q[Q_REG_CHUNKS > 0 ? (term * M_FRAGS + r) * Q_REG_CHUNKS + chunk : 0], smem,
                                    subgroupScratch() + term * CHUNK_VECS, TERMS_STRIDE, gl_CooperativeMatrixLayoutRowMajor);
                }
            }
        }
        if (DIM_SPLIT > 1) {
            SPLIT_K
            barrier(); // all subgroups have loaded Q, whose scratch becomes the K tile
            STORE_K
        }
    }
    [[dont_unroll]] for (; j + (1 - CHECK_KV_END) < unmaskedTiles; ++j) {
#define MASKED 0
#include "forward_tile.glsl"
#undef MASKED
    }
    [[dont_unroll]] for (; j < tiles; ++j) {
#define MASKED 1
#include "forward_tile.glsl"
#undef MASKED
    }

    // -- epilogue ---------------------------------------------------------------------------------
    // O / row sum as float32, and LSE. O leaves fragment by fragment through scratch.

    const uint FRAG_QUADS = FRAG_M * FRAG_N / 4, LANE_QUADS = (FRAG_QUADS + SUBGROUP_SIZE - 1) / SUBGROUP_SIZE;
#define FIRST_MASKED_TILE (max(unmaskedTiles, 1 - CHECK_KV_END) - (1 - CHECK_KV_END)) // where the loop of masked tiles starts
    subgroupSync();
    [[unroll]] for (uint r = 0; r < M_FRAGS; ++r) loadRowMax(r);
    barrier(); // the KV tile's shared memory becomes scratch
    const Slice oBlock = sliceO(work.batch, work.head, rowBase);

    [[unroll]] for (uint r = 0; r < M_FRAGS; ++r) LANE_SUMS_TO_FRAGMENT(r)
    FragC inverse[M_FRAGS]; // 1 / row sum
    [[unroll]] for (uint r = 0; r < M_FRAGS; ++r) {
        FragC total;
        reduceRowSum(total, rowSumF32[r]);
        [[unroll]] for (uint e = 0; e < total.length(); ++e) inverse[r][e] = nanIfFar(rowMax[r][e], inverseSum(total[e], 1.0));
        if (HAS_LSE != 0 && work.col0 + DIM_INDEX == 0) {
            [[unroll]] for (uint e = 0; e < total.length(); ++e) total[e] = nanIfFar(rowMax[r][e], logSumExp(rowMax[r][e], total[e]));
            fragmentToScratch(total);
            [[unroll]] for (uint s = 0; s < FRAG_M; s += SUBGROUP_SIZE) {
                const uint row = s + gl_SubgroupInvocationID, seqRow = rowBase + r * FRAG_M + row;
                if (row < FRAG_M && seqRow < p.Sq) storeLSE(work.batch, work.head, seqRow, loadScratch(row, 0));
            }
        }
    }

    // Stores fragment i of O. ADD(row, col, quad) may change what is in scratch first.
#define STORE_FRAGMENT(i, ADD)                                                                      \
        {                                                                                               \
            FragC whole = O[(i) < O_FRAGS ? i : 0] * inverse[(i) < O_FRAGS ? (i) / DV_FRAGS : 0];       \
            fragmentToScratch(whole);                                                                   \
            [[unroll]] for (uint s = 0; s < LANE_QUADS; ++s) {                                          \
                const uint at = s * SUBGROUP_SIZE + gl_SubgroupInvocationID, fragRow = at / (FRAG_N / 4), quad = at % (FRAG_N / 4); \
                const uint row = (i) / DV_FRAGS * FRAG_M + fragRow, col = work.col0 + (DIM_INDEX * DV_FRAGS + (i) % DV_FRAGS) * FRAG_N + quad * 4; \
                if (at < FRAG_QUADS && rowBase + row < p.Sq && col < HEAD_DIM_V) {                      \
                    ADD                                                                                 \
                    storeO4(oBlock, row, col, scratchQuad(fragRow, quad));                              \
                }                                                                                       \
            }                                                                                           \
        }
#define ADD_NON_FINITE addNonFinite(work, fragRow, quad * 4, rowBase + row, col, FIRST_MASKED_TILE * KV_TILE);

    // The number of the fragment is a literal: in a loop with barriers O would not stay in registers.
#define STORE(i) if ((i) < O_FRAGS) STORE_FRAGMENT(i, )
    const uint MAX_LITERALS = SUBGROUP_BARRIER != 0 ? 16 : 4; // CPU drivers take long to compile each of them
    if (O_FRAGS <= MAX_LITERALS && (CAUSAL == 0 || nonFiniteSeen == 0)) {
        STORE(0) STORE(1) STORE(2) STORE(3) STORE(4) STORE(5) STORE(6) STORE(7)
        STORE(8) STORE(9) STORE(10) STORE(11) STORE(12) STORE(13) STORE(14) STORE(15)
        return;
    }
    [[unroll]] for (uint i = 0; i < O_FRAGS; ++i) STORE_FRAGMENT(i, if (CAUSAL != 0 && nonFiniteSeen != 0) ADD_NON_FINITE)
}
