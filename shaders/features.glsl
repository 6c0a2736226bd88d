// Which rows and keys a workgroup has when sequences differ, K and V lie in pages or are quantised, and
// scores are modified: what modules compiled with GENERAL=1 do where the others take p.Sq and p.Sk.
//
// A row is numbered within its sequence; with PACK_GQA the query heads that share a key head lie side by
// side, row r being query r / PACK_GQA of head r % PACK_GQA of the group, so that decoding fills a fragment with them.
// A key is numbered within its sequence too. Numbers that come from memory (lengths, pages, tokens) are
// clamped to what the host knows of the tensors, so that wrong ones cannot reach outside of them.
#ifndef GENERAL_GLSL
#define GENERAL_GLSL

const uint CU_Q = 1, USED_Q = 2, CU_K = 4, USED_K = 8; // of VARLEN

// A vector of 32-bit elements: the name of its address in Params and of its binding.
#if BDA
#define ARRAY(name, number) uint load##name(uint i) { return ReadWords(p.addr##name).at[i]; }
#else
#define ARRAY(name, number)                                                                        \
    layout(set = 0, binding = number, std430) READ_ONLY buffer Array##name { uint array##name[]; }; \
    uint load##name(uint i) { return array##name[p.addr##name.x + i]; }
#endif
ARRAY(CuQ, 5)
ARRAY(CuK, 6)
ARRAY(UsedQ, 7)
ARRAY(UsedK, 8)
ARRAY(BlockTable, 9)
ARRAY(ALiBi, 10)
ARRAY(Sinks, 11)
ARRAY(Mask, 13)   // the bitmap, or where the lists of kept tokens start
ARRAY(KScale, 14)
ARRAY(VScale, 15)
uint scaleK(uint i) { return loadKScale(i); }
uint scaleV(uint i) { return loadVScale(i); }
// The bias and the mask by words and how many elements into the first one they start: they may be of 16 and 8 bits.
#if BDA
uint loadBiasWord(uint i) { return ReadWords(uvec2(p.addrBias.x & ~3u, p.addrBias.y)).at[i]; }
uint loadMaskWord(uint i) { return ReadWords(uvec2(p.addrMask.x & ~3u, p.addrMask.y)).at[i]; }
uint biasStart() { return (p.addrBias.x & 3u) >> 1; }
uint maskStart() { return p.addrMask.x & 3u; }
#else
layout(set = 0, binding = 12, std430) READ_ONLY buffer ArrayBias { uint arrayBias[]; };
uint loadBiasWord(uint i) { return arrayBias[i]; }
uint loadMaskWord(uint i) { return arrayMask[i]; }
uint biasStart() { return p.addrBias.x; }
uint maskStart() { return p.addrMask.x; }
#endif
#if BDA
uint loadSparseToken(uint i) { return ReadWords(uvec2(p.strideMaskBatch, p.strideMaskHead)).at[i]; }
#else
layout(set = 0, binding = 16, std430) READ_ONLY buffer ArrayTokens { uint arrayTokens[]; };
uint loadSparseToken(uint i) { return arrayTokens[p.strideMaskBatch + i]; }
#endif

// -- the work of a workgroup ------------------------------------------------------------------------
// Grid: x = row block, with cu_seqlens_q of all sequences one after another; y = split * heads + head,
// or key head with PACK_GQA; z = batch * DV_SLICES + slice of O's columns.
// With DECODE_PART_ROWS two kernels compute the sequences of a batch, by their lengths. The one with IS_DECODE_PART has z =
// sequence * DV_SLICES + slice and as many row blocks as a short sequence may need; the other has a grid as above. A
// block of the other kernel's sequence leaves at once.

struct WorkTile {
    uint batch, head, kvHead; // head: the first of the group with PACK_GQA
    uint row0;           // first row
    uint col0;           // first column of V and O
    uint split, splits;
    uint rows;           // of the sequence
    uint seqlenQ, seqlenK;  // of the sequence
    uint kvLength;         // entries of the list of kept tokens; else keys
    uint firstToken;
    uint offsetQ, offsetK; // where the sequence starts in packed tensors
    int causalOffset;          // query i lies at key i + offset
};

WorkTile work;

uint clampCount(uint number, uint most) { return int(number) < 0 ? 0 : min(number, most); }

const uint ROWS_PER_QUERY = PACK_GQA > 1 ? PACK_GQA : 1; // rows of a query
uint queryOf(uint row) { return row / ROWS_PER_QUERY; }
uint headOf(uint row) { return work.head + row % ROWS_PER_QUERY; }

// Row blocks of packed sequences: those of sequence b start at this block at the latest, and have it alone.
uint firstQTile(uint b, uint tileRows) {
    return clampCount(loadCuQ(b), p.totalQ) * ROWS_PER_QUERY / tileRows + b; // totalQ * groupSize < 2^32
}

// The last sequence that starts at a block or before it. Lanes look at as many of them at once.
uint sequenceOf(uint block, uint tileRows) {
    uint low = 0, count = p.strideQBatch; // the number of sequences: packed tensors have no batch stride
#ifdef SEARCH_LANES
    while (count > 1) {
        const uint step = (count + SEARCH_LANES - 1) / SEARCH_LANES, probe = gl_SubgroupInvocationID * step;
        const bool starts = probe < count && firstQTile(low + probe, tileRows) <= block;
        const uint before = max(subgroupBallotBitCount(subgroupBallot(starts)), 1) - 1;
        low += before * step;
        count = min(step, count - before * step);
    }
#else
    while (count > 1) {
        const uint half_ = count / 2;
        const bool starts = firstQTile(low + half_, tileRows) <= block;
        if (starts) low += half_;
        count = starts ? count - half_ : half_;
    }
#endif
    return low;
}

// Finds the work; false where there is none.
bool findWorkTile(uint tileRows) {
    const uint heads = p.Hq / ROWS_PER_QUERY;
    work.split = 0;
    work.splits = 1;
    work.kvHead = gl_WorkGroupID.y; // heads that share a key head are packed
    if (SPLIT != 0) {
        work.split = gl_WorkGroupID.y / heads;
        work.splits = gl_NumWorkGroups.y / heads;
        work.kvHead -= work.split * heads;
    }
    work.head = work.kvHead * ROWS_PER_QUERY;
    work.col0 = (gl_WorkGroupID.z % DV_SLICES) * DV_SLICE;
    uint block = gl_WorkGroupID.x;
    work.batch = gl_WorkGroupID.z / DV_SLICES;
    work.offsetQ = 0;
    work.seqlenQ = p.Sq;
    if ((VARLEN & CU_Q) != 0) {
        if (IS_DECODE_PART == 0) {
            work.batch = sequenceOf(block, tileRows);
            const uint first = firstQTile(work.batch, tileRows);
            if (block < first) return false;
            block -= first;
        }
        work.offsetQ = clampCount(loadCuQ(work.batch), p.totalQ);
        const uint end = clampCount(loadCuQ(work.batch + 1), p.totalQ);
        work.seqlenQ = min(max(end, work.offsetQ) - work.offsetQ, p.Sq);
    }
    if ((VARLEN & USED_Q) != 0) work.seqlenQ = clampCount(loadUsedQ(work.batch), work.seqlenQ);
    work.rows = work.seqlenQ * ROWS_PER_QUERY;
    if (DECODE_PART_ROWS != 0 && (work.rows <= DECODE_PART_ROWS) != (IS_DECODE_PART != 0)) return false;
    const uint blocks = (work.rows + tileRows - 1) / tileRows;
    if (block >= blocks) return false;
    if (CAUSAL != 0) block = blocks - 1 - block; // later rows see more keys: heavy blocks first
    work.row0 = block * tileRows;

    work.offsetK = 0;
    work.seqlenK = p.Sk;
    if ((VARLEN & CU_K) != 0) {
        work.offsetK = clampCount(loadCuK(work.batch), p.totalK);
        const uint end = clampCount(loadCuK(work.batch + 1), p.totalK);
        work.seqlenK = min(max(end, work.offsetK) - work.offsetK, p.Sk);
    }
    if ((VARLEN & USED_K) != 0) work.seqlenK = clampCount(loadUsedK(work.batch), work.seqlenK);
    work.kvLength = work.seqlenK;
    if (SPARSE_TOKENS != 0) {
        const uint list = work.batch * (p.Hq / p.groupSize) + work.kvHead;
        work.firstToken = clampCount(loadMask(list), p.strideMaskRow);
        const uint end = clampCount(loadMask(list + 1), p.strideMaskRow);
        work.kvLength = max(end, work.firstToken) - work.firstToken;
    }
    work.causalOffset = p.causalOffset != 0 ? int(work.seqlenK) - int(work.seqlenQ) : 0;
    return true;
}

// -- what a row sees: keys [visibleStart(row), visibleEnd(row)), less what MASK_EVERY_TILE excludes -------

uint visibleEnd(uint row) {
    int end = int(work.seqlenK);
    const int at = int(queryOf(row)) + work.causalOffset;
    if (CAUSAL != 0) end = min(end, at + 1);
    if ((WINDOW & 2u) != 0) end = min(end, at + p.windowRight + 1); // the host sees to it that this fits 32 bits
    return uint(max(end, 0));
}

uint visibleStart(uint row) {
    if ((WINDOW & 1u) == 0) return 0;
    return uint(max(int(queryOf(row)) + work.causalOffset - p.windowLeft, 0));
}

// Every tile needs a look at which slots are which. Of lists a kernel may look at the keys of a tile instead.
#ifndef CHECKS_SPARSE_TILES
#define CHECKS_SPARSE_TILES 0
#endif
const bool MASK_EVERY_TILE = (1 - CHECKS_SPARSE_TILES) * SPARSE_TOKENS + SPARSE_BLOCK_Q + ALIBI + BIAS + MASK != 0;
// Something is done to scores before the row max is taken; else they are products until it is subtracted. With numbers added
// they are natural exponents: a bias of the least finite float32, the mask of other libraries, would overflow times log2(e).
const bool SCORE_MOD = SOFTCAP + ALIBI + BIAS != 0;
const bool NATURAL_SCORES = ALIBI + BIAS != 0;
// A row may not see a key that others of its tile see.
const bool ROW_MASKS = CAUSAL + WINDOW + SPARSE_TOKENS + SPARSE_BLOCK_Q + MASK != 0;

float loadBias(uint head, uint query, uint key) {
    const uint at = biasStart() + work.batch * p.strideBiasBatch + head * p.strideBiasHead + query * p.strideBiasRow + key;
    if (BIAS == 3) return uintBitsToFloat(loadBiasWord(at));
    const uint half_ = (loadBiasWord(at >> 1) >> ((at & 1u) * 16u)) & 0xffffu;
    return BIAS == 2 ? uintBitsToFloat(half_ << 16) : unpackHalf2x16(half_).x;
}

// The key's slot is one the row attends to; both may be past the sequence's last.
bool attends(uint row, uint key) {
    bool yes = row < work.rows && key >= visibleStart(row) && key < visibleEnd(row);
    if (MASK != 0 && yes) {
        const uint at = maskStart() + work.batch * p.strideMaskBatch + headOf(row) * p.strideMaskHead
            + queryOf(row) * p.strideMaskRow + key;
        yes = ((loadMaskWord(at >> 2) >> ((at & 3u) * 8u)) & 0xffu) != 0;
    }
    if (SPARSE_BLOCK_Q != 0 && yes) {
        const uint j = key / SPARSE_BLOCK_K;
        const uint at = work.batch * p.strideMaskBatch + headOf(row) * p.strideMaskHead + queryOf(row) / SPARSE_BLOCK_Q * p.strideMaskRow;
        yes = (loadMask(at + j / 32) >> (j % 32) & 1u) != 0;
    }
    return yes;
}

// No row of the block attends to any key of a tile, as far as the bitmap says.
bool skipsSparseTile(uint firstRow, uint lastRow, uint firstKey, uint lastKey) {
    if (SPARSE_BLOCK_Q == 0) return false;
    const uint heads = p.strideMaskHead != 0 ? ROWS_PER_QUERY : 1;
    for (uint h = 0; h < heads; ++h)
        for (uint i = queryOf(firstRow) / SPARSE_BLOCK_Q; i <= queryOf(lastRow) / SPARSE_BLOCK_Q; ++i)
            for (uint j = firstKey / SPARSE_BLOCK_K; j <= lastKey / SPARSE_BLOCK_K; ++j) {
                const uint at = work.batch * p.strideMaskBatch + (work.head + h) * p.strideMaskHead + i * p.strideMaskRow;
                if ((loadMask(at + j / 32) >> (j % 32) & 1u) != 0) return false;
            }
    return true;
}

// -- the walk over the keys ----------------------------------------------------------------------------
// A row block visits tiles [first, last) of its sequence, a split's part of them: first those that every row
// sees whole, [unmaskedFirst, unmaskedLast), which need no masks, then the ones before and behind. Where subgroups
// walk for themselves (KV_LOOPS of them), they take turns.
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
    KVRange w;
    w.first = first;
    w.last = max((end + KV_TILE - 1) / KV_TILE, first);
    if (SPLIT != 0) {
        const uint each = (w.last - first) / work.splits, more = (w.last - first) % work.splits; // so many have one more
        w.first = first + work.split * each + min(work.split, more);
        w.last = w.first + each + (work.split < more ? 1 : 0);
    }
    w.unmaskedFirst = MASK_EVERY_TILE ? w.last : clamp(unmaskedFirst, w.first, w.last);
    w.unmaskedLast = MASK_EVERY_TILE ? w.last : clamp(unmaskedLast, w.unmaskedFirst, w.last);
    return w;
}

// The n-th tile of the walk.
uint kvTileAt(KVRange w, uint n) {
    const uint unmasked = w.unmaskedLast - w.unmaskedFirst;
    if (n < unmasked) return w.unmaskedFirst + n;
    const uint before = w.unmaskedFirst - w.first;
    return n - unmasked < before ? w.first + n - unmasked : w.unmaskedLast + n - unmasked - before;
}

// The walker's next one from n on that the bitmap does not exclude.
uint nextKVTile(KVRange w, uint n, uint lastRow) {
    if (SPARSE_BLOCK_Q != 0)
        while (n < w.last - w.first) {
            const uint firstKey = kvTileAt(w, n) * KV_TILE;
            if (!skipsSparseTile(work.row0, lastRow, firstKey, min(firstKey + KV_TILE, work.seqlenK) - 1)) break;
            n += KV_LOOPS;
        }
    return n;
}

// A score, capped.
float applySoftcap(float x) {
    const float y = x / p.softcap, z = y * y;
    const float t = 1.0 - 2.0 / (exp2(y * 2.885390081777927) + 1.0);
    const float cap = p.softcap * (abs(y) < 0.05 ? y * (1.0 - z * (0.33333333 - z * 0.13333333)) : t);
    return isNaN(x) ? x : cap; // exp2 need not keep a NaN
}

// A score with all that is added to it.
float scoreMod(float x, uint row, uint key) {
    if (SOFTCAP != 0) x = applySoftcap(x);
    if (ALIBI != 0) {
        const int distance = int(queryOf(row)) + work.causalOffset - int(key);
        x = fma(-uintBitsToFloat(loadALiBi(headOf(row))), float(abs(distance)), x);
    }
    if (BIAS != 0 && row < work.rows && key < work.seqlenK) x += loadBias(headOf(row), queryOf(row), key);
    return x;
}

// -- where keys lie ---------------------------------------------------------------------------------

// The key at place i of the walk: i itself, or the i-th of the list. NO_KEY where there is none.
const uint NO_KEY = 0xffffffffu;
uint keyAt(uint i) {
    if (SPARSE_TOKENS == 0) return i < work.seqlenK ? i : NO_KEY;
    if (i >= work.kvLength) return NO_KEY;
    const uint token = loadSparseToken(work.firstToken + i);
    return token < work.seqlenK ? token : NO_KEY;
}

// A row of K or V: its batch or page, and the row there.
struct KVRow { uint batch, row; };
uint loadPageIndex(uint key) { return loadBlockTable(work.batch * p.blockTableStride + key / PAGE_SIZE); } // as the table has it
KVRow kvRowInPage(uint page, uint key) { return KVRow(page < p.totalK ? page : 0, key % PAGE_SIZE); }
KVRow kvRowOf(uint key) {
    if (PAGE_SIZE != 0) return kvRowInPage(loadPageIndex(key), key);
    if ((VARLEN & CU_K) != 0) return KVRow(0, work.offsetK + key);
    return KVRow(work.batch, key);
}

// Keys whose places are one after another from a multiple of so many on.
const bool CONTIGUOUS_TILES = SPARSE_TOKENS + PAGE_SIZE % KV_TILE == 0;

// -- rows of Q, O and LSE ---------------------------------------------------------------------------

uint rowBatch() { return (VARLEN & CU_Q) != 0 ? 0 : work.batch; }

// A row's first element, counted from that of the first query of the block and the first head of the group.
uint rowElement(uint row, uint strideHead, uint strideSeq) {
    return (queryOf(row) - queryOf(work.row0)) * strideSeq + row % ROWS_PER_QUERY * strideHead;
}

// The part of the keys this is.
#ifdef ANY_DTYPE
uint splitIndex() { return work.split; }
#else
uint splitIndex() { return SPLIT_KV != 0 ? work.split * (LOCAL_SIZE / SUBGROUP_SIZE) + gl_SubgroupID : work.split; }
#endif

// Number of a row among those of LSE and of a state: they count below 2^32.
uint rowIndex(uint row) {
    const uint length = (VARLEN & CU_Q) != 0 ? p.totalQ : p.Sq;
    return (rowBatch() * p.Hq + headOf(row)) * length + work.offsetQ + queryOf(row);
}

// The same with SPLIT, where every part has all rows.
uint stateRow(uint row) { return SPLIT != 0 ? splitIndex() * p.strideOBatch + rowIndex(row) : rowIndex(row); }

// A sink of NaN or +Inf makes its row NaN, whether that has keys or not.
bool invalidatesRow(uint sink) { return sink == 0x7f800000u || isNaN(uintBitsToFloat(sink)); }

// What a row's sink adds to the row sum: once, not in every split. NaN makes O NaN.
float sinkTerm(uint row, float rowMax) {
    if (splitIndex() != 0) return 0.0;
    const uint bits = loadSinks(headOf(row));
    if (invalidatesRow(bits)) return uintBitsToFloat(NAN_BITS);
    const float sink = uintBitsToFloat(bits);
    return NATURAL_SCORES ? exp2((sink - rowMax) * LOG2E) : exp2(LOG2E * sink - rowMax);
}

// LSE with the sink in it.
float lseWithSink(uint row, float lse) {
    if (SINKS == 0 || splitIndex() != 0 || isNaN(lse)) return lse;
    const uint bits = loadSinks(headOf(row));
    if (invalidatesRow(bits)) return uintBitsToFloat(NAN_BITS);
    const float sink = uintBitsToFloat(bits);
    if (floatBitsToUint(lse) == 0xff800000u) return sink;
    const float most = max(lse, sink);
    return most + naturalLog(exp(lse - most) + exp(sink - most));
}

#endif
