// Specialization constants of the decode kernel.
layout(constant_id = 48) const uint REGISTER_OPERANDS = 0; // 1: decode_coopmat.comp fills operands from registers, 0: through shared memory
layout(constant_id = 49) const uint COMBINE = 0;       // with SPLIT, the last workgroup of a row combines the splits: 1 to O, 2 to O and LSE
layout(constant_id = 50) const uint DIM_SPLIT = 1;     // subgroups of decode_coopmat.comp that split the head dimension of the same keys
layout(constant_id = 51) const uint PREFETCH = 0;      // decode_coopmat.comp loads of the next KV tile during this one's products: 1 V, 2 K and V
