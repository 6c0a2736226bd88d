// Fragments of the backward kernels of float32, how pairs of subgroups divide them, and their products with a row tile.

#ifdef PAIRS_OF_SUBGROUPS
// -- pairs of subgroups ---------------------------------------------------------------------------
// Pairs of subgroups: how the backward kernels of float32 divide S and dP, and their shared memory.
//
// Both subgroups of a pair own the same M_FRAGS * FRAG_M keys, as terms (f32_terms.glsl). The first holds K and multiplies it
// by Q, the second holds V and multiplies it by dO. So one subgroup needs registers for one tensor and one gradient, as in
// the forward kernel; for both at head dim 128 they would not do. P passes from the first to the second by shared memory,
// element by element, as it lies among the lanes.
//
// Q and dO tiles have one shape, that of the larger head dim: the smaller one is filled up with zeros. So both subgroups run
// the same code, over other addresses.
//
// Shared memory is smem, in vectors of 16 bytes, eight terms each. The three terms of a row follow each other.
//   0              Q tile, ROW_TILE rows of STRIDE
//   DO_BASE        dO tile, likewise
//   STATS_BASE     three numbers a row, see backward_f32_rows.glsl
//   EXCHANGE_BASE  P of each pair
//   OWN_BASE       chunks of K and V that are not in registers, SUBGROUP_KEYS rows of OWN_STRIDE a subgroup
//   SCRATCH_BASE   scratch of each subgroup. It overlays the tiles if the row loop does not use it
//   PLACES_BASE    see backward_fragments.glsl
// Strides are odd: rows start in different banks.
const uint SUBGROUPS = LOCAL_SIZE / SUBGROUP_SIZE, PAIRS = SUBGROUPS / 2;
const uint SUBGROUP_KEYS = M_FRAGS * FRAG_M, WORKGROUP_KEYS = PAIRS * SUBGROUP_KEYS;
const uint QK_CHUNKS = (HEAD_DIM + FRAG_K - 1) / FRAG_K, V_CHUNKS = (HEAD_DIM_V + FRAG_K - 1) / FRAG_K;
const uint CHUNKS = QK_CHUNKS > V_CHUNKS ? QK_CHUNKS : V_CHUNKS;
const uint OWN_REG_CHUNKS = Q_SMEM_CHUNKS < CHUNKS ? CHUNKS - Q_SMEM_CHUNKS : 0;
const uint ROW_FRAGS = ROW_TILE / FRAG_N;

const uint CHUNK_VECS = FRAG_K / 8;
const uint ROW_VECS = CHUNKS * CHUNK_VECS; // of one term
const uint OWN_VECS = (CHUNKS - OWN_REG_CHUNKS) * CHUNK_VECS;
const uint STRIDE = (TERMS * ROW_VECS) | 1, OWN_STRIDE = (TERMS * OWN_VECS) | 1;
const uint TERMS_STRIDE = (TERMS * CHUNK_VECS) | 1; // of the terms of a fragment in scratch

const uint DO_BASE = ROW_TILE * STRIDE;
const uint STATS_BASE = 2 * DO_BASE;
const uint EXCHANGE_BASE = STATS_BASE + 3 * ROW_TILE / 4;
const uint FRAGMENT_VECS = 2 * SUBGROUP_SIZE; // of float32: a lane has eight elements
const uint OWN_BASE = EXCHANGE_BASE + PAIRS * M_FRAGS * ROW_FRAGS * FRAGMENT_VECS;
const uint LOOP_SIZE = OWN_BASE + (OWN_VECS > 0 ? SUBGROUPS * SUBGROUP_KEYS * OWN_STRIDE : 0);
const uint FLOATS_SIZE = FRAG_M * ((FRAG_N / 4) | 1), TERMS_SIZE = FRAG_M * TERMS_STRIDE;
#define SUBGROUP_SCRATCH (FLOATS_SIZE > TERMS_SIZE ? FLOATS_SIZE : TERMS_SIZE)
const uint SCRATCH_TOTAL = SUBGROUPS * SUBGROUP_SCRATCH;
#if SCRATCH_IN_LOOP
const uint SCRATCH_BASE = LOOP_SIZE;
#elif NV2
const uint SCRATCH_BASE = SCRATCH_TOTAL > OWN_BASE ? LOOP_SIZE : 0;
#else
const uint SCRATCH_BASE = SCRATCH_TOTAL > OWN_BASE || TERMS_IN_SMEM != 0 ? LOOP_SIZE : 0;
#endif
const uint SCRATCH_END = SCRATCH_BASE + SCRATCH_TOTAL;
const uint PLACES_BASE = SCRATCH_END > LOOP_SIZE ? SCRATCH_END : LOOP_SIZE;
shared uvec4 smem[PLACES_BASE + PLACES_SIZE];

uint pairOfSubgroup() { return gl_SubgroupID % PAIRS; }
bool isSecond() { return gl_SubgroupID >= PAIRS; }
uint exchangeAt(uint f) { return EXCHANGE_BASE + (pairOfSubgroup() * M_FRAGS * ROW_FRAGS + f) * FRAGMENT_VECS; }

// Elements of a fragment of float32 as two vectors a lane, and back: from smem[at] on.
#define STORE_ELEMENTS(x, at)                                                                       \
    [[unroll]] for (uint h_ = 0; h_ < 2; ++h_)                                                      \
        smem[(at) + h_ * SUBGROUP_SIZE + gl_SubgroupInvocationID] = floatBitsToUint(vec4(x[4 * h_], x[4 * h_ + 1], x[4 * h_ + 2], x[4 * h_ + 3]));
#define LOAD_ELEMENTS(x, at)                                                                        \
    [[unroll]] for (uint h_ = 0; h_ < 2; ++h_) {                                                    \
        const vec4 four_ = uintBitsToFloat(smem[(at) + h_ * SUBGROUP_SIZE + gl_SubgroupInvocationID]); \
        [[unroll]] for (uint e_ = 0; e_ < 4; ++e_) x[4 * h_ + e_] = four_[e_];                      \
    }
#endif

#include "backward_fragments.glsl" // over smem

#ifdef PAIRS_OF_SUBGROUPS
// -- products with a row tile ---------------------------------------------------------------------
// The products of a subgroup of a pair with a row tile that starts at smem[base], as six products of terms each
// (f32_products.glsl). Code behind the row loop must call neither function (docs/log/vulkan.md, 49).
#include "f32_products.glsl"

FragA own[TERMS * M_FRAGS * (OWN_REG_CHUNKS > 0 ? OWN_REG_CHUNKS : 1)]; // K or V
FragC X[M_FRAGS * ROW_FRAGS]; // keys by rows: S, then P; or dP, then dS
FragA P[TERMS * M_FRAGS];     // the terms of a column of fragments of X

// X = own rows^T. Chunks of own that are not in registers come from shared memory.
#define LIVE_CHUNK(g) (i + (g) < CHUNKS)
#define OWN_TERM(term, g, r) ownChunk[((term) * M_FRAGS + r) * GROUP + g]
#define LOAD_CHUNK(term, g)                                                                         \
    coopMatLoad(b[g], smem, base + c * FRAG_N * STRIDE + (term) * ROW_VECS + (i + g) * CHUNK_VECS, STRIDE, COLUMN_MAJOR);
void multiplyOwn(uint base) {
    [[unroll]] for (uint i = 0; i < CHUNKS; i += GROUP) {
        FENCE
        FragA ownChunk[TERMS * M_FRAGS * GROUP];
        [[unroll]] for (uint n = 0; n < TERMS * M_FRAGS * GROUP; ++n) {
            const uint t = n / GROUP, chunk = i + n % GROUP; // t: term and fragment of keys
            if (chunk < OWN_REG_CHUNKS) ownChunk[n] = own[chunk < OWN_REG_CHUNKS ? t * OWN_REG_CHUNKS + chunk : 0];
            else if (chunk < CHUNKS)
                coopMatLoad(ownChunk[n], smem, OWN_BASE + (gl_SubgroupID * SUBGROUP_KEYS + t % M_FRAGS * FRAG_M) * OWN_STRIDE
                            + t / M_FRAGS * OWN_VECS + (chunk - OWN_REG_CHUNKS) * CHUNK_VECS, OWN_STRIDE, ROW_MAJOR);
        }
        [[unroll]] for (uint c = 0; c < ROW_FRAGS; ++c) {
            SIX_PRODUCTS(LIVE_CHUNK, OWN_TERM, LOAD_CHUNK)
            [[unroll]] for (uint g = 0; g < GROUP; ++g) {
                [[unroll]] for (uint r = 0; r < M_FRAGS; ++r) {
                    if (i + g == 0) X[r * ROW_FRAGS + c] = sum[r];
                    else if (LIVE_CHUNK(g)) X[r * ROW_FRAGS + c] += sum[g * M_FRAGS + r];
                }
            }
        }
    }
}

#ifdef HAS_GRADIENT
FragC gradient[M_FRAGS * CHUNKS]; // dV or dK

// gradient += X rows.
#define X_TERM(term, g, r) P[(term) * M_FRAGS + r]
#define LOAD_ROWS(term, g)                                                                          \
    coopMatLoad(b[g], smem, base + c * FRAG_K * STRIDE + (term) * ROW_VECS + (i + g) * FRAG_N / 8, STRIDE, ROW_MAJOR);
void addGradient(uint base) {
    [[unroll]] for (uint c = 0; c < ROW_FRAGS; ++c) {
        [[unroll]] for (uint r = 0; r < M_FRAGS; ++r) TERMS_OF_P(r, X[r * ROW_FRAGS + c])
        [[unroll]] for (uint i = 0; i < CHUNKS; i += GROUP) {
            FENCE
            SIX_PRODUCTS(LIVE_CHUNK, X_TERM, LOAD_ROWS)
            [[unroll]] for (uint g = 0; g < GROUP; ++g)
                [[unroll]] for (uint r = 0; r < M_FRAGS; ++r)
                    if (LIVE_CHUNK(g)) gradient[r * CHUNKS + (LIVE_CHUNK(g) ? i + g : 0)] += sum[g * M_FRAGS + r];
        }
    }
}
#endif
#endif
