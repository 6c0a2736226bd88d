// Asynchronous copies of single threads, in addition to sm90.h: cp.async, which takes no registers for what is in flight.
#pragma once
#include "sm90.h"

// Copies 16 bytes from global to shared memory, or stores zeros.
__device__ __forceinline__ void copyChunk(uint32_t to, const void *from, bool there) {
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}

// Waits for all copies of this thread.
__device__ __forceinline__ void waitChunks() { asm volatile("cp.async.wait_all;" ::: "memory"); }
