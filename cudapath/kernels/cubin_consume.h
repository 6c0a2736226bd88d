// The consumer warpgroups of a cubin kernel: the main loop of fa3_consume.h with Q in registers.
//
// Q of the next row block is loaded in the last step of the current one, as soon as no product reads Q any more, so that
// the loads overlap with the softmax.
#pragma once
#include "cubin_ptx.h"
#include "cubin_tile.h"
#include "fa3_consume.h"
// A measurement may define TRACE(event), which takes the time of an event of the main loop.
#ifndef TRACE
#define TRACE(event)
#define TRACE_BEGIN
#endif

// Starts the loads of rows `row` and `row + 8` of Q: lane c of a quad loads columns 32 n + 8 c to 32 n + 8 c + 7 to q[2 n] and
// q[2 n + 1]. Loads of 4 bytes in the layout of the operand would be four times as many, each of 8 cache lines too.
// Elements past the last row and past D, a multiple of 8, are zeros.
template <class T, class Params, class Block> __device__ __forceinline__ void fetchQ(uint32_t (&q)[T::D / 16][4], const Params &p, const Block &w, int row, int c) {
	const char *base = reinterpret_cast<const char *>(p.q.base) + 2 * (w.batch * p.q.batch + w.head * p.q.head + row * p.q.row + 8 * c);
#pragma unroll
	for (int n = 0; n < T::D / 32; n++) {
		const bool there = 32 * n + 8 * c < p.D;
		loadOrZero(q[2 * n], base + 64 * n, there && row < endOf(p, w));
		loadOrZero(q[2 * n + 1], base + 64 * n + 16 * p.q.row, there && row + 8 < endOf(p, w));
	}
}

// Brings what fetchQ has loaded into the layout of the A operand of wgmma: word 2 j + r of slice i holds columns
// 16 i + 8 j + 2 c and the next of row r. A negative scale is applied as |scale| with -Q.
template <class T> __device__ __forceinline__ void arrangeQ(uint32_t (&q)[T::D / 16][4], const AttnParams &p, int c) {
	const uint32_t flip = p.scale_log2 < 0 ? 0x80008000 : 0;
#pragma unroll
	for (int n = 0; n < T::D / 32; n++) {
		transposeQuad(q[2 * n], c);
		transposeQuad(q[2 * n + 1], c);
		uint32_t words[2][4];
#pragma unroll
		for (int i = 0; i < 8; i++) words[i / 4][i % 4] = q[2 * n + i % 2][i / 2] ^ flip;
#pragma unroll
		for (int i = 0; i < 8; i++) q[2 * n + i / 4][i % 4] = words[i / 4][i % 4];
	}
}

template <class T, class Params> __device__ __forceinline__ void consumeCubin(const Params &p, uint32_t shared, char *tiles, int group) {
	const int lane = threadIdx.x % 32, c = lane % 4;
	const int rowInBlock = 64 * group + threadIdx.x % 128 / 32 * 16 + lane / 4;
	const float scale = fabsf(p.scale_log2), threshold = RESCALE_THRESHOLD / scale;
	auto turnWait = [&] { if (T::PINGPONG) namedSync(TURN + group, 256); };
	auto turnPass = [&] { if (T::PINGPONG) namedArrive(TURN + (group + 1 == T::WARPGROUPS ? 0 : group + 1), 256); };
	auto release = [&](uint32_t bar) {
		__syncwarp();
		if (lane == 0) barrierArrive(bar);
	};
	Ring<T::STAGES> k, v;     // position of the current tiles
	Ring<T::STAGES> nextTile; // with ONE_RING: position of the next tile, K or V
	auto matrixK = [&] { return matrixOffset(shared) + matrixOffset(T::K) + k.stage * matrixOffset(T::K_BYTES); };
	auto matrixV = [&] {
		return matrixOffset(shared) + (matrixOffset(T::V) + matrixPanels(T::K_PANEL)) + v.stage * matrixOffset(T::V_BYTES);
	};
	if (T::PINGPONG && group == T::WARPGROUPS - 1) turnPass();

	float s[T::BN / 2], o[T::DV / 2];
	uint32_t P[T::BN / 4], q[T::D / 16][4];
	auto waitK = [&] {
		if constexpr (T::ONE_RING) k = nextTile, nextTile.advance();
		barrierWait(shared + T::K_FULL + 8 * k.stage, k.parity);
	};
	auto releaseK = [&] {
		release(shared + T::K_EMPTY + 8 * k.stage);
		if constexpr (!T::ONE_RING) k.advance();
	};
	auto releaseV = [&] {
		release(shared + T::V_EMPTY + 8 * v.stage);
		if constexpr (!T::ONE_RING) v.advance();
	};

	Ring<T::WORKS> work;         // position of the next row block
	int steps = 0, masked = 0;   // KV steps of the next row block; the causal mask crosses the first `masked` of them
	int last0 = 0, last1 = 0;    // the last key that each row attends to
	int first = 0;               // first KV step of this warpgroup; its rows attend to no key of earlier steps
	uint32_t marked = 0;         // not 0 if a stage of this row block was marked
	// With options there are no registers for what may be marked. A stage then may have the mark of an earlier step, which costs time alone.
	auto waitV = [&](bool mayBeMarked) {
		if constexpr (T::ONE_RING) v = nextTile, nextTile.advance();
		barrierWait(shared + T::V_FULL + 8 * v.stage, v.parity);
		if (T::CAUSAL && (T::OPTIONS || mayBeMarked)) marked |= *reinterpret_cast<const uint32_t *>(tiles + T::MARKS + 4 * v.stage);
	};
	auto workAt = [&](int stage) {
		if constexpr (T::OPTIONS) {
			return listedAt<T>(shared, stage);
		} else {
			const int4 x = *reinterpret_cast<const int4 *>(tiles + T::WORK + 32 * stage);
			const int steps = *reinterpret_cast<const int *>(tiles + T::WORK + 32 * stage + 16);
			return Work{x.x, x.y, x.z, steps - 1, steps, x.w};
		}
	};
	// Takes the next row block and starts the loads of its Q. Returns false after the last one.
	auto advance = [&] {
		barrierWait(shared + T::WORK_FULL + 8 * work.stage, work.parity);
		const typename WorkTypes<T>::Block w = workAt(work.stage);
		if constexpr (T::OPTIONS) {
			if (w.steps < 0) return false;
			steps = w.steps;
			const typename WorkTypes<T>::Numbers at = w;
			first = firstStepOf<T>(p, w, at.row + 64 * group);
			fetchQ<T>(q, p, at, at.row + rowInBlock, c);
		} else {
			if (w.steps == 0) return false;
			steps = w.steps, masked = T::CAUSAL ? w.masked : w.steps * T::BN > p.Sk ? 1 : 0;
			const int row = w.row + 64 * group;
			first = firstStepOf<T>(p, w, row);
			fetchQ<T>(q, p, w, w.row + rowInBlock, c);
		}
		return true;
	};
	// Releases the KV tiles that this warpgroup skips, and issues the first scores of the next row block.
	auto begin = [&] {
		arrangeQ<T>(q, p, c);
		marked = 0;
#pragma unroll 1
		for (int i = 0; i < first; i++) {
			waitK();
			releaseK();
			if (i > 0) waitV(i <= masked), releaseV();
			turnWait(), turnPass();
		}
		waitK();
		issueScores<T>(s, q, matrixK());
		if (first > 0) waitV(first <= masked), releaseV();
	};

	auto complete = [&] {
		wgmmaWait<0>();
		touch(s);
		releaseK();
	};
	if constexpr (!T::OPTIONS) {
		if (T::CAUSAL && p.causal_offset < 0) { // some rows attend to no key: the producer passes no block of such rows on
			Walk<T::BM, T::BN, T::CAUSAL, T::PARTIAL_LAST> walk(p);
			for (Work w; walk.next(w);)
				if (w.steps == 0) finishEmpty<T>(p, w, rowInBlock);
		}
	}
	TRACE_BEGIN
	TRACE(0);
	bool more = advance();
	if (!more) return;
	begin();
	complete();
	TRACE(1);
#pragma unroll 1
	for (;;) {
		Rows rows = {{-INFINITY, -INFINITY}, {0, 0}, {0, 0}, {0, 0}, false};
		const int stage = work.stage, top = steps - 1, crossed = T::OPTIONS ? workAt(stage).masked : masked;
		int whole = 0; // with options: steps from here on are masked too
		work.advance();
		if constexpr (T::OPTIONS) {
			whole = workAt(stage).whole;
		} else {
			const int row = workAt(stage).row + rowInBlock;
			last0 = lastKeyOf<T>(p, row);
			last1 = lastKeyOf<T>(p, int64_t(row) + 8);
		}
#pragma unroll
		for (int i = 0; i < T::DV / 2; i++) o[i] = 0;
		int i = first;
		auto maskStep = [&] {
			if constexpr (T::OPTIONS) {
				if (i >= crossed && i < whole) return;
				const typename WorkTypes<T>::Block w = workAt(stage);
				const ThreadRows x = threadRowsOf(w, rowInBlock);
				const int key = (w.top - i) * T::BN + 2 * c;
				mask(s, x.last0 - key, x.last1 - key, x.first0 - key);
			} else {
				if (i < crossed) mask(s, last0 - (top - i) * T::BN - 2 * c, last1 - (top - i) * T::BN - 2 * c);
			}
		};
		if (T::EARLY_Q && i == top) more = advance(); // no product reads Q any more
		maskStep();
		softmaxP(s, rows, scale, threshold, [] {}); // O is 0
		packP(s, P, rows);
		TRACE(4);
#pragma unroll 1
		while (i++ < top) {
			waitK();
			turnWait();
			issueScores<T>(s, q, matrixK());
			waitV(i <= crossed);
			issueOutput<T>(o, P, matrixV());
			turnPass();
			wgmmaWait<1>();
			touch(s);
			releaseK();
			if (T::EARLY_Q && i == top) more = advance();
			if (T::CAUSAL) maskStep();
			softmaxP(s, rows, scale, threshold, [&] {
				wgmmaWait<0>();
				touch(o);
				multiply(o, rows.factor);
			});
			wgmmaWait<0>();
			touch(o);
			releaseV();
			packP(s, P, rows);
		}
		TRACE(5);
		waitV(top < crossed);
		issueOutput<T>(o, P, matrixV());
		if (!T::EARLY_Q) more = advance();
		wgmmaWait<0>();
		touch(o);
		releaseV();
		TRACE(6);
		const bool mark = marked != 0;
		const typename WorkTypes<T>::Block now = T::OPTIONS ? typename WorkTypes<T>::Block{} : workAt(stage);
		auto store = [&](bool mark) {
			if constexpr (T::OPTIONS) {
				const typename WorkTypes<T>::Block now = workAt(stage);
				const ThreadRows x = threadRowsOf(now, rowInBlock);
				finish<T>(o, rows, p, now, x.row, x.last0, x.last1, mark, x.first0);
			} else {
				finish<T>(o, rows, p, now, now.row + rowInBlock, last0, last1, mark);
			}
		};
		if (!more || T::OPTIONS && mark) { // with more, rare: next to scores there are no registers for it
			store(mark);
			if (!more) break;
			release(shared + T::WORK_EMPTY + 8 * stage);
			begin();
			complete();
			continue;
		}
		begin();
		TRACE(7);
		store(!T::OPTIONS && mark); // overlaps with the first scores of the next row block
		release(shared + T::WORK_EMPTY + 8 * stage);
		TRACE(8);
		complete();
	}
	TRACE(9);
}
