// What a subgroup of the backward kernels of 16-bit types holds throughout: the dropped slots of a step, and its own rows.

#ifdef CONSTANTS_DROPOUT
// -- dropout --------------------------------------------------------------------------------------
// Dropout of the backward kernels on fragments. Before each product of S the lanes of a subgroup compute the mask of
// its fragments, four keys for each call of the generator, and store it in shared memory as bits. The kernel defines
// OWNS_KEYS, KEPT_BASE and KEPT_SIZE, in vectors. Every use is behind DROPOUT: without it the pipeline has neither code
// nor memory for it.
//
// The mask is 0 or 1 here. With c = 1 / (1 - probability), dV = c (P mask)^T dO and dS = c P (mask (dO V^T) - delta / c).
// The epilogues multiply by c. So for any probability operands in the storage type are at most as large as without
// dropout.

// A word per row of each fragment, with a bit per key.
const bool KEYS_ARE_ROWS = OWNS_KEYS != 0; // fragments of S are transposed
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
#endif

// -- own rows -------------------------------------------------------------------------------------
// The rows of two tensors that a subgroup of a backward kernel owns, as operands A in registers. They pass through the
// subgroup's share of the tile's shared memory, OWN_PASS_CHUNKS chunks of one row fragment at a time. All loads from
// memory are issued first. No workgroup barrier: a share belongs to one subgroup. The kernel defines TILE_SIZE, in
// vectors: at least OWN_SIZE, so that a share holds a chunk. Chunks that stay in shared memory (smemChunks) are stored there for
// good.

const uint OWN_SHARE = TILE_SIZE / SUBGROUPS;
const uint OWN_PASS_CHUNKS = (OWN_SHARE / FRAG_M - 1) / (FRAG_K / 8);
const uint OWN_STRIDE = (OWN_PASS_CHUNKS * FRAG_K / 8) | 1;
#define OWN_PASSES(chunks) (((chunks) + OWN_PASS_CHUNKS - 1) / OWN_PASS_CHUNKS)
// Vectors of a row fragment per lane.
#define OWN_VECS(chunks) ((FRAG_M * (chunks) * FRAG_K / 8 + SUBGROUP_SIZE - 1) / SUBGROUP_SIZE)

// LOAD(row, col) is zero past the end of rows.
#define LOAD_OWN(vec, chunks, LOAD)                                                                 \
    uvec4 vec[M_FRAGS * OWN_VECS(chunks)];                                                          \
    [[unroll]] for (uint i = 0; i < M_FRAGS * OWN_VECS(chunks); ++i) {                              \
        const uint at = i % OWN_VECS(chunks) * SUBGROUP_SIZE + gl_SubgroupInvocationID;             \
        const uint row = at / ((chunks) * FRAG_K / 8), col = at % ((chunks) * FRAG_K / 8) * 8;      \
        vec[i] = row < FRAG_M ? LOAD(i / OWN_VECS(chunks) * FRAG_M + row, col) : uvec4(0);          \
    }
// The chunks of a pass, to registers. For bfloat16 the indices of chunks are literals too, as in MULTIPLY_OWN.
#ifdef DTYPE_BF16
#define OWN_FILL_CHUNK(frags, regs, n, c)                                                           \
        if ((c) < regs && (c) >= firstChunk && (c) < firstChunk + OWN_PASS_CHUNKS)                  \
            coopMatLoad(frags[OWN_INDEX(regs, n, c)], smem, share + ((c) - firstChunk) * FRAG_K / 8, OWN_STRIDE, ROW_MAJOR);
#define OWN_FILL(frags, chunks, regs, n)                                                            \
        OWN_FILL_CHUNK(frags, regs, n, 0) OWN_FILL_CHUNK(frags, regs, n, 1)                         \
        OWN_FILL_CHUNK(frags, regs, n, 2) OWN_FILL_CHUNK(frags, regs, n, 3)                         \
        OWN_FILL_CHUNK(frags, regs, n, 4) OWN_FILL_CHUNK(frags, regs, n, 5)                         \
        OWN_FILL_CHUNK(frags, regs, n, 6) OWN_FILL_CHUNK(frags, regs, n, 7)                         \
        if ((chunks) > 8) [[unroll]] for (uint c = 8; c < (chunks); ++c) OWN_FILL_CHUNK(frags, regs, n, c)
#else
#define OWN_FILL(frags, chunks, regs, n)                                                            \
        [[unroll]] for (uint c = 0; c < OWN_PASS_CHUNKS; ++c)                                       \
            if (firstChunk + c < regs)                                                              \
                coopMatLoad(frags[firstChunk + c < regs ? row0_ * regs + firstChunk + c : 0], smem, \
                            share + c * FRAG_K / 8, OWN_STRIDE, ROW_MAJOR);
#endif
// Row fragment n of the subgroup. n is a literal: in a loop that the compiler keeps, the fragments would be in memory.
#define OWN_FRAGMENT(frags, vec, chunks, smemChunks, base, n)                                       \
    if ((n) < M_FRAGS)                                                                              \
    [[unroll]] for (uint pass = 0; pass < OWN_PASSES(chunks); ++pass) {                             \
        const uint firstChunk = pass * OWN_PASS_CHUNKS, row0_ = min(n, M_FRAGS - 1);                \
        const uint share = gl_SubgroupID * OWN_SHARE, regs = (chunks) - (smemChunks), ownStride = ((smemChunks) * FRAG_K / 8) | 1; \
        subgroupSync();                                                                             \
        [[unroll]] for (uint i = 0; i < OWN_VECS(chunks); ++i) {                                    \
            const uint at = i * SUBGROUP_SIZE + gl_SubgroupInvocationID;                            \
            const uint row = at / ((chunks) * FRAG_K / 8), whole = at % ((chunks) * FRAG_K / 8), col = whole - firstChunk * FRAG_K / 8; \
            if (row < FRAG_M && col < OWN_PASS_CHUNKS * FRAG_K / 8)                                 \
                smem[share + row * OWN_STRIDE + col] = vec[row0_ * OWN_VECS(chunks) + i];           \
            if ((smemChunks) > 0 && firstChunk == 0 && row < FRAG_M && whole >= regs * FRAG_K / 8)  \
                smem[(base) + ((gl_SubgroupID * M_FRAGS + row0_) * FRAG_M + row) * ownStride + whole - regs * FRAG_K / 8] \
                    = vec[row0_ * OWN_VECS(chunks) + i];                                            \
        }                                                                                           \
        subgroupSync();                                                                             \
        OWN_FILL(frags, chunks, regs, n)                                                            \
    }
#define OWN_FRAGMENTS(frags, vec, chunks, smemChunks, base)                                         \
    OWN_FRAGMENT(frags, vec, chunks, smemChunks, base, 0)                                           \
    OWN_FRAGMENT(frags, vec, chunks, smemChunks, base, 1)                                           \
    OWN_FRAGMENT(frags, vec, chunks, smemChunks, base, 2)                                           \
    OWN_FRAGMENT(frags, vec, chunks, smemChunks, base, 3)
