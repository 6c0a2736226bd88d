// Loads of Q, K and V of float32 into shared memory as terms, in vectors of eight elements. PREFETCH_KV loads the next KV
// tile into kVec and vVec while this one is multiplied, SPLIT_KV replaces the vectors by their terms before the workgroup
// barrier, where subgroups wait for each other anyway, and STORE_KV stores these behind it.

const uint K_VECS = (KV_TILE * K_ROW_VECS + LOCAL_SIZE - 1) / LOCAL_SIZE;
const uint V_VECS = (KV_TILE * V_ROW_VECS + LOCAL_SIZE - 1) / LOCAL_SIZE;

// Not 0: the last vector of some invocations is past the end of the tile.
const uint K_RAGGED = KV_TILE * K_ROW_VECS % LOCAL_SIZE;
const uint V_RAGGED = KV_TILE * V_ROW_VECS % LOCAL_SIZE;

// Four elements of a row. If rows fill their fragments no column is compared.
uvec4 loadVecQ(Slice s, uint row, uint col) {
    return load4Q(s, row * p.strideQSeq + col, HEAD_DIM % FRAG_K == 0 ? 4 : elementsFromQ(col));
}
uvec4 loadVecK(Slice s, uint key, uint col) {
    return load4K(s, key * p.strideKSeq + col, HEAD_DIM % FRAG_K == 0 ? 4 : elementsFromK(col));
}
uvec4 loadVecV(Slice s, uint key, uint col) {
    return load4V(s, key * p.strideVSeq + col, HEAD_DIM_V % FRAG_N == 0 ? 4 : elementsFromV(col));
}

// Loads the subgroup's rows of Q into qVec, fragment by fragment; all loads are issued before the first wait. Rows past the
// end are zero. flipQ flips the sign of Q for a negative scale, so that the largest score is the largest logit.
#define LOAD_Q_VECS                                                                                 \
    const Slice qRows = sliceQ(work.batch, work.head, work.row0);                                   \
    const uint frags = M_FRAGS * QK_CHUNKS;                                                         \
    uvec4 qVec[2 * M_FRAGS * QK_CHUNKS * LANE_VECS];                                                \
    [[unroll]] for (uint n = 0; n < frags * LANE_VECS; ++n) {                                       \
        const uint group = n % LANE_VECS * SUBGROUP_SIZE + gl_SubgroupInvocationID, f = n / LANE_VECS; \
        const uint row = rowInTile + f / QK_CHUNKS * FRAG_M + group / CHUNK_VECS, col = (f % QK_CHUNKS * CHUNK_VECS + group % CHUNK_VECS) * 8; \
        const bool there = group < FRAG_VECS && work.row0 + row < p.Sq;                             \
        qVec[2 * n] = there ? loadVecQ(qRows, row, col) ^ flipQ : uvec4(0);                         \
        qVec[2 * n + 1] = there ? loadVecQ(qRows, row, col + 4) ^ flipQ : uvec4(0);                 \
    }

#include "f32_store_terms.glsl"

// Loads tile `index`, where kRows and vRows are, and advances these. Keys past Sk are zero: compared if the tile may be the
// last one (checkEnd), or with CHECK_KV_END.
#define PREFETCH_KV(index, checkEnd)                                                                \
    {                                                                                               \
        const uint keys = min(p.Sk - (index) * KV_TILE, KV_TILE);                                   \
        [[unroll]] for (uint i = 0; i < K_VECS; ++i) {                                              \
            const uint at = i * LOCAL_SIZE + tid, key = at / K_ROW_VECS, col = at % K_ROW_VECS * 8; \
            const bool past = (checkEnd) + CHECK_KV_END + K_RAGGED != 0 && key >= keys;             \
            kVec[3 * i] = past ? uvec4(0) : loadVecK(kRows, key, col);                              \
            kVec[3 * i + 1] = past ? uvec4(0) : loadVecK(kRows, key, col + 4);                      \
        }                                                                                           \
        [[unroll]] for (uint i = 0; i < V_VECS; ++i) {                                              \
            const uint at = i * LOCAL_SIZE + tid, key = at / V_ROW_VECS, col = work.col0 + at % V_ROW_VECS * 8; \
            const bool past = (checkEnd) + CHECK_KV_END + V_RAGGED != 0 && key >= keys;             \
            vVec[3 * i] = past ? uvec4(0) : loadVecV(vRows, key, col);                              \
            vVec[3 * i + 1] = past ? uvec4(0) : loadVecV(vRows, key, col + 4);                      \
        }                                                                                           \
        kRows = advanceK(kRows, KV_TILE);                                                           \
        vRows = advanceV(vRows, KV_TILE);                                                           \
    }

// Masked tiles are stored without the Inf and NaN of V: P of a masked key is 0, but 0 x Inf is NaN. They are added to O
// after the KV loop (non_finite_f32.glsl).
#define KEEP_NON_FINITE(low, high)
#define DROP_NON_FINITE(low, high)                                                                  \
    if (CAUSAL != 0) {                                                                              \
        const bool dropsLow = dropNonFinite4(low), dropsHigh = dropNonFinite4(high);                \
        if (dropsLow || dropsHigh) atomicOr(nonFiniteSeen, 1);                                      \
    }

#define SPLIT_KV(FILTER_V)                                                                          \
    {                                                                                               \
        [[unroll]] for (uint i = 0; i < K_VECS; ++i)                                                \
            splitTerms(kVec[3 * i], kVec[3 * i + 1], kVec[3 * i], kVec[3 * i + 1], kVec[3 * i + 2]); \
        [[unroll]] for (uint i = 0; i < V_VECS; ++i) {                                              \
            FILTER_V(vVec[3 * i], vVec[3 * i + 1])                                                  \
            splitTerms(vVec[3 * i], vVec[3 * i + 1], vVec[3 * i], vVec[3 * i + 1], vVec[3 * i + 2]); \
        }                                                                                           \
    }

#define STORE_KV                                                                                    \
    {                                                                                               \
        [[unroll]] for (uint i = 0; i < K_VECS; ++i) {                                              \
            const uint at = i * LOCAL_SIZE + tid;                                                   \
            if (K_RAGGED == 0 || at < KV_TILE * K_ROW_VECS)                                         \
                storeTerms(at / K_ROW_VECS * K_STRIDE + at % K_ROW_VECS, K_ROW_VECS, kVec[3 * i], kVec[3 * i + 1], kVec[3 * i + 2]); \
        }                                                                                           \
        [[unroll]] for (uint i = 0; i < V_VECS; ++i) {                                              \
            const uint at = i * LOCAL_SIZE + tid;                                                   \
            if (V_RAGGED == 0 || at < KV_TILE * V_ROW_VECS)                                         \
                storeTerms(V_BASE + at / V_ROW_VECS * V_STRIDE + at % V_ROW_VECS, V_ROW_VECS, vVec[3 * i], vVec[3 * i + 1], vVec[3 * i + 2]); \
        }                                                                                           \
    }
