// How decode_coopmat.comp divides the head dimensions among subgroups and the vectors of 16 bytes among lanes.

const uint M_FRAGS = 1;                      // row fragments of a subgroup
const uint SUBGROUPS = LOCAL_SIZE / SUBGROUP_SIZE;
const uint KV_FRAGS = KV_TILE / 16;          // fragments along the keys of a tile
const uint QK_SPLIT = SUBGROUPS == DIM_SPLIT ? DIM_SPLIT : 1; // subgroups that split Dqk; their partial scores are added
// Per subgroup: 32 columns of Dqk, two fragments.
const uint QK_BLOCKS = ((HEAD_DIM + 31) / 32 + QK_SPLIT - 1) / QK_SPLIT;
// Per subgroup: 64 columns of O, four fragments.
const uint DV_BLOCKS = ((DV_SLICE + 63) / 64 + DIM_SPLIT - 1) / DIM_SPLIT;
const uint DV_FRAGS = 4 * DV_BLOCKS;
const uint Q_FRAGS = Q_SMEM_CHUNKS != 0 ? 1 : 2 * QK_BLOCKS; // in registers
const uint S_FRAGS = KV_FRAGS;
#define DIM_INDEX (DIM_SPLIT == 1 ? 0 : gl_SubgroupID % DIM_SPLIT)
#define QK_FIRST_COL (QK_SPLIT == 1 ? 0 : DIM_INDEX * QK_BLOCKS * 32)
#define DV_FIRST_COL (DIM_INDEX * DV_BLOCKS * 64)

// Blocks of Q that a subgroup loads: its own; or every SUBGROUPS-th, where all read Q in shared memory.
const uint Q_LOAD_BLOCKS = Q_SMEM_CHUNKS != 0 ? (QK_BLOCKS + SUBGROUPS - 1) / SUBGROUPS : QK_BLOCKS;
#define Q_BLOCK(b) (Q_SMEM_CHUNKS != 0 ? (b) * SUBGROUPS + gl_SubgroupID : (b))
// Block b that the subgroup loads has columns from col on.
bool hasQ(uint b, uint col) {
    const uint before = Q_SMEM_CHUNKS != 0 ? b * SUBGROUPS + SUBGROUPS - 1 : (QK_SPLIT - 1) * QK_BLOCKS + b; // at most
    return HEAD_DIM >= (before + 1) * 32 || col < HEAD_DIM;
}

// Vectors are assigned to 32 virtual lanes, LANE_FOLD per lane of a smaller subgroup. As in PTX, a group is four lanes.
const uint LANE_FOLD = 32 / SUBGROUP_SIZE;
#define VIRTUAL_LANE(s) ((s) * SUBGROUP_SIZE + gl_SubgroupInvocationID)
#define GROUP_ID(s) (VIRTUAL_LANE(s) / 4) // 0 to 7
#define THREAD_IN_GROUP (gl_SubgroupInvocationID % 4)
