// The two warpgroups of latent.cu that compute O, each 64 rows by 256 columns.
#pragma once
#include "latent_work.h"

// Makes keys of V harmless to the rows that do not attend to them, as 0 * NaN is NaN: keys [any, ...) become zeros, and so do
// elements of keys [whole, any) that are not finite. A row that attends to such a key gets its NaN from the score, as V is part of
// K. `tile` is the warpgroup's half of V.
__device__ __forceinline__ void cleanLatentV(uint32_t tile, int whole, int any) {
	using T = LatentTile;
	constexpr int CHUNKS = T::HALF / 8;
	whole = max(whole, 0);
#pragma unroll 1
	for (int at = threadIdx.x % 128; at < (T::KEYS - whole) * CHUNKS; at += 128) {
		const int key = whole + at / CHUNKS, chunk = at % CHUNKS;
		const uint32_t to = tile + chunk / 8 * T::PANEL + key * 128 + chunk % 8 * 16; // any order of the row's chunks will do
		if (key >= any) {
			storeShared(to, make_uint4(0, 0, 0, 0));
			continue;
		}
		uint4 x = loadShared(to);
		if (notFinite<EXPONENTS>(x) == 0) continue;
		auto clear = [](uint32_t &two) { two &= ~((notFinite<EXPONENTS>(two) >> 15) * 0xffff); };
		clear(x.x), clear(x.y), clear(x.z), clear(x.w);
		storeShared(to, x);
	}
	proxyFence();
}

// Stores O of a thread's two rows, 16 bytes per lane. column: of the first accumulator of N.
template <int N> __device__ __forceinline__ void storeLatentO(float (&o)[N], const AttnLatentParams &p, int batch, int firstRow, int queries, int rowTile, int row, int column) {
	const int c = threadIdx.x % 4;
#pragma unroll
	for (int r = 0; r < 2; r++) {
		const int at = rowTile * LatentTile::ROWS + row + 8 * r, query = at / p.Hq;
		char *out = reinterpret_cast<char *>(p.o.base) + 2 * ((p.cu_q != 0 ? 0 : batch) * p.o.batch + (int64_t(firstRow) + query) * p.o.row + (at - query * p.Hq) * p.o.head + column);
#pragma unroll
		for (int j = 0; j < N / 4; j += 4) {
			uint32_t x[4];
#pragma unroll
			for (int n = 0; n < 4; n++) x[n] = pack<BF16>(o[4 * (j + n) + 2 * r], o[4 * (j + n) + 2 * r + 1]);
			transposeQuad(x, c);
			if (query < queries) *reinterpret_cast<uint4 *>(out + 16 * (j + c)) = make_uint4(x[0], x[1], x[2], x[3]);
		}
	}
}

// O += P V of some keys, in two products of 128 columns: for one of 256, whose accumulators are all registers that a thread of 512 starts
// with, the assembler of CUDA 12.4 finds no allocation, although the warpgroup has more.
template <int KEYS> __device__ __forceinline__ void multiplyLatentV(float (&o)[2][64], uint32_t (&P)[KEYS / 4], uint32_t v) {
	touch(o[0]);
	touch(o[1]);
	touch(P);
	wgmmaFence();
#pragma unroll
	for (int key = 0; key < KEYS; key += 16) {
#pragma unroll
		for (int n = 0; n < 2; n++)
			Wgmma<128>::rs(o[n], P[key / 4], P[key / 4 + 1], P[key / 4 + 2], P[key / 4 + 3], v + matrixOffset(key * 128 + 2 * n * LatentTile::PANEL));
	}
	wgmmaCommit();
	touch(o[0]);
	touch(o[1]);
}

__device__ __forceinline__ void outputLatent(const AttnLatentParams &p, uint32_t shared, int half) {
	using T = LatentTile;
	const int thread = threadIdx.x % 128, lane = thread % 32, row = thread / 32 * 16 + lane / 4;
	Ring<T::STAGES> k;
	Ring<1> messages;
	float o[2][64], factor[2]; // columns 0 to 127 and 128 to 255
	constexpr int KEYS = T::KEYS / T::P_PARTS;
	uint32_t P[T::P_PARTS][KEYS / 4];
	auto takeFactors = [&] {
#pragma unroll
		for (int r = 0; r < 2; r++) factor[r] = __uint_as_float(loadSharedWord(shared + T::FACTORS + 4 * row + 32 * r));
	};
	auto taken = [&] {
		__syncwarp();
		if (lane == 0) barrierArrive(shared + T::P_EMPTY);
		messages.advance();
	};
	LatentReader reader = {shared, {}};
	for (int steps; (steps = reader.next()) >= 0; reader.release()) {
		const LatentPiece w = reader.piece();
#pragma unroll
		for (int i = 0; i < 128; i++) o[i / 64][i % 64] = 0;
#pragma unroll 1
		for (int i = 0; i < steps; i++) {
			const uint32_t v = shared + T::K + k.stage * T::K_BYTES + half * T::HALF_PANELS * T::PANEL;
			auto takeP = [&](int n) {
				barrierWait(shared + T::P_FULL + 8 * n, messages.parity);
#pragma unroll
				for (int j = 0; j < KEYS / 16; j++) {
					const uint4 x = loadShared(shared + T::P + 2048 * (n * KEYS / 16 + j) + 16 * thread);
					P[n][4 * j] = x.x, P[n][4 * j + 1] = x.y, P[n][4 * j + 2] = x.z, P[n][4 * j + 3] = x.w;
				}
				if (n == 0) takeFactors();
				if (n == T::P_PARTS - 1) taken();
			};
			const bool masked = !T::TOKENS && i >= w[LatentPiece::MASKED]; // entries of lists that are no keys are zeros
			takeP(0);
			if (T::FENCES) proxyFence();
			if (masked) {
				const int key = w[LatentPiece::FIRST_KEY] + i * T::KEYS;
				cleanLatentV(v, w[LatentPiece::WHOLE] - key, w[LatentPiece::ANY] - key);
				namedSync(LATENT_OUTPUT + half, 128);
			}
			if (__any_sync(~0u, factor[0] != 1 || factor[1] != 1)) multiply(o[0], factor), multiply(o[1], factor);
#pragma unroll
			for (int n = 0; n < T::P_PARTS; n++) {
				if (n > 0) takeP(n);
				multiplyLatentV<KEYS>(o, P[n], matrixOffset(v) + matrixPanels(T::PANEL) + matrixOffset(n * KEYS * 128));
			}
			wgmmaWait<0>();
			touch(o[0]);
			touch(o[1]);
			__syncwarp();
			if (lane == 0) barrierArrive(shared + T::K_EMPTY + 8 * (T::GROUPS * k.stage + half));
			k.advance();
		}
		barrierWait(shared + T::P_FULL, messages.parity);
		takeFactors();
		taken();
		multiply(o[0], factor), multiply(o[1], factor);
		const int slot = w[LatentPiece::SLOT], rowTile = w[LatentPiece::ROW_TILE];
		if (slot < 0) {
#pragma unroll
			for (int n = 0; n < 2; n++) storeLatentO(o[n], p, w[LatentPiece::BATCH], w[LatentPiece::FIRST_ROW], w[LatentPiece::ROWS], rowTile, row, half * T::HALF + 128 * n);
		} else if (rowTile * T::ROWS + thread / 32 * 16 < w[LatentPiece::ROWS] * p.Hq) { // the warp has a row
			const LatentState state(p, slot, rowTile);
#pragma unroll
			for (int j = 0; j < 32; j++) *state.accumulators(half, j) = make_float4(o[j / 16][j % 16 * 4], o[j / 16][j % 16 * 4 + 1], o[j / 16][j % 16 * 4 + 2], o[j / 16][j % 16 * 4 + 3]);
		}
	}
}
