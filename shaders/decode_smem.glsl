// Shared memory of decode_coopmat.comp: smem, in vectors of 16 bytes. Small enough for two workgroups per
// multiprocessor.
//   0                 an area per subgroup: its scratch during the KV loop, blocks of its O afterwards
//   ROW_MAX_BASE      row max, FRAG_M floats per subgroup
//   FACTOR_BASE       rescale factors of O, likewise; after the KV loop row sums
//   ROW_SUM_F32_BASE  float32 row sums, after the KV loop
//   Q_BASE            Q, with Q_SMEM_CHUNKS; it overlays the areas if operands come from registers and it fits
//   SCALES_BASE       scales of K and V
#if NV2
const bool NO_SCRATCH = REGISTER_OPERANDS != 0;
#else
const bool NO_SCRATCH = false;
#endif
const bool AREAS_ONLY = Q_SMEM_CHUNKS == 0 || NO_SCRATCH;
const bool TWO_BLOCKS = SUM_N == 8 && AREAS_ONLY && DV_BLOCKS > 1 && QK_SPLIT == 1;
const uint AREA_BLOCKS = TWO_BLOCKS ? 2 : 1;
const uint AREA_STRIDE = 16 * AREA_BLOCKS + 1;
const uint AREA_ROWS = QK_SPLIT > 1 ? 16 : SUM_N; // room for partial scores
const uint AREA_SIZE = AREA_ROWS * AREA_STRIDE;
const uint SCRATCH_BASE = 0;
#define SUBGROUP_SCRATCH AREA_SIZE
const uint ROW_MAX_SIZE = FRAG_M / 4;
const uint ROW_MAX_BASE = SUBGROUPS * AREA_SIZE;
const uint FACTOR_BASE = ROW_MAX_BASE + SUBGROUPS * ROW_MAX_SIZE;
const uint ROW_SUM_F32_BASE = FACTOR_BASE + SUBGROUPS * ROW_MAX_SIZE;
const uint ROW_STATS_END = ROW_SUM_F32_BASE + SUBGROUPS * ROW_MAX_SIZE;
const uint Q_STRIDE = 4 * QK_BLOCKS | 1; // with Q_SMEM_CHUNKS all of Q is in shared memory
const uint Q_SIZE = Q_SMEM_CHUNKS != 0 ? FRAG_M * Q_STRIDE : 0;
const bool Q_IN_AREAS = NO_SCRATCH && Q_SIZE <= ROW_MAX_BASE;
const uint Q_BASE = Q_IN_AREAS ? 0 : ROW_STATS_END;
// Scales of a subgroup's keys overlay its area if nothing else does; else they are at the end.
const uint SCALES_SIZE = KEY_SCALES ? KV_TILE / 4 * SCALE_KINDS : 0;
const bool AREAS_FREE = NO_SCRATCH && Q_SMEM_CHUNKS == 0 && QK_SPLIT == 1;
const uint SCALES_EXTRA = (AREAS_FREE ? AREA_SIZE : 0) < SCALES_SIZE ? SUBGROUPS * SCALES_SIZE : 0;
const uint SCALES_BASE = ROW_STATS_END + (Q_IN_AREAS ? 0 : Q_SIZE);
#define SUBGROUP_SCALES (SCALES_EXTRA == 0 ? gl_SubgroupID * AREA_SIZE : SCALES_BASE + gl_SubgroupID * SCALES_SIZE)
shared uvec4 smem[SCALES_BASE + SCALES_EXTRA];
// Partial scores of a subgroup with QK_SPLIT: 16 keys, double-buffered by parity, in its area behind its scratch.
const uint QK_PARTIAL_STRIDE = 5;
const uint QK_PARTIAL_SIZE = 16 * QK_PARTIAL_STRIDE;
#define QK_PARTIAL(subgroup) ((subgroup) * AREA_SIZE + QK_PARTIAL_SIZE * (1 + parity))
shared uint nonFiniteSeen; // V of a masked tile, or a scale of V, has Inf or NaN, see non_finite_general.glsl
#define DROPS_NON_FINITE (ROW_MASKS || KEY_SCALES)
// Keys of each subgroup's tile, if they are sparse tokens.
shared uint tileKeys[SPARSE_TOKENS != 0 ? SUBGROUPS * KV_TILE : 1];
#define TILE_KEY(col) tileKeys[gl_SubgroupID * KV_TILE + (col)]
