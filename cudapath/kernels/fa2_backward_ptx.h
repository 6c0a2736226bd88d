// Inline PTX that only the backward fa2 kernels use: barriers of a part of a CTA, dQ in the L2 cache, and stmatrix, which sm_90 has.
#pragma once
#include "sm80.h"

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

// Whether the GPU has stmatrix.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
constexpr bool StoresMatrices = true;
#else
constexpr bool StoresMatrices = false;
#endif

// Stores four 8x8 matrices as ldmatrix loads them. Lane i passes the address of row i % 8 of matrix i / 8.
__device__ __forceinline__ void stmatrix(uint32_t address, const uint32_t (&r)[4]) {
	if constexpr (StoresMatrices)
		asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]) : "memory");
}

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
