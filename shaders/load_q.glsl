// Part of main: loads the Q tile. Q_REG_CHUNKS chunks become the fragments Q in registers, by way of the KV tile's shared
// memory, Q_FIT_ROWS rows per pass; the other chunks stay in shared memory at Q_BASE. Rows past the end are zero. All
// loads are issued before the first barrier, so their latencies overlap the loads of the first KV tile. flipQ flips the
// sign of Q for a negative scale, so that the largest score is the largest logit.
uvec4 qVec[Q_PASSES * Q_PASS_VECS];
[[unroll]] for (uint i = 0; i < Q_PASSES * Q_PASS_VECS; ++i) {
    const uint at = i % Q_PASS_VECS * LOCAL_SIZE + tid, inPass = Q_REG_CHUNKS > 0 ? at / Q_REG_VECS : Q_PASS_ROWS;
    const uint row = i / Q_PASS_VECS * Q_PASS_ROWS + inPass, col = Q_REG_CHUNKS > 0 ? at % Q_REG_VECS : 0;
    qVec[i] = inPass < Q_PASS_ROWS && row < WORKGROUP_ROWS && work.row0 + row < ROWS
        ? LOAD_Q(row, col * 8) ^ flipQ : uvec4(0);
}
[[unroll]] for (uint at0 = 0; at0 < WORKGROUP_ROWS * Q_SMEM_VECS; at0 += LOCAL_SIZE) {
    const uint at = at0 + tid, row = at / Q_SMEM_VECS, col = at % Q_SMEM_VECS;
    if (row < WORKGROUP_ROWS)
        smem[Q_BASE + row * Q_STRIDE + col] = work.row0 + row < ROWS
            ? LOAD_Q(row, (Q_REG_VECS + col) * 8) ^ flipQ : uvec4(0);
}
if (Q_REG_CHUNKS > 0) {
    [[unroll]] for (uint pass = 0; pass < Q_PASSES; ++pass) {
        barrier(); // the last pass is read
        [[unroll]] for (uint i = 0; i < Q_PASS_VECS; ++i) {
            const uint at = i * LOCAL_SIZE + tid, row = at / Q_REG_VECS;
            if (row < Q_PASS_ROWS) smem[row * Q_REG_STRIDE + at % Q_REG_VECS] = qVec[pass * Q_PASS_VECS + i];
        }
        barrier();
        [[unroll]] for (uint r = 0; r < M_FRAGS; ++r) {
            const uint row = rowInTile + r * FRAG_M, first = pass * Q_PASS_ROWS;
            if (row >= first && row < first + Q_PASS_ROWS) {
                [[unroll]] for (uint i = 0; i < Q_REG_CHUNKS; ++i)
                    coopMatLoad(Q[r * Q_REG_CHUNKS + i], smem, (row - first) * Q_REG_STRIDE + i * FRAG_K / 8,
                                Q_REG_STRIDE, gl_CooperativeMatrixLayoutRowMajor);
            }
        }
    }
}
