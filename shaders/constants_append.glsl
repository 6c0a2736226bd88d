// Specialization constants of append.comp.
layout(constant_id = 60) const uint LANES_PER_ROW = 32; // invocations per row, a power of two
layout(constant_id = 61) const uint CACHE_TYPE = 0;    // type of the cache, as KV_TYPE; 0: the type of the new rows
layout(constant_id = 62) const uint ROTARY_DIM = 0;    // elements that are rotated, in pairs; 0: none
layout(constant_id = 63) const uint ROTARY_FIRST = 0;  // elements of a row before the rotated ones
layout(constant_id = 64) const uint ROTARY_HALF_SPLIT = 0; // 1: pairs (i, i + ROTARY_DIM / 2); 0: pairs (2i, 2i + 1)
