#version 460
// dQ = dS K of float32 on cooperative matrices (tiers coopmat and coopmat2), for a chunk of heads whose dS
// backward_coopmat_f32_kv.comp has stored.
//
// A workgroup owns WORKGROUP_ROWS rows of a KV head; each subgroup owns M_FRAGS * FRAG_M of them alone. All loop over the
// K tiles. The product is six products of terms of 16 bits (f32_terms.glsl).
//   registers      dQ; dS of the next K tile, and this invocation's vectors of it
//   shared memory  the terms of the K tile; scratch of each subgroup, where a fragment of dS is transposed
//   barriers       two per K tile
// A fragment's registers are loaded again as soon as it is in shared memory, so that loads are always in flight.
#extension GL_GOOGLE_include_directive : require
#define CONSTANTS_FORWARD
#define CONSTANTS_BACKWARD_COOPMAT
#define CONSTANTS_F32
#include "constants_coopmat.glsl"
#define CHUNK_OF_HEADS 1
#define HEADS_IN_TURN (CAUSAL != 0)
#include "backward_interface.glsl"
#include "fragments.glsl"
#include "f32_terms.glsl"

const uint SUBGROUPS = LOCAL_SIZE / SUBGROUP_SIZE;
const uint SUBGROUP_ROWS = M_FRAGS * FRAG_M, WORKGROUP_ROWS = SUBGROUPS * SUBGROUP_ROWS;
const uint CHUNKS = (HEAD_DIM + FRAG_K - 1) / FRAG_K;
const uint KEY_FRAGS = KV_TILE / FRAG_K;

// Shared memory, in vectors of 16 bytes, eight terms each. The three terms of a row follow each other. Strides are odd: rows
// start in different banks.
const uint CHUNK_VECS = FRAG_K / 8;
const uint ROW_VECS = CHUNKS * CHUNK_VECS; // of one term
const uint STRIDE = (TERMS * ROW_VECS) | 1;
const uint TERMS_STRIDE = (TERMS * CHUNK_VECS) | 1; // of the terms of a fragment in scratch
const uint FLOATS_SIZE = FRAG_M * ((FRAG_N / 4) | 1), TERMS_SIZE = FRAG_M * TERMS_STRIDE;
#define SUBGROUP_SCRATCH (FLOATS_SIZE > TERMS_SIZE ? FLOATS_SIZE : TERMS_SIZE)
const uint SCRATCH_BASE = KV_TILE * STRIDE;
const uint PLACES_BASE = 0; // not used
shared uvec4 smem[SCRATCH_BASE + SUBGROUPS * SUBGROUP_SCRATCH];

#include "backward_f32_fragments.glsl"
#include "backward_scratch.glsl"
#include "f32_products.glsl"

FragC dQ[M_FRAGS * CHUNKS];
FragA P[TERMS * M_FRAGS]; // the terms of a column of fragments of dS

const uint K_VECS = (KV_TILE * ROW_VECS + LOCAL_SIZE - 1) / LOCAL_SIZE;

uvec4 loadVecK(Slice s, uint key, uint col) {
    return load4K(s, key * p.strideKSeq + col, HEAD_DIM % FRAG_K == 0 ? 4 : elementsFromK(col));
}

// Keys past the end, of the chunk too, are zero.
#define PREFETCH_K(first)                                                                           \
    {                                                                                               \
        const Slice kRows = sliceK(work.batch, work.kvHead, first);                                 \
        [[unroll]] for (uint i = 0; i < K_VECS; ++i) {                                              \
            const uint at = i * LOCAL_SIZE + tid, key = at / ROW_VECS, col = at % ROW_VECS * 8;     \
            const bool there = key < KV_TILE && (first) + key < end;                                \
            kVec[3 * i] = there ? loadVecK(kRows, key, col) : uvec4(0);                             \
            kVec[3 * i + 1] = there ? loadVecK(kRows, key, col + 4) : uvec4(0);                     \
        }                                                                                           \
    }
// Fragment f of dS of the K tile at key `first`: nothing where no row attends to a key, or there is none.
#define PREFETCH_DS(f, first)                                                                       \
    {                                                                                               \
        const uint row = rowBase + (f) / KEY_FRAGS * FRAG_M, key = (first) + (f) % KEY_FRAGS * FRAG_K; \
        const bool there = row < work.rows && key < end && key < visibleEnd(min(row + FRAG_M, work.rows) - 1); \
        [[unroll]] for (uint h = 0; h < 2; ++h)                                                     \
            dsWords[2 * (f) + h] = there ? loadScratchVec(p.addrCuQ, dsVec((key - CHUNK_FIRST_KEY) / FRAG_K, row / FRAG_M, h)) : uvec4(0); \
    }

#define LIVE_CHUNK(g) (i + (g) < CHUNKS)
#define DS_TERM(term, g, r) P[(term) * M_FRAGS + r]
#define LOAD_KEYS(term, g)                                                                          \
    coopMatLoad(b[g], smem, c * FRAG_K * STRIDE + (term) * ROW_VECS + (i + g) * FRAG_N / 8, STRIDE, ROW_MAJOR);
// dQ += dS K of a column of fragments.
void addKeys(uint c) {
    [[unroll]] for (uint i = 0; i < CHUNKS; i += GROUP) {
        FENCE
        SIX_PRODUCTS(LIVE_CHUNK, DS_TERM, LOAD_KEYS)
        [[unroll]] for (uint g = 0; g < GROUP; ++g)
            [[unroll]] for (uint r = 0; r < M_FRAGS; ++r)
                if (LIVE_CHUNK(g)) dQ[r * CHUNKS + (LIVE_CHUNK(g) ? i + g : 0)] += sum[g * M_FRAGS + r];
    }
}

void main() {
    const uint tid = gl_LocalInvocationIndex;
    uint extentRows;
    if (!findRowTile(WORKGROUP_ROWS, extentRows)) return;
    const uint rowBase = work.row0 + gl_SubgroupID * SUBGROUP_ROWS; // of the subgroup
    uint first = CHUNK_FIRST_KEY, end = 0;
    if (work.row0 < work.rows) end = min(visibleEnd(min(work.row0 + WORKGROUP_ROWS, work.rows) - 1), CHUNK_FIRST_KEY + CHUNK_KEYS);

    [[unroll]] for (uint i = 0; i < M_FRAGS * CHUNKS; ++i) dQ[i] = FragC(0.0);
    uvec4 kVec[3 * K_VECS], dsWords[2 * M_FRAGS * KEY_FRAGS];
    if (first < end) {
        PREFETCH_K(first)
        [[unroll]] for (uint f = 0; f < M_FRAGS * KEY_FRAGS; ++f) PREFETCH_DS(f, first)
    }
    [[dont_unroll]] for (; first < end; first += KV_TILE) {
        [[unroll]] for (uint i = 0; i < K_VECS; ++i) {
            if (CAUSAL != 0) { // dS of a masked slot is 0, but 0 x Inf is NaN
                dropNonFinite4(kVec[3 * i]);
                dropNonFinite4(kVec[3 * i + 1]);
            }
            splitTerms(kVec[3 * i], kVec[3 * i + 1], kVec[3 * i], kVec[3 * i + 1], kVec[3 * i + 2]);
        }
        barrier(); // all subgroups have finished the last tile
        [[unroll]] for (uint i = 0; i < K_VECS; ++i) {
            const uint at = i * LOCAL_SIZE + tid;
            if (KV_TILE * ROW_VECS % LOCAL_SIZE == 0 || at < KV_TILE * ROW_VECS)
                storeTerms(at / ROW_VECS * STRIDE + at % ROW_VECS, ROW_VECS, kVec[3 * i], kVec[3 * i + 1], kVec[3 * i + 2]);
        }
        barrier(); // the tile is complete
        const uint next = min(first + KV_TILE, end); // `end`: nothing
        PREFETCH_K(next)
        [[unroll]] for (uint c = 0; c < KEY_FRAGS; ++c) {
            [[unroll]] for (uint r = 0; r < M_FRAGS; ++r) {
                const uint f = r * KEY_FRAGS + c;
                FragC transposed, dS;
                [[unroll]] for (uint e = 0; e < 8; ++e) transposed[e] = uintBitsToFloat(dsWords[2 * f + e / 4][e % 4]);
                PREFETCH_DS(f, next)
                subgroupSync();
                coopMatStore(transposed, smem, subgroupScratch(), SCRATCH_STRIDE, COLUMN_MAJOR);
                subgroupSync();
                coopMatLoad(dS, smem, subgroupScratch(), SCRATCH_STRIDE, ROW_MAJOR);
                TERMS_OF_P(r, dS)
            }
            addKeys(c);
        }
    }

    barrier(); // the tile's shared memory is free
    const Slice outDQ = sliceDX(rowBatch(), work.head, work.offsetQ + queryOf(work.row0));
    // A row past the end of its sequence has gradient 0; adding that changes nothing. Chunks of keys but the first are added.
#define EXISTS(row) (rowBase + (row) < work.rows)
#define STORES(row) (rowBase + (row) < extentRows && (ACCUMULATE == 0 && CHUNK_FIRST_KEY == 0 || EXISTS(row)))
#define DQ_ELEMENT(row) rowElement(rowBase + (row), p.strideDXHead, p.strideDXSeq)
#define NO_EIGHT(row, col, words) {}
#define STORE_FOUR_Q(row, col, four)                                                                \
    if (STORES(row)) {                                                                              \
        const vec4 four_ = EXISTS(row) ? four : vec4(0.0);                                          \
        if (CHUNK_FIRST_KEY == 0) storeFourDX(outDQ, DQ_ELEMENT(row), col, four_);                  \
        else addFourDX(outDQ, DQ_ELEMENT(row), col, four_);                                         \
    }
    STORE_GRADIENT(dQ, CHUNKS, p.scoreScale, false, NO_EIGHT, STORE_FOUR_Q)
}
