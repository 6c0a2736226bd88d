// Specialization constants of the kernel that measures the device's peak.
layout(constant_id = 109) const uint PEAK_STEPS = 256; // products per accumulator, a multiple of 8; 0: the dispatch does nothing
#if PRODUCTS
layout(constant_id = 113) const uint PEAK_A = 2;       // A fragments per subgroup: 1, 2 or 4
layout(constant_id = 114) const uint PEAK_B = 4;       // B fragments per subgroup: 2, 4 or 8
layout(constant_id = 115) const uint PEAK_UNROLL = 1;  // steps per turn of the loop, a divisor of PEAK_STEPS
layout(constant_id = 116) const uint PEAK_CHANGE = 0;  // 1: the two A change in every step
#endif
