// The stats kernel of family fa2's backward pass: the records of the rows. A CTA takes a block of rows of a head.
//
// It also clears the counters of the main kernel, and stores dQ = 0 in the rows that the main kernel does not reach.
//
// For the rows of a block with a large LSE (backward_exponent.h) it computes the sums of P by the instructions of the main kernel,
// which subtracts their logarithms from exponents.
#pragma once
#include "fa2_backward.h"

namespace fa2 {

constexpr int RowsThreads = 256;

// Two elements of a row, or 0 past its end.
template <class C> __device__ __forceinline__ uint32_t pair_of(const uint16_t *row, bool there, int col, int dims) {
	if (!there || col >= dims) return 0;
	if constexpr (C::Any) return row[col] | (col + 1 < dims ? uint32_t(row[col + 1]) << 16 : 0);
	return *(const uint32_t *)(row + col);
}

// Computes log2 of the sums of P for all rows of a block that has one with a large LSE. sums has Rows floats for each warp.
template <class C> __device__ __forceinline__ void normalize_large(const AttnBackwardParams &p, const TiledSequence<C> &s, int head, int block, float *record, float *sums) {
	using E = typename C::Element;
	const Exponent<C> exponent(p);
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	const Span blocks = s.key_blocks(block);
	float *const own = sums + warp * C::Rows;
	for (int i = lane; i < C::Rows; i += 32) own[i] = 0;
	__syncwarp();
#pragma unroll 1
	for (int key = blocks.first * C::Keys + warp * 16; key < min(blocks.end * C::Keys, s.keys.used); key += RowsThreads / 2) {
		const uint16_t *const k = (const uint16_t *)s.keysOf(p, p.k, head / (p.Hq / p.Hkv)) + (key + lane / 4) * p.k.row;
		uint32_t a[C::D / 16][4];
#pragma unroll
		for (int d = 0; d < C::D / 16; d++)
#pragma unroll
			for (int e = 0; e < 4; e++)
				a[d][e] = pair_of<C>(k + e % 2 * 8 * p.k.row, key + lane / 4 + e % 2 * 8 < s.keys.used, d * 16 + e / 2 * 8 + lane % 4 * 2, p.D);
#pragma unroll 1
		for (int n = 0; n < C::Rows / 8; n++) {
			const int row = block * C::Rows + 8 * n;
			const uint16_t *const q = (const uint16_t *)s.rowsOf(p, p.q, head) + (row + lane / 4) * p.q.row;
			float x[4] = {};
#pragma unroll
			for (int d = 0; d < C::D / 16; d++) {
				uint32_t b[2];
#pragma unroll
				for (int e = 0; e < 2; e++) b[e] = pair_of<C>(q, row + lane / 4 < s.rows.used, d * 16 + e * 8 + lane % 4 * 2, p.D);
				E::mma(x, a[d], b[0], b[1]);
			}
#pragma unroll
			for (int e = 0; e < 2; e++) {
				const int64_t r = row + lane % 4 * 2 + e;
				float sum = 0, slope;
#pragma unroll
				for (int h = 0; h < 2; h++) {
					const int64_t c = key + lane / 4 + 8 * h;
					if (r < s.rows.used && c < s.keys.used && c >= r - s.left && c <= r + s.right)
						sum += exp2Approx(exponent.template of<true>(x[2 * h + e], record[r % C::Rows], slope));
				}
				for (int i = 4; i < 32; i *= 2) sum += __shfl_xor_sync(~0u, sum, i);
				if (lane < 4) own[8 * n + 2 * lane + e] += sum;
			}
			__syncwarp();
		}
	}
	__syncthreads();
	if (threadIdx.x < C::Rows && fabsf(record[threadIdx.x]) < INFINITY) {
		float sum = 0;
		for (int i = 0; i < RowsThreads / 32; i++) sum += sums[i * C::Rows + threadIdx.x];
		if (sum > 0 && sum < INFINITY) record[2 * C::Rows + threadIdx.x] = log2f(sum);
	}
}

template <class C> __device__ __forceinline__ void stats(const AttnBackwardParams &p) {
	using E = typename C::Element;
	__shared__ float sums[RowsThreads / 32 * C::Rows];
	__shared__ int large;
	constexpr int Lanes = 8; // of a row
	const int head = blockIdx.y, lane = threadIdx.x % Lanes;
	const TiledSequence<C> s(p, p.first + blockIdx.z);
	const Workspace<C> space(p);
	if (threadIdx.x == 0 && head == 0 && blockIdx.x == 0 && s.batch == 0) *space.ticket = 0;
#pragma unroll 1
	for (int64_t block = blockIdx.x; block * C::Rows < s.rows.extent; block += gridDim.x) {
		const int64_t first = block * C::Rows;
		const bool used = first < s.rows.used;
		float *const record = space.records + space.index(p, s, head, block) * C::RecordFloats;
		if (threadIdx.x == 0) {
			large = 0;
			if (used) space.turns[space.index(p, s, head, block)] = 0;
		}
		__syncthreads();
		if (used) {
#pragma unroll 1
			for (int i = threadIdx.x / Lanes; i < C::Rows; i += RowsThreads / Lanes) {
				const int64_t row = first + i;
				const uint16_t *const o = (const uint16_t *)s.rowsOf(p, p.o, head) + row * p.o.row, *const dO = (const uint16_t *)s.rowsOf(p, p.dO, head) + row * p.dO.row;
				float sum = 0;
				if (row < s.rows.used) {
#pragma unroll
					for (int col = 8 * lane; col < C::Dv; col += 8 * Lanes) {
						if (col >= p.Dv) continue;
						uint32_t a[4], b[4];
						if constexpr (C::Any) {
#pragma unroll
							for (int e = 0; e < 4; e++) a[e] = pair_of<C>(o, true, col + 2 * e, p.Dv), b[e] = pair_of<C>(dO, true, col + 2 * e, p.Dv);
						} else {
							*(uint4 *)a = *(const uint4 *)(o + col), *(uint4 *)b = *(const uint4 *)(dO + col);
						}
#pragma unroll
						for (int e = 0; e < 4; e++) sum = fmaf(E::low(a[e] >> 16), E::low(b[e] >> 16), fmaf(E::low(a[e]), E::low(b[e]), sum));
					}
				}
#pragma unroll
				for (int n = Lanes / 2; n > 0; n /= 2) sum += __shfl_xor_sync(~0u, sum, n);
				if (lane == 0) {
					const int64_t at = s.statOf(p, head) + row;
					float lse = row < s.rows.used ? ((const float *)p.lse)[at] : -INFINITY, delta = 0;
					if (lse == -INFINITY) {
						lse = INFINITY; // a row that attends to no key ignores dO and dLSE
					} else {
						delta = sum - (p.dLSE != 0 ? ((const float *)p.dLSE)[at] : 0);
					}
					const float less = -lse * LOG2E;
					if (fabsf(less) >= LARGE_LSE && fabsf(less) < INFINITY && (p.accumulate & 2) == 0) large = 1;
					record[i] = less;
					record[C::Rows + i] = -delta;
					record[2 * C::Rows + i] = 0;
				}
			}
			__syncthreads();
			const bool any = large;
			if (threadIdx.x < 4) record[3 * C::Rows + threadIdx.x] = __int_as_float(any && threadIdx.x == 0);
			if (any) normalize_large<C>(p, s, head, block, record, sums);
		}
		const Span keys = s.key_blocks(block);
		if (p.dQ.base != 0 && (p.accumulate & 1) == 0) {
			const int64_t from = keys.first < keys.end ? max(first, int64_t(s.rows.used)) : first, to = min(first + C::Rows, int64_t(s.rows.extent));
			uint16_t *const out = (uint16_t *)s.rowsOf(p, p.dQ, head);
			for (int64_t i = threadIdx.x; i < (to - from) * p.D; i += RowsThreads) out[(from + i / p.D) * p.dQ.row + i % p.D] = 0;
		}
		__syncthreads();
	}
}

} // namespace fa2
