// Specialization constants of the coopmat forward kernels, dense and general.
layout(constant_id = 5) const uint M_FRAGS = 1;        // fragments of FRAG_M query rows per subgroup
layout(constant_id = 23) const uint KV_STEP = 16;      // keys of a KV tile per Q K^T product
layout(constant_id = 53) const uint KEYS_PER_SUBGROUP = 0; // not 0: consecutive keys of a KV tile that one subgroup loads
layout(constant_id = 46) const uint SPLIT_KV = 0;      // 1: with SPLIT, subgroups split the keys too: all have the same rows and one KV step of each tile
layout(constant_id = 47) const uint ALIAS_KV = 0;      // 1: V overwrites K in shared memory; a subgroup processes a KV tile in one step
