// Specialization constants of the merge kernel.
layout(constant_id = 108) const uint F32_STATES = 0; // 1: O of the states is float32, whatever the storage type of the result
layout(constant_id = 112) const uint SUM_STATES = 0; // 1: O is the sum of the O of the states, which have no LSE
