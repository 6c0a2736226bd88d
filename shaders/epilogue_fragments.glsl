// Part of main: O / row sum, fragment by fragment through scratch. The kernel defines STORE_GROUP(group, row, col):
// stores vector `group` of the fragment in scratch, eight columns from col on of a row of the subgroup.
{
    // One loop over all fragments: nested loops are not unrolled, and O would leave the registers.
    [[unroll]] for (uint i = 0; i < M_FRAGS * DV_FRAGS; ++i) {
        O[i] *= inverse[i / DV_FRAGS];
        fragmentToScratch(O[i]);
        [[unroll]] for (uint s = 0; s < LANE_VECS; ++s) {
            const uint group = s * SUBGROUP_SIZE + gl_SubgroupInvocationID;
            const uint row = i / DV_FRAGS * FRAG_M + group / (FRAG_N / 8);
            const uint col = work.col0 + i % DV_FRAGS * FRAG_N + group % (FRAG_N / 8) * 8;
            if (group < FRAG_VECS && rowBase + row < ROWS && col < HEAD_DIM_V) {
                STORE_GROUP(group, row, col)
            }
        }
    }
}
