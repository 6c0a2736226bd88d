#version 460
// Appends rows to a KV cache, or rotates rows in place: new K, new V or new Q, one tensor per dispatch. Core Vulkan
// 1.1, float32.
//
// LANES_PER_ROW invocations own a row and pass it through shared memory as float32: load its words, rotate its pairs,
// find its scales, store its words. The arithmetic on an element does not depend on how rows lie in memory; rows may
// begin at any element, quantized rows at any byte. Barriers separate the loads and the stores of a row, and a row has
// one workgroup, so rows may be stored where they were loaded. The first and the last word of a row may hold other data
// too: an atomic AND and an atomic OR change the row's part of the word. Products of a rotation are not contracted, so
// that the bits equal the host's.
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
#define READ_ONLY // rows may be stored where they were loaded
#include "constants.glsl"
#define CONSTANTS_APPEND
#include "constants_other.glsl"
#include "numeric.glsl"

// 120 bytes. BDA=0: storage buffers 0 to 7 are the tensors in the order of the addresses.
layout(push_constant, std430) uniform Params {
    uvec2 addrIn;        // as in interface.glsl
    uvec2 addrOut;       // BDA=1: likewise; BDA=0: byte offset in the bound range
    uvec2 addrScale;     // float32 [outBatches, heads, pageRows], of an int8 or fp8 cache; with GIVEN_SCALE of heads, or one
    uvec2 addrUsed;      // int32: keys that a sequence has in the cache
    uvec2 addrLengths;   // int32: see flags
    uvec2 addrBlockTable;     // int32 [sequences, blockTableStride]: page indices
    uvec2 addrCos, addrSin; // float32 [positions, ROTARY_DIM / 2], or with COS_SIN_16 of DTYPE
    uint strideInBatch, strideInHead, strideInSeq;    // elements
    uint strideOutBatch, strideOutHead, strideOutSeq; // units of UNIT_BYTES
    uint rows, heads;    // new rows per sequence, or of all packed sequences; rows * heads < 2^31
    uint sequences;
    uint limit;          // rows at positions from here on are dropped; within the block table too
    uint pageRows;       // keys per page; without pages, keys per sequence of the cache
    uint pages, blockTableStride;
    uint flags;
} p;

#include "addressing.glsl"
#include "append_rows.glsl"

#if BDA
#define WORD_IN(s, word_) ReadWords(s.word).at[word_]
#define WORD_OUT(s, word_) WriteWords(s.word).at[word_]
#define WORD_SCALE(s) WriteWords(s.word).at[0]
#else
layout(set = 0, binding = 0, std430) buffer WordsIn { uint wordsIn[]; };
layout(set = 0, binding = 1, std430) buffer WordsOut { uint wordsOut[]; };
layout(set = 0, binding = 2, std430) buffer WordsScale { uint wordsScale[]; };
#define WORD_IN(s, word_) wordsIn[s.word + (word_)]
#define WORD_OUT(s, word_) wordsOut[s.word + (word_)]
#define WORD_SCALE(s) wordsScale[s.word]
#endif

float loadScale(uint entry) {
    const Slice s = sliceAt(p.addrScale, uvec2(entry, 0), false, 1);
#if BDA
    return uintBitsToFloat(ReadWords(s.word).at[0]);
#else
    return uintBitsToFloat(wordsScale[s.word]);
#endif
}

const uint ROWS = LOCAL_SIZE / LANES_PER_ROW; // per workgroup

void readRow(Row r, uint cell, uint lane) {
    const uvec2 at = position64(r.inBatch, p.strideInBatch, r.head, p.strideInHead, r.inRow, p.strideInSeq);
    const Slice s = sliceAt(p.addrIn, at, IS_16, 1);
    if (!IS_16) {
        for (uint i = lane; i < HEAD_DIM; i += LANES_PER_ROW) cells[cell + i] = WORD_IN(s, i);
        return;
    }
    for (uint word = lane; 2 * word < HEAD_DIM + s.phase; word += LANES_PER_ROW) {
        const uvec2 pair = floatBitsToUint(decode16x2(WORD_IN(s, word)));
        const uint first = 2 * word - s.phase; // 2^32 - 1 for the element before the row
        if (first < HEAD_DIM) cells[cell + first] = pair.x;
        if (first + 1 < HEAD_DIM) cells[cell + first + 1] = pair.y;
    }
}

void rotateRow(Row r, uint cell, uint lane) {
    const uint pairs = ROTARY_DIM / 2;
    for (uint i = lane; i < pairs; i += LANES_PER_ROW) {
        const uint first = cell + ROTARY_FIRST + (ROTARY_HALF_SPLIT != 0 ? i : 2 * i);
        const uint second = first + (ROTARY_HALF_SPLIT != 0 ? pairs : 1);
        const uvec2 angle = add64(mul64(r.position, pairs), uvec2(i, 0));
        const bool halves = IS_16 && (p.flags & COS_SIN_16) != 0;
        const Slice cosAt = sliceAt(p.addrCos, angle, halves, 1), sinAt = sliceAt(p.addrSin, angle, halves, 1);
        const uint cosBits = CosOf(cosAt), sinBits = SinOf(sinAt);
        const float c = halves ? decode16x2(cosBits)[cosAt.phase] : uintBitsToFloat(cosBits);
        const float s = halves ? decode16x2(sinBits)[sinAt.phase] : uintBitsToFloat(sinBits);
        const float x = uintBitsToFloat(cells[first]), y = uintBitsToFloat(cells[second]);
        precise const float xc = x * c, ys = y * s, yc = y * c, xs = x * s;
        precise const float turnedX = xc - ys, turnedY = yc + xs;
        cells[first] = floatBitsToUint(turnedX);
        cells[second] = floatBitsToUint(turnedY);
    }
}

void scaleRow(Row r, uint cell, uint span, uint lane) {
    if (GIVEN_SCALE != 0) {
        if (lane == 0) {
            const Scale s = givenScale(loadScale(GIVEN_SCALE == 1 ? r.head : 0));
            units[span] = s.unit;
            inverses[span] = s.inverse;
        }
        return;
    }
    for (uint n = lane; n < SPANS; n += LANES_PER_ROW) {
        uint largest = 0;
        for (uint i = 0; i < SPAN; i++) {
            const uint bits = cells[cell + n * SPAN + i]; // without its sign, ordered as the absolute values
            if ((bits & 0x7fffffffu) > (largest & 0x7fffffffu)) largest = bits;
        }
        Scale s = scaleOf(largest);
        if (HAS_MINIMUM) {
            const bool numberless = s.inverse == 0.0; // NaN, or 0
            float least = element(cell, n * SPAN), most = least;
            for (uint i = 1; i < SPAN; i++) {
                const float x = element(cell, n * SPAN + i);
                least = min(least, x);
                most = max(most, x);
            }
            if (!numberless) s = scaleOfRange(most - least);
            minima[HAS_MINIMUM ? span + n : 0] = numberless ? 0.0 : least;
        }
        units[span + n] = s.unit;
        inverses[span + n] = s.inverse;
    }
}

void writeRow(Row r, uint cell, uint span, uint lane) {
    const uvec2 at = position64(r.outBatch, p.strideOutBatch, r.head, p.strideOutHead, r.outRow, p.strideOutSeq);
    const uvec2 byte = add64(p.addrOut, uvec2(0, at.y * UNIT_BYTES) + mul64(at.x, UNIT_BYTES));
    const uint phase = byte.x & 3u; // a multiple of PIECE_BYTES
    Slice s;
#if BDA
    s.word = uvec2(byte.x & ~3u, byte.y);
#else
    s.word = byte.x >> 2;
#endif
    for (uint word = lane; 4 * word < ROW_BYTES + phase; word += LANES_PER_ROW) {
        uint bits = 0, mask = 0;
        for (uint i = 0; i < 4; i += PIECE_BYTES) {
            const uint first = 4 * word + i - phase; // above 2^31 before the row
            if (first >= ROW_BYTES) continue;
            bits |= pieceOf(cell, span, first / PIECE_BYTES) << (8 * i);
            mask |= PIECE_MASK << (8 * i);
        }
        if (mask == 0xffffffffu) {
            WORD_OUT(s, word) = bits;
        } else {
            atomicAnd(WORD_OUT(s, word), ~mask);
            atomicOr(WORD_OUT(s, word), bits);
        }
    }
    if (HAS_ROW_SCALE && GIVEN_SCALE == 0 && lane == 0) {
        const uvec2 number = add64(mul64(r.outBatch, p.heads * p.pageRows), uvec2(r.head * p.pageRows + r.outRow, 0));
        const Slice scale = sliceAt(p.addrScale, number, false, 1);
        WORD_SCALE(scale) = floatBitsToUint(units[span]);
    }
}

void main() {
    const uint group = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
    const uint inGroup = gl_LocalInvocationIndex / LANES_PER_ROW, lane = gl_LocalInvocationIndex % LANES_PER_ROW;
    const uint cell = inGroup * HEAD_DIM, span = inGroup * SPANS; // start of the row in shared memory
    Row r;
    const bool found = findRow(group * ROWS + inGroup, r);
    if (found) readRow(r, cell, lane);
    memoryBarrierBuffer();
    barrier();
    if (ROTARY_DIM > 0) {
        if (found) rotateRow(r, cell, lane);
        barrier();
    }
    if (QUANTIZED) {
        if (found) scaleRow(r, cell, span, lane);
        barrier();
    }
    if (found) writeRow(r, cell, span, lane);
}
