// The producer warpgroup of fa3: one thread issues the TMA copies, and three warps, with options two, scan the V tiles of
// masked steps.
#pragma once
#include "fa3_tile.h"
#include "fa3_work.h"

// Initializes the mbarriers of the rings of K and V, and the marks of their stages. A buffer is free after `releases` arrivals.
template <class T> __device__ __forceinline__ void initKeyRings(uint32_t shared, char *tiles, int releases) {
	for (int i = 0; i < T::STAGES; i++) {
		barrierInit(shared + T::K_FULL + 8 * i, 1);
		barrierInit(shared + T::K_EMPTY + 8 * i, releases);
		if (!T::ONE_RING) {
			barrierInit(shared + T::V_FULL + 8 * i, 1);
			barrierInit(shared + T::V_EMPTY + 8 * i, releases);
		}
		barrierInit(shared + T::V_RAW + 8 * i, 1);
		*reinterpret_cast<uint32_t *>(tiles + T::MARKS + 4 * i) = 0;
	}
}

// Copies K of a block of BN keys to buffer k of its ring, as soon as that is free.
template <class T, class Params>
__device__ __forceinline__ void copyK(const Params &p, const Ring<T::STAGES> &k, const TensorMap *mapK, uint32_t shared, const typename WorkTypes<T>::Numbers &w, int headKV, int block) {
	const uint32_t full = shared + T::K_FULL + 8 * k.stage, to = shared + T::K + k.stage * T::K_BYTES;
	barrierWait(shared + T::K_EMPTY + 8 * k.stage, k.parity ^ 1);
	barrierExpect(full, T::K_BYTES);
	if constexpr (T::PAGED) {
		copyPages<T, T::PANELS>(to, mapK, full, p, w, headKV, block);
	} else {
#pragma unroll
		for (int i = 0; i < T::PANELS; i++) {
			if constexpr (T::OPTIONS) copyBox(to + i * T::K_PANEL, mapK, full, 64 * i, w.keyRow + block * T::BN, headKV, w.keyBatch);
			else copyBox(to + i * T::K_PANEL, mapK, full, 64 * i, block * T::BN, headKV, w.batch);
		}
	}
}

// The same for V. raw: TMA signals V_RAW, for which the scanning warps wait. They arrive at V_FULL when done.
template <class T, class Params>
__device__ __forceinline__ void copyV(const Params &p, const Ring<T::STAGES> &v, const TensorMap *mapV, uint32_t shared, const typename WorkTypes<T>::Numbers &w, int headKV, int block, bool raw) {
	const uint32_t full = shared + (raw ? T::V_RAW : T::V_FULL) + 8 * v.stage, to = shared + T::V + v.stage * T::V_BYTES;
	barrierWait(shared + T::V_EMPTY + 8 * v.stage, v.parity ^ 1);
	barrierExpect(full, T::V_BYTES);
	if constexpr (T::PAGED) {
		copyPages<T, T::V_PANELS>(to, mapV, full, p, w, headKV, block);
	} else {
#pragma unroll
		for (int i = 0; i < T::V_PANELS; i++) {
			if constexpr (T::OPTIONS) copyBox(to + i * T::K_PANEL, mapV, full, 64 * i, w.keyRow + block * T::BN, headKV, w.keyBatch);
			else copyBox(to + i * T::K_PANEL, mapV, full, 64 * i, block * T::BN, headKV, w.batch);
		}
	}
}

template <class T, class Params>
__device__ __forceinline__ void produce(const TensorMap *mapQ, const TensorMap *mapK, const TensorMap *mapV, const Params &p, uint32_t shared) {
	Ring<T::Q_STAGES> q;
	Ring<T::STAGES> k, ownV;
	Ring<T::STAGES> &v = T::ONE_RING ? k : ownV;
	const int group = p.Hq / p.Hkv;
	typename WorkTypes<T>::Blocks walk(p, shared);
	typename WorkTypes<T>::Block w;
	while (walk.next(w)) {
		if (w.steps == 0) continue; // not with options
		const typename WorkTypes<T>::Numbers &at = w;
		const int headKV = at.head / group;
		auto loadK = [&](int block) { copyK<T>(p, k, mapK, shared, at, headKV, block), k.advance(); };
		auto loadV = [&](int block) {
			const bool raw = T::OPTIONS ? isMaskedStep(w, w.top - block) : T::CAUSAL && w.top - block < w.masked;
			copyV<T>(p, v, mapV, shared, at, headKV, block, raw);
			v.advance();
		};
		loadK(w.top);
		if constexpr (T::Q_SHARED) {
			const uint32_t full = shared + T::Q_FULL + 8 * q.stage, to = shared + T::Q + q.stage * T::Q_BYTES;
			barrierWait(shared + T::Q_EMPTY + 8 * q.stage, q.parity ^ 1);
			barrierExpect(full, T::Q_BYTES);
#pragma unroll
			for (int i = 0; i < T::PANELS; i++) copyBox(to + i * T::Q_PANEL, mapQ, full, 64 * i, at.row, at.head, at.batch);
			q.advance();
		}
		for (int block = w.top; block > (T::OPTIONS ? lastTileOf(w) : 0); block--) {
			loadK(block - 1);
			loadV(block);
		}
		loadV(T::OPTIONS ? lastTileOf(w) : 0);
		releaseBlock<T, true>(shared, w);
	}
}

// Replaces non-finite elements in the V tiles of masked steps by zeros, marks their stages, and releases the tiles to the
// consumers.
template <class T, class Params> __device__ __forceinline__ void scan(const Params &p, uint32_t shared, char *tiles) {
	const int warp = threadIdx.x / 32 - 1, lane = threadIdx.x % 32;
	int step = 0;     // V tiles of earlier row blocks; with ONE_RING, K and V tiles
	uint32_t raw = 0; // parities of V_RAW, one bit per stage
	typename WorkTypes<T>::Blocks walk(p, shared);
	typename WorkTypes<T>::Block w;
	while (walk.next(w)) {
		for (int i = 0; i < maskedEndOf(w); i++) {
			if (T::OPTIONS && !isMaskedStep(w, i)) continue;
			// With ONE_RING, cubin_tile.h gives the order of tiles: V of step i is tile 2 i + 2, and V of the last step is last.
			const int stage = (step + (T::ONE_RING ? min(2 * i + 2, 2 * w.steps - 1) : i)) % T::STAGES;
			barrierWait(shared + T::V_RAW + 8 * stage, raw >> stage & 1);
			raw ^= 1 << stage;
			uint4 *tile = reinterpret_cast<uint4 *>(tiles + T::V + stage * T::V_BYTES);
			bool any = false;
#pragma unroll 2
			for (int at = warp * 32 + lane; at < T::V_BYTES / 16; at += 32 * T::SCANNERS) {
				uint4 x = tile[at];
				if (notFinite<EXPONENTS>(x) != 0) {
					any = true;
					uint32_t words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
					for (int j = 0; j < 4; j++) {
						const uint32_t bad = notFinite<EXPONENTS>(words[j]);
						words[j] &= ~(bad | bad - (bad >> 15));
					}
					tile[at] = make_uint4(words[0], words[1], words[2], words[3]);
				}
			}
			proxyFence();
			any = __any_sync(~0u, any);
			if (lane == 0) tiles[T::MARKS + 4 * stage + warp] = any;
			namedSync(SCAN, 32 * T::SCANNERS);
			if (threadIdx.x == 32) barrierArrive(shared + T::V_FULL + 8 * stage);
		}
		step += T::ONE_RING ? 2 * w.steps : w.steps;
		releaseBlock<T>(shared, w);
	}
}
