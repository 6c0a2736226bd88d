// The producer warpgroup of a cubin kernel: two warps load K, two load V.
#pragma once
#include "cubin_chunks.h"
#include "cubin_tile.h"
#include "fa3_work.h"

// Copies 16 bytes from global to shared memory without the L1. It reads `bytes` of them, 0 or 16; the rest is zero.
__device__ __forceinline__ void copyChunk(uint32_t to, const void *from, int bytes) {
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
// Waits for all of the thread's copies.
__device__ __forceinline__ void waitForCopies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Issues the copies of a tile. Zeros stand for rows from `rows` and for columns from `columns`.
template <class Mine>
__device__ __forceinline__ void copyTile(const Mine &mine, uint32_t to, const char *base, int64_t rowBytes, int row, int rows, int columns) {
	const bool inside = 8 * mine.column < columns;
	const char *from = base + 16 * mine.column;
#pragma unroll 4
	for (int i = 0; i < Mine::COUNT; i++) {
		const int at = row + mine.first + i * Mine::STEP;
		const bool there = inside && at < rows;
		copyChunk(to + mine.at(i), there ? from + at * rowBytes : base, there ? 16 : 0);
	}
}

// Replaces non-finite elements of this thread's chunks by zeros and reports whether there were any.
template <class Mine> __device__ __forceinline__ bool clearNotFinite(const Mine &mine, char *tile) {
	bool any = false;
#pragma unroll 1
	for (int i = 0; i < Mine::COUNT; i++) {
		uint4 &x = *reinterpret_cast<uint4 *>(tile + mine.at(i));
		uint32_t words[4] = {x.x, x.y, x.z, x.w};
		if ((notFinite(words[0]) | notFinite(words[1]) | notFinite(words[2]) | notFinite(words[3])) == 0) continue;
		any = true;
#pragma unroll
		for (int j = 0; j < 4; j++) {
			const uint32_t bad = notFinite(words[j]);
			words[j] &= ~(bad | bad - (bad >> 15));
		}
		x = make_uint4(words[0], words[1], words[2], words[3]);
	}
	return any;
}

// Loads the tiles of K, in the order in which the consumers use them. cp.async writes by the generic proxy and wgmma
// reads by the asynchronous one: each thread waits for its copies and then orders them before its arrival.
template <class T> __device__ __forceinline__ void produceK(const AttnParams &p, uint32_t shared) {
	const Chunks<T, T::PANELS> mine(threadIdx.x % T::LOADERS);
	const int group = p.Hq / p.Hkv;
	Ring<T::STAGES> k;
	Walk<T::BM, T::BN, T::CAUSAL> walk(p);
	Work w;
	while (walk.next(w)) {
		const char *base = reinterpret_cast<const char *>(p.k.base) + 2 * (w.batch * p.k.batch + w.head / group * p.k.head);
#pragma unroll 1
		for (int block = w.top; block >= 0; block--) {
			barrierWait(shared + T::K_EMPTY + 8 * k.stage, k.parity ^ 1);
			copyTile(mine, shared + T::K + k.stage * T::K_BYTES, base, 2 * p.k.row, block * T::BN, p.Sk, p.D);
			waitForCopies();
			proxyFence();
			barrierArrive(shared + T::K_FULL + 8 * k.stage);
			k.advance();
		}
	}
}

// The same of V. In the steps that the causal mask crosses each thread also scans what it copied.
template <class T> __device__ __forceinline__ void produceV(const AttnParams &p, uint32_t shared, char *tiles) {
	const Chunks<T, T::V_PANELS> mine(threadIdx.x % T::LOADERS);
	const int group = p.Hq / p.Hkv;
	Ring<T::STAGES> v;
	Walk<T::BM, T::BN, T::CAUSAL> walk(p);
	Work w;
	while (walk.next(w)) {
		const char *base = reinterpret_cast<const char *>(p.v.base) + 2 * (w.batch * p.v.batch + w.head / group * p.v.head);
#pragma unroll 1
		for (int block = w.top; block >= 0; block--) {
			barrierWait(shared + T::V_EMPTY + 8 * v.stage, v.parity ^ 1);
			const int tile = T::V + v.stage * T::V_BYTES;
			copyTile(mine, shared + tile, base, 2 * p.v.row, block * T::BN, p.Sk, p.Dv);
			waitForCopies();
			if (T::CAUSAL && w.top - block < w.masked) {
				const bool any = __any_sync(~0u, clearNotFinite(mine, tiles + tile));
				if (threadIdx.x % 32 == 0) tiles[T::MARKS + 4 * v.stage + threadIdx.x / 32 % 2] = any;
			}
			proxyFence();
			barrierArrive(shared + T::V_FULL + 8 * v.stage);
			v.advance();
		}
	}
}
