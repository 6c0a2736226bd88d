// Rows of append.comp: reading and rotating new rows, and encoding them for the cache.

// -- new rows -------------------------------------------------------------------------------------
// Which row append.comp moves, from where and to where. Rows are numbered head by head: the rows of one sequence, or
// packed rows of all sequences. For packed rows an invocation searches for the row's sequence, so that the grid covers
// only rows that exist, and not the number of sequences times the longest. Numbers from memory are checked against the
// sizes of the tensors before use.

const uint HAS_USED = 1;    // flags
const uint PACKED = 2;      // addrLengths: first row of each sequence, and the end
const uint HAS_LENGTHS = 4;     // addrLengths: number of rows of each sequence
const uint TO_CACHE = 8;    // rows go to their positions in the cache; else to where they were
const uint PAGED = 16;      // the cache is paged
const uint AT_USED = 32;    // all rows are at the position that addrUsed gives
const uint COS_SIN_16 = 64; // addrCos and addrSin are of DTYPE, which has 16 bits

// nameAt(index): element of the array with address addr<name>; nameOf(slice): its word.
#if BDA
#define ARRAY(name, binding_)                                                                       \
    uint name##Of(Slice s) { return ReadWords(s.word).at[0]; }                                      \
    uint name##At(uvec2 index) { return name##Of(sliceAt(p.addr##name, index, false, 1)); }
#else
#define ARRAY(name, binding_)                                                                       \
    layout(set = 0, binding = binding_, std430) buffer Words##name { uint words##name[]; };         \
    uint name##Of(Slice s) { return words##name[s.word]; }                                          \
    uint name##At(uvec2 index) { return name##Of(sliceAt(p.addr##name, index, false, 1)); }
#endif
ARRAY(Used, 3)
ARRAY(Lengths, 4)
ARRAY(BlockTable, 5)
ARRAY(Cos, 6)
ARRAY(Sin, 7)

int lengthAt(uint index) {
    return int(LengthsAt(uvec2(index, 0)));
}

struct Row {
    uint head;
    uint inBatch, inRow;   // among the new rows
    uint position;         // in its sequence
    uint outBatch, outRow; // in the cache: sequence and position, or page and row in it
};

// The last sequence that starts at or before the row; earlier ones with the same start are empty.
uint sequenceOf(int row) {
    uint low = 0, high = p.sequences;
    while (high - low > 1) {
        const uint middle = (low + high) / 2;
        if (lengthAt(middle) <= row) low = middle;
        else high = middle;
    }
    return low;
}

// False if the row does not exist or is dropped.
bool findRow(uint number, out Row r) {
    r.head = number / p.rows;
    r.inRow = number % p.rows;
    r.inBatch = gl_WorkGroupID.z;
    r.position = r.outBatch = r.outRow = 0;
    uint sequence = gl_WorkGroupID.z, row = r.inRow;
    if (r.head >= p.heads) return false;
    if ((p.flags & PACKED) != 0) {
        sequence = sequenceOf(int(row));
        const int first = lengthAt(sequence);
        if (first < 0 || int(row) < first || int(row) >= lengthAt(sequence + 1)) return false;
        row -= uint(first);
    } else if ((p.flags & HAS_LENGTHS) != 0 && int(row) >= lengthAt(sequence)) {
        return false;
    }
    if ((p.flags & AT_USED) != 0) row = 0;
    const int used = (p.flags & HAS_USED) != 0 ? int(UsedAt(uvec2(sequence, 0))) : 0;
    if (used < 0) return false;
    r.position = uint(used) + row; // both below 2^31
    if (r.position >= p.limit) return false;
    r.outBatch = r.inBatch;
    r.outRow = r.inRow;
    if ((p.flags & TO_CACHE) == 0) return true;
    r.outBatch = sequence;
    r.outRow = r.position;
    if ((p.flags & PAGED) == 0) return true;
    r.outBatch = BlockTableAt(add64(mul64(sequence, p.blockTableStride), uvec2(r.position / p.pageRows, 0)));
    r.outRow = r.position % p.pageRows;
    return r.outBatch < p.pages; // a negative number is a large one
}

// -- encoding -------------------------------------------------------------------------------------
// How append.comp encodes a row of the cache: units of one element, ggml blocks of 32 elements with their scale, or a row of
// latent attention.
// Rows are assembled from pieces: PIECE_BYTES divides a unit, and units are aligned to it.

#include "kv_types.glsl"

const bool IS_16 = DTYPE != TYPE_F32;
// One scale per row, in a tensor of its own.
const bool HAS_ROW_SCALE = IN(SCALED, CACHE_TYPE) != 0;
const bool BLOCKED = IN(BLOCKS, CACHE_TYPE) != 0;
const bool LATENT = LATENT_ROWS(CACHE_TYPE) != 0;
const bool HAS_MINIMUM = IN(MINIMUM, CACHE_TYPE) != 0;
const bool QUANTIZED = CACHE_TYPE != 0;

const uint UNIT_ELEMENTS = LATENT ? HEAD_DIM : BLOCKED ? QUANT_BLOCK : 1;
const uint HEADER_BYTES = HEADER_BYTES_OF(CACHE_TYPE); // of a block
const uint UNIT_BYTES = QUANTIZED ? UNIT_BYTES_OF(CACHE_TYPE) : IS_16 ? 2 : 4;
const uint PIECE_BYTES = HAS_ROW_SCALE ? 1 : QUANTIZED || IS_16 ? 2 : 4;
const uint PIECE_MASK = HAS_ROW_SCALE ? 0xffu : QUANTIZED || IS_16 ? 0xffffu : 0xffffffffu;
const uint ROW_BYTES = HEAD_DIM / UNIT_ELEMENTS * UNIT_BYTES;

const uint SPAN = LATENT ? LATENT_SPAN : BLOCKED ? QUANT_BLOCK : HEAD_DIM; // elements that share a scale
const uint SPANS = QUANTIZED ? HEAD_DIM / SPAN : 1;   // of a row

// element = unit * stored number; stored number = round(inverse * element).
struct Scale {
    float unit, inverse;
};

// Scale of a span, from the bits of its first element of largest absolute value. Inf or NaN makes the whole span NaN.
// A span so small that the inverse would overflow becomes 0.
Scale scaleOf(uint bits) {
    const uint magnitude = bits & 0x7fffffffu;
    if (magnitude >= 0x7f800000u) return Scale(uintBitsToFloat(0x7fc00000u), 0.0);
    if (magnitude < 0x0d800000u) return Scale(LATENT ? uintBitsToFloat(0x800000u) : 0.0, 0.0); // 2^-100; 2^-126
    const float largest = uintBitsToFloat(magnitude), first = uintBitsToFloat(bits);
    float unit = largest / 127.0;
    if (IN(E4M3, CACHE_TYPE) != 0) unit = largest / 448.0;
    if (CACHE_TYPE == FLOAT8_E5M2) unit = largest / 57344.0;
    if (CACHE_TYPE == Q4_0) unit = first * -0.125;
    if (CACHE_TYPE == Q5_0) unit = first * -0.0625;
    if (CACHE_TYPE == IQ4_NL) unit = first / -127.0;
    return Scale(unit, 1.0 / unit);
}
// A scale that is given. One that is not finite or below 2^-100 makes all elements 0.
Scale givenScale(float unit) {
    const uint magnitude = floatBitsToUint(unit) & 0x7fffffffu;
    return Scale(unit, magnitude >= 0x7f800000u || magnitude < 0x0d800000u ? 0.0 : 1.0 / unit);
}
// The same of a span with a minimum, by its range.
Scale scaleOfRange(float range) {
    if (range < 7.8886091e-31) return Scale(0.0, 0.0); // 2^-100
    const float unit = range / (CACHE_TYPE == Q4_1 ? 15.0 : 31.0);
    return Scale(unit, floatBitsToUint(range) >= 0x7f800000u ? 0.0 : 1.0 / unit);
}

// Nearest integer, -127 to 127. Ties go to even; in blocks away from 0, as in ggml.
uint encodeInt8(float value, float inverse) {
    if (inverse == 0.0) return 0;
    precise const float scaled = value * inverse;
    if (GIVEN_SCALE != 0 && (floatBitsToUint(scaled) & 0x7fffffffu) > 0x7f800000u) return 0;
    const int magnitude = int(min(BLOCKED ? abs(scaled) + 0.5 : roundEven(abs(scaled)), 127.0));
    return uint(scaled < 0.0 ? -magnitude : magnitude) & 0xffu;
}

// Code of an element less the minimum: 0 to 15, or 31. Ties go up.
uint encodeCode(float value, float inverse) {
    const float zero = CACHE_TYPE == Q4_0 ? 8.0 : CACHE_TYPE == Q5_0 ? 16.0 : 0.0;
    precise const float scaled = value * inverse;
    if (CACHE_TYPE == IQ4_NL) { // by the middles of its numbers
        const float middles[15] = {-115.5, -93.5, -74.0, -57.0, -42.0, -28.5, -16.0, -4.5, 7.0, 19.0, 31.5, 45.5, 61.0, 79.0, 101.0};
        uint code = 0;
        for (uint i = 0; i < 15; ++i) code += inverse == 0.0 ? uint(i < 8) : uint(scaled >= middles[i]);
        return code;
    }
    if (inverse == 0.0) return uint(zero);
    precise const float raised = scaled + (zero + 0.5);
    return uint(clamp(raised, 0.0, IN(FIFTH_BITS, CACHE_TYPE) != 0 ? 31.0 : 15.0));
}

// float8 e4m3, nearest even. The largest is 448; only the rounding of the scale takes a number past it.
uint encodeFP8(float value, float inverse) {
    if (inverse == 0.0) return 0;
    precise const float scaled = value * inverse;
    const uint bits = floatBitsToUint(scaled);
    const uint sign = (bits >> 24) & 0x80u;
    if (GIVEN_SCALE != 0 && (floatBitsToUint(scaled) & 0x7fffffffu) > 0x7f800000u) return sign | 0x7fu;
    const uint magnitude = min(bits & 0x7fffffffu, 0x43e00000u);
    if (magnitude < 0x3c800000u) { // below 2^-6: steps of 2^-9, the spacing of float32 at 2^14
        precise const float shifted = uintBitsToFloat(magnitude) + 16384.0;
        return sign | (floatBitsToUint(shifted) & 0xfu);
    }
    const uint rebased = magnitude - 0x3c000000u; // exponent bias 127 -> 7
    return sign | ((rebased + 0x7ffffu + ((rebased >> 20) & 1u)) >> 20);
}

// float8 e5m2, nearest even. The largest finite one is 57344, which numbers saturate to.
uint encodeE5M2(float value, float inverse) {
    if (inverse == 0.0) return 0;
    precise const float scaled = value * inverse;
    const uint bits = floatBitsToUint(scaled);
    const uint sign = (bits >> 24) & 0x80u;
    if (GIVEN_SCALE != 0 && (floatBitsToUint(scaled) & 0x7fffffffu) > 0x7f800000u) return sign | 0x7eu;
    const uint magnitude = min(bits & 0x7fffffffu, 0x47600000u);
    if (magnitude < 0x38800000u) { // below 2^-14: steps of 2^-16, the spacing of float32 at 2^7
        precise const float shifted = uintBitsToFloat(magnitude) + 128.0;
        return sign | (floatBitsToUint(shifted) & 0x7u);
    }
    const uint rebased = magnitude - 0x38000000u; // exponent bias 127 -> 15
    return sign | ((rebased + 0xfffffu + ((rebased >> 21) & 1u)) >> 21);
}

shared uint cells[LOCAL_SIZE / LANES_PER_ROW * HEAD_DIM];              // rows, bits of float32
shared float units[LOCAL_SIZE / LANES_PER_ROW * SPANS];                // their scales
shared float inverses[QUANTIZED ? LOCAL_SIZE / LANES_PER_ROW * SPANS : 1];
shared float minima[HAS_MINIMUM ? LOCAL_SIZE / LANES_PER_ROW * SPANS : 1];

// Element of the row at `cell`.
float element(uint cell, uint index) {
    return uintBitsToFloat(cells[cell + index]);
}

// Code of element `index` of the row.
uint codeOf(uint cell, uint span, uint index) {
    precise const float above = element(cell, index) - (HAS_MINIMUM ? minima[HAS_MINIMUM ? span + index / 32 : 0] : 0.0);
    return encodeCode(above, inverses[span + index / 32]);
}

uint pieceOfBlock(uint cell, uint span, uint piece) {
    const uint block = piece / (UNIT_BYTES / 2), at = piece % (UNIT_BYTES / 2);
    if (at == 0) return encodeF16(units[span + block]);
    if (HAS_MINIMUM && at == 1) return encodeF16(minima[HAS_MINIMUM ? span + block : 0]);
    if (2 * at < HEADER_BYTES) { // fifth bits
        const uint first = 32 * block + 16 * (at - (HEADER_BYTES - 4) / 2);
        uint bits = 0;
        for (uint i = 0; i < 16; ++i) bits |= codeOf(cell, span, first + i) >> 4 << i;
        return bits;
    }
    const uint first = 32 * block + 2 * at - HEADER_BYTES;
    if (IN(NIBBLES, CACHE_TYPE) == 0) {
        const float inverse = inverses[span + block];
        return encodeInt8(element(cell, first), inverse) | (encodeInt8(element(cell, first + 1), inverse) << 8);
    }
    return codeOf(cell, span, first) & 15 | (codeOf(cell, span, first + 16) & 15) << 4 |
           (codeOf(cell, span, first + 1) & 15) << 8 | (codeOf(cell, span, first + 17) & 15) << 12;
}

// Two numbers, half of a scale, or an element in bfloat16.
uint pieceOfLatent(uint cell, uint span, uint piece) {
    const uint at = 2 * piece;
    if (at >= LATENT_REST) return encodeBF16(element(cell, LATENT_VALUES + (at - LATENT_REST) / 2));
    if (at >= LATENT_VALUES) return floatBitsToUint(units[span + (at - LATENT_VALUES) / 4]) >> (at & 2) * 8 & 0xffffu;
    const float inverse = inverses[span + at / LATENT_SPAN];
    return encodeFP8(element(cell, at), inverse) | encodeFP8(element(cell, at + 1), inverse) << 8;
}

// Piece of the row whose elements begin at `cell` and whose scales begin at `span`.
uint pieceOf(uint cell, uint span, uint piece) {
    if (LATENT) return pieceOfLatent(cell, span, piece);
    if (BLOCKED) return pieceOfBlock(cell, span, piece);
    if (CACHE_TYPE == INT8) return encodeInt8(element(cell, piece), inverses[span]);
    if (CACHE_TYPE == FLOAT8) return encodeFP8(element(cell, piece), inverses[span]);
    if (CACHE_TYPE == FLOAT8_E5M2) return encodeE5M2(element(cell, piece), inverses[span]);
    return IS_16 ? encode16(element(cell, piece)) : cells[cell + piece];
}
