// Operations on fragments with VK_NV_cooperative_matrix2: reductions, per-element functions, conversions.

float reduceMax(const in float a, const in float b) { return max(a, b); }
float reduceAdd(const in float a, const in float b) { return a + b; }
#define reduceRows(result, x, step) coopMatReduceNV(result, x, gl_CooperativeMatrixReduceRowNV, step)
#ifdef REDUCE_BY_SCRATCH // an expression: if it is true, reductions go through scratch instead
#define reduceRowMax(result, x) if (REDUCE_BY_SCRATCH) REDUCE_ROWS(result, x, -INFINITY, max(all, next)) else reduceRows(result, x, reduceMax)
#define reduceRowSum(result, x) if (REDUCE_BY_SCRATCH) REDUCE_ROWS(result, x, 0.0, all + next) else reduceRows(result, x, reduceAdd)
#define narrowRows(result, x) if (REDUCE_BY_SCRATCH) narrowByScratch(result, x) else reduceRows(result, x, reduceMax)
#define widenRows(result, x) if (REDUCE_BY_SCRATCH) widenByScratch(result, x) else reduceRows(result, x, reduceMax)
#else
#define reduceRowMax(result, x) reduceRows(result, x, reduceMax)
#define reduceRowSum(result, x) reduceRows(result, x, reduceAdd)
#define narrowRows(result, x) reduceRows(result, x, reduceMax)
#define widenRows(result, x) reduceRows(result, x, reduceMax)
#endif

// Stores the first column of x, FRAG_M floats, from smem[base] on. A per-element function may run more than once for an
// element: it then stores the same value again.
float storeFirstColumnElement(const in uint32_t row, const in uint32_t col, const in float x, const in uint base) {
    if (col == 0) smem[base + row / 4][row % 4] = floatBitsToUint(x);
    return x;
}
#define storeFirstColumn(x, base) coopMatPerElementNV(x, x, storeFirstColumnElement, base)

float maskedElement(const in uint32_t row, const in uint32_t col, const in float x,
                    const in int firstRow, const in int firstCol, const in int offset, const in int end) {
    int c = firstCol + int(col);
    bool keep = c < end && (CAUSAL == 0 || c <= firstRow + int(row) + offset);
    return keep ? x : -INFINITY;
}
// Replaces masked scores by -Inf, whatever they are.
#define applyMask(x, firstRow, firstCol, offset, end)                                               \
    coopMatPerElementNV(x, x, maskedElement, firstRow, firstCol, offset, end)

#if GENERAL
float maskedBiasedElement(const in uint32_t row, const in uint32_t col, const in float x,
                      const in uint firstRow, const in uint firstKey, const in uint firstCol) {
    return maskedScore(firstRow + row, firstKey, firstCol + col, x);
}
#define maskAndBiasElements(x, firstRow, firstKey, firstCol)                                        \
    coopMatPerElementNV(x, x, maskedBiasedElement, firstRow, firstKey, firstCol);
#endif

#ifdef DTYPE_BF16
// P rounded to storage. NVIDIA's conversion to bfloat16 truncates (driver 580.159), and P that lost up to a unit in the
// last place shows in rows with few keys. P is not negative: adding half a unit and clearing the low bits makes the
// conversion exact. min turns NaN into Inf before it carries; the epilogues make the row NaN, as its row sum is Inf. exp2
// returns NaN as 0x7fffffff: one from 0xffff8000 on would wrap around.
#define toOperandA(result, x)                                                                       \
    {                                                                                               \
        [[unroll]] for (uint e = 0; e < x.length(); ++e)                                            \
            x[e] = uintBitsToFloat(min(floatBitsToUint(x[e]) + 0x8000u, 0x7f800000u) & 0xffff0000u); \
        result = FragA(x);                                                                          \
    }
#else
#define toOperandA(result, x) result = FragA(x)
#endif

// For x that the storage type has exactly; others are rounded either way.
#define exactOperandA(result, x) result = FragA(x)

// Any x rounded to storage. A fragment of O has the shape of an A operand.
#ifdef DTYPE_BF16
#define toStorage(result, x)                                                                        \
    {                                                                                               \
        [[unroll]] for (uint e = 0; e < x.length(); ++e) x[e] = uintBitsToFloat(encode16(x[e]) << 16); \
        result = FragA(x);                                                                          \
    }
#else
#define toStorage(result, x) result = FragA(x)
#endif
