//go:build !windows

#include "kernels.h"
#include <stddef.h>

const simd_kernels *simd_set(int32_t i) {
	const simd_kernels *sets[5];
	int32_t n = 0;
#if defined(__x86_64__)
	if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
		__builtin_cpu_supports("avx512vl")) {
		sets[n++] = &simd_avx512;
#ifdef SIMD_HAS_PAIRS
		if (__builtin_cpu_supports("avx512bf16") && simd_pairs_in_order()) {
			sets[n++] = &simd_avx512_bf16;
			if (__builtin_cpu_is("amd")) { // on a Xeon products of pairs are the slower set, docs/log/cpu.md, 8
				sets[0] = &simd_avx512_bf16;
				sets[1] = &simd_avx512;
			}
		}
#endif
	}
	if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) sets[n++] = &simd_avx2;
#elif defined(__aarch64__)
	sets[n++] = &simd_neon;
#endif
	sets[n++] = &simd_plain;
	return i < n ? sets[i] : NULL;
}
