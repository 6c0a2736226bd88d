// The KV tiles that a workgroup visits, and their order. Tiles [first, last) hold a key that some row attends to; with
// SPLIT they are this split's share. The KV loop is n = 0, 1, ...: first the unmasked tiles [unmaskedFirst,
// unmaskedLast), which every row attends to in full, then the tiles before and behind them, which need masks.
// KV_LOOPS subgroups may run KV loops of their own over the same range: each takes every KV_LOOPS-th tile.
#ifndef KV_LOOPS
#define KV_LOOPS 1
#endif

struct KVRange { uint first, unmaskedFirst, unmaskedLast, last; };

KVRange kvRange(uint lastRow) {
    uint first = visibleStart(work.row0) / KV_TILE, end = visibleEnd(lastRow);
    uint unmaskedFirst = (visibleStart(lastRow) + KV_TILE - 1) / KV_TILE, unmaskedLast = visibleEnd(work.row0) / KV_TILE;
    if (SPARSE_TOKENS != 0) {
        first = unmaskedFirst = 0;
        end = work.kvLength;
        unmaskedLast = work.kvLength / KV_TILE;
    }
    KVRange kv;
    kv.first = first;
    kv.last = max((end + KV_TILE - 1) / KV_TILE, first);
    if (SPLIT != 0) { // the first `extra` splits have one tile more
        const uint each = (kv.last - first) / work.splits, extra = (kv.last - first) % work.splits;
        kv.first = first + work.split * each + min(work.split, extra);
        kv.last = kv.first + each + (work.split < extra ? 1 : 0);
    }
    kv.unmaskedFirst = MASK_EVERY_TILE ? kv.last : clamp(unmaskedFirst, kv.first, kv.last);
    kv.unmaskedLast = MASK_EVERY_TILE ? kv.last : clamp(unmaskedLast, kv.unmaskedFirst, kv.last);
    return kv;
}

// Tile n of the KV loop.
uint kvTileAt(KVRange kv, uint n) {
    const uint unmasked = kv.unmaskedLast - kv.unmaskedFirst;
    if (n < unmasked) return kv.unmaskedFirst + n;
    const uint before = kv.unmaskedFirst - kv.first;
    return n - unmasked < before ? kv.first + n - unmasked : kv.unmaskedLast + n - unmasked - before;
}

// The next n, from n on, whose tile the block-sparse mask does not exclude.
uint nextKVTile(KVRange kv, uint n, uint lastRow) {
    if (SPARSE_BLOCK_Q != 0)
        while (n < kv.last - kv.first) {
            const uint firstKey = kvTileAt(kv, n) * KV_TILE;
            if (!skipsSparseTile(work.row0, lastRow, firstKey, min(firstKey + KV_TILE, work.seqlenK) - 1)) break;
            n += KV_LOOPS;
        }
    return n;
}
