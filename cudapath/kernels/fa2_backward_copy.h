// The copies and the order of a CTA of the backward fa2 kernel. All threads copy K and V, then Q, dO and the records of the
// rows step by step. One thread waits for the turn of the CTA to add to dQ, another passes it on.
#pragma once
#include "fa2_backward_plan.h"

namespace fa2 {

// Arrives at an mbarrier of Copies arrivals when the thread's copies are done.
template <class C> struct Arrival {
	static constexpr int Copies = C::Any ? 2 * C::Threads : C::Threads;
	static __device__ __forceinline__ void arrive(uint32_t barrier) {
		if constexpr (C::Any) barrier_arrive(barrier); // tiles are stored, the record is copied
		barrier_arrive_copies(barrier);
	}
};

template <class C> __device__ __forceinline__ void copy_keys(const AttnBackwardParams &p, uint32_t shared, const Work<C> &work) {
	using K = BackwardCopy<C, C::D, C::Keys>;
	using V = BackwardCopy<C, C::Dv, C::Keys>;
	const TiledSequence<C> &s = work.s;
	const int left = s.keys.used - work.key;
	K::template fetch<false>(shared, K::start(s.keysOf(p, p.k, work.unit.head) + 2 * (work.key * p.k.row), 2 * p.k.row), K::PassRows * 2 * p.k.row, left, p.D);
	V::template fetch<false>(shared + C::VAt, V::start(s.keysOf(p, p.v, work.unit.head) + 2 * (work.key * p.v.row), 2 * p.v.row), V::PassRows * 2 * p.v.row, left, p.Dv);
	Arrival<C>::arrive(shared + C::KeysFull);
}

// The thread's first chunks of Q and dO of the step that is copied next.
template <class C> struct RowCopy {
	using Q = BackwardCopy<C, C::D, C::Rows>;
	using DO = BackwardCopy<C, C::Dv, C::Rows>;
	const char *q, *dO;

	__device__ __forceinline__ RowCopy(const AttnBackwardParams &p, const Work<C> &work) {
		const int row = work.rows.first * C::Rows;
		q = Q::start(work.s.rowsOf(p, p.q, work.head) + 2 * (row * p.q.row), 2 * p.q.row);
		dO = DO::start(work.s.rowsOf(p, p.dO, work.head) + 2 * (row * p.dO.row), 2 * p.dO.row);
	}

	// Copies Q, dO and the record of a step, and goes on to the next.
	__device__ __forceinline__ void fetch(const AttnBackwardParams &p, const Plan<C> &plan, uint32_t shared, const Step &step, int stage) {
		const int left = plan.used - step.block * C::Rows;
		const Strides pass = plan.pass;
		const uint32_t q_tile = shared + C::QAt + stage * C::QBytes, dO_tile = shared + C::DOAt + stage * C::DOBytes;
		if (!C::Any && left >= C::Rows && p.D == C::D && p.Dv == C::Dv) {
			Q::template fetch<true>(q_tile, q, pass.q, left, p.D);
			DO::template fetch<true>(dO_tile, dO, pass.dO, left, p.Dv);
		} else {
			Q::template fetch<false>(q_tile, q, pass.q, left, p.D);
			DO::template fetch<false>(dO_tile, dO, pass.dO, left, p.Dv);
		}
		const int at = threadIdx.x * 16;
		static_assert(C::RecordBytes <= C::Threads * 16, "");
		if (at < C::RecordBytes)
			copy_async(shared + C::RecordsAt + stage * C::RecordBytes + at, plan.records + uint64_t(plan.index(step)) * C::RecordBytes + at);
		const Strides onward = plan.onward[step.block + 1 == plan.rows.end];
		q += onward.q, dO += onward.dO;
		// An address that differs from stage to stage would be read from the lanes in a loop.
		if (stage == 0) Arrival<C>::arrive(shared + C::RowsFull);
		else Arrival<C>::arrive(shared + C::RowsFull + 8);
	}
};

// The CTA's turn to add to the dQ of a step.
template <class C> struct Turn {
	const int *counter;
	int mine;
	bool here;

	// Looks once.
	__device__ __forceinline__ Turn(const Plan<C> &plan, const Step &step) {
		counter = plan.turns + plan.index(step);
		mine = plan.later_blocks(step.block);
		here = mine == 0 || loadAcquire(counter) == mine;
	}
	__device__ __forceinline__ void wait() {
		while (!here) here = loadAcquire(counter) == mine;
	}
	// Passes the turn on after all threads have added, which a barrier has made visible to this thread. The release orders
	// their additions before the counter.
	static __device__ __forceinline__ void pass(const Plan<C> &plan, const Step &step) {
		if (!plan.ends_at(step.block)) storeRelease(plan.turns + plan.index(step), plan.later_blocks(step.block) + 1);
	}
};

} // namespace fa2
