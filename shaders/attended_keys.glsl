// What a row attends to in calls with options: masks, the range of KV tiles, changes of a score, and where a key and a row
// lie in memory.

// -- modifiers of the call ------------------------------------------------------------------------
// The host writes a modifier's expression in place of the body of one of these functions (score.Rewrite), which it finds
// by their types: no other function may have them. i is the position of the row among the keys, row its number.
#ifdef CONSTANTS_MODIFIERS
float scoreExpr(const float s, const int b, const int h, const int hkv, const int i, const int j, const int row,
                const int sq, const int sk) { return s; }
bool maskExpr(const int b, const int h, const int hkv, const int i, const int j, const int row, const int sq,
              const int sk) { return true; }
#define SLOT(row, key)                                                                              \
    int(work.batch), int(headOf(row)), int(work.kvHead), int(queryOf(row)) + work.causalOffset, int(key), int(queryOf(row)), \
    int(work.seqlenQ), int(work.seqlenK)
#ifdef BACKWARD // the derivative of scoreExpr with respect to s, which comes last: a type of its own
float slopeExpr(const int b, const int h, const int hkv, const int i, const int j, const int row, const int sq, const int sk,
                const float s) { return 1.0; }
#endif
#ifdef CONSTANTS_TABLE // of a table of the modifier, at one of the places that read it: the entry, and the derivative by it
int entryExpr(const int read, const float s, const int b, const int h, const int hkv, const int i, const int j, const int row,
              const int sq, const int sk) { return 0; }
float entrySlopeExpr(const int read, const float s, const int b, const int h, const int hkv, const int i, const int j,
                     const int row, const int sq, const int sk) { return 0.0; }
#endif
#define PLUS_SCORE_EXPR + SCORE_EXPR
#define PLUS_MASK_EXPR + MASK_EXPR
#ifdef MODIFIES_FULL_TILES
#define SCORE_EXPR_MASKS
#elif defined(BACKWARD)
#define SCORE_EXPR_MASKS + SCORE_EXPR % 2
#else // unmasked tiles have scoreExpr, but not the keys of sparse tokens
#define SCORE_EXPR_MASKS + SCORE_EXPR % 2 * SPARSE_TOKENS
#endif
#else // kernels without scores, and those of float32 on matrices, which take no options
#define PLUS_SCORE_EXPR
#define PLUS_MASK_EXPR
#define SCORE_EXPR_MASKS
#endif

// -- mask and bias --------------------------------------------------------------------------------
// Which keys a row attends to: causal, window, sequence end, mask bytes, block-sparse mask. And the bias.

// Causal mask and window: a row attends to no key outside [visibleStart(row), visibleEnd(row)). WINDOW is the sum of 1
// bounded on the left, 2 bounded on the right, 4 bounded by the start of a chunk of p.windowLeft keys.
uint visibleEnd(uint row) {
    int end = int(work.seqlenK);
    const int at = int(queryOf(row)) + work.causalOffset;
    if (CAUSAL != 0) end = min(end, at + 1);
    if ((WINDOW & 2u) != 0) end = min(end, at + p.windowRight + 1); // the host keeps this within 32 bits
    return uint(max(end, 0));
}

uint visibleStart(uint row) {
    if ((WINDOW & 5u) == 0) return 0;
    const int at = int(queryOf(row)) + work.causalOffset;
    if ((WINDOW & 4u) != 0) return at > 0 ? uint(at) / uint(p.windowLeft) * uint(p.windowLeft) : 0;
    return uint(max(at - p.windowLeft, 0));
}

// ALiBi and bias put every KV tile through the masked loop. Forward kernels need that with sparse tokens alone, whose keys
// their unmasked loop does not know. With a window to the left the unmasked tiles would come first, and sums have other
// bits in another order. Backward kernels on matrices have ALiBi in their unmasked loop (MODIFIES_FULL_TILES), but not a
// bias, which may be a mask.
#ifdef MODIFIES_FULL_TILES
#define PLUS_OPTIONS + BIAS
#elif defined(BACKWARD)
#define PLUS_OPTIONS + ALIBI + BIAS
#else
#define PLUS_OPTIONS + (ALIBI + BIAS) * (SPARSE_TOKENS + (WINDOW & 5u))
#endif
// Every KV tile goes through the masked loop: its mask or bias depends on row and key. A kernel that checks the keys of
// a tile of sparse tokens by itself (CHECKS_SPARSE_TILES) may leave those unmasked.
#ifndef CHECKS_SPARSE_TILES
#define CHECKS_SPARSE_TILES 0
#endif
const bool MASK_EVERY_TILE = (1 - CHECKS_SPARSE_TILES) * SPARSE_TOKENS + SPARSE_BLOCK_Q PLUS_OPTIONS + MASK SCORE_EXPR_MASKS PLUS_MASK_EXPR != 0;
// Scores are modified (scoreMod); otherwise they stay products Q K^T until the row max is subtracted.
const bool SCORE_MOD = SOFTCAP + ALIBI + BIAS PLUS_SCORE_EXPR != 0;
#ifdef MODIFIES_FULL_TILES // by row and key, also in tiles without masks
const bool MODIFIES_SLOTS = ALIBI + SCORE_EXPR % 2 != 0;
#endif
// Scores are exponents of e: other libraries mask with a bias of the lowest finite float32, which would overflow
// times log2(e).
const bool NATURAL_SCORES = ALIBI + BIAS PLUS_SCORE_EXPR != 0;
// Rows of a KV tile may attend to different keys of it.
const bool ROW_MASKS = CAUSAL + WINDOW + SPARSE_TOKENS + SPARSE_BLOCK_Q + MASK PLUS_MASK_EXPR != 0;

float loadBias(uint head, uint query, uint key) {
    const uint at = biasStart() + work.batch * p.strideBiasBatch + head * p.strideBiasHead + query * p.strideBiasRow + key;
    if (BIAS == 3) return uintBitsToFloat(loadBiasWord(at));
    const uint half_ = (loadBiasWord(at >> 1) >> ((at & 1u) * 16u)) & 0xffffu;
    return BIAS == 2 ? uintBitsToFloat(half_ << 16) : unpackHalf2x16(half_).x;
}

// Beside a mask the block-sparse mask is in place of the bias.
const bool MASK_AND_BLOCKS = MASK != 0 && SPARSE_BLOCK_Q != 0;
uint loadBlocks(uint i) { return MASK_AND_BLOCKS ? loadBiasWord(biasStart() + i) : loadMask(i); }
#define BLOCK_STRIDE(axis) (MASK_AND_BLOCKS ? p.strideBias##axis : p.strideMask##axis)

// Row and key may be past the end of the sequence. The range of keys is compared without a branch: behind one, compilers do not
// compute once what a row has, but for each of its slots.
bool attends(uint row, uint key) {
    const uint first = visibleStart(row), end = max(visibleEnd(row), first);
    bool yes = key - first < (row < work.rows ? end - first : 0);
    if (MASK != 0 && yes) {
        const uint at = maskStart() + work.batch * p.strideMaskBatch + headOf(row) * p.strideMaskHead
            + queryOf(row) * p.strideMaskRow + key;
        yes = ((loadMaskWord(at >> 2) >> ((at & 3u) * 8u)) & 0xffu) != 0;
    }
    if (SPARSE_BLOCK_Q != 0 && yes) {
        const uint j = key / SPARSE_BLOCK_K;
        const uint at = work.batch * BLOCK_STRIDE(Batch) + headOf(row) * BLOCK_STRIDE(Head) + queryOf(row) / SPARSE_BLOCK_Q * BLOCK_STRIDE(Row);
        yes = (loadBlocks(at + j / 32) >> (j % 32) & 1u) != 0;
    }
#ifdef CONSTANTS_MODIFIERS
    if (MASK_EXPR != 0) { // of every slot: no branch keeps compilers from computing once what a row or a key has
        const bool also = maskExpr(SLOT(row, key));
        yes = yes && also;
    }
#endif
    return yes;
}

// The block-sparse mask excludes every (row, key) of a tile.
bool skipsSparseTile(uint firstRow, uint lastRow, uint firstKey, uint lastKey) {
    if (SPARSE_BLOCK_Q == 0) return false;
    const uint heads = BLOCK_STRIDE(Head) != 0 ? ROWS_PER_QUERY : 1;
    for (uint h = 0; h < heads; ++h)
        for (uint i = queryOf(firstRow) / SPARSE_BLOCK_Q; i <= queryOf(lastRow) / SPARSE_BLOCK_Q; ++i)
            for (uint j = firstKey / SPARSE_BLOCK_K; j <= lastKey / SPARSE_BLOCK_K; ++j) {
                const uint at = work.batch * BLOCK_STRIDE(Batch) + (work.head + h) * BLOCK_STRIDE(Head) + i * BLOCK_STRIDE(Row);
                if ((loadBlocks(at + j / 32) >> (j % 32) & 1u) != 0) return false;
            }
    return true;
}

// -- tile map -------------------------------------------------------------------------------------
#ifdef CONSTANTS_TILE_MAP
// With a tile map (tile_map.comp) the loop of a kernel goes through its tiles twice: through those that every row attends to in
// full, and through those that need masks, which come first in the backward kernels. Tiles that no row attends to are left out
// of both.
//
// The map has two rows of bits for each workgroup along x, one bit for each tile that it loops over: full, and masked. It is in
// place of the mask (1) or of the bias (2).
uint loadTileMap(uint i) { return TILE_MAP == 2 ? loadBiasWord(i) : loadMaskWord(i); }
uint tileMapWords() { return (p.Sk + 32 * KV_TILE - 1) / (32 * KV_TILE); }

#ifdef BACKWARD
const bool FULL_TILES_FIRST = false;
#else
const bool FULL_TILES_FIRST = true;
#endif
uint mapWord, mapWordAt = 0xffffffffu; // the word of the map that was used last, and its place

// The first n of a loop over tiles [first, last), from n on, that the map has. words are those of a row of bits.
uint nextMappedTile(uint words, uint first, uint last, uint n) {
    const uint tiles = last - first;
    uint row = work.mapRow + (FULL_TILES_FIRST ? 0 : words);
    for (uint done = 0; done < 2 * tiles; row += FULL_TILES_FIRST ? words : -words, done += tiles) {
        if (n >= done + tiles) continue;
        for (uint tile = first + n - done; tile < last;) {
            const uint low = tile % 32, at = row + tile / 32;
            if (at != mapWordAt) {
                mapWord = loadTileMap(at);
                mapWordAt = at;
            }
            const uint word = mapWord >> low << low;
            tile = tile - low + (word != 0 ? findLSB(word) : 32);
            if (word != 0 && tile < last) return done + tile - first;
        }
        n = done + tiles;
    }
    return 2 * tiles;
}

#ifdef SEARCH_LANES
// Leaves out the words of the map at both ends of tiles [first, last) that have no tile. All lanes of a subgroup call it: a
// loop over tiles then waits for no word without one, if the tiles lie together as those of documents do.
void narrowToMap(uint words, inout uint first, inout uint last) {
    const uint row = work.mapRow;
    uint from = last, to = first;
    for (uint word = first / 32; word * 32 < last; word += SEARCH_LANES) {
        const uint at = word + gl_SubgroupInvocationID;
        const bool some = at * 32 < last && (loadTileMap(row + at) | loadTileMap(row + words + at)) != 0;
        const uvec4 have = subgroupBallot(some);
        if (subgroupBallotBitCount(have) == 0) continue;
        from = min(from, (word + subgroupBallotFindLSB(have)) * 32);
        to = (word + subgroupBallotFindMSB(have) + 1) * 32;
    }
    first = max(first, from);
    last = max(min(last, to), first);
}
#endif

#ifdef BACKWARD
// Every tile goes through the masked loop, which changes scores by row and key: a map says which there are.
const bool CHANGES_SLOTS = 0u PLUS_OPTIONS SCORE_EXPR_MASKS != 0;
#endif
#endif

// -- range of KV tiles ----------------------------------------------------------------------------
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
#ifdef CONSTANTS_TILE_MAP
    if (TILE_MAP != 0) { // it says which are unmasked
#ifdef SEARCH_LANES
        narrowToMap(tileMapWords(), kv.first, kv.last);
#endif
        kv.unmaskedFirst = kv.first;
        kv.unmaskedLast = kv.last;
        return kv;
    }
#endif
    kv.unmaskedFirst = MASK_EVERY_TILE ? kv.last : clamp(unmaskedFirst, kv.first, kv.last);
    kv.unmaskedLast = MASK_EVERY_TILE ? kv.last : clamp(unmaskedLast, kv.unmaskedFirst, kv.last);
    return kv;
}

// With a tile map each tile has two n.
#ifdef CONSTANTS_TILE_MAP
uint kvTileCount(KVRange kv) { return (TILE_MAP != 0 ? 2 : 1) * (kv.last - kv.first); }
#else
#define kvTileCount(kv) (kv.last - kv.first)
#endif

// Tile n of the KV loop.
uint kvTileAt(KVRange kv, uint n) {
#ifdef CONSTANTS_TILE_MAP
    if (TILE_MAP != 0) return kv.first + (n < kv.last - kv.first ? n : n + kv.first - kv.last);
#endif
    const uint unmasked = kv.unmaskedLast - kv.unmaskedFirst;
    if (n < unmasked) return kv.unmaskedFirst + n;
    const uint before = kv.unmaskedFirst - kv.first;
    return n - unmasked < before ? kv.first + n - unmasked : kv.unmaskedLast + n - unmasked - before;
}

// The next n, from n on, whose tile the block-sparse mask or the tile map does not exclude.
uint nextKVTile(KVRange kv, uint n, uint lastRow) {
#ifdef CONSTANTS_TILE_MAP
    if (TILE_MAP != 0) {
        const uint found = nextMappedTile(tileMapWords(), kv.first, kv.last, n);
#ifdef SEARCH_LANES // a number from memory: the loop is the same in all lanes only if it is said so
        return subgroupBroadcastFirst(found);
#else
        return found;
#endif
    }
#endif
    if (SPARSE_BLOCK_Q != 0)
        while (n < kv.last - kv.first) {
            const uint firstKey = kvTileAt(kv, n) * KV_TILE;
            if (!skipsSparseTile(work.row0, lastRow, firstKey, min(firstKey + KV_TILE, work.seqlenK) - 1)) break;
            n += KV_LOOPS;
        }
    return n;
}

// -- score modifiers ------------------------------------------------------------------------------
// Score modifiers: soft cap, ALiBi, bias and the call's own, in this order.

// softcap * tanh(x / softcap), of x in units of 1 / softcapRate: 2 log2(e) x / softcap. Near 0, and for NaN, which exp2 need not
// keep, a polynomial: 1 - 2 / (exp + 1) cancels there. One division for all scores: compilers repeat one that stands here.
float softcapRate = 2.885390081777927 / p.softcap;
float applySoftcap(float x) {
    const float y = x * softcapRate, z = y * y;
    const float far = fma(-2.0 * p.softcap, 1.0 / (exp2(y) + 1.0), p.softcap);
    return abs(y) >= 0.14426950 ? far : x * (1.0 - z * (0.040037747 - z * 0.0019236258));
}

// Those of options: x becomes the score that scoreExpr changes.
#define CHANGE_BY_OPTIONS(x, row, key)                                                              \
    if (SOFTCAP != 0) x = applySoftcap(x);                                                          \
    if (ALIBI != 0) {                                                                               \
        const int distance = int(queryOf(row)) + work.causalOffset - int(key);                      \
        x = fma(-uintBitsToFloat(loadALiBi((ALIBI == 2 ? work.batch * p.Hq : 0) + headOf(row))), float(abs(distance)), x);                 \
    }                                                                                               \
    if (BIAS != 0 && row < work.rows && key < work.seqlenK) x += loadBias(headOf(row), queryOf(row), key);

float scoreMod(float x, uint row, uint key) {
    CHANGE_BY_OPTIONS(x, row, key)
#ifdef CONSTANTS_MODIFIERS
    if (SCORE_EXPR != 0) x = scoreExpr(x, SLOT(row, key));
#endif
    return x;
}

// The score of every slot of a tile, if only a softcap and a modifier that is the same for all of them change scores.
float scoreModOfTile(float x) {
    if (SOFTCAP != 0) x = applySoftcap(x);
#ifdef CONSTANTS_MODIFIERS
    if (SCORE_EXPR != 0) x = scoreExpr(x, SLOT(work.row0, 0));
#endif
    return x;
}

// -- paged K and V --------------------------------------------------------------------------------
// Where the keys of a sequence are in K and V: sparse tokens, block table, packed sequences.

// Key of slot i of the KV loop: i itself, or the i-th sparse token. NO_KEY past the end.
const uint NO_KEY = 0xffffffffu;
uint keyAt(uint i) {
    if (SPARSE_TOKENS == 0) return i < work.seqlenK ? i : NO_KEY;
    if (i >= work.kvLength) return NO_KEY;
    const uint token = loadSparseToken(work.firstToken + i);
    return token < work.seqlenK ? token : NO_KEY;
}

// A row of K and V: its batch or page, and the row in it.
struct KVRow { uint batch, row; };
// The number in the block table, not checked yet.
#ifdef BACKWARD // K and V are not paged
uint loadPageIndex(uint key) { return 0; }
#else
uint loadPageIndex(uint key) { return loadBlockTable(work.batch * p.blockTableStride + key / PAGE_SIZE); }
#endif
KVRow kvRowInPage(uint page, uint key) { return KVRow(page < p.totalK ? page : 0, key % PAGE_SIZE); }
KVRow kvRowOf(uint key) {
    if (PAGE_SIZE != 0) return kvRowInPage(loadPageIndex(key), key);
    if ((VARLEN & CU_K) != 0) return KVRow(0, work.offsetK + key);
    return KVRow(work.batch, key);
}

// The keys of a KV tile are consecutive rows.
const bool CONTIGUOUS_TILES = SPARSE_TOKENS + PAGE_SIZE % KV_TILE == 0;

// -- rows -----------------------------------------------------------------------------------------
// Where a row is in Q and O, in LSE, and in the partial states of splits.

// Batch of Q and O; packed tensors have one.
uint rowBatch() { return (VARLEN & CU_Q) != 0 ? 0 : work.batch; }

// First element of a row in Q or O, relative to the first query of the Q tile and the first head of the group.
uint rowElement(uint row, uint strideHead, uint strideSeq) {
    return (queryOf(row) - queryOf(work.row0)) * strideSeq + row % ROWS_PER_QUERY * strideHead;
}

// Of the splits of the keys, the one whose state the subgroup computes. A kernel defines SUBGROUPS_PER_SPLIT where
// its subgroups are splits too.
#ifdef SUBGROUPS_PER_SPLIT
uint splitIndex() { return SPLIT_KV != 0 ? work.split * SUBGROUPS_PER_SPLIT + gl_SubgroupID : work.split; }
#else
uint splitIndex() { return work.split; }
#endif

// Index of a row in LSE, below 2^32.
uint rowIndex(uint row) {
    const uint length = (VARLEN & CU_Q) != 0 ? p.totalQ : p.Sq;
    return (rowBatch() * p.Hq + headOf(row)) * length + work.offsetQ + queryOf(row);
}

#ifndef BACKWARD // it has no splits
// The same in the partial states; each split has all rows.
uint stateRow(uint row) { return SPLIT != 0 ? splitIndex() * p.strideOBatch + rowIndex(row) : rowIndex(row); }
#endif
