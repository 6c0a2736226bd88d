// P and dS, accumulators, as operands A rounded to storage.
//
// Vulkan leaves open which lane holds which element of a fragment. The host asks the device (fragment_probe.comp) and sets
// OPERANDS_IN_SMEM to 0 if accumulators and operands A of its size have one order: each element then stays where it is.
// Otherwise VK_NV_cooperative_matrix2 converts whole fragments, and without it they pass through shared memory.
#ifdef DTYPE_BF16
// Half a unit in the last place is added, the lower half is cut off: halves are rounded away from zero, as toOperandA does.
// min keeps a NaN from becoming 0 by the carry, save a negative one whose upper 17 bits are all set. NVIDIA's own conversion
// takes some twenty instructions and truncates. The upper half is moved as a float16, which the compiler packs by one
// permutation (docs/backward-log.md, 8).
STORAGE_T rounded(float x) {
    const uint bits = uint(min(floatBitsToInt(x), 0x7fff7fff)) + 0x8000u;
    return uintBitsToBFloat16EXT(float16BitsToUint16(unpackFloat2x16(bits).y));
}
#else
STORAGE_T rounded(float x) { return float16_t(x); }
#endif

// toOperandA takes P alone: its carry may reach the sign bit.
#if NV2 && defined(DTYPE_BF16)
#define convertedOperandA(result, x)                                                                \
    {                                                                                               \
        [[unroll]] for (uint e = 0; e < x.length(); ++e)                                            \
            x[e] = uintBitsToFloat(((floatBitsToUint(x[e]) & 0x7fffffffu) > 0x7f800000u ? NAN_BITS  \
                : floatBitsToUint(x[e]) + 0x8000u) & 0xffff0000u);                                  \
        result = FragA(x);                                                                          \
    }
#else
#define convertedOperandA(result, x) toOperandA(result, x)
#endif

#if NV2 && !defined(DTYPE_BF16) // the driver converts fragments in registers
#define operandA(result, x) result = FragA(x);
#else
#define operandA(result, x)                                                                         \
    if (OPERANDS_IN_SMEM != 0) {                                                                    \
        convertedOperandA(result, x)                                                                \
    } else {                                                                                        \
        [[unroll]] for (uint e = 0; e < x.length(); ++e) result[e] = rounded(x[e]);                 \
    }
#endif
