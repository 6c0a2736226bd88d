// The consumer warpgroups of fa3. Each owns 64 rows and keeps their S, P, O and row statistics in registers. consume()
// at the end of the file is the main loop.
#pragma once
#include "fa3_tile.h"
#include "fa3_work.h"
#include "quad.h"

// Row statistics of the two rows of a thread: r = 0 is row g of its warp's 16 rows, r = 1 is row g + 8, with
// g = lane / 4.
//
// P is 2^(score * scale - rowMax), with rowMax = top * scale. P of the largest score must be exactly a power of two.
// Otherwise rounding P to 16 bits would change O by a unit in the last place if one key dominates the row, since row
// sums are of P before rounding. In a "far" row top * scale is so large that its rounding would show in P. There P is
// 2^((score - top) * scale), which is exactly 1 for score = top.
struct Rows {
	float top[2];  // lagged row max as an unscaled score of Q K^T; -inf before the first
	float less[2]; // subtracted in the exponent: rowMax, or 0 in a far row, where top has been subtracted from the score
	float sum[2];  // row sum of P over this thread's columns
	float factor[2]; // rescales O and the sum after an update of the row max
	bool far; // one of the two rows is far

	__device__ __forceinline__ float rowMax(int r, float scale) const { return top[r] == -INFINITY ? 0 : top[r] * scale; }
	__device__ __forceinline__ bool isFar(int r, float scale) const {
		return top[r] > -INFINITY && fabsf(fmaf(top[r], scale, -rowMax(r, scale))) > 0x1p-14f;
	}
};

// The last key that a row attends to; negative: none.
template <class T> __device__ __forceinline__ int lastKeyOf(const AttnParams &p, int64_t row) {
	return T::CAUSAL ? int(min(row + p.causal_offset, int64_t(p.Sk - 1))) : p.Sk - 1;
}

// With options: the first of a thread's two rows, the last key of each, and the first key of the first row. That of the second is 8 keys later.
struct ThreadRows {
	int row, last0, last1, first0;
};

// The first KV step of a warpgroup with rows `row` to `row + 63`. They attend to no key of earlier steps.
template <class T> __device__ __forceinline__ int firstStepOf(const AttnParams &p, const Work &w, const int &row) {
	const int lastKey = T::CAUSAL ? int(min(max(int64_t(row) + 63 + p.causal_offset, int64_t(0)), int64_t(p.Sk - 1))) : p.Sk - 1;
	return row < p.Sq ? w.top - lastKey / T::BN : w.top;
}

// Sets the scores of masked keys to -inf. last0 and last1 are the last key that each row attends to, relative to the
// thread's first column.
template <int N> __device__ __forceinline__ void mask(float (&s)[N], int last0, int last1) {
#pragma unroll
	for (int j = 0; j < N / 4; j++) {
#pragma unroll
		for (int c = 0; c < 2; c++) {
			if (8 * j + c > last0) s[4 * j + c] = -INFINITY;
			if (8 * j + c > last1) s[4 * j + 2 + c] = -INFINITY;
		}
	}
}

// The same for keys from first0 on of one row, and from 8 keys later on of the other.
template <int N> __device__ __forceinline__ void mask(float (&s)[N], int last0, int last1, int first0) {
#pragma unroll
	for (int j = 0; j < N / 4; j++) {
#pragma unroll
		for (int c = 0; c < 2; c++) {
			if (8 * j + c > last0 || 8 * j + c < first0) s[4 * j + c] = -INFINITY;
			if (8 * j + c > last1 || 8 * j + c < first0 + 8) s[4 * j + 2 + c] = -INFINITY;
		}
	}
}

// Computes P from scores, in place. It calls rescale() if O must be multiplied by the factors of the rows.
//
// The row max is lagged: a row updates it only if a score exceeds it by more than the rescale threshold. P stays below
// 2^RESCALE_THRESHOLD, which float32 sums and O hold. A warp vote without shuffles finds whether any row needs an
// update. Only a row's own scores decide on its update, so its bits do not depend on other rows. The vote is the only
// branch before wgmma, so the assembler can place sums and conversions between the exponentials.
template <int N, class Rescale> __device__ __forceinline__ void softmaxP(float (&s)[N], Rows &rows, float scale, float threshold, Rescale rescale) {
	float top[2] = {s[0], s[2]};
#pragma unroll
	for (int j = 0; j < N / 4; j++) {
#pragma unroll
		for (int r = 0; r < 2; r++) top[r] = fmaxf(top[r], fmaxf(s[4 * j + 2 * r], s[4 * j + 2 * r + 1]));
	}
	if (__any_sync(~0u, top[0] > rows.top[0] + threshold || top[1] > rows.top[1] + threshold || rows.far)) {
		bool far[2];
#pragma unroll
		for (int r = 0; r < 2; r++) {
			const float reached = quadMax(top[r]), before = rows.top[r], rowMax = rows.rowMax(r, scale);
			if (reached > before + threshold) rows.top[r] = reached;
			far[r] = rows.isFar(r, scale);
			const float step = far[r] ? (before - rows.top[r]) * scale : rowMax - rows.rowMax(r, scale);
			rows.factor[r] = before == -INFINITY ? 1 : exp2Approx(step);
			rows.sum[r] *= rows.factor[r];
			rows.less[r] = far[r] ? 0 : rows.rowMax(r, scale);
		}
		rows.far = far[0] || far[1];
#pragma unroll
		for (int i = 0; i < N; i++)
			if (far[i / 2 % 2]) s[i] -= rows.top[i / 2 % 2];
		rescale();
	}
#pragma unroll
	for (int i = 0; i < N; i++) s[i] = exp2Approx(fmaf(s[i], scale, -rows.less[i / 2 % 2]));
}

// Adds P to the row sums and rounds it to 16 bits.
template <int N> __device__ __forceinline__ void packP(const float (&s)[N], uint32_t (&P)[N / 2], Rows &rows) {
	float odd[2] = {0, 0};
#pragma unroll
	for (int i = 0; i < N / 2; i++) {
		rows.sum[i % 2] += s[2 * i];
		odd[i % 2] += s[2 * i + 1];
		P[i] = pack<BF16>(s[2 * i], s[2 * i + 1]);
	}
#pragma unroll
	for (int r = 0; r < 2; r++) rows.sum[r] += odd[r];
}

template <int N> __device__ __forceinline__ void multiply(float (&o)[N], const float (&factor)[2]) {
#pragma unroll
	for (int i = 0; i < N; i++) o[i] *= factor[i / 2 % 2];
}

template <class T> __device__ __forceinline__ void issueScores(float (&s)[T::BN / 2], uint32_t q, uint32_t k) {
	touch(s);
	wgmmaFence();
#pragma unroll
	for (int d = 0; d < T::D; d += 16)
		Wgmma<T::BN>::ss(s, q + matrixOffset(d / 64 * T::Q_PANEL + d % 64 * 2), k + matrixOffset(d / 64 * T::K_PANEL + d % 64 * 2), d != 0);
	wgmmaCommit();
	touch(s);
}

// As above, with Q in registers.
template <class T> __device__ __forceinline__ void issueScores(float (&s)[T::BN / 2], uint32_t (*q)[4], uint32_t k) {
	touch(s);
#pragma unroll
	for (int i = 0; i < T::D / 16; i++) touch(q[i]);
	wgmmaFence();
	Wgmma<T::BN>::template rsk<false>(s, q[0], k);
#pragma unroll
	for (int d = 16; d < T::D; d += 16)
		Wgmma<T::BN>::template rsk<true>(s, q[d / 16], k + matrixOffset(d / 64 * T::K_PANEL + d % 64 * 2));
	wgmmaCommit();
	touch(s);
}

template <class T> __device__ __forceinline__ void issueOutput(float (&o)[T::DV / 2], uint32_t (&P)[T::BN / 4], uint32_t v) {
	touch(o);
	touch(P);
	wgmmaFence();
#pragma unroll
	for (int key = 0; key < T::BN; key += 16)
		Wgmma<T::DV>::rs(o, P[key / 4], P[key / 4 + 1], P[key / 4 + 2], P[key / 4 + 3], v + matrixOffset(key * 128));
	wgmmaCommit();
	touch(o);
}

// Adds to O the non-finite elements of V of keys [from, end) to which the rows attend. The scan has replaced these
// elements by zeros in shared memory, so this function reads them from global memory.
template <class T, class Params, class Block>
__device__ void addNotFinite(float (&o)[T::DV / 2], const Params &p, const Block &w, int from, int end, int last0, int last1, int c, int first0 = 0) {
	const char *v = reinterpret_cast<const char *>(p.v.base) + 2 * ((T::PAGED ? 0 : keyBatchOf(w)) * p.v.batch + w.head / (p.Hq / p.Hkv) * p.v.head + 2 * c);
	for (int key = from; key < end; key++) {
		const char *row = v;
		if constexpr (T::PAGED) {
			const auto at = pagedKeyOf(p, w, key);
			if (uint32_t(at.page) >= uint32_t(p.pages)) continue;
			row += 2 * (at.page * p.v.batch + at.row * p.v.row);
		} else {
			row += 2 * (keyRowOf(w, key) * p.v.row);
		}
#pragma unroll
		for (int j = 0; j < T::DV / 8; j++) {
			if (8 * j >= p.Dv) break;
			const uint32_t two = *reinterpret_cast<const uint32_t *>(row + 16 * j), bad = notFinite<EXPONENTS>(two);
			if (bad == 0) continue;
#pragma unroll
			for (int half = 0; half < 2; half++) {
				if ((bad >> 16 * half & 0x8000) == 0) continue;
				// Infinity or NaN as float32: the sign, an exponent of ones, and a fraction that is not 0 for NaN.
				const uint32_t value = two >> 16 * half & 0xffff;
				const float x = __uint_as_float((value & 0x8000) << 16 | 0x7f800000 | ((value & ~EXPONENTS & 0x7fff) != 0 ? 1 << 22 : 0));
				if (key <= last0 && (!T::OPTIONS || key >= first0)) o[4 * j + half] += x;
				if (key <= last1 && (!T::OPTIONS || key >= first0 + 8)) o[4 * j + 2 + half] += x;
			}
		}
	}
}

// Stores zeros for a row block that attends to no key.
template <class T, class Params, class Block> __device__ __forceinline__ void finishEmpty(const Params &p, const Block &w, int rowInBlock) {
	const int c = threadIdx.x % 4;
#pragma unroll 1
	for (int row = w.row + rowInBlock, r = 0; r < 2 && row < endOf(p, w); r++, row += 8) {
		char *out = reinterpret_cast<char *>(p.o.base) + 2 * (w.batch * p.o.batch + w.head * p.o.head + row * p.o.row);
#pragma unroll 1
		for (int col = 8 * c; col < p.Dv; col += 32) *reinterpret_cast<uint4 *>(out + 2 * col) = make_uint4(0, 0, 0, 0);
		if (p.lse != 0 && c == 0) reinterpret_cast<float *>(p.lse)[(int64_t(w.batch) * p.Hq + w.head) * rowsOfLSE(p, w) + row] = -INFINITY;
	}
}

// Epilogue: divides O by the row sums, computes LSE and stores a row block.
template <class T, class Params, class Listed>
__device__ __forceinline__ void finish(float (&o)[T::DV / 2], const Rows &rows, const Params &p, const Listed &listed, int row, int last0, int last1, bool marked, int first0 = 0) {
	const int c = threadIdx.x % 4;
	const typename WorkTypes<T>::Numbers &w = listed;
	// Rows that attend to no key have O = 0 and LSE = -inf, and so have those whose scores are all -inf.
	const float sum0 = quadSum(rows.sum[0]), sum1 = quadSum(rows.sum[1]);
	const float scale0 = last0 < 0 || sum0 == 0 ? 0 : 1 / sum0, scale1 = last1 < 0 || sum1 == 0 ? 0 : 1 / sum1;
#pragma unroll
	for (int i = 0; i < T::DV / 2; i++) o[i] *= i & 2 ? scale1 : scale0;
	if (T::CAUSAL && marked) {
		if constexpr (T::OPTIONS) {
			const int end = (listed.top + 1) * T::BN;
			addNotFinite<T>(o, p, w, end - listed.masked * T::BN, min(end, w.keys), last0, last1, c, first0);
			addNotFinite<T>(o, p, w, lastTileOf(listed) * T::BN, min(end - listed.whole * T::BN, w.keys), last0, last1, c, first0);
		} else {
			const int end = w.steps * T::BN;
			addNotFinite<T>(o, p, w, end - w.masked * T::BN, min(end, p.Sk), last0, last1, c);
		}
	}
	if (p.lse != 0 && c == 0) {
		float *lse = reinterpret_cast<float *>(p.lse) + (int64_t(w.batch) * p.Hq + w.head) * rowsOfLSE(p, w) + row;
		auto total = [&](int r, float sum) {
			if (rows.isFar(r, fabsf(p.scale_log2))) return fmaf(rows.top[r], fabsf(p.scale), logf(sum));
			const float rowMax = rows.rowMax(r, fabsf(p.scale_log2));
			return fmaf(rowMax, p.unit_high, fmaf(rowMax, p.unit_low, logf(sum)));
		};
		if (row < endOf(p, w)) lse[0] = last0 < 0 ? -INFINITY : total(0, sum0);
		if (row + 8 < endOf(p, w)) lse[8] = last1 < 0 ? -INFINITY : total(1, sum1);
	}
	char *out = reinterpret_cast<char *>(p.o.base) + 2 * (w.batch * p.o.batch + w.head * p.o.head + row * p.o.row);
#pragma unroll
	for (int r = 0; r < 2; r++) {
#pragma unroll
		for (int j = 0; j < T::DV / 8; j += 4) {
			uint32_t x[4];
#pragma unroll
			for (int n = 0; n < 4; n++) x[n] = pack<BF16>(o[4 * (j + n) + 2 * r], o[4 * (j + n) + 2 * r + 1]);
			transposeQuad(x, c);
			if (row + 8 * r < endOf(p, w) && 8 * (j + c) < p.Dv)
				*reinterpret_cast<uint4 *>(out + 16 * r * p.o.row + 16 * (j + c)) = make_uint4(x[0], x[1], x[2], x[3]);
		}
	}
}

template <class T, class Params> __device__ __forceinline__ void consume(const Params &p, uint32_t shared, char *tiles, int group) {
	const int lane = threadIdx.x % 32, c = lane % 4;
	const int rowInBlock = 64 * group + threadIdx.x % 128 / 32 * 16 + lane / 4;
	const float scale = fabsf(p.scale_log2), threshold = RESCALE_THRESHOLD / scale;
	auto turnWait = [&] { if (T::PINGPONG) namedSync(TURN + group, 256); };
	auto turnPass = [&] { if (T::PINGPONG) namedArrive(TURN + (group + 1 == T::WARPGROUPS ? 0 : group + 1), 256); };
	auto release = [&](uint32_t bar) {
		__syncwarp();
		if (lane == 0) barrierArrive(bar);
	};
	Ring<T::Q_STAGES> q;
	Ring<T::STAGES> k, v; // position of the current tiles
	auto matrixQ = [&] { return matrixOffset(shared) + matrixOffset(T::Q + 64 * group * 128) + q.stage * matrixOffset(T::Q_BYTES); };
	auto matrixK = [&] { return matrixOffset(shared) + matrixOffset(T::K) + k.stage * matrixOffset(T::K_BYTES); };
	auto matrixV = [&] {
		return matrixOffset(shared) + (matrixOffset(T::V) + matrixPanels(T::K_PANEL)) + v.stage * matrixOffset(T::V_BYTES);
	};
	if (T::PINGPONG && group == T::WARPGROUPS - 1) turnPass();

	float s[T::BN / 2], o[T::DV / 2];
	uint32_t P[T::BN / 4];
	auto waitK = [&] { barrierWait(shared + T::K_FULL + 8 * k.stage, k.parity); };
	auto releaseK = [&](bool last) {
		release(shared + T::K_EMPTY + 8 * k.stage);
		k.advance();
		if (!last) return;
		release(shared + T::Q_EMPTY + 8 * q.stage);
		q.advance();
	};
	auto releaseV = [&] {
		release(shared + T::V_EMPTY + 8 * v.stage);
		v.advance();
	};

	typename WorkTypes<T>::Blocks walk(p, shared);
	typename WorkTypes<T>::Block w = {};
	int first = 0;       // first KV step of this warpgroup; its rows attend to no key of earlier steps
	uint32_t marked = 0; // not 0 if a stage of this row block was marked
	auto waitV = [&](int step) {
		barrierWait(shared + T::V_FULL + 8 * v.stage, v.parity);
		if (T::OPTIONS ? isMaskedStep(w, step) : T::CAUSAL && step < w.masked) marked |= *reinterpret_cast<const uint32_t *>(tiles + T::MARKS + 4 * v.stage);
	};
	// Waits for Q, releases the KV tiles that this warpgroup skips, and issues the first scores of a row block.
	auto begin = [&] {
		barrierWait(shared + T::Q_FULL + 8 * q.stage, q.parity);
		if (p.scale_log2 < 0) {
			// A negative scale is applied as |scale| with -Q.
			uint4 *mine = reinterpret_cast<uint4 *>(tiles + T::Q + q.stage * T::Q_BYTES + 64 * group * 128);
#pragma unroll 1
			for (int i = threadIdx.x % 128; i < T::PANELS * 512; i += 128) {
				uint4 &x = mine[i / 512 * (T::Q_PANEL / 16) + i % 512];
				x.x ^= 0x80008000, x.y ^= 0x80008000, x.z ^= 0x80008000, x.w ^= 0x80008000;
			}
			proxyFence();
			namedSync(GROUP + group, 128);
		}
		marked = 0;
#pragma unroll 1
		for (int i = 0; i < first; i++) {
			waitK();
			releaseK(false);
			if (i > 0) waitV(i - 1), releaseV();
			turnWait(), turnPass();
		}
		waitK();
		issueScores<T>(s, matrixQ(), matrixK());
		if (first > 0) waitV(first - 1), releaseV();
	};
	// Advances to the next row block that attends to any key. Stores zeros for blocks that attend to none.
	auto next = [&] {
		while (walk.next(w)) {
			if constexpr (!T::OPTIONS) { // which lists no such block
				if (T::CAUSAL && w.steps == 0) {
					finishEmpty<T>(p, w, rowInBlock);
					continue;
				}
			}
			const int row = rowOf(w) + 64 * group;
			first = firstStepOf<T>(p, w, row);
			return true;
		}
		return false;
	};
	auto complete = [&] {
		wgmmaWait<0>();
		touch(s);
		releaseK(first == lastStepOf(w));
	};
	bool more = next();
	if (more) begin(), complete();
	while (more) {
		Rows rows = {{-INFINITY, -INFINITY}, {0, 0}, {0, 0}, {0, 0}, false};
		// The last key that each row attends to. With options there are no registers for these numbers: they are computed where they are used.
		const int row = T::OPTIONS ? 0 : rowOf(w) + rowInBlock;
		const int last0 = T::OPTIONS ? 0 : lastKeyOf<T>(p, row);
		const int last1 = T::OPTIONS ? 0 : lastKeyOf<T>(p, int64_t(row) + 8);
		auto maskStep = [&](int i) {
			if constexpr (T::OPTIONS) {
				const ThreadRows x = threadRowsOf(w, rowInBlock);
				const int key = (w.top - i) * T::BN + 2 * c;
				mask(s, x.last0 - key, x.last1 - key, x.first0 - key);
			} else {
				mask(s, last0 - (w.top - i) * T::BN - 2 * c, last1 - (w.top - i) * T::BN - 2 * c);
			}
		};
		auto store = [&](const auto &of, bool mark) {
			if constexpr (T::OPTIONS) {
				const ThreadRows x = threadRowsOf(of, rowInBlock);
				finish<T>(o, rows, p, of, x.row, x.last0, x.last1, mark, x.first0);
			} else {
				finish<T>(o, rows, p, of, row, last0, last1, mark);
			}
			releaseBlock<T>(shared, of);
		};
#pragma unroll
		for (int i = 0; i < T::DV / 2; i++) o[i] = 0;
		if (T::OPTIONS ? isMaskedStep(w, first) : T::CAUSAL ? first < w.masked : w.steps * T::BN > p.Sk) maskStep(first);
		softmaxP(s, rows, scale, threshold, [] {}); // O is 0
		packP(s, P, rows);

		auto step = [&](int i, bool masked) {
			waitK();
			turnWait();
			issueScores<T>(s, matrixQ(), matrixK());
			waitV(i - 1);
			issueOutput<T>(o, P, matrixV());
			turnPass();
			wgmmaWait<1>();
			touch(s);
			releaseK(i == lastStepOf(w));
			if (masked) maskStep(i);
			softmaxP(s, rows, scale, threshold, [&] {
				wgmmaWait<0>();
				touch(o);
				multiply(o, rows.factor);
			});
			wgmmaWait<0>();
			touch(o);
			releaseV();
			packP(s, P, rows);
		};
		int i = first + 1, masked = w.masked;
		do { // with options the left end of the window crosses the last steps
			if (T::CAUSAL) {
#pragma unroll 1
				for (; i < masked; i++) step(i, true);
			}
#pragma unroll 1
			for (; i < wholeEndOf(w); i++) step(i, false);
			masked = w.steps;
		} while (T::OPTIONS && i < w.steps);
		waitV(lastStepOf(w));
		const typename WorkTypes<T>::Block now = w;
		const bool mark = marked != 0;
		more = next();
		issueOutput<T>(o, P, matrixV());
		// With two Q buffers, the first scores of the next row block overlap with this epilogue.
		if (T::Q_STAGES == 2 && more && first == 0) {
			const int stage = v.stage;
			v.advance();
			begin();
			wgmmaWait<1>();
			touch(o);
			release(shared + T::V_EMPTY + 8 * stage);
			store(now, mark);
			complete();
		} else {
			wgmmaWait<0>();
			touch(o);
			releaseV();
			store(now, mark);
			if (more) begin(), complete();
		}
	}
}
