// Specialization constants of the kernels of other operations than attention, in sections, see constants.glsl.

#ifdef CONSTANTS_APPEND
// -- append.comp ----------------------------------------------------------------------------------
layout(constant_id = 60) const uint LANES_PER_ROW = 32; // invocations per row, a power of two
layout(constant_id = 61) const uint CACHE_TYPE = 0;    // type of the cache, as K_TYPE; 0: the type of the new rows
layout(constant_id = 133) const uint GIVEN_SCALE = 0;  // 1: the scales of heads are given, 2: one of all rows
layout(constant_id = 62) const uint ROTARY_DIM = 0;    // elements that are rotated, in pairs; 0: none
layout(constant_id = 63) const uint ROTARY_FIRST = 0;  // elements of a row before the rotated ones
layout(constant_id = 64) const uint ROTARY_HALF_SPLIT = 0; // 1: pairs (i, i + ROTARY_DIM / 2); 0: pairs (2i, 2i + 1)
#endif

#ifdef CONSTANTS_MERGE
// -- merge.comp -----------------------------------------------------------------------------------
layout(constant_id = 108) const uint F32_STATES = 0; // 1: O of the states is float32, whatever the storage type of the result
layout(constant_id = 112) const uint SUM_STATES = 0; // 1: O is the sum of the O of the states, which have no LSE
#endif

#ifdef CONSTANTS_COPY
// -- copy.comp ------------------------------------------------------------------------------------
layout(constant_id = 117) const uint COPY_VECTORS = 4; // 16-byte loads in flight per invocation
#endif

#ifdef CONSTANTS_PEAK
// -- peak.comp ------------------------------------------------------------------------------------
layout(constant_id = 109) const uint PEAK_STEPS = 256; // products per accumulator, a multiple of 8; 0: the dispatch does nothing
#if PRODUCTS
layout(constant_id = 113) const uint PEAK_A = 2;       // A fragments per subgroup: 1, 2 or 4
layout(constant_id = 114) const uint PEAK_B = 4;       // B fragments per subgroup: 2, 4 or 8
layout(constant_id = 115) const uint PEAK_UNROLL = 1;  // steps per turn of the loop, a divisor of PEAK_STEPS
layout(constant_id = 116) const uint PEAK_CHANGE = 0;  // 1: the two A change in every step
#endif
#endif

#ifdef CONSTANTS_PLAIN
// -- plain attention ------------------------------------------------------------------------------
layout(constant_id = 100) const uint PLAIN_TILE_M = 128;  // rows of C per workgroup
layout(constant_id = 101) const uint PLAIN_TILE_N = 128;  // columns of C per workgroup
layout(constant_id = 102) const uint PLAIN_TILE_K = 32;   // depth of a step
layout(constant_id = 103) const uint PLAIN_TRANS_A = 0;   // 1: memory has the rows of A as columns
layout(constant_id = 104) const uint PLAIN_TRANS_B = 0;   // 1: memory has the rows of B as columns
layout(constant_id = 105) const uint PLAIN_SUBGROUPS_M = 4; // subgroups along the rows of a tile
layout(constant_id = 106) const uint PLAIN_SUBGROUPS_N = 2; // subgroups along the columns of a tile
layout(constant_id = 107) const uint PLAIN_BACKWARD = 0;  // 1: the softmax kernel computes dS from P and dP
#endif
