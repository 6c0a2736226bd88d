//go:build !windows

// The kernels for AVX2 with FMA, 8 lanes a vector, 16 registers.
#if defined(__x86_64__)
#include <immintrin.h>
#include "kernels.h"

#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c")
#endif

#define NAME simd_avx2
#define ISA "avx2"
enum { VL = 8, VECTORS = 2, BROADCASTS = 6 };
typedef float V __attribute__((vector_size(32)));
typedef int32_t U __attribute__((vector_size(32)));
typedef U M;

#define SPLAT(x) ((V)_mm256_set1_ps(x))
#define FMA(a, b, c) ((V)_mm256_fmadd_ps((__m256)(a), (__m256)(b), (__m256)(c)))
#define MAX(a, b) ((V)_mm256_max_ps((__m256)(a), (__m256)(b)))
#define LT(a, b) ((M)_mm256_cmp_ps((__m256)(a), (__m256)(b), _CMP_LT_OQ))
#define LE(a, b) ((M)_mm256_cmp_ps((__m256)(a), (__m256)(b), _CMP_LE_OQ))
#define ANY(m) (_mm256_movemask_ps((__m256)(m)) != 0)
#define SELECT(m, a, b) ((V)_mm256_blendv_ps((__m256)(b), (__m256)(a), (__m256)(m)))
#define WIDEN_F16(p) ((V)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p))))
#define NARROW_F16(p, x) _mm_storeu_si128((__m128i *)(p), _mm256_cvtps_ph((__m256)(x), _MM_FROUND_TO_NEAREST_INT))

#include "masks.h"
#define FMA_EXACT FMA
#include "body.h"

#ifdef __clang__
#pragma clang attribute pop
#endif
#endif
