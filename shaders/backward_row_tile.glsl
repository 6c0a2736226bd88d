// The row tiles that a workgroup of the dK and dV kernel visits, and their way to shared memory. Tile n = 0, 1, ...:
// first the masked tiles, before and behind the unmasked ones; then the unmasked tiles, whose rows attend to every key of
// the workgroup.

struct RowTiles { uint first, unmaskedFirst, masked, count; }; // masked and count are numbers of tiles

RowTiles rowTiles(uint firstKey, uint lastKey) {
    RowTiles t;
    if (firstKey >= work.seqlenK) return RowTiles(0, 0, 0, 0);
    const RowRange some = rowRange(firstKey, lastKey);
    t.first = some.first / ROW_TILE;
    const uint end = (min(some.end, work.rows) + ROW_TILE - 1) / ROW_TILE;
    t.count = max(end, t.first) - t.first;
    // Rows that attend to the first and to the last key attend to all.
    int from = 0, to = int(work.seqlenQ);
    if (CAUSAL != 0) from = max(from, int(lastKey) - work.causalOffset);
    if ((WINDOW & 2u) != 0) from = max(from, int(lastKey) - work.causalOffset - p.windowRight);
    if ((WINDOW & 1u) != 0) to = min(to, int(firstKey) - work.causalOffset + p.windowLeft + 1);
    const uint all = (uint(min(from, int(work.seqlenQ))) * ROWS_PER_QUERY + ROW_TILE - 1) / ROW_TILE;
    const uint allEnd = to >= int(work.seqlenQ) ? end : uint(max(to, 0)) * ROWS_PER_QUERY / ROW_TILE;
    t.unmaskedFirst = clamp(all, t.first, t.first + t.count);
    // dS of keys past the end must be 0, where it is stored.
    const bool keysEnd = STORE_DS != 0 && firstKey + WORKGROUP_KEYS > work.seqlenK;
    const uint unmasked = MASK_EVERY_TILE || keysEnd ? 0 : clamp(allEnd, t.unmaskedFirst, t.first + t.count) - t.unmaskedFirst;
    t.masked = t.count - unmasked;
    return t;
}

uint rowTileAt(RowTiles t, uint n) {
    const uint before = t.unmaskedFirst - t.first;
    if (n >= t.masked) return t.unmaskedFirst + n - t.masked;
    return n < before ? t.first + n : t.first + n + t.count - t.masked;
}

// The next n, from n on, whose tile the block-sparse mask does not exclude.
uint nextRowTile(RowTiles t, uint n, uint firstKey, uint lastKey) {
    if (SPARSE_BLOCK_Q != 0)
        while (n < t.count) {
            const uint row0 = rowTileAt(t, n) * ROW_TILE;
            if (!skipsSparseTile(row0, min(row0 + ROW_TILE, work.rows) - 1, firstKey, lastKey)) break;
            n++;
        }
    return n;
}

uint kvBatch() { return (VARLEN & CU_K) != 0 ? 0 : work.batch; }

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
