// The producer of latent.cu: a warp, one lane of which issues the TMA copies of K.
#pragma once
#include "latent_ptx.h"
#include "latent_work.h"

// Where a KV tile lies in the map of K: a row and a batch, which is a page if K is paged.
struct LatentSource {
	int row, batch;
};

// The source of the keys from `key` on, which lie in one page. Keys past the last one in use may have no page, and become zeros.
__device__ __forceinline__ LatentSource latentSourceOf(const AttnLatentParams &p, const LatentPiece &w, int key) {
	if (p.table != 0) {
		const int *pages = reinterpret_cast<const int *>(p.table) + int64_t(w[LatentPiece::BATCH]) * p.table_stride;
		return {key % p.page_size, key < w[LatentPiece::KEYS] ? pages[key / p.page_size] : -1};
	}
	if (p.cu_k != 0) return {w[LatentPiece::FIRST_KEY_ROW] + key, 0};
	return {key, w[LatentPiece::BATCH]};
}

__device__ __forceinline__ void produceLatent(const TensorMap *mapK, const AttnLatentParams &p, uint32_t shared) {
	using T = LatentTile;
	Ring<T::STAGES> k;
	const int box = p.table != 0 ? min(p.page_size, T::KEYS) : T::KEYS; // rows of a copy
	LatentReader reader = {shared, {}};
	for (int steps; (steps = reader.next()) >= 0; reader.release()) {
		if (threadIdx.x % 32 == 0 && steps > 0) {
			const LatentPiece w = reader.piece();
			int key = w[LatentPiece::FIRST_KEY];
			// The page of a tile is looked up a step ahead: when its stage is free, the copies begin at once.
			LatentSource now = latentSourceOf(p, w, key);
#pragma unroll 1
			for (int i = 0; i < steps; i++, key += T::KEYS) {
				const LatentSource next = i + 1 < steps ? latentSourceOf(p, w, key + T::KEYS) : now;
				const uint32_t full = shared + T::K_FULL + 8 * T::PANELS * k.stage, empty = shared + T::K_EMPTY + 8 * T::GROUPS * k.stage;
				const uint32_t to = shared + T::K + k.stage * T::K_BYTES;
#pragma unroll 1
				for (int n = 0; n < T::GROUPS; n++) { // what is free first comes first
					const int group = n == 0 ? T::KEYS_ONLY : n - 1, end = min((group + 1) * T::HALF_PANELS, T::PANELS);
					barrierWait(empty + 8 * group, k.parity ^ 1);
#pragma unroll 1
					for (int panel = group * T::HALF_PANELS; panel < end; panel++) {
						barrierExpect(full + 8 * panel, T::PANEL);
						copyBoxOnce(to + panel * T::PANEL, mapK, full + 8 * panel, 64 * panel, now.row, 0, now.batch);
#pragma unroll 1
						for (int row = box; row < T::KEYS; row += box) { // the other pages of the tile
							const LatentSource from = latentSourceOf(p, w, key + row);
							copyBoxOnce(to + panel * T::PANEL + row * 128, mapK, full + 8 * panel, 64 * panel, from.row, 0, from.batch);
						}
					}
				}
				k.advance();
				now = next;
			}
		}
		__syncwarp();
	}
	allowNextKernel(); // the combine kernel, which waits for this one
}
