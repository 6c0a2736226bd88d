// The kernels before and after the main kernel, with options: those of fa3_backward_rows.h and fa3_backward_lse.h by sequence.
//
// A CTA takes a block of rows of a sequence. Rows in use have statistics. Rows past those in use have dQ = 0, unless the
// call adds to what dQ holds.
#pragma once
#include "fa3_backward_rows.h"

// normalizeLarge() with options.
template <class T> __device__ __forceinline__ void normalizeLarge(const AttnBackwardParams &p, const Sequence &s, float *stats, int head, int block, uint32_t shared) {
	using L = LseTile<T>;
	const int thread = threadIdx.x;
	const AttnTensor q = {uint64_t(s.rowsOf(p, p.q, head)), 0, 0, p.q.row}, k = {uint64_t(s.keysOf(p, p.k, head / (p.Hq / p.Hkv))), 0, 0, p.k.row};
#pragma unroll 1
	for (int part = 0; part < T::BM; part += L::BM) {
		const int row = block * T::BM + part;
		const Span keys = keyBlocksOf<L>(s, row / L::BM);
		float sums[L::BM / 4] = {};
		__syncthreads(); // all threads have read the previous part
		copyPanels<L>(shared + L::Q, q, 0, 0, row, s.rows.used, p.D);
		if (thread < L::BM) storeSharedWord(shared + L::LSE + 4 * thread, __float_as_int(stats[part + thread]));
#pragma unroll 1
		for (int key = keys.first * L::BN; key < keys.end * L::BN; key += L::BN) {
			__syncthreads(); // all threads have read the previous keys
			copyPanels<L>(shared + L::K, k, 0, 0, key, s.keys.used, p.D);
			proxyFence();
			__syncthreads();
			if (thread < 128) {
				const uint32_t lse = shared + L::LSE + 8 * (thread % 4);
				float x[L::BM / 2];
				volatile uint32_t words[L::BM / 4];
				issueTransposedScores<L>(x, matrixOffset(shared + L::K), matrixOffset(shared + L::Q));
				wgmmaWait<0>();
				touch(x);
				if (p.softcap != 0) computeCappedP<L, false>(x, words, lse, Softcap(p));
				else computeP<L, true>(x, PairsAt{lse}, p.scale * LOG2E);
				clearOutside<L>(x, limitsOf<L>(s, row, key), 0);
				addColumns(sums, x);
			}
		}
		storeFactors<T>(sums, stats, part, shared);
	}
}

// computeStats() with options.
template <class T> __device__ __forceinline__ void computeSequenceStats(const AttnBackwardParams &p) {
	extern __shared__ __align__(1024) char tiles[];
	constexpr int LANES = T::STAT_LANES, ROWS = ROWS_THREADS / LANES;
	const Workspace w = Workspace::of<T>(p);
	const int block = blockIdx.x, head = blockIdx.y, lane = threadIdx.x % LANES;
	const Sequence s = sequenceOf(p, p.first + blockIdx.z);
	const int64_t index = blockIndex<T>(p, s, head, block);
	if (threadIdx.x == 0) {
		if (s.batch == 0 && head == 0 && block == 0) w.ticket[0] = w.ticket[1] = 0;
		if (T::WIDE || block * T::BM < s.rows.used) w.clearCounters<T>(index, (s.batch * p.Hq + head) / (p.Hq / p.Hkv));
	}
	if (block * T::BM >= s.rows.used) return;
	float *const stats = w.lse + index * T::LSE_FLOATS, *const deltas = w.delta + index * T::BM;
	const char *const o = s.rowsOf(p, p.o, head) + 16 * lane, *const dO = s.rowsOf(p, p.dO, head) + 16 * lane;
	StatLoads<T> loads;
	loads.load(p, o, dO, block, s.rows.used, lane);
	bool large = false;
#pragma unroll
	for (int i = 0; i < loads.COUNT; i++) {
		const int inBlock = i * ROWS + threadIdx.x / LANES, row = block * T::BM + inBlock;
		const float sum = loads.rowSum(i);
		if (lane == 0 && inBlock < T::BM) {
			const int64_t at = s.statOf(p, head) + row;
			float lse = row < s.rows.used ? reinterpret_cast<const float *>(p.lse)[at] : -INFINITY, delta = 0;
			if (lse == -INFINITY) lse = INFINITY;
			else delta = sum - (p.dLSE != 0 ? reinterpret_cast<const float *>(p.dLSE)[at] : 0);
			const float less = -lse * LOG2E;
			large |= fabsf(less) >= LARGE_LSE && fabsf(less) < INFINITY;
			stats[inBlock] = less;
			stats[T::BM + inBlock] = 1;
			deltas[inBlock] = -delta;
		}
	}
	large = namedOr(0, ROWS_THREADS, large && (p.accumulate & 2) == 0);
	if (threadIdx.x == 0) reinterpret_cast<int *>(stats)[2 * T::BM] = large;
	if (large) normalizeLarge<T>(p, s, stats, head, block, sharedAddress(tiles));
}

// storeDQ() with options. Packed sequences may have more rows than the longest is said to have, so a CTA takes several blocks.
template <class T> __device__ __forceinline__ void storeSequenceDQ(const AttnBackwardParams &p) {
	static __shared__ __align__(16) Element tile[T::BM * PITCH<T>];
	const Workspace w = Workspace::of<T>(p);
	const int head = blockIdx.y, group = threadIdx.x / 128, thread = threadIdx.x % 128, c = thread % 4;
	const int dim = (T::D == 128 ? 64 * group : 0) + thread / 32 * 16 + thread % 32 / 4, first = T::D == 128 ? 0 : T::DQ_COLUMNS * group;
	const Sequence s = sequenceOf(p, p.first + blockIdx.z);
	char *const out = s.rowsOf(p, p.dQ, head);
	const bool add = p.accumulate & 1;
	const int end = add ? s.rows.used : s.rows.extent;
#pragma unroll 1
	for (int64_t block = blockIdx.x; block * T::BM < end; block += gridDim.x) {
		const Span keys = keyBlocksOf<T>(s, int(block));
		const bool any = keys.first < keys.end; // otherwise nothing has been added
		if (add && !any) continue;
		const float4 *from = reinterpret_cast<const float4 *>(w.dQ + (blockIndex<T>(p, s, head, any ? int(block) : 0) * T::WARPGROUPS + group) * T::DQ_FLOATS) + thread;
		__syncthreads(); // all threads have read the previous tile
#pragma unroll
		for (int j = 0; j < T::DQ_COLUMNS / 8; j++) {
			const float4 x = any ? from[128 * j] : make_float4(0, 0, 0, 0);
			Element *to = tile + (first + 8 * j + 2 * c) * PITCH<T> + dim;
			auto sum = [&](float gradient, int column, int d) {
				const int64_t row = block * T::BM + first + 8 * j + 2 * c + column;
				const bool held = add && row < end && d < p.D;
				return fmaf(gradient, p.scale, held ? widen(reinterpret_cast<const Element *>(out)[row * p.dQ.row + d]) : 0);
			};
			narrow(to, sum(x.x, 0, dim)), narrow(to + PITCH<T>, sum(x.y, 1, dim));
			narrow(to + 8, sum(x.z, 0, dim + 8)), narrow(to + PITCH<T> + 8, sum(x.w, 1, dim + 8));
		}
		__syncthreads();
		storeTile<T>(tile, out, p, block, end);
	}
}
