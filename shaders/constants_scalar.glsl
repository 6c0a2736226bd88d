// Specialization constants of the scalar forward kernels.
layout(constant_id = 7) const uint Q_TILE = 64;       // kBlockM: query rows per workgroup (scalar tier)
layout(constant_id = 18) const uint THREADS_X = 16;    // width of the grid of invocations: along keys, and along columns of O
layout(constant_id = 19) const uint CHUNK_D = 32;      // elements of Dqk in shared memory at a time
layout(constant_id = 20) const uint CHUNK_V = 16;      // keys of V in shared memory at a time
