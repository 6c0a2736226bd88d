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

// nameAt(index): element of the array with address addr<name>.
#if BDA
#define ARRAY(name, binding_)                                                                       \
    uint name##At(uvec2 index) {                                                                    \
        return ReadWords(sliceAt(p.addr##name, index, false, 1).word).at[0];                        \
    }
#else
#define ARRAY(name, binding_)                                                                       \
    layout(set = 0, binding = binding_, std430) buffer Words##name { uint words##name[]; };         \
    uint name##At(uvec2 index) {                                                                    \
        return words##name[sliceAt(p.addr##name, index, false, 1).word];                            \
    }
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
// How append.comp encodes a row of the cache: units of one element, or ggml blocks of 32 elements with their scale.
// Rows are assembled from pieces: PIECE_BYTES divides a unit, and units are aligned to it.

const uint CACHE_SAME = 0; // CACHE_TYPE: attention.KVType
const uint CACHE_INT8 = 1;
const uint CACHE_FP8 = 2;
const uint CACHE_Q8_0 = 3;
const uint CACHE_Q4_0 = 4;

const bool IS_16 = DTYPE != TYPE_F32;
// One scale per row, in a tensor of its own.
const bool HAS_ROW_SCALE = CACHE_TYPE == CACHE_INT8 || CACHE_TYPE == CACHE_FP8;
const bool BLOCKED = CACHE_TYPE == CACHE_Q8_0 || CACHE_TYPE == CACHE_Q4_0;
const bool QUANTIZED = HAS_ROW_SCALE || BLOCKED;

const uint UNIT_ELEMENTS = BLOCKED ? 32 : 1;
const uint UNIT_BYTES = CACHE_TYPE == CACHE_Q8_0 ? 34 : CACHE_TYPE == CACHE_Q4_0 ? 18 : HAS_ROW_SCALE ? 1 : IS_16 ? 2 : 4;
const uint PIECE_BYTES = HAS_ROW_SCALE ? 1 : BLOCKED || IS_16 ? 2 : 4;
const uint PIECE_MASK = HAS_ROW_SCALE ? 0xffu : BLOCKED || IS_16 ? 0xffffu : 0xffffffffu;
const uint ROW_BYTES = HEAD_DIM / UNIT_ELEMENTS * UNIT_BYTES;

const uint SPAN = BLOCKED ? 32 : HEAD_DIM;            // elements that share a scale
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
    if (magnitude < 0x0d800000u) return Scale(0.0, 0.0); // 2^-100
    const float largest = uintBitsToFloat(magnitude);
    float unit = largest / 127.0;
    if (CACHE_TYPE == CACHE_FP8) unit = largest / 448.0;
    if (CACHE_TYPE == CACHE_Q4_0) unit = uintBitsToFloat(bits) * -0.125;
    return Scale(unit, 1.0 / unit);
}

// Nearest integer, -127 to 127. Ties go to even; in blocks away from 0, as in ggml.
uint encodeInt8(float value, float inverse) {
    if (inverse == 0.0) return 0;
    precise const float scaled = value * inverse;
    const int magnitude = int(min(BLOCKED ? abs(scaled) + 0.5 : roundEven(abs(scaled)), 127.0));
    return uint(scaled < 0.0 ? -magnitude : magnitude) & 0xffu;
}

// 0 to 15; 8 is 0.
uint encodeInt4(float value, float inverse) {
    if (inverse == 0.0) return 8;
    precise const float scaled = value * inverse;
    precise const float raised = scaled + 8.5;
    return uint(clamp(raised, 0.0, 15.0));
}

// float8 e4m3, nearest even. The largest is 448; only the rounding of the scale takes a number past it.
uint encodeFP8(float value, float inverse) {
    if (inverse == 0.0) return 0;
    precise const float scaled = value * inverse;
    const uint bits = floatBitsToUint(scaled);
    const uint sign = (bits >> 24) & 0x80u;
    const uint magnitude = min(bits & 0x7fffffffu, 0x43e00000u);
    if (magnitude < 0x3c800000u) { // below 2^-6: steps of 2^-9, the spacing of float32 at 2^14
        precise const float shifted = uintBitsToFloat(magnitude) + 16384.0;
        return sign | (floatBitsToUint(shifted) & 0xfu);
    }
    const uint rebased = magnitude - 0x3c000000u; // exponent bias 127 -> 7
    return sign | ((rebased + 0x7ffffu + ((rebased >> 20) & 1u)) >> 20);
}

shared uint cells[LOCAL_SIZE / LANES_PER_ROW * HEAD_DIM];              // rows, bits of float32
shared float units[LOCAL_SIZE / LANES_PER_ROW * SPANS];                // their scales
shared float inverses[QUANTIZED ? LOCAL_SIZE / LANES_PER_ROW * SPANS : 1];

// Element of the row at `cell`.
float element(uint cell, uint index) {
    return uintBitsToFloat(cells[cell + index]);
}

uint pieceOfQ8(uint cell, uint span, uint piece) {
    const uint block = piece / 17, at = piece % 17;
    if (at == 0) return encodeF16(units[span + block]);
    const uint first = 32 * block + 2 * (at - 1);
    const float inverse = inverses[span + block];
    return encodeInt8(element(cell, first), inverse) | (encodeInt8(element(cell, first + 1), inverse) << 8);
}

uint pieceOfQ4(uint cell, uint span, uint piece) {
    const uint block = piece / 9, at = piece % 9;
    if (at == 0) return encodeF16(units[span + block]);
    const uint first = 32 * block + 2 * (at - 1);
    const float inverse = inverses[span + block];
    return encodeInt4(element(cell, first), inverse) | (encodeInt4(element(cell, first + 16), inverse) << 4) |
           (encodeInt4(element(cell, first + 1), inverse) << 8) | (encodeInt4(element(cell, first + 17), inverse) << 12);
}

// Piece of the row whose elements begin at `cell` and whose scales begin at `span`.
uint pieceOf(uint cell, uint span, uint piece) {
    if (CACHE_TYPE == CACHE_INT8) return encodeInt8(element(cell, piece), inverses[span]);
    if (CACHE_TYPE == CACHE_FP8) return encodeFP8(element(cell, piece), inverses[span]);
    if (CACHE_TYPE == CACHE_Q8_0) return pieceOfQ8(cell, span, piece);
    if (CACHE_TYPE == CACHE_Q4_0) return pieceOfQ4(cell, span, piece);
    return IS_16 ? encode16(element(cell, piece)) : cells[cell + piece];
}
