/* bfloat16, as cuda_fp16.h. */
#pragma once
#include "cuda_fp16.h"

struct __nv_bfloat16 { uint16_t bits; };

inline float __bfloat162float(__nv_bfloat16 h) { return floatOf((uint32_t)h.bits << 16); }

inline __nv_bfloat16 __float2bfloat16_rn(float x)
{
	uint32_t bits = bitsOf(x);
	if ((bits & 0x7fffffff) > 0x7f800000u)
		return {0x7fff};
	return {(uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}
