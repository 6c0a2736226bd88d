// Rows of the Q tile in Q and O, in calls with options: slices from the tile's first query on, and the first element of a
// row relative to them, see rowElement.
Slice blockQ() { return sliceQ(rowBatch(), work.head, work.offsetQ + queryOf(work.row0)); }
Slice blockO() { return sliceO(rowBatch(), work.head, work.offsetQ + queryOf(work.row0)); }
uint elementQ(uint row) { return rowElement(row, p.strideQHead, p.strideQSeq); }
uint elementO(uint row) { return rowElement(row, p.strideOHead, p.strideOSeq); }
