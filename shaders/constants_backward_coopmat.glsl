// Specialization constants of the backward kernels on cooperative matrices, which have M_FRAGS and KV_STEP too.
layout(constant_id = 80) const uint ROW_TILE = 64;     // rows per row tile of the dK and dV kernel; KV_STEP of them per product
layout(constant_id = 81) const uint STORE_DS = 0;      // 1: the dK and dV kernel stores dS, see backward_scratch.glsl
layout(constant_id = 110) const uint OPERANDS_IN_SMEM = 1; // 1: P and dS become operands in shared memory, see backward_operands.glsl

const uint PLACES_SIZE = NV2 == 0 ? FRAG_M * FRAG_N / 4 : 0; // of the table of rows and columns, see backward_fragments.glsl
