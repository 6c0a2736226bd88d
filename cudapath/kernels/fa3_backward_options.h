// Options of a call in the backward fa3 kernels: sequences of different lengths, windows and softcap.
//
// OptionsTile is a tile whose kernels take them all. The kernels of the other tiles contain none of this code.
//
// A unit of work belongs to a sequence. Row r of a sequence attends to keys [r - left, r + right] of it, of which both
// causal masks are special cases. TMA copies tiles of whole tensors, so the rows and keys of a tile past the end of a
// sequence hold whatever follows there. Their slots are masked like those outside of the window. The copying thread
// leaves the limits of the unmasked slots of each tile in shared memory.
//
// The order of the additions to dQ. A row block and a key block meet if any row of the one attends to any key of the
// other: if c - r is in [-left, right] for some r and c in use. c - r takes all values from the least to the greatest,
// so this compares the ends of both blocks. rowBlocks() and keyBlocks() solve the same inequalities for one block or the
// other, and agree for any lengths, 0 included. So the units that add to dQ of a row block are the key blocks in
// keyBlocks() and no others, and a unit knows its turn without knowing what other units do: tiles that a window leaves
// out are in neither. A unit waits for units of lower tickets only, which have started. waitTurn() waits for at least as
// many additions as come before. If sequences overlap, because cu_seqlens does not ascend, they share counters, which
// then grow faster: gradients are wrong, as dQ is shared too, but no wait lasts forever.
#pragma once
#include "fa3_backward_tile.h"

template <class Plain> struct OptionsTile : Plain {
	static constexpr bool OPTIONS = true, CONVERTS = false; // a kernel after it knows which rows of a sequence to convert
	// A Limits per Q tile.
	static constexpr int LIMITS = (Plain::SHARED_BYTES + 15) / 16 * 16, SHARED_BYTES = LIMITS + 16 * Plain::Q_STAGES;
	static_assert(Plain::CAUSAL && SHARED_BYTES <= 227 * 1024, "tile");
};

// Blocks [first, end).
struct Span {
	int first, end;
};

// The unmasked slots of a tile: of row i < rows and key j < keys with low <= i - j <= high.
struct alignas(16) Limits {
	int rows, keys, low, high;
};

// The rows or keys of a sequence in its tensors: index of the first, number of them, and number of those in use.
struct Extent {
	int first, extent, used;

	static __device__ __forceinline__ int clamped(int n, int most) { return min(max(n, 0), most); }

	static __device__ __forceinline__ Extent of(uint64_t cu, uint64_t used, int batch, int total, int most) {
		Extent x = {0, most, most};
		if (cu != 0) {
			const int32_t *const at = reinterpret_cast<const int32_t *>(cu) + batch;
			x.first = clamped(at[0], total);
			x.extent = max(clamped(at[1], total) - x.first, 0);
			x.used = min(x.extent, most);
		}
		if (used != 0) x.used = clamped(reinterpret_cast<const int32_t *>(used)[batch], x.used);
		return x;
	}
};

struct Sequence {
	int batch;
	Extent rows, keys;
	int64_t left, right;

	static __device__ __forceinline__ Sequence of(const AttnBackwardParams &p, int batch) {
		Sequence s;
		s.batch = batch;
		s.rows = Extent::of(p.cu_q, p.used_q, batch, p.total_q, p.Sq);
		s.keys = Extent::of(p.cu_k, p.used_k, batch, p.total_k, p.Sk);
		const int64_t offset = p.bottom_right ? int64_t(s.keys.used) - s.rows.used : 0;
		s.left = p.left - offset;
		s.right = p.right + offset;
		return s;
	}

	// The blocks of N that meet block number `block` of M. Element i of the M attends to [i - before, i + after].
	template <int M, int N> static __device__ __forceinline__ Span meets(int block, int used, int64_t before, int64_t after, int others) {
		const int64_t first = int64_t(block) * M, last = min(first + M, int64_t(used)) - 1;
		const int64_t from = max(first - before, int64_t(0)), to = min(last + after + 1, int64_t(others));
		if (last < first || to <= from) return {0, 0};
		return {int(from / N), int((to + N - 1) / N)};
	}

	// The key blocks that rows of a block attend to.
	template <class T> __device__ __forceinline__ Span keyBlocks(int block) const { return meets<T::BM, T::BN>(block, rows.used, left, right, keys.used); }

	// The row blocks that attend to keys of a block.
	template <class T> __device__ __forceinline__ Span rowBlocks(int block) const { return meets<T::BN, T::BM>(block, keys.used, right, left, rows.used); }

	// The limits of the tile that begins at a row and a key. low and high are clamped to where they exclude all slots or none.
	template <class T> __device__ __forceinline__ Limits limits(int row, int key) const {
		auto within = [](int64_t x) { return int(min(max(x, int64_t(-T::BN)), int64_t(T::BM))); };
		return {min(rows.used - row, T::BM), min(keys.used - key, T::BN), within(key - right - row), within(key + left - row)};
	}

	// The address of a head's first row in a tensor of query rows or of keys.
	__device__ __forceinline__ char *rowsOf(const AttnBackwardParams &p, const AttnTensor &t, int head) const {
		return reinterpret_cast<char *>(t.base) + 2 * ((p.cu_q != 0 ? 0 : batch) * t.batch + head * t.head + rows.first * t.row);
	}
	__device__ __forceinline__ char *keysOf(const AttnBackwardParams &p, const AttnTensor &t, int head) const {
		return reinterpret_cast<char *>(t.base) + 2 * ((p.cu_k != 0 ? 0 : batch) * t.batch + head * t.head + keys.first * t.row);
	}

	// The index of a head's first row in LSE and dLSE.
	__device__ __forceinline__ int64_t statOf(const AttnBackwardParams &p, int head) const {
		return p.cu_q != 0 ? int64_t(head) * p.total_q + rows.first : (int64_t(batch) * p.Hq + head) * p.Sq;
	}

	// Blocks of rows of a head in all sequences, and the number of a block among those of all heads. A packed sequence that
	// begins at row r has its blocks from number r / BM + batch on: a number for each block, at most B unused.
	template <class T> static __device__ __forceinline__ int blocksOfHead(const AttnBackwardParams &p) {
		return p.cu_q != 0 ? p.total_q / T::BM + p.B : p.B * ((p.Sq + T::BM - 1) / T::BM);
	}
	template <class T> __device__ __forceinline__ int64_t blockIndex(const AttnBackwardParams &p, int head, int block) const {
		const int first = p.cu_q != 0 ? rows.first / T::BM + batch : batch * ((p.Sq + T::BM - 1) / T::BM);
		return int64_t(head) * blocksOfHead<T>(p) + first + block;
	}
};

// Whether some slots of a tile are masked.
template <class T> __device__ __forceinline__ bool isMasked(const Limits &x) {
	return x.rows < T::BM || x.keys < T::BN || x.low > 1 - T::BN || x.high < T::BM - 1;
}

// Sets the elements of masked slots to 0. Keys of the thread begin at firstKey of the tile.
template <class T> __device__ __forceinline__ void clearOutside(float (&s)[T::BM / 2], const Limits &x, int firstKey) {
	const int thread = threadHere() % 128, key = firstKey + thread / 32 * 16 + thread % 32 / 4, column = 2 * (thread % 4);
	int from[2], end[2]; // of the columns of each of the thread's keys that are not masked, less that of the thread
#pragma unroll
	for (int r = 0; r < 2; r++) {
		from[r] = x.low + key + 8 * r - column;
		end[r] = key + 8 * r < x.keys ? min(x.rows, x.high + key + 8 * r + 1) - column : 0;
	}
#pragma unroll
	for (int i = 0; i < T::BM / 2; i++)
		if (8 * (i / 4) + i % 2 < from[i / 2 % 2] || 8 * (i / 4) + i % 2 >= end[i / 2 % 2]) s[i] = 0;
}

// Sets the halves of the words of P where P is NaN. spoilKeys() has spoiled P of whole keys, but not P times the
// derivative. The other half is another row's, which may be past the end of its sequence.
template <class T> __device__ __forceinline__ void spoilWords(volatile uint32_t (&words)[T::BM / 4], const float (&P)[T::BM / 2]) {
#pragma unroll
	for (int i = 0; i < T::BM / 4; i++) {
		const uint32_t nan = (P[2 * i] != P[2 * i] ? 0x7fff : 0) | (P[2 * i + 1] != P[2 * i + 1] ? 0x7fff0000 : 0);
		if (nan != 0) words[i] = words[i] | nan;
	}
}

// Softcap: the exponent of P in log2 units and the derivative of the capped score.
struct Softcap {
	float scale, cap;

	__device__ __forceinline__ explicit Softcap(const AttnBackwardParams &p) : scale(p.scale / p.softcap), cap(p.softcap * 1.4426950408889634f) {}

	__device__ __forceinline__ float exponent(float score, float less, float &slope) const {
		const float y = score * scale, e = exp2Fast(-2.8853900817779268f * fabsf(y)), r = __fdividef(1, 1 + e);
		slope = 4 * e * r * r; // 1 - tanh(y)^2, which would cancel for large |y|
		return fmaf(copysignf((1 - e) * r, y), cap, less);
	}
};

// P^T as computeP() and, with SCALE, scaleP() compute it, with a softcap. Returns P^T times the derivative in words:
// computeDS() takes it for P.
template <class T, bool SCALE> __device__ __forceinline__ void computeCappedP(float (&s)[T::BM / 2], volatile uint32_t (&words)[T::BM / 4], uint32_t lse, const Softcap &softcap) {
#pragma unroll
	for (int j = 0; j < T::BM / 8; j++) {
		const float2 less = loadPair(lse + 32 * j), factor = SCALE ? loadPair(lse + 4 * T::BM + 32 * j) : float2{1, 1};
#pragma unroll
		for (int r = 0; r < 2; r++) {
			const int i = 4 * j + 2 * r;
			float slope[2];
			s[i] = exp2Fast(softcap.exponent(s[i], less.x, slope[0])) * factor.x;
			s[i + 1] = exp2Fast(softcap.exponent(s[i + 1], less.y, slope[1])) * factor.y;
			words[i / 2] = pack<BF16>(s[i] * slope[0], s[i + 1] * slope[1]);
		}
	}
}
