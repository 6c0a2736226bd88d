// The instructions of kernels/cubin_ptx.h on the CPU.
#pragma once
#include "sm90.h"
static inline void loadOrZero(uint32_t (&x)[4], const char *at, bool there) {
	if (reinterpret_cast<uintptr_t>(at) % 16) refuse("unaligned load", reinterpret_cast<uintptr_t>(at));
	if (there) memcpy(x, at, 16);
	else memset(x, 0, 16);
}
static inline void prefetchBox(const TensorMap *, int, int, int, int) {}
