// The producer of a cubin kernel: one thread copies K and V to shared memory with the TMA, and prefetches into L2 what the
// ring is too short for.
#pragma once
#include "cubin_ptx.h"
#include "cubin_tile.h"
#include "fa3_produce.h"

template <class T>
__device__ __forceinline__ void produceCubin(const TensorMap *mapK, const TensorMap *mapV, const AttnParams &p, uint32_t shared, char *tiles) {
	Ring<T::STAGES> k, ownV;
	Ring<T::STAGES> &v = T::ONE_RING ? k : ownV;
	const int group = p.Hq / p.Hkv;
	Walk<T::BM, T::BN, T::CAUSAL, T::PARTIAL_LAST> walk(p);
	Work w = {}, next = {};
	auto prefetchTile = [&](int block, int headKV, int batch) {
#pragma unroll
		for (int i = 0; i < T::PANELS; i++) prefetchBox(mapK, 64 * i, block * T::BN, headKV, batch);
#pragma unroll
		for (int i = 0; i < T::V_PANELS; i++) prefetchBox(mapV, 64 * i, block * T::BN, headKV, batch);
	};
	Ring<T::WORKS> work;
	// Passes a row block on to the consumers. No steps: there are no more.
	auto pass = [&](int steps) {
		barrierWait(shared + T::WORK_EMPTY + 8 * work.stage, work.parity ^ 1);
		int4 *to = reinterpret_cast<int4 *>(tiles + T::WORK + 32 * work.stage);
		to[0] = make_int4(w.row, w.head, w.batch, w.masked);
		to[1] = make_int4(steps, 0, 0, 0);
		barrierArrive(shared + T::WORK_FULL + 8 * work.stage);
		work.advance();
	};
	// Row blocks that attend to no key are not passed on.
	auto advance = [&] {
		while (walk.next(next))
			if (!T::CAUSAL || next.steps > 0) return true;
		return false;
	};
	bool more = advance();
#pragma unroll 1
	while (more) {
		w = next;
		more = advance();
		pass(w.steps);
		const int headKV = w.head / group;
		auto loadK = [&](int block) { copyK<T>(p, k, mapK, shared, w, headKV, block), k.advance(); };
		auto loadV = [&](int block) {
			const bool raw = T::CAUSAL && w.top - block < w.masked;
			copyV<T>(p, v, mapV, shared, w, headKV, block, raw);
			v.advance();
		};
		loadK(w.top);
		if (more) {
#pragma unroll 1
			for (int i = 0; i < min(T::AHEAD, next.steps); i++) prefetchTile(next.top - i, next.head / group, next.batch);
		}
#pragma unroll 1
		for (int block = w.top; block > 0; block--) {
			loadK(block - 1);
			loadV(block);
			if (T::AHEAD > 0 && block > T::AHEAD) prefetchTile(block - 1 - T::AHEAD, headKV, w.batch);
		}
		loadV(0);
	}
	pass(0);
}
