// Loads of K and V into shared memory as pairs of float16 (f32_pairs.glsl), like those of f32_load.glsl. Every key of the
// tiles exists. With PAIR_TILE 0 the code is dead, but its arrays need a length.

const uint PAIR_K_VECS = PAIR_TILE > 0 ? (PAIR_TILE * K_ROW_VECS + LOCAL_SIZE - 1) / LOCAL_SIZE : 1;
const uint PAIR_V_VECS = PAIR_TILE > 0 ? (PAIR_TILE * V_ROW_VECS + LOCAL_SIZE - 1) / LOCAL_SIZE : 1;
const bool PAIR_K_RAGGED = PAIR_TILE * K_ROW_VECS % LOCAL_SIZE != 0, PAIR_V_RAGGED = PAIR_TILE * V_ROW_VECS % LOCAL_SIZE != 0;

#define PREFETCH_PAIRS                                                                              \
    {                                                                                               \
        [[unroll]] for (uint i = 0; i < PAIR_K_VECS; ++i) {                                         \
            const uint at = i * LOCAL_SIZE + tid, key = at / K_ROW_VECS, col = at % K_ROW_VECS * 8; \
            const bool past = PAIR_K_RAGGED && key >= PAIR_TILE;                                    \
            kPair[2 * i] = past ? uvec4(0) : loadVecK(kRows, key, col);                             \
            kPair[2 * i + 1] = past ? uvec4(0) : loadVecK(kRows, key, col + 4);                     \
        }                                                                                           \
        [[unroll]] for (uint i = 0; i < PAIR_V_VECS; ++i) {                                         \
            const uint at = i * LOCAL_SIZE + tid, key = at / V_ROW_VECS, col = work.col0 + at % V_ROW_VECS * 8; \
            const bool past = PAIR_V_RAGGED && key >= PAIR_TILE;                                    \
            vPair[2 * i] = past ? uvec4(0) : loadVecV(vRows, key, col);                             \
            vPair[2 * i + 1] = past ? uvec4(0) : loadVecV(vRows, key, col + 4);                     \
        }                                                                                           \
        kRows = advanceK(kRows, PAIR_TILE);                                                         \
        vRows = advanceV(vRows, PAIR_TILE);                                                         \
    }

// Splits the vectors in place, and marks a tile that is out of range.
#define SPLIT_PAIRS                                                                                 \
    {                                                                                               \
        bool inRange = true;                                                                        \
        [[unroll]] for (uint i = 0; i < PAIR_K_VECS; ++i)                                           \
            inRange = atMost(splitPairs(kPair[2 * i], kPair[2 * i + 1]), limitQK) && inRange;       \
        [[unroll]] for (uint i = 0; i < PAIR_V_VECS; ++i)                                           \
            inRange = inRangeV(splitPairs(vPair[2 * i], vPair[2 * i + 1])) && inRange;              \
        if (!inRange) outOfRange = 1;                                                               \
    }

#define STORE_PAIRS                                                                                 \
    {                                                                                               \
        [[unroll]] for (uint i = 0; i < PAIR_K_VECS; ++i) {                                         \
            const uint at = i * LOCAL_SIZE + tid, to = at / K_ROW_VECS * PAIR_K_STRIDE + at % K_ROW_VECS; \
            if (!PAIR_K_RAGGED || at < PAIR_TILE * K_ROW_VECS) {                                    \
                smem[to] = kPair[2 * i];                                                            \
                smem[to + K_ROW_VECS] = kPair[2 * i + 1];                                           \
            }                                                                                       \
        }                                                                                           \
        [[unroll]] for (uint i = 0; i < PAIR_V_VECS; ++i) {                                         \
            const uint at = i * LOCAL_SIZE + tid, to = PAIR_V_BASE + at / V_ROW_VECS * PAIR_V_STRIDE + at % V_ROW_VECS; \
            if (!PAIR_V_RAGGED || at < PAIR_TILE * V_ROW_VECS) {                                    \
                smem[to] = vPair[2 * i];                                                            \
                smem[to + V_ROW_VECS] = vPair[2 * i + 1];                                           \
            }                                                                                       \
        }                                                                                           \
    }
