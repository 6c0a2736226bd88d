// Parts of split keys put together by the kernel that made them, where COMBINE is set: included by
// decode_coopmat.comp, which without it leaves states for combine.comp.
//
// Idea: the workgroups with parts of the same rows and columns share a counter. Each stores its part in scratch
// memory and adds one to the counter; whoever finds that all others have done so reads the parts back, adds them up
// in an order that does not depend on who that is (combine_parts.glsl), and stores O. Nobody waits for anybody.
//
// Scratch memory, from p.addrLSE on, in words: a counter for each workgroup of a part, rounded up to 256 bytes; O
// of the parts, [splits, rows of a state, HEAD_DIM_V] float32; their LSE, [DV_SLICES, splits, rows of a state], as a
// workgroup waits only for those of its own columns. Counters are zero before, and zero after: who comes last sets
// them back. What workgroups there are follows from the grid alone, so those that find no rows count too, and no
// number in memory, nor one that changes meanwhile, can leave a counter at anything else.
//
// Who sees what: parts are stored available, and loaded visible, to the queue family (queuefamilycoherent), so that
// only the order is left to say. The stores of a workgroup come before its workgroup barrier, that before the atomic
// of its first invocation, a release; the last atomic, an acquire, has read what all others wrote, and comes before
// a workgroup barrier and the loads. The counters meet no other access than atomics of that scope.
//
// Barriers: two around the atomic, which every workgroup has, and in the last one a third, when the LSE are in shared
// memory. There an invocation has four columns of a row to itself and asks for SPLITS_PER_LOAD of their parts at a time,
// for the first of them before it has any LSE, so that the last workgroup waits for memory once if there are no more.
// It comes after a walk that takes all registers, and takes fewer.
//
// Its code is in no cache by then: K and V went by. With few rows the last workgroups of all come to it at once, and
// now and then took 7 us longer. So the first workgroup of a row runs it too, with one part, and stores nothing.
#ifndef DECODE_COMBINE_GLSL
#define DECODE_COMBINE_GLSL

#include "combine_parts.glsl"

// The compiler drops the qualifier of a block that is a temporary, as these are, but not that of a member; a test
// looks for it in the SPIR-V.
#if BDA
layout(buffer_reference, std430, buffer_reference_align = 4) buffer SplitWords { queuefamilycoherent uint at[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) buffer SplitQuads { queuefamilycoherent uvec4 at[]; };
#define SPLIT_WORD(s) SplitWords((s).word).at[0]
#define SPLIT_QUAD(s) SplitQuads((s).word).at[0]
#else
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

Slice counter() {
    const uint heads = p.Hq / ROWS_PER_QUERY;
    return scratchAt(uvec2((gl_WorkGroupID.z * heads + gl_WorkGroupID.y % heads) * gl_NumWorkGroups.x + gl_WorkGroupID.x, 0));
}

// From a column on of a row of part n, whose number is that of the row in a state.
Slice splitO(uint n, uint number, uint col) {
    const uint first = (workgroupsPerSplit() + 63) & ~63u;
    return scratchAt(add64(uvec2(first, 0), add64(mul64(n * rowsPerSplit() + number, HEAD_DIM_V), uvec2(col, 0))));
}

// Straight from the start: where this went through splitO, NVIDIA's compiler (580.159) left the walk's operands in memory.
Slice splitLSE(uint n, uint number) {
    const uint each = work.splits * rowsPerSplit(), slice = work.col0 / DV_SLICE;
    const uint first = (workgroupsPerSplit() + 63) & ~63u;
    return scratchAt(add64(uvec2(first, 0), add64(mul64(each, HEAD_DIM_V), uvec2(slice * each + n * rowsPerSplit() + number, 0))));
}

// -- what a workgroup leaves of its part ----------------------------------------------------------------

void storeSplitLSE(uint row, float value) {
    if (COMBINE != 0) SPLIT_WORD(splitLSE(work.split, rowIndex(row))) = floatBitsToUint(value);
    else storeRowLSE(row, value);
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

// Counts the workgroup, by one invocation: whether it is the last one, or the first.
const uint LAST = 1, FIRST = 2;
uint countSplit() {
    const Slice s = counter();
    const uint before = atomicAdd(SPLIT_WORD(s), 1, gl_ScopeQueueFamily, gl_StorageSemanticsBuffer, gl_SemanticsAcquireRelease);
    const bool last = before + 1 == work.splits;
    if (last) atomicStore(SPLIT_WORD(s), 0u, gl_ScopeQueueFamily, 0, 0);
    return last ? LAST : before == 0 ? FIRST : 0;
}

// For a workgroup without rows.
void countEmptySplit() {
    if (COMBINE != 0 && gl_LocalInvocationIndex == 0) countSplit();
}

// -- all parts together -----------------------------------------------------------------------------------

// In shared memory, over what the walk had there: what countSplit said.
#define ARRIVAL smem[ROW_MAX_BASE][0]

const uint QUADS = (DV_SLICE + 3) / 4; // of the workgroup's columns

void orderSplits() {
    controlBarrier(gl_ScopeWorkgroup, gl_ScopeWorkgroup, gl_StorageSemanticsBuffer | gl_StorageSemanticsShared, gl_SemanticsAcquireRelease);
}

// The slice so many float32 further.
Slice skip(Slice s, uvec2 words) {
#if BDA
    s.word = add64(s.word, uvec2(words.x << 2, words.y << 2 | words.x >> 30));
#else
    s.word += words.x;
#endif
    return s;
}

// Four columns from a slice on, of those that a row has from col on.
vec4 loadSplit4(Slice s, uint col) {
    if (HEAD_DIM_V % 4 == 0) return uintBitsToFloat(SPLIT_QUAD(s));
    vec4 four = vec4(0.0);
    for (uint e = 0; e < 4; ++e)
        if (col + e < HEAD_DIM_V) four[e] = uintBitsToFloat(SPLIT_WORD(advance(s, e, 1, false, 1)));
    return four;
}

const uint SPLITS_PER_LOAD = 8; // a multiple of CHAINS

// Asks for parts from `first` on of four columns, where there are so many, else for the last one again.
#define LOAD_FOUR(g)                                                                                \
    [[unroll]] for (uint n = g; n < g + 4; ++n) {                                                   \
        loaded[n] = loadSplit4(oAt, col);                                                           \
        if (first + n + 1 < splits) oAt = skip(oAt, splitStride);                                   \
    }
#define LOAD_SPLITS                                                                                 \
    LOAD_FOUR(0)                                                                                    \
    if (splits - first > 4) LOAD_FOUR(4)
// Adds them to their chains. Those behind the last one count nothing.
#define ADD_FOUR(g)                                                                                 \
    {                                                                                               \
        const vec4 lse = uintBitsToFloat(smem[lseRow + (first + g) / 4]);                           \
        [[unroll]] for (uint n = 0; n < 4; ++n) {                                                   \
            const float weight = splitWeight(lse[n], maxLSE);                                       \
            total += weight;                                                                        \
            precise const vec4 weighted = weight * loaded[g + n];                                   \
            precise const vec4 sum = chain[(g + n) % CHAINS] + weighted;                            \
            if (weight != 0.0) chain[(g + n) % CHAINS] = sum; /* else whatever its O holds */       \
        }                                                                                           \
    }
#define ADD_SPLITS                                                                                  \
    ADD_FOUR(0)                                                                                     \
    if (splits - first > 4) ADD_FOUR(4)

// After the workgroup has stored its part: O, where it is the last one.
void combineSplits(uint rows) {
    orderSplits();
    if (gl_LocalInvocationIndex == 0) ARRIVAL = countSplit();
    orderSplits();
    if (ARRIVAL == 0) return;
    const bool last = ARRIVAL == LAST;
    const uint splits = last ? work.splits : 1, firstSplit = last ? 0 : work.split; // its own: others are being written
    const uint quads = (splits + 3) / 4; // of the LSE of a row, from the start of shared memory on
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
        smem[i / 4][i % 4] = n < splits ? SPLIT_WORD(splitLSE(firstSplit + n, rowIndex(work.row0 + row))) : EMPTY_LSE;
    }
    barrier();
    [[dont_unroll]] for (; at < rows * QUADS; at += LOCAL_SIZE) {
        const uint row = ROW_AT, col = COL_AT, lseRow = at / QUADS * quads;
        if (col >= HEAD_DIM_V) continue;
        float maxLSE = -INFINITY;
        bool invalid = false;
        [[dont_unroll]] for (uint i = 0; i < quads; ++i) {
            const uvec4 lse = smem[lseRow + i];
            [[unroll]] for (uint n = 0; n < 4; ++n) {
                invalid = invalid || invalidatesLSE(lse[n]);
                maxLSE = max(maxLSE, uintBitsToFloat(lse[n])); // of what spoils nothing
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
        o += 0.0; // no zero is negative
        if (invalid) o = vec4(uintBitsToFloat(NAN_ROW));
        else if (total != 0.0) o *= inverseTotal(total);
        if (last) store4O(blockO(), elementO(row) + col, o, HEAD_DIM_V - col);
    }
}

#endif
