// Inline PTX for sm_80 that only the backward fa2 kernels use: barriers of a part of a CTA, and dQ in the L2 cache.
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
