// Part of main: loads the subgroup's rows of Q. Fragment by fragment, the terms of Q_REG_CHUNKS chunks pass through the
// subgroup's scratch into registers; the terms of the other chunks stay in shared memory at Q_BASE. Rows past the end are
// zero. flipQ flips the sign of Q for a negative scale, so that the largest score is the largest logit.
{
    const Slice qRows = sliceQ(work.batch, work.head, work.row0);
    const uint frags = M_FRAGS * QK_CHUNKS;
    uvec4 qVec[2 * M_FRAGS * QK_CHUNKS * LANE_VECS]; // all loads are issued before the first wait
    [[unroll]] for (uint n = 0; n < frags * LANE_VECS; ++n) {
        const uint group = n % LANE_VECS * SUBGROUP_SIZE + gl_SubgroupInvocationID, f = n / LANE_VECS;
        const uint row = rowInTile + f / QK_CHUNKS * FRAG_M + group / CHUNK_VECS, col = (f % QK_CHUNKS * CHUNK_VECS + group % CHUNK_VECS) * 8;
        const bool there = group < FRAG_VECS && work.row0 + row < p.Sq;
        qVec[2 * n] = there ? loadVecQ(qRows, row, col) ^ flipQ : uvec4(0);
        qVec[2 * n + 1] = there ? loadVecQ(qRows, row, col + 4) ^ flipQ : uvec4(0);
    }
    [[unroll]] for (uint f = 0; f < frags; ++f) {
        const uint r = f / QK_CHUNKS, chunk = f % QK_CHUNKS;
        const bool inRegisters = chunk < Q_REG_CHUNKS;
        const uint stride = inRegisters ? TERMS_STRIDE : Q_STRIDE, rowVecs = inRegisters ? CHUNK_VECS : Q_ROW_VECS;
        const uint base = inRegisters ? subgroupScratch() : Q_BASE + (rowInTile + r * FRAG_M) * Q_STRIDE + (chunk - Q_REG_CHUNKS) * CHUNK_VECS;
        subgroupSync(); // the last fragment is read
        [[unroll]] for (uint s = 0; s < LANE_VECS; ++s) {
            const uint n = f * LANE_VECS + s, group = s * SUBGROUP_SIZE + gl_SubgroupInvocationID;
            uvec4 hi, mid, lo;
            splitTerms(qVec[2 * n], qVec[2 * n + 1], hi, mid, lo);
            if (group < FRAG_VECS) storeTerms(base + group / CHUNK_VECS * stride + group % CHUNK_VECS, rowVecs, hi, mid, lo);
        }
        subgroupSync();
        if (inRegisters) {
            [[unroll]] for (uint term = 0; term < TERMS; ++term)
                coopMatLoad(Q[Q_REG_CHUNKS > 0 ? (term * M_FRAGS + r) * Q_REG_CHUNKS + chunk : 0], smem,
                            subgroupScratch() + term * CHUNK_VECS, TERMS_STRIDE, gl_CooperativeMatrixLayoutRowMajor);
        }
    }
}
