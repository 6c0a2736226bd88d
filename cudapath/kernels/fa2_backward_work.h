// The units of work of the backward fa2 kernel, the sequences that they belong to, and the workspace.
//
// A unit is a block of keys of one KV head. Its steps loop over the query heads of the group, and for each of them over the
// blocks of rows that attend to any of the keys, in ascending order. A CTA draws a ticket; a ticket is a unit. The units of
// a head are in descending order of keys; several heads alternate, so that units that run at once seldom add to the same dQ.
//
// dQ of a block of rows is a sum over key blocks, in descending order of keys. A counter per block of rows says how many key
// blocks have been added. A CTA waits only for units of lower tickets, which have started, so no wait lasts forever.
#pragma once
#include "fa2_backward_tile.h"

namespace fa2 {

// The rows or keys of a sequence in its tensors: index of the first, number of them, and number of those in use.
struct Extent {
	int first, extent, used;
};

__device__ __forceinline__ int clamped(int n, int most) { return n < 0 ? 0 : n < most ? n : most; }

__device__ __forceinline__ Extent extent_of(uint64_t cu, uint64_t used, int batch, int total, int most) {
	Extent x = {0, most, most};
	if (cu) {
		x.first = clamped(((const int32_t *)cu)[batch], total);
		x.extent = max(clamped(((const int32_t *)cu)[batch + 1], total) - x.first, 0);
		x.used = min(x.extent, most);
	}
	if (used) x.used = clamped(((const int32_t *)used)[batch], x.used);
	return x;
}

// Blocks [first, end).
struct Span {
	int first, end;
};

// A sequence: its rows and keys. Row r attends to keys [r - left, r + right].
template <class C> struct Sequence {
	int batch;
	Extent rows, keys;
	int64_t left, right;

	__device__ __forceinline__ Sequence(const AttnBackwardParams &p, int b) : batch(b) {
		rows = extent_of(p.cu_q, p.used_q, b, p.total_q, p.Sq);
		keys = extent_of(p.cu_k, p.used_k, b, p.total_k, p.Sk);
		const int64_t offset = p.bottom_right ? int64_t(keys.used) - rows.used : 0;
		left = p.left - offset;
		right = p.right + offset;
	}

	// The key blocks that rows of a block attend to.
	__device__ __forceinline__ Span key_blocks(int block) const {
		const int64_t row = int64_t(block) * C::Rows, last = min(row + C::Rows, int64_t(rows.used)) - 1;
		const int64_t from = max(row - left, int64_t(0)), to = min(last + right + 1, int64_t(keys.used));
		if (last < row || to <= from) return {0, 0};
		return {int(from / C::Keys), int((to + C::Keys - 1) / C::Keys)};
	}

	// The row blocks that attend to keys of a block.
	__device__ __forceinline__ Span row_blocks(int block) const {
		const int64_t key = int64_t(block) * C::Keys, last = min(key + C::Keys, int64_t(keys.used)) - 1;
		const int64_t from = max(key - right, int64_t(0)), to = min(last + left + 1, int64_t(rows.used));
		if (last < key || to <= from) return {0, 0};
		return {int(from / C::Rows), int((to + C::Rows - 1) / C::Rows)};
	}

	// Whether the tile has slots that are masked or past an end.
	__device__ __forceinline__ bool is_masked(int row, int key) const {
		return row + C::Rows > rows.used || key + C::Keys > keys.used || key + C::Keys - 1 > row + right || key < row + C::Rows - 1 - left;
	}

	// The address of a head's first row in a tensor of query rows or of keys.
	__device__ __forceinline__ char *rows_of(const AttnBackwardParams &p, const AttnTensor &t, int head) const {
		return (char *)t.base + 2 * ((p.cu_q ? 0 : batch) * t.batch + head * t.head + rows.first * t.row);
	}
	__device__ __forceinline__ char *keys_of(const AttnBackwardParams &p, const AttnTensor &t, int head) const {
		return (char *)t.base + 2 * ((p.cu_k ? 0 : batch) * t.batch + head * t.head + keys.first * t.row);
	}
};

// Workspace: the next ticket; a counter, a record and dQ in float32 for each block of rows of each head. A packed sequence
// that begins at row r has its blocks from number r / Rows + batch on: a number for each block, at most B unused.
template <class C> struct Workspace {
	int *ticket, *turns;
	float *records, *dQ;
	int64_t blocks; // of a head

	static constexpr int DQFloats = C::Rows * C::D;

	__device__ __forceinline__ explicit Workspace(const AttnBackwardParams &p) {
		const int each = (p.Sq + C::Rows - 1) / C::Rows;
		blocks = p.cu_q ? int64_t(p.total_q / C::Rows) + p.B : int64_t(p.B) * each;
		ticket = (int *)p.stats;
		turns = ticket + 32;
		records = (float *)(turns + (p.Hq * blocks + 31) / 32 * 32);
		dQ = records + (p.Hq * blocks * C::RecordFloats + 31) / 32 * 32;
	}

	// The number of a block of rows.
	__device__ __forceinline__ int64_t index(const AttnBackwardParams &p, const Sequence<C> &s, int head, int block) const {
		const int first = p.cu_q ? s.rows.first / C::Rows + s.batch : s.batch * ((p.Sq + C::Rows - 1) / C::Rows);
		return head * blocks + first + block;
	}
};

struct Unit {
	int batch, head; // KV head
	int block, blocks; // key block, and their number in the longest sequence
};

// Bytes of the L2 cache for the heads that alternate: Q, dO and float32 dQ (docs/cuda-bwd-log.md).
constexpr int64_t AlternatingBytes = 16 << 20;

template <class C> __device__ __forceinline__ Unit unit_of(const AttnBackwardParams &p, uint32_t ticket) {
	const uint32_t blocks = (p.Sk + C::Keys - 1) / C::Keys, heads = p.Hkv * p.B;
	const int64_t bytes = int64_t(p.Sq) * (C::D * 6 + C::Dv * 2) * (p.Hq / p.Hkv);
	const uint32_t together = uint32_t(min(max(AlternatingBytes / bytes, int64_t(1)), int64_t(heads)));
	const uint32_t chunk = ticket / (blocks * together), in_chunk = ticket - chunk * blocks * together, width = min(together, heads - chunk * together);
	const uint32_t head = chunk * together + in_chunk % width;
	return {int(head / p.Hkv), int(head % p.Hkv), int(blocks - 1 - in_chunk / width), int(blocks)};
}

// The steps of a unit, one after the other.
struct Step {
	int head, block;
	__device__ __forceinline__ Step next(const Span &rows) const { return block + 1 == rows.end ? Step{head + 1, rows.first} : Step{head, block + 1}; }
	__device__ __forceinline__ Step previous(const Span &rows) const { return block == rows.first ? Step{head - 1, rows.end - 1} : Step{head, block - 1}; }
};

} // namespace fa2
