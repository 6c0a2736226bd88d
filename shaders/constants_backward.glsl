// Specialization constants of the backward kernels.
layout(constant_id = 70) const uint HAS_DLSE = 0;      // 1: LSE has a gradient
layout(constant_id = 71) const uint ACCUMULATE = 0;    // 1: dQ, dK and dV are added to what the outputs hold
layout(constant_id = 72) const uint ALIGN_DO = 1;      // elements, as ALIGN_Q
layout(constant_id = 73) const uint ALIGN_DX = 1;      // elements: of dQ or dK
layout(constant_id = 74) const uint ALIGN_DV = 1;      // elements
layout(constant_id = 75) const uint HAS_DK = 1;        // 1: the dK and dV kernel computes dK
layout(constant_id = 76) const uint HAS_DV = 1;        // 1: it computes dV
layout(constant_id = 77) const uint SUM_QUERIES = 0;   // 1: dBias has one row, the sum over the queries
layout(constant_id = 78) const uint DLSE_IN_DELTA = 0; // 1: backward_delta.comp subtracts dLSE from delta, see backward_stats.glsl
layout(constant_id = 111) const uint F32_GRADIENTS = 0; // 1: dQ, dK and dV are float32, whatever the storage type
layout(constant_id = 79) const uint STAT_LANES = 16;   // invocations per row of backward_delta.comp, a power of two
