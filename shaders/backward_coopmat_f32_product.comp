#version 460
// dV = P^T dO, dK = dS^T Q or dQ = dS K of float32 above head dim 128 on cooperative matrices (tiers coopmat and coopmat2), for a chunk of
// heads whose P and dS backward_coopmat_f32_scores.comp has stored. HAS_DV and HAS_DK say which; with neither it is dQ.
//
// A workgroup owns WORKGROUP_KEYS keys of a KV head, or as many rows of dQ, and of their columns one of SLICES, z of the grid; each
// subgroup owns M_FRAGS * FRAG_M of them alone. All loop over tiles of rows, or of keys for dQ. The product is six products of terms of
// 16 bits (f32_terms.glsl).
//   registers      the gradient; P or dS of the next tile, and this invocation's vectors of dO, Q or K
//   shared memory  the terms of a tile of dO, Q or K; scratch of each subgroup, where a fragment of dS is transposed for dQ
//   barriers       two per tile
// A fragment's registers are loaded again as soon as its terms are there, so that loads are always in flight.
#extension GL_GOOGLE_include_directive : require
#define CONSTANTS_FORWARD
#define CONSTANTS_BACKWARD_COOPMAT
#define CONSTANTS_DROPOUT
#define CONSTANTS_F32
#define CONSTANTS_SLICES
#include "constants_coopmat.glsl"
#define CHUNK_OF_HEADS 1
#define HEADS_IN_TURN (CAUSAL != 0)
#define SCRATCH_VECS 4
#include "backward_interface.glsl"
#include "fragments.glsl"
#include "f32_terms.glsl"

const bool OF_ROWS = HAS_DK + HAS_DV == 0; // dQ
const uint SUBGROUPS = LOCAL_SIZE / SUBGROUP_SIZE;
const uint SUBGROUP_KEYS = M_FRAGS * FRAG_M, WORKGROUP_KEYS = SUBGROUPS * SUBGROUP_KEYS; // or rows
const uint DIM = HAS_DV != 0 ? HEAD_DIM_V : HEAD_DIM;
const uint CHUNKS = ((DIM + FRAG_K - 1) / FRAG_K + SLICES - 1) / SLICES; // of the slice
const uint TILE = OF_ROWS ? KV_TILE : ROW_TILE, TILE_FRAGS = TILE / FRAG_K;

// Shared memory, in vectors of 16 bytes, eight terms each. The three terms of a row follow each other. Strides are odd: rows
// start in different banks.
const uint CHUNK_VECS = FRAG_K / 8;
const uint ROW_VECS = CHUNKS * CHUNK_VECS; // of one term
const uint STRIDE = (TERMS * ROW_VECS) | 1;
const uint TERMS_STRIDE = (TERMS * CHUNK_VECS) | 1; // of the terms of a fragment in scratch
const uint FLOATS_SIZE = FRAG_M * ((FRAG_N / 4) | 1), TERMS_SIZE = FRAG_M * TERMS_STRIDE;
#define SUBGROUP_SCRATCH (FLOATS_SIZE > TERMS_SIZE ? FLOATS_SIZE : TERMS_SIZE)
const uint SCRATCH_BASE = TILE * STRIDE;
const uint PLACES_BASE = 0; // not used
shared uvec4 smem[SCRATCH_BASE + SUBGROUPS * SUBGROUP_SCRATCH];

#include "backward_f32_fragments.glsl"
#include "backward_row_range.glsl"
#include "backward_scratch.glsl"
#include "f32_products.glsl"
#include "non_finite.glsl"

FragC gradient[M_FRAGS * CHUNKS];
FragA P[TERMS * M_FRAGS]; // the terms of a column of fragments of P or dS

// The tile of dO, Q or K from position `first` on, as terms behind the next barrier. Positions past the end are zero.
const uint TILE_VECS = (TILE * ROW_VECS + LOCAL_SIZE - 1) / LOCAL_SIZE;
#define VALID(T, col) (DIM == SLICES * CHUNKS * FRAG_K ? 4 : elementsFrom##T(col))
#define PREFETCH_TILE(first)                                                                        \
    {                                                                                               \
        if (!OF_ROWS) work.row0 = first;                                                            \
        const Slice kRows = sliceK(work.batch, work.kvHead, OF_ROWS ? first : 0);                   \
        const Slice qRows = advanceQ(qHead, OF_ROWS ? 0 : queryOf(first)), doRows = advanceDO(doHead, OF_ROWS ? 0 : queryOf(first)); \
        [[unroll]] for (uint i = 0; i < TILE_VECS; ++i) {                                           \
            const uint at = i * LOCAL_SIZE + tid, n = at / ROW_VECS, col = col0 + at % ROW_VECS * 8; \
            tileVec[3 * i] = tileVec[3 * i + 1] = uvec4(0);                                         \
            if (n < TILE && (first) + n < end) {                                                    \
                if (OF_ROWS) {                                                                      \
                    tileVec[3 * i] = load4K(kRows, n * p.strideKSeq + col, VALID(K, col));          \
                    tileVec[3 * i + 1] = load4K(kRows, n * p.strideKSeq + col + 4, VALID(K, col + 4)); \
                } else if (HAS_DV != 0) {                                                           \
                    const uint element = rowElement((first) + n, p.strideDOHead, p.strideDOSeq) + col; \
                    tileVec[3 * i] = load4DO(doRows, element, VALID(DO, col));                      \
                    tileVec[3 * i + 1] = load4DO(doRows, element + 4, VALID(DO, col + 4));          \
                } else {                                                                            \
                    const uint element = rowElement((first) + n, p.strideQHead, p.strideQSeq) + col; \
                    tileVec[3 * i] = load4Q(qRows, element, VALID(Q, col));                         \
                    tileVec[3 * i + 1] = load4Q(qRows, element + 4, VALID(Q, col + 4));             \
                }                                                                                   \
            }                                                                                       \
        }                                                                                           \
    }
// Fragment f of P or dS of that tile: nothing where no row attends to a key, or there is none.
#define PREFETCH_X(f, first)                                                                        \
    {                                                                                               \
        const uint own_ = ownBase + (f) / TILE_FRAGS * FRAG_M, other_ = (first) + (f) % TILE_FRAGS * FRAG_K; \
        const uint row = OF_ROWS ? own_ : other_, key = OF_ROWS ? other_ : own_;                    \
        const bool there = other_ < end && row < work.rows && key < visibleEnd(min(row + FRAG_M, work.rows) - 1); \
        [[unroll]] for (uint h = 0; h < 2; ++h)                                                     \
            xWords[2 * (f) + h] = there ? loadScratchVec(p.addrCuQ, dsVec((key - CHUNK_FIRST_KEY) / FRAG_M, row / FRAG_M, (HAS_DV != 0 ? 2 : 0) + h)) : uvec4(0); \
    }

#define LIVE_CHUNK(g) (i + (g) < CHUNKS)
#define X_TERM(term, g, r) P[(term) * M_FRAGS + r]
#define LOAD_COLUMNS(term, g)                                                                       \
    coopMatLoad(b[g], smem, c * FRAG_K * STRIDE + (term) * ROW_VECS + (i + g) * FRAG_N / 8, STRIDE, ROW_MAJOR);
// gradient += X tile of a column of fragments.
void addColumn(uint c) {
    [[unroll]] for (uint i = 0; i < CHUNKS; i += GROUP) {
        FENCE
        SIX_PRODUCTS(LIVE_CHUNK, X_TERM, LOAD_COLUMNS)
        [[unroll]] for (uint g = 0; g < GROUP; ++g)
            [[unroll]] for (uint r = 0; r < M_FRAGS; ++r)
                if (LIVE_CHUNK(g)) gradient[r * CHUNKS + (LIVE_CHUNK(g) ? i + g : 0)] += sum[g * M_FRAGS + r];
    }
}

// The terms of fragment (r, c) of P or dS, whose registers are loaded again. r and c are literals: a loop with a subgroup barrier inside
// is not unrolled by NVIDIA's compiler, and then all fragments and vectors that it indexes lie in memory (docs/log/backward.md, 20).
#define TAKE_X(r, c)                                                                                \
    if ((r) < M_FRAGS) {                                                                            \
        const uint f = ((r) * TILE_FRAGS + (c)) % (M_FRAGS * TILE_FRAGS);                            \
        FragC x;                                                                                    \
        [[unroll]] for (uint e = 0; e < 8; ++e) x[e] = uintBitsToFloat(xWords[2 * f + e / 4][e % 4]); \
        PREFETCH_X(f, next)                                                                         \
        if (OF_ROWS) {                                                                              \
            subgroupSync();                                                                         \
            coopMatStore(x, smem, subgroupScratch(), SCRATCH_STRIDE, COLUMN_MAJOR);                 \
            subgroupSync();                                                                         \
            coopMatLoad(x, smem, subgroupScratch(), SCRATCH_STRIDE, ROW_MAJOR);                     \
        }                                                                                           \
        TERMS_OF_P(((r) % M_FRAGS), x)                                                              \
    }
#define COLUMN(c)                                                                                   \
    if ((c) < TILE_FRAGS) {                                                                         \
        TAKE_X(0, c)                                                                                \
        TAKE_X(1, c)                                                                                \
        addColumn(c);                                                                               \
    }

void main() {
    const uint tid = gl_LocalInvocationIndex, col0 = WORKGROUP_ID.z * CHUNKS * FRAG_N;
    uint extent, firstOwn, end, count; // end of the positions that the tiles have, and the number of tiles
    RowTiles tiles = RowTiles(0, 0, 0, 0);
    if (OF_ROWS) {
        if (!findRowTile(WORKGROUP_KEYS, extent)) return;
        firstOwn = work.row0;
        end = firstOwn < work.rows ? min(visibleEnd(min(firstOwn + WORKGROUP_KEYS, work.rows) - 1), CHUNK_FIRST_KEY + CHUNK_KEYS) : 0;
        count = (max(end, CHUNK_FIRST_KEY) - CHUNK_FIRST_KEY + TILE - 1) / TILE;
    } else {
        workgroupID.x += CHUNK_FIRST_KEY / WORKGROUP_KEYS;
        if (!findKeyTile(WORKGROUP_KEYS, firstOwn, extent)) return;
        tiles = rowTiles(firstOwn, max(min(firstOwn + WORKGROUP_KEYS, work.seqlenK), firstOwn + 1) - 1);
        end = work.rows;
        count = tiles.count;
    }
    const uint ownBase = firstOwn + gl_SubgroupID * SUBGROUP_KEYS; // of the subgroup
    const Slice qHead = sliceQ(rowBatch(), work.head, work.offsetQ), doHead = sliceDO(rowBatch(), work.head, work.offsetQ);
#define TILE_AT(n) (OF_ROWS ? CHUNK_FIRST_KEY + (n) * TILE : rowTileAt(tiles, n) * TILE)

    if (tid == 0) seen = 0;
    barrier();
    [[unroll]] for (uint i = 0; i < M_FRAGS * CHUNKS; ++i) gradient[i] = FragC(0.0);
    uvec4 tileVec[3 * TILE_VECS], xWords[2 * M_FRAGS * TILE_FRAGS];
    if (count > 0) {
        const uint first = TILE_AT(0);
        PREFETCH_TILE(first)
        [[unroll]] for (uint f = 0; f < M_FRAGS * TILE_FRAGS; ++f) PREFETCH_X(f, first)
    }
    [[dont_unroll]] for (uint n = 0; n < count; ++n) {
        [[unroll]] for (uint i = 0; i < TILE_VECS; ++i) {
            if (CAUSAL != 0 && (OF_ROWS || n < tiles.masked)) { // P and dS of a masked slot are 0, but 0 x Inf is NaN
                const bool low = dropNonFinite4(tileVec[3 * i]), high = dropNonFinite4(tileVec[3 * i + 1]);
                if (HAS_DV != 0 && (low || high)) atomicOr(seen, SEEN_NON_FINITE);
            }
            splitTerms(tileVec[3 * i], tileVec[3 * i + 1], tileVec[3 * i], tileVec[3 * i + 1], tileVec[3 * i + 2]);
        }
        barrier(); // all subgroups have finished the last tile
        [[unroll]] for (uint i = 0; i < TILE_VECS; ++i) {
            const uint at = i * LOCAL_SIZE + tid;
            if (TILE * ROW_VECS % LOCAL_SIZE == 0 || at < TILE * ROW_VECS)
                storeTerms(at / ROW_VECS * STRIDE + at % ROW_VECS, ROW_VECS, tileVec[3 * i], tileVec[3 * i + 1], tileVec[3 * i + 2]);
        }
        barrier(); // the tile is complete
        const uint next = n + 1 < count ? TILE_AT(n + 1) : end; // `end`: nothing
        PREFETCH_TILE(next)
        COLUMN(0)
        COLUMN(1)
        COLUMN(2)
        COLUMN(3)
    }

    barrier(); // the tile's shared memory is free
    const uint ownEnd = OF_ROWS ? work.rows : work.seqlenK;
    work.row0 = OF_ROWS ? firstOwn : 0;
    const KVRow out_ = KVRow(kvBatch(), work.offsetK + ownBase);
    const Slice outDQ = sliceDX(rowBatch(), work.head, work.offsetQ + queryOf(work.row0));
    const Slice outDK = sliceDX(out_.batch, work.kvHead, out_.row), outDV = sliceDV(out_.batch, work.kvHead, out_.row);
    // A row or key past the end of its sequence has gradient 0; adding that changes nothing. Chunks of keys but the first are added to dQ.
#define EXISTS(row) (ownBase + (row) < ownEnd)
#define STORES(row, dim, col) (ownBase + (row) < extent && (ACCUMULATE == 0 && (!OF_ROWS || CHUNK_FIRST_KEY == 0) || EXISTS(row)) && (col) < dim)
#define NO_EIGHT(row, col, words) {}
#define FOUR(row, four) (EXISTS(row) ? four : vec4(0.0))
#define STORE_FOUR(row, col, four)                                                                  \
    if (STORES(row, DIM, col0 + (col))) {                                                           \
        if (OF_ROWS) {                                                                              \
            const uint element = rowElement(ownBase + (row), p.strideDXHead, p.strideDXSeq);        \
            if (CHUNK_FIRST_KEY == 0) storeFourDX(outDQ, element, col0 + (col), FOUR(row, four));   \
            else addFourDX(outDQ, element, col0 + (col), FOUR(row, four));                          \
        } else if (HAS_DV == 0) {                                                                   \
            storeFourDX(outDK, (row) * p.strideDXSeq, col0 + (col), FOUR(row, four));               \
        } else {                                                                                    \
            storeFourDV(outDV, (row) * p.strideDVSeq, col0 + (col), FOUR(row, four));               \
        }                                                                                           \
    }
    STORE_GRADIENT(gradient, CHUNKS, HAS_DV != 0 ? 1.0 : p.scoreScale, false, NO_EIGHT, STORE_FOUR)
    if (HAS_DV != 0 && (seen & SEEN_NON_FINITE) != 0) { // each invocation corrects what it has stored
        [[dont_unroll]] for (uint f = 0; f < M_FRAGS * CHUNKS; ++f)
            [[dont_unroll]] for (uint at = gl_SubgroupInvocationID; at < FRAG_M * FRAG_N / 4; at += SUBGROUP_SIZE) {
                const uint row = f / CHUNKS * FRAG_M + at / (FRAG_N / 4), col = col0 + f % CHUNKS * FRAG_N + at % (FRAG_N / 4) * 4;
                if (EXISTS(row)) addNonFiniteDO(outDV, tiles, ownBase + row, row, col, 4);
            }
    }
}
