// The rows that may attend to some of the keys [firstKey, lastKey]: the inverse of visibleStart and visibleEnd, both of
// which ascend with the row. first is at most end.
struct RowRange { uint first, end; };

// The first query that is past the chunk of a key.
int chunkEnd(uint key) { return int((key / uint(p.windowLeft) + 1) * uint(p.windowLeft)) - work.causalOffset; }

RowRange rowRange(uint firstKey, uint lastKey) {
    int first = 0, end = int(work.seqlenQ); // queries
    if (CAUSAL != 0) first = max(first, int(firstKey) - work.causalOffset);
    if ((WINDOW & 2u) != 0) first = max(first, int(firstKey) - work.causalOffset - p.windowRight);
    if ((WINDOW & 1u) != 0) end = min(end, int(lastKey) - work.causalOffset + p.windowLeft + 1);
    if ((WINDOW & 4u) != 0) end = min(end, chunkEnd(lastKey));
    end = max(end, 0);
    return RowRange(uint(min(first, end)) * ROWS_PER_QUERY, uint(end) * ROWS_PER_QUERY);
}

#ifdef CONSTANTS_TILE_MAP
#ifdef NV2
#define ROWS_OF_TILE ROW_TILE
#else
#define ROWS_OF_TILE Q_TILE
#endif
// Words of a row of bits of the tile map of a kernel that owns keys.
uint rowMapWords() { return (p.Sq * ROWS_PER_QUERY + 32 * ROWS_OF_TILE - 1) / (32 * ROWS_OF_TILE); }
#endif

#ifdef NV2 // cooperative matrices
// -- row tiles ------------------------------------------------------------------------------------
// The row tiles that a workgroup of the dK and dV kernel visits. Tile n = 0, 1, ...: first the masked tiles, before and behind
// the unmasked ones; then the unmasked tiles, whose rows attend to every key of the workgroup. With a tile map all are visited
// twice, see nextMappedTile.

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
    if ((WINDOW & 4u) != 0) to = min(to, chunkEnd(firstKey));
    const uint all = (uint(min(from, int(work.seqlenQ))) * ROWS_PER_QUERY + ROW_TILE - 1) / ROW_TILE;
#ifdef MODIFIES_FULL_TILES // rows past the end have the products of the last one, but a modifier of their number need not be finite
    const uint fullEnd = MODIFIES_SLOTS ? min(end, work.rows / ROW_TILE) : end;
#else
#define fullEnd end
#endif
    const uint allEnd = to >= int(work.seqlenQ) ? fullEnd : uint(max(to, 0)) * ROWS_PER_QUERY / ROW_TILE;
#ifdef CONSTANTS_TILE_MAP
    if (TILE_MAP != 0) { // it says which are unmasked
        uint last = t.first + t.count;
        narrowToMap(rowMapWords(), t.first, last);
        t.count = last - t.first;
        return RowTiles(t.first, t.first, t.count, t.count);
    }
#endif
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

#ifdef CONSTANTS_TILE_MAP
uint rowTileCount(RowTiles t) { return (TILE_MAP != 0 ? 2 : 1) * t.count; }
#endif

// The next n, from n on, whose tile the block-sparse mask or the tile map does not exclude.
uint nextRowTile(RowTiles t, uint n, uint firstKey, uint lastKey) {
#ifdef CONSTANTS_TILE_MAP
    if (TILE_MAP != 0) return subgroupBroadcastFirst(nextMappedTile(rowMapWords(), t.first, t.first + t.count, n)); // as in nextKVTile
#endif
    if (SPARSE_BLOCK_Q != 0)
        while (n < t.count) {
            const uint row0 = rowTileAt(t, n) * ROW_TILE;
            if (!skipsSparseTile(row0, min(row0 + ROW_TILE, work.rows) - 1, firstKey, lastKey)) break;
            n++;
        }
    return n;
}

uint kvBatch() { return (VARLEN & CU_K) != 0 ? 0 : work.batch; }
#endif
