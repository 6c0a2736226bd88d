// Inf and NaN in tiles with masked slots, as the consumers of the backward fa3 kernel treat them.
//
// P and dS of a masked slot are 0, but 0 * NaN is NaN. In tiles that the causal mask crosses, Inf and NaN are therefore
// replaced by 0 in the operands of the last products: in K once a unit, in Q and dO of a step after S and dP have read
// them. Ends of a tile past Sq or Sk need none of this, since TMA fills them with zeros. With options, past an end of a
// sequence are elements of others, so every masked tile is treated so.
//   - A key with Inf or NaN in K gets P = NaN in the rows that attend to it. So dQ and dK stay NaN.
//   - dK loses nothing with Q: where Q is not finite, neither is the score, and dS is 0 or NaN.
//   - dV loses the non-finite elements of dO. addNonFiniteDO() adds them at the end of a unit.
#pragma once
#include "fa3_backward_work.h"

// Replaces Inf and NaN in the thread's share of a tile by 0. thread is its number among THREADS. Returns whether there are any;
// flags notes the rows (see scanTile()).
template <int THREADS> __device__ __forceinline__ bool clearTile(uint32_t tile, int bytes, int thread, uint32_t flags = 0) {
	return scanTile<EXPONENTS, THREADS, 128, true>(tile, 16 * thread, bytes, flags);
}

// Replaces Inf and NaN in K of the warpgroup's 64 keys by 0, and notes the keys. Returns whether there are any.
template <class T> __device__ __forceinline__ bool clearKeys(uint32_t shared, int group) {
	const uint32_t flags = shared + T::KEY_FLAGS + 64 * group;
	if (threadHere() % 128 < 16) storeSharedWord(flags + 4 * (threadHere() % 128), 0);
	namedSync(KEYS_CLEAR + group, 128);
	bool found = false;
#pragma unroll
	for (int i = 0; i < T::PANELS; i++)
		found |= clearTile<128>(shared + T::K + i * T::KEY_PANEL + group * 64 * 128, 64 * 128, threadHere() % 128, flags);
	proxyFence();
	return namedOr(KEYS_CLEAR + group, 128, found);
}

// Sets P of the keys that clearKeys() noted to NaN.
template <class T> __device__ __forceinline__ void spoilKeys(float (&P)[T::BM / 2], uint32_t shared, int group) {
	const int thread = threadHere() % 128;
#pragma unroll
	for (int r = 0; r < 2; r++) {
		const bool spoiled = loadSharedByte(shared + T::KEY_FLAGS + 64 * group + thread / 32 * 16 + thread % 32 / 4 + 8 * r) != 0;
#pragma unroll
		for (int i = 0; i < T::BM / 4; i++) {
			float &x = P[4 * (i / 2) + 2 * r + i % 2];
			x = spoiled ? __int_as_float(0x7fffffff) : x;
		}
	}
}

// Returns not 0 if a row of dO has Inf or NaN in the columns of lane c of a quad.
__device__ __forceinline__ uint32_t rowNotFinite(const uint32_t *dO, int c, int dims) {
	uint32_t any = 0;
	for (int column = 2 * c; column < dims; column += 8) any |= notFinite<EXPONENTS>(dO[column / 2]);
	return any;
}

// The score of a row and a key, unscaled.
__device__ __forceinline__ float dotRows(const uint16_t *q, const uint16_t *k, int dims) {
	float score = 0;
#pragma unroll 1
	for (int d = 0; d < dims; d++) score = fmaf(widenHalf<BF16>(q[d], 0), widenHalf<BF16>(k[d], 0), score);
	return score;
}

// Adds the non-finite elements of a row of dO, from column FIRST on, to dV of the thread's key number r.
template <int FIRST, int DIMS> __device__ __forceinline__ void addNonFinite(float (&dV)[DIMS / 2], const uint32_t *dO, int r, int c, const AttnBackwardParams &p) {
#pragma unroll
	for (int j = 0; j < DIMS / 8; j++) {
		if (FIRST + 8 * j >= p.Dv) continue;
		const uint32_t two = dO[FIRST / 2 + 4 * j + c];
		if (notFinite<EXPONENTS>(two) & 0x8000) dV[4 * j + 2 * r] += widenHalf<BF16>(two, 0);
		if (notFinite<EXPONENTS>(two) >> 16) dV[4 * j + 2 * r + 1] += widenHalf<BF16>(two, 1);
	}
}

// Adds the non-finite elements of dO in masked tiles to dV, for the rows in which the key has a P other than 0. They and
// the scores are read from global memory. The accumulators are those of DIMS dims.
template <class T, int FIRST = 0, int DIMS = T::D>
__device__ __forceinline__ void addNonFiniteDO(float (&dV)[DIMS / 2], const AttnBackwardParams &p, const Unit &u, int firstKey) {
	const int thread = threadHere() % 128, c = thread % 4, firstOfThread = firstKey + thread / 32 * 16 + thread % 32 / 4;
	const int group = p.Hq / p.Hkv, whole = firstWholeRow<T>(p, u.key);
	const Workspace space = Workspace::of<T>(p);
#pragma unroll 1
	for (int head = u.head * group; head < (u.head + 1) * group; head++) {
#pragma unroll 1
		for (int row = u.first * T::BM; row < p.Sq; row++) {
			const int block = row / T::BM;
			if (!isMasked<T>(p, whole, block)) continue;
			const uint32_t *dO = reinterpret_cast<const uint32_t *>(p.dO.base) + (u.batch * p.dO.batch + head * p.dO.head + row * p.dO.row) / 2;
			if (rowNotFinite(dO, c, p.Dv) == 0) continue;
			const float less = space.lse[((int64_t(u.batch) * p.Hq + head) * space.blocks + block) * T::LSE_FLOATS + row % T::BM];
			const uint16_t *q = reinterpret_cast<const uint16_t *>(p.q.base) + u.batch * p.q.batch + head * p.q.head + row * p.q.row;
#pragma unroll
			for (int r = 0; r < 2; r++) {
				const int key = firstOfThread + 8 * r;
				if (key >= p.Sk || key > row + causalOffset<T>(p)) continue;
				const uint16_t *k = reinterpret_cast<const uint16_t *>(p.k.base) + u.batch * p.k.batch + u.head * p.k.head + key * p.k.row;
				const float score = dotRows(q, k, p.D);
				if (exp2Approx(fmaf(score, p.scale * LOG2E, less)) == 0) continue;
				addNonFinite<FIRST, DIMS>(dV, dO, r, c, p);
			}
		}
	}
}

// The same with options.
template <class T, int FIRST = 0, int DIMS = T::D>
__device__ __forceinline__ void addNonFiniteDO(float (&dV)[DIMS / 2], const AttnBackwardParams &p, const SequenceUnit &u, int firstKey) {
	const int thread = threadHere() % 128, c = thread % 4, firstOfThread = firstKey + thread / 32 * 16 + thread % 32 / 4, group = p.Hq / p.Hkv;
	const Workspace space = Workspace::of<T>(p);
#pragma unroll 1
	for (int head = u.head * group; head < (u.head + 1) * group; head++) {
#pragma unroll 1
		for (int row = u.first * T::BM; row < min(u.end * T::BM, u.s.rows.used); row++) {
			const int block = row / T::BM;
			if (!isMasked<T>(limitsOf<T>(u.s, block * T::BM, u.key))) continue;
			const uint32_t *dO = reinterpret_cast<const uint32_t *>(u.s.rowsOf(p, p.dO, head) + 2 * (row * p.dO.row));
			if (rowNotFinite(dO, c, p.Dv) == 0) continue;
			const float less = space.lse[blockIndex<T>(p, u.s, head, block) * T::LSE_FLOATS + row % T::BM];
			const uint16_t *q = reinterpret_cast<const uint16_t *>(u.s.rowsOf(p, p.q, head)) + row * p.q.row;
#pragma unroll
			for (int r = 0; r < 2; r++) {
				const int key = firstOfThread + 8 * r;
				if (key >= u.s.keys.used || key < row - u.s.left || key > row + u.s.right) continue;
				const uint16_t *k = reinterpret_cast<const uint16_t *>(u.s.keysOf(p, p.k, u.head)) + key * p.k.row;
				float slope;
				const float score = dotRows(q, k, p.D);
				const float power = T::CAPPED ? Softcap(p).exponent(score, less, slope) : fmaf(score, p.scale * LOG2E, less);
				if (exp2Approx(power) == 0) continue;
				addNonFinite<FIRST, DIMS>(dV, dO, r, c, p);
			}
		}
	}
}
