// The producers of latent.cu for rows of fp8_ds_mla: 512 float8 e4m3, the float32 scales of each 128 of them, and 64 bfloat16.
//
// The rows of a tile are copied into the stage that they become. Two warps copy those of 32 keys each: float8 128 c to 128 c + 127 of a key,
// chunk c, into the row of panel 4 + c, the bfloat16 into panel 8, which is their own, and the scales into 1 KiB of the stage. Two others
// convert 32 keys each, chunk after chunk, into panels 2 c and 2 c + 1. What they overwrite they have read: chunks 2 and 3 become what
// held chunks 0 to 3. S of a chunk begins when it is converted, while later ones are still being copied.
//
// One warp that copied all rows, with addresses by shuffles as it needed them, was the bound: 3.7 us a tile (H200).
#pragma once
#include "latent_ptx.h"
#include "latent_work.h"

// Copies half of the rows of the tiles of a piece, 16 bytes a lane, chunk after chunk, 4 keys at a time, as gatherLatent() does. Lane i looks
// up key 8 (i / 4) + 4 half + i % 4 of a tile, an entry of a list or a key of the sequence: its page a step ahead, an entry two.
__device__ __forceinline__ void copyLatentRows(const AttnLatentParams &p, uint32_t shared, const LatentPiece &w, Ring<LatentTile::STAGES> &k, int half) {
	using T = LatentTile;
	const int steps = w[LatentPiece::STEPS], lane = threadIdx.x % 32, key = 4 * half + lane / 8, own = lane / 4 * 8 + 4 * half + lane % 4;
	if (steps == 0) return;
	const uint32_t first = shared + T::K + key * 128 + (lane % 8 ^ key) * 16;
	const int batch = w[LatentPiece::BATCH], keys = w[LatentPiece::KEYS];
	int entries = keys;
	const int *list = nullptr;
	if (T::TOKENS) {
		const int firstRow = w[LatentPiece::FIRST_ROW];
		const int64_t query = p.cu_q != 0 ? firstRow : int64_t(batch) * p.Sq + firstRow;
		const Extent of = LatentSequence::listOf(p, query);
		list = reinterpret_cast<const int *>(p.tokens) + (T::OFFSETS ? of.first : query * p.topk), entries = of.used;
	}
	const int *table = reinterpret_cast<const int *>(p.table) + int64_t(batch) * p.table_stride;
	const char *base = reinterpret_cast<const char *>(p.k.base); // strides of K are bytes
	if (p.table == 0) base += p.cu_k != 0 ? w[LatentPiece::FIRST_KEY_ROW] * p.k.row : batch * p.k.batch;
	int entry = w[LatentPiece::FIRST_KEY] + own;
	auto tokenOf = [&](int entry) { return entry >= entries ? -1 : T::TOKENS ? list[entry] : entry; };
	auto pageOf = [&](int token) { return p.table != 0 && uint32_t(token) < uint32_t(keys) ? table[uint32_t(token) / uint32_t(p.page_size)] : 0; };
	int token = tokenOf(entry), next = tokenOf(entry + T::KEYS), page = pageOf(token);
#pragma unroll 1
	for (int i = 0; i < steps; i++) {
		const bool there = uint32_t(token) < uint32_t(keys) && (p.table == 0 || uint32_t(page) < uint32_t(p.pages));
		const uint32_t listed = __ballot_sync(~0u, there);
		const char *row = base + (!there ? 0 : p.table != 0 ? page * p.k.batch + uint32_t(token) % uint32_t(p.page_size) * p.k.row : token * p.k.row);
		entry += T::KEYS, token = next, next = tokenOf(entry + T::KEYS), page = pageOf(token);
		const uint32_t rows = shared + T::ROWS_FULL + 8 * T::ROW_PARTS * k.stage, empty = shared + T::K_EMPTY + 8 * T::GROUPS * k.stage;
		const uint32_t to = first + k.stage * T::K_BYTES;
		barrierWait(empty + 8 * T::KEYS_ONLY, k.parity ^ 1);
		if (lane == 0) {
			storeSharedWord(shared + T::LISTED + 4 * (T::GATHER_WARPS * k.stage + half), listed);
			barrierArrive(rows + 8 * T::ROTARY);
		}
		copyChunk(shared + T::SCALES + k.stage * T::SCALE_BYTES + own * 16, row + T::DV, there);
		const char *from[8];
#pragma unroll
		for (int r = 0; r < 8; r++) from[r] = reinterpret_cast<const char *>(__shfl_sync(~0u, reinterpret_cast<uint64_t>(row), 4 * r + lane / 8)) + 16 * (lane % 8);
		// A part of all rows, 128 bytes each.
		auto copy = [&](int panel, int byte) {
#pragma unroll
			for (int r = 0; r < 8; r++) copyChunk(to + panel * T::PANEL + r * 1024, from[r] + byte, listed >> (4 * r + lane / 8) & 1);
		};
		copy(T::PANELS - 1, T::DV + 16);
		arriveWhenCopied(rows + 8 * T::ROTARY);
		barrierWait(empty + 8 * 1, k.parity ^ 1); // the right half of V
#pragma unroll
		for (int c = 0; c < T::ROTARY; c++) {
			copy(T::HALF_PANELS + c, 128 * c);
			arriveWhenCopied(rows + 8 * c);
		}
		k.advance();
	}
}

// Copies the second half. The warp that lists the pieces copies the first.
__device__ __forceinline__ void copyLatentPieces(const AttnLatentParams &p, uint32_t shared) {
	Ring<LatentTile::STAGES> k;
	LatentReader reader = {shared, {}};
	for (; reader.next() >= 0; reader.release()) copyLatentRows(p, shared, reader.piece(), k, 1);
}

// Four float8 in a word as four elements in two words: float8 * scale in float32, rounded to the storage type.
__device__ __forceinline__ void convertFloat8(uint32_t four, float scale, uint32_t &low, uint32_t &high) {
	const uint32_t x = widenFloat8<false>(four), y = widenFloat8<true>(four);
	low = pack<BF16>(widenHalf<false>(x, 0) * scale, widenHalf<false>(x, 1) * scale);
	high = pack<BF16>(widenHalf<false>(y, 0) * scale, widenHalf<false>(y, 1) * scale);
}

// Converts every other group of 8 keys of a tile, from `first` on. A lane converts 16 float8 of a key at a time, 8 lanes a chunk: 16 bytes j of
// key lane / 16, or of that key ^ 5, with which lanes neither read nor write the same banks at once. Then come key ^ 2 and the next group.
__device__ __forceinline__ void convertLatent(const AttnLatentParams &p, uint32_t shared, int first) {
	using T = LatentTile;
	constexpr int WARPS = T::CONVERT_WARPS, STEPS = T::KEYS / 4 / WARPS;
	const int lane = threadIdx.x % 32, key = lane / 16 ^ lane / 4 % 2 * 5, j = lane % 4 + lane / 8 % 2 * 4;
	const uint32_t from = (8 * first + key) * 128 + (j ^ key) * 16, to = (8 * first + key) * 128 + lane / 8 % 2 * T::PANEL + (2 * (lane % 4) ^ key) * 16;
	auto stepOf = [](uint32_t at, int n) { return (n % 2 ? at ^ (2 * 128 + 2 * 16) : at) + n / 2 * 1024 * WARPS; };
	auto scaleAt = [](uint32_t at, int n) { return (n % 2 ? at ^ 2 * 16 : at) + n / 2 * 128 * WARPS; };
	Ring<T::STAGES> k;
	LatentReader reader = {shared, {}};
	for (int steps; (steps = reader.next()) >= 0; reader.release()) {
#pragma unroll 1
		for (int i = 0; i < steps; i++) {
			const uint32_t rows = shared + T::ROWS_FULL + 8 * T::ROW_PARTS * k.stage, full = shared + T::K_FULL + 8 * T::PANELS * k.stage;
			const uint32_t tile = shared + T::K + k.stage * T::K_BYTES, scales = shared + T::SCALES + k.stage * T::SCALE_BYTES + (8 * first + key) * 16;
			auto arrive = [&](int panel) {
				proxyFence();
				__syncwarp();
				if (lane == 0) barrierArrive(full + 8 * panel);
			};
			barrierWait(rows + 8 * T::ROTARY, k.parity);
			if (!BF16) {
#pragma unroll
				for (int n = 0; n < STEPS; n++) {
					const uint32_t at = stepOf(tile + from, n) + (T::PANELS - 1) * T::PANEL;
					uint4 x = loadShared(at);
					auto narrow = [](uint32_t &two) { two = pack<BF16>(widenHalf<true>(two, 0), widenHalf<true>(two, 1)); };
					narrow(x.x), narrow(x.y), narrow(x.z), narrow(x.w);
					storeShared(at, x);
				}
			}
			arrive(T::PANELS - 1);
			barrierWait(shared + T::K_EMPTY + 8 * T::GROUPS * k.stage, k.parity ^ 1); // the left half of V
#pragma unroll 1
			for (int c = 0; c < T::ROTARY; c++) {
				const uint32_t chunk = tile + (T::HALF_PANELS + c) * T::PANEL + from, out = tile + 2 * c * T::PANEL + to, scale = scales + 4 * c;
				barrierWait(rows + 8 * c, k.parity);
				uint4 next = loadShared(chunk);
				float nextScale = __uint_as_float(loadSharedWord(scale));
#pragma unroll
				for (int n = 0; n < STEPS; n++) {
					const uint4 x = next;
					const float of = nextScale;
					if (n + 1 < STEPS) next = loadShared(stepOf(chunk, n + 1)), nextScale = __uint_as_float(loadSharedWord(scaleAt(scale, n + 1)));
					__syncwarp(); // chunk 3 becomes the panel that held it
					uint4 y[2];
					convertFloat8(x.x, of, y[0].x, y[0].y), convertFloat8(x.y, of, y[0].z, y[0].w);
					convertFloat8(x.z, of, y[1].x, y[1].y), convertFloat8(x.w, of, y[1].z, y[1].w);
					storeShared(stepOf(out, n), y[0]), storeShared(stepOf(out, n) ^ 16, y[1]);
				}
				arrive(2 * c);
			}
			k.advance();
		}
	}
}
