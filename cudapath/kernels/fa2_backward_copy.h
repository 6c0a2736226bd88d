// The copies and the order of a CTA of the backward fa2 kernel. All threads copy K and V, then Q, dO and the records of the
// rows step by step. One thread waits for the turn of the CTA to add to dQ, another passes it on.
#pragma once
#include "fa2_backward_work.h"

namespace fa2 {

// Arrives at an mbarrier of Copies arrivals when the thread's copies are done.
template <class C> struct Arrival {
	static constexpr int Copies = C::Any ? 2 * C::Threads : C::Threads;
	static __device__ __forceinline__ void arrive(uint32_t barrier) {
		if constexpr (C::Any) barrier_arrive(barrier); // tiles are stored, the record is copied
		barrier_arrive_copies(barrier);
	}
};

template <class C> __device__ __forceinline__ void copy_keys(const AttnBackwardParams &p, uint32_t shared, const TiledSequence<C> &s, const Unit &unit) {
	const int key = unit.block * C::Keys;
	BackwardCopy<C, C::D, C::Keys>::fetch(shared, s.keysOf(p, p.k, unit.head) + 2 * (key * p.k.row), 2 * p.k.row, s.keys.used - key, p.D);
	BackwardCopy<C, C::Dv, C::Keys>::fetch(shared + C::VAt, s.keysOf(p, p.v, unit.head) + 2 * (key * p.v.row), 2 * p.v.row, s.keys.used - key, p.Dv);
	Arrival<C>::arrive(shared + C::KeysFull);
}

template <class C> __device__ __forceinline__ void copy_rows(const AttnBackwardParams &p, uint32_t shared, const TiledSequence<C> &s, const Step &step, int stage) {
	const int row = step.block * C::Rows, left = s.rows.used - row;
	BackwardCopy<C, C::D, C::Rows>::fetch(shared + C::QAt + stage * C::QBytes, s.rowsOf(p, p.q, step.head) + 2 * (row * p.q.row), 2 * p.q.row, left, p.D);
	BackwardCopy<C, C::Dv, C::Rows>::fetch(shared + C::DOAt + stage * C::DOBytes, s.rowsOf(p, p.dO, step.head) + 2 * (row * p.dO.row), 2 * p.dO.row, left, p.Dv);
	const Workspace<C> space(p);
	const char *record = (const char *)(space.records + space.index(p, s, step.head, step.block) * C::RecordFloats);
	const int at = threadIdx.x * 16;
	static_assert(C::RecordBytes <= C::Threads * 16, "");
	if (at < C::RecordBytes) copy_async(shared + C::RecordsAt + stage * C::RecordBytes + at, record + at);
	Arrival<C>::arrive(shared + C::RowsFull + 8 * stage);
}

// The CTA's turn to add to the dQ of a step.
template <class C> struct Turn {
	const int *counter;
	int mine;
	bool here;

	// Looks once.
	__device__ __forceinline__ Turn(const AttnBackwardParams &p, const TiledSequence<C> &s, const Unit &unit, const Step &step) {
		const Workspace<C> space(p);
		counter = space.turns + space.index(p, s, step.head, step.block);
		mine = s.key_blocks(step.block).end - 1 - unit.block;
		here = mine == 0 || loadAcquire(counter) == mine;
	}
	__device__ __forceinline__ void wait() {
		while (!here) here = loadAcquire(counter) == mine;
	}
	// Passes the turn on after all threads have added, which a barrier has made visible to this thread. The release orders
	// their additions before the counter.
	static __device__ __forceinline__ void pass(const AttnBackwardParams &p, const TiledSequence<C> &s, const Unit &unit, const Step &step) {
		const Workspace<C> space(p);
		const Span keys = s.key_blocks(step.block);
		if (unit.block != keys.first) storeRelease(space.turns + space.index(p, s, step.head, step.block), keys.end - unit.block);
	}
};

} // namespace fa2
