// Epilogue of a split: its partial O, float32. As many fragments as fit into the subgroup's share of the KV tile's
// shared memory pass through it at a time, and are stored row by row: when decoding, few rows of a fragment exist.
// The pass is a literal: in a loop over passes with a barrier inside O would not stay in registers.

const uint SUBGROUP_SMEM = KV_SIZE / SUBGROUPS > SCRATCH_SIZE ? KV_SIZE / SUBGROUPS : SCRATCH_SIZE;
const uint FITTING_FRAGS = (SUBGROUP_SMEM / FRAG_M - 1) / (FRAG_N / 4);       // in rows of odd length
const uint PASS_FRAGS_ = FITTING_FRAGS > DV_FRAGS ? DV_FRAGS : FITTING_FRAGS;
const uint PASS_FRAGS = PASS_FRAGS_ > 0 ? PASS_FRAGS_ : 1;
const uint STATE_PASSES = (DV_FRAGS + PASS_FRAGS - 1) / PASS_FRAGS;     // per row fragment
const uint MAX_PASSES = 4;                                  // main writes out STORE_STATE_PASS this often
const uint PASS_ROW_QUADS = PASS_FRAGS * FRAG_N / 4, PASS_STRIDE = PASS_ROW_QUADS | 1;
const uint PASS_STEPS = (FRAG_M * PASS_ROW_QUADS + SUBGROUP_SIZE - 1) / SUBGROUP_SIZE;
#define STORE_STATE_PASS(pass)                                                                      \
    if ((pass) < M_FRAGS * STATE_PASSES) {                                                          \
        const uint r = (pass) / STATE_PASSES, first = (pass) % STATE_PASSES * PASS_FRAGS;           \
        subgroupSync();                                                                             \
        [[unroll]] for (uint t = 0; t < PASS_FRAGS; ++t) {                                          \
            if (first + t < DV_FRAGS) {                                                             \
                const bool live = (pass) < M_FRAGS * STATE_PASSES && first + t < DV_FRAGS; /* false in dead code only */ \
                FragC whole = O[live ? r * DV_FRAGS + first + t : 0] * inverse[live ? r : 0];       \
                coopMatStore(whole, smem, gl_SubgroupID * SUBGROUP_SMEM + t * (FRAG_N / 4), PASS_STRIDE, \
                             gl_CooperativeMatrixLayoutRowMajor);                                   \
            }                                                                                       \
        }                                                                                           \
        subgroupSync();                                                                             \
        const uint rows = min(max(ROWS, rowBase + r * FRAG_M) - (rowBase + r * FRAG_M), FRAG_M);    \
        [[dont_unroll]] for (uint at = gl_SubgroupInvocationID; at < rows * PASS_ROW_QUADS; at += SUBGROUP_SIZE) { \
            const uint row = at / PASS_ROW_QUADS, sliceCol = first * FRAG_N + at % PASS_ROW_QUADS * 4, col = work.col0 + sliceCol; \
            if (sliceCol < DV_FRAGS * FRAG_N && col < HEAD_DIM_V)                                   \
                storeState4(rowBase + r * FRAG_M + row, col,                                        \
                            uintBitsToFloat(smem[gl_SubgroupID * SUBGROUP_SMEM + row * PASS_STRIDE + at % PASS_ROW_QUADS])); \
        }                                                                                           \
    }
