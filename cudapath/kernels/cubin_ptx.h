// Inline PTX of cubin.cu alone; sm90.h has what it shares with others.
#pragma once
#include "sm90.h"

// Loads 16 bytes, or zeros. Volatile: the loads start here, not at the first use.
__device__ __forceinline__ void loadOrZero(uint32_t (&x)[4], const char *at, bool there) {
	asm volatile(
		"{\n"
		".reg .pred there;\n"
		"setp.ne.b32 there, %5, 0;\n"
		"mov.b32 %0, 0;\nmov.b32 %1, 0;\nmov.b32 %2, 0;\nmov.b32 %3, 0;\n"
		"@there ld.global.v4.b32 {%0, %1, %2, %3}, [%4];\n"
		"}\n"
		: "=&r"(x[0]), "=&r"(x[1]), "=&r"(x[2]), "=&r"(x[3])
		: "l"(at), "r"(int(there)));
}

// Starts a copy of the map's box at (column, row, head, batch) to L2.
__device__ __forceinline__ void prefetchBox(const TensorMap *map, int column, int row, int head, int batch) {
	asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global.tile [%0, {%1, %2, %3, %4}];" ::"l"(map), "r"(column), "r"(row), "r"(head), "r"(batch) : "memory");
}
