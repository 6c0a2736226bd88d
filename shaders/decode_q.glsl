// Q of decode_coopmat.comp: vectors of 16 bytes become operands. Macros over the variables of main, as the
// loads of kv_load_dense.glsl and for the same reason.

// Block b of rows g and g + 8, columns 8 t to 8 t + 7 of 32. Rows and columns past the end are zero.
#define LOAD_Q_VECS                                                                                 \
    [[unroll]] for (uint n = 0; n < 2 * LANE_FOLD; ++n) {                                           \
        const uint row = n / LANE_FOLD * 8 + GROUP_ID(n % LANE_FOLD);                               \
        const uint element = elementQ(work.row0 + row);                                             \
        [[unroll]] for (uint b = 0; b < Q_LOAD_BLOCKS; ++b) {                                       \
            const uint col = QK_FIRST_COL + Q_BLOCK(b) * 32 + THREAD_IN_GROUP * 8;                  \
            qVec[n * Q_LOAD_BLOCKS + b] = (SUM_N > 8 || n < LANE_FOLD) && row < rows && hasQ(b, col) \
                ? interleavePairs(load8Q(qBlock, element + col, HEAD_DIM % 8 == 0 ? 8 : elementsFromQ(col)) ^ flipQ) : uvec4(0); \
        }                                                                                           \
    }

// Fragments of Q in registers, or with Q_SMEM_CHUNKS in shared memory, where all subgroups read them.
#define Q_WORD(h, w) qVec[((h) * LANE_FOLD + s) * Q_LOAD_BLOCKS + i / 2][i % 2 * 2 + (w)]
#define FILL_Q                                                                                      \
    [[unroll]] for (uint i = 0; i < 2 * Q_LOAD_BLOCKS; ++i) {                                       \
        FragA Qi;                                                                                   \
        operandA(Qi, Q_WORD(0, 0), Q_WORD(0, 1), Q_WORD(1, 0), Q_WORD(1, 1))                        \
        if (Q_SMEM_CHUNKS == 0) Q[Q_SMEM_CHUNKS != 0 ? 0 : i] = Qi;                                 \
        else if (Q_BLOCK(i / 2) < QK_BLOCKS)                                                        \
            coopMatStore(Qi, smem, Q_BASE + 4 * Q_BLOCK(i / 2) + 2 * (i % 2), Q_STRIDE, gl_CooperativeMatrixLayoutRowMajor); \
    }
