// The KV tiles of the dQ kernel on their way to shared memory.

uint kvBatch() { return (VARLEN & CU_K) != 0 ? 0 : work.batch; }

const uint K_VECS = (KV_TILE * K_ROW_VECS + LOCAL_SIZE - 1) / LOCAL_SIZE;
const uint V_VECS = (KV_TILE * V_ROW_VECS + LOCAL_SIZE - 1) / LOCAL_SIZE;

// Eight elements of a row. If rows fill their fragments no column is compared.
uvec4 loadVecK(Slice s, uint key, uint col) {
    return HEAD_DIM % FRAG_K == 0 ? load8K(s, key * p.strideKSeq + col) : loadK8(s, key, col);
}
uvec4 loadVecV(Slice s, uint key, uint col) {
    return HEAD_DIM_V % FRAG_K == 0 ? load8V(s, key * p.strideVSeq + col) : loadV8(s, key, col);
}

// Loads a KV tile. Keys past the end, which are masked, have the elements of the last key.
#define PREFETCH_KEYS(tile)                                                                         \
    {                                                                                               \
        const uint firstKey_ = (tile) * KV_TILE, lastKey_ = work.seqlenK - 1 - firstKey_;           \
        const Slice kRows = advanceK(kHead, firstKey_), vRows = advanceV(vHead, firstKey_);         \
        [[unroll]] for (uint i = 0; i < K_VECS; ++i) {                                              \
            const uint at = i * LOCAL_SIZE + tid;                                                   \
            kVec[i] = loadVecK(kRows, min(at / K_ROW_VECS, lastKey_), at % K_ROW_VECS * 8);         \
        }                                                                                           \
        [[unroll]] for (uint i = 0; i < V_VECS; ++i) {                                              \
            const uint at = i * LOCAL_SIZE + tid;                                                   \
            vVec[i] = loadVecV(vRows, min(at / V_ROW_VECS, lastKey_), at % V_ROW_VECS * 8);         \
        }                                                                                           \
    }

// Stores the tile, and notes Inf and NaN in K of a masked one; of V nothing but dP depends, which is selected.
#define STORE_KEYS(masked)                                                                          \
    {                                                                                               \
        [[unroll]] for (uint i = 0; i < K_VECS; ++i) {                                              \
            const uint at = i * LOCAL_SIZE + tid;                                                   \
            if (masked != 0) NOTE_NON_FINITE(kVec[i])                                               \
            if (KV_TILE * K_ROW_VECS % LOCAL_SIZE == 0 || at < KV_TILE * K_ROW_VECS)                \
                smem[at / K_ROW_VECS * K_STRIDE + at % K_ROW_VECS] = kVec[i];                       \
        }                                                                                           \
        [[unroll]] for (uint i = 0; i < V_VECS; ++i) {                                              \
            const uint at = i * LOCAL_SIZE + tid;                                                   \
            if (KV_TILE * V_ROW_VECS % LOCAL_SIZE == 0 || at < KV_TILE * V_ROW_VECS)                \
                smem[V_BASE + at / V_ROW_VECS * V_STRIDE + at % V_ROW_VECS] = vVec[i];              \
        }                                                                                           \
    }
