// Scheduler of fa3: the row blocks of a CTA, their order, and the KV steps of each. Producer, scanning
// warps and consumers each iterate over the same sequence.
#pragma once
#include "attn.h"

// A block of BM query rows of one head, and its steps of BN keys: `steps` of them from key
// block `top` downwards, the first `masked` of which the causal mask crosses.
struct Work {
	int row, head, batch;
	int top, steps, masked;
};

// Persistent CTAs take units of equal cost in turn. Without a causal mask a unit is a row block, and
// neighbouring units share a head, so that K and V come from L2. With a causal mask a unit is a pair of
// row blocks of one head: the longest with the shortest, the second longest with the second shortest,
// and so on. If their number is odd, the middle blocks of all heads come last, as units of half the cost.
template <int BM, int BN, bool CAUSAL> struct Walk {
	const AttnParams &p;
	int blocks, unitsPerHead, paired, units; // paired: units that are pairs; single blocks follow
	int unit, half;

	__device__ __forceinline__ Walk(const AttnParams &params) : p(params), half(0) {
		blocks = (p.Sq + BM - 1) / BM;
		unitsPerHead = CAUSAL ? blocks / 2 : blocks;
		paired = unitsPerHead * p.Hq * p.B;
		units = paired + (CAUSAL && blocks % 2 ? p.Hq * p.B : 0);
		unit = blockIdx.x;
	}

	__device__ __forceinline__ bool next(Work &w) {
		if (unit >= units) return false;
		const bool single = CAUSAL && unit >= paired;
		const int head = single ? unit - paired : unit / unitsPerHead;
		int block = single ? unitsPerHead : unit - head * unitsPerHead;
		w.batch = head / p.Hq;
		w.head = head - w.batch * p.Hq;
		if (CAUSAL) {
			// The first half of a unit is its longer block.
			if (half == 0) block = blocks - 1 - block; // a single one is its own
			half = half == 0 && !single;
			if (half == 0) unit += gridDim.x;
		} else {
			unit += gridDim.x;
		}
		w.row = block * BM;
		int end = p.Sk;
		w.masked = 0;
		if (CAUSAL) {
			// Some row of the block attends to each key below `end`, all rows to those below `whole`.
			end = int(max(min(int64_t(w.row) + BM + p.causal_offset, int64_t(p.Sk)), int64_t(0)));
			const int whole = int(max(min(int64_t(w.row) + p.causal_offset + 1, int64_t(p.Sk)), int64_t(0)));
			w.masked = (end + BN - 1) / BN - whole / BN;
		}
		w.steps = (end + BN - 1) / BN;
		w.top = w.steps - 1;
		return true;
	}
};

// A position in a ring of N buffers and the parity of the phase in which it is filled.
template <int N> struct Ring {
	int stage = 0;
	uint32_t parity = 0;
	__device__ __forceinline__ void advance() {
		if (++stage == N) stage = 0, parity ^= 1;
	}
};
