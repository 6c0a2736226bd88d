// The combine kernel of latent.cu: adds up the states of the sequences that lie in several parts, in the order of the parts.
//
// A CTA has 64 rows and COMBINE_COLUMNS columns of a sequence. Its 128 threads have the accumulators of a warpgroup of O. They
// compute the weights of COMBINE_PARTS parts at a time in shared memory first, so that the loads of states depend on nothing.
#pragma once
#include "latent_output.h"

constexpr int COMBINE_COLUMNS = 32, COMBINE_CHUNKS = LatentTile::DV / COMBINE_COLUMNS, COMBINE_PARTS = 16;

struct CombineTile {
	static constexpr int WEIGHTS = 0, SUMS = WEIGHTS + 4 * COMBINE_PARTS * LatentTile::ROWS, TOPS = SUMS + 4 * COMBINE_PARTS * LatentTile::ROWS;
	static constexpr int SHARED_BYTES = TOPS + 8 * LatentTile::ROWS;
};

__device__ __forceinline__ float loadSharedFloat(uint32_t at) { return __uint_as_float(loadSharedWord(at)); }

__device__ __forceinline__ void combineLatent(const AttnLatentParams &p) {
	using T = LatentTile;
	extern __shared__ __align__(1024) char tiles[];
	const uint32_t shared = sharedAddress(tiles);
	const int batch = blockIdx.y, rowTile = blockIdx.x / COMBINE_CHUNKS, chunk = blockIdx.x % COMBINE_CHUNKS;
	const int thread = threadIdx.x, row = thread / 32 * 16 + thread % 32 / 4, mine = thread % T::ROWS, half = thread / T::ROWS;
	const LatentSequence of(p, batch);
	const int begin = latentTilesBefore(p, batch);
	const LatentParts parts(p, latentTilesBefore(p, p.B));
	const int first = parts.partOf(begin), last = parts.partOf(begin + LatentSequence::tilesOf(of.keys) - 1);
	if (first == last || rowTile * T::ROWS >= of.rows.used * p.Hq) return;
	waitForKernelBefore();
	auto stateOf = [&](int part) { return LatentState(p, 2 * part + (part == first), rowTile); };
	// Row max of all parts: two threads have half of the parts of a row each.
	const float scale = fabsf(p.scale_log2);
	Rows all = {{-INFINITY, -INFINITY}, {0, 0}, {0, 0}, {0, 0}, false}; // of row `mine`, its first
#pragma unroll 4
	for (int part = first + half; part <= last; part += 2) all.top[0] = fmaxf(all.top[0], *stateOf(part).top(mine));
	storeSharedWord(shared + CombineTile::TOPS + 4 * thread, __float_as_uint(all.top[0]));
	__syncthreads();
	all.top[0] = fmaxf(all.top[0], loadSharedFloat(shared + CombineTile::TOPS + 4 * (thread ^ T::ROWS)));
	const bool far = all.isFar(0, scale);
	const float rowMax = all.rowMax(0, scale);
	Rows rows = {{-INFINITY, -INFINITY}, {0, 0}, {0, 0}, {0, 0}, false};
#pragma unroll
	for (int r = 0; r < 2; r++) {
		const uint32_t at = shared + CombineTile::TOPS + 4 * (row + 8 * r);
		rows.top[r] = fmaxf(loadSharedFloat(at), loadSharedFloat(at + 4 * T::ROWS));
	}
	float o[COMBINE_COLUMNS / 2] = {};
	for (int from = first; from <= last; from += COMBINE_PARTS) {
		const int count = min(COMBINE_PARTS, last + 1 - from);
		// Weights are those of softmaxP(): 2^(row max of the part - row max), in log2 units.
#pragma unroll 4
		for (int i = half; i < count; i += 2) {
			const LatentState state = stateOf(from + i);
			const float top = *state.top(mine), sum = *state.sum(mine);
			const float step = far ? (top - all.top[0]) * scale : top * scale - rowMax;
			// A row max that is NaN makes the row NaN. A part in which the row attends to no key has no weight, and nothing in its O.
			const float weight = top == -INFINITY && sum == 0 ? 0 : top == all.top[0] ? 1 : exp2Approx(step);
			storeSharedWord(shared + CombineTile::WEIGHTS + 4 * (i * T::ROWS + mine), __float_as_uint(weight));
			storeSharedWord(shared + CombineTile::SUMS + 4 * (i * T::ROWS + mine), __float_as_uint(weight * sum));
		}
		__syncthreads();
#pragma unroll 4
		for (int i = 0; i < count; i++) {
			const LatentState state = stateOf(from + i);
			float weight[2];
#pragma unroll
			for (int r = 0; r < 2; r++) {
				weight[r] = loadSharedFloat(shared + CombineTile::WEIGHTS + 4 * (i * T::ROWS + row + 8 * r));
				rows.sum[r] += loadSharedFloat(shared + CombineTile::SUMS + 4 * (i * T::ROWS + row + 8 * r));
			}
#pragma unroll
			for (int j = 0; j < COMBINE_COLUMNS / 8; j++) {
				const int column = chunk * COMBINE_COLUMNS / 8 + j;
				const float4 x = loadCached(state.accumulators(column / 32, column % 32));
				o[4 * j] = weight[0] == 0 ? o[4 * j] : fmaf(weight[0], x.x, o[4 * j]);
				o[4 * j + 1] = weight[0] == 0 ? o[4 * j + 1] : fmaf(weight[0], x.y, o[4 * j + 1]);
				o[4 * j + 2] = weight[1] == 0 ? o[4 * j + 2] : fmaf(weight[1], x.z, o[4 * j + 2]);
				o[4 * j + 3] = weight[1] == 0 ? o[4 * j + 3] : fmaf(weight[1], x.w, o[4 * j + 3]);
			}
		}
		__syncthreads();
	}
	float inverse[2];
#pragma unroll
	for (int r = 0; r < 2; r++) {
		const int at = rowTile * T::ROWS + row + 8 * r, query = at / p.Hq;
		const bool none = query >= of.rows.used || latentKeysOf(query, of.right, of.keys.used) == 0;
		inverse[r] = none || rows.sum[r] == 0 ? 0 : 1 / rows.sum[r]; // no key, or scores that are all -inf
		if (p.lse != 0 && chunk == 0 && thread % 4 == 0 && query < of.rows.used)
			*lseOfLatent(p, batch, of.rows.first, query, at - query * p.Hq) = none ? -INFINITY : lseOf(p, rows, r, rows.sum[r], scale);
	}
	multiply(o, inverse);
	storeLatentO(o, p, batch, of.rows.first, of.rows.used, rowTile, row, chunk * COMBINE_COLUMNS);
}
