// Tile scheduler of fa3: the row blocks of a CTA, their order, and the KV steps of each. Producer, scanning warps and
// consumers each iterate over the same sequence, so they exchange no indices.
#pragma once
#include "attn.h"
#include "ring.h"

// A block of BM query rows of one head and its KV steps of BN keys. The loop runs `steps` steps, from KV tile `top`
// down to 0. The causal mask crosses the first `masked` of them.
struct Work {
	int row, head, batch;
	int top, steps, masked;
};

// A persistent CTA takes every gridDim.x-th unit of work. Without a causal mask a unit is a row block, and consecutive
// units share a head, so that K and V come from L2. With a causal mask a unit is a pair of row blocks of one head: the
// longest and the shortest, the second longest and the second shortest, and so on. All pairs cost the same. If a head
// has an odd number of blocks, the middle blocks of all heads come last, at half the cost. With a CTA for each row block
// every block is a unit, the longest of a head first: a pair would take one CTA as long as both.
//
// With PARTIAL_LAST, and from PARTIAL_LAST_FROM whole blocks a head on, a last block of fewer than BM rows is in no pair:
// these blocks of all heads follow the units above. Length 4096 in 192-row blocks, 22 a head, would otherwise give the
// partial blocks to the same 6 of 132 CTAs: 2 % (full) and 3 % (causal) slower on an H200. These blocks read K and V of
// every head once more, so that short lengths lose: 5 % at 1024, 3 % at 2048 (full).
template <int BM, int BN, bool CAUSAL, bool PARTIAL_LAST> struct Walk {
	const AttnParams &p;
	int blocks, unitsPerHead, paired, units; // paired: number of units before the single blocks of all heads
	int unit, half;
	bool pairs;    // a unit is a pair
	bool partials; // partial blocks are units of their own
	static constexpr int PARTIAL_LAST_FROM = 16;

	__device__ __forceinline__ Walk(const AttnParams &params, uint32_t = 0) : p(params), half(0), partials(false) {
		const int heads = p.Hq * p.B;
		blocks = (p.Sq + BM - 1) / BM;
		pairs = CAUSAL && int64_t(blocks) * heads > gridDim.x;
		if (PARTIAL_LAST && (!CAUSAL || pairs)) {
			partials = p.Sq % BM != 0 && blocks > PARTIAL_LAST_FROM;
			blocks -= partials;
		}
		unitsPerHead = pairs ? blocks / 2 : blocks;
		paired = unitsPerHead * heads;
		units = paired + (partials + (pairs && blocks % 2)) * heads;
		unit = blockIdx.x;
	}

	__device__ __forceinline__ bool next(Work &w) {
		if (unit >= units) return false;
		const bool single = (CAUSAL || PARTIAL_LAST) && unit >= paired;
		int head = single ? unit - paired : unit / unitsPerHead;
		int block = single ? unitsPerHead : unit - head * unitsPerHead;
		const bool partial = PARTIAL_LAST && partials && single && head < p.Hq * p.B;
		if (PARTIAL_LAST && partials && single && !partial) head -= p.Hq * p.B;
		w.batch = head / p.Hq;
		w.head = head - w.batch * p.Hq;
		if (CAUSAL) {
			// The first half of a unit is its longer block.
			if (half == 0) block = blocks - 1 - block; // the single block in the middle maps to itself
			if (partial) block = blocks;
			half = pairs && half == 0 && !single;
			if (half == 0) unit += gridDim.x;
		} else {
			unit += gridDim.x;
		}
		w.row = block * BM;
		int end = p.Sk;
		w.masked = 0;
		if (CAUSAL) {
			// Each key below `end` is attended by some row of the block, each key below `whole` by all rows.
			end = int(max(min(int64_t(w.row) + BM + p.causal_offset, int64_t(p.Sk)), int64_t(0)));
			const int whole = int(max(min(int64_t(w.row) + p.causal_offset + 1, int64_t(p.Sk)), int64_t(0)));
			w.masked = (end + BN - 1) / BN - whole / BN;
		}
		w.steps = (end + BN - 1) / BN;
		w.top = w.steps - 1;
		return true;
	}
};

// What the other files ask of a row block. fa3_options.h has the same functions for calls with options.

// The types of a tile's row blocks, of the numbers that copies and stores need, and of what iterates over blocks.
template <class T, bool = T::OPTIONS> struct WorkTypes {
	using Block = Work;
	using Numbers = Work;
	using Blocks = Walk<T::BM, T::BN, T::CAUSAL, T::PARTIAL_LAST>;
};

__device__ __forceinline__ int rowOf(const Work &w) { return w.row; }
// The row after the last one of its head, and rows of a head in LSE.
__device__ __forceinline__ int endOf(const AttnParams &p, const Work &) { return p.Sq; }
__device__ __forceinline__ int rowsOfLSE(const AttnParams &p, const Work &) { return p.Sq; }
// The batch of its keys, and the place of a key in a head of K and V.
__device__ __forceinline__ int keyBatchOf(const Work &w) { return w.batch; }
__device__ __forceinline__ int keyRowOf(const Work &, int key) { return key; }

// The last KV step and its tile. Steps [masked, wholeEnd) have no masked keys.
__device__ __forceinline__ int lastStepOf(const Work &w) { return w.top; }
__device__ __forceinline__ int lastTileOf(const Work &) { return 0; }
__device__ __forceinline__ int wholeEndOf(const Work &w) { return w.steps; }
__device__ __forceinline__ bool isMaskedStep(const Work &w, int step) { return step < w.masked; }
__device__ __forceinline__ int maskedEndOf(const Work &w) { return w.masked; }

// With options: lists the row blocks of the CTA, and reads one of the list.
template <class T, class Params> __device__ __forceinline__ void listBlocks(const Params &p, uint32_t shared);
template <class T> __device__ __forceinline__ typename WorkTypes<T>::Block listedAt(uint32_t shared, int stage);

// With pages: copies a KV tile.
template <class T, int PANELS, class Params, class Numbers>
__device__ __forceinline__ void copyPages(uint32_t to, const TensorMap *map, uint32_t full, const Params &p, const Numbers &w, int headKV, int block);

// A warp, or with ALONE a thread, has done with a row block.
template <class T, bool ALONE = false> __device__ __forceinline__ void releaseBlock(uint32_t, const Work &) {}
