// A row tile of the dK and dV kernel on its way to shared memory.
#include "backward_row_tiles.glsl"

const uint Q_VECS = (ROW_TILE * Q_ROW_VECS + LOCAL_SIZE - 1) / LOCAL_SIZE;
const uint DO_VECS = (ROW_TILE * DO_ROW_VECS + LOCAL_SIZE - 1) / LOCAL_SIZE;
const uint STAT_VALUES = (2 * ROW_TILE + LOCAL_SIZE - 1) / LOCAL_SIZE;

// Eight elements of a row. If rows fill their fragments no column is compared.
uvec4 loadVecQ(Slice s, uint row, uint col) {
    const uint element = rowElement(row, p.strideQHead, p.strideQSeq) + col;
    return HEAD_DIM % FRAG_K == 0 ? load8Q(s, element) : load8Q(s, element, elementsFromQ(col));
}
uvec4 loadVecDO(Slice s, uint row, uint col) {
    const uint element = rowElement(row, p.strideDOHead, p.strideDOSeq) + col;
    return HEAD_DIM_V % FRAG_K == 0 ? load8DO(s, element) : load8DO(s, element, elementsFromDO(col));
}

// Loads a row tile. Rows past the end have an LSE of +Inf, so that their P is 0, and elements of the last row.
#define PREFETCH_ROWS(tile)                                                                         \
    {                                                                                               \
        work.row0 = (tile) * ROW_TILE;                                                              \
        const Slice qRows = advanceQ(qHead, queryOf(work.row0)), doRows = advanceDO(doHead, queryOf(work.row0)); \
        [[unroll]] for (uint i = 0; i < Q_VECS; ++i) {                                              \
            const uint at = i * LOCAL_SIZE + tid;                                                   \
            qVec[i] = loadVecQ(qRows, min(work.row0 + at / Q_ROW_VECS, work.rows - 1), at % Q_ROW_VECS * 8); \
        }                                                                                           \
        [[unroll]] for (uint i = 0; i < DO_VECS; ++i) {                                             \
            const uint at = i * LOCAL_SIZE + tid;                                                   \
            doVec[i] = loadVecDO(doRows, min(work.row0 + at / DO_ROW_VECS, work.rows - 1), at % DO_ROW_VECS * 8); \
        }                                                                                           \
        [[unroll]] for (uint i = 0; i < STAT_VALUES; ++i) {                                         \
            const uint at = i * LOCAL_SIZE + tid, row = work.row0 + at % ROW_TILE;                  \
            const vec2 two = at < 2 * ROW_TILE && row < work.rows ? loadStatsAt(rowIndex(row)) : vec2(INFINITY, 0.0); \
            statVec[i] = at < ROW_TILE ? two.x : two.y;                                             \
        }                                                                                           \
    }

// Stores the tile and the statistics of its rows, in log2 units: -LSE, -delta, and for a masked tile the negated rest of
// LSE. Notes what it finds in seen.
#define STORE_ROWS(masked)                                                                          \
    {                                                                                               \
        [[unroll]] for (uint i = 0; i < Q_VECS; ++i) {                                              \
            const uint at = i * LOCAL_SIZE + tid;                                                   \
            if (masked != 0) NOTE_NON_FINITE(qVec[i])                                               \
            if (ROW_TILE * Q_ROW_VECS % LOCAL_SIZE == 0 || at < ROW_TILE * Q_ROW_VECS)              \
                smem[at / Q_ROW_VECS * Q_STRIDE + at % Q_ROW_VECS] = qVec[i];                       \
        }                                                                                           \
        [[unroll]] for (uint i = 0; i < DO_VECS; ++i) {                                             \
            const uint at = i * LOCAL_SIZE + tid;                                                   \
            if (masked != 0) NOTE_NON_FINITE(doVec[i])                                              \
            if (ROW_TILE * DO_ROW_VECS % LOCAL_SIZE == 0 || at < ROW_TILE * DO_ROW_VECS)            \
                smem[DO_BASE + at / DO_ROW_VECS * DO_STRIDE + at % DO_ROW_VECS] = doVec[i];         \
        }                                                                                           \
        [[unroll]] for (uint i = 0; i < STAT_VALUES; ++i) {                                         \
            const uint at = i * LOCAL_SIZE + tid;                                                   \
            if (at < 2 * ROW_TILE)                                                                  \
                smem[STATS_BASE + at / 4][at % 4] = floatBitsToUint(at < ROW_TILE ? -toLog2(statVec[i]) : -statVec[i]); \
            if (masked != 0 && at < ROW_TILE)                                                       \
                smem[STATS_BASE + ROW_TILE / 2 + at / 4][at % 4] =                                  \
                    floatBitsToUint(isLarge(statVec[i]) ? -LOG2E * loadRest(rowIndex(work.row0 + at)) : 0.0);     \
        }                                                                                           \
    }
