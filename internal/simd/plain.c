//go:build !windows

// The kernels for any CPU, 4 lanes a vector. A product is rounded before it is added,
// so its bits differ from the other sets.
#include "kernels.h"
#include <string.h>

#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#endif

#define NAME simd_plain
#define ISA "plain"
enum { VL = 4, VECTORS = 2, BROADCASTS = 4 };
typedef float V __attribute__((vector_size(16)));
typedef int32_t U __attribute__((vector_size(16)));
typedef U M;

#define SPLAT(x) ((V){x, x, x, x})
#define FMA(a, b, c) ((a) * (b) + (c))
#define FMA_EXACT(a, b, c) fma_exact(a, b, c)
#define LT(a, b) ((M)((a) < (b)))
#define LE(a, b) ((M)((a) <= (b)))
#define ANY(m) (((m)[0] | (m)[1] | (m)[2] | (m)[3]) != 0)
#define SELECT(m, a, b) ((V)(((U)(a) & (m)) | ((U)(b) & ~(m))))
#define MAX(a, b) SELECT(LT(b, a), a, b)
#define WIDEN_F16(p) widen_f16(p)
#define NARROW_F16(p, x) narrow_f16(p, x)

// The sum of a product, which float64 holds, is rounded to float64 first: hardly ever
// does that show in float32.
static V fma_exact(V a, V b, V c) {
	for (int i = 0; i < VL; i++) c[i] = (float)((double)a[i] * b[i] + c[i]);
	return c;
}

// As package half has it.
static V widen_f16(const uint8_t *p) {
	U u;
	for (int i = 0; i < VL; i++) {
		const uint32_t h = p[2 * i] | (uint32_t)p[2 * i + 1] << 8, size = h & 0x7fff;
		uint32_t bits = size << 13;
		if (size >= 0x7c00) {
			bits |= size > 0x7c00 ? 0x7fc00000 : 0x7f800000;
		} else { // the exponent is short by 127 - 15
			float x;
			memcpy(&x, &bits, 4);
			x *= 0x1p112f;
			memcpy(&bits, &x, 4);
		}
		u[i] = (int32_t)(bits | (h & 0x8000) << 16);
	}
	return (V)u;
}

static void narrow_f16(uint8_t *p, V x) {
	for (int i = 0; i < VL; i++) {
		const uint32_t all = (uint32_t)((U)x)[i], sign = all >> 16 & 0x8000;
		uint32_t b = all & 0x7fffffff, h;
		if (b > 0x7f800000) {
			h = 0x7e00 | (b >> 13 & 0x3ff);
		} else if (b >= 0x47800000) {
			h = 0x7c00;
		} else if (b >= 0x38800000) {
			h = (b + 0xfff + (b >> 13 & 1) - 0x38000000) >> 13;
		} else { // a sum with 0.5 has the same unit in the last place as subnormal halves
			float f;
			memcpy(&f, &b, 4);
			f += 0.5f;
			memcpy(&b, &f, 4);
			h = b - 0x3f000000;
		}
		h |= sign;
		p[2 * i] = (uint8_t)h;
		p[2 * i + 1] = (uint8_t)(h >> 8);
	}
}

#include "masks.h"
#include "body.h"
