// Loads of the forward kernels of 16-bit types: the Q tile, and K and V tiles on their way to shared memory.

#include "non_finite.glsl"

// -- Q tile ---------------------------------------------------------------------------------------
// Loads the Q tile. Q_REG_CHUNKS chunks become the fragments Q in registers, by way of the KV tile's shared memory,
// Q_FIT_ROWS rows per pass; the other chunks stay in shared memory at Q_BASE. Rows past the end are zero. All loads are
// issued before the first barrier, so their latencies overlap the loads of the first KV tile. flipQ flips the sign of Q
// for a negative scale, so that the largest score is the largest logit. LOAD_VEC(row, col) loads eight elements of a
// row.
#define LOAD_Q_TILE(LOAD_VEC)                                                                       \
    uvec4 qVec[Q_PASSES * Q_PASS_VECS];                                                             \
    [[unroll]] for (uint i = 0; i < Q_PASSES * Q_PASS_VECS; ++i) {                                  \
        const uint at = i % Q_PASS_VECS * LOCAL_SIZE + tid, inPass = Q_REG_CHUNKS > 0 ? at / Q_REG_VECS : Q_PASS_ROWS; \
        const uint row = i / Q_PASS_VECS * Q_PASS_ROWS + inPass, col = Q_REG_CHUNKS > 0 ? at % Q_REG_VECS : 0; \
        qVec[i] = inPass < Q_PASS_ROWS && row < WORKGROUP_ROWS && work.row0 + row < ROWS            \
            ? LOAD_VEC(row, col * 8) ^ flipQ : uvec4(0);                                            \
    }                                                                                               \
    [[unroll]] for (uint at0 = 0; at0 < WORKGROUP_ROWS * Q_SMEM_VECS; at0 += LOCAL_SIZE) {          \
        const uint at = at0 + tid, row = at / Q_SMEM_VECS, col = at % Q_SMEM_VECS;                  \
        if (row < WORKGROUP_ROWS)                                                                   \
            smem[Q_BASE + row * Q_STRIDE + col] = work.row0 + row < ROWS                            \
                ? LOAD_VEC(row, (Q_REG_VECS + col) * 8) ^ flipQ : uvec4(0);                         \
    }                                                                                               \
    if (Q_REG_CHUNKS > 0) {                                                                         \
        [[unroll]] for (uint pass = 0; pass < Q_PASSES; ++pass) {                                   \
            barrier(); /* the last pass is read */                                                  \
            [[unroll]] for (uint i = 0; i < Q_PASS_VECS; ++i) {                                     \
                const uint at = i * LOCAL_SIZE + tid, row = at / Q_REG_VECS;                        \
                if (row < Q_PASS_ROWS) smem[row * Q_REG_STRIDE + at % Q_REG_VECS] = qVec[pass * Q_PASS_VECS + i]; \
            }                                                                                       \
            barrier();                                                                              \
            [[unroll]] for (uint r = 0; r < M_FRAGS; ++r) {                                         \
                const uint row = rowInTile + r * FRAG_M, first = pass * Q_PASS_ROWS;                \
                if (row >= first && row < first + Q_PASS_ROWS) {                                    \
                    [[unroll]] for (uint i = 0; i < Q_REG_CHUNKS; ++i)                              \
                        coopMatLoad(Q[r * Q_REG_CHUNKS + i], smem, (row - first) * Q_REG_STRIDE + i * FRAG_K / 8, \
                                    Q_REG_STRIDE, gl_CooperativeMatrixLayoutRowMajor);              \
                }                                                                                   \
            }                                                                                       \
        }                                                                                           \
    }

// -- vectors of an invocation ---------------------------------------------------------------------
// Which vectors of 16 bytes of a KV tile an invocation loads, stores to shared memory and keeps in registers between
// the two. Vector `at` of a tile is key at / ROW_VECS, columns at % ROW_VECS * 8 and on. Vector i of all invocations
// is contiguous; with KEYS_PER_SUBGROUP a subgroup loads all vectors of that many consecutive keys, which may then
// share a page.

const uint K_VECS = (KV_TILE * K_ROW_VECS + LOCAL_SIZE - 1) / LOCAL_SIZE;
const uint V_VECS = (KV_TILE * V_ROW_VECS + LOCAL_SIZE - 1) / LOCAL_SIZE;
#define VEC_INDEX(vecs, i)                                                                          \
    (KEYS_PER_SUBGROUP != 0 ? (tid / SUBGROUP_SIZE * (vecs) + (i)) * SUBGROUP_SIZE + tid % SUBGROUP_SIZE : (i) * LOCAL_SIZE + tid)
#define SUBGROUP_FIRST_KEY (KEYS_PER_SUBGROUP != 0 ? tid / SUBGROUP_SIZE * KEYS_PER_SUBGROUP : 0)
#define SUBGROUP_VEC(i) ((i) * SUBGROUP_SIZE + tid % SUBGROUP_SIZE) // VEC_INDEX relative to that key

// Not 0: the last vector of some invocations is past the end of the tile.
const uint K_RAGGED = KV_TILE * K_ROW_VECS % LOCAL_SIZE;
const uint V_RAGGED = KV_TILE * V_ROW_VECS % LOCAL_SIZE;

#if GENERAL
// -- loads with options ---------------------------------------------------------------------------
// Loads of K and V in calls with options: paged KV, sparse tokens, quantized K and V. PREFETCH_K and PREFETCH_V load
// the next KV tile into kVec and vVec while this one is multiplied; STORE_K_TILE and STORE_V_TILE store it to shared
// memory. Macros over the variables of main: as functions over global arrays calls took 4.8 times as long (H200,
// docs/log/vulkan.md, 51).

// Page indices are loaded one tile before the keys of the pages, so that loading a tile takes no dependent loads: one
// index if a tile is in one page, else one per vector, shared by K and V if their vectors are of the same keys. An
// index is checked when it is used, not before: a use waits for the load.
const bool PREFETCH_PAGES = PAGE_SIZE != 0 && SPARSE_TOKENS == 0;
// Loads are unconditional, except loads of sparse tokens: a condition around more than a load becomes a branch, and
// loads wait for each other at branches (docs/log/vulkan.md, 28). Past the end the last key is loaded again, and
// STORE_V_TILE clears it.
const bool CLEAR_V_TAIL = SPARSE_TOKENS == 0;
// All keys that a subgroup loads are in one page: an invocation needs one page index and one slice. Keys past the end
// are of that page, or beyond them in it.
const uint RUN_CROSSES_PAGE = PAGE_SIZE % (KEYS_PER_SUBGROUP > 0 ? KEYS_PER_SUBGROUP : 1);
const uint SUBGROUP_PAGE = PAGE_SIZE == 0 ? 0 : SPARSE_TOKENS != 0 ? 0 : CONTIGUOUS_TILES ? 0 : KEYS_PER_SUBGROUP == 0 ? 0 : RUN_CROSSES_PAGE == 0 ? 1 : 0;
const uint K_PAGE_BASE = 0, V_PAGE_BASE = K_ROW_VECS == V_ROW_VECS ? 0 : K_VECS; // where the pages of K and of V begin
// Keys whose index or scale an invocation holds.
const uint LANE_KEYS = SPARSE_TOKENS != 0 || KEY_SCALES ? (KV_TILE + LOCAL_SIZE - 1) / LOCAL_SIZE : 1;
const uint KEY_PAGE_INDICES = SUBGROUP_PAGE != 0 ? 1 : V_PAGE_BASE + V_VECS;
const uint PAGE_INDICES = PREFETCH_PAGES && !CONTIGUOUS_TILES ? KEY_PAGE_INDICES + (KEY_SCALES ? LANE_KEYS : 0) : 1;
// Loads the page indices of a tile.
#define LOAD_PAGE_INDICES(index)                                                                    \
    {                                                                                               \
        const uint tileIndex = index;                                                               \
        [[unroll]] for (uint i = 0; i < PAGE_INDICES; ++i) {                                        \
            uint key = 0;                                                                           \
            if (!CONTIGUOUS_TILES) key = i >= KEY_PAGE_INDICES ? (i - KEY_PAGE_INDICES) * LOCAL_SIZE + tid \
                : SUBGROUP_PAGE != 0 ? SUBGROUP_FIRST_KEY : i < K_VECS ? VEC_INDEX(K_VECS, i) / K_ROW_VECS : VEC_INDEX(V_VECS, i - V_PAGE_BASE) / V_ROW_VECS; \
            page[i] = loadPageIndex(min(tileIndex * KV_TILE + key, work.seqlenK - 1));              \
        }                                                                                           \
    }

// Eight elements of the key in slot `at` of the KV loop, quantized ones as stored.
#define LOAD_KEY_VEC(T)                                                                             \
    uvec4 loadKeyVec##T(uint page, uint at, uint col) {                                             \
        if (PREFETCH_PAGES) return stored##T##8(rows##T(kvRowInPage(page, min(at, work.seqlenK - 1))), 0, col); \
        const uint token = keyAt(at);                                                               \
        return token == NO_KEY ? uvec4(0) : stored##T##8(rows##T(kvRowOf(token)), 0, col);          \
    }
LOAD_KEY_VEC(K)
LOAD_KEY_VEC(V)

// Scales of K and V of a key; anything finite past the end.
vec2 loadKeyScales(uint page, uint index, uint key) {
    uint at = index * KV_TILE + key;
    if (key >= KV_TILE) return vec2(0.0);
    at = SPARSE_TOKENS != 0 ? keyAt(at) : min(at, work.seqlenK - 1);
    if (at == NO_KEY) return vec2(0.0);
    const KVRow row = PREFETCH_PAGES ? kvRowInPage(page, at) : kvRowOf(at);
    return vec2(rowScaleK(row), rowScaleV(row));
}

// Loads the invocation's vectors of tile tileIndex. If its keys are contiguous, all are in one slice that begins at the
// tile or at the subgroup's first key; else every vector has its own row. `column` is the column of vector `at`.
#define PREFETCH_VECS(T, vecs, column)                                                              \
    Slice rows_;                                                                                    \
    uint lastKey = 0; /* of the slice; a page may end where the tile ends */                        \
    if (SUBGROUP_PAGE != 0) rows_ = rows##T(kvRowInPage(page[0], tileIndex * KV_TILE + SUBGROUP_FIRST_KEY)); \
    else if (CONTIGUOUS_TILES) {                                                                    \
        const uint firstKey = KEYS_PER_SUBGROUP != 0 ? min(tileIndex * KV_TILE + SUBGROUP_FIRST_KEY, work.seqlenK - 1) : tileIndex * KV_TILE; \
        rows_ = rows##T(PREFETCH_PAGES ? kvRowInPage(page[0], firstKey) : kvRowOf(firstKey));       \
        lastKey = min((tileIndex + 1) * KV_TILE, work.seqlenK) - 1 - firstKey;                      \
    }                                                                                               \
    [[unroll]] for (uint i = 0; i < T##_VECS; ++i) {                                                \
        const uint at = VEC_INDEX(T##_VECS, i), pageSlot = PAGE_INDICES > 1 && SUBGROUP_PAGE == 0 ? T##_PAGE_BASE + i : 0; \
        const uint key = KEYS_PER_SUBGROUP != 0 ? SUBGROUP_VEC(i) / T##_ROW_VECS : at / T##_ROW_VECS; /* of the slice */ \
        if (SUBGROUP_PAGE != 0) vecs[i] = stored##T##8(rows_, key, column);                         \
        else if (CONTIGUOUS_TILES) vecs[i] = stored##T##8(rows_, min(key, lastKey), column);        \
        else vecs[i] = loadKeyVec##T(page[pageSlot], tileIndex * KV_TILE + at / T##_ROW_VECS, column); \
    }
#define PREFETCH_K(index)                                                                           \
    {                                                                                               \
        const uint tileIndex = index;                                                               \
        PREFETCH_VECS(K, kVec, at % K_ROW_VECS * 8)                                                 \
        if (SPARSE_TOKENS != 0) {                                                                   \
            [[unroll]] for (uint i = 0; i < LANE_KEYS; ++i)                                         \
                laneKey[i] = keyAt(tileIndex * KV_TILE + i * LOCAL_SIZE + tid);                     \
        }                                                                                           \
        if (KEY_SCALES) {                                                                           \
            [[unroll]] for (uint i = 0; i < LANE_KEYS; ++i)                                         \
                laneScale[i] = loadKeyScales(page[PAGE_INDICES > 1 ? KEY_PAGE_INDICES + i : 0], tileIndex, i * LOCAL_SIZE + tid); \
        }                                                                                           \
    }
#define PREFETCH_V(index)                                                                           \
    {                                                                                               \
        const uint tileIndex = index;                                                               \
        PREFETCH_VECS(V, vVec, work.col0 + at % V_ROW_VECS * 8)                                     \
    }

// Dequantizes and stores the tile. Masked tiles are stored without the Inf and NaN of V: P of a masked key is 0, but
// 0 x Inf is NaN. They are added to O after the KV loop (non_finite.glsl).
#define STORE_K_TILE                                                                                \
    {                                                                                               \
        [[unroll]] for (uint i = 0; i < K_VECS; ++i) {                                              \
            const uint at = VEC_INDEX(K_VECS, i);                                                   \
            if (IS_REST(K_TYPE, at % K_ROW_VECS * 8)) kVec[i] = rest16(kVec[i]);                    \
            else if (K_TYPE != 0) kVec[i] = PAIRED_COLUMNS ? storedPairs(K_TYPE, kVec[i]) : inOrder(storedPairs(K_TYPE, kVec[i])); \
            if (KV_TILE * K_ROW_VECS % LOCAL_SIZE == 0 || at < KV_TILE * K_ROW_VECS)                \
                smem[at / K_ROW_VECS * K_STRIDE + at % K_ROW_VECS] = kVec[i];                       \
        }                                                                                           \
    }
#define STORE_TILE_KEYS                                                                             \
    {                                                                                               \
        [[unroll]] for (uint i = 0; i < LANE_KEYS; ++i)                                             \
            if (i * LOCAL_SIZE + tid < KV_TILE) tileKeys[i * LOCAL_SIZE + tid] = laneKey[i];        \
    }
#define STORE_KV_SCALES                                                                             \
    if (KEY_SCALES) {                                                                               \
        [[unroll]] for (uint i = 0; i < LANE_KEYS; ++i) {                                           \
            const uint key = i * LOCAL_SIZE + tid;                                                  \
            if (key < KV_TILE && storeScales(key, laneScale[i])) atomicOr(nonFiniteSeen, 1);        \
        }                                                                                           \
    }
const bool V_TILE_MAY_BE_NON_FINITE = IN(SCALED & ~(1 << FLOAT8), V_TYPE) == 0; // NaN of float8 is in the tile, see exactPairsOrNaN
#define STORE_V_TILE(masked)                                                                        \
    {                                                                                               \
        [[unroll]] for (uint i = 0; i < V_VECS; ++i) {                                              \
            const uint at = VEC_INDEX(V_VECS, i);                                                   \
            if (V_TYPE == FLOAT8_E5M2 && dropsNonFiniteBytes(vVec[i])) atomicOr(nonFiniteSeen, 1);  \
            if (V_TYPE != 0) vVec[i] = inOrder(storedPairs(V_TYPE, vVec[i]));                       \
            if (masked != 0 && CLEAR_V_TAIL && CURRENT_TILE * KV_TILE + at / V_ROW_VECS >= work.seqlenK) vVec[i] = uvec4(0); \
            if (masked != 0 && ROW_MASKS && V_TILE_MAY_BE_NON_FINITE && dropNonFinite(vVec[i])) atomicOr(nonFiniteSeen, 1); \
            if (KV_TILE * V_ROW_VECS % LOCAL_SIZE == 0 || at < KV_TILE * V_ROW_VECS)                \
                smem[V_BASE + at / V_ROW_VECS * V_STRIDE + at % V_ROW_VECS] = vVec[i];              \
        }                                                                                           \
    }
#else
// -- dense loads ----------------------------------------------------------------------------------
// Loads of Q, K and V in calls without options. PREFETCH_KV loads the next KV tile into kVec and vVec while this one is
// multiplied; STORE_KV stores it to shared memory, between two workgroup barriers. Macros over the variables of main:
// as functions over global arrays calls took 1.5 times as long (H200, docs/log/vulkan.md, 51).

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
// after the KV loop (non_finite.glsl).
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
#endif
