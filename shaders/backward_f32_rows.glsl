// Keys of a subgroup and row tiles of the backward kernels of float32 on their way to registers and shared memory, and
// P of a row tile.

// -- keys of a subgroup ---------------------------------------------------------------------------
// Loads the keys of the subgroup as terms, K or V. Fragment by fragment, the terms of OWN_REG_CHUNKS chunks pass
// through the subgroup's scratch into registers; those of the other chunks stay in shared memory at OWN_BASE. Keys past
// the end are zero.
#define LOAD_OWN_KEYS                                                                               \
    {                                                                                               \
        const Slice kRows = sliceK(kvBatch(), work.kvHead, work.offsetK + keyBase), vRows = sliceV(kvBatch(), work.kvHead, work.offsetK + keyBase); \
        uvec4 ownVec[2 * M_FRAGS * CHUNKS * LANE_VECS]; /* all loads are issued before the first wait */ \
        [[unroll]] for (uint n = 0; n < M_FRAGS * CHUNKS * LANE_VECS; ++n) {                        \
            const uint group = n % LANE_VECS * SUBGROUP_SIZE + gl_SubgroupInvocationID, f = n / LANE_VECS; \
            const uint key = f / CHUNKS * FRAG_M + group / CHUNK_VECS, col = (f % CHUNKS * CHUNK_VECS + group % CHUNK_VECS) * 8; \
            ownVec[2 * n] = ownVec[2 * n + 1] = uvec4(0);                                           \
            if (group < FRAG_VECS && keyBase + key < work.seqlenK) {                                \
                if (isSecond()) {                                                                   \
                    ownVec[2 * n] = load4V(vRows, key * p.strideVSeq + col, elementsFromV(col));    \
                    ownVec[2 * n + 1] = load4V(vRows, key * p.strideVSeq + col + 4, elementsFromV(col + 4)); \
                } else {                                                                            \
                    ownVec[2 * n] = load4K(kRows, key * p.strideKSeq + col, elementsFromK(col));    \
                    ownVec[2 * n + 1] = load4K(kRows, key * p.strideKSeq + col + 4, elementsFromK(col + 4)); \
                }                                                                                   \
            }                                                                                       \
        }                                                                                           \
        [[unroll]] for (uint f = 0; f < M_FRAGS * CHUNKS; ++f) {                                    \
            const uint r = f / CHUNKS, chunk = f % CHUNKS;                                          \
            const bool inRegisters = chunk < OWN_REG_CHUNKS;                                        \
            const uint stride = inRegisters ? TERMS_STRIDE : OWN_STRIDE, rowVecs = inRegisters ? CHUNK_VECS : OWN_VECS; \
            const uint base = inRegisters ? subgroupScratch() : OWN_BASE + (gl_SubgroupID * SUBGROUP_KEYS + r * FRAG_M) * OWN_STRIDE + (chunk - OWN_REG_CHUNKS) * CHUNK_VECS; \
            subgroupSync(); /* the last fragment is read */                                         \
            [[unroll]] for (uint s = 0; s < LANE_VECS; ++s) {                                       \
                const uint n = f * LANE_VECS + s, group = s * SUBGROUP_SIZE + gl_SubgroupInvocationID; \
                uvec4 hi, mid, lo;                                                                  \
                splitTerms(ownVec[2 * n], ownVec[2 * n + 1], hi, mid, lo);                          \
                if (group < FRAG_VECS) storeTerms(base + group / CHUNK_VECS * stride + group % CHUNK_VECS, rowVecs, hi, mid, lo); \
            }                                                                                       \
            subgroupSync();                                                                         \
            if (inRegisters) {                                                                      \
                [[unroll]] for (uint term = 0; term < TERMS; ++term)                                \
                    coopMatLoad(own[OWN_REG_CHUNKS > 0 ? (term * M_FRAGS + r) * OWN_REG_CHUNKS + chunk : 0], smem, \
                                subgroupScratch() + term * CHUNK_VECS, TERMS_STRIDE, ROW_MAJOR);    \
            }                                                                                       \
        }                                                                                           \
    }

// -- row tiles ------------------------------------------------------------------------------------
// A row tile of Q and dO of float32 on its way to shared memory, and the statistics of its rows. PREFETCH_ROWS loads the next
// tile into tileVec while this one is multiplied, SPLIT_ROWS replaces the vectors by their terms in front of the workgroup
// barrier, where subgroups wait for each other anyway, and STORE_ROWS stores these behind it.

const uint TENSOR_VECS = ROW_TILE * ROW_VECS; // vectors of eight elements of a tile of one tensor
const uint TILE_VECS = (2 * TENSOR_VECS + LOCAL_SIZE - 1) / LOCAL_SIZE;
const uint TILE_RAGGED = 2 * TENSOR_VECS % LOCAL_SIZE; // not 0: the last vector of some invocations is past the end of the tile

// Four elements of a row. If rows fill their fragments no column is compared.
uvec4 loadVecQ(Slice s, uint row, uint col) {
    const uint element = rowElement(row, p.strideQHead, p.strideQSeq) + col;
    return load4Q(s, element, HEAD_DIM == CHUNKS * FRAG_K ? 4 : elementsFromQ(col));
}
uvec4 loadVecDO(Slice s, uint row, uint col) {
    const uint element = rowElement(row, p.strideDOHead, p.strideDOSeq) + col;
    return load4DO(s, element, HEAD_DIM_V == CHUNKS * FRAG_K ? 4 : elementsFromDO(col));
}

// Loads a row tile. Rows past the end are 0, with an LSE of +Inf, so that their P is 0.
// The statistics are -LSE, the negated rest of LSE in log2 units, and dLSE - delta (backward_interface.glsl).
#define PREFETCH_ROWS(tile)                                                                         \
    {                                                                                               \
        work.row0 = (tile) * ROW_TILE;                                                              \
        const Slice qRows = advanceQ(qHead, queryOf(work.row0)), doRows = advanceDO(doHead, queryOf(work.row0)); \
        [[unroll]] for (uint i = 0; i < TILE_VECS; ++i) {                                           \
            const uint at = i * LOCAL_SIZE + tid;                                                   \
            const uint row = work.row0 + at % TENSOR_VECS / ROW_VECS, col = at % ROW_VECS * 8;      \
            const bool there = row < work.rows && (TILE_RAGGED == 0 || at < 2 * TENSOR_VECS);       \
            tileVec[3 * i] = tileVec[3 * i + 1] = uvec4(0);                                         \
            if (there && at < TENSOR_VECS) {                                                        \
                tileVec[3 * i] = loadVecQ(qRows, row, col);                                         \
                tileVec[3 * i + 1] = loadVecQ(qRows, row, col + 4);                                 \
            } else if (there) {                                                                     \
                tileVec[3 * i] = loadVecDO(doRows, row, col);                                       \
                tileVec[3 * i + 1] = loadVecDO(doRows, row, col + 4);                               \
            }                                                                                       \
        }                                                                                           \
        vec2 two = vec2(INFINITY, 0.0), more = vec2(0.0);                                           \
        if (tid < ROW_TILE && work.row0 + tid < work.rows) {                                        \
            const uint index = rowIndex(work.row0 + tid);                                           \
            two = loadStatsAt(index);                                                               \
            more = loadMoreAt(index);                                                               \
        }                                                                                           \
        statVec[0] = -two.x;                                                                        \
        statVec[1] = -LOG2E * more.x;                                                               \
        statVec[2] = more.y - two.y;                                                                \
    }

// Notes Inf and NaN of a masked tile in seen.
#define SPLIT_ROWS(masked)                                                                          \
    [[unroll]] for (uint i = 0; i < TILE_VECS; ++i) {                                               \
        if (masked != 0) {                                                                          \
            const uvec4 low = tileVec[3 * i], high = tileVec[3 * i + 1];                            \
            if (onlyFinite(low, 0.0) != low || onlyFinite(high, 0.0) != high) atomicOr(seen, SEEN_NON_FINITE); \
        }                                                                                           \
        splitTerms(tileVec[3 * i], tileVec[3 * i + 1], tileVec[3 * i], tileVec[3 * i + 1], tileVec[3 * i + 2]); \
    }

#define STORE_ROWS                                                                                  \
    {                                                                                               \
        [[unroll]] for (uint i = 0; i < TILE_VECS; ++i) {                                           \
            const uint at = i * LOCAL_SIZE + tid;                                                   \
            if (TILE_RAGGED == 0 || at < 2 * TENSOR_VECS)                                           \
                storeTerms(at / ROW_VECS * STRIDE + at % ROW_VECS, ROW_VECS, tileVec[3 * i], tileVec[3 * i + 1], tileVec[3 * i + 2]); \
        }                                                                                           \
        if (tid < ROW_TILE) {                                                                       \
            [[unroll]] for (uint i = 0; i < 3; ++i)                                                 \
                smem[STATS_BASE + (i * ROW_TILE + tid) / 4][tid % 4] = floatBitsToUint(statVec[i]); \
        }                                                                                           \
    }
#define STAT_AT(which, c) (STATS_BASE + ((which) * ROW_TILE + (c) * FRAG_N) / 4)

#ifdef TERMS_BF16
const uint TERM_EXPONENT = 0x7f80u; // of a term that is Inf or NaN
#else
const uint TERM_EXPONENT = 0x7c00u;
#endif

// Inf and NaN of both tiles in shared memory become 0, for the last products. Their last term is not finite. All invocations
// call it, behind the products that need them.
void dropNonFiniteTerms() {
    [[dont_unroll]] for (uint n = gl_LocalInvocationIndex; n < 2 * TENSOR_VECS; n += LOCAL_SIZE) {
        const uint at = n / ROW_VECS * STRIDE + n % ROW_VECS;
        const uvec4 last = smem[at + LO * ROW_VECS];
        uvec4 keep = uvec4(0xffffffffu);
        [[unroll]] for (uint i = 0; i < 4; ++i) {
            if ((last[i] & TERM_EXPONENT) == TERM_EXPONENT) keep[i] &= 0xffff0000u;
            if ((last[i] >> 16 & TERM_EXPONENT) == TERM_EXPONENT) keep[i] &= 0xffffu;
        }
        if (keep != uvec4(0xffffffffu)) {
            [[unroll]] for (uint term = 0; term < TERMS; ++term) smem[at + term * ROW_VECS] &= keep;
        }
    }
}

// -- P --------------------------------------------------------------------------------------------
// P from S, and the exchange of a pair: the first subgroup computes P and leaves it in shared memory, behind a workgroup barrier
// the second one loads it. Macros over the fragments of backward_f32_fragments.glsl.
//
// The exponent stays a natural one until LSE is subtracted: fma takes the exact product with the scale, so where one key takes
// all of P the exponent is off by the rounding of LSE alone, and the rest of LSE (backward_interface.glsl) corrects that.

float maskedP(const in uint32_t i, const in uint32_t j, const in float x, const in uint firstKey, const in uint firstRow) {
    return attends(firstRow + j, firstKey + i) ? x : 0.0;
}

// X = P of the row tile at row0, for the keys from keyBase on.
#define COMPUTE_P(MASK_TILE, keyBase, row0)                                                         \
    [[unroll]] for (uint f = 0; f < M_FRAGS * ROW_FRAGS; ++f) {                                     \
        FragC negLSE, negRest;                                                                      \
        coopMatLoad(negLSE, smem, STAT_AT(0, f % ROW_FRAGS), 0, ROW_MAJOR);                         \
        coopMatLoad(negRest, smem, STAT_AT(1, f % ROW_FRAGS), 0, ROW_MAJOR);                        \
        [[unroll]] for (uint e = 0; e < X[f].length(); ++e)                                         \
            X[f][e] = exp2(fma(fma(X[f][e], p.scoreScale, negLSE[e]), LOG2E, negRest[e]));          \
        if (MASK_TILE) PER_ELEMENT(X[f], maskedP, (keyBase) + f / ROW_FRAGS * FRAG_M, (row0) + f % ROW_FRAGS * FRAG_N) \
        STORE_ELEMENTS(X[f], exchangeAt(f))                                                         \
    }
