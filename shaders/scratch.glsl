// A subgroup's scratch in shared memory: one fragment as float32, FRAG_M rows of SCRATCH_STRIDE uvec4. The stride is
// odd: the rows of a fragment start in different banks. Fragments pass through it for operations that need to know an
// element's row and column, which VK_KHR_cooperative_matrix hides.
//
// The kernel defines smem, SCRATCH_BASE, and SUBGROUP_SCRATCH if a subgroup's scratch is larger than SCRATCH_SIZE.

const uint SCRATCH_STRIDE = (FRAG_N / 4) | 1;
const uint SCRATCH_SIZE = FRAG_M * SCRATCH_STRIDE;

// Makes the writes of a subgroup's lanes to shared memory visible to each other. Subgroups call it different numbers of
// times between workgroup barriers. lavapipe (Mesa 26.2) counts a subgroup barrier as a workgroup barrier, so a
// subgroup that meets fewer of them runs ahead; its lanes are one vector and need no barrier.
void subgroupSync() {
    if (SUBGROUP_BARRIER != 0)
        controlBarrier(gl_ScopeSubgroup, gl_ScopeSubgroup, gl_StorageSemanticsShared, gl_SemanticsAcquireRelease);
    else
        subgroupMemoryBarrierShared();
}

#ifndef SUBGROUP_SCRATCH
#define SUBGROUP_SCRATCH SCRATCH_SIZE
#endif
uint subgroupScratch() { return SCRATCH_BASE + gl_SubgroupID * SUBGROUP_SCRATCH; }

float loadScratch(uint row, uint col) {
    return uintBitsToFloat(smem[subgroupScratch() + row * SCRATCH_STRIDE + col / 4][col % 4]);
}

void storeScratch(uint row, uint col, float x) {
    smem[subgroupScratch() + row * SCRATCH_STRIDE + col / 4][col % 4] = floatBitsToUint(x);
}

// Stores x to the subgroup's scratch, visible to all its lanes. A macro, as the
// fragment has one of several types.
#define fragmentToScratch(x)                                                                        \
    {                                                                                               \
        subgroupSync();                                                                             \
        coopMatStore(x, smem, subgroupScratch(), SCRATCH_STRIDE, gl_CooperativeMatrixLayoutRowMajor); \
        subgroupSync();                                                                             \
    }

// Vectors of 8 neighbouring elements of a fragment, and how many of them a lane packs.
const uint FRAG_VECS = FRAG_M * FRAG_N / 8;
const uint LANE_VECS = (FRAG_VECS + SUBGROUP_SIZE - 1) / SUBGROUP_SIZE;

// Vector `group` of the fragment in scratch, rounded to the storage type. Vectors are numbered row by row.
uvec4 packScratch8(uint group) {
    uint at = subgroupScratch() + (group / (FRAG_N / 8)) * SCRATCH_STRIDE + (group % (FRAG_N / 8)) * 2;
    uvec4 a = smem[at], b = smem[at + 1];
    return uvec4(pack2(uintBitsToFloat(a.x), uintBitsToFloat(a.y)),
                 pack2(uintBitsToFloat(a.z), uintBitsToFloat(a.w)),
                 pack2(uintBitsToFloat(b.x), uintBitsToFloat(b.y)),
                 pack2(uintBitsToFloat(b.z), uintBitsToFloat(b.w)));
}

// Reduction along rows. Every element of a row receives the row's result, as with coopMatReduceNV.
#define REDUCE_ROWS(result, x, START, STEP)                                                         \
    {                                                                                               \
        fragmentToScratch(x);                                                                       \
        for (uint row = gl_SubgroupInvocationID; row < FRAG_M; row += SUBGROUP_SIZE) {              \
            float all = START;                                                                      \
            for (uint col = 0; col < FRAG_N; ++col) {                                               \
                float next = loadScratch(row, col);                                                 \
                all = STEP;                                                                         \
            }                                                                                       \
            for (uint col = 0; col < FRAG_N; ++col) storeScratch(row, col, all);                    \
        }                                                                                           \
        subgroupSync();                                                                             \
        coopMatLoad(result, smem, subgroupScratch(), SCRATCH_STRIDE, gl_CooperativeMatrixLayoutRowMajor); \
    }

// From a fragment with FRAG_N equal columns to one with SUM_N equal columns, and back.
#define narrowByScratch(result, x)                                                                  \
    {                                                                                               \
        fragmentToScratch(x);                                                                       \
        coopMatLoad(result, smem, subgroupScratch(), SCRATCH_STRIDE, gl_CooperativeMatrixLayoutRowMajor); \
    }
#define widenByScratch(result, x)                                                                   \
    {                                                                                               \
        fragmentToScratch(x);                                                                       \
        for (uint row = gl_SubgroupInvocationID; row < FRAG_M; row += SUBGROUP_SIZE) {              \
            const float one = loadScratch(row, 0);                                                  \
            for (uint col = 1; col < FRAG_N; ++col) storeScratch(row, col, one);                    \
        }                                                                                           \
        subgroupSync();                                                                             \
        coopMatLoad(result, smem, subgroupScratch(), SCRATCH_STRIDE, gl_CooperativeMatrixLayoutRowMajor); \
    }
