// The combine kernel of latent.cu: adds up the states of the sequences that lie in several parts, in the order of the parts.
//
// A CTA has 64 rows and COMBINE_COLUMNS columns of a sequence, that of LatentSplit blockIdx.y or sequence blockIdx.y, and one group of
// threads or several, each with every n-th part. A group of 128 threads has the accumulators of a warpgroup of O, and the first group
// adds up the groups. The host launches several where few sequences have many parts: one group took 67 us for the 132 parts of a sequence,
// four groups 9 (H200). Where sequences have two parts, registers count: more CTAs run at once if a thread loads one state at a time.
#pragma once
#include "latent_output.h"

constexpr int COMBINE_COLUMNS = 32, COMBINE_CHUNKS = LatentTile::DV / COMBINE_COLUMNS, COMBINE_GROUPS = 8, COMBINE_THREADS = 128 * COMBINE_GROUPS;

struct CombineTile {
	static constexpr int FLOATS = COMBINE_COLUMNS / 2 + 2; // of a thread: O and the sums of its two rows
	static constexpr int TOPS = 0, STATES = TOPS + 4 * COMBINE_THREADS; // those of several groups
	static constexpr int SHARED_BYTES = STATES + 4 * (COMBINE_GROUPS - 1) * 128 * FLOATS;
};

__device__ __forceinline__ float loadSharedFloat(uint32_t at) { return __uint_as_float(loadSharedWord(at)); }

__device__ __forceinline__ void combineLatent(const AttnLatentParams &p) {
	using T = LatentTile;
	extern __shared__ __align__(1024) char tiles[];
	const uint32_t shared = sharedAddress(tiles);
	const int rowTile = blockIdx.x / COMBINE_CHUNKS, chunk = blockIdx.x % COMBINE_CHUNKS;
	const int thread = threadIdx.x % 128, group = threadIdx.x / 128, groups = blockDim.x / 128, row = thread / 32 * 16 + thread % 32 / 4;
	int first, end, batch, firstRow, queries, keys, right;
	if (LatentSplit::used(p)) {
		waitForKernelBefore();
		const LatentSplit split(p, blockIdx.y);
		first = split[LatentSplit::FIRST], end = split.end(), batch = split[LatentPiece::BATCH], firstRow = split[LatentPiece::FIRST_ROW], queries = split[LatentPiece::ROWS];
		keys = split[LatentPiece::KEYS], right = split[LatentPiece::RIGHT];
	} else {
		const LatentSequence of(p, blockIdx.y);
		const Span parts = LatentParts(p).of(p, blockIdx.y);
		first = parts.first, end = parts.end - first > 1 ? parts.end : 0, batch = of.batch, firstRow = of.rows.first, queries = of.rows.used, keys = of.keys.used, right = of.right;
	}
	if (end == 0 || rowTile * T::ROWS >= queries * p.Hq) return;
	waitForKernelBefore();
	auto stateOf = [&](int part) { return LatentState(p, 2 * part + (part == first), rowTile); };
	// Row max of all parts: the threads of a row have every n-th part each.
	float top = -INFINITY;
#pragma unroll 4
	for (int part = first + int(threadIdx.x) / T::ROWS; part < end; part += 2 * groups) top = fmaxf(top, *stateOf(part).top(threadIdx.x % T::ROWS));
	storeSharedWord(shared + CombineTile::TOPS + 4 * threadIdx.x, __float_as_uint(top));
	__syncthreads();
	const float scale = fabsf(p.scale_log2);
	Rows rows = {{-INFINITY, -INFINITY}, {0, 0}, {0, 0}, {0, 0}, false};
	bool far[2];
	float rowMax[2];
#pragma unroll
	for (int r = 0; r < 2; r++) {
#pragma unroll
		for (int n = 0; n < COMBINE_THREADS / T::ROWS; n++)
			if (n < 2 * groups) rows.top[r] = fmaxf(rows.top[r], loadSharedFloat(shared + CombineTile::TOPS + 4 * (n * T::ROWS + row + 8 * r)));
		far[r] = rows.isFar(r, scale), rowMax[r] = rows.rowMax(r, scale);
	}
	float o[COMBINE_COLUMNS / 2] = {};
#pragma unroll 1
	for (int part = first + group; part < end; part += groups) {
		const LatentState state = stateOf(part);
		float4 x[COMBINE_COLUMNS / 8];
#pragma unroll
		for (int j = 0; j < COMBINE_COLUMNS / 8; j++) {
			const int column = chunk * COMBINE_COLUMNS / 8 + j;
			x[j] = loadCached(state.accumulators(column / 32, column % 32));
		}
		// Weights are those of softmaxP(): 2^(row max of the part - row max), in log2 units. A row max that is NaN makes the row NaN.
		// A part in which the row attends to no key has no weight, and nothing in its O.
		float weight[2];
#pragma unroll
		for (int r = 0; r < 2; r++) {
			const float top = *state.top(row + 8 * r), sum = *state.sum(row + 8 * r), step = far[r] ? (top - rows.top[r]) * scale : top * scale - rowMax[r];
			weight[r] = top == -INFINITY && sum == 0 ? 0 : top == rows.top[r] ? 1 : exp2Approx(step);
			rows.sum[r] += weight[r] * sum;
		}
#pragma unroll
		for (int j = 0; j < COMBINE_COLUMNS / 8; j++) {
			const float y[4] = {x[j].x, x[j].y, x[j].z, x[j].w};
#pragma unroll
			for (int i = 0; i < 4; i++) o[4 * j + i] = weight[i / 2] == 0 ? o[4 * j + i] : fmaf(weight[i / 2], y[i], o[4 * j + i]);
		}
	}
	auto slot = [&](int of, int n) { return shared + CombineTile::STATES + 4 * (((of - 1) * CombineTile::FLOATS + n) * 128 + thread); };
	if (group > 0) {
#pragma unroll
		for (int n = 0; n < COMBINE_COLUMNS / 2; n++) storeSharedWord(slot(group, n), __float_as_uint(o[n]));
#pragma unroll
		for (int r = 0; r < 2; r++) storeSharedWord(slot(group, COMBINE_COLUMNS / 2 + r), __float_as_uint(rows.sum[r]));
	}
	__syncthreads();
	if (group > 0) return;
	for (int other = 1; other < groups; other++) {
#pragma unroll
		for (int n = 0; n < COMBINE_COLUMNS / 2; n++) o[n] += loadSharedFloat(slot(other, n));
#pragma unroll
		for (int r = 0; r < 2; r++) rows.sum[r] += loadSharedFloat(slot(other, COMBINE_COLUMNS / 2 + r));
	}
	float inverse[2];
#pragma unroll
	for (int r = 0; r < 2; r++) {
		const int number = rowTile * T::ROWS + row + 8 * r, query = number / p.Hq;
		const bool none = query >= queries || latentKeysOf(query, right, keys) == 0;
		inverse[r] = none || rows.sum[r] == 0 ? 0 : 1 / rows.sum[r]; // no key, or scores that are all -inf
		if (p.lse != 0 && chunk == 0 && thread % 4 == 0 && query < queries)
			*lseOfLatent(p, batch, firstRow, query, number - query * p.Hq) = none ? -INFINITY : lseOf(p, rows, r, rows.sum[r], scale);
	}
	multiply(o, inverse);
	storeLatentO(o, p, batch, firstRow, queries, rowTile, row, chunk * COMBINE_COLUMNS);
}
