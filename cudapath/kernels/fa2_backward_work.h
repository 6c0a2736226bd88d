// The units of work of the backward fa2 kernel, the sequences that they belong to, and the workspace.
//
// A unit is a block of keys of one KV head. Its steps loop over the query heads of the group, and for each of them over the
// blocks of rows that attend to any of the keys, in ascending order. A CTA draws a ticket; a ticket is a unit. The units of
// a head are in descending order of keys; several heads alternate, so that units that run at once seldom add to the same dQ.
//
// dQ of a block of rows is a sum over key blocks, in descending order of keys. A counter per block of rows says how many key
// blocks have been added. A CTA waits only for units of lower tickets, which have started, so no wait lasts forever.
#pragma once
#include "backward_sequence.h"
#include "fa2_backward_tile.h"

namespace fa2 {

// A sequence in blocks of Rows rows and Keys keys.
template <class C> struct TiledSequence : Sequence {
	__device__ __forceinline__ TiledSequence(const AttnBackwardParams &p, int batch)
		: Sequence(Sequence::of(p, batch, [](int n, int most) { return n < 0 ? 0 : n < most ? n : most; })) {}

	// The key blocks that rows of a block attend to, and the row blocks that attend to keys of a block.
	__device__ __forceinline__ Span key_blocks(int block) const { return keyBlocks<C::Rows, C::Keys>(int64_t(block) * C::Rows); }
	__device__ __forceinline__ Span row_blocks(int block) const { return rowBlocks<C::Rows, C::Keys>(int64_t(block) * C::Keys); }
};

// Workspace: the next ticket; a counter, a record and dQ in float32 for each block of rows of each head.
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
	__device__ __forceinline__ int64_t index(const AttnBackwardParams &p, const TiledSequence<C> &s, int head, int block) const {
		const int first = s.template firstBlock<C::Rows>(p);
		return head * blocks + first + block;
	}
};

struct Unit {
	int batch, head; // KV head
	int block, blocks; // key block, and their number in the longest sequence
};

// Bytes of the L2 cache for the heads that alternate: Q, dO and float32 dQ (docs/log/cuda-backward.md).
constexpr int64_t AlternatingBytes = 16 << 20;

template <class C> __device__ __forceinline__ Unit unit_of(const AttnBackwardParams &p, uint32_t ticket) {
	const uint32_t blocks = (p.Sk + C::Keys - 1) / C::Keys, heads = p.Hkv * p.B;
	const int64_t bytes = int64_t(p.Sq) * (C::D * 6 + C::Dv * 2) * (p.Hq / p.Hkv);
	const uint32_t together = uint32_t(min(max(AlternatingBytes / bytes, int64_t(1)), int64_t(heads)));
	const uint32_t chunk = ticket / (blocks * together), in_chunk = ticket - chunk * blocks * together, width = min(together, heads - chunk * together);
	const uint32_t head = chunk * together + in_chunk % width;
	return {int(head / p.Hkv), int(head % p.Hkv), int(blocks - 1 - in_chunk / width), int(blocks)};
}

// The steps of a unit, one after the other. Heads count from the first query head of the group.
struct Step {
	int head, block;
	__device__ __forceinline__ Step next(const Span &rows) const { return block + 1 == rows.end ? Step{head + 1, rows.first} : Step{head, block + 1}; }
	__device__ __forceinline__ Step previous(const Span &rows) const { return block == rows.first ? Step{head - 1, rows.end - 1} : Step{head, block - 1}; }
};

} // namespace fa2
