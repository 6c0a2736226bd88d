// The kernels before and after the main kernel: row statistics, and dQ from float32 to the storage type. A CTA has a block of BM
// rows of a head.
#pragma once
#include "fa3_backward_lse.h"
#include "element.h"

#if ATTN_BF16
using Element = __nv_bfloat16;
#else
using Element = __half;
#endif

// Sum of the products of eight pairs, as float32.
__device__ __forceinline__ float dotEight(const uint4 &a, const uint4 &b) {
	const Element *x = reinterpret_cast<const Element *>(&a), *y = reinterpret_cast<const Element *>(&b);
	float sum = 0;
#pragma unroll
	for (int i = 0; i < 8; i++) sum = fmaf(widen(x[i]), widen(y[i]), sum);
	return sum;
}

// Loads 16 bytes that no other CTA reads.
__device__ __forceinline__ uint4 loadStreaming(const char *from) { return __ldcs(reinterpret_cast<const uint4 *>(from)); }

// What a thread reads of O and dO of a block of rows. LANES lanes read a row, 16 bytes each. For each i the thread has those of
// row i * ROWS + threadIdx.x / LANES.
template <class T> struct StatLoads {
	static constexpr int LANES = T::STAT_LANES, ROWS = ROWS_THREADS / LANES, COUNT = (T::BM + ROWS - 1) / ROWS;
	uint4 dO[COUNT], o[COUNT];

	// Starts all loads at once. fromO and fromDO are the thread's 16 bytes of row 0. Rows from `end` on become zeros.
	__device__ __forceinline__ void load(const AttnBackwardParams &p, const char *fromO, const char *fromDO, int block, int end, int lane) {
#pragma unroll
		for (int i = 0; i < COUNT; i++) {
			const int row = block * T::BM + i * ROWS + threadIdx.x / LANES;
			o[i] = dO[i] = make_uint4(0, 0, 0, 0);
			if (row < end && 8 * lane < p.Dv) {
				o[i] = loadStreaming(fromO + 2 * (row * p.o.row));
				dO[i] = *reinterpret_cast<const uint4 *>(fromDO + 2 * (row * p.dO.row));
			}
		}
	}

	// rowsum(dO * O) of row number i.
	__device__ __forceinline__ float rowSum(int i) const {
		float sum = dotEight(o[i], dO[i]);
#pragma unroll
		for (int n = LANES / 2; n > 0; n /= 2) sum += __shfl_xor_sync(~0u, sum, n);
		return sum;
	}
};

// A CTA computes the statistics of a block of BM rows: -LSE in log2 units, and dLSE - rowsum(dO * O). Rows that attend
// to no key and rows past Sq get -inf and 0, so that their P is 0. Factors of P are 1 except in a block with a large LSE. The CTA
// also clears the counters of the main kernel.
template <class T> __device__ __forceinline__ void computeStats(const AttnBackwardParams &p) {
	extern __shared__ __align__(1024) char tiles[];
	allowNextKernel();
	constexpr int LANES = T::STAT_LANES, ROWS = ROWS_THREADS / LANES;
	const Workspace w = Workspace::of<T>(p);
	const int block = blockIdx.x, head = blockIdx.y, batch = p.first + blockIdx.z, lane = threadIdx.x % LANES;
	const int64_t index = int64_t(batch) * p.Hq + head;
	if (threadIdx.x == 0) {
		w.clearCounters<T>(index * w.blocks + block, int(index) / (p.Hq / p.Hkv));
		if (index == 0 && block == 0) w.ticket[0] = w.ticket[1] = 0;
	}
	float *const stats = w.lse + (index * w.blocks + block) * T::LSE_FLOATS;
	bool large = false;
	const char *o = reinterpret_cast<const char *>(p.o.base) + 2 * (batch * p.o.batch + head * p.o.head) + 16 * lane;
	const char *dO = reinterpret_cast<const char *>(p.dO.base) + 2 * (batch * p.dO.batch + head * p.dO.head) + 16 * lane;
	StatLoads<T> loads;
	loads.load(p, o, dO, block, p.Sq, lane);
#pragma unroll
	for (int i = 0; i < loads.COUNT; i++) {
		const int inBlock = i * ROWS + threadIdx.x / LANES, row = block * T::BM + inBlock;
		const float sum = loads.rowSum(i);
		if (lane == 0 && inBlock < T::BM) {
			const int64_t at = index * p.Sq + row;
			float lse = row < p.Sq ? reinterpret_cast<const float *>(p.lse)[at] : -INFINITY;
			float delta = 0;
			if (lse == -INFINITY) {
				lse = INFINITY;
			} else {
				delta = sum - (p.dLSE != 0 ? reinterpret_cast<const float *>(p.dLSE)[at] : 0);
			}
			const float less = -lse * LOG2E;
			large |= fabsf(less) >= LARGE_LSE && fabsf(less) < INFINITY;
			stats[inBlock] = less;
			stats[T::BM + inBlock] = 1;
			w.delta[index * w.rows + row] = -delta;
		}
	}
	large = namedOr(0, ROWS_THREADS, large && (p.accumulate & 2) == 0);
	if (threadIdx.x == 0) reinterpret_cast<int *>(stats)[2 * T::BM] = large;
	if (large) normalizeLarge<T>(p, stats, batch, head, block, sharedAddress(tiles));
}

// dQ of a block of rows passes through shared memory, from the order of the accumulators to rows of 16-byte stores.
template <class T> constexpr int PITCH = T::D + 8; // elements of a row in shared memory

// Stores the rows of a block of dQ below `end`. out is row 0.
template <class T, class Block>
__device__ __forceinline__ void storeTile(const Element (&tile)[T::BM * PITCH<T>], char *const &out, const AttnBackwardParams &p, const Block &block, const int &end) {
	constexpr int CHUNKS = T::D / 8; // of 16 bytes
	for (int i = threadIdx.x; i < T::BM * CHUNKS; i += ROWS_THREADS) {
		const int row = i / CHUNKS, column = i % CHUNKS * 8;
		const Block at = block * T::BM + row;
		if (at < end && column < p.D) *reinterpret_cast<uint4 *>(out + 2 * (at * p.dQ.row + column)) = *reinterpret_cast<const uint4 *>(tile + row * PITCH<T> + column);
	}
}

// Waits until dQ of a block of rows is complete: the main kernel may still run. `index` counts blocks of all heads. The last CTA
// waits for the end of the main kernel (fa3_backward.cu).
template <class T> __device__ __forceinline__ void waitForDQ(const AttnBackwardParams &p, const Workspace &w, int64_t index, int block) {
	if (threadIdx.x == 0)
		while (loadAcquire(w.turns + index) <= lastKeyBlock<T>(p, block)) waitShortly();
	__syncthreads();
	if (blockIdx.x == gridDim.x - 1 && blockIdx.y == gridDim.y - 1 && blockIdx.z == gridDim.z - 1) waitForKernelBefore();
}

// A CTA scales dQ of a block of BM rows, rounds it and stores it. The thread numbers are those of the consumers, whose
// accumulators of dQ^T the workspace holds.
template <class T> __device__ __forceinline__ void storeDQ(const AttnBackwardParams &p) {
	static __shared__ __align__(16) Element tile[T::BM * PITCH<T>];
	const Workspace w = Workspace::of<T>(p);
	const int block = blockIdx.x, head = blockIdx.y, batch = p.first + blockIdx.z;
	const int64_t index = int64_t(batch) * p.Hq + head;
	const int group = threadIdx.x / 128, thread = threadIdx.x % 128, c = thread % 4;
	const int dim = (T::D == 128 ? 64 * group : 0) + thread / 32 * 16 + thread % 32 / 4, first = T::D == 128 ? 0 : T::DQ_COLUMNS * group;
	const bool any = lastKeyBlock<T>(p, block) >= 0; // otherwise nothing has been added
	const float4 *from = reinterpret_cast<const float4 *>(w.dQ + ((index * w.blocks + block) * T::WARPGROUPS + group) * T::DQ_FLOATS) + thread;
	waitForDQ<T>(p, w, index * w.blocks + block, block);
#pragma unroll
	for (int j = 0; j < T::DQ_COLUMNS / 8; j++) {
		const float4 x = any ? loadCached(from + 128 * j) : make_float4(0, 0, 0, 0);
		Element *to = tile + (first + 8 * j + 2 * c) * PITCH<T> + dim;
		const float scale = p.scale;
		if (p.accumulate & 1) {
			// Added in float32 and rounded once.
			auto held = [&](int column, int d) {
				const int row = block * T::BM + first + 8 * j + 2 * c + column;
				if (row >= p.Sq || d >= p.D) return 0.0f;
				return widen(reinterpret_cast<const Element *>(p.dQ.base)[batch * p.dQ.batch + head * p.dQ.head + row * p.dQ.row + d]);
			};
			narrow(to, fmaf(x.x, scale, held(0, dim))), narrow(to + PITCH<T>, fmaf(x.y, scale, held(1, dim)));
			narrow(to + 8, fmaf(x.z, scale, held(0, dim + 8))), narrow(to + PITCH<T> + 8, fmaf(x.w, scale, held(1, dim + 8)));
		} else {
			narrow(to, x.x * scale), narrow(to + PITCH<T>, x.y * scale);
			narrow(to + 8, x.z * scale), narrow(to + PITCH<T> + 8, x.w * scale);
		}
	}
	__syncthreads();
	char *const out = reinterpret_cast<char *>(p.dQ.base) + 2 * (batch * p.dQ.batch + head * p.dQ.head);
	storeTile<T>(tile, out, p, block, p.Sq);
}
