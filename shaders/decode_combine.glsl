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
// Barriers: two around the atomic, which every workgroup has; then when the LSE are there, when the weights are, and
// where few rows leave invocations idle, which then take chains of parts, when the chains' sums are. All of this
// comes after a walk that takes all registers, and takes fewer.
#ifndef DECODE_COMBINE_GLSL
#define DECODE_COMBINE_GLSL

#include "combine_parts.glsl"

// The compiler drops the qualifier of a block that is a temporary, as these are, but not that of a member; a test
// looks for it in the SPIR-V.
#if BDA
layout(buffer_reference, std430, buffer_reference_align = 4) buffer PartWords { queuefamilycoherent uint at[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) buffer PartQuads { queuefamilycoherent uvec4 at[]; };
#define PART_WORD(s) PartWords((s).word).at[0]
#define PART_QUAD(s) PartQuads((s).word).at[0]
#else
layout(set = 0, binding = 4, std430) buffer PartWords { queuefamilycoherent uint partWords[]; };
layout(set = 0, binding = 4, std430) buffer PartQuads { queuefamilycoherent uvec4 partQuads[]; };
#define PART_WORD(s) partWords[(s).word]
#define PART_QUAD(s) partQuads[(s).word >> 2]
#endif

// -- scratch memory -----------------------------------------------------------------------------------

uint workgroupsOfPart() { return gl_NumWorkGroups.x * (p.Hq / HEADS_SIDE) * gl_NumWorkGroups.z; }

uint rowsOfState() {
    return p.Hq * ((LENGTHS & CU_Q) != 0 ? p.totalQ : p.Sq * (gl_NumWorkGroups.z / DV_SLICES));
}

Slice scratchAt(uvec2 word) { return sliceAt(p.addrLSE, word, false, 1); }

Slice counter() {
    const uint heads = p.Hq / HEADS_SIDE;
    return scratchAt(uvec2((gl_WorkGroupID.z * heads + gl_WorkGroupID.y % heads) * gl_NumWorkGroups.x + gl_WorkGroupID.x, 0));
}

// From a column on of a row of part n, whose number is that of the row in a state.
Slice partO(uint n, uint number, uint col) {
    const uint first = (workgroupsOfPart() + 63) & ~63u;
    return scratchAt(add64(uvec2(first, 0), add64(mul64(n * rowsOfState() + number, HEAD_DIM_V), uvec2(col, 0))));
}

// Straight from the start: where this went through partO, NVIDIA's compiler (580.159) left the walk's operands in memory.
Slice partLSE(uint n, uint number) {
    const uint each = work.splits * rowsOfState(), slice = work.col0 / DV_SLICE;
    const uint first = (workgroupsOfPart() + 63) & ~63u;
    return scratchAt(add64(uvec2(first, 0), add64(mul64(each, HEAD_DIM_V), uvec2(slice * each + n * rowsOfState() + number, 0))));
}

// -- what a workgroup leaves of its part ----------------------------------------------------------------

void storePartLSE(uint row, float value) {
    if (COMBINE != 0) PART_WORD(partLSE(work.split, numberOf(row))) = floatBitsToUint(value);
    else storeRowLSE(row, value);
}

void storePart4(uint row, uint col, vec4 value) {
    if (COMBINE == 0) {
        storeState4(row, col, value);
        return;
    }
    const Slice s = partO(work.split, numberOf(row), col);
    if (HEAD_DIM_V % 4 == 0) {
        PART_QUAD(s) = floatBitsToUint(value);
        return;
    }
    for (uint i = 0; i < min(HEAD_DIM_V - col, 4u); ++i) PART_WORD(advance(s, i, 1, false, 1)) = floatBitsToUint(value[i]);
}

// Counts the workgroup, by one invocation: whether it is the last one.
bool countPart() {
    const Slice s = counter();
    const uint before = atomicAdd(PART_WORD(s), 1, gl_ScopeQueueFamily, gl_StorageSemanticsBuffer, gl_SemanticsAcquireRelease);
    const bool last = before + 1 == work.splits;
    if (last) atomicStore(PART_WORD(s), 0u, gl_ScopeQueueFamily, 0, 0);
    return last;
}

// For a workgroup without rows.
void leaveNoPart() {
    if (COMBINE != 0 && gl_LocalInvocationIndex == 0) countPart();
}

// -- all parts together -----------------------------------------------------------------------------------

// Shared memory of the walk: weights of rows by parts, and behind them, four words at a time, sums of chains. The
// host sees to it that the weights have room. The first word after it says whether the workgroup is the last one.
const uint SPACE = SHIFT_FIRST; // in units of four words
#define WEIGHT_AT(i) tile[(i) / 4][(i) % 4]
#define LAST_PART tile[SHIFT_FIRST][0]

const uint QUADS = (DV_SLICE + 3) / 4; // of the workgroup's columns
const uint IN_FLIGHT = 12;             // parts that an invocation waits for at once

void orderParts() {
    controlBarrier(gl_ScopeWorkgroup, gl_ScopeWorkgroup, gl_StorageSemanticsBuffer | gl_StorageSemanticsShared, gl_SemanticsAcquireRelease);
}

// The LSE become weights. Lanes of all subgroups fetch, side by side along rows; then a subgroup has rows to itself,
// and a lane the same parts of them from first to last.
void weighParts(uint rows) {
    const uint tid = gl_LocalInvocationIndex, parts = work.splits;
    uint side = 1;
    while (side < rows) side *= 2; // a power of two divides LOCAL_SIZE
    const uint step = LOCAL_SIZE / side, row = tid % side;
    const uint number = numberOf(work.row0 + min(row, rows - 1));
    [[dont_unroll]] for (uint n = tid / side; n < parts; n += 4 * step) {
        uint bits[4];
        [[unroll]] for (uint i = 0; i < 4; ++i)
            if (row < rows && n + i * step < parts) bits[i] = PART_WORD(partLSE(n + i * step, number));
        [[unroll]] for (uint i = 0; i < 4; ++i)
            if (row < rows && n + i * step < parts) WEIGHT_AT(row * parts + n + i * step) = bits[i];
    }
    barrier();
    [[dont_unroll]] for (uint r = gl_SubgroupID; r < rows; r += SUBGROUPS) {
        float most = -INFINITY;
        bool spoilt = false;
        for (uint n = gl_SubgroupInvocationID; n < parts; n += SUBGROUP_SIZE) {
            const uint bits = WEIGHT_AT(r * parts + n);
            if (spoils(bits)) spoilt = true;
            else most = max(most, uintBitsToFloat(bits));
        }
        most = subgroupMax(most);
        spoilt = subgroupAny(spoilt);
        for (uint n = gl_SubgroupInvocationID; n < parts; n += SUBGROUP_SIZE) {
            const float weight = partWeight(uintBitsToFloat(WEIGHT_AT(r * parts + n)), most);
            WEIGHT_AT(r * parts + n) = spoilt ? NOT_A_NUMBER : floatBitsToUint(weight);
        }
    }
    barrier();
}

// Four columns of O from the sum of the weighted parts.
void finishQuad(uint row, uint weights, uint col, vec4 sum) {
    precise float total = 0.0;
    for (uint n = 0; n < work.splits; ++n) total += uintBitsToFloat(WEIGHT_AT(weights + n));
    precise vec4 o = sum;
    if (WEIGHT_AT(weights) == NOT_A_NUMBER) o = vec4(uintBitsToFloat(NOT_A_NUMBER));
    else if (total != 0.0) o *= overTotal(total);
    store4O(blockO(), elementO(row) + col, o, HEAD_DIM_V - col);
}

// After the workgroup has stored its part: O, where it is the last one.
void combineParts(uint rows) {
    orderParts();
    if (gl_LocalInvocationIndex == 0) LAST_PART = countPart() ? 1 : 0;
    orderParts();
    if (LAST_PART == 0) return;
    const uint tid = gl_LocalInvocationIndex, parts = work.splits, chains = min(CHAINS, parts), step = rowsOfState() * HEAD_DIM_V;
    weighParts(rows);
    // Four columns an invocation; those left over take chains of them, where sums have room.
    const uint quads = rows * QUADS, sums = (rows * parts + 3) / 4;
    uint helpers = clamp(LOCAL_SIZE / quads, 1, chains);
    if (sums + chains * quads > SPACE) helpers = 1;
    [[dont_unroll]] for (uint at = tid; at < quads * helpers; at += LOCAL_SIZE) {
        const uint quad = at % quads, row = work.row0 + quad / QUADS, col = work.col0 + quad % QUADS * 4;
        const uint weights = quad / QUADS * parts;
        if (col >= HEAD_DIM_V) continue;
        const Slice from = partO(0, numberOf(row), col);
        precise vec4 all = vec4(0.0), sum = vec4(0.0);
        uint chain = at / quads, n = chain;
        [[dont_unroll]] while (chain < chains) {
            // So many parts are asked for before the first is looked at, from one chain to the next.
            vec4 part[IN_FLIGHT];
            uint c = chain, m = n;
            [[unroll]] for (uint i = 0; i < IN_FLIGHT; ++i)
                if (c < chains) {
                    const Slice s = advance(from, m, step, false, 1);
                    if (HEAD_DIM_V % 4 == 0) part[i] = uintBitsToFloat(PART_QUAD(s));
                    else
                        for (uint e = 0; e < 4; ++e)
                            part[i][e] = col + e < HEAD_DIM_V ? uintBitsToFloat(PART_WORD(advance(s, e, 1, false, 1))) : 0.0;
                    m += CHAINS;
                    if (m >= parts) m = c += helpers;
                }
            [[unroll]] for (uint i = 0; i < IN_FLIGHT; ++i)
                if (chain < chains) {
                    const float weight = uintBitsToFloat(WEIGHT_AT(weights + n));
                    precise const vec4 weighted = weight * part[i];
                    if (weight != 0.0) sum += weighted; // else whatever its O holds
                    n += CHAINS;
                    if (n >= parts) {
                        if (helpers > 1) tile[sums + chain * quads + quad] = floatBitsToUint(sum);
                        else if (chain == 0) all = sum;
                        else all += sum;
                        sum = vec4(0.0);
                        n = chain += helpers;
                    }
                }
        }
        if (helpers == 1) finishQuad(row, weights, col, all);
    }
    if (helpers == 1) return;
    barrier();
    const uint row = work.row0 + tid / QUADS, col = work.col0 + tid % QUADS * 4; // quads are no more than invocations
    if (tid >= quads || col >= HEAD_DIM_V) return;
    precise vec4 all = uintBitsToFloat(tile[sums + tid]);
    for (uint chain = 1; chain < chains; ++chain) all += uintBitsToFloat(tile[sums + chain * quads + tid]);
    finishQuad(row, tid / QUADS * parts, col, all);
}

#endif
