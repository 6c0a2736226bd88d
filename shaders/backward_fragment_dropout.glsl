// Dropout of the backward kernels on fragments. Before each product of S the lanes of a subgroup compute the mask of its
// fragments, four keys for each call of the generator, and store it in shared memory as bits. The kernel defines KEYS_ARE_ROWS
// (fragments of S are transposed), KEPT_BASE and KEPT_SIZE, in vectors. Every use is behind DROPOUT: without it the
// pipeline has neither code nor memory for it.
//
// The mask is 0 or 1 here. With c = 1 / (1 - probability), dV = c (P mask)^T dO and dS = c P (mask (dO V^T) - delta / c).
// The epilogues multiply by c. So for any probability operands in the storage type are at most as large as without
// dropout.

// A word per row of each fragment, with a bit per key.
const uint KEPT_ROWS = KEYS_ARE_ROWS ? FRAG_N : FRAG_M;
const uint KEPT_KEYS = KEYS_ARE_ROWS ? FRAG_M : FRAG_N;

uint keptWordAt(uint f) { return KEPT_BASE * 4 + gl_SubgroupID * KEPT_SIZE * 4 + f * KEPT_ROWS; }

// Stores the mask of the fragments of a step, from row firstRow and key firstKey on.
void storeKept(uint firstRow, uint firstKey) {
    subgroupSync(); // the bits of the last step are used
    [[dont_unroll]] for (uint i = gl_SubgroupInvocationID; i < M_FRAGS * KV_FRAGS * KEPT_ROWS; i += SUBGROUP_SIZE) {
        const uint f = i / KEPT_ROWS, r = f / KV_FRAGS, c = f % KV_FRAGS;
        const uint row = firstRow + (KEYS_ARE_ROWS ? c : r) * KEPT_ROWS + i % KEPT_ROWS;
        const uint key = firstKey + (KEYS_ARE_ROWS ? r : c) * KEPT_KEYS;
        uint bits = 0;
        [[dont_unroll]] for (uint k = 0; k < KEPT_KEYS; k += 4) bits |= keptOfFour(row, (key + k) / 4) << k;
        const uint at = keptWordAt(0) + i;
        smem[at / 4][at % 4] = bits;
    }
    subgroupSync();
}

float keptElement(const in uint32_t i, const in uint32_t j, const in float x, const in uint first, const in uint a) {
    const uint at = first + (KEYS_ARE_ROWS ? j : i);
    return (smem[at / 4][at % 4] >> (KEYS_ARE_ROWS ? i : j) & 1u) != 0 ? x : 0.0;
}

// Sets dropped elements of fragment f of a step to 0.
#define DROP_ELEMENTS(x, f) PER_ELEMENT(x, keptElement, keptWordAt(f), 0u)
