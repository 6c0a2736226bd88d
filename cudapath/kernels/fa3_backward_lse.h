// Blocks of rows with a large LSE in the backward fa3 kernels (see backward_exponent.h): the pass over the keys of the stats kernel.
//
// The CTA that computes the statistics of a block of rows goes through it in parts of 64 rows, and through the keys in tiles
// of 64. All threads copy Q and K to shared memory, with a __syncthreads before and after. The first warpgroup computes S^T as
// the main kernel does, P and its sums. The main kernel multiplies P of the block by the factors 1 / sum.
#pragma once
#include "fa3_backward_consume.h"

constexpr int ROWS_THREADS = 256;

// A tile of 64 rows and 64 keys.
template <class T> struct LseTile {
	static constexpr int D = T::D, BM = 64, BN = 64, PANELS = D / 64, ROW_PANEL = BM * 128, KEY_PANEL = BN * 128;
	static constexpr bool CAUSAL = T::CAUSAL, OPTIONS = T::OPTIONS, FLOAT_P = false;
	static constexpr int K = 0, Q = K + PANELS * KEY_PANEL, LSE = Q + PANELS * ROW_PANEL, SUMS = LSE + 4 * BM, SHARED_BYTES = SUMS + 4 * 4 * BM;
};

// Copies 64 rows of a head to shared memory, swizzled as by TMA. Rows and dims past the end are 0.
template <class T> __device__ __forceinline__ void copyPanels(uint32_t to, const AttnTensor &t, int batch, int head, int first, int rows, int dims) {
	const char *from = reinterpret_cast<const char *>(t.base) + 2 * (batch * t.batch + head * t.head);
	constexpr int CHUNKS = T::D / 8; // of 16 bytes
#pragma unroll 1
	for (int i = threadIdx.x; i < 64 * CHUNKS; i += ROWS_THREADS) {
		const int row = i / CHUNKS, chunk = i % CHUNKS;
		uint4 x = {};
		if (first + row < rows && 8 * chunk < dims) x = *reinterpret_cast<const uint4 *>(from + 2 * ((first + row) * t.row) + 16 * chunk);
		storeShared(to + chunk / 8 * T::ROW_PANEL + row * 128 + (chunk % 8 ^ row % 8) * 16, x);
	}
}

// Adds P^T of a tile to the sums of the thread's columns, which are the rows of P.
template <int N> __device__ __forceinline__ void addColumns(float (&sums)[N], const float (&P)[2 * N]) {
#pragma unroll
	for (int i = 0; i < N; i++) sums[i] += P[4 * (i / 2) + i % 2] + P[4 * (i / 2) + 2 + i % 2];
}

// Adds the sums of P of all threads and stores 1 / sum for the 64 rows from number `part` of the block on.
template <class T> __device__ __forceinline__ void storeFactors(float (&sums)[LseTile<T>::BM / 4], float *stats, int part, uint32_t shared) {
	using L = LseTile<T>;
	const int thread = threadIdx.x;
	if (thread < 128) {
#pragma unroll
		for (int i = 0; i < L::BM / 4; i++) {
			for (int n = 4; n < 32; n *= 2) sums[i] += __shfl_xor_sync(~0u, sums[i], n);
			if (thread % 32 < 4)
				storeSharedWord(shared + L::SUMS + 4 * (thread / 32 * L::BM + 8 * (i / 2) + 2 * (thread % 4) + i % 2), __float_as_int(sums[i]));
		}
	}
	__syncthreads();
	if (thread < L::BM && fabsf(stats[part + thread]) < INFINITY) {
		float sum = 0;
		for (int i = 0; i < 4; i++) sum += __int_as_float(loadSharedWord(shared + L::SUMS + 4 * (i * L::BM + thread)));
		if (sum > 0 && sum < INFINITY) stats[T::BM + part + thread] = 1 / sum;
	}
}

// Computes 1 / sum of P for all rows of a block that has one with a large LSE. stats is the block's record of -LSE and factors.
template <class T> __device__ __forceinline__ void normalizeLarge(const AttnBackwardParams &p, float *stats, int batch, int head, int block, uint32_t shared) {
	using L = LseTile<T>;
	const int thread = threadIdx.x;
#pragma unroll 1
	for (int part = 0; part < T::BM; part += L::BM) {
		const int row = block * T::BM + part;
		float sums[L::BM / 4] = {};
		__syncthreads(); // all threads have read the previous part
		copyPanels<L>(shared + L::Q, p.q, batch, head, row, p.Sq, p.D);
		if (thread < L::BM) storeSharedWord(shared + L::LSE + 4 * thread, __float_as_int(stats[part + thread]));
		const int64_t end = min(int64_t(p.Sk), T::CAUSAL ? min(row + L::BM, p.Sq) + causalOffset<T>(p) : int64_t(p.Sk));
#pragma unroll 1
		for (int key = 0; key < end; key += L::BN) {
			__syncthreads(); // all threads have read the previous keys
			copyPanels<L>(shared + L::K, p.k, batch, head / (p.Hq / p.Hkv), key, p.Sk, p.D);
			proxyFence();
			__syncthreads();
			if (thread < 128) {
				float s[L::BM / 2];
				issueTransposedScores<L>(s, matrixOffset(shared + L::K), matrixOffset(shared + L::Q));
				wgmmaWait<0>();
				touch(s);
				computeP<L, true>(s, PairsAt{shared + L::LSE + 8 * (thread % 4)}, p.scale * LOG2E);
				clearMasked<L>(s, p, key, row | INT32_MIN);
				addColumns(sums, s);
			}
		}
		storeFactors<T>(sums, stats, part, shared);
	}
}
