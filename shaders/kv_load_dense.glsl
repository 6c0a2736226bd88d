// Loads of Q, K and V in calls without options. PREFETCH_KV loads the next KV tile into kVec and vVec while this one is
// multiplied; STORE_KV stores it to shared memory, between two workgroup barriers. Macros over the variables of main: as
// functions over global arrays calls took 1.5 times as long (H200, docs/log.md, 51).

// Eight elements of a row. If rows fill their fragments no column is compared.
uvec4 loadVecQ(Slice s, uint row, uint col) {
    return HEAD_DIM % FRAG_K == 0 ? load8Q(s, row * p.strideQSeq + col) : loadQ8(s, row, col);
}
uvec4 loadVecK(Slice s, uint key, uint col) {
    return HEAD_DIM % FRAG_K == 0 ? load8K(s, key * p.strideKSeq + col) : loadK8(s, key, col);
}
uvec4 loadVecV(Slice s, uint key, uint col) {
    return HEAD_DIM_V % FRAG_N == 0 ? load8V(s, key * p.strideVSeq + col) : loadV8(s, key, col);
}

// Loads tile `index`, where kRows and vRows are, and advances these. Keys past Sk are zero: compared if the tile may
// be the last one (checkEnd), or with CHECK_KV_END. TILE_ADDRESSING 0 computes every address from the start of the
// tensor.
#define PREFETCH_KV(index, checkEnd)                                                                \
    {                                                                                               \
        const uint firstKey = (index) * KV_TILE, keys = min(p.Sk - firstKey, KV_TILE);              \
        [[unroll]] for (uint i = 0; i < K_VECS; ++i) {                                              \
            const uint at = VEC_INDEX(K_VECS, i), key = at / K_ROW_VECS, col = at % K_ROW_VECS * 8; \
            kVec[i] = (checkEnd) + CHECK_KV_END + K_RAGGED != 0 && key >= keys ? uvec4(0)           \
                : TILE_ADDRESSING != 0 ? loadVecK(kRows, KEYS_PER_SUBGROUP != 0 ? SUBGROUP_VEC(i) / K_ROW_VECS : key, col) \
                : loadVecK(sliceK(work.batch, work.kvHead, firstKey + key), 0, col);                \
        }                                                                                           \
        [[unroll]] for (uint i = 0; i < V_VECS; ++i) {                                              \
            const uint at = VEC_INDEX(V_VECS, i), key = at / V_ROW_VECS, col = work.col0 + at % V_ROW_VECS * 8; \
            vVec[i] = (checkEnd) + CHECK_KV_END + V_RAGGED != 0 && key >= keys ? uvec4(0)           \
                : TILE_ADDRESSING != 0 ? loadVecV(vRows, KEYS_PER_SUBGROUP != 0 ? SUBGROUP_VEC(i) / V_ROW_VECS : key, col) \
                : loadVecV(sliceV(work.batch, work.kvHead, firstKey + key), 0, col);                \
        }                                                                                           \
        kRows = advanceK(kRows, KV_TILE);                                                           \
        vRows = advanceV(vRows, KV_TILE);                                                           \
    }

// Masked tiles are stored without the Inf and NaN of V: P of a masked key is 0, but 0 x Inf is NaN. They are added to O
// after the KV loop (non_finite_dense.glsl).
#define KEEP_NON_FINITE(v)
#define DROP_NON_FINITE(v) if (CAUSAL != 0 && dropNonFinite(v)) atomicOr(nonFiniteSeen, 1);

#define STORE_KV(FILTER_V)                                                                          \
    {                                                                                               \
        [[unroll]] for (uint i = 0; i < K_VECS; ++i) {                                              \
            uint at = VEC_INDEX(K_VECS, i);                                                         \
            if (KV_TILE * K_ROW_VECS % LOCAL_SIZE == 0 || at < KV_TILE * K_ROW_VECS)                \
                smem[at / K_ROW_VECS * K_STRIDE + at % K_ROW_VECS] = kVec[i];                       \
        }                                                                                           \
        [[unroll]] for (uint i = 0; i < V_VECS; ++i) {                                              \
            uint at = VEC_INDEX(V_VECS, i);                                                         \
            if (KV_TILE * V_ROW_VECS % LOCAL_SIZE == 0 || at < KV_TILE * V_ROW_VECS) {              \
                FILTER_V(vVec[i])                                                                   \
                smem[V_BASE + at / V_ROW_VECS * V_STRIDE + at % V_ROW_VECS] = vVec[i];              \
            }                                                                                       \
        }                                                                                           \
    }
