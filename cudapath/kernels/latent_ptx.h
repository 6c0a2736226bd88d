// Asynchronous copies in addition to sm90.h: TMA with a hint, and cp.async of single threads, which takes no registers for what is in
// flight.
#pragma once
#include "sm90.h"

// copyBox() for what is read once: it is the first to leave L2, before the states of splits.
__device__ __forceinline__ void copyBoxOnce(uint32_t to, const TensorMap *map, uint32_t bar, int column, int row, int head, int batch) {
	asm volatile(
		"cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(to),
		"l"(map), "r"(bar), "r"(column), "r"(row), "r"(head), "r"(batch), "l"(0x12f0000000000000ull) // evict first
		: "memory");
}

// Copies 16 bytes from global to shared memory, or stores zeros.
__device__ __forceinline__ void copyChunk(uint32_t to, const void *from, bool there) {
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}

// Arrives at an mbarrier when all copies of this thread are complete. They are writes of the generic proxy: a thread whose wgmma reads
// them needs a proxyFence() after its wait.
__device__ __forceinline__ void arriveWhenCopied(uint32_t bar) { asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(bar) : "memory"); }

// Two float8 (e4m3), a half of a word, as two float16, which is exact.
template <bool HIGH> __device__ __forceinline__ uint32_t widenFloat8(uint32_t four) {
	uint32_t two;
	if constexpr (HIGH) asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %1;\ncvt.rn.f16x2.e4m3x2 %0, high;\n}\n" : "=r"(two) : "r"(four));
	else asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %1;\ncvt.rn.f16x2.e4m3x2 %0, low;\n}\n" : "=r"(two) : "r"(four));
	return two;
}

// Waits for all copies of this thread.
__device__ __forceinline__ void waitChunks() { asm volatile("cp.async.wait_all;" ::: "memory"); }
