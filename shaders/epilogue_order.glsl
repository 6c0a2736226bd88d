// Which of the three epilogues stores O in calls with options, and the columns that an invocation stores in it.
const uint FEW_PASSES = M_FRAGS * STATE_PASSES <= MAX_PASSES ? 1 : 0;
const uint USE_PASSES = SPLIT * FEW_PASSES;
#if NV2
const uint FEW_PAIRS = M_FRAGS * PAIRS <= MAX_PAIRS ? 1 : 0;
const uint USE_PAIRS = (1 - SPLIT) * FEW_PAIRS;
const uint PAIR_STORES = M_FRAGS * PAIRS * PAIR_STEPS;
#else
const uint USE_PAIRS = 0, PAIR_STORES = 0;
#endif
const uint PASS_STORES = M_FRAGS * STATE_PASSES * PASS_STEPS;
const uint EPILOGUE_STORES = USE_PASSES != 0 ? PASS_STORES : USE_PAIRS != 0 ? PAIR_STORES : M_FRAGS * DV_FRAGS * LANE_VECS;

// Row of the subgroup and column of the slice that this invocation stores as its n-th of EPILOGUE_STORES. It stores
// eight columns, or four in passes. False if there are none.
bool epilogueColumns(uint n, out uint row, out uint sliceCol) {
    const uint lane = gl_SubgroupInvocationID;
    if (USE_PASSES != 0) {
        const uint pass = n / PASS_STEPS, at = n % PASS_STEPS * SUBGROUP_SIZE + lane;
        row = pass / STATE_PASSES * FRAG_M + at / PASS_ROW_QUADS;
        sliceCol = pass % STATE_PASSES * PASS_FRAGS * FRAG_N + at % PASS_ROW_QUADS * 4;
        return at < FRAG_M * PASS_ROW_QUADS && sliceCol < DV_FRAGS * FRAG_N;
    }
#if NV2
    if (USE_PAIRS != 0) {
        const uint pair = n / PAIR_STEPS, at = n % PAIR_STEPS * SUBGROUP_SIZE + lane;
        row = pair / PAIRS * FRAG_M + at / PAIR_ROW_VECS;
        sliceCol = pair % PAIRS * 2 * FRAG_N + at % PAIR_ROW_VECS * 8;
        return at < FRAG_M * PAIR_ROW_VECS && sliceCol < DV_FRAGS * FRAG_N;
    }
#endif
    const uint i = n / LANE_VECS, group = n % LANE_VECS * SUBGROUP_SIZE + lane;
    row = i / DV_FRAGS * FRAG_M + group / (FRAG_N / 8);
    sliceCol = i % DV_FRAGS * FRAG_N + group % (FRAG_N / 8) * 8;
    return group < FRAG_VECS;
}
