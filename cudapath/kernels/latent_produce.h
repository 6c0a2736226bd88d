// The producer of latent.cu: a warp, one lane of which issues the TMA copies of K.
#pragma once
#include "latent_work.h"

// Copies panels [first, end) of the 64 keys from `key` on to a stage. They are full when all copies have arrived.
__device__ __forceinline__ void copyLatentPanels(const TensorMap *mapK, const AttnLatentParams &p, const LatentPiece &w, uint32_t to, uint32_t full, int key, int first, int end) {
	using T = LatentTile;
	if (p.table == 0) {
		const int row = p.cu_k != 0 ? w[LatentPiece::FIRST_KEY_ROW] + key : key, batch = p.cu_k != 0 ? 0 : w[LatentPiece::BATCH];
#pragma unroll 1
		for (int panel = first; panel < end; panel++) {
			barrierExpect(full + 8 * panel, T::PANEL);
			copyBox(to + panel * T::PANEL, mapK, full + 8 * panel, 64 * panel, row, 0, batch);
		}
		return;
	}
	const int box = min(p.page_size, T::KEYS); // rows of a copy
	const int *pages = reinterpret_cast<const int *>(p.table) + int64_t(w[LatentPiece::BATCH]) * p.table_stride;
#pragma unroll 1
	for (int panel = first; panel < end; panel++) barrierExpect(full + 8 * panel, T::PANEL);
#pragma unroll 1
	for (int row = 0; row < T::KEYS; row += box) {
		// Keys past the last one in use may have no page. They become zeros.
		const int page = key + row < w[LatentPiece::KEYS] ? pages[(key + row) / p.page_size] : -1;
#pragma unroll 1
		for (int panel = first; panel < end; panel++)
			copyBox(to + panel * T::PANEL + row * 128, mapK, full + 8 * panel, 64 * panel, (key + row) % p.page_size, 0, page);
	}
}

__device__ __forceinline__ void produceLatent(const TensorMap *mapK, const AttnLatentParams &p, uint32_t shared) {
	using T = LatentTile;
	Ring<T::STAGES> k;
	LatentReader reader = {shared, {}};
	for (int steps; (steps = reader.next()) >= 0; reader.release()) {
		for (int i = 0; i < steps; i++) {
			if (threadIdx.x % 32 == 0) {
				const LatentPiece w = reader.piece();
				const int key = w[LatentPiece::FIRST_KEY] + i * T::KEYS;
				const uint32_t full = shared + T::K_FULL + 8 * T::PANELS * k.stage, empty = shared + T::K_EMPTY + 8 * T::GROUPS * k.stage;
#pragma unroll 1
				for (int n = 0; n < T::GROUPS; n++) { // what is free first comes first
					const int group = n == 0 ? T::KEYS_ONLY : n - 1;
					barrierWait(empty + 8 * group, k.parity ^ 1);
					copyLatentPanels(mapK, p, w, shared + T::K + k.stage * T::K_BYTES, full, key, group * T::HALF_PANELS, min((group + 1) * T::HALF_PANELS, T::PANELS));
				}
			}
			__syncwarp();
			k.advance();
		}
	}
}
