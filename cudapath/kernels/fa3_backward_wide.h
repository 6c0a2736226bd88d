// The consumer warpgroups of the backward fa3 kernel for head dims above 128, and the warp that stores dS.
//
// dK and dV of 64 keys need more registers than a warpgroup has, so the two warpgroups divide the dims: each has its dims of
// dK and dV, for all 64 keys of the tile. S and dP cannot be divided this way. Warpgroup 0 computes
// S^T = K Q^T and P^T, warpgroup 1 dP^T = V dO^T and dS^T. P goes to warpgroup 1 through shared memory in the order of the
// threads, so that both have it in registers as operand of dV. dS goes through shared memory to dK of both, and from there by TMA
// to memory. dQ is the product of another kernel (fa3_backward_wide_dq.h): additions to dQ of 64 rows are eight times the bytes of dS, and
// the L2 cache bounds them.
//
// A step of warpgroup 0: dV, S of the next rows, [dS is stored], dK; P of the next rows while dK is computed.
// A step of warpgroup 1: dP, [P is stored], dV; dS while dV is computed; [dS is stored], dK, and dP of the next rows while it is computed.
//
// Both release a tile of dO as soon as dV is complete, and a tile of Q when dK is.
//
// In tiles that the causal mask crosses, dV waits until both warpgroups know whether S or dP has Inf or NaN
// (fa3_backward_rare.h). With options it does so in all masked tiles.
//
// With a softcap dS takes P times the derivative, which warpgroup 0 also leaves in shared memory, before it arrives at
// P_STORED. Warpgroup 1 reads it word by word while it computes dS, so that it needs no registers.
#pragma once
#include "fa3_backward_consume.h"
#include "fa3_backward_wide_tile.h"

template <class T, int GROUP> __device__ __forceinline__ void consumeWide(const AttnBackwardParams &p, uint32_t shared) {
	constexpr int THREADS = 128 * T::WARPGROUPS;
	// Dims of the warpgroup: of dK, and of dV.
	constexpr int DIMS = T::dimsOf(GROUP, T::D), FIRST = T::firstOf(GROUP, T::D), VALUE_DIMS = T::dimsOf(GROUP, T::DV), FIRST_VALUE = T::firstOf(GROUP, T::DV);
	const int thread = threadIdx.x % 128, warp = thread / 32, lane = thread % 32;
	const float scale = p.scale * LOG2E;
	// Matrices, as lower words of descriptors.
	const uint32_t base = matrixOffset(shared);
	auto tileOfQ = [&](int stage) { return base + matrixOffset(T::Q) + stage * matrixOffset(T::Q_BYTES); };
	auto tileOfDO = [&](int stage) { return base + matrixOffset(T::DO) + stage * matrixOffset(T::DO_BYTES); };
	auto dSOf = [&](uint32_t step) { return base + matrixOffset(T::DS) + step % 2 * matrixOffset(T::DS_BYTES); };
	// A row of dS has the 64 keys in 128 bytes. A lane stores rows lane % 8 of 8x8 matrices.
	const uint32_t ownDS = shared + T::DS + (lane / 16 * 8 + lane % 8) * 128 + ((2 * warp + lane / 8 % 2) ^ lane % 8) * 16;

	float dK[DIMS / 2], dV[VALUE_DIMS / 2];
	float s[T::BM / 2]; // S of warpgroup 0, dP of warpgroup 1
	uint32_t P[T::BM / 4];
	uint32_t n = 0; // steps of all units
	Ring<T::Q_STAGES> q;
	Ring<T::DO_STAGES> dO;
	uint32_t keysParity = 0;
	auto waitQ = [&] { barrierWait(shared + T::Q_FULL + 8 * q.stage, q.parity); };
	auto waitDO = [&] { barrierWait(shared + T::DO_FULL + 8 * dO.stage, dO.parity); };
	// The first row of the current Q tile, negative if it has masked slots.
	auto rowHere = [&] { return int(loadSharedWord(shared + T::ROW + 4 * q.stage)); };
	Units<T> units(shared);
	UnitOf<T> u;
	while (units.next(u)) {
#pragma unroll
		for (int i = 0; i < DIMS / 2; i++) dK[i] = 0;
#pragma unroll
		for (int i = 0; i < VALUE_DIMS / 2; i++) dV[i] = 0;
		int left = (u.end - u.first) * (p.Hq / p.Hkv); // steps
		if (T::CAUSAL) storeSharedWord(shared + T::RARE_ROWS + warpWord(), 0);
		if (left > 0) {
			const int firstKey = u.key;
			bool found = false; // Inf or NaN in S or dP of a masked tile
			// With a softcap: P times the derivative.
			auto slopedP = [&] {
				if constexpr (T::CAPPED) return SharedWords{shared + T::SLOPED_P + 4 * (threadHere() % 128)};
			};
			// Clears the masked slots of the current Q tile, whose row is `row`.
			auto clear = [&](int row) {
				if constexpr (T::OPTIONS) {
					if (row >= 0) return;
					const uint4 limits = loadShared(shared + T::LIMITS + 16 * q.stage);
					clearOutside<T>(s, {int(limits.x), int(limits.y), int(limits.z), int(limits.w)}, 0);
				} else {
					clearMasked<T>(s, p, firstKey, row);
				}
			};
			// Computes P of the Q tile and gives it to warpgroup 1. If S of the unit's first tile, which has all masked keys, has Inf or
			// NaN, the keys are cleared.
			auto prob = [&](auto first, const RowRecord<T> &rows) {
				if constexpr (T::CAUSAL) {
					found = rowHere() < 0 && anyNotFinite(s);
					if constexpr (decltype(first)::value) {
						bool rare = false;
						if constexpr (T::OPTIONS) rare = namedOr(KEYS_CLEAR, 128, found || anyNotFinite(s)) && clearKeys<T>(shared, 0);
						else if (rowHere() < 0) rare = namedOr(KEYS_CLEAR, 128, found) && clearKeys<T>(shared, 0);
						storeSharedWord(shared + T::RARE_KEYS + warpWord(), rare);
						if (threadHere() == 128) Workspace::of<T>(p).rare[u.ticket] = rare;
					}
				}
				if constexpr (T::CAPPED) computeCappedP<T, true>(s, slopedP(), rows.lse.at.address, Softcap(p));
				else computeScaledP<T>(s, rows, scale);
				if (T::CAUSAL && loadSharedWord(shared + T::RARE_KEYS + warpWord())) {
					spoilKeys<T>(s, shared, 0);
					if constexpr (T::CAPPED) spoilWords<T>(slopedP(), s);
				}
				clear(rowHere());
				packWords(P, s);
				const uint32_t to = shared + T::P + 16 * (threadHere() % 128);
#pragma unroll
				for (int i = 0; i < T::BM / 4; i += 4) storeShared(to + i * 512, make_uint4(P[i], P[i + 1], P[i + 2], P[i + 3]));
				namedArrive(P_STORED, THREADS);
			};
			auto takeP = [&] {
				namedSync(P_STORED, THREADS);
				const uint32_t from = shared + T::P + 16 * (threadHere() % 128);
#pragma unroll
				for (int i = 0; i < T::BM / 4; i += 4) {
					const uint4 x = loadShared(from + i * 512);
					P[i] = x.x, P[i + 1] = x.y, P[i + 2] = x.z, P[i + 3] = x.w;
				}
			};
			// Clears Q and dO of the current step if S or dP has Inf or NaN and the tile masked slots.
			auto checkTile = [&](int row, int stage) {
				if (!T::CAUSAL || row >= 0) return;
				if (!namedOr(TILE_CHECKED, THREADS, found)) return;
				storeSharedWord(shared + T::RARE_ROWS + warpWord(), 1);
				clearTile<THREADS>(shared + T::Q + stage * T::Q_BYTES, T::Q_BYTES, threadHere() - 128);
				clearTile<THREADS>(shared + T::DO + dO.stage * T::DO_BYTES, T::DO_BYTES, threadHere() - 128);
				proxyFence();
				namedSync(TILE_CHECKED, THREADS);
			};
			auto recordHere = [&] { return RowRecord<T>(shared + T::LSE + q.stage * T::LSE_BYTES, 8 * (threadHere() % 4)); };
			auto deltaHere = [&] { return Pairs<T::AHEAD>(PairsAt{shared + T::DELTA + dO.stage * T::DELTA_BYTES + 8 * (threadHere() % 4)}); };
			auto issueS = [&] { issueTransposedScores<T>(s, base + matrixOffset(T::K), tileOfQ(q.stage)); };
			auto issueDP = [&] { issueTransposedScores<T, T::DV>(s, base + matrixOffset(T::V), tileOfDO(dO.stage)); };
			auto issueDV = [&] {
				issueGradientDV<T, VALUE_DIMS>(dV, P, tileOfDO(dO.stage) + matrixPanels(T::ROW_PANEL) + matrixOffset(FIRST_VALUE / 64 * T::ROW_PANEL));
			};
			auto issueDK = [&](int stage) {
				issueGradientDK<T, DIMS>(dK, dSOf(n), tileOfQ(stage) + matrixPanels(T::ROW_PANEL) + matrixOffset(FIRST / 64 * T::ROW_PANEL));
			};
			auto endDV = [&] {
				touch(dV), touch(P);
				releaseBuffer(shared + T::DO_EMPTY + 8 * dO.stage);
			};
			auto endDK = [&](int stage) {
				touch(dK);
				releaseBuffer(shared + T::Q_EMPTY + 8 * stage);
			};

			if constexpr (GROUP == 0) {
				barrierWait(shared + T::K_FULL, keysParity);
				waitQ();
				const RowRecord<T> record = recordHere();
				issueS();
				wgmmaWait<0>();
				touch(s);
				prob(std::true_type(), record);
#pragma unroll 1
				for (;; left--) {
					const int stage = q.stage;
					waitDO();
					checkTile(rowHere(), stage);
					issueDV();
					if (left == 1) break;
					q.advance();
					waitQ();
					const RowRecord<T> record = recordHere();
					issueS();
					wgmmaWait<1>();
					endDV();
					namedSync(DS_STORED, THREADS);
					issueDK(stage);
					wgmmaWait<1>();
					touch(s);
					prob(std::false_type(), record); // while dK is computed
					dO.advance();
					wgmmaWait<0>();
					endDK(stage);
					n++;
				}
				wgmmaWait<0>();
				endDV();
				namedSync(DS_STORED, THREADS);
				issueDK(q.stage);
				dO.advance();
				wgmmaWait<0>();
				endDK(q.stage);
				q.advance();
				n++;
			} else {
				// Issues dP and returns delta of its rows.
				auto beginDP = [&] {
					waitQ(); // which says whether the tile is masked
					waitDO();
					const Pairs<T::AHEAD> delta = deltaHere();
					issueDP();
					return delta;
				};
				// Waits for dP, computes dV, and leaves dS in s.
				auto endDP = [&](const Pairs<T::AHEAD> &delta) {
					const int row = rowHere();
					takeP();
					if (T::CAUSAL && row < 0) {
						wgmmaWait<0>();
						touch(s);
						found = anyNotFinite(s);
						checkTile(row, q.stage);
						issueDV();
					} else {
						issueDV();
						wgmmaWait<1>();
						touch(s);
					}
					if constexpr (T::CAPPED) computeDS<T>(s, slopedP(), delta);
					else computeDS<T>(s, P, delta);
					if (row < 0) clear(row);
					wgmmaWait<0>();
					endDV();
				};
				barrierWait(shared + T::V_FULL, keysParity);
				endDP(beginDP());
#pragma unroll 1
				for (;; left--) {
					const uint32_t buffer = n % T::DS_BUFFERS;
					barrierWait(shared + T::DQ_EMPTY + 8 * buffer, (n / T::DS_BUFFERS & 1) ^ 1);
					storeTransposedDS<T>(ownDS + buffer * T::DS_BYTES, s);
					releaseBuffer(shared + T::DQ_FULL + 8 * buffer);
					namedSync(DS_STORED, THREADS);
					const int stage = q.stage;
					dO.advance();
					q.advance();
					issueDK(stage);
					if (left == 1) break;
					const Pairs<T::AHEAD> delta = beginDP();
					wgmmaWait<1>();
					endDK(stage);
					endDP(delta);
					n++;
				}
				wgmmaWait<0>();
				endDK((q.stage + T::Q_STAGES - 1) % T::Q_STAGES);
				n++;
			}
			keysParity ^= 1;
			releaseBuffer(shared + T::KEYS_EMPTY);
		}
		units.read(u);
		units.done();
		if (T::CAUSAL && u.first < u.end && loadSharedWord(shared + T::RARE_ROWS + warpWord())) addNonFiniteDO<T, FIRST_VALUE, VALUE_DIMS>(dV, p, u, u.key);
		if constexpr (T::OPTIONS) {
			if (u.first == u.end && p.accumulate & 1) continue;
			zeroRest<T>(p, u, GROUP);
		}
		const int key = u.key + threadHere() % 128 / 32 * 16 + threadHere() % 32 / 4;
		storeKeys<T, FIRST, DIMS>(dK, p.dK, p, u, key, p.D, p.scale);
		storeKeys<T, FIRST_VALUE, VALUE_DIMS>(dV, p.dV, p, u, key, p.Dv, 1);
	}
}

// Stores dS of each step by TMA, as it lies in shared memory: rows of 64 keys, swizzled. A warp does so, and says when that of a unit is in memory.
template <class T> __device__ __forceinline__ void storeScores(const AttnBackwardParams &p, uint32_t shared) {
	const Workspace space = Workspace::of<T>(p);
	const int group = p.Hq / p.Hkv, blocks = (p.Sq + T::BM - 1) / T::BM;
	Units<T> units(shared);
	uint32_t n = 0; // steps of all units
	UnitOf<T> u;
	while (units.next(u)) {
		units.done();
		char *const unit = space.dS + (u.ticket - p.first) * unitBytes<T>(p);
#pragma unroll 1
		for (int head = 0; head < group; head++) {
#pragma unroll 1
			for (int block = u.first; block < u.end; block++, n++) {
				if (threadIdx.x % 32 == 0) {
					const uint32_t buffer = n % T::DS_BUFFERS;
					barrierWait(shared + T::DQ_FULL + 8 * buffer, n / T::DS_BUFFERS & 1);
					if (p.dQ.base != 0) {
						storeBytes(unit + (int64_t(head) * blocks + block) * T::DS_BYTES, shared + T::DS + buffer * T::DS_BYTES, T::DS_BYTES);
						bulkCommit();
						bulkWaitRead();
					}
					barrierArrive(shared + T::DQ_EMPTY + 8 * buffer);
				}
				__syncwarp();
			}
		}
		if (threadIdx.x % 32 == 0 && p.dQ.base != 0) {
			bulkWait();
			globalProxyFence();
			passTurn(space.stored + u.batch * p.Hkv + u.head);
		}
		__syncwarp();
	}
}
