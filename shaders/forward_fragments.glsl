// What a workgroup of the forward kernels of 16-bit types holds: tiles in shared memory, fragments in registers.

// -- shared memory --------------------------------------------------------------------------------
// Tile sizes and shared memory of the forward cooperative-matrix kernels. Shared memory is smem, in vectors of 16
// bytes:
//   0             K tile, KV_TILE rows of K_STRIDE
//   V_BASE        V tile, KV_TILE rows of V_STRIDE; with ALIAS_KV it overwrites K
//   Q_BASE        the chunks of Q that are not in registers, WORKGROUP_ROWS rows of Q_STRIDE
//   ROW_MAX_BASE  row max, FRAG_M floats per row fragment
//   SCRATCH_BASE  scratch of each subgroup. With NV2 only the code before and after the KV loop uses it: it overlays the tiles
//   SCALES_BASE   scales of the keys of the tile
//   KEPT_BASE     with DROPOUT a word per row of each fragment of S of a subgroup: bit i is 1 if the row keeps column i
// Strides are odd: rows start in different banks.

const uint SUBGROUPS = LOCAL_SIZE / SUBGROUP_SIZE;
const uint SUBGROUP_ROWS = M_FRAGS * FRAG_M;
#if GENERAL // with SPLIT_KV all subgroups have the same rows, and each one step of every KV tile
const uint WORKGROUP_ROWS = (SPLIT_KV != 0 ? 1 : SUBGROUPS) * SUBGROUP_ROWS;
#else
const uint WORKGROUP_ROWS = SUBGROUPS * SUBGROUP_ROWS;
#endif
#if GENERAL
const uint ROW_SUM_FRAGS = KEY_SCALES || DROPOUT != 0 ? 0 : M_FRAGS; // row sums that are products of P and ones
#else
const uint ROW_SUM_FRAGS = KEY_SCALES ? 0 : M_FRAGS;
#endif
const uint QK_CHUNKS = (HEAD_DIM + FRAG_K - 1) / FRAG_K;  // fragments along Dqk
const uint Q_REG_CHUNKS = Q_SMEM_CHUNKS < QK_CHUNKS ? QK_CHUNKS - Q_SMEM_CHUNKS : 0;
const uint KV_STEPS = KV_TILE / KV_STEP;
const uint KV_FRAGS = KV_STEP / FRAG_N;                   // fragments of S along the keys of a step
const uint DV_FRAGS = (DV_SLICE + FRAG_N - 1) / FRAG_N;   // fragments of O along its columns

const uint Q_FRAGS = Q_REG_CHUNKS > 0 ? M_FRAGS * Q_REG_CHUNKS : 1; // in registers
const uint S_FRAGS = M_FRAGS * KV_FRAGS, O_FRAGS = M_FRAGS * DV_FRAGS;

const uint K_ROW_VECS = QK_CHUNKS * FRAG_K / 8;
const uint V_ROW_VECS = DV_FRAGS * FRAG_N / 8;
const uint Q_REG_VECS = Q_REG_CHUNKS * FRAG_K / 8;
const uint Q_SMEM_VECS = K_ROW_VECS - Q_REG_VECS;
const uint K_STRIDE = K_ROW_VECS | 1;
const uint V_STRIDE = V_ROW_VECS | 1;
const uint Q_STRIDE = Q_SMEM_VECS | 1;
#if GENERAL
const uint V_BASE = ALIAS_KV != 0 ? 0 : KV_TILE * K_STRIDE;
const uint WIDER_STRIDE = K_STRIDE > V_STRIDE ? K_STRIDE : V_STRIDE;
const uint KV_SIZE = ALIAS_KV != 0 ? KV_TILE * WIDER_STRIDE : V_BASE + KV_TILE * V_STRIDE;
#else
const uint V_BASE = KV_TILE * K_STRIDE;
const uint KV_SIZE = V_BASE + KV_TILE * V_STRIDE;
#endif
const uint Q_BASE = KV_SIZE;
const uint TILES_SIZE = Q_BASE + (Q_SMEM_VECS > 0 ? WORKGROUP_ROWS * Q_STRIDE : 0);
const uint ROW_MAX_SIZE = FRAG_M / 4; // of one row fragment
const uint ROW_MAX_TOTAL = SUBGROUPS * M_FRAGS * ROW_MAX_SIZE;
const uint SCRATCH_TOTAL = SUBGROUPS * FRAG_M * ((FRAG_N / 4) | 1);
#if NV2
// The epilogue of a subgroup reads row maxima while others use their scratch, which small head dims make larger than the
// tiles.
const uint SCRATCH_BASE = 0, ROW_MAX_BASE = TILES_SIZE > SCRATCH_TOTAL ? TILES_SIZE : SCRATCH_TOTAL;
const uint SCALES_BASE = ROW_MAX_BASE + ROW_MAX_TOTAL;
#else
const uint ROW_MAX_BASE = TILES_SIZE, SCRATCH_BASE = ROW_MAX_BASE + ROW_MAX_TOTAL;
const uint SCALES_BASE = SCRATCH_BASE + SCRATCH_TOTAL;
#endif
#if GENERAL
const uint SCALES_SIZE = KEY_SCALES ? KV_TILE / 4 * SCALE_KINDS : 0;
#define SUBGROUP_SCALES SCALES_BASE
const uint KEPT_BASE = SCALES_BASE + SCALES_SIZE;
const uint KEPT_SIZE = S_FRAGS * FRAG_M / 4; // of a subgroup
shared uvec4 smem[KEPT_BASE + (DROPOUT != 0 ? SUBGROUPS * KEPT_SIZE : 0)];
#else
shared uvec4 smem[SCALES_BASE];
#endif
shared uint nonFiniteSeen; // V of a masked tile has Inf or NaN, see non_finite.glsl
#if GENERAL
shared float sinkTerms[SINKS != 0 ? SUBGROUPS * SUBGROUP_ROWS : 1]; // per row, to be loaded as a fragment
shared uint tileKeys[SPARSE_TOKENS != 0 ? KV_TILE : 1]; // keys of the tile, if they are sparse tokens
#define TILE_KEY(col) tileKeys[col]
#endif

// Rows of Q that pass through the KV tile's shared memory at a time, see forward_load.glsl.
const uint Q_REG_STRIDE = Q_REG_VECS | 1;
const uint Q_FIT_ROWS = KV_SIZE / Q_REG_STRIDE / FRAG_M * FRAG_M;
const uint Q_PASSES = (WORKGROUP_ROWS + Q_FIT_ROWS - 1) / Q_FIT_ROWS;
const uint Q_PASS_ROWS = Q_PASSES > 1 ? Q_FIT_ROWS : WORKGROUP_ROWS;
// Vectors of Q that an invocation loads per pass.
const uint Q_PASS_VECS = Q_REG_CHUNKS > 0 ? (Q_PASS_ROWS * Q_REG_VECS + LOCAL_SIZE - 1) / LOCAL_SIZE : 1;

#include "fragments.glsl"
#include "fragment_ops.glsl"

// -- fragments ------------------------------------------------------------------------------------
// Fragments that a subgroup keeps in registers throughout the KV loop. They are global variables: a parameter that is a
// fragment would be copied into the function and out of it.
FragA Q[Q_FRAGS];
FragC S[S_FRAGS];         // scores of a KV step, then P
FragC nextS[S_FRAGS];     // scores of the next step
FragA P[S_FRAGS];         // P as an operand
FragC O[O_FRAGS];
FragC rowMax[M_FRAGS];    // lagged
FragSum rowSum[M_FRAGS];  // of P as rounded for the product with V; equal along a row
#if GENERAL
FragC rowSumScaled[KEY_SCALES ? M_FRAGS : 1]; // with KEY_SCALES instead of rowSum; not reduced either
#endif

void clearSums() {
    [[unroll]] for (uint r = 0; r < M_FRAGS; ++r) {
        [[unroll]] for (uint i = 0; i < DV_FRAGS; ++i) O[r * DV_FRAGS + i] = FragC(0.0);
        rowSum[r] = FragSum(0.0);
        CLEAR_ROW_SUM_F32(r)
#if GENERAL
        if (KEY_SCALES) rowSumScaled[KEY_SCALES ? r : 0] = FragC(0.0);
#endif
    }
}
