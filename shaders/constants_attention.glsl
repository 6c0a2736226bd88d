// Specialization constants of the forward kernels of every tier.
layout(constant_id = 11) const uint CAUSAL = 0;       // 1: a row sees the keys up to row + causalOffset
layout(constant_id = 13) const uint ALIGN_Q = 1;      // elements
layout(constant_id = 14) const uint ALIGN_K = 1;      // elements
layout(constant_id = 15) const uint ALIGN_V = 1;      // elements
layout(constant_id = 6) const uint KV_TILE = 64;      // kBlockN: keys per KV tile
layout(constant_id = 10) const uint DV_SLICE = 128;   // columns of O per workgroup
