// Specialization constants of the kernels of plain attention.
layout(constant_id = 100) const uint PLAIN_TILE_M = 128;  // rows of C per workgroup
layout(constant_id = 101) const uint PLAIN_TILE_N = 128;  // columns of C per workgroup
layout(constant_id = 102) const uint PLAIN_TILE_K = 32;   // depth of a step
layout(constant_id = 103) const uint PLAIN_TRANS_A = 0;   // 1: memory has the rows of A as columns
layout(constant_id = 104) const uint PLAIN_TRANS_B = 0;   // 1: memory has the rows of B as columns
layout(constant_id = 105) const uint PLAIN_SUBGROUPS_M = 4; // subgroups along the rows of a tile
layout(constant_id = 106) const uint PLAIN_SUBGROUPS_N = 2; // subgroups along the columns of a tile
layout(constant_id = 107) const uint PLAIN_BACKWARD = 0;  // 1: the softmax kernel computes dS from P and dP
