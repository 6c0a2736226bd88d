// Inline PTX for sm_80: products of a warp (mma), their operands (ldmatrix), asynchronous copies (cp.async) and mbarriers,
// and traits of the two 16-bit types. ptx.h has the instructions that all families use.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "ptx.h"

// Traits of a 16-bit storage type. A pair of elements is packed into one 32-bit register.
struct Half {
	using type = __half;
	static constexpr uint32_t ones = 0x3c003c00;     // 1, 1
	static constexpr uint32_t infinity = 0x7c007c00; // all exponent bits of both elements
	static __device__ __forceinline__ uint32_t pack(float low, float high) { return ::pack<false>(low, high); }
	static __device__ __forceinline__ uint32_t max(uint32_t a, uint32_t b) {
		uint32_t r;
		asm("max.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
		return r;
	}
	static __device__ __forceinline__ float low(uint32_t a) { return __half2float(__ushort_as_half(a & 0xffff)); }
	// d += a b, 16 x 8 x 16
	static __device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
		asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
		    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
		    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
	}
};

struct Bfloat {
	using type = __nv_bfloat16;
	static constexpr uint32_t ones = 0x3f803f80;
	static constexpr uint32_t infinity = 0x7f807f80;
	static __device__ __forceinline__ uint32_t pack(float low, float high) { return ::pack<true>(low, high); }
	static __device__ __forceinline__ uint32_t max(uint32_t a, uint32_t b) {
		uint32_t r;
		asm("max.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
		return r;
	}
	static __device__ __forceinline__ float low(uint32_t a) { return __uint_as_float(a << 16); }
	static __device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
		asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
		    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
		    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
	}
};

// Loads four 8x8 matrices of 16-bit elements. Lane i passes the address of row i % 8 of matrix i / 8.
__device__ __forceinline__ void ldmatrix(uint32_t (&r)[4], uint32_t address) {
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
	             : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
	             : "r"(address)
	             : "memory");
}

__device__ __forceinline__ void ldmatrix_transposed(uint32_t (&r)[4], uint32_t address) {
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
	             : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
	             : "r"(address)
	             : "memory");
}

// Copies 16 bytes from global to shared memory asynchronously, bypassing L1. The overload with `bytes` reads that
// many and fills the rest with zeros.
__device__ __forceinline__ void copy_async(uint32_t to, const void *from) {
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

__device__ __forceinline__ void copy_async(uint32_t to, const void *from, uint32_t bytes) {
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

// Waits for all asynchronous copies of this thread.
__device__ __forceinline__ void copy_wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// mbarriers in shared memory. A phase ends when `arrivals` threads have arrived.
__device__ __forceinline__ void barrier_init(uint32_t barrier, uint32_t arrivals) {
	asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
	asm volatile("{.reg .b64 state; mbarrier.arrive.shared.b64 state, [%0];}" ::"r"(barrier) : "memory");
}

// Arrives when all asynchronous copies that this thread has started are done.
__device__ __forceinline__ void barrier_arrive_copies(uint32_t barrier) {
	asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}

// Waits until the phase of this parity is complete.
__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity) {
	asm volatile("{\n"
	             ".reg .pred done;\n"
	             "again_%=:\n"
	             "mbarrier.test_wait.parity.shared.b64 done, [%0], %1;\n"
	             "@!done bra again_%=;\n"
	             "}" ::"r"(barrier), "r"(parity)
	             : "memory");
}

// Returns x through a shuffle, which keeps the compiler from computing x again instead of holding it in a register.
__device__ __forceinline__ uint32_t heldValue(uint32_t x) {
	uint32_t y;
	asm volatile("shfl.sync.idx.b32 %0, %1, %2, 31, -1;" : "=r"(y) : "r"(x), "r"(threadIdx.x));
	return y;
}

// Returns a + b as one instruction, which keeps the compiler from reordering chains of additions.
__device__ __forceinline__ const char *plus(const char *a, int64_t b) {
	const char *c;
	asm("add.s64 %0, %1, %2;" : "=l"(c) : "l"(a), "l"(b));
	return c;
}
