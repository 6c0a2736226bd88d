//go:build !windows

// The kernels for AVX-512, 16 lanes a vector, 32 registers, and for AVX512-BF16.
#if defined(__x86_64__)
#include <immintrin.h>
#include "kernels.h"

#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,prefer-vector-width=512")
#endif

#define NAME simd_avx512
#define ISA "avx512"
enum { VL = 16, VECTORS = 2, BROADCASTS = 12 };
typedef float V __attribute__((vector_size(64)));
typedef int32_t U __attribute__((vector_size(64)));
typedef __mmask16 M;

#define SPLAT(x) ((V)_mm512_set1_ps(x))
#define FMA(a, b, c) ((V)_mm512_fmadd_ps((__m512)(a), (__m512)(b), (__m512)(c)))
#define FMA_WHERE(m, a, b, c) ((V)_mm512_mask3_fmadd_ps((__m512)(a), (__m512)(b), (__m512)(c), m))
#define MAX(a, b) ((V)_mm512_max_ps((__m512)(a), (__m512)(b)))
#define LT(a, b) _mm512_cmp_ps_mask((__m512)(a), (__m512)(b), _CMP_LT_OQ)
#define LE(a, b) _mm512_cmp_ps_mask((__m512)(a), (__m512)(b), _CMP_LE_OQ)
#define INT_LT(a, b) _mm512_cmplt_epi32_mask((__m512i)(a), (__m512i)(b))
#define INT_LE(a, b) _mm512_cmple_epi32_mask((__m512i)(a), (__m512i)(b))
#define INT_NE(a, b) _mm512_cmpneq_epi32_mask((__m512i)(a), (__m512i)(b))
#define AND(a, b) ((M)((a) & (b)))
#define OR(a, b) ((M)((a) | (b)))
#define NOT(a) ((M) ~(a))
#define ANY(m) ((m) != 0)
#define SELECT(m, a, b) ((V)_mm512_mask_blend_ps(m, (__m512)(b), (__m512)(a)))
#define WIDEN_F16(p) ((V)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(p))))
#define NARROW_F16(p, x) _mm256_storeu_si256((__m256i *)(p), _mm512_cvtps_ph((__m512)(x), _MM_FROUND_TO_NEAREST_INT))

#define FMA_EXACT FMA
#include "body.h"

#ifdef __clang__
#pragma clang attribute pop
#endif

#ifdef SIMD_HAS_PAIRS
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx512bf16,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC target("avx512bf16")
#endif
#include "pairs.h"
#ifdef __clang__
#pragma clang attribute pop
#endif
#endif
#endif
