// Specialization constants of the kernels on cooperative matrices: forward and decode.
layout(constant_id = 1) const uint SUBGROUP_SIZE = 32; // invocations per subgroup
layout(constant_id = 21) const uint SUBGROUP_BARRIER = 1; // 0: a subgroup runs in lockstep and needs no barrier, see subgroupSync
layout(constant_id = 2) const uint FRAG_M = 16;        // rows of a fragment
layout(constant_id = 3) const uint FRAG_N = 16;        // columns of a fragment
layout(constant_id = 4) const uint FRAG_K = 16;        // depth of a fragment
layout(constant_id = 22) const uint SUM_N = 16;        // columns of the row sum fragment; decode_coopmat.comp: query rows, the columns of its O
layout(constant_id = 24) const uint Q_SMEM_CHUNKS = 0; // chunks of FRAG_K columns of Q in shared memory, the others are in registers
