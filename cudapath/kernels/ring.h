// A ring of N buffers in shared memory, which producer and consumers go through in the same order.
#pragma once
#include <stdint.h>

// A position in the ring, and the mbarrier parity of the phase that fills it.
template <int N> struct Ring {
	int stage = 0;
	uint32_t parity = 0;
	__device__ __forceinline__ void advance() {
		if (++stage == N) stage = 0, parity ^= 1;
	}
};
