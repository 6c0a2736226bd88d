#version 460
// dQ = dS K for a chunk of heads, on cooperative matrices. dS comes from the kernel of dK and dV (backward_scratch.glsl):
// one product in place of the three of backward_coopmat_q.comp.
//
// A workgroup owns WORKGROUP_ROWS rows of a KV head; each subgroup owns M_FRAGS * FRAG_M of them alone. All loop over the
// K tiles.
//   registers      dQ; dS of the next K tile, and this invocation's vectors of it
//   shared memory  the K tile; KV_STEP keys of dS of each subgroup, where it is transposed, and those of the next step
//   barriers       two per K tile
// A fragment's registers are loaded again as soon as it is in shared memory, so that loads are always in flight: the
// kernel reads dS at 3 TB/s on an H200.
#extension GL_GOOGLE_include_directive : require
#define CONSTANTS_FORWARD
#define CONSTANTS_BACKWARD_COOPMAT
#define CONSTANTS_DROPOUT
#include "constants_coopmat.glsl"
#define CHUNK_OF_HEADS 1
#define HEADS_IN_TURN (CAUSAL != 0)
#include "backward_interface.glsl"

const uint SUBGROUPS = LOCAL_SIZE / SUBGROUP_SIZE;
const uint SUBGROUP_ROWS = M_FRAGS * FRAG_M;
const uint WORKGROUP_ROWS = SUBGROUPS * SUBGROUP_ROWS;
const uint QK_CHUNKS = (HEAD_DIM + FRAG_K - 1) / FRAG_K;
const uint V_CHUNKS = 1; // V is not used

// Shared memory, in vectors of 16 bytes. Strides are odd: rows start in different banks.
const uint K_ROW_VECS = QK_CHUNKS * FRAG_K / 8;
const uint V_ROW_VECS = 1;
const uint K_STRIDE = K_ROW_VECS | 1;
const uint KEY_FRAGS = KV_TILE / FRAG_K;
const uint STEP_FRAGS = KV_STEP / FRAG_K;
const uint DS_STRIDE = (FRAG_N / 8) | 1;
const uint DS_SIZE = FRAG_M * DS_STRIDE;
const uint DS_BASE = KV_TILE * K_STRIDE;
const uint DS_BUFFERS = KV_STEP < KV_TILE ? 2 : 1;
const uint TILE_SIZE = DS_BASE + DS_BUFFERS * SUBGROUPS * M_FRAGS * STEP_FRAGS * DS_SIZE;
const uint SCRATCH_TOTAL = SUBGROUPS * FRAG_M * ((FRAG_N / 4) | 1);
const uint SCRATCH_BASE = 0; // behind the loop
const uint PLACES_BASE = 0;  // not used
shared uvec4 smem[TILE_SIZE > SCRATCH_TOTAL ? TILE_SIZE : SCRATCH_TOTAL];

#include "backward_fragments.glsl"
#include "backward_scratch.glsl"

const uint K_VECS = (KV_TILE * K_ROW_VECS + LOCAL_SIZE - 1) / LOCAL_SIZE;

#define PREFETCH_K(first)                                                                           \
    {                                                                                               \
        const Slice kRows = sliceK(work.batch, work.kvHead, first);                                 \
        [[unroll]] for (uint i = 0; i < K_VECS; ++i) {                                              \
            const uint at = i * LOCAL_SIZE + tid, key = at / K_ROW_VECS;                            \
            kVec[i] = key < KV_TILE && (first) + key < work.seqlenK ? loadK8(kRows, key, at % K_ROW_VECS * 8) : uvec4(0); \
        }                                                                                           \
    }
// Fragment f of dS of the K tile at key `first`: nothing where no row attends to a key, or there is none.
#define PREFETCH_DS(f, first)                                                                       \
    {                                                                                               \
        const uint row = rowBase + (f) / KEY_FRAGS * FRAG_M, key = (first) + (f) % KEY_FRAGS * FRAG_K; \
        const bool there = row < work.rows && key < end                                             \
            && key < visibleEnd(min(row + FRAG_M, work.rows) - 1) && key + FRAG_K > visibleStart(row); \
        dsVec[f] = there ? loadScratchVec(p.addrCuQ, dsIndex(key / FRAG_K, row / FRAG_M)) : uvec4(0); \
    }
// Stores dS of step s to its buffer, and loads dS of the same keys of the next tile.
#define PUT_DS(s)                                                                                   \
    if ((s) * STEP_FRAGS < KEY_FRAGS) {                                                             \
        [[unroll]] for (uint f = 0; f < M_FRAGS * STEP_FRAGS; ++f) {                                \
            const uint at = f / STEP_FRAGS * KEY_FRAGS + ((s) * STEP_FRAGS < KEY_FRAGS ? (s) * STEP_FRAGS : 0) + f % STEP_FRAGS; \
            FragA dSt;                                                                              \
            [[unroll]] for (uint w = 0; w < 4; ++w) SET_FRAGMENT_WORD(dSt, 2 * w, dsVec[at][w])     \
            coopMatStore(dSt, smem, ownDS + ((s) % DS_BUFFERS * M_FRAGS * STEP_FRAGS + f) * DS_SIZE, DS_STRIDE, ROW_MAJOR); \
            PREFETCH_DS(at, next)                                                                   \
        }                                                                                           \
    }
// The product with the keys of one step, whose dS is in its buffer.
#define STEP(s)                                                                                     \
    if ((s) * STEP_FRAGS < KEY_FRAGS) {                                                             \
        subgroupSync();                                                                             \
        FragA dS[M_FRAGS * STEP_FRAGS];                                                             \
        [[unroll]] for (uint f = 0; f < M_FRAGS * STEP_FRAGS; ++f)                                  \
            coopMatLoad(dS[f], smem, ownDS + ((s) % DS_BUFFERS * M_FRAGS * STEP_FRAGS + f) * DS_SIZE, DS_STRIDE, COLUMN_MAJOR); \
        PUT_DS((s) + 1)                                                                             \
        [[unroll]] for (uint c = 0; c < STEP_FRAGS; ++c) {                                          \
            [[unroll]] for (uint i = 0; i < QK_CHUNKS; ++i) {                                       \
                FragB rows;                                                                         \
                coopMatLoad(rows, smem, ((s) * STEP_FRAGS + c) * FRAG_K * K_STRIDE + i * FRAG_N / 8, K_STRIDE, ROW_MAJOR); \
                [[unroll]] for (uint r = 0; r < M_FRAGS; ++r)                                       \
                    dQ[r * QK_CHUNKS + i] = coopMatMulAdd(dS[r * STEP_FRAGS + c], rows, dQ[r * QK_CHUNKS + i]); \
            }                                                                                       \
        }                                                                                           \
    }

void main() {
    const uint tid = gl_LocalInvocationIndex;
    uint extentRows;
    if (!findRowTile(WORKGROUP_ROWS, extentRows)) return;
    const uint rowInTile = gl_SubgroupID * SUBGROUP_ROWS, rowBase = work.row0 + rowInTile; // of the subgroup
    uint first = 0, end = 0;
    if (work.row0 < work.rows) {
        end = visibleEnd(min(work.row0 + WORKGROUP_ROWS, work.rows) - 1);
        first = visibleStart(work.row0) / KV_TILE * KV_TILE;
    }

    FragC dQ[M_FRAGS * QK_CHUNKS];
    [[unroll]] for (uint i = 0; i < M_FRAGS * QK_CHUNKS; ++i) dQ[i] = FragC(0.0);
    uvec4 kVec[K_VECS], dsVec[M_FRAGS * KEY_FRAGS];
    if (first < end) {
        PREFETCH_K(first)
        [[unroll]] for (uint f = 0; f < M_FRAGS * KEY_FRAGS; ++f) PREFETCH_DS(f, first)
    }
    const uint ownDS = DS_BASE + gl_SubgroupID * DS_BUFFERS * M_FRAGS * STEP_FRAGS * DS_SIZE;
    [[dont_unroll]] for (; first < end; first += KV_TILE) {
        barrier(); // all subgroups have finished the last tile
        [[unroll]] for (uint i = 0; i < K_VECS; ++i) {
            const uint at = i * LOCAL_SIZE + tid;
            if (CAUSAL + WINDOW + BIAS != 0) dropNonFinite(kVec[i]); // dS of a masked slot is 0, but 0 x Inf is NaN
            if (KV_TILE * K_ROW_VECS % LOCAL_SIZE == 0 || at < KV_TILE * K_ROW_VECS)
                smem[at / K_ROW_VECS * K_STRIDE + at % K_ROW_VECS] = kVec[i];
        }
        const uint next = min(first + KV_TILE, end); // `end`: nothing
        PUT_DS(0)
        barrier(); // the tile is complete
        PREFETCH_K(next)
        STEP(0) STEP(1) STEP(2) STEP(3) STEP(4) STEP(5) STEP(6) STEP(7)
    }

    if (DROPOUT != 0) openDropout(); // dS lacks its factor, see backward_own_rows.glsl
    barrier(); // the tile's shared memory becomes scratch
    const Slice outDQ = sliceDX(rowBatch(), work.head, work.offsetQ + queryOf(work.row0));
    STORE_GRADIENT(dQ, QK_CHUNKS, DROPOUT != 0 ? p.scoreScale * keptScale : p.scoreScale, WIDE_DX, STORE_DQ8, STORE_DQ4)
}
