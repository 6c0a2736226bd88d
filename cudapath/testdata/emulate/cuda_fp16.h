/* float16 for kernels that a host compiler compiles: conversions, rounded to nearest even. */
#pragma once
#include <stdint.h>
#include <string.h>

struct __half { uint16_t bits; };

inline float floatOf(uint32_t bits)
{
	float x;
	memcpy(&x, &bits, 4);
	return x;
}

inline uint32_t bitsOf(float x)
{
	uint32_t bits;
	memcpy(&bits, &x, 4);
	return bits;
}

inline float __half2float(__half h)
{
	uint32_t sign = (h.bits & 0x8000u) << 16, exponent = h.bits >> 10 & 31, mantissa = h.bits & 0x3ff;
	if (exponent == 31)
		return floatOf(sign | 0x7f800000u | mantissa << 13);
	float x = exponent ? floatOf((exponent + 112) << 23 | mantissa << 13) : (float)mantissa * 0x1p-24f;
	return sign ? -x : x;
}

inline __half __float2half_rn(float x)
{
	uint32_t bits = bitsOf(x), magnitude = bits & 0x7fffffff;
	uint16_t sign = bits >> 16 & 0x8000;
	if (magnitude > 0x7f800000u)
		return {0x7fff};
	if (magnitude >= 0x477ff000u)
		return {(uint16_t)(sign | 0x7c00)};
	if (magnitude < 0x38800000u) /* adding 2^-1 leaves multiples of 2^-24, rounded to even */
		return {(uint16_t)(sign | (bitsOf(floatOf(magnitude) + 0.5f) - 0x3f000000u))};
	return {(uint16_t)(sign | (magnitude - 0x38000000u + 0xfff + (magnitude >> 13 & 1)) >> 13)};
}
