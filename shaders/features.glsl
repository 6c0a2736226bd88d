// Which rows and keys a workgroup has when sequences differ, K and V lie in pages or are quantised, and
// scores are modified: what modules compiled with FEATURES=1 do where the others take p.Sq and p.Sk.
//
// A row is numbered within its sequence; with PACKED_ROWS the query heads that share a key head lie side by
// side, row r being query r / PACKED_ROWS of head r % PACKED_ROWS of the group, so that decoding fills a fragment with them.
// A key is numbered within its sequence too. Numbers that come from memory (lengths, pages, tokens) are
// clamped to what the host knows of the tensors, so that wrong ones cannot reach outside of them.
#ifndef FEATURES_GLSL
#define FEATURES_GLSL

const uint CU_Q = 1, USED_Q = 2, CU_K = 4, USED_K = 8; // of LENGTHS

// A vector of 32-bit elements: the name of its address in Params and of its binding.
#if BDA
#define VECTOR(name, number) uint load##name(uint i) { return ReadWords(p.addr##name).at[i]; }
#else
#define VECTOR(name, number)                                                                        \
    layout(set = 0, binding = number, std430) READ_ONLY buffer Vector##name { uint vector##name[]; }; \
    uint load##name(uint i) { return vector##name[p.addr##name.x + i]; }
#endif
VECTOR(CuQ, 5)
VECTOR(CuK, 6)
VECTOR(UsedQ, 7)
VECTOR(UsedK, 8)
VECTOR(Table, 9)
VECTOR(ALiBi, 10)
VECTOR(Sinks, 11)
VECTOR(Map, 13)   // the bitmap, or where the lists of kept tokens start
VECTOR(KScale, 14)
VECTOR(VScale, 15)
uint scaleK(uint i) { return loadKScale(i); }
uint scaleV(uint i) { return loadVScale(i); }
// The bias and the mask by words and how many elements into the first one they start: they may be of 16 and 8 bits.
#if BDA
uint loadBiasWord(uint i) { return ReadWords(uvec2(p.addrBias.x & ~3u, p.addrBias.y)).at[i]; }
uint loadMaskWord(uint i) { return ReadWords(uvec2(p.addrMap.x & ~3u, p.addrMap.y)).at[i]; }
uint biasFirst() { return (p.addrBias.x & 3u) >> 1; }
uint maskFirst() { return p.addrMap.x & 3u; }
#else
layout(set = 0, binding = 12, std430) READ_ONLY buffer VectorBias { uint vectorBias[]; };
uint loadBiasWord(uint i) { return vectorBias[i]; }
uint loadMaskWord(uint i) { return vectorMap[i]; }
uint biasFirst() { return p.addrBias.x; }
uint maskFirst() { return p.addrMap.x; }
#endif
#if BDA
uint loadToken(uint i) { return ReadWords(uvec2(p.strideMapBatch, p.strideMapHead)).at[i]; }
#else
layout(set = 0, binding = 16, std430) READ_ONLY buffer VectorTokens { uint vectorTokens[]; };
uint loadToken(uint i) { return vectorTokens[p.strideMapBatch + i]; }
#endif

// -- the work of a workgroup ------------------------------------------------------------------------
// Grid: x = row block, with cu_seqlens_q of all sequences one after another; y = split * heads + head,
// or key head with PACKED_ROWS; z = batch * DV_SLICES + slice of O's columns.
// With SHORT_ROWS two kernels compute the sequences of a batch, by their lengths. The one with OWNS_SHORT has z =
// sequence * DV_SLICES + slice and as many row blocks as a short sequence may need; the other has a grid as above. A
// block of the other kernel's sequence leaves at once.

struct Work {
    uint batch, head, kvHead; // head: the first of the group with PACKED_ROWS
    uint row0;           // first row
    uint col0;           // first column of V and O
    uint split, splits;
    uint rows;           // of the sequence
    uint queries, keys;  // of the sequence
    uint listed;         // entries of the list of kept tokens; else keys
    uint firstListed;
    uint firstQ, firstK; // where the sequence starts in packed tensors
    int offset;          // query i lies at key i + offset
};

Work work;

uint atMost(uint number, uint most) { return int(number) < 0 ? 0 : min(number, most); }

const uint HEADS_SIDE = PACKED_ROWS > 1 ? PACKED_ROWS : 1; // rows of a query
uint queryOf(uint row) { return row / HEADS_SIDE; }
uint headOf(uint row) { return work.head + row % HEADS_SIDE; }

// Row blocks of packed sequences: those of sequence b start at this block at the latest, and have it alone.
uint firstBlock(uint b, uint blockRows) {
    return atMost(loadCuQ(b), p.totalQ) * HEADS_SIDE / blockRows + b; // totalQ * groupSize < 2^32
}

// The last sequence that starts at a block or before it. Lanes look at as many of them at once.
uint sequenceOf(uint block, uint blockRows) {
    uint low = 0, count = p.strideQBatch; // the number of sequences: packed tensors have no batch stride
#ifdef LANES
    while (count > 1) {
        const uint step = (count + LANES - 1) / LANES, mine = gl_SubgroupInvocationID * step;
        const bool starts = mine < count && firstBlock(low + mine, blockRows) <= block;
        const uint before = max(subgroupBallotBitCount(subgroupBallot(starts)), 1) - 1;
        low += before * step;
        count = min(step, count - before * step);
    }
#else
    while (count > 1) {
        const uint half_ = count / 2;
        const bool starts = firstBlock(low + half_, blockRows) <= block;
        if (starts) low += half_;
        count = starts ? count - half_ : half_;
    }
#endif
    return low;
}

// Finds the work; false where there is none.
bool findWork(uint blockRows) {
    const uint heads = p.Hq / HEADS_SIDE;
    work.split = 0;
    work.splits = 1;
    work.kvHead = gl_WorkGroupID.y; // heads that share a key head are packed
    if (SPLIT != 0) {
        work.split = gl_WorkGroupID.y / heads;
        work.splits = gl_NumWorkGroups.y / heads;
        work.kvHead -= work.split * heads;
    }
    work.head = work.kvHead * HEADS_SIDE;
    work.col0 = (gl_WorkGroupID.z % DV_SLICES) * DV_SLICE;
    uint block = gl_WorkGroupID.x;
    work.batch = gl_WorkGroupID.z / DV_SLICES;
    work.firstQ = 0;
    work.queries = p.Sq;
    if ((LENGTHS & CU_Q) != 0) {
        if (OWNS_SHORT == 0) {
            work.batch = sequenceOf(block, blockRows);
            const uint first = firstBlock(work.batch, blockRows);
            if (block < first) return false;
            block -= first;
        }
        work.firstQ = atMost(loadCuQ(work.batch), p.totalQ);
        const uint end = atMost(loadCuQ(work.batch + 1), p.totalQ);
        work.queries = min(max(end, work.firstQ) - work.firstQ, p.Sq);
    }
    if ((LENGTHS & USED_Q) != 0) work.queries = atMost(loadUsedQ(work.batch), work.queries);
    work.rows = work.queries * HEADS_SIDE;
    if (SHORT_ROWS != 0 && (work.rows <= SHORT_ROWS) != (OWNS_SHORT != 0)) return false;
    const uint blocks = (work.rows + blockRows - 1) / blockRows;
    if (block >= blocks) return false;
    if (CAUSAL != 0) block = blocks - 1 - block; // later rows see more keys: heavy blocks first
    work.row0 = block * blockRows;

    work.firstK = 0;
    work.keys = p.Sk;
    if ((LENGTHS & CU_K) != 0) {
        work.firstK = atMost(loadCuK(work.batch), p.totalK);
        const uint end = atMost(loadCuK(work.batch + 1), p.totalK);
        work.keys = min(max(end, work.firstK) - work.firstK, p.Sk);
    }
    if ((LENGTHS & USED_K) != 0) work.keys = atMost(loadUsedK(work.batch), work.keys);
    work.listed = work.keys;
    if (KEPT != 0) {
        const uint list = work.batch * (p.Hq / p.groupSize) + work.kvHead;
        work.firstListed = atMost(loadMap(list), p.strideMapRow);
        const uint end = atMost(loadMap(list + 1), p.strideMapRow);
        work.listed = max(end, work.firstListed) - work.firstListed;
    }
    work.offset = p.causalOffset != 0 ? int(work.keys) - int(work.queries) : 0;
    return true;
}

// -- what a row sees: keys [visibleStart(row), visibleEnd(row)), less what POSITIONAL excludes -------

uint visibleEnd(uint row) {
    int end = int(work.keys);
    const int at = int(queryOf(row)) + work.offset;
    if (CAUSAL != 0) end = min(end, at + 1);
    if ((WINDOW & 2u) != 0) end = min(end, at + p.windowRight + 1); // the host sees to it that this fits 32 bits
    return uint(max(end, 0));
}

uint visibleStart(uint row) {
    if ((WINDOW & 1u) == 0) return 0;
    return uint(max(int(queryOf(row)) + work.offset - p.windowLeft, 0));
}

// Every tile needs a look at which slots are which. Of lists a kernel may look at the keys of a tile instead.
#ifndef LISTS_LOOKED_AT
#define LISTS_LOOKED_AT 0
#endif
const bool POSITIONAL = (1 - LISTS_LOOKED_AT) * KEPT + MAP_ROWS + ALIBI + BIAS + MASK != 0;
// Something is done to scores before the row max is taken; else they are products until it is subtracted. With numbers added
// they are natural exponents: a bias of the least finite float32, the mask of other libraries, would overflow times log2(e).
const bool MODIFIED = SOFTCAP + ALIBI + BIAS != 0;
const bool NATURAL = ALIBI + BIAS != 0;
// A row may not see a key that others of its tile see.
const bool MASKS = CAUSAL + WINDOW + KEPT + MAP_ROWS + MASK != 0;

float biasAt(uint head, uint query, uint key) {
    const uint at = biasFirst() + work.batch * p.strideBiasBatch + head * p.strideBiasHead + query * p.strideBiasRow + key;
    if (BIAS == 3) return uintBitsToFloat(loadBiasWord(at));
    const uint half_ = (loadBiasWord(at >> 1) >> ((at & 1u) * 16u)) & 0xffffu;
    return BIAS == 2 ? uintBitsToFloat(half_ << 16) : unpackHalf2x16(half_).x;
}

// The key's slot is one the row attends to; both may be past the sequence's last.
bool attends(uint row, uint key) {
    bool yes = row < work.rows && key >= visibleStart(row) && key < visibleEnd(row);
    if (MASK != 0 && yes) {
        const uint at = maskFirst() + work.batch * p.strideMapBatch + headOf(row) * p.strideMapHead
            + queryOf(row) * p.strideMapRow + key;
        yes = ((loadMaskWord(at >> 2) >> ((at & 3u) * 8u)) & 0xffu) != 0;
    }
    if (MAP_ROWS != 0 && yes) {
        const uint j = key / MAP_KEYS;
        const uint at = work.batch * p.strideMapBatch + headOf(row) * p.strideMapHead + queryOf(row) / MAP_ROWS * p.strideMapRow;
        yes = (loadMap(at + j / 32) >> (j % 32) & 1u) != 0;
    }
    return yes;
}

// No row of the block attends to any key of a tile, as far as the bitmap says.
bool skipsTile(uint firstRow, uint lastRow, uint firstKey, uint lastKey) {
    if (MAP_ROWS == 0) return false;
    const uint heads = p.strideMapHead != 0 ? HEADS_SIDE : 1;
    for (uint h = 0; h < heads; ++h)
        for (uint i = queryOf(firstRow) / MAP_ROWS; i <= queryOf(lastRow) / MAP_ROWS; ++i)
            for (uint j = firstKey / MAP_KEYS; j <= lastKey / MAP_KEYS; ++j) {
                const uint at = work.batch * p.strideMapBatch + (work.head + h) * p.strideMapHead + i * p.strideMapRow;
                if ((loadMap(at + j / 32) >> (j % 32) & 1u) != 0) return false;
            }
    return true;
}

// -- the walk over the keys ----------------------------------------------------------------------------
// A row block visits tiles [first, last) of its sequence, a split's part of them: first those that every row
// sees whole, [wholeFirst, wholeLast), which need no masks, then the ones before and behind. Where subgroups
// walk for themselves (WALKERS of them), they take turns.
#ifndef WALKERS
#define WALKERS 1
#endif

struct Walk { uint first, wholeFirst, wholeLast, last; };

Walk walkOf(uint lastRow) {
    uint first = visibleStart(work.row0) / BLOCK_COLS, end = visibleEnd(lastRow);
    uint wholeFirst = (visibleStart(lastRow) + BLOCK_COLS - 1) / BLOCK_COLS, wholeLast = visibleEnd(work.row0) / BLOCK_COLS;
    if (KEPT != 0) {
        first = wholeFirst = 0;
        end = work.listed;
        wholeLast = work.listed / BLOCK_COLS;
    }
    Walk w;
    w.first = first;
    w.last = max((end + BLOCK_COLS - 1) / BLOCK_COLS, first);
    if (SPLIT != 0) {
        const uint each = (w.last - first) / work.splits, more = (w.last - first) % work.splits; // so many have one more
        w.first = first + work.split * each + min(work.split, more);
        w.last = w.first + each + (work.split < more ? 1 : 0);
    }
    w.wholeFirst = POSITIONAL ? w.last : clamp(wholeFirst, w.first, w.last);
    w.wholeLast = POSITIONAL ? w.last : clamp(wholeLast, w.wholeFirst, w.last);
    return w;
}

// The n-th tile of the walk.
uint tileAt(Walk w, uint n) {
    const uint whole = w.wholeLast - w.wholeFirst;
    if (n < whole) return w.wholeFirst + n;
    const uint before = w.wholeFirst - w.first;
    return n - whole < before ? w.first + n - whole : w.wholeLast + n - whole - before;
}

// The walker's next one from n on that the bitmap does not exclude.
uint nextTile(Walk w, uint n, uint lastRow) {
    if (MAP_ROWS != 0)
        while (n < w.last - w.first) {
            const uint firstKey = tileAt(w, n) * BLOCK_COLS;
            if (!skipsTile(work.row0, lastRow, firstKey, min(firstKey + BLOCK_COLS, work.keys) - 1)) break;
            n += WALKERS;
        }
    return n;
}

// A score, capped.
float capped(float x) {
    const float y = x / p.softcap, z = y * y;
    const float t = 1.0 - 2.0 / (exp2(y * 2.885390081777927) + 1.0);
    const float cap = p.softcap * (abs(y) < 0.05 ? y * (1.0 - z * (0.33333333 - z * 0.13333333)) : t);
    return isNaN(x) ? x : cap; // exp2 need not keep a NaN
}

// A score with all that is added to it.
float modified(float x, uint row, uint key) {
    if (SOFTCAP != 0) x = capped(x);
    if (ALIBI != 0) {
        const int distance = int(queryOf(row)) + work.offset - int(key);
        x = fma(-uintBitsToFloat(loadALiBi(headOf(row))), float(abs(distance)), x);
    }
    if (BIAS != 0 && row < work.rows && key < work.keys) x += biasAt(headOf(row), queryOf(row), key);
    return x;
}

// -- where keys lie ---------------------------------------------------------------------------------

// The key at place i of the walk: i itself, or the i-th of the list. NO_KEY where there is none.
const uint NO_KEY = 0xffffffffu;
uint keyAt(uint i) {
    if (KEPT == 0) return i < work.keys ? i : NO_KEY;
    if (i >= work.listed) return NO_KEY;
    const uint token = loadToken(work.firstListed + i);
    return token < work.keys ? token : NO_KEY;
}

// A row of K or V: its batch or page, and the row there.
struct Place { uint batch, row; };
uint pageOf(uint key) { return loadTable(work.batch * p.tableStride + key / PAGE_SIZE); } // as the table has it
Place placeIn(uint page, uint key) { return Place(page < p.totalK ? page : 0, key % PAGE_SIZE); }
Place placeOf(uint key) {
    if (PAGE_SIZE != 0) return placeIn(pageOf(key), key);
    if ((LENGTHS & CU_K) != 0) return Place(0, work.firstK + key);
    return Place(work.batch, key);
}

// Keys whose places are one after another from a multiple of so many on.
const bool TILES_WHOLE = KEPT + PAGE_SIZE % BLOCK_COLS == 0;

// -- rows of Q, O and LSE ---------------------------------------------------------------------------

uint rowBatch() { return (LENGTHS & CU_Q) != 0 ? 0 : work.batch; }

// A row's first element, counted from that of the first query of the block and the first head of the group.
uint rowElement(uint row, uint strideHead, uint strideSeq) {
    return (queryOf(row) - queryOf(work.row0)) * strideSeq + row % HEADS_SIDE * strideHead;
}

// The part of the keys this is.
#ifdef ANY_DTYPE
uint partNumber() { return work.split; }
#else
uint partNumber() { return SHARE_KEYS != 0 ? work.split * (LOCAL_SIZE / SUBGROUP_SIZE) + gl_SubgroupID : work.split; }
#endif

// Number of a row among those of LSE and of a state: they count below 2^32.
uint numberOf(uint row) {
    const uint length = (LENGTHS & CU_Q) != 0 ? p.totalQ : p.Sq;
    return (rowBatch() * p.Hq + headOf(row)) * length + work.firstQ + queryOf(row);
}

// The same with SPLIT, where every part has all rows.
uint rowNumber(uint row) { return SPLIT != 0 ? partNumber() * p.strideOBatch + numberOf(row) : numberOf(row); }

// A sink of NaN or +Inf makes its row NaN, whether that has keys or not.
bool invalidatesRow(uint sink) { return sink == 0x7f800000u || isNaN(uintBitsToFloat(sink)); }

// What a row's sink adds to the row sum: once, not in every split. NaN makes O NaN.
float sinkWeight(uint row, float rowMax) {
    if (partNumber() != 0) return 0.0;
    const uint bits = loadSinks(headOf(row));
    if (invalidatesRow(bits)) return uintBitsToFloat(NAN_BITS);
    const float sink = uintBitsToFloat(bits);
    return NATURAL ? exp2((sink - rowMax) * LOG2E) : exp2(LOG2E * sink - rowMax);
}

// LSE with the sink in it.
float withSink(uint row, float lse) {
    if (SINKS == 0 || partNumber() != 0 || isNaN(lse)) return lse;
    const uint bits = loadSinks(headOf(row));
    if (invalidatesRow(bits)) return uintBitsToFloat(NAN_BITS);
    const float sink = uintBitsToFloat(bits);
    if (floatBitsToUint(lse) == 0xff800000u) return sink;
    const float most = max(lse, sink);
    return most + naturalLog(exp(lse - most) + exp(sink - most));
}

#endif
