// What few tiles have, and what the kernels of dQ and of dK and dV then do in their masked loops.
//
// Large LSE. float32 rounds an LSE of 10,000 by up to 0.0005, and so every P of the row by 0.05 %, one unit of float16.
// backward_coopmat_lse.comp stores what it rounds off. A workgroup with such a row masks every tile, and subtracts the
// rest there: the unmasked loop has no instruction for it.
//
// Inf and NaN. P and dS of a masked slot are 0, but 0 x Inf is NaN. If a masked tile holds any, the last products take
// their operand from shared memory without them. dQ and dK lose nothing by that: where K or Q is not finite the score is
// not finite either, and dS is 0 or NaN. dV does: addNonFiniteDO corrects it in memory.
const uint SEEN_LARGE = 1, SEEN_NON_FINITE = 2;
shared uint seen;

// Exponent of a masked slot: its P is 0 whatever LSE is, NaN included.
const float MASKED_EXPONENT = -3.402823466e38;

#define NOTE_NON_FINITE(v)                                                                          \
    {                                                                                               \
        uvec4 finite = v;                                                                           \
        if (dropNonFinite(finite)) atomicOr(seen, SEEN_NON_FINITE);                                 \
    }
#define NOTE_NOTHING(v)

// Operand B of ADD_PRODUCT: as it is, or without Inf and NaN.
#define AS_IT_IS(rows)
#define FINITE(rows)                                                                                \
    [[unroll]] for (uint e = 0; e < rows.length(); ++e)                                             \
        if (nonFinite(float(rows[e]))) rows[e] = STORAGE_T(0.0);

// Exponent of a slot less the rest of its row's LSE.
float withoutRest(float exponent, uint row) {
    if (row >= work.rows || exponent == MASKED_EXPONENT) return exponent;
    return exponent - loadRest(rowIndex(row)) * LOG2E;
}
