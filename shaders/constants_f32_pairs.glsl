// Specialization constants of the loop with pairs of float16 in the coopmat forward kernel of float32.
layout(constant_id = 124) const uint PAIR_TILE = 0;    // keys of a KV tile of the loop with pairs of float16, see f32_pairs.glsl; 0: no such loop
layout(constant_id = 125) const uint PAIR_GROUP = 2;   // as GROUP, in that loop
layout(constant_id = 126) const uint PAIR_FENCES = 0;  // as FENCES, in that loop
