#version 460
// P and dS of float32 above head dim 128 on cooperative matrices (tiers coopmat and coopmat2), for a chunk of heads, to scratch memory
// (backward_scratch.glsl); backward_coopmat_f32_product.comp computes dV, dK and dQ from there. One kernel of all would need registers
// for a gradient and for the terms of K or V, which a driver's compiler then keeps in memory (docs/log/backward.md, 20).
//
// A workgroup owns a tile of KV_TILE keys by ROW_TILE rows; rows are the queries of all heads of the group, packed. Subgroups divide it
// in both directions. S and dP are transposed, keys by rows, and each product is six products of terms of 16 bits (f32_terms.glsl):
//
//   S = K Q^T     P = exp(score - LSE)     dP = V dO^T     dS = P (dP - delta)
//
//   registers      a subgroup's part of S, then of dP; this invocation's vectors of the next chunks
//   shared memory  the terms of Q_SMEM_CHUNKS chunks of columns of K and Q, or of V and dO; statistics of the rows
//   barriers       two per Q_SMEM_CHUNKS chunks
//
// Without STORE_DS it is the kernel of exact row statistics, as backward_coopmat_f32_lse.comp is for other head dims: a workgroup
// owns rows, returns at once if none has a large LSE, loops over the keys, and adds up P and P dP.
#define READ_ONLY readonly // the statistics are read and written
#extension GL_GOOGLE_include_directive : require
#define CONSTANTS_FORWARD
#define CONSTANTS_BACKWARD_COOPMAT
#define CONSTANTS_DROPOUT
#define CONSTANTS_F32
#include "constants_coopmat.glsl"
#define CHUNK_OF_HEADS STORE_DS
#define SCRATCH_VECS 4
uvec3 workgroupID = gl_WorkGroupID;
#define WORKGROUP_ID workgroupID
#include "backward_interface.glsl"
#include "fragments.glsl"
#include "f32_terms.glsl"

const uint SUBGROUPS = LOCAL_SIZE / SUBGROUP_SIZE;
const uint SUBGROUP_KEYS = M_FRAGS * FRAG_M, KEY_GROUPS = KV_TILE / SUBGROUP_KEYS;
const uint SUBGROUP_ROWS = ROW_TILE * KEY_GROUPS / SUBGROUPS, ROW_FRAGS = SUBGROUP_ROWS / FRAG_N;
const uint QK_CHUNKS = (HEAD_DIM + FRAG_K - 1) / FRAG_K, V_CHUNKS = (HEAD_DIM_V + FRAG_K - 1) / FRAG_K;

// Shared memory, in vectors of 16 bytes, eight terms each: keys, then rows. The three terms of a row follow each other. Strides are odd:
// rows start in different banks. Behind the loop, sums and scratch overlay it.
const uint CHUNK_VECS = FRAG_K / 8;
const uint ROW_VECS = Q_SMEM_CHUNKS * CHUNK_VECS; // of one term
const uint STRIDE = (TERMS * ROW_VECS) | 1;
const uint TERMS_STRIDE = 0; // not used
const uint TILE = KV_TILE + ROW_TILE, STATS_BASE = TILE * STRIDE, LOOP_SIZE = STATS_BASE + 3 * ROW_TILE / 4;
const uint SCRATCH_BASE = 0, SUMS_BASE = SUBGROUPS * FRAG_M * ((FRAG_N / 4) | 1);
const uint SUMS_END = SUMS_BASE + 2 * KEY_GROUPS * ROW_TILE / 4;
const uint PLACES_BASE = STORE_DS == 0 && SUMS_END > LOOP_SIZE ? SUMS_END : LOOP_SIZE;
shared uvec4 smem[PLACES_BASE + PLACES_SIZE];

#include "backward_f32_fragments.glsl"
#include "backward_scratch.glsl"
#include "f32_products.glsl"

FragC X[M_FRAGS * ROW_FRAGS]; // keys by rows: S, then P; or dP, then dS

// -- tiles of operands ----------------------------------------------------------------------------
// This invocation's vectors of eight elements. Eight neighbours have the same columns of eight rows, which they store to different banks,
// and the next eight the next columns: all lanes together load whole sectors of 16 rows or fewer. So a vector is four columns and
// the four that follow ROW_VECS vectors of four later. That permutes the columns of the chunks, of both operands alike.
const uint TILE_VECS = (TILE * ROW_VECS + LOCAL_SIZE - 1) / LOCAL_SIZE;
const uint KEY_VECS = KV_TILE * ROW_VECS;
uvec4 tileVec[3 * TILE_VECS];
#define ROW_OF(at) ((at) / (8 * ROW_VECS) * 8 + (at) % 8)
#define VEC_OF(at) ((at) / 8 % ROW_VECS)

#define COLUMNS(T, dim, col) (dim % (Q_SMEM_CHUNKS * FRAG_K) == 0 ? 4 : elementsFrom##T(col))
// Chunks `chunk` and on of KEYS (K or V) and ROWS (Q or DO). Keys and rows past the end are zero.
#define PREFETCH(KEYS, ROWS, dim, keySlice, rowSlice, chunk)                                        \
    [[unroll]] for (uint i = 0; i < TILE_VECS; ++i) {                                               \
        const uint at = i * LOCAL_SIZE + tid, n = ROW_OF(at), low = (chunk) * FRAG_K + VEC_OF(at) * 4, high = low + ROW_VECS * 4; \
        const bool ofKeys = KEY_VECS % LOCAL_SIZE == 0 ? i < KEY_VECS / LOCAL_SIZE : n < KV_TILE; /* known if it can be */ \
        tileVec[3 * i] = tileVec[3 * i + 1] = uvec4(0);                                             \
        if (TILE * ROW_VECS % LOCAL_SIZE != 0 && at >= TILE * ROW_VECS) {                           \
        } else if (ofKeys) {                                                                        \
            const uint element = n * p.stride##KEYS##Seq;                                           \
            if (firstKey + n < work.seqlenK) {                                                      \
                tileVec[3 * i] = load4##KEYS(keySlice, element + low, COLUMNS(KEYS, dim, low));     \
                tileVec[3 * i + 1] = load4##KEYS(keySlice, element + high, COLUMNS(KEYS, dim, high)); \
            }                                                                                       \
        } else if (row0 + n - KV_TILE < work.rows) {                                                \
            const uint element = rowElement(row0 + n - KV_TILE, p.stride##ROWS##Head, p.stride##ROWS##Seq); \
            tileVec[3 * i] = load4##ROWS(rowSlice, element + low, COLUMNS(ROWS, dim, low));         \
            tileVec[3 * i + 1] = load4##ROWS(rowSlice, element + high, COLUMNS(ROWS, dim, high));   \
        }                                                                                           \
    }

void storeTile() {
    [[unroll]] for (uint i = 0; i < TILE_VECS; ++i) {
        const uint at = i * LOCAL_SIZE + gl_LocalInvocationIndex;
        if (TILE * ROW_VECS % LOCAL_SIZE == 0 || at < TILE * ROW_VECS)
            storeTerms(ROW_OF(at) * STRIDE + VEC_OF(at), ROW_VECS, tileVec[3 * i], tileVec[3 * i + 1], tileVec[3 * i + 2]);
    }
}

// -- products -------------------------------------------------------------------------------------
#define LIVE_ROWS(g) (c + (g) < ROW_FRAGS)
#define KEY_TERM(term, g, r) keys[(term) * M_FRAGS + r]
#define LOAD_ROWS(term, g)                                                                          \
    coopMatLoad(b[g], smem, rowStart + (c + (g)) * FRAG_N * STRIDE + (term) * ROW_VECS + k * CHUNK_VECS, STRIDE, COLUMN_MAJOR);
// X += keys rows^T of the chunks in shared memory.
void multiplyTile(uint keyStart, uint rowStart) {
    [[unroll]] for (uint k = 0; k < Q_SMEM_CHUNKS; ++k) {
        FENCE
        FragA keys[TERMS * M_FRAGS];
        [[unroll]] for (uint n = 0; n < TERMS * M_FRAGS; ++n)
            coopMatLoad(keys[n], smem, keyStart + n % M_FRAGS * FRAG_M * STRIDE + n / M_FRAGS * ROW_VECS + k * CHUNK_VECS, STRIDE, ROW_MAJOR);
        [[unroll]] for (uint c = 0; c < ROW_FRAGS; c += GROUP) {
            SIX_PRODUCTS(LIVE_ROWS, KEY_TERM, LOAD_ROWS)
            [[unroll]] for (uint g = 0; g < GROUP; ++g)
                [[unroll]] for (uint r = 0; r < M_FRAGS; ++r)
                    if (LIVE_ROWS(g)) X[r * ROW_FRAGS + (LIVE_ROWS(g) ? c + g : 0)] += sum[g * M_FRAGS + r];
        }
    }
}

// X = KEYS ROWS^T. Their first chunks are in tileVec.
#define MULTIPLY(KEYS, ROWS, dim, chunks, keySlice, rowSlice)                                               \
    [[unroll]] for (uint f = 0; f < M_FRAGS * ROW_FRAGS; ++f) X[f] = FragC(0.0);                    \
    [[dont_unroll]] for (uint chunk = 0; chunk < chunks; chunk += Q_SMEM_CHUNKS) {                  \
        [[unroll]] for (uint i = 0; i < TILE_VECS; ++i)                                             \
            splitTerms(tileVec[3 * i], tileVec[3 * i + 1], tileVec[3 * i], tileVec[3 * i + 1], tileVec[3 * i + 2]); \
        barrier(); /* all subgroups have finished the last chunks */                                \
        storeTile();                                                                                \
        barrier(); /* these are complete */                                                         \
        /* behind the last chunks they are loaded again: no branch to meet again */                 \
        PREFETCH(KEYS, ROWS, dim, keySlice, rowSlice, min(chunk + Q_SMEM_CHUNKS, (chunks - 1) / Q_SMEM_CHUNKS * Q_SMEM_CHUNKS)) \
        multiplyTile(subgroupKey * STRIDE, (KV_TILE + subgroupRow) * STRIDE);                       \
    }

// -- P and dS -------------------------------------------------------------------------------------
// Statistic `which` of the rows of fragments c: -LSE, the negated rest of LSE in log2 units, dLSE - delta.
#define LOAD_STAT(x, which, c)                                                                      \
    coopMatLoad(x, smem, STATS_BASE + ((which) * ROW_TILE + subgroupRow + (c) * FRAG_N) / 4, 0, ROW_MAJOR);

float maskedP(const in uint32_t i, const in uint32_t j, const in float x, const in uint firstKey, const in uint firstRow) {
    return attends(firstRow + j, firstKey + i) ? x : 0.0;
}

// Vectors of a fragment in scratch memory: dS, and P at half 2. The invocation that stores P loads it, not through a block that is
// read-only: that load could come from a cache that does not see the store.
#if BDA
uvec4 reloadScratchVec(uvec2 start, uint at) { return WriteQuads(add64(start, uvec2(at << 4, at >> 28))).at[0]; }
#else
uvec4 reloadScratchVec(uvec2 start, uint at) { return scratchQuads[start.x + at]; }
#endif
#define X_VEC(f, half_) dsVec((keyBase - CHUNK_FIRST_KEY) / FRAG_M + (f) / ROW_FRAGS, rowBase / FRAG_N + (f) % ROW_FRAGS, half_)
#define STORE_X(x, f, half_)                                                                        \
    if (rowBase + (f) % ROW_FRAGS * FRAG_N < work.rows) {                                           \
        [[unroll]] for (uint h = 0; h < 2; ++h)                                                     \
            storeScratchVec(p.addrCuQ, X_VEC(f, half_ + h), floatBitsToUint(vec4(x[4 * h], x[4 * h + 1], x[4 * h + 2], x[4 * h + 3]))); \
    }

// -- sums of rows ---------------------------------------------------------------------------------
uint sumAt(uint which, uint keyGroup, uint row) { return (which * KEY_GROUPS + keyGroup) * ROW_TILE + row; }

// Adds the columns of x, of fragments c, to the sums of the subgroup; `first` sets them.
#define ADD_COLUMNS(x, which, c, first)                                                             \
    {                                                                                               \
        fragmentToScratch(x);                                                                       \
        [[dont_unroll]] for (uint i = gl_SubgroupInvocationID; i < FRAG_N; i += SUBGROUP_SIZE) {    \
            const uint at = sumAt(which, gl_SubgroupID % KEY_GROUPS, subgroupRow + (c) * FRAG_N + i); \
            float all = first ? 0.0 : uintBitsToFloat(smem[SUMS_BASE + at / 4][at % 4]);            \
            [[dont_unroll]] for (uint key = 0; key < FRAG_M; ++key) all += loadScratch(key, i);     \
            smem[SUMS_BASE + at / 4][at % 4] = floatBitsToUint(all);                                \
        }                                                                                           \
    }
float sumOfRow(uint which, uint row) {
    float sum = 0.0;
    [[dont_unroll]] for (uint i = 0; i < KEY_GROUPS; ++i) {
        const uint at = sumAt(which, i, row);
        sum += uintBitsToFloat(smem[SUMS_BASE + at / 4][at % 4]);
    }
    return sum;
}

// Word `word` of a row's pair, of the first pairs or those behind them.
void storeWord(uint row, bool behind, uint word, float value) {
    const uvec2 index = add64(uvec2(behind ? statRows() : 0, 0), uvec2(rowIndex(row), 0));
#if BDA
    WriteWords(add64(p.addrDX, uvec2(index.x << 3, index.y << 3 | index.x >> 29))).at[word] = floatBitsToUint(value);
#else
    wordsDX[p.addrDX.x + 2 * index.x + word] = floatBitsToUint(value);
#endif
}

void main() {
    const uint tid = gl_LocalInvocationIndex;
    uint firstKey = 0, extent;
    if (STORE_DS != 0) { // all tiles of a head, then those of the next one: K and V stay in the cache
        const uvec3 n = gl_NumWorkGroups;
        const uint tile = gl_WorkGroupID.x + n.x * (gl_WorkGroupID.y + n.y * gl_WorkGroupID.z);
        workgroupID = uvec3(tile % n.x + CHUNK_FIRST_KEY / KV_TILE, tile / (n.x * n.z), tile / n.x % n.z);
        if (!findKeyTile(KV_TILE, firstKey, extent)) return;
        work.row0 = workgroupID.z * ROW_TILE;
    } else if (!findRowTile(ROW_TILE, extent)) {
        return;
    }
    const uint row0 = work.row0;
    if (row0 >= work.rows) return;
    const uint end = visibleEnd(min(row0 + ROW_TILE, work.rows) - 1);
    if (firstKey >= end) return; // no kernel loads it
    vec2 two = vec2(INFINITY, 0.0), more = vec2(0.0); // of rows past the end: P is 0
    if (tid < ROW_TILE && row0 + tid < work.rows) {
        const uint index = rowIndex(row0 + tid);
        two = loadStatsAt(index);
        more = loadMoreAt(index);
    }
    storePlaces();
    if (STORE_DS == 0) {
        if (tid == 0) seen = 0;
        barrier();
        if (isLarge(two.x)) atomicOr(seen, SEEN_LARGE);
        barrier();
        if (seen == 0) return;
    }
    if (tid < ROW_TILE) {
        const float stats[3] = {-two.x, -LOG2E * more.x, more.y - two.y};
        [[unroll]] for (uint i = 0; i < 3; ++i) smem[STATS_BASE + (i * ROW_TILE + tid) / 4][tid % 4] = floatBitsToUint(stats[i]);
    }

    const uint subgroupKey = gl_SubgroupID % KEY_GROUPS * SUBGROUP_KEYS, subgroupRow = gl_SubgroupID / KEY_GROUPS * SUBGROUP_ROWS;
    const uint rowBase = row0 + subgroupRow;
    const Slice qRows = sliceQ(rowBatch(), work.head, work.offsetQ + queryOf(row0)), doRows = sliceDO(rowBatch(), work.head, work.offsetQ + queryOf(row0));
    FragC sumP[M_FRAGS * ROW_FRAGS], sumPdP[M_FRAGS * ROW_FRAGS]; // without STORE_DS
    [[unroll]] for (uint f = 0; f < M_FRAGS * ROW_FRAGS; ++f) sumP[f] = sumPdP[f] = FragC(0.0);
    [[dont_unroll]] for (; firstKey < end; firstKey += KV_TILE) {
        const uint keyBase = firstKey + subgroupKey;
        const bool masked = firstKey + KV_TILE > visibleEnd(row0); // some row does not attend to some key
        const Slice kRows = sliceK(work.batch, work.kvHead, work.offsetK + firstKey), vRows = sliceV(work.batch, work.kvHead, work.offsetK + firstKey);
        PREFETCH(K, Q, HEAD_DIM, kRows, qRows, 0)
        MULTIPLY(K, Q, HEAD_DIM, QK_CHUNKS, kRows, qRows)
        PREFETCH(V, DO, HEAD_DIM_V, vRows, doRows, 0)
        // The exponent stays a natural one until LSE is subtracted, as in backward_f32_rows.glsl.
        FragC prob[STORE_DS == 0 ? M_FRAGS * ROW_FRAGS : 1];
        [[unroll]] for (uint f = 0; f < M_FRAGS * ROW_FRAGS; ++f) {
            FragC negLSE, negRest;
            LOAD_STAT(negLSE, 0, f % ROW_FRAGS)
            LOAD_STAT(negRest, 1, f % ROW_FRAGS)
            [[unroll]] for (uint e = 0; e < X[f].length(); ++e)
                X[f][e] = exp2(fma(fma(X[f][e], p.scoreScale, negLSE[e]), LOG2E, negRest[e]));
            if (masked) PER_ELEMENT(X[f], maskedP, keyBase + f / ROW_FRAGS * FRAG_M, rowBase + f % ROW_FRAGS * FRAG_N)
            if (STORE_DS == 0) {
                prob[STORE_DS == 0 ? f : 0] = X[f];
                sumP[f] += X[f];
            } else STORE_X(X[f], f, 2)
        }
        MULTIPLY(V, DO, HEAD_DIM_V, V_CHUNKS, vRows, doRows)
        [[unroll]] for (uint f = 0; f < M_FRAGS * ROW_FRAGS; ++f) {
            if (STORE_DS == 0) {
                [[unroll]] for (uint e = 0; e < X[f].length(); ++e) {
                    const float probOf = prob[STORE_DS == 0 ? f : 0][e];
                    sumPdP[f][e] += probOf == 0.0 ? 0.0 : probOf * X[f][e];
                }
            } else {
                FragC negDelta;
                LOAD_STAT(negDelta, 2, f % ROW_FRAGS)
                [[unroll]] for (uint h = 0; h < 2; ++h) {
                    const vec4 four = uintBitsToFloat(rowBase + f % ROW_FRAGS * FRAG_N < work.rows ? reloadScratchVec(p.addrCuQ, X_VEC(f, 2 + h)) : uvec4(0));
                    [[unroll]] for (uint e = 0; e < 4; ++e)
                        X[f][4 * h + e] = masked && four[e] == 0.0 ? 0.0 : four[e] * (X[f][4 * h + e] + negDelta[4 * h + e]);
                }
                STORE_X(X[f], f, 0)
            }
        }
        if (STORE_DS != 0) return;
    }

    barrier(); // the tile's shared memory is free
    [[unroll]] for (uint f = 0; f < M_FRAGS * ROW_FRAGS; ++f) {
        ADD_COLUMNS(sumP[f], 0, f % ROW_FRAGS, f < ROW_FRAGS)
        ADD_COLUMNS(sumPdP[f], 1, f % ROW_FRAGS, f < ROW_FRAGS)
    }
    barrier();
    if (tid >= ROW_TILE || row0 + tid >= work.rows) return;
    const float all = sumOfRow(0, tid);
    if (IS_FAR_LSE(two.x)) {
        storeWord(row0 + tid, true, 0, uintBitsToFloat(NAN_BITS));
    } else if (isLarge(two.x) && all > 0.0 && all < INFINITY) {
        storeWord(row0 + tid, true, 0, naturalLog(all));
        storeWord(row0 + tid, false, 1, sumOfRow(1, tid) / all);
    }
}
