// Inline PTX for sm_80 that only the backward fa2 kernels use: barriers of a part of a CTA, and memory shared by CTAs.
#pragma once
#include "ptx.h"

// Whether the phase of this parity is complete.
__device__ __forceinline__ bool barrier_test(uint32_t barrier, uint32_t parity) {
	uint32_t done;
	asm volatile("{\n"
	             ".reg .pred done;\n"
	             "mbarrier.test_wait.parity.shared.b64 done, [%1], %2;\n"
	             "selp.u32 %0, 1, 0, done;\n"
	             "}"
	             : "=r"(done)
	             : "r"(barrier), "r"(parity)
	             : "memory");
	return done;
}

// Joins the first `threads` threads of a CTA. Returns whether x holds for any of them.
__device__ __forceinline__ bool join_any(uint32_t threads, bool x) {
	uint32_t any;
	asm volatile("{\n"
	             ".reg .pred x, any;\n"
	             "setp.ne.u32 x, %1, 0;\n"
	             "barrier.cta.red.or.pred any, 1, %2, x;\n"
	             "selp.u32 %0, 1, 0, any;\n"
	             "}"
	             : "=r"(any)
	             : "r"(uint32_t(x)), "r"(threads)
	             : "memory");
	return any;
}

__device__ __forceinline__ void join(uint32_t threads) { asm volatile("barrier.cta.sync 1, %0;" ::"r"(threads) : "memory"); }

__device__ __forceinline__ int load_acquire(const int *from) {
	int x;
	asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(x) : "l"(from) : "memory");
	return x;
}

__device__ __forceinline__ void store_release(int *to, int x) { asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(to), "r"(x) : "memory"); }

// Loads memory that other CTAs write, from the L2 cache, or gives 0 if x does not hold. It does not branch.
__device__ __forceinline__ float4 load_l2_if(bool x, const float *from) {
	float4 v;
	asm volatile("{\n"
	             ".reg .pred x;\n"
	             "setp.ne.u32 x, %5, 0;\n"
	             "mov.f32 %0, 0f00000000;\n"
	             "mov.f32 %1, 0f00000000;\n"
	             "mov.f32 %2, 0f00000000;\n"
	             "mov.f32 %3, 0f00000000;\n"
	             "@x ld.global.cg.v4.f32 {%0,%1,%2,%3}, [%4];\n"
	             "}"
	             : "=&f"(v.x), "=&f"(v.y), "=&f"(v.z), "=&f"(v.w)
	             : "l"(from), "r"(uint32_t(x))
	             : "memory");
	return v;
}

__device__ __forceinline__ void store_l2(float *to, float4 x) {
	asm volatile("st.global.cg.v4.f32 [%0], {%1,%2,%3,%4};" ::"l"(to), "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w) : "memory");
}

__device__ __forceinline__ float2 load_shared_pair(uint32_t address) {
	float2 x;
	asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(address) : "memory");
	return x;
}

__device__ __forceinline__ uint32_t load_shared_byte(uint32_t address) {
	uint32_t x;
	asm volatile("ld.shared.u8 %0, [%1];" : "=r"(x) : "r"(address) : "memory");
	return x;
}

__device__ __forceinline__ void store_shared_byte(uint32_t address, uint32_t x) { asm volatile("st.shared.u8 [%0], %1;" ::"r"(address), "r"(x) : "memory"); }
