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
