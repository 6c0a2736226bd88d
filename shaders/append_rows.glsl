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
