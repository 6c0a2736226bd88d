// Specialization constants of the coopmat forward kernel of float32.
layout(constant_id = 120) const uint TERMS_IN_SMEM = 1; // 1: P becomes operands in shared memory, see f32_terms.glsl
layout(constant_id = 121) const uint FENCES = 0;       // 1: a fence before the fragments of each chunk of K and of V are loaded
layout(constant_id = 122) const uint GROUP = 2;        // fragments of K or V that a subgroup multiplies at the same time
layout(constant_id = 123) const uint ORDER = 0;        // 1: under a causal mask the longest row tiles of all heads start first, see work_tile_dense.glsl
