// Part of main: loads the terms of the subgroup's rows of Q. Fragment by fragment, those of Q_REG_CHUNKS chunks pass through
// the subgroup's scratch into registers; the terms of the other chunks stay in shared memory at Q_BASE.
{
    LOAD_Q_VECS
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
