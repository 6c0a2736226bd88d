// The combine kernel of latent.cu: adds up the states of the sequences that lie in several parts, in the order of the parts.
//
// A CTA has 64 rows and COMBINE_COLUMNS columns of a sequence. Its 128 threads have the accumulators of a warpgroup of O.
#pragma once
#include "latent_output.h"
#include "sm90_backward.h"

constexpr int COMBINE_COLUMNS = 32, COMBINE_CHUNKS = LatentTile::DV / COMBINE_COLUMNS;

__device__ __forceinline__ void combineLatent(const AttnLatentParams &p) {
	using T = LatentTile;
	waitForKernelBefore();
	const int batch = blockIdx.y, rowTile = blockIdx.x / COMBINE_CHUNKS, chunk = blockIdx.x % COMBINE_CHUNKS;
	const int thread = threadIdx.x, row = thread / 32 * 16 + thread % 32 / 4;
	const LatentSequence of(p, batch);
	const int begin = latentTilesBefore(p, batch);
	const LatentParts parts(p, latentTilesBefore(p, p.B));
	const int first = parts.partOf(begin), last = parts.partOf(begin + LatentSequence::tilesOf(of.keys) - 1);
	if (first == last || rowTile * T::ROWS + thread / 32 * 16 >= of.rows.used * p.Hq) return; // a warp may return alone
	auto stateOf = [&](int part) { return LatentState(p, 2 * part + (part == first), rowTile); };
	// Weights are those of softmaxP(): 2^(row max of the part - row max), in log2 units.
	const float scale = fabsf(p.scale_log2);
	Rows rows = {{-INFINITY, -INFINITY}, {0, 0}, {0, 0}, {0, 0}, false};
	for (int part = first; part <= last; part++)
#pragma unroll
		for (int r = 0; r < 2; r++) rows.top[r] = fmaxf(rows.top[r], *stateOf(part).top(row + 8 * r));
	float o[COMBINE_COLUMNS / 2] = {};
#pragma unroll 4
	for (int part = first; part <= last; part++) {
		const LatentState state = stateOf(part);
		float weight[2];
#pragma unroll
		for (int r = 0; r < 2; r++) {
			const float top = *state.top(row + 8 * r), sum = *state.sum(row + 8 * r);
			const float step = rows.isFar(r, scale) ? (top - rows.top[r]) * scale : top * scale - rows.rowMax(r, scale);
			// A row max that is NaN makes the row NaN. A part in which the row attends to no key has no weight, and nothing in its O.
			weight[r] = top == -INFINITY && sum == 0 ? 0 : top == rows.top[r] ? 1 : exp2Approx(step);
			rows.sum[r] = fmaf(weight[r], sum, rows.sum[r]);
		}
#pragma unroll
		for (int j = 0; j < COMBINE_COLUMNS / 8; j++) {
			const int column = chunk * COMBINE_COLUMNS / 8 + j;
			const float4 x = loadCached(state.accumulators(column / 32, column % 32));
			if (weight[0] != 0) o[4 * j] = fmaf(weight[0], x.x, o[4 * j]), o[4 * j + 1] = fmaf(weight[0], x.y, o[4 * j + 1]);
			if (weight[1] != 0) o[4 * j + 2] = fmaf(weight[1], x.z, o[4 * j + 2]), o[4 * j + 3] = fmaf(weight[1], x.w, o[4 * j + 3]);
		}
	}
	float inverse[2];
#pragma unroll
	for (int r = 0; r < 2; r++) {
		const int at = rowTile * T::ROWS + row + 8 * r, query = at / p.Hq;
		const bool none = query >= of.rows.used || latentKeysOf(query, of.right, of.keys.used) == 0;
		inverse[r] = none ? 0 : 1 / rows.sum[r];
		if (p.lse != 0 && chunk == 0 && thread % 4 == 0 && query < of.rows.used)
			*lseOfLatent(p, batch, of.rows.first, query, at - query * p.Hq) = none ? -INFINITY : lseOf(p, rows, r, rows.sum[r], scale);
	}
	multiply(o, inverse);
	storeLatentO(o, p, batch, of.rows.first, of.rows.used, rowTile, row, chunk * COMBINE_COLUMNS);
}
