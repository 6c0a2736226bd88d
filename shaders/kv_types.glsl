// Types of quantized K and V: K_TYPE, V_TYPE and CACHE_TYPE, as problem.KVType. What the types have is sets of them, a bit for each: arithmetic, since glslang compiles
// nested || of specialization constants to invalid SPIR-V.
const uint INT8 = 1, FLOAT8 = 2, Q8_0 = 3, Q4_0 = 4, Q4_1 = 5, Q5_0 = 6, Q5_1 = 7, IQ4_NL = 8, FLOAT8_E5M2 = 9, FP8_DS_MLA = 10;
#define IN(set, type) ((set) >> (type) & 1u)
const uint E4M3 = 1 << FLOAT8 | 1 << FP8_DS_MLA; // numbers are float8 e4m3
const uint SCALED = 1 << INT8 | 1 << FLOAT8 | 1 << FLOAT8_E5M2; // a key has a scale
const uint BLOCKS = 1 << Q8_0 | 1 << Q4_0 | 1 << Q4_1 | 1 << Q5_0 | 1 << Q5_1 | 1 << IQ4_NL; // a block has
// Of blocks, in the order in which they follow the scale:
const uint MINIMUM = 1 << Q4_1 | 1 << Q5_1; // a float16: element = scale * number + minimum
const uint FIFTH_BITS = 1 << Q5_0 | 1 << Q5_1; // a word: bit i is the fifth bit of element i
const uint NIBBLES = 1 << Q4_0 | 1 << Q4_1 | 1 << Q5_0 | 1 << Q5_1 | 1 << IQ4_NL; // 16 bytes of two elements each; else 32 bytes
// Bytes are signed: of IQ4_NL those that numbersOf looks up.
const uint SIGNED = 1 << INT8 | 1 << Q8_0 | 1 << IQ4_NL;
#define ZERO_OF(type) (IN(SIGNED, type) != 0 ? 128.0 : (type) == Q4_0 ? 8.0 : (type) == Q5_0 ? 16.0 : 0.0) // what stands for 0

// A row of K of FP8_DS_MLA: 512 numbers, which are V, the float32 scales of 128 each, and the other 64 elements in bfloat16.
const uint LATENT_BYTES = 656, LATENT_VALUES = 512, LATENT_SPAN = 128, LATENT_REST = 528;
const uint QUANT_BLOCK = 32;
// Bytes of a block before its numbers, and of one unit of the strides of K and V: an element, a block, or a row.
#define HEADER_BYTES_OF(type) (2 + 2 * IN(MINIMUM, type) + 4 * IN(FIFTH_BITS, type))
#define LATENT_ROWS(type) IN(1 << FP8_DS_MLA, type)
#define UNIT_BYTES_OF(type)                                                                         \
    (1 + IN(BLOCKS, type) * (HEADER_BYTES_OF(type) + QUANT_BLOCK - 1 - 16 * IN(NIBBLES, type)) + LATENT_ROWS(type) * (LATENT_BYTES - 1))
