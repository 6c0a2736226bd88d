// Inline PTX of decode.cu: groups of asynchronous copies, and arithmetic on pairs of 16-bit numbers and on bytes.
#pragma once
#include "sm80.h"

// ---- Asynchronous copies ------------------------------------------------------------------------

// Copies 4 or 16 bytes, of which the first `bytes` are read; the others become zeros.
template <int SIZE> __device__ __forceinline__ void copyPart(uint32_t to, const void *from, uint32_t bytes) {
	if constexpr (SIZE == 16) asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
	else asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(SIZE), "r"(bytes) : "memory");
}
__device__ __forceinline__ void copyWhole(uint32_t to, const void *from) {
	asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
// Ends a group of copies of this thread; waits until at most N groups are left.
__device__ __forceinline__ void endCopies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> __device__ __forceinline__ void waitCopies() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

// The lane, and the CTA in x, in a way that keeps the compiler from computing ahead, and holding in registers, what follows.
__device__ __forceinline__ int laneNow() {
	int lane;
	asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
	return lane & 31;
}
__device__ __forceinline__ int blockNow() {
	int block;
	asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(block));
	return block;
}

// ---- Bytes and pairs ----------------------------------------------------------------------------

// The bytes of a (0 to 3) and b (4 to 7) that the hexadecimal digits of `which` name.
__device__ __forceinline__ uint32_t pickBytes(uint32_t a, uint32_t b, uint32_t which) { return __byte_perm(a, b, which); }

// (x & mask) ^ flip as one instruction.
__device__ __forceinline__ uint32_t maskFlip(uint32_t x, uint32_t mask, uint32_t flip) {
	uint32_t r;
	asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(r) : "r"(x), "r"(mask), "r"(flip));
	return r;
}

template <bool BF16> __device__ __forceinline__ uint32_t subtractPairs(uint32_t a, uint32_t b) {
	uint32_t r;
	if constexpr (BF16) asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
	else asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
	return r;
}
template <bool BF16> __device__ __forceinline__ uint32_t multiplyPairs(uint32_t a, uint32_t b) {
	uint32_t r;
	if constexpr (BF16) asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
	else asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
	return r;
}
// a b + c, rounded once.
template <bool BF16> __device__ __forceinline__ uint32_t fusePairs(uint32_t a, uint32_t b, uint32_t c) {
	uint32_t r;
	if constexpr (BF16) asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
	else asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
	return r;
}

// Two float8 (e4m3) as float16, which is exact.
__device__ __forceinline__ uint32_t widenFloat8(uint32_t two) {
	uint32_t r;
	asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(r) : "h"((uint16_t)two));
	return r;
}

// ---- Memory that CTAs share ---------------------------------------------------------------------

__device__ __forceinline__ void storeL2(float *to, float4 x) { __stcg((float4 *)to, x); }
__device__ __forceinline__ float4 loadL2(const float *from) { return __ldcg((const float4 *)from); }

// Increments a counter: what was stored before is visible to who sees the number. Returns it as it was.
__device__ __forceinline__ uint32_t countArrival(uint32_t *counter) {
	uint32_t n;
	asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(n) : "l"(counter) : "memory");
	return n;
}
