// Specialization constants of the kernel that measures the device's peak.
layout(constant_id = 109) const uint PEAK_STEPS = 256; // products per accumulator, a multiple of 8; 0: the dispatch does nothing
