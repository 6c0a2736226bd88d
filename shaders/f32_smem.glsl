// Tile sizes and shared memory of forward_coopmat_f32.comp. Shared memory is smem, in vectors of 16 bytes, eight terms
// each. The terms of a row follow each other. In the loop with pairs (f32_pairs.glsl) the
// K tile is at 0 and the V tile at PAIR_V_BASE; they overlay the chunks of Q, which are loaded after that loop.
//   0             K tile, KV_TILE rows of K_STRIDE
//   V_BASE        V tile, KV_TILE rows of V_STRIDE
//   Q_BASE        the chunks of Q that are not in registers, WORKGROUP_ROWS rows of Q_STRIDE
//   ROW_MAX_BASE  row max, FRAG_M floats per row fragment
//   SCRATCH_BASE  scratch of each subgroup: a fragment as float32, or its terms. With NV2 only the code before and after
//                 the KV loop uses it: it overlays the tiles if it fits
// Strides are odd: rows start in different banks.

const uint SUBGROUPS = LOCAL_SIZE / SUBGROUP_SIZE;
const uint SUBGROUP_ROWS = M_FRAGS * FRAG_M;
const uint WORKGROUP_ROWS = SUBGROUPS * SUBGROUP_ROWS;
const uint QK_CHUNKS = (HEAD_DIM + FRAG_K - 1) / FRAG_K;  // fragments along Dqk
const uint Q_REG_CHUNKS = Q_SMEM_CHUNKS < QK_CHUNKS ? QK_CHUNKS - Q_SMEM_CHUNKS : 0;
const uint KV_STEPS = KV_TILE / KV_STEP;
const uint PAIR_STEPS = PAIR_TILE / KV_STEP;
const uint KV_FRAGS = KV_STEP / FRAG_N;                   // fragments of S along the keys of a step
const uint DV_FRAGS = (DV_SLICE + FRAG_N - 1) / FRAG_N;   // fragments of O along its columns

const uint Q_FRAGS = Q_REG_CHUNKS > 0 ? M_FRAGS * Q_REG_CHUNKS : 1; // in registers, of each term
const uint S_FRAGS = M_FRAGS * KV_FRAGS, O_FRAGS = M_FRAGS * DV_FRAGS;

const uint CHUNK_VECS = FRAG_K / 8;
const uint K_ROW_VECS = QK_CHUNKS * CHUNK_VECS; // of one term
const uint V_ROW_VECS = DV_FRAGS * FRAG_N / 8;
const uint Q_ROW_VECS = (QK_CHUNKS - Q_REG_CHUNKS) * CHUNK_VECS;
const uint K_STRIDE = (TERMS * K_ROW_VECS) | 1;
const uint V_STRIDE = (TERMS * V_ROW_VECS) | 1;
const uint Q_STRIDE = (TERMS * Q_ROW_VECS) | 1;
const uint TERMS_STRIDE = (TERMS * CHUNK_VECS) | 1;       // of the terms of a fragment in scratch

const uint V_BASE = KV_TILE * K_STRIDE;
const uint Q_BASE = V_BASE + KV_TILE * V_STRIDE;
const uint Q_END = Q_BASE + (Q_ROW_VECS > 0 ? WORKGROUP_ROWS * Q_STRIDE : 0);
const uint PAIR_K_STRIDE = (PAIR * K_ROW_VECS) | 1;
const uint PAIR_V_STRIDE = (PAIR * V_ROW_VECS) | 1;
const uint PAIR_V_BASE = PAIR_TILE * PAIR_K_STRIDE;
const uint PAIR_END = PAIR_V_BASE + PAIR_TILE * PAIR_V_STRIDE;
const uint ROW_MAX_BASE = Q_END > PAIR_END ? Q_END : PAIR_END;
const uint ROW_MAX_SIZE = FRAG_M / 4; // of one row fragment
const uint KV_LOOP_SIZE = ROW_MAX_BASE + SUBGROUPS * M_FRAGS * ROW_MAX_SIZE;
const uint FLOATS_SIZE = FRAG_M * ((FRAG_N / 4) | 1), TERMS_SIZE = FRAG_M * TERMS_STRIDE;
#define SUBGROUP_SCRATCH (FLOATS_SIZE > TERMS_SIZE ? FLOATS_SIZE : TERMS_SIZE)
const uint SCRATCH_TOTAL = SUBGROUPS * SUBGROUP_SCRATCH;
#if NV2
const uint SCRATCH_BASE = SCRATCH_TOTAL <= Q_BASE ? 0 : KV_LOOP_SIZE;
#else
const uint SCRATCH_BASE = KV_LOOP_SIZE;
#endif
shared uvec4 smem[SCRATCH_BASE == 0 ? KV_LOOP_SIZE : KV_LOOP_SIZE + SCRATCH_TOTAL];
shared uint outOfRange;    // K or V of a tile, or Q, is not in the range of pairs, see f32_pairs.glsl
shared uint nonFiniteSeen; // V of a masked tile has Inf or NaN, see non_finite_f32.glsl
