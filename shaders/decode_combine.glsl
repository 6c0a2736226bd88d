// What a workgroup of the decode kernel does once it has its state: row statistics over subgroups, and the combination of
// splits by the last workgroup of a row.

// -- row statistics -------------------------------------------------------------------------------
// What the epilogue of decode_coopmat.comp reads of the subgroups in shared memory: their O and their row statistics.

// Adds four columns of a subgroup's O, from a multiple of 4 on. Element 2 f + i of group g (in pairs 4 (f / 2) + 2 i +
// f % 2) is column 16 f + 8 i + g of a block of the area.
void addScaled4(inout vec4 four, float factor, uint subgroup, uint row, uint first) {
    const uint g = V_NIBBLES ? first % 64 / 32 * 4 + first % 16 / 4 : first % 64 / 8;
    const uint e0 = V_NIBBLES ? first % 32 / 16 * 4 : first % 8, at = first / 64 * 64 + e0 * 8 + g;
    [[unroll]] for (uint e = 0; e < 4; ++e) {
        const uint f = PAIRED_COLUMNS ? e % 2 : e / 2, i = PAIRED_COLUMNS ? e / 2 : e % 2, col = at + f * 16 + i * 8;
        four[e] = fma(factor, uintBitsToFloat(smem[subgroup * AREA_SIZE + row * AREA_STRIDE + col / 4][col % 4]), four[e]);
    }
}
// Row max, row sum or float32 row sum of a KV loop; `first` is its *_BASE in smem.
float rowStat(uint first, uint loop, uint row) {
    return uintBitsToFloat(smem[first + loop * DIM_SPLIT * ROW_MAX_SIZE + row / 4][row % 4]);
}

// -- combination of splits ------------------------------------------------------------------------
// Combining splits inside decode_coopmat.comp, with COMBINE; without it the kernel leaves partial states for
// combine.comp.
//
// The workgroups with splits of the same rows and columns share a counter. Each increments it after storing its split
// in scratch memory. The last one to do so loads all splits, combines them in an order that does not depend on which
// workgroup it is (split_weights.glsl), and stores O, and with COMBINE 2 LSE. No workgroup waits for another.
//
// Scratch memory, from p.addrLSE on, in words: a counter per workgroup of a split, padded to 256 bytes; partial O,
// float32 [splits, rows of a state, HEAD_DIM_V]; row max and row sum [DV_SLICES, splits, rows of a state, 2], as a
// workgroup combines its own columns alone. Counters are zero at launch, and the last workgroup resets its own: clearing them by a
// command would cost a barrier. Which workgroups there are follows from the grid alone, so those without rows count
// too, and no number in memory can leave a counter at another value.
//
// Memory order: splits are stored available and loaded visible to the queue family (queuefamilycoherent). Stores of a
// workgroup -> its workgroup barrier -> the atomic of its first invocation, a release -> the last workgroup's atomic,
// an acquire -> its workgroup barrier -> its loads. Counters are accessed by atomics of that scope only.
//
// Barriers: two around the atomic in every workgroup; in the last one a third, when the statistics are in shared memory. An
// invocation combines four columns of a row. It loads SPLITS_PER_LOAD splits at a time, the first of them before the
// statistics arrive: with no more splits the last workgroup waits for memory once. The KV loop, before it, takes all
// registers; this takes fewer.
//
// The code of the combine is in no cache by then, as K and V have passed through. With few rows the last workgroups
// reached it at once, and some took 7 us longer. So the first workgroup of a row runs it too, with one split, and
// stores nothing.
#include "split_weights.glsl"

// The members have the qualifier, because glslc drops a qualifier on a block that is a temporary, and these are. A test
// looks for it in the SPIR-V.
#if BDA
layout(buffer_reference, std430, buffer_reference_align = 4) buffer SplitWords { queuefamilycoherent uint at[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) buffer SplitQuads { queuefamilycoherent uvec4 at[]; };
#define SPLIT_WORD(s) SplitWords((s).word).at[0]
#define SPLIT_QUAD(s) SplitQuads((s).word).at[0]
#define COMBINED_LSE(s) WORD_LSE(s, 0)
#else
layout(set = 0, binding = 10, std430) buffer CombinedLSE { uint wordsCombinedLSE[]; };
#define COMBINED_LSE(s) wordsCombinedLSE[(s).word]
layout(set = 0, binding = 4, std430) buffer SplitWords { queuefamilycoherent uint splitWords[]; };
layout(set = 0, binding = 4, std430) buffer SplitQuads { queuefamilycoherent uvec4 splitQuads[]; };
#define SPLIT_WORD(s) splitWords[(s).word]
#define SPLIT_QUAD(s) splitQuads[(s).word >> 2]
#endif

// -- scratch memory -----------------------------------------------------------------------------------

uint workgroupsPerSplit() { return gl_NumWorkGroups.x * (p.Hq / ROWS_PER_QUERY) * gl_NumWorkGroups.z; }

uint rowsPerSplit() {
    return p.Hq * ((VARLEN & CU_Q) != 0 ? p.totalQ : p.Sq * (gl_NumWorkGroups.z / DV_SLICES));
}

Slice scratchAt(uvec2 word) { return sliceAt(p.addrLSE, word, false, 1); }

// The slice `words` float32 further.
Slice skip(Slice s, uvec2 words) {
#if BDA
    s.word = add64(s.word, uvec2(words.x << 2, words.y << 2 | words.x >> 30));
#else
    s.word += words.x;
#endif
    return s;
}

Slice counter() {
    const uint heads = p.Hq / ROWS_PER_QUERY;
    return scratchAt(uvec2((gl_WorkGroupID.z * heads + gl_WorkGroupID.y % heads) * gl_NumWorkGroups.x + gl_WorkGroupID.x, 0));
}

// Partial O of split n: a row, by its index in the state, from a column on.
Slice splitO(uint n, uint number, uint col) {
    const uint first = (workgroupsPerSplit() + 63) & ~63u;
    return scratchAt(add64(uvec2(first, 0), add64(mul64(n * rowsPerSplit() + number, HEAD_DIM_V), uvec2(col, 0))));
}

// Row max of split n; the row sum follows. Computed from the start of scratch memory: going through splitO made NVIDIA's compiler (580.159)
// put the operands of the KV loop in local memory.
Slice splitStats(uint n, uint number) {
    const uint each = work.splits * rowsPerSplit(), slice = work.col0 / DV_SLICE;
    const uint first = (workgroupsPerSplit() + 63) & ~63u;
    return scratchAt(add64(uvec2(first, 0), add64(mul64(each, HEAD_DIM_V), mul64(slice * each + n * rowsPerSplit() + number, 2))));
}

// -- storing a split -----------------------------------------------------------------------------------

void storeSplitStats(uint row, float rowMax, float rowSum) {
    if (COMBINE == 0) {
        storeStateStats(row, rowMax, rowSum);
        return;
    }
    const Slice s = splitStats(work.split, rowIndex(row));
    SPLIT_WORD(s) = floatBitsToUint(rowMax);
    SPLIT_WORD(skip(s, uvec2(1, 0))) = floatBitsToUint(rowSum);
}

void storeSplit4(uint row, uint col, vec4 value) {
    if (COMBINE == 0) {
        storeState4(row, col, value);
        return;
    }
    const Slice s = splitO(work.split, rowIndex(row), col);
    if (HEAD_DIM_V % 4 == 0) {
        SPLIT_QUAD(s) = floatBitsToUint(value);
        return;
    }
    for (uint i = 0; i < min(HEAD_DIM_V - col, 4u); ++i) SPLIT_WORD(advance(s, i, 1, false, 1)) = floatBitsToUint(value[i]);
}

// Increments the counter, by one invocation. LAST or FIRST if the workgroup is.
const uint LAST = 1, FIRST = 2;
uint countSplit() {
    const Slice s = counter();
    const uint before = atomicAdd(SPLIT_WORD(s), 1, gl_ScopeQueueFamily, gl_StorageSemanticsBuffer, gl_SemanticsAcquireRelease);
    const bool last = before + 1 == work.splits;
    if (last) atomicStore(SPLIT_WORD(s), 0u, gl_ScopeQueueFamily, 0, 0);
    return last ? LAST : before == 0 ? FIRST : 0;
}

// A workgroup without rows counts too.
void countEmptySplit() {
    if (COMBINE != 0 && gl_LocalInvocationIndex == 0) countSplit();
}

// -- combining -----------------------------------------------------------------------------------------

// What countSplit returned, in shared memory.
#define ARRIVAL smem[ROW_MAX_BASE][0]

const uint QUADS = (DV_SLICE + 3) / 4; // per row of the workgroup's columns

void orderSplits() {
    controlBarrier(gl_ScopeWorkgroup, gl_ScopeWorkgroup, gl_StorageSemanticsBuffer | gl_StorageSemanticsShared, gl_SemanticsAcquireRelease);
}

// Four columns from col on; those past HEAD_DIM_V are 0.
vec4 loadSplit4(Slice s, uint col) {
    if (HEAD_DIM_V % 4 == 0) return uintBitsToFloat(SPLIT_QUAD(s));
    vec4 four = vec4(0.0);
    for (uint e = 0; e < 4; ++e)
        if (col + e < HEAD_DIM_V) four[e] = uintBitsToFloat(SPLIT_WORD(advance(s, e, 1, false, 1)));
    return four;
}

const uint SPLITS_PER_LOAD = 8; // a multiple of CHAINS

// Loads splits first .. first + 7 of four columns; past the last split the last one again. Macros, as `loaded` must
// stay in registers.
#define LOAD_FOUR(g)                                                                                \
    [[unroll]] for (uint n = g; n < g + 4; ++n) {                                                   \
        loaded[n] = loadSplit4(oAt, col);                                                           \
        if (first + n + 1 < splits) oAt = skip(oAt, splitStride);                                   \
    }
#define LOAD_SPLITS                                                                                 \
    LOAD_FOUR(0)                                                                                    \
    if (splits - first > 4) LOAD_FOUR(4)
// Adds them to their chains. Splits past the last have weight 0.
#define ADD_FOUR(g)                                                                                 \
    {                                                                                               \
        const vec4 maxima = uintBitsToFloat(smem[maxRow + (first + g) / 4]);                        \
        const vec4 rowSums = uintBitsToFloat(smem[sumRow + (first + g) / 4]);                       \
        [[unroll]] for (uint n = 0; n < 4; ++n) {                                                   \
            const float weight = splitWeight(maxima[n], rowSums[n], highest);                       \
            total += weight;                                                                        \
            precise const vec4 weighted = weight * loaded[g + n];                                   \
            precise const vec4 sum = chain[(g + n) % CHAINS] + weighted;                            \
            if (weight != 0.0) chain[(g + n) % CHAINS] = sum; /* else its O may hold anything */    \
        }                                                                                           \
    }
#define ADD_SPLITS                                                                                  \
    ADD_FOUR(0)                                                                                     \
    if (splits - first > 4) ADD_FOUR(4)

// Called after the workgroup has stored its split. The last workgroup stores O.
void combineSplits(uint rows) {
    orderSplits();
    if (gl_LocalInvocationIndex == 0) ARRIVAL = countSplit();
    orderSplits();
    if (ARRIVAL == 0) return;
    const bool last = ARRIVAL == LAST;
    // The first workgroup takes its own split: others are being stored.
    const uint splits = last ? work.splits : 1, firstSplit = last ? 0 : work.split;
    // Row maxima at the start of shared memory, then row sums, `quads` vectors per row.
    const uint quads = (splits + 3) / 4, sums = rows * quads;
    const uvec2 splitStride = mul64(rowsPerSplit(), HEAD_DIM_V);
    uint at = gl_LocalInvocationIndex, first = 0;
#define ROW_AT (work.row0 + at / QUADS)
#define COL_AT (work.col0 + at % QUADS * 4)
    Slice oAt;
    vec4 loaded[SPLITS_PER_LOAD];
    if (at < rows * QUADS && COL_AT < HEAD_DIM_V) {
        const uint col = COL_AT;
        oAt = splitO(firstSplit, rowIndex(ROW_AT), col);
        LOAD_SPLITS
    }
    for (uint i = gl_LocalInvocationIndex; i < rows * quads * 4; i += LOCAL_SIZE) {
        const uint n = i % (quads * 4), row = i / (quads * 4);
        const Slice s = splitStats(firstSplit + min(n, splits - 1), rowIndex(work.row0 + row));
        smem[i / 4][i % 4] = SPLIT_WORD(s);
        smem[sums + i / 4][i % 4] = n < splits ? SPLIT_WORD(skip(s, uvec2(1, 0))) : 0;
    }
    barrier();
    [[dont_unroll]] for (; at < rows * QUADS; at += LOCAL_SIZE) {
        const uint row = ROW_AT, col = COL_AT, maxRow = at / QUADS * quads, sumRow = sums + maxRow;
        if (col >= HEAD_DIM_V) continue;
        float highest = ROW_MAX_INIT; // that of a split without keys
        bool invalid = false;
        [[dont_unroll]] for (uint i = 0; i < quads; ++i) {
            const vec4 maxima = uintBitsToFloat(smem[maxRow + i]), rowSums = uintBitsToFloat(smem[sumRow + i]);
            [[unroll]] for (uint n = 0; n < 4; ++n) {
                invalid = invalid || isNaN(rowSums[n]);
                highest = max(highest, maxima[n]);
            }
        }
        precise float total = 0.0;
        vec4 chain[CHAINS];
        [[unroll]] for (uint c = 0; c < CHAINS; ++c) chain[c] = vec4(0.0);
        if (at != gl_LocalInvocationIndex) oAt = splitO(firstSplit, rowIndex(row), col);
        [[dont_unroll]] for (first = 0; first < splits; first += SPLITS_PER_LOAD) {
            if (first != 0 || at != gl_LocalInvocationIndex) {
                LOAD_SPLITS
            }
            ADD_SPLITS
        }
        precise vec4 o = chain[0];
        [[unroll]] for (uint c = 1; c < CHAINS; ++c) o += chain[c];
        o += 0.0; // turns -0 into +0
        const float inverse = inverseTotal(headOf(row), highest, total);
        invalid = invalid || isNaN(inverse);
        o = invalid ? vec4(uintBitsToFloat(NAN_BITS)) : o * inverse;
        if (last) store4O(blockO(), elementO(row) + col, o, HEAD_DIM_V - col);
        if (COMBINE == 2 && last && col == 0) { // its address is in place of the slopes': calls with ALiBi have another combine
            const float lse = invalid ? uintBitsToFloat(NAN_BITS) : lseWithSink(headOf(row), logSumExp(highest, total));
            COMBINED_LSE(sliceAt(p.addrALiBi, uvec2(rowIndex(row), 0), false, 1)) = floatBitsToUint(lse);
        }
    }
}
