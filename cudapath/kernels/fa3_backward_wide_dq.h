// The kernel of dQ for head dims above 128: dQ = scale * dS K, with dS of the units of a launch of the main kernel.
//
// A CTA takes two blocks of BM rows of a query head, and loops over the key blocks that either of them attends to. CTAs are
// persistent and draw tickets, the last rows of a head first, which have the most keys under a causal mask.
//   - One thread of warpgroup 0 copies K of a key block and a tile of dS for each row block through a ring, by TMA.
//   - Two consumer warpgroups have a row block each, and all dims of its dQ in registers.
// So each element of dQ is one sum in a fixed order. If several launches have keys of a head, dQ in float32 stands in the
// workspace between them.
//
// The kernel has nothing to do with masks: dS of a masked slot is 0. The main kernel says in which units a key has Inf or NaN in
// K. Both replace them by 0, since dS is NaN where a row attends to such a key (fa3_backward_rare.h).
#pragma once
#include "fa3_backward_rare.h"
#include "fa3_backward_rows.h"
#include "fa3_backward_wide_tile.h"

template <class T> struct DQTile {
	static constexpr int ROW_BLOCKS = 2, THREADS = 128 * (ROW_BLOCKS + 1), STAGES = T::D == 256 ? 4 : 5;
	static constexpr int REST = T::D - 128; // dims of the second product of a step
	static constexpr int PRODUCER_REGISTERS = 56, CONSUMER_REGISTERS = 224;
	// A stage: K, dS of each row block. Then barriers as in BackwardBarriers, two RowPairs, and a word for each stage that is
	// not 0 if K has Inf or NaN.
	static constexpr int DS = T::K_BYTES, STAGE_BYTES = DS + ROW_BLOCKS * T::DS_BYTES;
	static constexpr int WORK_BYTES = 80, FULL = STAGES * STAGE_BYTES, EMPTY = FULL + 8 * STAGES, WORK_FULL = EMPTY + 8 * STAGES, WORK_EMPTY = WORK_FULL + 16,
			     WORK = WORK_EMPTY + 16, RARE = WORK + 2 * WORK_BYTES, SHARED_BYTES = RARE + 4 * STAGES;
	static_assert(SHARED_BYTES <= 227 * 1024 && PRODUCER_REGISTERS + 2 * CONSUMER_REGISTERS <= 3 * 168, "tile"); // 168: 65536 / THREADS
};
enum { DQ_KEYS_CLEAR = 1 }; // id of a named barrier of the consumers

// Two row blocks of a query head.
template <class T> struct RowPair {
	int batch, head, block; // the first row block; -1: no pair
	HeadsOfLaunch::Tickets units;
	Span launch; // key blocks whose units are of this launch
	Sequence s;  // with options

	// The pair of a ticket. Pairs of the heads of a launch are in the order of their units, the last rows of each head first.
	static __device__ __forceinline__ RowPair of(const AttnBackwardParams &p, int ticket) {
		RowPair x;
		x.block = -1;
		const HeadsOfLaunch heads = HeadsOfLaunch::of<T>(p);
		const int group = p.Hq / p.Hkv, pairs = (p.Sq + 2 * T::BM - 1) / (2 * T::BM);
		if (ticket >= pairs * group * heads.count) return x;
		int kvHead, i;
		heads.decode(ticket, pairs * group, kvHead, i);
		x.batch = kvHead / p.Hkv;
		x.head = (kvHead - x.batch * p.Hkv) * group + i % group;
		x.block = 2 * (pairs - 1 - i / group);
		if constexpr (T::OPTIONS) x.s = sequenceOf(p, x.batch);
		x.units = heads.ticketsOf(kvHead);
		auto blockFrom = [&](int ticket) { return min(ticket <= x.units.first ? 0 : (ticket - x.units.first + x.units.step - 1) / x.units.step, heads.blocks); };
		x.launch = {blockFrom(p.first), blockFrom(endOfUnits<T>(p, unitsOfCall<T>(p)))};
		return x;
	}

	// The key blocks that row block 0 or 1 attends to, {0, 0} if there are none, and those of this launch.
	__device__ __forceinline__ Span all(const AttnBackwardParams &p, int which) const {
		Span keys;
		if constexpr (T::OPTIONS) keys = keyBlocksOf<T>(s, block + which);
		else keys = {0, (block + which) * T::BM < p.Sq ? lastKeyBlock<T>(p, block + which) + 1 : 0};
		return keys.first < keys.end ? keys : Span{0, 0};
	}
	__device__ __forceinline__ Span here(const Span &all) const {
		const Span x = {max(all.first, launch.first), min(all.end, launch.end)};
		return x.first < x.end ? x : Span{0, 0};
	}
	// Both row blocks.
	__device__ __forceinline__ Span steps(const AttnBackwardParams &p) const {
		const Span a = here(all(p, 0)), b = here(all(p, 1));
		if (a.first == a.end) return b;
		if (b.first == b.end) return a;
		return {min(a.first, b.first), max(a.end, b.end)};
	}
};

// Draws tickets and copies the tiles. Runs in one thread.
template <class T> __device__ __forceinline__ void copyScores(const TensorMap *mapK, const AttnBackwardParams &p, uint32_t shared) {
	using X = DQTile<T>;
	const Workspace space = Workspace::of<T>(p);
	int *const next = space.ticketOfDQ<T>(p, 0);
	const int group = p.Hq / p.Hkv, blocks = (p.Sq + T::BM - 1) / T::BM;
	Ring<2> work;
	Ring<X::STAGES> ring;
	for (;;) {
		barrierWait(shared + X::WORK_EMPTY + 8 * work.stage, work.parity ^ 1);
		const RowPair<T> x = RowPair<T>::of(p, atomicAdd(next, 1));
		static_assert(sizeof x <= X::WORK_BYTES, "work");
		storeWords(shared + X::WORK + X::WORK_BYTES * work.stage, x);
		barrierArrive(shared + X::WORK_FULL + 8 * work.stage);
		work.advance();
		if (x.block < 0) return;
		const int kvHead = x.head / group;
		// The main kernel may still run.
		while (loadAcquire(space.stored + x.batch * p.Hkv + kvHead) < x.launch.end) waitShortly();
		globalProxyFence();
		const Span each[] = {x.here(x.all(p, 0)), x.here(x.all(p, 1))}, steps = x.steps(p);
#pragma unroll 1
		for (int i = steps.first; i < steps.end; i++) {
			const uint32_t stage = shared + ring.stage * X::STAGE_BYTES, full = shared + X::FULL + 8 * ring.stage;
			const int unit = x.units.first + i * x.units.step - p.first; // in the launch
			const bool wanted[] = {i >= each[0].first && i < each[0].end, i >= each[1].first && i < each[1].end};
			barrierWait(shared + X::EMPTY + 8 * ring.stage, ring.parity ^ 1);
			if constexpr (T::CAUSAL) storeSharedWord(shared + X::RARE + 4 * ring.stage, space.rare[p.first + unit]);
			barrierExpect(full, T::K_BYTES + (wanted[0] + wanted[1]) * T::DS_BYTES);
			const int key = i * T::BN;
#pragma unroll
			for (int n = 0; n < T::PANELS; n++) {
				if constexpr (T::OPTIONS) copyBox(stage + n * T::KEY_PANEL, mapK, full, 64 * n, x.s.keys.first + key, kvHead, p.cu_k != 0 ? 0 : x.batch);
				else copyBox(stage + n * T::KEY_PANEL, mapK, full, 64 * n, key, kvHead, x.batch);
			}
			const char *const dS = space.dS + unit * unitBytes<T>(p) + (int64_t(x.head - kvHead * group) * blocks + x.block) * T::DS_BYTES;
#pragma unroll
			for (int which = 0; which < X::ROW_BLOCKS; which++)
				if (wanted[which]) copyBytes(stage + X::DS + which * T::DS_BYTES, dS + which * T::DS_BYTES, T::DS_BYTES, full);
			ring.advance();
		}
	}
}

// Scales dQ of a row block, rounds it and stores it. The accumulators are those of DIMS dims from FIRST on.
template <class T, int FIRST, int DIMS>
__device__ __forceinline__ void storeRows(const float (&dQ)[DIMS / 2], const AttnBackwardParams &p, char *out, int64_t row, int end) {
	const int c = threadHere() % 4;
#pragma unroll
	for (int r = 0; r < 2; r++) {
		const bool inside = row + 8 * r < end;
		char *const to = out + 2 * ((row + 8 * r) * p.dQ.row);
#pragma unroll
		for (int j = 0; j < DIMS / 8; j += 4) {
			uint32_t x[4];
#pragma unroll
			for (int n = 0; n < 4; n++) {
				const int column = FIRST + 8 * (j + n) + 2 * c;
				float low = 0, high = 0; // what dQ holds: added in float32 and rounded once
				if (p.accumulate & 1 && inside && column < p.D) {
					const uint32_t held = *reinterpret_cast<const uint32_t *>(to + 2 * column);
					low = widenHalf<BF16>(held, 0), high = widenHalf<BF16>(held, 1);
				}
				x[n] = pack<BF16>(fmaf(dQ[4 * (j + n) + 2 * r], p.scale, low), fmaf(dQ[4 * (j + n) + 2 * r + 1], p.scale, high));
			}
			transposeQuad(x, c);
			if (inside && FIRST + 8 * (j + c) < p.D) *reinterpret_cast<uint4 *>(to + 2 * (FIRST + 8 * (j + c))) = make_uint4(x[0], x[1], x[2], x[3]);
		}
	}
}

template <class T> __device__ __forceinline__ void multiplyTiles(const AttnBackwardParams &p, uint32_t shared, int which) {
	using X = DQTile<T>;
	const Workspace space = Workspace::of<T>(p);
	const int thread = threadIdx.x % 128;
	const uint32_t base = matrixOffset(shared);
	float first[64], rest[X::REST / 2]; // dQ of dims 0 to 127, and of the others
	Ring<2> work;
	Ring<X::STAGES> ring;
	for (;;) {
		barrierWait(shared + X::WORK_FULL + 8 * work.stage, work.parity);
		RowPair<T> x;
		loadWords(x, shared + X::WORK + X::WORK_BYTES * work.stage);
		releaseBuffer(shared + X::WORK_EMPTY + 8 * work.stage);
		work.advance();
		if (x.block < 0) return;
		const Span all = x.all(p, which), own = x.here(all), steps = x.steps(p);
#pragma unroll
		for (int i = 0; i < 64; i++) first[i] = 0;
#pragma unroll
		for (int i = 0; i < X::REST / 2; i++) rest[i] = 0;
		int issued = -1; // stage of the products under way
		auto complete = [&] {
			if (issued >= 0) releaseBuffer(shared + X::EMPTY + 8 * issued);
		};
#pragma unroll 1
		for (int i = steps.first; i < steps.end; i++) {
			barrierWait(shared + X::FULL + 8 * ring.stage, ring.parity);
			if (T::CAUSAL && loadSharedWord(shared + X::RARE + 4 * ring.stage)) {
				clearTile<128 * X::ROW_BLOCKS>(shared + ring.stage * X::STAGE_BYTES, T::K_BYTES, threadHere() - 128);
				proxyFence();
				namedSync(DQ_KEYS_CLEAR, 128 * X::ROW_BLOCKS);
			}
			if (i >= own.first && i < own.end) {
				const uint32_t stage = base + ring.stage * matrixOffset(X::STAGE_BYTES), dS = stage + matrixOffset(X::DS) + which * matrixOffset(T::DS_BYTES);
				const uint32_t keys = stage + matrixPanels(T::KEY_PANEL);
				wgmmaFence();
#pragma unroll
				for (int key = 0; key < T::BN; key += 16) {
					WgmmaAcross<128>::add(first, dS + matrixOffset(key * 2), keys + matrixOffset(key * 128));
					WgmmaAcross<X::REST>::add(rest, dS + matrixOffset(key * 2), keys + matrixOffset(2 * T::KEY_PANEL + key * 128));
				}
				wgmmaCommit();
				wgmmaWait<1>();
				complete();
				issued = ring.stage;
			} else {
				releaseBuffer(shared + X::EMPTY + 8 * ring.stage);
			}
			ring.advance();
		}
		wgmmaWait<0>();
		touch(first), touch(rest);
		complete();

		const int block = x.block + which, end = T::OPTIONS ? (p.accumulate & 1 ? x.s.rows.used : x.s.rows.extent) : p.Sq;
		const bool begun = all.first < x.launch.first, more = all.end > x.launch.end;
		if (begun || more) {
			// Earlier or later launches add to dQ, which the workspace has in the order of the threads.
			if (own.first == own.end) continue;
			int64_t index;
			if constexpr (T::OPTIONS) index = blockIndex<T>(p, x.s, x.head, block);
			else index = (int64_t(x.batch) * p.Hq + x.head) * space.blocks + block;
			float4 *const sums = reinterpret_cast<float4 *>(space.dQ + index * (T::BM * T::D)) + thread;
			auto exchange = [&](float *dQ, int at) {
				float4 held = make_float4(0, 0, 0, 0);
				if (begun) held = sums[128 * at];
				dQ[0] += held.x, dQ[1] += held.y, dQ[2] += held.z, dQ[3] += held.w;
				if (more) sums[128 * at] = make_float4(dQ[0], dQ[1], dQ[2], dQ[3]);
			};
#pragma unroll
			for (int i = 0; i < 64; i += 4) exchange(first + i, i / 4);
#pragma unroll
			for (int i = 0; i < X::REST / 2; i += 4) exchange(rest + i, 16 + i / 4);
			if (more) continue;
		} else if (all.first == all.end && (T::OPTIONS && p.accumulate & 1 || x.launch.first != 0)) {
			continue; // no keys: zeros that the first launch of the head stores
		}
		char *out;
		if constexpr (T::OPTIONS) out = x.s.rowsOf(p, p.dQ, x.head);
		else out = reinterpret_cast<char *>(p.dQ.base) + 2 * (x.batch * p.dQ.batch + x.head * p.dQ.head);
		const int64_t row = thread / 32 * 16 + thread % 32 / 4;
		storeRows<T, 0, 128>(first, p, out, block * T::BM + row, end);
		storeRows<T, 128, X::REST>(rest, p, out, block * T::BM + row, end);
	}
}

// Rows of packed sequences past the longest length that the call names have no tickets. Their dQ is 0.
template <class T> __device__ __forceinline__ void zeroRows(const AttnBackwardParams &p) {
	if (p.cu_q == 0 || p.accumulate & 1 || p.first != 0) return;
	for (int n = blockIdx.x; n < p.B * p.Hq; n += gridDim.x) {
		const Sequence s = sequenceOf(p, n / p.Hq);
		char *const out = s.rowsOf(p, p.dQ, n % p.Hq);
		const int from = (p.Sq + 2 * T::BM - 1) / (2 * T::BM) * (2 * T::BM), chunks = p.D / 8; // of 16 bytes
		for (int64_t i = threadIdx.x - 128; i < int64_t(s.rows.extent - from) * chunks; i += 128 * DQTile<T>::ROW_BLOCKS)
			*reinterpret_cast<uint4 *>(out + 2 * ((from + i / chunks) * p.dQ.row + i % chunks * 8)) = make_uint4(0, 0, 0, 0);
	}
}

template <class T> __device__ __forceinline__ void multiplyScores(const TensorMap *mapK, const AttnBackwardParams &p) {
	using X = DQTile<T>;
	extern __shared__ __align__(1024) char tiles[];
	const uint32_t shared = sharedAddress(tiles);
	const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
	if (threadIdx.x == 0) {
		prefetchMap(mapK);
		for (int i = 0; i < X::STAGES; i++) {
			barrierInit(shared + X::FULL + 8 * i, 1);
			barrierInit(shared + X::EMPTY + 8 * i, 4 * X::ROW_BLOCKS);
		}
		for (int i = 0; i < 2; i++) {
			barrierInit(shared + X::WORK_FULL + 8 * i, 1);
			barrierInit(shared + X::WORK_EMPTY + 8 * i, 4 * X::ROW_BLOCKS);
		}
		barrierInitFence();
	}
	__syncthreads();
	if (warp < 4) {
		giveRegisters<X::PRODUCER_REGISTERS>();
		if (threadIdx.x == 0) copyScores<T>(mapK, p, shared);
		if (blockIdx.x == 0 && threadIdx.x == 32) {
			if constexpr (!T::OPTIONS) waitForKernelBefore();
			*Workspace::of<T>(p).ticket = 0; // of the next launch of the main kernel
		}
	} else {
		takeRegisters<X::CONSUMER_REGISTERS>();
		if constexpr (T::OPTIONS) zeroRows<T>(p);
		multiplyTiles<T>(p, shared, warp / 4 - 1);
	}
}
