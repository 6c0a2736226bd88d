// The kernel that stores dQ of head dims above 128.
#pragma once
#include "fa3_backward_rows.h"
#include "fa3_backward_wide_tile.h"

// A CTA scales dQ of a block of BM rows, rounds it and stores it. The thread numbers of each half of the CTA are those of a
// consumer warpgroup, whose accumulators of dQ the workspace holds. The accumulators of 64 dims follow those of the 64 dims before.
// The CTA takes 128 dims at a time.
template <class T> __device__ __forceinline__ void storeWideDQ(const AttnBackwardParams &p) {
	static __shared__ __align__(16) Element tile[T::BM * PITCH<T>];
	const Workspace w = Workspace::of<T>(p);
	const int block = blockIdx.x, head = blockIdx.y, batch = p.first_batch + blockIdx.z;
	const int64_t index = int64_t(batch) * p.Hq + head;
	const int thread = threadIdx.x % 128, row = thread / 32 * 16 + thread % 32 / 4;
	const bool any = lastKeyBlock<T>(p, block) >= 0; // otherwise nothing has been added
	const float scale = p.scale;
	waitForDQ<T>(p, w, index * w.blocks + block, block);
#pragma unroll 1
	for (int piece = threadIdx.x / 128; piece < T::PANELS; piece += ROWS_THREADS / 128) {
		const float4 *from = reinterpret_cast<const float4 *>(w.dQ + (index * w.blocks + block) * (T::BM * T::D) + piece * (64 * T::BM)) + thread;
#pragma unroll
		for (int j = 0; j < 8; j++) {
			const int dim = 64 * piece + 8 * j + 2 * (thread % 4);
			float4 x = any ? loadCached(from + 128 * j) : make_float4(0, 0, 0, 0);
			if (p.accumulate & 1) {
				// Added in float32 and rounded once.
				auto add = [&](float &low, float &high, int r) {
					r += block * T::BM;
					if (r >= p.Sq || dim >= p.D) return;
					const Element *held = reinterpret_cast<const Element *>(p.dQ.base) + batch * p.dQ.batch + head * p.dQ.head + r * p.dQ.row + dim;
					low = fmaf(low, scale, widen(held[0])), high = fmaf(high, scale, widen(held[1]));
				};
				add(x.x, x.y, row), add(x.z, x.w, row + 8);
			} else {
				x.x *= scale, x.y *= scale, x.z *= scale, x.w *= scale;
			}
			Element *to = tile + row * PITCH<T> + dim;
			narrow(to, x.x), narrow(to + 1, x.y);
			narrow(to + 8 * PITCH<T>, x.z), narrow(to + 8 * PITCH<T> + 1, x.w);
		}
	}
	__syncthreads();
	char *const out = reinterpret_cast<char *>(p.dQ.base) + 2 * (batch * p.dQ.batch + head * p.dQ.head);
	storeTile<T>(tile, out, p, block, p.Sq);
}

// storeWideDQ() with options. As in storeSequenceDQ() a CTA takes several blocks.
template <class T> __device__ __forceinline__ void storeWideSequenceDQ(const AttnBackwardParams &p) {
	static __shared__ __align__(16) Element tile[T::BM * PITCH<T>];
	const Workspace w = Workspace::of<T>(p);
	const int head = blockIdx.y, thread = threadIdx.x % 128, inBlock = thread / 32 * 16 + thread % 32 / 4;
	const Sequence s = sequenceOf(p, p.first_batch + blockIdx.z);
	char *const out = s.rowsOf(p, p.dQ, head);
	const bool add = p.accumulate & 1;
	const int end = add ? s.rows.used : s.rows.extent;
#pragma unroll 1
	for (int64_t block = blockIdx.x; block * T::BM < end; block += gridDim.x) {
		const Span keys = keyBlocksOf<T>(s, int(block));
		const bool any = keys.first < keys.end; // otherwise nothing has been added
		if (add && !any) continue;
		const float4 *from = reinterpret_cast<const float4 *>(w.dQ + blockIndex<T>(p, s, head, any ? int(block) : 0) * (T::BM * T::D)) + thread;
		__syncthreads(); // all threads have read the previous tile
#pragma unroll 1
		for (int piece = threadIdx.x / 128; piece < T::PANELS; piece += ROWS_THREADS / 128) {
#pragma unroll
			for (int j = 0; j < 8; j++) {
				const int dim = 64 * piece + 8 * j + 2 * (thread % 4);
				const float4 x = any ? from[piece * (64 * T::BM / 4) + 128 * j] : make_float4(0, 0, 0, 0);
				// Added in float32 and rounded once.
				auto store = [&](float gradient, int r, int column) {
					const int64_t row = block * T::BM + inBlock + r;
					const bool held = add && row < end && dim < p.D;
					narrow(tile + (inBlock + r) * PITCH<T> + dim + column,
					       fmaf(gradient, p.scale, held ? widen(reinterpret_cast<const Element *>(out)[row * p.dQ.row + dim + column]) : 0));
				};
				store(x.x, 0, 0), store(x.y, 0, 1), store(x.z, 8, 0), store(x.w, 8, 1);
			}
		}
		__syncthreads();
		storeTile<T>(tile, out, p, block, end);
	}
}
