// Where append.comp finds a row and where it puts it. Rows are numbered through the heads of a sequence,
// or, where sequences are packed, through the heads of all of them: then the row's sequence is searched
// for, so that the cost is that of the rows there are and not of the longest sequence's.
// Every number read from a vector is held against the sizes of the tensors before it is used.

const uint HAS_USED = 1;    // flags
const uint PACKED = 2;      // addrLengths has the first row of each sequence, and the end
const uint HAS_LENGTHS = 4;     // addrLengths has the rows of each sequence
const uint TO_CACHE = 8;    // rows go to their positions; else to where they were among the new ones
const uint PAGED = 16;      // which are in pages

// A vector, by position: nameAt(index).
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
    uint outBatch, outRow; // of the cache: sequence and position, or page and row of it
};

// The last of the sequences that starts at the row or before it: those before it with the same start are empty.
uint sequenceOf(int row) {
    uint low = 0, high = p.sequences;
    while (high - low > 1) {
        const uint middle = (low + high) / 2;
        if (lengthAt(middle) <= row) low = middle;
        else high = middle;
    }
    return low;
}

// False for a row that there is not, or that has no place.
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
