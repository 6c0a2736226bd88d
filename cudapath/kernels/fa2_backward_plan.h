// The plan of a unit of the backward fa2 kernel: what each step needs of the lengths, strides and masks. One thread computes
// it when the unit begins. It stays in shared memory, since all registers hold sums and operands.
#pragma once
#include "fa2_backward_work.h"

namespace fa2 {

// A unit with its sequence and its blocks of rows, computed from a ticket when the unit begins, and again when it ends.
template <class C> struct Work {
	Unit unit;
	TiledSequence<C> s;
	Span rows;
	int key;  // first of the unit
	int head; // first query head of the group

	__device__ __forceinline__ Work(const AttnBackwardParams &p, uint32_t ticket)
		: unit(unit_of<C>(p, ticket)), s(p, unit.batch), rows(s.row_blocks(unit.block)), key(unit.block * C::Keys), head(unit.head * (p.Hq / p.Hkv)) {}
};

// Bytes between rows of Q and of dO.
struct alignas(16) Strides {
	int64_t q, dO;
};

template <class C> struct Plan {
	// The workspace of block 0 of the sequence in the first query head; that of block b in head h is blocks * h + b places on.
	int *turns;
	const char *records;
	float *dQ;
	char *out;         // row 0 of the sequence in dQ of the call, first query head
	Strides pass;      // between the rows that a thread copies
	Strides onward[2]; // to the rows of the next step: in the same head, and from the last of a head to the first of the next
	int64_t from, to;  // keys that row 0 attends to, relative to the unit's first
	Span rows;         // blocks of the unit
	int blocks;        // of rows of a head in the workspace
	int used;          // rows of the sequence
	int last;          // key in use, relative to the unit's first
	int least, most;   // first rows of blocks without masked slots: from, and up to
	int ends;          // from the block with this first row on, no earlier key block follows
	int limit, shift;  // see later_blocks()
	int odd_keys;      // Inf or NaN in K; set by clear_keys()
	int odd_rows;      // Inf or NaN in Q or dO of a tile with masked slots; set by clear_rows()

	__device__ __forceinline__ Plan(const AttnBackwardParams &p, const Work<C> &work) {
		auto clamp = [](int64_t x) { return int(min(max(x, int64_t(INT_MIN)), int64_t(INT_MAX))); };
		const TiledSequence<C> &s = work.s;
		const Workspace<C> space(p);
		const int64_t first = space.index(p, s, work.head, 0);
		turns = space.turns + first;
		records = (const char *)(space.records + first * C::RecordFloats);
		dQ = space.dQ + first * space.DQFloats;
		out = s.rowsOf(p, p.dQ, work.head);
		pass = {BackwardCopy<C, C::D, C::Rows>::PassRows * 2 * p.q.row, BackwardCopy<C, C::Dv, C::Rows>::PassRows * 2 * p.dO.row};
		const int back = (work.rows.end - work.rows.first - 1) * C::Rows;
		onward[0] = {2 * C::Rows * p.q.row, 2 * C::Rows * p.dO.row};
		onward[1] = {2 * (p.q.head - back * p.q.row), 2 * (p.dO.head - back * p.dO.row)};
		from = -s.left - work.key;
		to = s.right - work.key;
		rows = work.rows;
		blocks = int(space.blocks);
		used = s.rows.used;
		last = s.keys.used - 1 - work.key;
		least = clamp(max(work.key + C::Keys - 1 - s.right, int64_t(0)));
		most = work.key + C::Keys > s.keys.used ? -1 : clamp(min(work.key + s.left + 1, int64_t(used)) - C::Rows);
		const int64_t right = min(s.right, int64_t(s.keys.used)); // more is no limit either
		// Without dQ there are no turns, as if no other key block followed.
		const bool other = p.dQ.base != 0;
		ends = work.key == 0 || !other ? INT_MIN : clamp(work.key + s.left);
		limit = other ? clamp(min(int64_t(used), s.keys.used - right)) : 0;
		shift = other ? clamp(right - 1 - work.key) : 0;
		odd_keys = odd_rows = 0;
	}

	// The place of a step's rows in the workspace. 32 bits hold it, as a place takes kilobytes.
	__device__ __forceinline__ uint32_t index(const Step &step) const { return step.head * blocks + step.block; }

	// The number of key blocks after the unit's that rows of a block attend to. They add to dQ before the unit. The last key is
	// min(last row + right, last key in use), or min(rows, limit) + shift relative to the unit's first, with the rows up to the block's end.
	__device__ __forceinline__ int later_blocks(int block) const { return uint32_t(min((block + 1) * C::Rows, limit) + shift) / C::Keys; }
	// Whether rows of a block attend to no key block before the unit's.
	__device__ __forceinline__ bool ends_at(int block) const { return block * C::Rows >= ends; }
};

// The plan in shared memory.
template <class C> __device__ __forceinline__ Plan<C> &plan_of(uint32_t shared) {
	static_assert(sizeof(Plan<C>) <= C::PlanBytes && C::PlanAt % 16 == 0, "");
	return *(Plan<C> *)__cvta_shared_to_generic(shared + C::PlanAt);
}

} // namespace fa2
