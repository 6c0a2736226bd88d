// The rows, keys or elements of the bias that a workgroup of a backward kernel owns. Rows and keys are numbered within
// their sequence, as in work_tile_general.glsl, whose WorkTile and PACK_GQA these kernels share: row r is query
// r / PACK_GQA of head r % PACK_GQA of the group.
//
// Grid of the dQ kernel: x = Q tile, y = KV head with PACK_GQA, else query head, z = sequence. Of the dK and dV kernel:
// x = KV tile, y = KV head, z = sequence. With cu_seqlens x counts the tiles of all sequences, one sequence after the
// other, and z is 1. A workgroup also owns what its sequence has in the tensor past the sequence's end (seqused): its
// gradient is 0.

// The range of a sequence in the tensors: its rows or keys are the first of them.
struct Extent { uint first, count; };
Extent extentQ(uint sequence) {
    if ((VARLEN & CU_Q) == 0) return Extent(0, p.Sq);
    const uint first = clampCount(loadCuQ(sequence), p.totalQ), end = clampCount(loadCuQ(sequence + 1), p.totalQ);
    return Extent(first, max(end, first) - first);
}
Extent extentK(uint sequence) {
    if ((VARLEN & CU_K) == 0) return Extent(0, p.Sk);
    const uint first = clampCount(loadCuK(sequence), p.totalK), end = clampCount(loadCuK(sequence + 1), p.totalK);
    return Extent(first, max(end, first) - first);
}

// Sets what work says of a sequence and a KV head. head is the query head, or the first of the group with PACK_GQA.
void setSequence(uint sequence, uint head, uint kvHead) {
    work.batch = sequence;
    work.head = head;
    work.kvHead = kvHead;
    work.split = 0;
    work.splits = 1;
    work.col0 = 0;
    const Extent q = extentQ(sequence), k = extentK(sequence);
    work.offsetQ = q.first;
    work.seqlenQ = min(q.count, p.Sq);
    if ((VARLEN & USED_Q) != 0) work.seqlenQ = clampCount(loadUsedQ(sequence), work.seqlenQ);
    work.rows = work.seqlenQ * ROWS_PER_QUERY;
    work.offsetK = k.first;
    work.seqlenK = min(k.count, p.Sk);
    if ((VARLEN & USED_K) != 0) work.seqlenK = clampCount(loadUsedK(sequence), work.seqlenK);
    work.kvLength = work.seqlenK;
    if (SPARSE_TOKENS != 0) {
        const uint list = sequence * (p.Hq / p.groupSize) + kvHead;
        work.firstToken = clampCount(loadMask(list), p.strideMaskRow);
        const uint end = clampCount(loadMask(list + 1), p.strideMaskRow);
        work.kvLength = max(end, work.firstToken) - work.firstToken;
    }
    work.causalOffset = p.causalOffset != 0 ? int(work.seqlenK) - int(work.seqlenQ) : 0;
}

// First tile of packed sequence b in the grid, see firstQTile.
uint firstPackedTile(uint b, bool ofKeys, uint rowsPerPosition, uint tileRows) {
    const uint first = ofKeys ? clampCount(loadCuK(b), p.totalK) : clampCount(loadCuQ(b), p.totalQ);
    return first * rowsPerPosition / tileRows + b;
}

// The last packed sequence whose first tile is not after this one.
uint packedSequence(uint tile, bool ofKeys, uint rowsPerPosition, uint tileRows) {
    uint low = 0, count = p.sequences;
    while (count > 1) {
        const uint half_ = count / 2;
        const bool starts = firstPackedTile(low + half_, ofKeys, rowsPerPosition, tileRows) <= tile;
        if (starts) low += half_;
        count = starts ? count - half_ : half_;
    }
    return low;
}

// A kernel that takes a chunk of heads defines CHUNK_OF_HEADS.
#ifdef CHUNK_OF_HEADS

// -- chunks of heads ------------------------------------------------------------------------------
// The grid of the backward kernels that take a chunk of heads (backward_scratch.glsl): x counts tiles, and y counts the
// (sequence, KV head) of the chunk, the first of which is addrUsedQ.x. CHUNK_OF_HEADS may depend on a specialization constant.
// main calls openChunk() first.
//
// Workgroups start in the order of x, then y. Under a causal mask the first tiles of a head take longest. With one head after
// the other, the longest tiles of the last head would start when most of the device's time is over, and end alone: a quarter
// of the time at four heads a chunk and length 16384. So the heads of a chunk take turns.
uint gridTile, headInChunk;
#define GRID_TILE gridTile
#define HEAD_IN_CHUNK headInChunk

void openChunk() {
    gridTile = gl_WorkGroupID.x;
    headInChunk = gl_WorkGroupID.y;
    if (CHUNK_OF_HEADS && CAUSAL != 0) {
        const uint n = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
        gridTile = n / gl_NumWorkGroups.y;
        headInChunk = n % gl_NumWorkGroups.y;
    }
}

#else
#define CHUNK_OF_HEADS false
#define GRID_TILE gl_WorkGroupID.x
#define HEAD_IN_CHUNK gl_WorkGroupID.y
#endif

// The sequence and the head of the grid that a workgroup has.
uvec2 sequenceAndHead() {
    if (!CHUNK_OF_HEADS) return gl_WorkGroupID.zy;
    const uint head = p.addrUsedQ.x + HEAD_IN_CHUNK, heads = p.Hq / p.groupSize;
    return uvec2(head / heads, head % heads);
}

// Sets work for a workgroup of the dQ kernel. extentRows is the number of rows that the sequence has in dQ, rows past
// its end included. False if the workgroup has none of them.
bool findRowTile(uint tileRows, out uint extentRows) {
    const uvec2 grid = sequenceAndHead();
    uint tile = GRID_TILE, sequence = grid.x;
    if ((VARLEN & CU_Q) != 0) {
        sequence = packedSequence(tile, false, ROWS_PER_QUERY, tileRows);
        const uint first = firstPackedTile(sequence, false, ROWS_PER_QUERY, tileRows);
        if (tile < first) return false;
        tile -= first;
    }
    const uint head = grid.y * ROWS_PER_QUERY;
    setSequence(sequence, head, head / p.groupSize);
    extentRows = extentQ(sequence).count * ROWS_PER_QUERY;
    const uint tiles = (extentRows + tileRows - 1) / tileRows;
    if (tile >= tiles) return false;
    if (CAUSAL != 0) tile = tiles - 1 - tile; // longest tiles first: later rows see more keys
    work.row0 = tile * tileRows;
    return true;
}

// Sets work, without row0, and the first key for a workgroup of the dK and dV kernel. extentKeys is the number of keys
// that the sequence has in dK and dV. False if the workgroup has none of them.
bool findKeyTile(uint tileKeys, out uint firstKey, out uint extentKeys) {
    const uvec2 grid = sequenceAndHead();
    uint tile = GRID_TILE, sequence = grid.x;
    if ((VARLEN & CU_K) != 0) {
        sequence = packedSequence(tile, true, 1, tileKeys);
        const uint first = firstPackedTile(sequence, true, 1, tileKeys);
        if (tile < first) return false;
        tile -= first;
    }
    setSequence(sequence, grid.y * p.groupSize, grid.y);
    extentKeys = extentK(sequence).count;
    firstKey = tile * tileKeys; // a causal mask: the first keys are seen by most rows, and come first
    return firstKey < extentKeys;
}
