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
