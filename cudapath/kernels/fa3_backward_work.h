// Tile scheduler of the backward fa3 kernel, and the layout of its workspace.
//
// A unit of work is a block of BN keys of one KV head. Its steps loop over the query heads of the group, and for each
// of them over the blocks of BM rows that attend to any of the keys, in ascending order. CTAs draw tickets; a ticket is a
// unit. Several heads alternate.
//
// Up to head dim 128 the units of a head are in descending order of keys, those of the last heads under a causal mask in
// ascending order (HeadOrder). dQ of a block of rows is a sum over key blocks, in the order of the units. A counter per
// block of rows says how many key blocks have been added. A CTA adds its contribution when all earlier ones are complete.
// So a CTA waits only for units of lower tickets. These have started, hence no wait lasts forever, whatever else runs on
// the device. With a causal mask the first step of a unit is at the diagonal. If the units of a head start at the same
// time, each step of each unit is one step behind that of its predecessor, and none waits.
//
// Above head dim 128 the units of a head are in ascending order of keys (HeadsOfLaunch), and nothing waits for an order. A unit
// stores dS, a tile for each step. A launch of the main kernel has as many units as a fixed number of bytes holds dS of, and
// the launch of the kernel after it adds their part of dQ (fa3_backward_wide_dq.h). A counter per KV head says how many of its units have dS in memory.
//
// Only the copying thread decodes tickets, while the consumers compute the unit before. It leaves units in shared memory.
#pragma once
#include <string.h>
#include <type_traits>

#include "fa3_backward_options.h"
#include "ring.h"

// Bytes of dS of a launch, unless a unit takes more. The build and the host take them from the table.
#ifndef FA3_BACKWARD_DS
#define FA3_BACKWARD_DS 0
#endif
constexpr int64_t DS_OF_LAUNCH = FA3_BACKWARD_DS;

// The units of a call, those of a launch, and dS of one of them. If dQ is not wanted one launch has all units, and stores no dS.
template <class T> __device__ __forceinline__ int unitsOfCall(const AttnBackwardParams &p) { return (p.Sk + T::BN - 1) / T::BN * p.Hkv * p.B; }
template <class T> __device__ __forceinline__ int64_t unitBytes(const AttnBackwardParams &p) {
	return p.dQ.base == 0 ? 0 : int64_t(p.Hq / p.Hkv) * ((p.Sq + T::BM - 1) / T::BM) * T::DS_BYTES;
}
template <class T> __device__ __forceinline__ int unitsOfLaunch(const AttnBackwardParams &p) {
	const int64_t bytes = unitBytes<T>(p);
	const int blocks = (p.Sk + T::BN - 1) / T::BN, heads = p.Hkv * p.B;
	if (bytes == 0) return blocks * heads;
	const int most = int(min(max(DS_OF_LAUNCH / bytes, int64_t(1)), int64_t(blocks) * heads));
	// As many whole heads, or parts of a head, in each launch as in the others.
	auto equal = [](int n, int most) {
		const int launches = (n + most - 1) / most;
		return (n + launches - 1) / launches;
	};
	return most >= blocks ? equal(heads, most / blocks) * blocks : equal(blocks, most);
}

// The first ticket that is no unit of the launch.
template <class T> __device__ __forceinline__ int endOfUnits(const AttnBackwardParams &p, int ofCall) {
	if constexpr (T::WIDE) return min(p.first + unitsOfLaunch<T>(p), ofCall);
	else return ofCall;
}

// Workspace: the next ticket; a counter per block of rows; a record per block with -LSE in log2 units and factors of P; -delta per row; dQ in float32.
//
// With wide heads there are also two words for the next ticket of the kernel of dQ, and in place of the counters of blocks a word per unit, a counter per KV
// head, and dS of the units of a launch. dQ follows it, and is there only if several launches add to a row.
struct Workspace {
	int *ticket, *turns;
	float *lse, *delta, *dQ;
	char *dS;           // with wide heads: by unit of the launch, query head of its group and block of rows
	int *rare, *stored; // whether a unit has found Inf or NaN in K; how many units of a KV head have dS in memory
	int blocks, rows; // blocks of rows of a head; their rows, with those past Sq. With options, of all sequences

	template <class T> static __device__ __forceinline__ Workspace of(const AttnBackwardParams &p) {
		Workspace w;
		w.blocks = (p.Sq + T::BM - 1) / T::BM;
		w.rows = w.blocks * T::BM;
		int64_t heads = int64_t(p.B) * p.Hq;
		if constexpr (T::OPTIONS) {
			w.blocks = blocksOfHead<T>(p);
			w.rows = w.blocks * T::BM;
			heads = p.Hq;
		}
		w.ticket = reinterpret_cast<int *>(p.stats);
		w.turns = w.ticket + 32;
		w.lse = reinterpret_cast<float *>(w.turns + ((T::WIDE ? 0 : heads * w.blocks) + 31) / 32 * 32);
		w.delta = w.lse + heads * w.blocks * T::LSE_FLOATS;
		w.dQ = w.delta + heads * w.rows;
		if constexpr (T::WIDE) {
			w.rare = reinterpret_cast<int *>(w.dQ);
			w.stored = w.rare + unitsOfCall<T>(p);
			w.dS = reinterpret_cast<char *>(w.rare + (unitsOfCall<T>(p) + p.Hkv * p.B + 31) / 32 * 32);
			w.dQ = reinterpret_cast<float *>(w.dS + unitsOfLaunch<T>(p) * unitBytes<T>(p));
		}
		return w;
	}

	// Sets the counter of a block of rows to 0. kvHead is its head's among the KV heads of all sequences.
	template <class T> __device__ __forceinline__ void clearCounters(int64_t block, int kvHead) const {
		if constexpr (T::WIDE) stored[kvHead] = 0;
		else turns[block] = 0;
	}

	// The next ticket of the kernel of dQ. Launches take turns with two words: a launch of the main kernel clears that of the next.
	template <class T> __device__ __forceinline__ int *ticketOfDQ(const AttnBackwardParams &p, int later) const { return ticket + 1 + (p.first / unitsOfLaunch<T>(p) + later) % 2; }
};

// A causal mask: row r attends to keys up to r + offset.
template <class T> __device__ __forceinline__ int64_t causalOffset(const AttnBackwardParams &p) {
	return T::CAUSAL ? int64_t(p.right) + (p.bottom_right ? int64_t(p.Sk) - p.Sq : 0) : int64_t(p.Sk);
}

// The last key block that rows of a block attend to; -1: none.
template <class T> __device__ __forceinline__ int lastKeyBlock(const AttnBackwardParams &p, int rowBlock) {
	int64_t key = p.Sk - 1;
	if (T::CAUSAL) key = min(key, int64_t(min((rowBlock + 1) * T::BM, p.Sq) - 1) + causalOffset<T>(p));
	return key < 0 ? -1 : int(key) / T::BN;
}

// Row blocks that begin before this row have masked slots in the tile of a key block: the causal mask crosses them, or some
// keys are past Sk.
template <class T> __device__ __forceinline__ int firstWholeRow(const AttnBackwardParams &p, int key) {
	return key + T::BN > p.Sk ? INT32_MAX : T::CAUSAL ? int(max(key + T::BN - 1 - causalOffset<T>(p), int64_t(0))) : 0;
}

// Whether a tile has masked slots. A block with rows past Sq has.
template <class T> __device__ __forceinline__ bool isMasked(const AttnBackwardParams &p, int firstWhole, int block) {
	return block * T::BM < firstWhole || (block + 1) * T::BM > p.Sq;
}

struct Unit {
	int ticket;      // -1: no unit
	int batch, head; // KV head
	int block, key;  // key block and its first key
	int first, end;  // blocks of rows
	bool ascending;  // order of the additions to dQ of its head
};

// With options, and its sequence.
struct SequenceUnit : Unit {
	Sequence s;
};
template <class T> using UnitOf = std::conditional_t<T::OPTIONS, SequenceUnit, Unit>;

// The number of a block of rows among those of all heads.
template <class T> __device__ __forceinline__ int64_t blockIndex(const AttnBackwardParams &p, const Workspace &w, const UnitOf<T> &u, int head, int block) {
	if constexpr (T::OPTIONS) return blockIndex<T>(p, u.s, head, block);
	else return (int64_t(u.batch) * p.Hq + head) * w.blocks + block;
}

// Key blocks of several KV heads alternate, as many heads as have float32 dQ and 16-bit Q and dO in this part of the L2
// cache: consecutive units then add to different dQ and seldom wait (docs/log/cuda-backward.md).
constexpr int64_t DQ_IN_L2 = 16 << 20;

// Without a causal mask at least this many heads alternate. The units of one head form a pipeline, in which each is one addition
// behind its predecessor, and which has to fill. Units of one head stay close to each other, so few of their rows are in use at once.
constexpr int LEAST_TOGETHER = 4;

// Order of the KV heads: `descending` of them in chunks of `together`, then `ascending`, whose units are in ascending order.
//
// With a causal mask the last heads have their units in ascending order of keys, the longest first, so that CTAs end at about the
// same time. Their units get out of step, so all of these heads have to fit in the L2 cache: twice `together`, not more.
struct HeadOrder {
	int together, descending, ascending;

	// Of heads with `rows` query rows each. causal: later keys have fewer rows.
	template <class T> static __device__ __forceinline__ HeadOrder of(const AttnBackwardParams &p, const int &rows, bool causal) {
		HeadOrder order;
		const int heads = p.Hkv * p.B;
		order.together = int(min(max(DQ_IN_L2 / (int64_t(rows) * T::D * 8 * (p.Hq / p.Hkv)), int64_t(causal ? 1 : LEAST_TOGETHER)), int64_t(heads)));
		order.ascending = causal ? min(heads, 2 * order.together) : 0;
		order.descending = heads - order.ascending;
		return order;
	}
	template <class T> static __device__ __forceinline__ HeadOrder of(const AttnBackwardParams &p) { return of<T>(p, p.Sq, T::CAUSAL); }
};

// With wide heads: the KV heads of a launch, and the order of their units. Several heads alternate, as many as have Q and dO in this part of the L2 cache. The units
// of a head are in ascending order of keys. With a causal mask the first have the most rows, so that CTAs end at about the same time.
constexpr int64_t ROWS_IN_L2 = 32 << 20;

struct HeadsOfLaunch {
	int blocks; // key blocks of a head
	int first, count, together;

	template <class T> static __device__ __forceinline__ HeadsOfLaunch of(const AttnBackwardParams &p) {
		HeadsOfLaunch h;
		h.blocks = (p.Sk + T::BN - 1) / T::BN;
		const int units = unitsOfLaunch<T>(p), end = min(p.first + units, h.blocks * p.Hkv * p.B);
		h.first = p.first / max(h.blocks, 1);
		h.count = (end + h.blocks - 1) / max(h.blocks, 1) - h.first;
		const int64_t rows = max(T::OPTIONS && p.cu_q != 0 ? p.total_q / p.B : p.Sq, 1);
		// A launch that does not have whole heads has the units of one after those of another.
		h.together = units < h.blocks ? 1 : int(min(max(ROWS_IN_L2 / (rows * 2 * (T::D + T::DV) * (p.Hq / p.Hkv)), int64_t(1)), int64_t(h.count)));
		return h;
	}

	// The units of a head: every `step`-th ticket from `first` on.
	struct Tickets {
		int first, step;
	};
	__device__ __forceinline__ Tickets ticketsOf(int head) const {
		const int i = head - first, before = i / together * together;
		return {blocks * (first + before) + i - before, min(together, count - before)};
	}

	// Decodes number i of the launch, of numbers that are divided among its heads as tickets are, `each` for a head.
	__device__ __forceinline__ void decode(int i, int each, int &head, int &number) const {
		const int before = i / (each * together) * together, width = min(together, count - before), index = i - each * before;
		number = index / width;
		head = first + before + index - number * width;
	}
};

// Decodes a ticket. Returns false if there is no such unit.
template <class T> __device__ __forceinline__ bool unitOf(const AttnBackwardParams &p, int ticket, Unit &u) {
	u.ticket = -1;
	const int blocks = (p.Sk + T::BN - 1) / T::BN;
	if (ticket >= endOfUnits<T>(p, blocks * p.Hkv * p.B)) return false;
	u.ticket = ticket;
	int head;
	if constexpr (T::WIDE) {
		const HeadsOfLaunch heads = HeadsOfLaunch::of<T>(p);
		heads.decode(ticket - heads.first * blocks, blocks, head, u.block);
	} else {
		const HeadOrder order = HeadOrder::of<T>(p);
		const int together = order.together, ascending = order.ascending, descending = order.descending;
		u.ascending = ticket >= blocks * descending;
		if (u.ascending) {
			ticket -= blocks * descending;
			u.block = ticket / max(ascending, 1);
			head = descending + ticket - u.block * ascending;
		} else {
			const int chunk = ticket / (blocks * together), inChunk = ticket - chunk * blocks * together, width = min(together, descending - chunk * together);
			head = chunk * together + inChunk % width;
			u.block = blocks - 1 - inChunk / width;
		}
	}
	u.batch = head / p.Hkv;
	u.head = head - u.batch * p.Hkv;
	u.key = u.block * T::BN;
	u.end = (p.Sq + T::BM - 1) / T::BM;
	u.first = 0;
	if (T::CAUSAL) u.first = int(min(max(u.key - causalOffset<T>(p), int64_t(0)) / T::BM, int64_t(u.end)));
	// The first row may lie past Sq in the last block.
	if (T::CAUSAL && u.key - causalOffset<T>(p) >= p.Sq) u.first = u.end;
	return true;
}

// The same with options. Every sequence has as many units as the longest. Those past the end of their sequence have no steps.
template <class T> __device__ __forceinline__ bool unitOf(const AttnBackwardParams &p, int ticket, SequenceUnit &u) {
	u.ticket = -1;
	const int blocks = (p.Sk + T::BN - 1) / T::BN, heads = p.Hkv * p.B, rows = p.cu_q != 0 ? max(p.total_q / p.B, 1) : p.Sq;
	if (ticket >= endOfUnits<T>(p, blocks * heads)) return false;
	u.ticket = ticket;
	if constexpr (T::WIDE) {
		int head;
		const HeadsOfLaunch ofLaunch = HeadsOfLaunch::of<T>(p);
		ofLaunch.decode(ticket - ofLaunch.first * blocks, blocks, head, u.block);
		u.batch = head / p.Hkv;
		u.head = head - u.batch * p.Hkv;
	} else {
		const HeadOrder order = HeadOrder::of<T>(p, rows, p.right != INT32_MAX && p.left == INT32_MAX);
		const int together = order.together, ascending = order.ascending, descending = order.descending;
		u.ascending = ticket >= blocks * descending;
		// Of the units of `width` heads from `first` on, number `index`.
		const int chunk = u.ascending ? 0 : ticket / (blocks * together), first = u.ascending ? descending : chunk * together;
		const int width = u.ascending ? ascending : min(together, descending - first), index = ticket - blocks * first;
		const int head = first + index % width;
		u.batch = head / p.Hkv;
		u.head = head - u.batch * p.Hkv;
		u.block = u.ascending ? index / width : blocks - 1 - index / width;
	}
	u.key = u.block * T::BN;
	u.s = sequenceOf(p, u.batch);
	const Span span = rowBlocksOf<T>(u.s, u.block);
	u.first = span.first, u.end = span.end;
	return true;
}

// The address of a key of a unit's head, and how many keys have gradients to store.
__device__ __forceinline__ char *keyOf(const AttnBackwardParams &, const AttnTensor &t, const Unit &u, int key) {
	return reinterpret_cast<char *>(t.base) + 2 * (u.batch * t.batch + u.head * t.head + key * t.row);
}
__device__ __forceinline__ char *keyOf(const AttnBackwardParams &p, const AttnTensor &t, const SequenceUnit &u, int key) {
	return u.s.keysOf(p, t, u.head) + 2 * (key * t.row);
}
__device__ __forceinline__ int keysStored(const AttnBackwardParams &p, const Unit &) { return p.Sk; }
__device__ __forceinline__ int keysStored(const AttnBackwardParams &p, const SequenceUnit &u) { return p.accumulate & 1 ? u.s.keys.used : u.s.keys.extent; }

// How many additions to dQ of a block of rows come before that of a unit.
template <class T> __device__ __forceinline__ int turnOf(const AttnBackwardParams &p, const Unit &u, int rowBlock) {
	return u.ascending ? u.block : lastKeyBlock<T>(p, rowBlock) - u.block;
}
template <class T> __device__ __forceinline__ int turnOf(const AttnBackwardParams &, const SequenceUnit &u, int rowBlock) {
	const Span keys = keyBlocksOf<T>(u.s, rowBlock);
	return u.ascending ? u.block - keys.first : keys.end - 1 - u.block;
}

// Passes a struct of words through shared memory.
template <class X> __device__ __forceinline__ void storeWords(uint32_t to, const X &x) {
	uint32_t words[sizeof(X) / 4];
	memcpy(words, &x, sizeof words);
#pragma unroll
	for (int i = 0; i < int(sizeof(X) / 4); i++) storeSharedWord(to + 4 * i, words[i]);
}
template <class X> __device__ __forceinline__ void loadWords(X &x, uint32_t from) {
	uint32_t words[sizeof(X) / 4];
#pragma unroll
	for (int i = 0; i < int(sizeof(X) / 4); i++) words[i] = loadSharedWord(from + 4 * i);
	memcpy(&x, words, sizeof words);
}

// Reads the units that the copying thread has drawn and decoded.
template <class T> struct Units {
	uint32_t shared;
	Ring<2> ring;

	__device__ __forceinline__ explicit Units(uint32_t at) : shared(at) {}

	// Waits for the next unit. Returns false if there is none. All lanes of a warp call this and done().
	__device__ __forceinline__ bool next(UnitOf<T> &u) {
		barrierWait(shared + T::WORK_FULL + 8 * ring.stage, ring.parity);
		read(u);
		return u.ticket >= 0;
	}

	// Reads the unit again. A warp may do so until done().
	__device__ __forceinline__ void read(UnitOf<T> &u) const {
		static_assert(sizeof(UnitOf<T>) <= T::UNIT_BYTES, "unit");
		loadWords(u, shared + T::WORK + T::UNIT_BYTES * ring.stage);
	}
	__device__ __forceinline__ void done() {
		__syncwarp();
		if (threadIdx.x % 32 == 0) barrierArrive(shared + T::WORK_EMPTY + 8 * ring.stage);
		ring.advance();
	}
};
