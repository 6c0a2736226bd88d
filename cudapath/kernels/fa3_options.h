// Options of a call in the forward kernels of fa3.cu and cubin.cu: packed sequences, used lengths and windows.
//
// A causal tile WithOptions has kernels that take them: OptionsTile here, CubinOptionsTile in cubin.cu. A row block belongs to a sequence.
// TMA copies tiles of whole tensors, so the rows and keys of a tile past the end of a sequence hold whatever follows there. Rows past the
// end are not stored. Steps that the end or the window crosses are masked steps: their scores outside are -inf, and the scanning warps make
// their V finite, as under a causal mask.
//
// The lengths lie in device memory, so that only the kernel knows its row blocks. Warp 3 lists those of the CTA in a ring in shared memory, from
// which producer, scanning warps and consumers read them. It stores zeros for those that attend to no key.
//
// Units of work are those of fa3_work.h by sequence: row blocks of a head, or pairs of a long one and a short one. Consecutive units share a
// head. Sequences with more keys come first, and the order of the CTAs is reversed from one round to the next, so that all have about the
// same work.
#pragma once
#include "attn_general.h"
#include "backward_sequence.h"
#include "fa3_consume.h"

template <class Base, bool PAGED_ = false> struct WithOptions : Base {
	static constexpr bool OPTIONS = true, PAGED = PAGED_;
	static constexpr int SCANNERS = 2; // warp 3 lists row blocks
	// The ring of row blocks.
	static constexpr int WORKS = 4, WORK_BYTES = 64, WORK = (Base::SHARED_BYTES + 15) / 16 * 16, WORK_FULL = WORK + WORKS * WORK_BYTES,
			     WORK_EMPTY = WORK_FULL + 8 * WORKS, SHARED_BYTES = WORK_EMPTY + 8 * WORKS;
	static constexpr int WORK_READERS = 1 + SCANNERS + 4 * Base::WARPGROUPS; // the producer's thread, and warps
	static_assert(SHARED_BYTES <= Base::MAX_SHARED, "tile");
};

template <int D, int DV, int WARPGROUPS, int BN> struct OptionsTile : WithOptions<Tile<D, DV, WARPGROUPS, BN, true>> {
	using Base = Tile<D, DV, WARPGROUPS, BN, true>;
	static constexpr int PRODUCER_REGISTERS = WARPGROUPS == 2 ? 40 : Base::PRODUCER_REGISTERS, CONSUMER_REGISTERS = WARPGROUPS == 2 ? 232 : Base::CONSUMER_REGISTERS;
};

// Lengths and windows are limited to this, so that sums of positions fit 32 bits. The host refuses longer ones.
constexpr int MAX_LENGTH = 1 << 29;

// Sequences are sorted by their keys into 32 classes.
constexpr int KEY_CLASSES = 32;

// What copies and stores of a row block need: as in Work, and the row after the sequence's last one, the first key and its batch in K and V, and
// how many keys there are.
struct BlockOfSequence {
	int row, head, batch, end, keyRow, keyBatch, keys;
};

// A row block as it lies in shared memory. The numbers of the main loop are in registers, others are loaded where they are used.
struct ListedBlock {
	int steps, top, masked, whole; // steps from `whole` on are masked too
	uint32_t at;

	enum Field {
		STEPS, // negative: there are no more blocks
		TOP,
		MASKED,
		WHOLE,
		ROW, HEAD, BATCH, END, // see BlockOfSequence
		FIRST,                 // index of the sequence's first row in Q
		LEFT, RIGHT,           // row r of the sequence attends to keys [r - LEFT, r + RIGHT]
		KEY_ROW, KEY_BATCH, KEYS,
		FIELDS
	};
	__device__ __forceinline__ int operator[](int field) const { return int(loadSharedWord(at + 4 * field)); }
	__device__ __forceinline__ operator BlockOfSequence() const { return {(*this)[ROW], (*this)[HEAD], (*this)[BATCH], (*this)[END], (*this)[KEY_ROW], (*this)[KEY_BATCH], (*this)[KEYS]}; }
	__device__ __forceinline__ void set(int field, int x) const { storeSharedWord(at + 4 * field, x); }
};

// The row block in a stage of the ring.
template <class T> __device__ __forceinline__ typename WorkTypes<T>::Block listedAt(uint32_t shared, int stage) {
	const uint32_t at = shared + T::WORK + T::WORK_BYTES * stage;
	const uint4 x = loadShared(at);
	return {int(x.x), int(x.y), int(x.z), int(x.w), at};
}

// A reader of the ring.
template <class T> struct ListedBlocks {
	uint32_t shared;
	Ring<T::WORKS> ring;

	__device__ __forceinline__ ListedBlocks(const AttnGeneralParams &, uint32_t s) : shared(s) {}
	__device__ __forceinline__ bool next(ListedBlock &w) {
		barrierWait(shared + T::WORK_FULL + 8 * ring.stage, ring.parity);
		w = listedAt<T>(shared, ring.stage);
		ring.advance();
		return w.steps >= 0;
	}
};

template <class T> struct WorkTypes<T, true> {
	using Block = ListedBlock;
	using Numbers = BlockOfSequence;
	using Blocks = ListedBlocks<T>;
};

template <class T, bool ALONE = false> __device__ __forceinline__ void releaseBlock(uint32_t shared, const ListedBlock &w) {
	if (!ALONE) __syncwarp();
	if (ALONE || threadIdx.x % 32 == 0) barrierArrive(shared + T::WORK_EMPTY + (w.at - shared - T::WORK) / (T::WORK_BYTES / 8));
}

__device__ __forceinline__ int rowOf(const ListedBlock &w) { return w[ListedBlock::ROW]; }
__device__ __forceinline__ int endOf(const AttnGeneralParams &, const BlockOfSequence &w) { return w.end; }
__device__ __forceinline__ int rowsOfLSE(const AttnGeneralParams &p, const BlockOfSequence &) { return p.cu_q != 0 ? p.total_q : p.Sq; }
__device__ __forceinline__ int keyBatchOf(const BlockOfSequence &w) { return w.keyBatch; }
__device__ __forceinline__ int keyRowOf(const BlockOfSequence &w, int key) { return w.keyRow + key; }
__device__ __forceinline__ int lastStepOf(const ListedBlock &w) { return w.steps - 1; }
__device__ __forceinline__ int lastTileOf(const ListedBlock &w) { return w.top - w.steps + 1; }
__device__ __forceinline__ int wholeEndOf(const ListedBlock &w) { return w.whole; }
__device__ __forceinline__ bool isMaskedStep(const ListedBlock &w, int step) { return step < w.masked || step >= w.whole; }
__device__ __forceinline__ int maskedEndOf(const ListedBlock &w) { return w.steps; }

__device__ __forceinline__ ThreadRows threadRowsOf(const ListedBlock &w, int rowInBlock) {
	using W = ListedBlock;
	const int row = w[W::ROW] + rowInBlock, query = row - w[W::FIRST], last = query + w[W::RIGHT], end = w[W::KEYS] - 1;
	return {row, min(last, end), min(last + 8, end), query - w[W::LEFT]};
}

template <class T> __device__ __forceinline__ int firstStepOf(const AttnGeneralParams &, const ListedBlock &w, int row) {
	using W = ListedBlock;
	const int lastKey = max(min(row - w[W::FIRST] + 63 + w[W::RIGHT], w[W::KEYS] - 1), 0);
	return row < w[W::END] ? min(max(w.top - lastKey / T::BN, 0), w.steps - 1) : w.steps - 1;
}

// Where a key of a sequence lies in paged K and V: its page and the row in it. Keys behind the last one have page -1.
struct PagedKey {
	int page, row;
};

__device__ __forceinline__ PagedKey pagedKeyOf(const AttnGeneralParams &p, const BlockOfSequence &w, int key) {
	const int page = int(uint32_t(key) / uint32_t(p.page_size));
	return {key < w.keys ? reinterpret_cast<const int32_t *>(p.table)[int64_t(w.keyBatch) * p.table_stride + page] : -1, key - page * p.page_size};
}

// Copies a KV tile of PANELS panels by boxes of as many keys as lie in one page: all of them, or 16, of which pages have multiples. TMA
// writes zeros for pages that there are not.
template <class T, int PANELS, class Params, class Numbers>
__device__ __forceinline__ void copyPages(uint32_t to, const TensorMap *map, uint32_t full, const Params &p, const Numbers &w, int headKV, int block) {
	const int box = p.page_size % T::BN == 0 ? T::BN : 16;
#pragma unroll 1
	for (int row = 0; row < T::BN; row += box) {
		const PagedKey from = pagedKeyOf(p, w, block * T::BN + row);
#pragma unroll
		for (int i = 0; i < PANELS; i++) copyBox(to + i * T::K_PANEL + row * 128, map, full, 64 * i, from.row, headKV, from.page);
	}
}

// Lists the row blocks of the CTA. A warp does it.
template <class T, class Params> __device__ __forceinline__ void listBlocks(const Params &p, uint32_t shared) {
	using W = ListedBlock;
	const int lane = threadIdx.x % 32;
	auto clamp = [](int n, int most) { return max(min(n, most), 0); };
	Ring<T::WORKS> ring;
	auto begin = [&] {
		barrierWait(shared + T::WORK_EMPTY + 8 * ring.stage, ring.parity ^ 1);
		return W{0, 0, 0, 0, shared + T::WORK + T::WORK_BYTES * ring.stage};
	};
	auto end = [&] {
		if (lane == 0) barrierArrive(shared + T::WORK_FULL + 8 * ring.stage);
		ring.advance();
	};
	// Row blocks have as many keys as others if a window has two ends or none. Otherwise pairs have. Few blocks are no pairs (see Walk).
	const int64_t most = int64_t(p.cu_q != 0 ? min(p.total_q / T::BM + p.B, (p.Sq + T::BM - 1) / T::BM * p.B) : (p.Sq + T::BM - 1) / T::BM * p.B) * p.Hq;
	const bool pairs = (p.left == INT32_MAX) != (p.right == INT32_MAX) && most > gridDim.x;
	const float classes = KEY_CLASSES / (p.Sk + 1.0f);
	// Of 32 sequences: their class, the first, units of earlier ones, units of them, and of those up to the lane's.
	int kind = KEY_CLASSES, batch = p.B, before = 0, all = 0, upTo = 0;
	for (int round = 0;; round++) {
		const int unit = round * gridDim.x + (round % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
		while (unit >= before + all) {
			before += all, all = upTo = 0;
			if ((batch += 32) >= p.B) {
				if (--kind < 0) break;
				batch = 0;
			}
			const int sequence = batch + lane;
			if (sequence < p.B && min(int(Extent::of(p.cu_k, p.used_k, sequence, p.total_k, p.Sk, clamp).used * classes), KEY_CLASSES - 1) == kind) {
				const int blocks = (Extent::of(p.cu_q, p.used_q, sequence, p.total_q, p.Sq, clamp).used + T::BM - 1) / T::BM;
				upTo = (pairs ? (blocks + 1) / 2 : blocks) * p.Hq;
			}
			if (!__any_sync(~0u, upTo > 0)) continue;
#pragma unroll
			for (int n = 1; n < 32; n *= 2) {
				const int other = __shfl_up_sync(~0u, upTo, n);
				if (lane >= n) upTo += other;
			}
			all = __shfl_sync(~0u, upTo, 31);
		}
		if (kind < 0) break;
		const int index = __popc(__ballot_sync(~0u, before + upTo <= unit)); // of the unit's sequence
		const int inSequence = unit - before - (index > 0 ? __shfl_sync(~0u, upTo, (index + 31) % 32) : 0);
		const int sequence = batch + index;
		const Extent rows = Extent::of(p.cu_q, p.used_q, sequence, p.total_q, p.Sq, clamp), keys = Extent::of(p.cu_k, p.used_k, sequence, p.total_k, p.Sk, clamp);
		const int offset = p.bottom_right ? keys.used - rows.used : 0;
		const int left = min(min(p.left, MAX_LENGTH) - offset, MAX_LENGTH), right = min(min(p.right, MAX_LENGTH) + offset, MAX_LENGTH);
		const int blocks = (rows.used + T::BM - 1) / T::BM, units = pairs ? (blocks + 1) / 2 : blocks, head = inSequence / units;
		int block = blocks - 1 - (inSequence - head * units); // the longer one of a pair first
#pragma unroll 1
		for (int n = pairs && 2 * block != blocks - 1 ? 2 : 1; n > 0; n--, block = blocks - 1 - block) {
			const int row = block * T::BM, last = min(row + T::BM, rows.used) - 1;
			// Some rows attend to keys [from, to), and all rows to keys [open, close).
			const int from = max(row - left, 0), to = min(keys.used, last + right + 1), open = max(last - left, 0), close = max(min(keys.used, row + right + 1), 0);
			const int bottom = from / T::BN, top = (to - 1) / T::BN, steps = from < to ? top - bottom + 1 : 0;
			const int masked = min(max(top + 1 - close / T::BN, 0), steps), whole = max(min(top + 1 - (open + T::BN - 1) / T::BN, steps), masked);
			const BlockOfSequence at = {rows.first + row, head, p.cu_q != 0 ? 0 : sequence, rows.first + rows.used, keys.first, p.cu_k != 0 ? 0 : sequence, keys.used}; // with pages no cu_k is given
			if (steps == 0) { // not in the ring: a consumer holds a block until it has the next one with steps
#pragma unroll 1
				for (int i = lane / 4; i < T::BM; i += 16) finishEmpty<T>(p, at, i);
				continue;
			}
			const W w = begin();
			if (lane == 0) {
				w.set(W::STEPS, steps), w.set(W::TOP, top), w.set(W::MASKED, masked), w.set(W::WHOLE, whole);
				w.set(W::ROW, at.row), w.set(W::HEAD, at.head), w.set(W::BATCH, at.batch), w.set(W::END, at.end);
				w.set(W::FIRST, rows.first), w.set(W::LEFT, left), w.set(W::RIGHT, right);
				w.set(W::KEY_ROW, at.keyRow), w.set(W::KEY_BATCH, at.keyBatch), w.set(W::KEYS, at.keys);
			}
			end();
		}
	}
	const W w = begin();
	if (lane == 0) w.set(W::STEPS, -1);
	end();
}
