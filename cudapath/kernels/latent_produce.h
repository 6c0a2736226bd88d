// The producer of latent.cu: a warp, one lane of which issues the TMA copies of K. With token lists two warps copy K key by key
// instead.
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

// Copies the keys that token lists name, 16 bytes a lane: 32 keys of each tile for each of the warps, 4 at a time. Lane i looks up entry
// 8 (i / 4) + 4 half + i % 4 of a tile: its page a step ahead, and its number two. What is no key becomes zeros.
__device__ __forceinline__ void gatherLatent(const AttnLatentParams &p, uint32_t shared, int half) {
	using T = LatentTile;
	const int lane = threadIdx.x % 32, key = 4 * half + lane / 8;
	const uint32_t first = shared + T::K + key * 128 + (lane % 8 ^ key) * 16;
	Ring<T::STAGES> k;
	LatentReader reader = {shared, {}};
	for (int steps; (steps = reader.next()) >= 0; reader.release()) {
		if (steps == 0) continue;
		const LatentPiece w = reader.piece();
		const int batch = w[LatentPiece::BATCH], firstRow = w[LatentPiece::FIRST_ROW], keys = w[LatentPiece::KEYS];
		const int64_t query = p.cu_q != 0 ? firstRow : int64_t(batch) * p.Sq + firstRow;
		const Extent of = LatentSequence::listOf(p, query);
		const int *list = reinterpret_cast<const int *>(p.tokens) + (T::OFFSETS ? of.first : query * p.topk);
		const int *table = reinterpret_cast<const int *>(p.table) + int64_t(batch) * p.table_stride;
		const char *base = reinterpret_cast<const char *>(p.k.base) + 16 * (lane % 8);
		if (p.table == 0) base += 2 * (p.cu_k != 0 ? w[LatentPiece::FIRST_KEY_ROW] * p.k.row : batch * p.k.batch);
		int entry = w[LatentPiece::FIRST_KEY] + lane / 4 * 8 + 4 * half + lane % 4;
		auto tokenOf = [&](int entry) { return entry < of.used ? list[entry] : -1; };
		auto pageOf = [&](int token) { return p.table != 0 && uint32_t(token) < uint32_t(keys) ? table[uint32_t(token) / uint32_t(p.page_size)] : 0; };
		int token = tokenOf(entry), next = tokenOf(entry + T::KEYS), page = pageOf(token);
#pragma unroll 1
		for (int i = 0; i < steps; i++) {
			const bool there = uint32_t(token) < uint32_t(keys) && (p.table == 0 || uint32_t(page) < uint32_t(p.pages));
			const uint32_t listed = __ballot_sync(~0u, there);
			const int64_t at = !there ? 0 : p.table != 0 ? page * p.k.batch + uint32_t(token) % uint32_t(p.page_size) * p.k.row : token * p.k.row;
			entry += T::KEYS, token = next, next = tokenOf(entry + T::KEYS), page = pageOf(token);
			const char *from[8];
#pragma unroll
			for (int r = 0; r < 8; r++) from[r] = base + 2 * __shfl_sync(~0u, at, 4 * r + lane / 8);
			const uint32_t full = shared + T::K_FULL + 8 * T::PANELS * k.stage, empty = shared + T::K_EMPTY + 8 * T::GROUPS * k.stage;
			const uint32_t to = first + k.stage * T::K_BYTES;
#pragma unroll
			for (int n = 0; n < T::GROUPS; n++) { // what is free first comes first
				const int group = n == 0 ? T::KEYS_ONLY : n - 1, begin = group * T::HALF_PANELS;
				barrierWait(empty + 8 * group, k.parity ^ 1);
				if (n == 0 && lane == 0) {
					storeSharedWord(shared + T::LISTED + 4 * (T::GATHER_WARPS * k.stage + half), listed);
					barrierArrive(full + 8 * begin);
				}
#pragma unroll
				for (int panel = begin; panel < min(begin + T::HALF_PANELS, T::PANELS); panel++) {
#pragma unroll
					for (int r = 0; r < 8; r++) copyChunk(to + panel * T::PANEL + r * 1024, from[r] + 128 * panel, listed >> (4 * r + lane / 8) & 1);
				}
				arriveWhenCopied(full + 8 * begin);
			}
			k.advance();
		}
	}
	allowNextKernel(); // the combine kernel, which waits for this one
}
