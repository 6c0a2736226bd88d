// Specialization constants of the kernels that have dropout: the general forward kernels but the decode kernel, and the
// backward kernels.
layout(constant_id = 90) const uint DROPOUT = 0;       // 1: weights are dropped, see dropout.glsl
