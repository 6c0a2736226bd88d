// The consumer warpgroups of the backward fa3 kernel for head dims above 128, and the warps that add their dQ to memory.
//
// dK and dV of 64 keys need more registers than a warpgroup has, so the two warpgroups divide the dims: each has its dims of
// dK, dV and dQ, for all 64 keys or rows of the tile. S and dP cannot be divided this way. Warpgroup 0 computes
// S^T = K Q^T and P^T, warpgroup 1 dP^T = V dO^T and dS^T. P goes to warpgroup 1 through shared memory in the order of the
// threads, so that both have it in registers as operand of dV. dS goes through shared memory to dK and dQ of both.
//
// A step of warpgroup 0: dV, S of the next rows, [dS is stored], dQ, dK; P of the next rows while dQ and dK are computed.
// A step of warpgroup 1: dP, [P is stored], dV; dS while dV is computed; [dS is stored], dK and dQ. Where dO has two tiles and the
// warpgroup computes dQ at once, it issues dP of the next rows before it leaves dQ in shared memory.
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

// dQ = dS K, with K of DIMS dims.
template <class T, int DIMS> __device__ __forceinline__ void issueWideDQ(float (&dQ)[DIMS / 2], uint32_t dS, uint32_t keys) {
	wgmmaFence();
	WgmmaAcross<DIMS>::first(dQ, dS, keys);
#pragma unroll
	for (int key = 16; key < T::BN; key += 16) WgmmaAcross<DIMS>::add(dQ, dS + matrixOffset(key * 2), keys + matrixOffset(key * 128));
	wgmmaCommit();
	touch(dQ);
}

template <class T, int GROUP> __device__ __forceinline__ void consumeWide(const AttnBackwardParams &p, uint32_t shared) {
	constexpr int THREADS = 128 * T::WARPGROUPS;
	// Dims of the warpgroup: of dK and dQ, and of dV. dQ is computed in chunks of 64 dims, since S or dP occupies registers then.
	constexpr int DIMS = T::dimsOf(GROUP, T::D), FIRST = T::firstOf(GROUP, T::D), VALUE_DIMS = T::dimsOf(GROUP, T::DV), FIRST_VALUE = T::firstOf(GROUP, T::DV);
	constexpr int DQ_DIMS = 64, CHUNKS = DIMS / DQ_DIMS;
	constexpr bool DP_EARLY = GROUP == 1 && T::DO_STAGES > 1 && CHUNKS == 1;
	const int thread = threadIdx.x % 128, warp = thread / 32, lane = thread % 32;
	const float scale = p.scale * LOG2E;
	// Matrices, as lower words of descriptors.
	const uint32_t base = matrixOffset(shared);
	auto tileOfQ = [&](int stage) { return base + matrixOffset(T::Q) + stage * matrixOffset(T::Q_BYTES); };
	auto tileOfDO = [&](int stage) { return base + matrixOffset(T::DO) + stage * matrixOffset(T::DO_BYTES); };
	auto dSOf = [&](uint32_t step) { return base + matrixOffset(T::DS) + step % 2 * matrixOffset(T::DS_BYTES); };
	// A row of dS has the 64 keys in 128 bytes. A lane stores rows lane % 8 of 8x8 matrices.
	const uint32_t ownDS = shared + T::DS + (lane / 16 * 8 + lane % 8) * 128 + ((2 * warp + lane / 8 % 2) ^ lane % 8) * 16;

	float dK[DIMS / 2], dV[VALUE_DIMS / 2], dQ[DQ_DIMS / 2];
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
	Units<T> units(p, shared);
	int ticket;
	UnitOf<T> u;
	while (units.next(ticket, u)) {
#pragma unroll
		for (int i = 0; i < DIMS / 2; i++) dK[i] = 0;
#pragma unroll
		for (int i = 0; i < VALUE_DIMS / 2; i++) dV[i] = 0;
		int left = (u.end - u.first) * (p.Hq / p.Hkv); // steps
		if (T::CAUSAL) storeSharedWord(shared + T::RARE_ROWS + warpWord(), 0);
		if (left > 0) {
			const int firstKey = u.key;
			bool found = false; // Inf or NaN in S or dP of a masked tile
			// With options and a softcap: P times the derivative.
			auto slopedP = [&] {
				if constexpr (T::OPTIONS) return SharedWords{shared + T::SLOPED_P + 4 * (threadHere() % 128)};
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
			auto prob = [&](auto first) {
				const uint32_t stats = shared + T::LSE + q.stage * T::LSE_BYTES, lse = stats + 8 * (threadHere() % 4);
				if constexpr (T::CAUSAL) {
					found = rowHere() < 0 && anyNotFinite(s);
					if constexpr (decltype(first)::value) {
						bool rare = false;
						if constexpr (T::OPTIONS) rare = namedOr(KEYS_CLEAR, 128, found || anyNotFinite(s)) && clearKeys<T>(shared, 0);
						else if (rowHere() < 0) rare = namedOr(KEYS_CLEAR, 128, found) && clearKeys<T>(shared, 0);
						storeSharedWord(shared + T::RARE_KEYS + warpWord(), rare);
					}
				}
				const bool capped = T::OPTIONS && p.softcap != 0;
				if (capped) {
					if constexpr (T::OPTIONS) computeCappedP<T, true>(s, slopedP(), lse, Softcap(p));
				} else {
					computeScaledP<T>(s, stats, lse, scale);
				}
				if (T::CAUSAL && loadSharedWord(shared + T::RARE_KEYS + warpWord())) {
					spoilKeys<T>(s, shared, 0);
					if constexpr (T::OPTIONS)
						if (capped) spoilWords<T>(slopedP(), s);
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
			auto issueS = [&] { issueTransposedScores<T>(s, base + matrixOffset(T::K), tileOfQ(q.stage)); };
			auto issueDP = [&] { issueTransposedScores<T, T::DV>(s, base + matrixOffset(T::V), tileOfDO(dO.stage)); };
			auto issueDV = [&] {
				issueGradientDV<T, VALUE_DIMS>(dV, P, tileOfDO(dO.stage) + matrixPanels(T::ROW_PANEL) + matrixOffset(FIRST_VALUE / 64 * T::ROW_PANEL));
			};
			auto issueDK = [&](int stage) {
				issueGradientDK<T, DIMS>(dK, dSOf(n), tileOfQ(stage) + matrixPanels(T::ROW_PANEL) + matrixOffset(FIRST / 64 * T::ROW_PANEL));
			};
			auto issueDQ = [&](int chunk) {
				issueWideDQ<T, DQ_DIMS>(dQ, dSOf(n), base + matrixPanels(T::KEY_PANEL) + matrixOffset(T::K + (FIRST / 64 + chunk) * T::KEY_PANEL));
			};
			// Leaves a chunk of dQ of the current step in shared memory for the adding thread, in pieces.
			auto giveDQ = [&](int chunk) {
				touch(dQ);
				constexpr int PIECES = DQ_DIMS / T::PIECE_DIMS;
#pragma unroll
				for (int i = 0; i < PIECES; i++) {
					const int piece = chunk * PIECES + i, buffer = T::bufferOf(GROUP, piece);
					barrierWait(shared + T::DQ_EMPTY + 8 * buffer, T::parityOf(GROUP, n, piece) ^ 1);
					leaveDQ<T::PIECE_DIMS / 2>(shared + T::DQ + buffer * T::DQ_BYTES, dQ, i * T::PIECE_DIMS / 2);
					releaseBuffer(shared + T::DQ_FULL + 8 * buffer);
				}
			};
			auto giveRest = [&] {
				if constexpr (CHUNKS > 1) {
					issueDQ(1);
					wgmmaWait<0>();
					giveDQ(1);
				}
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
				issueS();
				wgmmaWait<0>();
				touch(s);
				prob(std::true_type());
#pragma unroll 1
				for (;; left--) {
					const int stage = q.stage;
					waitDO();
					checkTile(rowHere(), stage);
					issueDV();
					if (left == 1) break;
					q.advance();
					waitQ();
					issueS();
					wgmmaWait<1>(); // P of dV and dQ together do not fit in registers
					endDV();
					namedSync(DS_STORED, THREADS);
					issueDQ(0);
					issueDK(stage);
					wgmmaWait<2>();
					touch(s);
					prob(std::false_type()); // while dQ and dK are computed
					dO.advance();
					wgmmaWait<1>();
					giveDQ(0);
					wgmmaWait<0>();
					endDK(stage);
					giveRest();
					n++;
				}
				wgmmaWait<0>();
				endDV();
				namedSync(DS_STORED, THREADS);
				issueDQ(0);
				issueDK(q.stage);
				dO.advance();
				wgmmaWait<1>();
				giveDQ(0);
				wgmmaWait<0>();
				endDK(q.stage);
				giveRest();
				q.advance();
				n++;
			} else {
				auto beginDP = [&] {
					waitQ(); // which says whether the tile is masked
					waitDO();
					issueDP();
				};
				// Waits for dP, computes dV, and leaves dS in s.
				auto endDP = [&] {
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
					const uint32_t delta = shared + T::DELTA + dO.stage * T::DELTA_BYTES + 8 * (threadHere() % 4);
					if constexpr (T::OPTIONS) {
						if (p.softcap != 0) computeDS<T>(s, slopedP(), delta);
						else computeDS<T>(s, P, delta);
					} else {
						computeDS<T>(s, P, delta);
					}
					if (row < 0) clear(row);
					wgmmaWait<0>();
					endDV();
				};
				barrierWait(shared + T::V_FULL, keysParity);
				if constexpr (DP_EARLY) beginDP(), endDP();
#pragma unroll 1
				for (;; left--) {
					if constexpr (!DP_EARLY) beginDP(), endDP();
					storeTransposedDS<T>(ownDS + n % 2 * T::DS_BYTES, s);
					namedSync(DS_STORED, THREADS);
					const int stage = q.stage;
					dO.advance();
					q.advance();
					if constexpr (DP_EARLY) {
						issueDQ(0);
						issueDK(stage);
						wgmmaWait<1>();
						touch(dQ);
						if (left == 1) {
							giveDQ(0);
							wgmmaWait<0>();
							endDK(stage);
							break;
						}
						beginDP();
						giveDQ(0);
						wgmmaWait<1>();
						endDK(stage);
						endDP();
					} else {
						issueDK(stage);
						issueDQ(0);
						wgmmaWait<1>();
						endDK(stage);
						wgmmaWait<0>();
						giveDQ(0);
						giveRest();
						if (left == 1) break;
					}
					n++;
				}
				n++;
			}
			keysParity ^= 1;
			releaseBuffer(shared + T::KEYS_EMPTY);
		}
		unitOf<T>(p, ticket, u);
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

// Adds the dQ of a consumer warpgroup to memory by TMA, in the order of the turns, as addTiles() does. Each warpgroup has a
// warp that does so, and a counter per block of rows: no warpgroup waits for dims of the other one.
template <class T, int GROUP> __device__ __forceinline__ void addWideTiles(const AttnBackwardParams &p, uint32_t shared) {
	constexpr int PIECES = T::piecesOf(GROUP), FIRST = T::firstOf(GROUP, T::D) / T::PIECE_DIMS;
	const Workspace space = Workspace::of<T>(p);
	const int group = p.Hq / p.Hkv;
	Units<T> units(p, shared);
	uint32_t n = 0; // steps of all units
	UnitOf<T> u;
	while (units.next(u)) {
#pragma unroll 1
		for (int head = u.head * group; head < (u.head + 1) * group; head++) {
			int seen = 0; // of the counter of the next block
#pragma unroll 1
			for (int block = u.first; block < u.end; block++) {
				if (threadIdx.x % 32 == 0) {
					const int64_t at = blockIndex<T>(p, space, u, head, block);
					int *turn = space.turns + T::COUNTERS * at + GROUP;
					const int mine = turnOf<T>(p, u, block);
					waitTurn(turn, mine, seen);
					globalProxyFence();
					float *to = space.dQ + at * (T::BM * T::D) + FIRST * T::DQ_FLOATS;
					auto release = [&](int piece) { barrierArrive(shared + T::DQ_EMPTY + 8 * T::bufferOf(GROUP, piece)); };
#pragma unroll
					for (int piece = 0; piece < PIECES; piece++) {
						const int buffer = T::bufferOf(GROUP, piece);
						barrierWait(shared + T::DQ_FULL + 8 * buffer, T::parityOf(GROUP, n, piece));
						addBytes(to + piece * T::DQ_FLOATS, shared + T::DQ + buffer * T::DQ_BYTES, T::DQ_BYTES, mine == 0);
						bulkCommit();
						if (piece == 0) continue;
						bulkWaitRead<1>(); // of the piece before
						release(piece - 1);
					}
					bulkWaitRead<0>();
					release(PIECES - 1);
					seen = block + 1 < u.end ? loadAcquire(turn + T::COUNTERS) : 0; // while the additions complete
					bulkWait();
					globalProxyFence();
					passTurn(turn);
				}
				__syncwarp();
				n++;
			}
		}
	}
}
