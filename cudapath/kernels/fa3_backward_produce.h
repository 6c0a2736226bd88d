// The producer warpgroup of the backward fa3 kernel: a thread that draws tickets and issues the TMA copies, and two
// warps that keep the order of the additions to dQ.
#pragma once
#include "fa3_backward_work.h"

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
		const int ticket = atomicAdd(space.ticket, 1);
		storeWord(shared + T::WORK + 4 * work.stage, ticket);
		barrierArrive(shared + T::WORK_FULL + 8 * work.stage);
		work.advance();
		Unit u;
		if (!unitOf<T>(p, ticket, u)) return;
		if (u.first == u.end) continue;
		const int whole = firstWholeRow<T>(p, u.key);
		auto copyKeys = [&](int to, const TensorMap *map, int full) {
			barrierExpect(shared + full, T::KEY_BYTES);
#pragma unroll
			for (int i = 0; i < T::PANELS; i++) copyBox(shared + to + i * T::KEY_PANEL, map, shared + full, 64 * i, u.key, u.head, u.batch);
		};
		auto copyRows = [&](auto &ring, int to, const TensorMap *map, int full, int empty, uint32_t statTo, const float *stat, int statBytes, int block, int head) {
			const uint32_t bar = shared + full + 8 * ring.stage, tile = shared + to + ring.stage * T::ROW_BYTES;
			barrierWait(shared + empty + 8 * ring.stage, ring.parity ^ 1);
			if (to == T::Q) {
				storeWord(shared + T::ROW + 4 * ring.stage, block * T::BM | (isMasked<T>(p, whole, block) ? INT32_MIN : 0));
			}
			barrierExpect(bar, T::ROW_BYTES + statBytes);
#pragma unroll
			for (int i = 0; i < T::PANELS; i++) copyBox(tile + i * T::ROW_PANEL, map, bar, 64 * i, block * T::BM, head, u.batch);
			copyBytes(shared + statTo + ring.stage * statBytes, stat + ((int64_t(u.batch) * p.Hq + head) * space.blocks + block) * (statBytes / 4), statBytes, bar);
			ring.advance();
		};
		barrierWait(shared + T::KEYS_EMPTY, keysParity);
		keysParity ^= 1;
		copyKeys(T::K, mapK, T::K_FULL);
		bool begun = false;
#pragma unroll 1
		for (int head = u.head * group; head < (u.head + 1) * group; head++) {
#pragma unroll 1
			for (int block = u.first; block < u.end; block++) {
				copyRows(q, T::Q, mapQ, T::Q_FULL, T::Q_EMPTY, T::LSE, space.lse, T::LSE_BYTES, block, head);
				if (!begun) copyKeys(T::V, mapV, T::V_FULL);
				begun = true;
				copyRows(dO, T::DO, mapDO, T::DO_FULL, T::DO_EMPTY, T::DELTA, space.delta, T::DELTA_BYTES, block, head);
			}
		}
	}
}

// Waits for this CTA's turn to add to each block of rows and tells the consumers where to add.
template <class T> __device__ __forceinline__ void waitTurns(const AttnBackwardParams &p, uint32_t shared) {
	const Workspace space = Workspace::of<T>(p);
	const int group = p.Hq / p.Hkv;
	Units<T> units(p, shared);
	Ring<2> ring;
	Unit u;
	while (units.next(u)) {
#pragma unroll 1
		for (int head = u.head * group; head < (u.head + 1) * group; head++) {
#pragma unroll 1
			for (int block = u.first; block < u.end; block++) {
				// The turn before the last has been passed on, so its barriers are free.
				barrierWait(shared + T::TURN_PASSED + 8 * ring.stage, ring.parity ^ 1);
				if (threadIdx.x % 32 == 0) {
					const int *turn = space.turns + (int64_t(u.batch) * p.Hq + head) * space.blocks + block;
					const int mine = lastKeyBlock<T>(p, block) - u.block;
					while (loadAcquire(turn) != mine) continue;
					const int64_t at = (int64_t(u.batch) * p.Hq + head) * space.blocks + block;
					storeLong(shared + T::DQ_TO + 8 * ring.stage, reinterpret_cast<uint64_t>(space.dQ + at * T::WARPGROUPS * T::DQ_FLOATS) | (mine == 0));
					barrierArrive(shared + T::TURN_HERE + 8 * ring.stage);
				}
				__syncwarp();
				ring.advance();
			}
		}
	}
}

// Passes the turn on after the consumers have added to a block of rows. The release orders their additions, which the
// mbarrier has made visible to this thread, before the counter.
template <class T> __device__ __forceinline__ void passTurns(const AttnBackwardParams &p, uint32_t shared) {
	const Workspace space = Workspace::of<T>(p);
	const int group = p.Hq / p.Hkv;
	Units<T> units(p, shared);
	Ring<2> ring;
	Unit u;
	while (units.next(u)) {
#pragma unroll 1
		for (int head = u.head * group; head < (u.head + 1) * group; head++) {
#pragma unroll 1
			for (int block = u.first; block < u.end; block++) {
				barrierWait(shared + T::TURN_USED + 8 * ring.stage, ring.parity);
				if (threadIdx.x % 32 == 0) {
					int *turn = space.turns + (int64_t(u.batch) * p.Hq + head) * space.blocks + block;
					storeRelease(turn, lastKeyBlock<T>(p, block) - u.block + 1);
					barrierArrive(shared + T::TURN_PASSED + 8 * ring.stage);
				}
				__syncwarp();
				ring.advance();
			}
		}
	}
}
