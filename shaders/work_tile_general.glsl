// The work of a workgroup in calls with options, and the arrays of the options that it reads.

// -- arrays of the options ------------------------------------------------------------------------
// Loads from the arrays that options bring: lengths, block table, slopes, sinks, bias, masks, sparse tokens and
// scales of K and V. Numbers that come from memory are clamped before use to what the host knows of the
// tensors, so wrong ones cannot reach outside of them.

const uint CU_Q = 1, USED_Q = 2, CU_K = 4, USED_K = 8; // bits of VARLEN

// load<name>(i): 32-bit element i of the array with address addr<name> or this binding.
#if BDA
#define ARRAY(name, number) uint load##name(uint i) { return ReadWords(p.addr##name).at[i]; }
#else
#define ARRAY(name, number)                                                                         \
    layout(set = 0, binding = number, std430) READ_ONLY buffer Array##name { uint array##name[]; }; \
    uint load##name(uint i) { return array##name[p.addr##name.x + i]; }
#endif
ARRAY(CuQ, 5)
ARRAY(CuK, 6)
ARRAY(UsedQ, 7)
ARRAY(UsedK, 8)
#ifdef BACKWARD // gradients have the other bindings
ARRAY(ALiBi, 10)
ARRAY(Mask, 13)
#define TOKENS_BINDING 14
#else
ARRAY(BlockTable, 9)
ARRAY(ALiBi, 10)
ARRAY(Sinks, 11)
ARRAY(Mask, 13)   // block-sparse mask, or offsets into the lists of sparse tokens
ARRAY(KScale, 14)
ARRAY(VScale, 15)
uint scaleK(uint i) { return loadKScale(i); }
uint scaleV(uint i) { return loadVScale(i); }
#define TOKENS_BINDING 16
#endif

// Bias and mask have 16-bit and 8-bit elements: they are loaded by word, and biasStart and maskStart give the first
// element's number in the first word (BDA=1) or in the binding.
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

// Beside a mask the lists of sparse tokens are in place of the bias.
const bool MASK_AND_TOKENS = MASK != 0 && SPARSE_TOKENS != 0;
uint loadTokenOffset(uint i) { return MASK_AND_TOKENS ? loadBiasWord(biasStart() + i) : loadMask(i); }
#define TOKENS(axis) (MASK_AND_TOKENS ? p.strideBias##axis : p.strideMask##axis)
#if BDA
uint loadSparseToken(uint i) { return ReadWords(uvec2(TOKENS(Batch), TOKENS(Head))).at[i]; }
#else
layout(set = 0, binding = TOKENS_BINDING, std430) READ_ONLY buffer ArrayTokens { uint arrayTokens[]; };
uint loadSparseToken(uint i) { return arrayTokens[TOKENS(Batch) + i]; }
#endif

// -- work of a workgroup --------------------------------------------------------------------------
// The query rows, the columns of O and the split of the keys that a workgroup computes, for calls with options.
//
// Rows and keys are numbered within their sequence. With PACK_GQA the query heads that share a KV head are
// packed: row r is query r / PACK_GQA of head r % PACK_GQA of the group, and decoding fills a fragment with heads.
//
// Grid: x = Q tile (with cu_seqlens_q the tiles of all sequences, one sequence after the other); y = split * heads +
// head, where head is a KV head with PACK_GQA; z = batch * DV_SLICES + slice of O's columns. With DECODE_PART_ROWS two
// dispatches compute a mixed batch. The decode part (IS_DECODE_PART) has z = sequence * DV_SLICES + slice, and x covers
// DECODE_PART_ROWS rows. The prefill part has the grid above. A workgroup returns at once if its sequence belongs to the
// other part.

// With a list for each query row a row block has rows of one query.
const bool LIST_PER_ROW = SPARSE_TOKENS / 2 % 2 != 0;
const bool EQUAL_LISTS = SPARSE_TOKENS / 4 != 0;

struct WorkTile {
    uint batch, head, kvHead; // head: the first of the group with PACK_GQA
    uint row0;           // first row
    uint col0;           // first column of V and O
    uint split, splits;
    uint rows;           // of the sequence; with LIST_PER_ROW up to the end of the query
    uint seqlenQ, seqlenK; // queries and keys of the sequence
    uint kvLength;       // entries of the list of sparse tokens, or seqlenK
    uint firstToken;     // start of that list
    uint offsetQ, offsetK; // start of the sequence in packed tensors
    int causalOffset;    // query i is aligned with key i + causalOffset
    uint mapRow;         // first word of its row of the tile map
};

WorkTile work;

#ifdef CONSTANTS_TILE_MAP
// Sets the workgroup's row of the tile map (attended_keys.glsl). Loops then wait for a word of it and no more: parameters may be in
// memory.
void setMapRow() {
    const uint tile = WORKGROUP_ID.x, sequence = WORKGROUP_ID.z / DV_SLICES;
    if (TILE_MAP == 1) work.mapRow = maskStart() + sequence * p.strideMaskBatch + work.kvHead * p.strideMaskHead + tile * p.strideMaskRow;
    if (TILE_MAP == 2) work.mapRow = biasStart() + sequence * p.strideBiasBatch + work.kvHead * p.strideBiasHead + tile * p.strideBiasRow;
}
#else
#define setMapRow()
#endif

// A number from memory, 0 if it is negative, at most `most`.
uint clampCount(uint number, uint most) { return int(number) < 0 ? 0 : min(number, most); }

const uint ROWS_PER_QUERY = PACK_GQA > 1 ? PACK_GQA : 1;
uint queryOf(uint row) { return row / ROWS_PER_QUERY; }
uint headOf(uint row) { return work.head + row % ROWS_PER_QUERY; }

// Q tiles of a query, with LIST_PER_ROW.
uint qTilesOfQuery(uint tileRows) { return (ROWS_PER_QUERY + tileRows - 1) / tileRows; }

// First Q tile of packed sequence b. Sequence b - 1 ends before it, maybe some tiles before it: the count needs
// no sum over the sequences.
uint firstQTile(uint b, uint tileRows) {
    if (LIST_PER_ROW) return clampCount(loadCuQ(b), p.totalQ) * qTilesOfQuery(tileRows);
    return clampCount(loadCuQ(b), p.totalQ) * ROWS_PER_QUERY / tileRows + b; // totalQ * groupSize < 2^32
}

// Sequence of a Q tile: the last one whose first tile is not after it. SEARCH_LANES lanes of a subgroup test as
// many sequences at a time; without them it is a binary search.
uint sequenceOf(uint qTile, uint tileRows) {
    uint low = 0, count = p.strideQBatch; // number of sequences: packed tensors have no batch stride
#ifdef SEARCH_LANES
    while (count > 1) {
        const uint step = (count + SEARCH_LANES - 1) / SEARCH_LANES, probe = gl_SubgroupInvocationID * step;
        const bool starts = probe < count && firstQTile(low + probe, tileRows) <= qTile;
        const uint before = max(subgroupBallotBitCount(subgroupBallot(starts)), 1) - 1;
        low += before * step;
        count = min(step, count - before * step);
    }
#else
    while (count > 1) {
        const uint half_ = count / 2;
        const bool starts = firstQTile(low + half_, tileRows) <= qTile;
        if (starts) low += half_;
        count = starts ? count - half_ : half_;
    }
#endif
    return low;
}

// Sets the list of sparse tokens of the work.
void setSparseTokens(uint list) {
    if (EQUAL_LISTS) {
        work.kvLength = TOKENS(Row);
        work.firstToken = list * work.kvLength;
        return;
    }
    work.firstToken = clampCount(loadTokenOffset(list), TOKENS(Row));
    const uint end = clampCount(loadTokenOffset(list + 1), TOKENS(Row));
    work.kvLength = max(end, work.firstToken) - work.firstToken;
}

// Sets work. False if the workgroup has no rows.
bool findWorkTile(uint tileRows) {
    const uvec3 at = WORKGROUP_ID;
    const uint heads = p.Hq / ROWS_PER_QUERY;
    work.split = 0;
    work.splits = 1;
    work.kvHead = at.y; // query heads that share a KV head are packed
    if (SPLIT != 0) {
        work.split = at.y / heads;
        work.splits = gl_NumWorkGroups.y / heads;
        work.kvHead -= work.split * heads;
    }
    uint qTile = at.x;
    setMapRow();
    work.head = work.kvHead * ROWS_PER_QUERY;
    work.col0 = (at.z % DV_SLICES) * DV_SLICE;
    work.batch = at.z / DV_SLICES;

    work.offsetQ = 0;
    work.seqlenQ = p.Sq;
    if ((VARLEN & CU_Q) != 0) {
        if (IS_DECODE_PART == 0) {
            work.batch = sequenceOf(qTile, tileRows);
            const uint first = firstQTile(work.batch, tileRows);
            if (qTile < first) return false;
            qTile -= first;
        }
        work.offsetQ = clampCount(loadCuQ(work.batch), p.totalQ);
        const uint end = clampCount(loadCuQ(work.batch + 1), p.totalQ);
        work.seqlenQ = min(max(end, work.offsetQ) - work.offsetQ, p.Sq);
    }
    if ((VARLEN & USED_Q) != 0) work.seqlenQ = clampCount(loadUsedQ(work.batch), work.seqlenQ);
    work.rows = work.seqlenQ * ROWS_PER_QUERY;
    if (DECODE_PART_ROWS != 0 && (work.rows <= DECODE_PART_ROWS) != (IS_DECODE_PART != 0)) return false;
    const uint qTiles = LIST_PER_ROW ? work.seqlenQ * qTilesOfQuery(tileRows) : (work.rows + tileRows - 1) / tileRows;
    if (qTile >= qTiles) return false;
    if (CAUSAL + LAST_ROWS_FIRST != 0) qTile = qTiles - 1 - qTile; // longest tiles first: later rows see more keys
    work.row0 = qTile * tileRows;
    if (LIST_PER_ROW) {
        const uint query = qTile / qTilesOfQuery(tileRows);
        work.row0 = query * ROWS_PER_QUERY + qTile % qTilesOfQuery(tileRows) * tileRows;
        work.rows = (query + 1) * ROWS_PER_QUERY;
    }

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
        uint owner = work.batch;
        if (LIST_PER_ROW) owner = ((VARLEN & CU_Q) != 0 ? work.offsetQ : work.batch * p.Sq) + queryOf(work.row0);
        setSparseTokens(owner * (p.Hq / p.groupSize) + work.kvHead);
    }
    work.causalOffset = p.causalOffset != 0 ? int(work.seqlenK) - int(work.seqlenQ) : 0;
    return true;
}
