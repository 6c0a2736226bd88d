// A sequence of a backward call: its rows and keys in the tensors, and which blocks of rows and of keys attend to each other.
//
// Row r of a sequence attends to keys [r - left, r + right] of it. Causal masks and their alignment, windows and lengths are
// special cases.
#pragma once
#include "attn_backward.h"

// The rows or keys of a sequence in its tensors: index of the first, number of them, and number of those in use.
struct Extent {
	int first, extent, used;

	// The extent of a sequence, by cu_seqlens and seqused where they are given. `total` is of packed tensors, `most` the maximum
	// sequence length. The numbers are the caller's, so clamp(n, most) limits each of them to [0, most].
	template <class Clamp> static __device__ __forceinline__ Extent of(uint64_t cu, uint64_t used, int batch, int total, int most, Clamp clamp) {
		Extent x = {0, most, most};
		if (cu != 0) {
			x.first = clamp(reinterpret_cast<const int32_t *>(cu)[batch], total);
			x.extent = max(clamp(reinterpret_cast<const int32_t *>(cu)[batch + 1], total) - x.first, 0);
			x.used = min(x.extent, most);
		}
		if (used != 0) x.used = clamp(reinterpret_cast<const int32_t *>(used)[batch], x.used);
		return x;
	}
};

// Blocks [first, end).
struct Span {
	int first, end;
};

struct Sequence {
	int batch;
	Extent rows, keys;
	int64_t left, right;

	// Each family has its own form of clamp (see Extent::of), and so keeps its instructions.
	template <class Clamp> static __device__ __forceinline__ Sequence of(const AttnBackwardParams &p, int batch, Clamp clamp) {
		Sequence s;
		s.batch = batch;
		s.rows = Extent::of(p.cu_q, p.used_q, batch, p.total_q, p.Sq, clamp);
		s.keys = Extent::of(p.cu_k, p.used_k, batch, p.total_k, p.Sk, clamp);
		const int64_t offset = p.bottom_right ? int64_t(s.keys.used) - s.rows.used : 0;
		s.left = p.left - offset;
		s.right = p.right + offset;
		return s;
	}

	// The blocks of N that elements [first, first + M) attend to. Element i attends to [i - before, i + after].
	template <int M, int N> static __device__ __forceinline__ Span meets(int64_t first, int used, int64_t before, int64_t after, int others) {
		const int64_t last = min(first + M, int64_t(used)) - 1;
		const int64_t from = max(first - before, int64_t(0)), to = min(last + after + 1, int64_t(others));
		if (last < first || to <= from) return {0, 0};
		return {int(from / N), int((to + N - 1) / N)};
	}

	// The blocks of KEYS keys that rows [row, row + ROWS) attend to.
	template <int ROWS, int KEYS> __device__ __forceinline__ Span keyBlocks(int64_t row) const { return meets<ROWS, KEYS>(row, rows.used, left, right, keys.used); }

	// The blocks of ROWS rows that attend to keys [key, key + KEYS).
	template <int ROWS, int KEYS> __device__ __forceinline__ Span rowBlocks(int64_t key) const { return meets<KEYS, ROWS>(key, keys.used, right, left, rows.used); }

	// The address of a head's first row in a tensor of query rows or of keys. Elements have 2 bytes.
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

	// The number of the sequence's first block of ROWS rows among those of all sequences. A packed sequence that begins at row r
	// has its blocks from number r / ROWS + batch on: a number for each block, at most B unused.
	template <int ROWS> __device__ __forceinline__ int firstBlock(const AttnBackwardParams &p) const {
		return p.cu_q != 0 ? rows.first / ROWS + batch : batch * ((p.Sq + ROWS - 1) / ROWS);
	}
};
