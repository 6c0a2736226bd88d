// Exchanges within a quad: the four lanes that have the columns of a row, in the accumulators of mma and wgmma.
#pragma once
#include <stdint.h>

__device__ __forceinline__ float quadMax(float x) {
	x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
	return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

__device__ __forceinline__ float quadSum(float x) {
	x += __shfl_xor_sync(~0u, x, 1);
	return x + __shfl_xor_sync(~0u, x, 2);
}

// Transposes four groups of 16 bytes. Before, lane c has word c of each group. After, it has all four words of group c.
__device__ __forceinline__ void transposeQuad(uint32_t (&x)[4], int c) {
	uint32_t give0 = c & 1 ? x[0] : x[1], give1 = c & 1 ? x[2] : x[3];
	give0 = __shfl_xor_sync(~0u, give0, 1), give1 = __shfl_xor_sync(~0u, give1, 1);
	if (c & 1) x[0] = give0, x[2] = give1;
	else x[1] = give0, x[3] = give1;
	give0 = c & 2 ? x[0] : x[2], give1 = c & 2 ? x[1] : x[3];
	give0 = __shfl_xor_sync(~0u, give0, 2), give1 = __shfl_xor_sync(~0u, give1, 2);
	if (c & 2) x[0] = give0, x[1] = give1;
	else x[2] = give0, x[3] = give1;
}
