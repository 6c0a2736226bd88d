#version 460
// Merges attention states: O and LSE of attention over disjoint sets of keys, for the same rows, become O and LSE
// over all of the keys. Core Vulkan 1.1, float32.
//
// A workgroup owns whole rows, an invocation eight columns of one of them. It loads the row's LSE of every state
// three times, as they stay in the cache: for the maximum, for the sum of exp(LSE - max), and for the weights of O.
// States of weight 0 are not loaded. No shared memory, and one barrier, between the last load and the first store:
// the output may alias a state, and one invocation of a row stores the LSE that the others load. Sums are in the
// order of the states and not contracted: two states give the same bits in either order, and one state gives its own
// numbers.
//
// With SUM_STATES, O is the sum of the O of the states: partial gradients in place of states.
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#ifndef BDA
#define BDA 0
#endif
#if BDA
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference_uvec2 : require
#endif
#define ANY_DTYPE
#define READ_ONLY // a state may alias the output
#include "constants.glsl"
#define CONSTANTS_MERGE
#include "constants_other.glsl"
#include "numeric.glsl"

// 116 bytes, units as in interface.glsl. Two groups of states, each with one stride between states.
// BDA=0: storage buffers 0 and 1 are their O, 2 and 5 their LSE, 3 and 4 the output's O and LSE.
layout(push_constant, std430) uniform Params {
    uvec2 addrFirst, addrSecond;
    uvec2 addrFirstLSE, addrSecondLSE;
    uvec2 addrO, addrLSE;
    uint strideFirstBatch, strideFirstHead, strideFirstSeq;
    uint strideSecondBatch, strideSecondHead, strideSecondSeq;
    uint strideOBatch, strideOHead, strideOSeq;
    uint stepFirst, stepSecond;       // stride from a state to the next, O
    uint stepFirstLSE, stepSecondLSE; // the same, LSE
    uint firstCount;                  // states of the first group
    uint states;                      // of both
    uint Sq, Hq;                      // Hq * Sq < 2^31
} p;

#include "addressing.glsl"

const bool RESULT_IS_16 = DTYPE != TYPE_F32, STATES_ARE_16 = RESULT_IS_16 && F32_STATES == 0;

#define IS_16 STATES_ARE_16

#define OF(name) name##First
#define LOAD8 loadFirst8
#define STRIDE(axis) p.strideFirst##axis
#define BINDING 0
#define ALIGNMENT ALIGN_O // of all three
#define COLUMNS HEAD_DIM_V
#include "tensor_read.glsl"

#define OF(name) name##Second
#define LOAD8 loadSecond8
#define STRIDE(axis) p.strideSecond##axis
#define BINDING 1
#define ALIGNMENT ALIGN_O
#define COLUMNS HEAD_DIM_V
#include "tensor_read.glsl"

#undef IS_16
#define IS_16 RESULT_IS_16
#include "tensor_write.glsl"

#if !BDA
layout(set = 0, binding = 2, std430) buffer WordsFirstLSE { uint wordsFirstLSE[]; };
layout(set = 0, binding = 5, std430) buffer WordsSecondLSE { uint wordsSecondLSE[]; };
#endif

const uint OCTETS = (HEAD_DIM_V + 7) / 8;   // invocations per row
const uint ROWS = LOCAL_SIZE / OCTETS;      // per workgroup
// Below it the weight is 0: divided by the total it might be subnormal.
const float MIN_WEIGHT_EXPONENT = -80.0;
const uint EMPTY_LSE = 0xff800000u;              // -Inf: LSE of a row that attended to nothing

// LSE of a row of all heads and batches, in a state.
float lseOf(uint state, uvec2 row) {
    if (state < p.firstCount) {
        const Slice s = sliceAt(p.addrFirstLSE, add64(mul64(state, p.stepFirstLSE), row), false, 1);
#if BDA
        return uintBitsToFloat(ReadWords(s.word).at[0]);
#else
        return uintBitsToFloat(wordsFirstLSE[s.word]);
#endif
    }
    const Slice s = sliceAt(p.addrSecondLSE, add64(mul64(state - p.firstCount, p.stepSecondLSE), row), false, 1);
#if BDA
    return uintBitsToFloat(ReadWords(s.word).at[0]);
#else
    return uintBitsToFloat(wordsSecondLSE[s.word]);
#endif
}

// Eight columns of O of a row in a state.
void loadState8(uint state, uint batch, uint head, uint row, uint col, out vec4 low, out vec4 high) {
    if (state < p.firstCount) {
        const uvec2 at = position64(batch, p.strideFirstBatch, head, p.strideFirstHead, row, p.strideFirstSeq);
        loadFloatsFirst(sliceAt(p.addrFirst, add64(mul64(state, p.stepFirst), at), STATES_ARE_16, ALIGN_O), 0, col, low, high);
    } else {
        const uvec2 at = position64(batch, p.strideSecondBatch, head, p.strideSecondHead, row, p.strideSecondSeq);
        loadFloatsSecond(sliceAt(p.addrSecond, add64(mul64(state - p.firstCount, p.stepSecond), at), STATES_ARE_16, ALIGN_O), 0, col,
                         low, high);
    }
}

// exp(lse - maxLSE), exactly 1 for the largest: exp need not be exact.
float weightOf(float lse, float maxLSE) {
    if (floatBitsToUint(lse) == EMPTY_LSE || lse - maxLSE < MIN_WEIGHT_EXPONENT) return 0.0;
    return lse == maxLSE ? 1.0 : exp(lse - maxLSE);
}

void main() {
    const uint group = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
    const uint inGroup = gl_LocalInvocationIndex / OCTETS;
    const uint number = group * ROWS + inGroup; // of the row within its batch
    const bool owns = inGroup < ROWS && number < p.Hq * p.Sq;
    const uint col = gl_LocalInvocationIndex % OCTETS * 8;
    const uint batch = gl_WorkGroupID.z, head = number / p.Sq, row = number % p.Sq;

    precise vec4 low = vec4(0.0), high = vec4(0.0);
    float lse = -INFINITY;
    if (owns && SUM_STATES != 0) {
        loadState8(0, batch, head, row, col, low, high);
        for (uint n = 1; n < p.states; n++) {
            vec4 termLow, termHigh;
            loadState8(n, batch, head, row, col, termLow, termHigh);
            low += termLow;
            high += termHigh;
        }
    } else if (owns) {
        const uvec2 lseRow = add64(mul64(batch * p.Hq + head, p.Sq), uvec2(row, 0));
        bool attended = false, invalid = false;
        float maxLSE = 0.0;
        for (uint n = 0; n < p.states; n++) {
            const float x = lseOf(n, lseRow);
            const uint bits = floatBitsToUint(x); // tests the bits: a compiler may assume that no float is NaN
            if ((bits & 0x7fffffffu) > 0x7f800000u || bits == 0x7f800000u) {
                invalid = true;
            } else if (bits != EMPTY_LSE) {
                maxLSE = attended ? max(maxLSE, x) : x;
                attended = true;
            }
        }
        if (invalid) {
            lse = uintBitsToFloat(0x7fc00000u);
            low = high = vec4(lse);
        } else if (attended) {
            precise float total = 0.0;
            for (uint n = 0; n < p.states; n++) total += weightOf(lseOf(n, lseRow), maxLSE);
            const float inverse = total == 1.0 ? 1.0 : 1.0 / total;
            for (uint n = 0; n < p.states; n++) {
                const float weight = weightOf(lseOf(n, lseRow), maxLSE) * inverse;
                if (weight == 0.0) continue; // its O may hold anything
                vec4 stateLow, stateHigh;
                loadState8(n, batch, head, row, col, stateLow, stateHigh);
                precise const vec4 weightedLow = weight * stateLow, weightedHigh = weight * stateHigh;
                low += weightedLow;
                high += weightedHigh;
            }
            lse = maxLSE + naturalLog(total);
        }
    }
    memoryBarrierBuffer();
    barrier(); // every row of the workgroup is loaded
    if (owns) {
        const Slice s = sliceO(batch, head, row);
        if (IS_16) {
            storeO8(s, 0, col, uvec4(encode16x2(low.x, low.y), encode16x2(low.z, low.w),
                                     encode16x2(high.x, high.y), encode16x2(high.z, high.w)));
        } else {
            storeO4(s, 0, col, low);
            storeO4(s, 0, col + 4, high);
        }
        if (HAS_LSE != 0 && col == 0) storeLSE(batch, head, row, lse);
    }
}
