// dQ from float32 in the workspace to the storage type, by the idle warps of the producer warpgroup.
//
// As soon as the counter of a block of rows says that all contributions are complete, a warp scales dQ of 16 of its rows,
// rounds it and stores it. The pieces are in the order in which the units complete them, and the warps of all CTAs take
// turns. So dQ is read while it is in the L2 cache and while the tensor cores work on later units. A warp waits only for
// units whose tickets are drawn by the copiers, which wait for no conversion. Only the kernels of head dim 64 without options
// convert: at 128 the last conversions of a causal call of length 1024 overlap with nothing, 14 % slower (H100).
#pragma once
#include "fa3_backward_consume.h"

template <class T> __device__ __forceinline__ void convertTiles(const AttnBackwardParams &p, int warp) {
	if (p.dQ.base == 0) return;
	constexpr int ROWS_PER_PIECE = 16, PIECES = T::BM / ROWS_PER_PIECE;
	const int blocks = (p.Sq + T::BM - 1) / T::BM, perHead = p.Hq / p.Hkv * blocks * PIECES;
	const int lane = threadHere() % 32, c = lane % 4;
	static_assert(T::D == 64, "a warpgroup has half of the rows");
#pragma unroll 1
	for (int piece = CONVERTERS * blockIdx.x + warp; piece < p.Hkv * p.B * perHead; piece += CONVERTERS * gridDim.x) {
		// Decode the piece: groups of heads as in unitOf(); in a group the query head of each KV head, the block, the KV head.
		const HeadOrder order = HeadOrder::of<T>(p);
		const int chunk = min(piece / (order.together * perHead), order.descending / order.together);
		int kvHead = chunk * order.together, width = min(order.together, order.descending - kvHead), at = piece - kvHead * perHead;
		if (piece >= order.descending * perHead) kvHead = order.descending, width = order.ascending, at = piece - kvHead * perHead;
		const int part = at % PIECES;
		at /= PIECES;
		kvHead += at % width;
		at /= width;
		const int block = at % blocks, index = kvHead * (p.Hq / p.Hkv) + at / blocks;

		const int contributions = lastKeyBlock<T>(p, block) + 1;
		if (lane == 0) {
			const int *turn = reinterpret_cast<const int *>(p.stats) + 32 + int64_t(index) * blocks + block;
			while (loadAcquire(turn) != contributions) waitShortly();
		}
		__syncwarp();
		// The accumulators of dQ^T that the piece consists of. A warpgroup has half of the rows of the block.
		const int group = part * ROWS_PER_PIECE / T::DQ_COLUMNS, column = part * ROWS_PER_PIECE % T::DQ_COLUMNS;
		const float4 *from = reinterpret_cast<const float4 *>(Workspace::of<T>(p).dQ) +
				     ((int64_t(index) * blocks + block) * T::WARPGROUPS + group) * (T::DQ_FLOATS / 4) + column / 8 * 128 + lane;
		const int first = block * T::BM + part * ROWS_PER_PIECE;
		char *const head = reinterpret_cast<char *>(p.dQ.base) + 2 * (index / p.Hq * p.dQ.batch + index % p.Hq * p.dQ.head);
#pragma unroll 1
		for (int i = 0; i < 2 * T::D / 32; i++) { // 8 rows by 32 dims
			const int row = first + 8 * (i % 2), dim = i / 2 * 32;
			const float4 *const source = from + i % 2 * 128 + dim / 16 * 32;
			float4 a = make_float4(0, 0, 0, 0), b = a;
			if (contributions > 0) a = loadCached(source), b = loadCached(source + 32);
			uint32_t x[4];
			if (p.accumulate & 1) {
				// Added in float32 and rounded once.
				auto sum = [&](float value, int r, int d) {
					r += row + 2 * c, d += dim + lane / 4;
					if (r >= p.Sq || d >= p.D) return 0.0f;
					return fmaf(value, p.scale, widenHalf<BF16>(*reinterpret_cast<const uint16_t *>(head + 2 * (r * p.dQ.row + d)), 0));
				};
				x[0] = pack<BF16>(sum(a.x, 0, 0), sum(a.y, 1, 0)), x[1] = pack<BF16>(sum(a.z, 0, 8), sum(a.w, 1, 8));
				x[2] = pack<BF16>(sum(b.x, 0, 16), sum(b.y, 1, 16)), x[3] = pack<BF16>(sum(b.z, 0, 24), sum(b.w, 1, 24));
				__syncwarp();
			} else {
				x[0] = pack<BF16>(a.x * p.scale, a.y * p.scale), x[1] = pack<BF16>(a.z * p.scale, a.w * p.scale);
				x[2] = pack<BF16>(b.x * p.scale, b.y * p.scale), x[3] = pack<BF16>(b.z * p.scale, b.w * p.scale);
			}
#pragma unroll
			for (int k = 0; k < 4; k++) x[k] = transposeMatrix(x[k]);
			transposeQuad(x, c);
			if (row + lane / 4 < p.Sq && dim + 8 * c < p.D)
				*reinterpret_cast<uint4 *>(head + 2 * ((row + lane / 4) * p.dQ.row + dim + 8 * c)) = make_uint4(x[0], x[1], x[2], x[3]);
		}
	}
}
