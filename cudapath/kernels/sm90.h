// Inline PTX for sm_90a: mbarriers, TMA copies, named barriers and register reallocation. wgmma is in sm90_wgmma.h.
#pragma once
#include "ptx.h"

// A tensor map that cuTensorMapEncodeTiled has encoded. Kernels only take its address.
struct alignas(64) TensorMap { uint8_t bytes[128]; };

__device__ __forceinline__ uint32_t sharedAddress(const void *p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

// ---- mbarriers -------------------------------------------------------------------------------

__device__ __forceinline__ void barrierInit(uint32_t bar, int arrivals) {
	asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory");
}

// Makes initialized mbarriers visible to TMA. A __syncthreads must follow.
__device__ __forceinline__ void barrierInitFence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ __forceinline__ void barrierArrive(uint32_t bar) {
	asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}

// Arrives once and makes the phase also wait for `bytes` of TMA copies.
__device__ __forceinline__ void barrierExpect(uint32_t bar, int bytes) {
	asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}

// Waits until the phase of this parity is complete. On a fresh mbarrier a wait for parity 1 returns at once, as if
// a phase before the first were complete.
__device__ __forceinline__ void barrierWait(uint32_t bar, uint32_t parity) {
	asm volatile(
		"{\n"
		".reg .pred done;\n"
		"again:\n"
		"mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
		"@!done bra again;\n"
		"}\n" ::"r"(bar), "r"(parity) : "memory");
}

// ---- TMA ---------------------------------------------------------------------------------------

__device__ __forceinline__ void prefetchMap(const TensorMap *map) {
	asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Copies the map's box at (column, row, head, batch) to shared memory. Elements outside of the tensor become zeros.
// The mbarrier `bar` counts the bytes that have arrived.
__device__ __forceinline__ void copyBox(uint32_t to, const TensorMap *map, uint32_t bar, int column, int row, int head, int batch) {
	asm volatile(
		"cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(to),
		"l"(map), "r"(bar), "r"(column), "r"(row), "r"(head), "r"(batch)
		: "memory");
}

// Makes this thread's writes to shared memory visible to later wgmma and TMA operations.
__device__ __forceinline__ void proxyFence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- Named barriers and registers ------------------------------------------------------------

__device__ __forceinline__ void namedSync(int id, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
__device__ __forceinline__ void namedArrive(int id, int threads) { asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory"); }

template <int N> __device__ __forceinline__ void takeRegisters() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N)); }
template <int N> __device__ __forceinline__ void giveRegisters() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N)); }
