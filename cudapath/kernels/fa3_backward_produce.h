// The producer warpgroup of the backward fa3 kernel: a thread that draws tickets and issues the TMA copies, and one
// that adds dQ to memory in a fixed order, or with wide heads stores dS (fa3_backward_wide.h).
#pragma once
#include "fa3_backward_work.h"

// Draws tickets, passes them on to the other warps, and copies K and V of each unit and Q, dO and the statistics of each step.
// Runs in one thread.
template <class T>
__device__ __forceinline__ void copyTiles(const TensorMap *mapQ, const TensorMap *mapK, const TensorMap *mapV, const TensorMap *mapDO,
	const AttnBackwardParams &p, uint32_t shared) {
	const Workspace space = Workspace::of<T>(p);
	const int group = p.Hq / p.Hkv;
	Ring<2> work;
	Ring<T::Q_STAGES> q;
	Ring<T::DO_STAGES> dO;
	uint32_t keysParity = 1;
	for (;;) {
		barrierWait(shared + T::WORK_EMPTY + 8 * work.stage, work.parity ^ 1);
		const int ticket = (T::WIDE ? p.first : 0) + atomicAdd(space.ticket, 1);
		UnitOf<T> u;
		const bool any = unitOf<T>(p, ticket, u);
		storeWords(shared + T::WORK + T::UNIT_BYTES * work.stage, u);
		barrierArrive(shared + T::WORK_FULL + 8 * work.stage);
		work.advance();
		if (!any) return;
		if (u.first == u.end) continue;
		const int whole = firstWholeRow<T>(p, u.key);
		auto copyKeys = [&](int to, const TensorMap *map, int full, int panels) {
			barrierExpect(shared + full, panels * T::KEY_PANEL);
#pragma unroll
			for (int i = 0; i < panels; i++) {
				if constexpr (T::OPTIONS) copyBox(shared + to + i * T::KEY_PANEL, map, shared + full, 64 * i, u.s.keys.first + u.key, u.head, p.cu_k != 0 ? 0 : u.batch);
				else copyBox(shared + to + i * T::KEY_PANEL, map, shared + full, 64 * i, u.key, u.head, u.batch);
			}
		};
		auto copyRows = [&](auto &ring, int to, const TensorMap *map, int full, int empty, int panels, uint32_t statTo, const float *stat, int statBytes, int block, int head) {
			const uint32_t bar = shared + full + 8 * ring.stage, tile = shared + to + ring.stage * (panels * T::ROW_PANEL);
			barrierWait(shared + empty + 8 * ring.stage, ring.parity ^ 1);
			if (to == T::Q) {
				if constexpr (T::OPTIONS) {
					const Limits limits = limitsOf<T>(u.s, block * T::BM, u.key);
					storeSharedWord(shared + T::ROW + 4 * ring.stage, isMasked<T>(limits) ? INT32_MIN : 0);
					storeShared(shared + T::LIMITS + 16 * ring.stage, {uint32_t(limits.rows), uint32_t(limits.keys), uint32_t(limits.low), uint32_t(limits.high)});
				} else {
					storeSharedWord(shared + T::ROW + 4 * ring.stage, block * T::BM | (isMasked<T>(p, whole, block) ? INT32_MIN : 0));
				}
			}
			barrierExpect(bar, panels * T::ROW_PANEL + statBytes);
#pragma unroll
			for (int i = 0; i < panels; i++) {
				if constexpr (T::OPTIONS) copyBox(tile + i * T::ROW_PANEL, map, bar, 64 * i, u.s.rows.first + block * T::BM, head, p.cu_q != 0 ? 0 : u.batch);
				else copyBox(tile + i * T::ROW_PANEL, map, bar, 64 * i, block * T::BM, head, u.batch);
			}
			copyBytes(shared + statTo + ring.stage * statBytes, stat + blockIndex<T>(p, space, u, head, block) * (statBytes / 4), statBytes, bar);
			ring.advance();
		};
		barrierWait(shared + T::KEYS_EMPTY, keysParity);
		keysParity ^= 1;
		copyKeys(T::K, mapK, T::K_FULL, T::PANELS);
		bool begun = false;
#pragma unroll 1
		for (int head = u.head * group; head < (u.head + 1) * group; head++) {
#pragma unroll 1
			for (int block = u.first; block < u.end; block++) {
				copyRows(q, T::Q, mapQ, T::Q_FULL, T::Q_EMPTY, T::PANELS, T::LSE, space.lse, T::LSE_BYTES, block, head);
				if (!begun) copyKeys(T::V, mapV, T::V_FULL, T::VALUE_PANELS);
				begun = true;
				copyRows(dO, T::DO, mapDO, T::DO_FULL, T::DO_EMPTY, T::VALUE_PANELS, T::DELTA, space.delta, T::DELTA_BYTES, block, head);
			}
		}
	}
}

// Adds dQ of every ADDERS-th step to memory by TMA, in the order of the turns. The consumers leave dQ in shared memory. A later
// CTA may add as soon as the counter says that this addition is complete.
template <class T> __device__ __forceinline__ void addTiles(const AttnBackwardParams &p, uint32_t shared, int adder) {
	const Workspace space = Workspace::of<T>(p);
	const int group = p.Hq / p.Hkv;
	Units<T> units(shared);
	uint32_t n = 0; // steps of all units
	UnitOf<T> u;
	while (units.next(u)) {
		units.done();
#pragma unroll 1
		for (int head = u.head * group; head < (u.head + 1) * group; head++) {
#pragma unroll 1
			for (int block = u.first; block < u.end; block++, n++) {
				if (n % T::ADDERS != adder) continue;
				if (threadIdx.x % 32 == 0) {
					const int64_t at = blockIndex<T>(p, space, u, head, block);
					int *turn = space.turns + at;
					const int mine = turnOf<T>(p, u, block);
					if constexpr (T::OPTIONS) waitTurn(turn, mine);
					else
						while (loadAcquire(turn) != mine) continue;
					globalProxyFence();
					float *to = space.dQ + at * T::WARPGROUPS * T::DQ_FLOATS;
#pragma unroll
					for (int i = 0; i < T::WARPGROUPS; i++) {
						barrierWait(shared + T::DQ_FULL + 8 * (T::WARPGROUPS * adder + i), n / T::ADDERS & 1);
						addBytes(to + i * T::DQ_FLOATS, shared + T::DQ + i * T::DQ_BYTES, T::DQ_BYTES, mine == 0);
					}
					bulkCommit();
					bulkWaitRead();
					barrierArrive(shared + T::DQ_EMPTY);
					bulkWait();
					globalProxyFence();
					if constexpr (T::OPTIONS) passTurn(turn);
					else storeRelease(turn, mine + 1);
				}
				__syncwarp();
			}
		}
	}
}
