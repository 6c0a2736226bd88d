// The consumer warpgroups of the backward fa3 kernel: products, stores and the main loop, consumeRows() at the end of the file.
// fa3_backward_p.h has P and dS, which depend on the mode of a kernel.
//
// Each warpgroup owns 64 keys and keeps their dK and dV, and S and dP of a step, in registers. A thread has keys g and g + 8 of
// its warp's 16, with g = lane / 4, and pairs of rows: columns 8 j + 2 c and 8 j + 2 c + 1 of S^T, with c = lane % 4 (see
// sm90_wgmma.h).
//
// A step: dS, [dS of both warpgroups is stored], dV, S of the next rows, dQ; P of the next rows while dQ is computed; dK and dP
// of the next rows; dQ to shared memory.
//
// As a profile shows it (docs/log/cuda-backward.md, 17), a warp stalls at wgmma until the tensor cores are free, and its accesses of
// shared memory wait behind the products that it has issued. So the statistics that P and dS take are loaded before the product
// that these wait for, and dK is issued after P.
#pragma once
#include "fa3_backward_p.h"

// S^T = K Q^T or dP^T = V dO^T, for the warpgroup's 64 keys.
template <class T, int DIMS = T::D> __device__ __forceinline__ void issueTransposedScores(float (&s)[T::BM / 2], uint32_t keys, uint32_t rows) {
	wgmmaFence();
	WgmmaFirst<T::BM, 0>::ss(s, keys, rows);
#pragma unroll
	for (int d = 16; d < DIMS; d += 16)
		Wgmma<T::BM>::ss(s, keys + matrixOffset(d / 64 * T::KEY_PANEL + d % 64 * 2), rows + matrixOffset(d / 64 * T::ROW_PANEL + d % 64 * 2), true);
	wgmmaCommit();
	touch(s);
}

// dV += P^T dO, with P^T in registers and DIMS dims of dO.
template <class T, int DIMS = T::D> __device__ __forceinline__ void issueGradientDV(float (&sum)[DIMS / 2], uint32_t (&words)[T::BM / 4], uint32_t rows) {
	touch(sum);
	touch(words);
	wgmmaFence();
#pragma unroll
	for (int row = 0; row < T::BM; row += 16)
		Wgmma<DIMS>::rs(sum, words[row / 4], words[row / 4 + 1], words[row / 4 + 2], words[row / 4 + 3], rows + matrixOffset(row * 128));
	wgmmaCommit();
	touch(sum);
}

// dK += dS^T Q, for the warpgroup's 64 keys and DIMS dims of Q.
template <class T, int DIMS = T::D> __device__ __forceinline__ void issueGradientDK(float (&sum)[DIMS / 2], uint32_t dS, uint32_t rows) {
	touch(sum);
	wgmmaFence();
#pragma unroll
	for (int row = 0; row < T::BM; row += 16)
		WgmmaTransposed<DIMS, 1>::ss(sum, dS + matrixOffset(row * 128), rows + matrixOffset(row * 128), true);
	wgmmaCommit();
	touch(sum);
}

// dQ^T = K^T dS^T: the warpgroup's part (see the tile).
template <class T> __device__ __forceinline__ void issueGradientDQ(float (&dQ)[T::DQ_COLUMNS / 2], uint32_t keys, uint32_t dS) {
	wgmmaFence();
	WgmmaFirst<T::DQ_COLUMNS, 1>::ss(dQ, keys, dS);
#pragma unroll
	for (int key = 16; key < T::BN; key += 16)
		WgmmaTransposed<T::DQ_COLUMNS, 0>::ss(dQ, keys + matrixOffset(key * 128), dS + matrixOffset(key / 64 * T::ROW_PANEL + key % 64 * 2), true);
	wgmmaCommit();
	touch(dQ);
}

// Stores dS^T of a step in shared memory, rounded and transposed: rows of dS of 64 keys. `to` is the address of the lane's first
// row.
template <class T> __device__ __forceinline__ void storeTransposedDS(uint32_t to, const float (&dS)[T::BM / 2]) {
	uint32_t words[T::BM / 4];
	packWords(words, dS);
#pragma unroll
	for (int i = 0; i < T::BM / 4; i += 4) storeTransposed(to + i * 512, words[i], words[i + 1], words[i + 2], words[i + 3]);
	proxyFence();
}

// Leaves the accumulators of dQ in a buffer in shared memory: four of each thread after the other, as the
// kernel that stores dQ reads them.
template <int N> __device__ __forceinline__ void leaveDQ(uint32_t to, const float (&dQ)[N]) {
#pragma unroll
	for (int j = 0; j < N / 4; j++) storeFloats(to + 2048 * j, dQ[4 * j], dQ[4 * j + 1], dQ[4 * j + 2], dQ[4 * j + 3]);
}

// Stores dK or dV of the thread's keys, or adds them to what the tensor holds. The accumulators are those of DIMS dims.
template <class T, int FIRST = 0, int DIMS = T::D>
__device__ __forceinline__ void storeKeys(float (&sum)[DIMS / 2], const AttnTensor &t, const AttnBackwardParams &p, const UnitOf<T> &u, int key, int dims, float scale) {
	if (t.base == 0) return;
	const int c = threadIdx.x % 4;
	char *out = keyOf(p, t, u, key);
#pragma unroll
	for (int r = 0; r < 2; r++) {
#pragma unroll
		for (int j = 0; j < DIMS / 8; j += 4) {
			uint32_t x[4] = {};
			if (p.accumulate & 1) {
#pragma unroll
				for (int n = 0; n < 4; n++) {
					const int column = FIRST + 8 * (j + n) + 2 * c;
					if (key + 8 * r >= keysStored(p, u) || column >= dims) continue;
					const uint32_t held = *reinterpret_cast<const uint32_t *>(out + 16 * r * t.row + 2 * column);
					float *const two = &sum[4 * (j + n) + 2 * r];
					x[n] = pack<BF16>(fmaf(two[0], scale, widenHalf<BF16>(held, 0)), fmaf(two[1], scale, widenHalf<BF16>(held, 1)));
				}
			} else if constexpr (T::OPTIONS) {
				// Keys past the end of a sequence get 0, and 0 times a negative scale is -0.
#pragma unroll
				for (int n = 0; n < 4; n++) x[n] = pack<BF16>(fmaf(sum[4 * (j + n) + 2 * r], scale, 0), fmaf(sum[4 * (j + n) + 2 * r + 1], scale, 0));
			} else {
#pragma unroll
				for (int n = 0; n < 4; n++) x[n] = pack<BF16>(sum[4 * (j + n) + 2 * r] * scale, sum[4 * (j + n) + 2 * r + 1] * scale);
			}
			transposeQuad(x, c);
			if (key + 8 * r < keysStored(p, u) && FIRST + 8 * (j + c) < dims)
				*reinterpret_cast<uint4 *>(out + 16 * r * t.row + 2 * FIRST + 16 * (j + c)) = make_uint4(x[0], x[1], x[2], x[3]);
		}
	}
}

// Stores dK = dV = 0 of keys that no unit has: those of a packed sequence that is longer than the longest is said to be.
template <class T> __device__ __forceinline__ void zeroRest(const AttnBackwardParams &p, const SequenceUnit &u, int group) {
	const int first = u.key + T::BN;
	if (first < p.Sk) return; // not the last unit
	for (const AttnTensor *t : {&p.dK, &p.dV}) {
		const int dims = t == &p.dK ? p.D : p.Dv;
		if (t->base == 0) continue;
		for (int64_t i = 128 * group + threadHere() % 128; i < int64_t(keysStored(p, u) - first) * dims; i += 128 * T::WARPGROUPS)
			reinterpret_cast<uint16_t *>(keyOf(p, *t, u, first))[i / dims * t->row + i % dims] = 0;
	}
}

// Stores dK and dV of the warpgroup's keys of a unit.
template <class T>
__device__ __forceinline__ void storeUnit(float (&dK)[T::D / 2], float (&dV)[T::D / 2], const AttnBackwardParams &p, const UnitOf<T> &u, uint32_t shared, int group) {
	if (T::CAUSAL && u.first < u.end && loadSharedWord(shared + T::RARE_ROWS + warpWord())) addNonFiniteDO<T>(dV, p, u, u.key + 64 * group);
	if constexpr (T::OPTIONS) {
		if (u.first == u.end && p.accumulate & 1) return;
		zeroRest<T>(p, u, group);
	}
	const int key = u.key + 64 * group + threadHere() % 128 / 32 * 16 + threadHere() % 32 / 4;
	storeKeys<T>(dK, p.dK, p, u, key, p.D, p.scale);
	storeKeys<T>(dV, p.dV, p, u, key, p.Dv, 1);
}

// Arrives at the mbarrier of a buffer when all lanes of the warp have read or filled it.
__device__ __forceinline__ void releaseBuffer(uint32_t bar) {
	__syncwarp();
	if (electLane()) barrierArrive(bar);
}

// The matrices in shared memory that a warpgroup multiplies, as lower words of descriptors.
template <class T> struct Matrices {
	uint32_t base, own, transposedK;

	__device__ __forceinline__ Matrices(uint32_t shared, int group)
		: base(matrixOffset(shared)), own(base + group * matrixOffset(64 * 128)),
		  transposedK(base + (matrixOffset(T::K) + matrixPanels(T::KEY_PANEL)) + (T::D == 128 ? group * matrixOffset(T::KEY_PANEL) : 0)) {}
	__device__ __forceinline__ uint32_t rowsOf(int tiles, int stage) const { return base + matrixOffset(tiles) + stage * matrixOffset(T::ROW_BYTES); }
	__device__ __forceinline__ uint32_t acrossRows(int tiles, int stage) const { return rowsOf(tiles, stage) + matrixPanels(T::ROW_PANEL); }
	__device__ __forceinline__ uint32_t dSOf(uint32_t step) const { return base + matrixOffset(T::DS) + step % 2 * matrixOffset(T::DS_BYTES); }
};

template <class T> __device__ __forceinline__ void consumeRows(const AttnBackwardParams &p, uint32_t shared, int group) {
	const int thread = threadIdx.x % 128, warp = thread / 32, lane = thread % 32;
	const float scale = p.scale * LOG2E;
	const uint32_t ownDQ = shared + T::DQ + group * T::DQ_BYTES + 16 * thread; // where the thread leaves dQ
	const uint32_t column = 8 * (thread % 4);                                  // of its first pair of columns, in bytes of a statistic
	const Matrices<T> at(shared, group);
	// A row of dS has 64 keys of the warpgroup in 128 bytes. A lane stores rows lane % 8 of 8x8 matrices.
	const uint32_t ownDS = shared + T::DS + group * T::ROW_PANEL + (lane / 16 * 8 + lane % 8) * 128 + ((2 * warp + lane / 8 % 2) ^ lane % 8) * 16;

	float dK[T::D / 2], dV[T::D / 2], s[T::BM / 2], dP[T::BM / 2], dQ[T::DQ_COLUMNS / 2];
	uint32_t P[T::BM / 4];
	HeldP<T> held;
	uint32_t n = 0; // steps of all units; gives the stages and parities of dO, dS and dQ
	Ring<T::Q_STAGES> q;
	uint32_t keysParity = 0;
	static_assert(T::DO_STAGES == 2, "dO has the stages of dS");
	auto stageOf = [](uint32_t step) { return int(step % 2); };
	auto waitQ = [&] { barrierWait(shared + T::Q_FULL + 8 * q.stage, q.parity); };
	Units<T> units(shared);
	UnitOf<T> u;
	while (units.next(u)) {
#pragma unroll
		for (int i = 0; i < T::D / 2; i++) dK[i] = dV[i] = 0;
		int left = (u.end - u.first) * (p.Hq / p.Hkv); // steps
		if (left > 0) {
			const MaskedTiles<T> masked{p, shared, u.key + 64 * group, group};
			bool found = false; // Inf or NaN in S of a masked tile
			auto recordHere = [&] { return RowRecord<T>(shared + T::LSE + q.stage * T::LSE_BYTES, column); };
			// Computes P of the Q tile. `first`: of the unit's first.
			auto prob = [&](auto first, const RowRecord<T> &rows) {
				if constexpr (T::CAUSAL) {
					found = masked.rowOf(q.stage) < 0 && anyNotFinite(s);
					if constexpr (decltype(first)::value) masked.begin(s, q.stage, found);
				}
				held.compute(s, rows, p, scale);
				if (T::CAUSAL && masked.haveRareKeys()) held.spoil(s, shared, group);
				masked.clear(s, q.stage, masked.rowOf(q.stage));
				held.hold(P, s);
			};
			auto issueS = [&] { issueTransposedScores<T>(s, at.own + matrixOffset(T::K), at.rowsOf(T::Q, q.stage)); };
			auto waitDO = [&] { barrierWait(shared + T::DO_FULL + 8 * stageOf(n), n / 2 % 2); };
			auto deltaHere = [&] { return Pairs<T::AHEAD>(PairsAt{shared + T::DELTA + stageOf(n) * T::DELTA_BYTES + column}); };
			auto issueDP = [&] { issueTransposedScores<T>(dP, at.own + matrixOffset(T::V), at.rowsOf(T::DO, stageOf(n))); };
			// Computes dS of the current step and stores it in shared memory. row is its first row.
			auto storeDS = [&](int row, const Pairs<T::AHEAD> &delta) {
				held.multiply(dP, s, P, delta);
				if (row < 0) masked.clear(dP, q.stage, row);
				storeTransposedDS<T>(ownDS + stageOf(n) * T::DS_BYTES, dP);
				held.finish(P, s, masked, q.stage, row);
			};
			auto issueDQ = [&] { issueGradientDQ<T>(dQ, at.transposedK, at.dSOf(n) + (T::D == 128 ? 0 : group * matrixOffset(T::DQ_COLUMNS * 128))); };
			auto issueDK = [&](int stage, uint32_t step) { issueGradientDK<T>(dK, at.dSOf(step) + group * matrixOffset(T::ROW_PANEL), at.acrossRows(T::Q, stage)); };
			// Leaves dQ of a step in shared memory. After a proxyFence() giveDQ() gives it to the warp that adds it.
			auto stageDQ = [&](uint32_t step) {
				barrierWait(shared + T::DQ_EMPTY, (step & 1) ^ 1);
				leaveDQ(ownDQ, dQ);
			};
			auto giveDQ = [&](uint32_t step) { releaseBuffer(shared + T::DQ_FULL + 8 * (T::WARPGROUPS * (step % T::ADDERS) + group)); };

			barrierWait(shared + T::K_FULL, keysParity);
			waitQ();
			const RowRecord<T> record = recordHere();
			issueS();
			wgmmaWait<0>();
			touch(s);
			prob(std::true_type(), record);
			barrierWait(shared + T::V_FULL, keysParity);
			keysParity ^= 1;
			bool begun = false;
			waitDO();
			Pairs<T::AHEAD> delta = deltaHere();
			issueDP();
			wgmmaWait<0>();
			touch(dP);
#pragma unroll 1
			for (;; left--) {
				const int row = masked.rowOf(q.stage);
				if (T::CAUSAL && row < 0) found |= anyNotFinite(dP);
				storeDS(row, delta);
				if (begun) giveDQ(n - 1); // the fence of dS is dQ's too
				begun = true;
				if (T::CAUSAL && row < 0) masked.clearRareRows(q.stage, stageOf(n), found);
				else namedSync(DS_STORED, 128 * T::WARPGROUPS);
				issueGradientDV<T>(dV, P, at.acrossRows(T::DO, stageOf(n)));
				if (left == 1) break;
				const int stage = q.stage;
				q.advance();
				waitQ();
				const RowRecord<T> record = recordHere();
				issueS();
				issueDQ();
				wgmmaWait<1>();
				touch(s), touch(dV), touch(P);
				releaseBuffer(shared + T::DO_EMPTY + 8 * stageOf(n));
				prob(std::false_type(), record); // while dQ is computed
				n++;
				waitDO();
				delta = deltaHere();
				issueDK(stage, n - 1);
				issueDP();
				wgmmaWait<0>();
				touch(dP), touch(dK), touch(dQ);
				releaseBuffer(shared + T::Q_EMPTY + 8 * stage);
				stageDQ(n - 1);
			}
			issueDQ();
			issueDK(q.stage, n);
			wgmmaWait<1>();
			touch(dQ), touch(dV), touch(P);
			releaseBuffer(shared + T::DO_EMPTY + 8 * stageOf(n));
			stageDQ(n);
			proxyFence();
			giveDQ(n);
			wgmmaWait<0>();
			touch(dK);
			releaseBuffer(shared + T::Q_EMPTY + 8 * q.stage);
			releaseBuffer(shared + T::KEYS_EMPTY);
			q.advance();
			n++;
		}
		units.read(u);
		units.done();
		storeUnit<T>(dK, dV, p, u, shared, group);
	}
}
