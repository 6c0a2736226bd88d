// Specialization constants of the kernel that copies or reads memory.
layout(constant_id = 117) const uint COPY_VECTORS = 4; // 16-byte loads in flight per invocation
