// Part of main: loads the keys of the subgroup as terms, K or V. Fragment by fragment, the terms of OWN_REG_CHUNKS chunks pass
// through the subgroup's scratch into registers; those of the other chunks stay in shared memory at OWN_BASE. Keys past the end
// are zero.
{
    const Slice kRows = sliceK(kvBatch(), work.kvHead, work.offsetK + keyBase), vRows = sliceV(kvBatch(), work.kvHead, work.offsetK + keyBase);
    uvec4 ownVec[2 * M_FRAGS * CHUNKS * LANE_VECS]; // all loads are issued before the first wait
    [[unroll]] for (uint n = 0; n < M_FRAGS * CHUNKS * LANE_VECS; ++n) {
        const uint group = n % LANE_VECS * SUBGROUP_SIZE + gl_SubgroupInvocationID, f = n / LANE_VECS;
        const uint key = f / CHUNKS * FRAG_M + group / CHUNK_VECS, col = (f % CHUNKS * CHUNK_VECS + group % CHUNK_VECS) * 8;
        ownVec[2 * n] = ownVec[2 * n + 1] = uvec4(0);
        if (group < FRAG_VECS && keyBase + key < work.seqlenK) {
            if (isSecond()) {
                ownVec[2 * n] = load4V(vRows, key * p.strideVSeq + col, elementsFromV(col));
                ownVec[2 * n + 1] = load4V(vRows, key * p.strideVSeq + col + 4, elementsFromV(col + 4));
            } else {
                ownVec[2 * n] = load4K(kRows, key * p.strideKSeq + col, elementsFromK(col));
                ownVec[2 * n + 1] = load4K(kRows, key * p.strideKSeq + col + 4, elementsFromK(col + 4));
            }
        }
    }
    [[unroll]] for (uint f = 0; f < M_FRAGS * CHUNKS; ++f) {
        const uint r = f / CHUNKS, chunk = f % CHUNKS;
        const bool inRegisters = chunk < OWN_REG_CHUNKS;
        const uint stride = inRegisters ? TERMS_STRIDE : OWN_STRIDE, rowVecs = inRegisters ? CHUNK_VECS : OWN_VECS;
        const uint base = inRegisters ? subgroupScratch() : OWN_BASE + (gl_SubgroupID * SUBGROUP_KEYS + r * FRAG_M) * OWN_STRIDE + (chunk - OWN_REG_CHUNKS) * CHUNK_VECS;
        subgroupSync(); // the last fragment is read
        [[unroll]] for (uint s = 0; s < LANE_VECS; ++s) {
            const uint n = f * LANE_VECS + s, group = s * SUBGROUP_SIZE + gl_SubgroupInvocationID;
            uvec4 hi, mid, lo;
            splitTerms(ownVec[2 * n], ownVec[2 * n + 1], hi, mid, lo);
            if (group < FRAG_VECS) storeTerms(base + group / CHUNK_VECS * stride + group % CHUNK_VECS, rowVecs, hi, mid, lo);
        }
        subgroupSync();
        if (inRegisters) {
            [[unroll]] for (uint term = 0; term < TERMS; ++term)
                coopMatLoad(own[OWN_REG_CHUNKS > 0 ? (term * M_FRAGS + r) * OWN_REG_CHUNKS + chunk : 0], smem,
                            subgroupScratch() + term * CHUNK_VECS, TERMS_STRIDE, ROW_MAJOR);
        }
    }
}
