// Forms of wgmma that only the backward fa3 kernels of wide heads use.
#pragma once
#include "sm90_backward.h"

// d += A B with A and B in shared memory, depth along the rows of A (K-major) and across the rows of B (MN-major).
template <int N> struct WgmmaAcross;

#define WGMMA_ACROSS(N, D, ADDED, A0, A1, A2) \
	template <> struct WgmmaAcross<N> { \
		static __device__ __forceinline__ void add(float (&d)[N / 2], uint32_t a, uint32_t b) { \
			asm volatile("{\n.reg .pred add;\n.reg .b64 a, b;\nmov.b64 a, {" A0 ", " A2 "};\nmov.b64 b, {" A1 ", " A2 "};\nsetp.eq.b32 add, 0, 0;\nwgmma.mma_async.sync.aligned.m64n" #N "k16." \
						 WGMMA_TYPES " {" D "}, a, b, add, 1, 1, 0, 1;\n}\n" \
						 : ADDED : "r"(a), "r"(b), "n"(MATRIX_HIGH)); \
		} \
	};

WGMMA_ACROSS(64, WGMMA_D32, WGMMA_O32, "%32", "%33", "%34")
WGMMA_ACROSS(128, WGMMA_D64, WGMMA_O64, "%64", "%65", "%66")
