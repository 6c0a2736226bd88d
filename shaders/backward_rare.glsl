// Two rare cases, large LSE and non-finite inputs, and how the masked loops of the kernels of dQ and of dK and dV treat
// them.
//
// Large LSE. float32 rounds an LSE of 10,000 by up to 0.0005, and so every P of the row by 0.05 %, one unit of float16.
// backward_coopmat_lse.comp stores what it rounds off. Tiles with such a row go through the masked loop, which
// subtracts the rest: the unmasked loop has no instruction for it.
//
// Inf and NaN. P and dS of a masked slot are 0, but 0 x Inf is NaN. If a masked tile holds any, they are removed from
// shared memory before the last products, a step at a time. dQ and dK lose nothing by that: where K or Q is not finite the score is
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

// Inf and NaN of `rows` rows of a tile in shared memory become 0, for the last products. All invocations call it, behind the
// products that need them.
void dropNonFiniteRows(uint base, uint stride, uint rows, uint rowVecs) {
    [[dont_unroll]] for (uint at = gl_LocalInvocationIndex; at < rows * rowVecs; at += LOCAL_SIZE)
        dropNonFinite(smem[base + at / rowVecs * stride + at % rowVecs]);
}
