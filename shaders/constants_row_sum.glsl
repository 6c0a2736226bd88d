// Specialization constants of the float32 row sums of the coopmat forward kernels.
layout(constant_id = 55) const uint ROW_ELEMENTS = 0;  // consecutive elements of a lane that lie in one row of an accumulator; 0: unknown, see row_sum_f32.glsl
