//go:build !windows

// The kernels for arm64, 4 lanes a vector, 32 registers.
#if defined(__aarch64__)
#include <arm_neon.h>
#include "kernels.h"

#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#endif

#define NAME simd_neon
#define ISA "neon"
enum { VL = 4, VECTORS = 4, BROADCASTS = 6 };
typedef float V __attribute__((vector_size(16)));
typedef int32_t U __attribute__((vector_size(16)));
typedef U M;

#define SPLAT(x) ((V)vdupq_n_f32(x))
#define FMA(a, b, c) ((V)vfmaq_f32((float32x4_t)(c), (float32x4_t)(a), (float32x4_t)(b)))
#define LT(a, b) ((M)((a) < (b)))
#define LE(a, b) ((M)((a) <= (b)))
#define ANY(m) (vmaxvq_u32((uint32x4_t)(m)) != 0)
#define SELECT(m, a, b) ((V)vbslq_f32((uint32x4_t)(m), (float32x4_t)(a), (float32x4_t)(b)))
#define MAX(a, b) SELECT(LT(b, a), a, b)
#define WIDEN_F16(p) ((V)vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p))))
#define NARROW_F16(p, x) vst1_u8(p, vreinterpret_u8_f16(vcvt_f16_f32((float32x4_t)(x))))

#include "masks.h"
#define FMA_EXACT FMA
#include "body.h"
#endif
