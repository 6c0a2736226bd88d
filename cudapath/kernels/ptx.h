// Inline PTX that every kernel family uses: arithmetic, shared memory, and memory that CTAs share. sm80.h and sm90.h have
// the instructions of one family. Shared memory is addressed by 32-bit addresses of the shared window.
#pragma once
#include <stdint.h>

// ---- Arithmetic ---------------------------------------------------------------------------------

__device__ __forceinline__ float exp2Approx(float x) {
	float y;
	asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
	return y;
}

// Rounds two float32 to 16 bits and packs them into a word, `low` in the lower half.
template <bool BF16> __device__ __forceinline__ uint32_t pack(float low, float high) {
	uint32_t word;
	if constexpr (BF16) asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
	else asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
	return word;
}

// ---- Shared memory ------------------------------------------------------------------------------

__device__ __forceinline__ uint4 loadShared(uint32_t address) {
	uint4 x;
	asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "r"(address) : "memory");
	return x;
}

__device__ __forceinline__ float2 loadSharedPair(uint32_t address) {
	float2 x;
	asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(address) : "memory");
	return x;
}

__device__ __forceinline__ uint32_t loadSharedWord(uint32_t address) {
	uint32_t x;
	asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(address) : "memory");
	return x;
}

__device__ __forceinline__ uint32_t loadSharedByte(uint32_t address) {
	uint32_t x;
	asm volatile("ld.shared.u8 %0, [%1];" : "=r"(x) : "r"(address) : "memory");
	return x;
}

__device__ __forceinline__ void storeShared(uint32_t address, uint4 x) {
	asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
}

__device__ __forceinline__ void storeSharedWord(uint32_t address, uint32_t x) { asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(x) : "memory"); }
__device__ __forceinline__ void storeSharedByte(uint32_t address, uint32_t x) { asm volatile("st.shared.u8 [%0], %1;" ::"r"(address), "r"(x) : "memory"); }

// ---- Memory that CTAs share ---------------------------------------------------------------------

__device__ __forceinline__ int loadAcquire(const int *from) {
	int x;
	asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(x) : "l"(from) : "memory");
	return x;
}

__device__ __forceinline__ void storeRelease(int *to, int x) { asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(to), "r"(x) : "memory"); }
