// The warpgroup of latent.cu that computes S and P of all rows of a tile.
#pragma once
#include "latent_ptx.h"
#include "latent_work.h"

// Copies Q of a row tile to shared memory, negated if the scale is negative, and zeros for rows that the sequence has not. All
// copies are in flight at once: six of a thread at a time took 5 us, as Q comes from memory (H200).
__device__ __forceinline__ void loadLatentQ(const AttnLatentParams &p, const LatentPiece &w, uint32_t shared) {
	using T = LatentTile;
	constexpr int CHUNKS = T::D / 8;
	const char *q = reinterpret_cast<const char *>(p.q.base) + 2 * ((p.cu_q != 0 ? 0 : w[LatentPiece::BATCH]) * p.q.batch + w[LatentPiece::FIRST_ROW] * p.q.row);
	const int first = w[LatentPiece::ROW_TILE] * T::ROWS, queries = w[LatentPiece::ROWS];
	auto chunkAt = [&](int n) { return shared + T::Q + n % CHUNKS / 8 * T::PANEL + n / CHUNKS * 128 + (n % CHUNKS % 8 ^ n / CHUNKS % 8) * 16; };
#pragma unroll 4
	for (int n = threadIdx.x % 128; n < T::ROWS * CHUNKS; n += 128) {
		const int row = first + n / CHUNKS, query = row / p.Hq;
		const bool there = query < queries;
		copyChunk(chunkAt(n), there ? q + 2 * (query * p.q.row + (row - query * p.Hq) * p.q.head) + 16 * (n % CHUNKS) : q, there);
	}
	waitChunks();
	if (p.scale_log2 < 0) { // |scale| with -Q
#pragma unroll 1
		for (int n = threadIdx.x % 128; n < T::ROWS * CHUNKS; n += 128) {
			uint4 x = loadShared(chunkAt(n));
			x.x ^= 0x80008000, x.y ^= 0x80008000, x.z ^= 0x80008000, x.w ^= 0x80008000;
			storeShared(chunkAt(n), x);
		}
	}
	proxyFence();
	namedSync(LATENT_SCORES, 128);
}

// Q of the panels that S reads from registers, as A operands.
using LatentQ = uint32_t[4 * LatentTile::Q_REGISTER_PANELS][4];

__device__ __forceinline__ void holdLatentQ(LatentQ &q, uint32_t shared) {
	using T = LatentTile;
	const int thread = threadIdx.x % 128, c = thread % 4, row = thread / 32 * 16 + thread % 32 / 4;
#pragma unroll
	for (int i = 0; i < 4 * T::Q_REGISTER_PANELS; i++) {
		const uint32_t at = shared + T::Q + (T::PANELS - T::Q_REGISTER_PANELS + i / 4) * T::PANEL + row * 128 + 4 * c;
#pragma unroll
		for (int word = 0; word < 4; word++) // rows g and g + 8 (1024 bytes apart), columns 2 c and 2 c + 8
			q[i][word] = loadSharedWord(at + word % 2 * 1024 + ((i % 4 * 2 + word / 2) ^ row % 8) * 16);
	}
}

// Issues S of the tile in a stage, panel by panel as they arrive.
__device__ __forceinline__ void issueLatentScores(float (&s)[32], LatentQ &held, uint32_t shared, const Ring<LatentTile::STAGES> &k) {
	using T = LatentTile;
	constexpr int IN_SHARED = T::PANELS - T::Q_REGISTER_PANELS;
	const uint32_t q = matrixOffset(shared) + matrixOffset(T::Q), tile = matrixOffset(shared) + matrixOffset(T::K) + k.stage * matrixOffset(T::K_BYTES);
	const uint32_t full = shared + T::K_FULL + 8 * T::PANELS * k.stage;
	touch(s);
#pragma unroll
	for (int i = 0; i < 4 * T::Q_REGISTER_PANELS; i++) touch(held[i]);
#pragma unroll
	for (int n = 0; n < T::PANELS; n++) {
		const int panel = n == 0 ? T::PANELS - 1 : n - 1; // in the order in which they are copied
		if (panel % T::FULL_PANELS == 0) {
			barrierWait(full + 8 * panel, k.parity);
			if (T::FENCES) proxyFence();
		}
		wgmmaFence();
#pragma unroll
		for (int i = 0; i < 4; i++) {
			const uint32_t offset = matrixOffset(panel * T::PANEL + 32 * i);
			if (panel < IN_SHARED) Wgmma<64>::ss(s, q + offset, tile + offset, n + i > 0);
			else if (n + i > 0) Wgmma<64>::rsk<true>(s, held[4 * (panel - IN_SHARED) + i], tile + offset);
			else Wgmma<64>::rsk<false>(s, held[4 * (panel - IN_SHARED) + i], tile + offset);
		}
	}
	wgmmaCommit();
	touch(s);
}

// Excludes the columns of a thread, 8 j + 2 c and the next, whose bits, 4 j and 4 j + 1, are not set: entries of a list that are no keys.
__device__ __forceinline__ void maskLatentTokens(float (&s)[32], uint32_t listed) {
	if ((~listed & 0x33333333) == 0) return;
#pragma unroll
	for (int j = 0; j < 8; j++) {
#pragma unroll
		for (int i = 0; i < 2; i++)
			if ((listed >> (4 * j + i) & 1) == 0) s[4 * j + i] = s[4 * j + 2 + i] = -INFINITY;
	}
}

// Computes P of a tile and passes it in parts. P of the first part is computed with the row max of before, which scores rarely change,
// while a vote finds whether any row of the warp needs another one. If so, softmaxP() computes all of P.
template <class Pass> __device__ __forceinline__ void passLatentP(float (&s)[32], Rows &rows, float scale, float threshold, Pass pass) {
	constexpr int PARTS = LatentTile::P_PARTS, N = 32 / PARTS;
	float even[2] = {rows.sum[0], rows.sum[1]}, odd[2] = {0, 0}; // the sums of packP()
	uint32_t P[N / 2];
	auto compute = [&](int first) {
#pragma unroll
		for (int i = 0; i < N / 2; i++) {
			float p[2];
#pragma unroll
			for (int n = 0; n < 2; n++) p[n] = exp2Approx(fmaf(s[first + 2 * i + n], scale, -rows.less[i % 2]));
			even[i % 2] += p[0], odd[i % 2] += p[1];
			P[i] = pack<BF16>(p[0], p[1]);
		}
	};
	float top[2] = {s[0], s[2]};
#pragma unroll
	for (int j = 0; j < 8; j++) {
#pragma unroll
		for (int r = 0; r < 2; r++) top[r] = fmaxf(top[r], fmaxf(s[4 * j + 2 * r], s[4 * j + 2 * r + 1]));
	}
	compute(0);
	touch(P);
	rows.factor[0] = rows.factor[1] = 1;
	if (__any_sync(~0u, top[0] > rows.top[0] + threshold || top[1] > rows.top[1] + threshold || rows.far)) {
		uint32_t all[16];
		softmaxP(s, rows, scale, threshold, [] {});
		packP(s, all, rows);
#pragma unroll
		for (int n = 0; n < PARTS; n++) pass(n, all + n * N / 2);
		return;
	}
	pass(0, P);
#pragma unroll
	for (int n = 1; n < PARTS; n++) compute(n * N), pass(n, P);
#pragma unroll
	for (int r = 0; r < 2; r++) rows.sum[r] = even[r] + odd[r];
}

// Ends a piece: stores LSE, or row max and row sum of a partial state. inverse: factors by which O is multiplied.
__device__ __forceinline__ void finishLatentRows(const AttnLatentParams &p, const LatentPiece &w, const Rows &rows, const int (&last)[2], int row, float (&inverse)[2]) {
	const float scale = fabsf(p.scale_log2);
	const int slot = w[LatentPiece::SLOT], rowTile = w[LatentPiece::ROW_TILE];
#pragma unroll
	for (int r = 0; r < 2; r++) {
		const float sum = quadSum(rows.sum[r]);
		const int at = rowTile * LatentTile::ROWS + row + 8 * r, query = at / p.Hq;
		inverse[r] = 1;
		if (slot >= 0) {
			const LatentState state(p, slot, rowTile);
			if (threadIdx.x % 4 == 0) *state.top(row + 8 * r) = rows.top[r], *state.sum(row + 8 * r) = sum;
			continue;
		}
		inverse[r] = last[r] < 0 || sum == 0 ? 0 : 1 / sum; // no key, or scores that are all -inf
		if (p.lse != 0 && threadIdx.x % 4 == 0 && query < w[LatentPiece::ROWS])
			*lseOfLatent(p, w[LatentPiece::BATCH], w[LatentPiece::FIRST_ROW], query, at - query * p.Hq) = last[r] < 0 ? -INFINITY : lseOf(p, rows, r, sum, scale);
	}
}

__device__ __forceinline__ void scoreLatent(const AttnLatentParams &p, uint32_t shared) {
	using T = LatentTile;
	// By a shuffle: the assembler would read the index anew in the loop, with a register spilled for it.
	const int thread = __shfl_sync(~0u, threadIdx.x % 128, threadIdx.x % 32), lane = thread % 32, c = lane % 4, row = thread / 32 * 16 + lane / 4;
	const float scale = fabsf(p.scale_log2), threshold = RESCALE_THRESHOLD / scale;
	Ring<T::STAGES> k;
	Ring<1> messages; // P and factors of a step, or the factors at the end of a piece
	LatentQ q;
	float s[32];
	// Passes the factors of the rows to the warpgroups of O.
	auto storeFactors = [&](const float (&factor)[2]) {
		if (c == 0) storeSharedWord(shared + T::FACTORS + 4 * row, __float_as_uint(factor[0])), storeSharedWord(shared + T::FACTORS + 4 * row + 32, __float_as_uint(factor[1]));
	};
	auto arrive = [&](int part) {
		__syncwarp();
		if (lane == 0) barrierArrive(shared + T::P_FULL + 8 * part);
	};
	LatentReader reader = {shared, {}};
	for (int steps; (steps = reader.next()) >= 0; reader.release()) {
		const LatentPiece w = reader.piece();
		Rows rows = {{-INFINITY, -INFINITY}, {0, 0}, {0, 0}, {1, 1}, false};
		const int last[2] = {w.lastKeyOf(p, row), w.lastKeyOf(p, row + 8)};
		if (steps > 0) {
			loadLatentQ(p, w, shared);
			holdLatentQ(q, shared);
		}
#pragma unroll 1
		for (int i = 0; i < steps; i++) {
			const bool masked = !T::TOKENS && i >= w[LatentPiece::MASKED]; // read before S is there
			issueLatentScores(s, q, shared, k);
			barrierWait(shared + T::P_EMPTY, messages.parity ^ 1); // P of the tile before is in registers, long before S is there
			wgmmaWait<0>();
			touch(s);
			if (T::TOKENS) maskLatentTokens(s, loadSharedWord(shared + T::LISTED + 4 * (T::GATHER_WARPS * k.stage + c / 2)) >> c % 2 * 2);
			__syncwarp();
			if (lane == 0) barrierArrive(shared + T::K_EMPTY + 8 * (T::GROUPS * k.stage + T::KEYS_ONLY));
			k.advance();
			if (masked) {
				const int key = w[LatentPiece::FIRST_KEY] + i * T::KEYS + 2 * c;
				mask(s, last[0] - key, last[1] - key);
			}
			passLatentP(s, rows, scale, threshold, [&](int part, const uint32_t *P) {
				constexpr int WORDS = 16 / T::P_PARTS;
#pragma unroll
				for (int j = 0; j < WORDS; j += 4) storeShared(shared + T::P + 512 * (part * WORDS + j) + 16 * thread, make_uint4(P[j], P[j + 1], P[j + 2], P[j + 3]));
				if (part == 0) storeFactors(rows.factor);
				arrive(part);
			});
			messages.advance();
		}
		if (steps > 0) namedSync(LATENT_SCORES, 128); // all warps have read Q
		float inverse[2];
		finishLatentRows(p, w, rows, last, row, inverse);
		barrierWait(shared + T::P_EMPTY, messages.parity ^ 1);
		storeFactors(inverse);
#pragma unroll
		for (int part = 0; part < T::P_PARTS; part++) arrive(part);
		messages.advance();
	}
}
