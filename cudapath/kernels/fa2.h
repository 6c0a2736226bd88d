// FlashAttention-2 on mma.sync, for sm_80 and up.
//
// A CTA owns Rows = Warps * MFragments * 16 query rows of one head and loops over K and V in KV tiles of Cols
// keys. A warp owns MFragments * 16 of the rows. It keeps their scores, row statistics and O in registers, so
// warps exchange no partial results. Q is in registers if they suffice. Otherwise it is in shared memory and
// every KV step reads it again. Q reaches the registers through shared memory or, with QDirect, without it.
// cp.async copies K and V into a ring of Stages tiles in shared memory. Rows of a tile are swizzled in chunks of
// 16 bytes, so that ldmatrix has no bank conflicts.
//
// The loop over full tiles has no CTA-wide barrier. Each stage has two mbarriers: `landed` counts threads whose
// copies have arrived, `free` counts warps that have finished reading. A warp waits for `free` after computing
// its scores, when the other warps have most likely finished the previous tile. It then starts its copies of a
// later tile. Causal tiles with masked keys add a __syncthreads that checks V for NaN and infinity.
//
// A KV tile is processed in steps of Step keys: S = Q K^T, P = exp2(S * scale - row_max), O += P V, and the row
// sum of P. row_max is lagged: it is updated only if an element of P exceeds the sum of all earlier ones, or
// 2^RescaleThreshold. The test reads the packed P, one instruction for two to four elements. If it fails, the
// warp repeats the step with exact maxima.
//
// The new row_max is the largest score plus an integer that brings the row sum near 1. Two properties follow. One
// bound serves all rows of a lane. P of the largest score is a power of two, so rounding P to 16 bits cannot
// change it. O is divided by the sum of P before rounding, so otherwise the rounding would show in O where one
// key dominates its row. Only a row's own scores update its row_max, so its bits do not depend on other rows.
//
// Tiles with and without masked keys have separate loops. In a call with options (C::General, fa2_general.h) one loop has both.
#pragma once
#include "fa2_general.h"
#include "fa2_tile.h"
#include "not_finite.h"
#include "quad.h"
#include <limits.h>

namespace fa2 {

// The rows that a CTA computes.
struct Task {
	int batch, head, row;
};

// Maps a CTA to its rows. Row blocks of causal kernels differ in the number of keys. The longer three quarters run
// first. They are ordered in sections of a few heads whose K and V fit in L2, and from long to short within a
// section. The shortest quarter of all heads runs last and fills the multiprocessors at the end.
template <class C> __device__ __forceinline__ Task find_task(const typename C::Params &p) {
	if constexpr (C::General) { // the rows with the most keys under a causal mask first
		return {p.first_batch + int(blockIdx.z), p.first_head + int(blockIdx.y), int(gridDim.x - 1 - blockIdx.x) * C::Rows};
	} else if constexpr (!C::Causal) {
		return {int(blockIdx.z), int(blockIdx.y), int(blockIdx.x) * C::Rows};
	}
	const uint32_t heads = gridDim.y * gridDim.z, blocks = gridDim.x, brief = blocks / 4;
	const uint32_t bytes = uint32_t(min(int64_t(p.Sk) * (C::D + C::Dv) * 2, int64_t(1) << 24));
	const uint32_t fit = min(heads, (1u << 24) / bytes * (p.Hq / p.Hkv)), sections = (heads + fit - 1) / fit;
	const uint32_t linear = blockIdx.x + blocks * (blockIdx.y + gridDim.y * blockIdx.z);
	const uint32_t before = heads * (blocks - brief); // number of the longer blocks
	const bool late = linear >= before;
	const uint32_t share = late ? heads : (heads + sections - 1) / sections, bottom = late ? brief : blocks;
	const uint32_t among = late ? linear - before : linear, size = share * (late ? brief : blocks - brief);
	const uint32_t section = among / size, first = section * share;
	const uint32_t rest = among - section * size, width = min(share, heads - first);
	const uint32_t head = first + rest % width;
	return {int(head / gridDim.y), int(head % gridDim.y), int(bottom - 1 - rest / width) * C::Rows};
}

template <class C> struct Forward {
	using E = typename C::Element;
	static constexpr int MFragments = C::MFragments, D = C::D, Dv = C::Dv;
	static constexpr int RescaleThreshold = 8; // 2^8 does not overflow f16, nor do its sums overflow float32
	// A factor that makes a number smaller even after rounding to E.
	static constexpr float Less = E::ones == Half::ones ? 1 - 0x1p-9f : 1 - 0x1p-6f;
	static constexpr float Near = 2048; // up to this row max its rounding does not show in P and O
	template <int Step> using Scores = float[MFragments][Step / 8][4];
	template <int Step> using ProbFragments = uint32_t[MFragments][Step / 16][4]; // P as the A operand of P V

	const typename C::Params &p;
	uint32_t shared;
	Task task;
	Bounds<C> bounds; // of a call with options
	int lane, warp;
	float scale;               // converts scores to log2 units; above 0
	uint32_t q_at, k_at, v_at; // shared-memory addresses for ldmatrix: the lane's row, first 16-wide slice, first stage
	uint32_t q[MFragments][C::QRegs ? C::QRegs : 1][4];
	float o[MFragments][Dv / 8][4];
	float l[MFragments][2];           // row sums of P over the lane's columns
	float rounded_sum[MFragments][4]; // with RoundedSums: row sums of the rounded P, in the layout of o
	float row_max[MFragments][2];     // lagged row max
	uint32_t most;          // packed, upper half: while all P of the lane are below it, no row updates its row max
	uint32_t unset;         // bit 2 i + j: row [i][j] has seen no unmasked score yet
	bool exact;             // the next step computes exact maxima
	bool far;               // a row of the warp has a large row max: see exp_score
	int limit[MFragments][2]; // last key that a row attends to, relative to the lane's first column

	// The ring: index of the current tile, number of tiles, offset of the current stage, and its mbarrier parity.
	int tile, tiles, stage_at, turn;
	// The next tile to copy: global addresses of the thread's first chunk, number of tiles left, offset of the
	// destination stage, rows left in K and V, and the least number of rows left with which copies need no test.
	const char *next_k, *next_v;
	int todo, next_at, next_left, whole_from;
	uint32_t k_slot, v_slot; // shared-memory addresses of the thread's first chunk, first stage

	// The mbarriers of the stage at an offset.
	__device__ __forceinline__ uint32_t landed(int at) const { return shared + C::BarriersAt + at / C::StageBytes * 16; }
	__device__ __forceinline__ uint32_t free(int at) const { return landed(at) + 8; }

	static __device__ __forceinline__ int following(int at) { return at == (C::Stages - 1) * C::StageBytes ? 0 : at + C::StageBytes; }

	using K = TiledCopy<C, D, C::Cols>;
	using V = TiledCopy<C, Dv, C::Cols>;

	// Starts the thread's copies of the next tile in a call with options. Where K and V are paged, each key has its page.
	__device__ __forceinline__ void copy_keys() {
		static_assert(K::PassRows == V::PassRows, "");
		const bool unaligned = p.unaligned != 0;
		const int keys = bounds.keys.used, first = bounds.keys.used - next_left + K::row();
#pragma unroll
		for (int i = 0; i < K::Passes; i++) {
			const int key = first + i * K::PassRows;
			const bool there = key < keys;
			int64_t page = 0, row = there ? key : 0;
			if (p.table != 0) {
				const int n = there ? ((const int32_t *)p.table)[int64_t(task.batch) * p.table_stride + key / p.page_size] : 0;
				page = uint32_t(n) < uint32_t(p.pages) ? n : 0;
				row = there ? key % p.page_size : 0;
			}
			const char *from_k = next_k + (page * p.k.batch + row * p.k.row) * 2, *from_v = next_v + (page * p.v.batch + row * p.v.row) * 2;
#pragma unroll
			for (int g = 0; g < K::Groups; g++)
				copy_chunk(k_slot + next_at + i * K::PassRows * D * 2 + g * K::Lanes * 16, from_k + g * K::Lanes * 16, there, (g * K::Lanes + K::lane()) * 8, p.D, unaligned);
#pragma unroll
			for (int g = 0; g < V::Groups; g++)
				copy_chunk(v_slot + next_at + i * V::PassRows * Dv * 2 + g * V::Lanes * 16, from_v + g * V::Lanes * 16, there, (g * V::Lanes + V::lane()) * 8, p.Dv, unaligned);
		}
		if (unaligned) barrier_arrive(landed(next_at));
		else barrier_arrive_copies(landed(next_at));
		next_left -= C::Cols;
		todo--;
		next_at = following(next_at);
	}

	// Starts the thread's copies of the next tile.
	__device__ __forceinline__ void copy_tile() {
		if (!C::Any && next_left >= whole_from) {
			next_k = K::template fetch<true>(k_slot + next_at, next_k, p.k.row * 2, next_left, p.D);
			next_v = V::template fetch<true>(v_slot + next_at, next_v, p.v.row * 2, next_left, p.Dv);
		} else {
			next_k = K::template fetch<false>(k_slot + next_at, next_k, p.k.row * 2, next_left, p.D);
			next_v = V::template fetch<false>(v_slot + next_at, next_v, p.v.row * 2, next_left, p.Dv);
		}
		if constexpr (C::Any) {
			barrier_arrive(landed(next_at));
		} else {
			barrier_arrive_copies(landed(next_at));
		}
		next_left -= C::Cols;
		todo--;
		next_at = following(next_at);
	}

	// Starts the thread's copies of the next tile, if there is one.
	__device__ __forceinline__ void prefetch() {
		if (todo <= 0) return;
		if constexpr (C::General) {
			copy_keys();
		} else {
			copy_tile();
		}
	}

	// Waits until every warp has read the previous tile, then prefetches a later tile into its stage.
	__device__ __forceinline__ void refill() {
		if (todo <= 0) return;
		if (tile > 0) barrier_wait(free(next_at), turn ^ (stage_at == 0));
		prefetch();
	}

	template <int Step> __device__ __forceinline__ void scores(Scores<Step> &s, uint32_t kt) {
#pragma unroll
		for (int i = 0; i < MFragments; i++)
#pragma unroll
			for (int n = 0; n < Step / 8; n++)
#pragma unroll
				for (int e = 0; e < 4; e++) s[i][n][e] = 0;
#pragma unroll
		for (int d = 0; d < D / 16; d++) {
			uint32_t a[MFragments][4];
#pragma unroll
			for (int i = 0; i < MFragments; i++) {
				if (d < C::QRegs) {
#pragma unroll
					for (int e = 0; e < 4; e++) a[i][e] = q[i][d][e];
				} else {
					ldmatrix(a[i], slice_at<D>(q_at, d) + i * 16 * D * 2);
				}
			}
#pragma unroll
			for (int n = 0; n < Step / 16; n++) {
				uint32_t b[4];
				ldmatrix(b, kt + slice_at<D>(k_at, d) + n * 16 * D * 2);
#pragma unroll
				for (int i = 0; i < MFragments; i++) {
					E::mma(s[i][2 * n], a[i], b[0], b[1]);
					E::mma(s[i][2 * n + 1], a[i], b[2], b[3]);
				}
			}
		}
	}

	// Excludes the keys of a step, which begins at key `col`, that a row does not attend to.
	template <int Step> __device__ __forceinline__ void mask_general(Scores<Step> &s, int col) {
		const int at = first_row() - col - lane % 4 * 2, to = at + bounds.right, from = at - bounds.left, end = bounds.keys.used - col - lane % 4 * 2;
#pragma unroll
		for (int i = 0; i < MFragments; i++)
#pragma unroll
			for (int n = 0; n < Step / 8; n++)
#pragma unroll
				for (int e = 0; e < 4; e++) {
					const int key = n * 8 + e % 2, past = key - i * 16 - e / 2 * 8;
					if (past > to || past < from || key >= end) s[i][n][e] = -INFINITY;
				}
	}

	template <int Step> __device__ __forceinline__ void mask(Scores<Step> &s, int col) {
#pragma unroll
		for (int i = 0; i < MFragments; i++)
#pragma unroll
			for (int n = 0; n < Step / 8; n++)
#pragma unroll
				for (int e = 0; e < 4; e++)
					if (limit[i][e / 2] - col < n * 8 + e % 2) s[i][n][e] = -INFINITY;
	}

	// Returns the element of P for a score.
	//
	// P of the largest score must be exactly a power of two. Otherwise rounding P changes O by a unit in the last
	// place if one key dominates the row, since row sums are of P before rounding. row_max is a rounded product. For
	// |row_max| above Near ("far" rows) fma, which does not round score * scale, would miss the power of two, so
	// the product is rounded first.
	template <bool Far> __device__ __forceinline__ float exp_score(float score, float less) {
		const bool separate = Far && fabsf(less) > Near;
		return exp2Approx(separate ? __fadd_rn(__fmul_rn(score, scale), -less) : fmaf(score, scale, -less));
	}

	// Returns the largest element of P that leaves the row max of a row with this sum unchanged.
	static __device__ __forceinline__ float bound(float sum) {
		constexpr float Most = 1 << RescaleThreshold;
		return C::RoundedSums ? Most : fminf(sum, Most);
	}

	// Updates `most`. Row sums only grow between updates of the row max, so bounds from older sums are lower and safe.
	__device__ __forceinline__ void settle() {
		float least = INFINITY;
#pragma unroll
		for (int i = 0; i < MFragments; i++)
#pragma unroll
			for (int j = 0; j < 2; j++) least = fminf(least, bound(quadSum(l[i][j])));
		most = E::pack(0, least);
	}

	// Reports whether an element of P exceeds the bound of its own row. `most` is the least bound of the rows of a lane.
	template <int Step> __device__ __forceinline__ bool heavy(const ProbFragments<Step> &w) {
		bool found = false;
#pragma unroll
		for (int i = 0; i < MFragments; i++) {
#pragma unroll
			for (int j = 0; j < 2; j++) {
				uint32_t top = 0;
#pragma unroll
				for (int c = 0; c < Step / 16; c++) top = E::max(E::max(top, w[i][c][j]), w[i][c][2 + j]);
				found |= fmaxf(E::low(top), E::low(top >> 16)) > bound(quadSum(l[i][j])) * Less;
			}
		}
		return __any_sync(~0u, found);
	}

	// Updates the row max of rows that have none yet or whose P exceeds the bound, and rescales their sums and O.
	template <int Step> __device__ __forceinline__ void update_row_max(const Scores<Step> &s) {
		bool any = false;
#pragma unroll
		for (int i = 0; i < MFragments; i++) {
#pragma unroll
			for (int j = 0; j < 2; j++) {
				float top = -INFINITY;
#pragma unroll
				for (int n = 0; n < Step / 8; n++) top = fmaxf(top, fmaxf(s[i][n][2 * j], s[i][n][2 * j + 1]));
				top = quadMax(top);
				const uint32_t bit = 1u << (2 * i + j);
				const bool fresh = unset & bit;
				const float before = quadSum(l[i][j]);
				float next = top * scale, sum = 0;
				if constexpr (!C::RoundedSums) { // the row sum after this step if the row max is updated
#pragma unroll
					for (int n = 0; n < Step / 8; n++)
						sum += exp2Approx(fmaf(s[i][n][2 * j], scale, -next)) + exp2Approx(fmaf(s[i][n][2 * j + 1], scale, -next));
					sum = quadSum(sum) + (fresh ? 0 : before * exp2Approx(row_max[i][j] - next));
				}
				if (fresh ? top > -INFINITY : exp_score<true>(top, row_max[i][j]) > bound(before)) {
					// For a scale of 0 the host passes a tiny number. The integer would then change LSE, so none is added.
					if (!C::RoundedSums && scale > 0x1p-100f) {
						const float lift = float((__float_as_int(sum * 0x1.6ap0f) >> 23) - 127), lifted = next + lift;
						if (fabsf(next) <= Near || lifted - next == lift) next = lifted;
					}
					const float factor = fresh ? 1 : exp2Approx(row_max[i][j] - next);
					row_max[i][j] = next;
					unset &= ~bit;
					l[i][j] *= factor;
					if constexpr (C::RoundedSums) rounded_sum[i][2 * j] *= factor;
#pragma unroll
					for (int n = 0; n < Dv / 8; n++) {
						o[i][n][2 * j] *= factor;
						o[i][n][2 * j + 1] *= factor;
					}
				}
				any |= fabsf(row_max[i][j]) > Near;
			}
		}
		far = __any_sync(~0u, any);
		if (!C::RoundedSums) most = E::pack(0, 0x1.6p-1f); // below any row sum after an update
	}

	// Computes P from S: packed P, the lane's row sums, and the largest P of the lane in each half of the result.
	template <int Step, bool Far> __device__ __forceinline__ uint32_t softmax_p(const Scores<Step> &s, ProbFragments<Step> &w, float (&sum)[MFragments][2]) {
		uint32_t top = 0;
#pragma unroll
		for (int i = 0; i < MFragments; i++) {
			sum[i][0] = sum[i][1] = 0;
#pragma unroll
			for (int n = 0; n < Step / 8; n++) {
				float e[4];
#pragma unroll
				for (int k = 0; k < 4; k++) e[k] = exp_score<Far>(s[i][n][k], row_max[i][k / 2]);
				const uint32_t first = E::pack(e[0], e[1]), second = E::pack(e[2], e[3]);
				w[i][n / 2][n % 2 * 2] = first;
				w[i][n / 2][n % 2 * 2 + 1] = second;
				top = E::max(E::max(top, first), second);
				sum[i][0] += e[0] + e[1];
				sum[i][1] += e[2] + e[3];
			}
		}
		return top;
	}

	template <bool Masked, int Step> __device__ __forceinline__ void step(uint32_t kt, uint32_t vt, int col, bool first) {
		ProbFragments<Step> w;
		float sum[MFragments][2];
		bool again;
		do {
			Scores<Step> s;
			scores<Step>(s, kt);
			if constexpr (C::General) {
				if (p.changes) change_scores(p, s, task.batch, task.head, first_row() + bounds.offset - col - lane % 4 * 2);
				if constexpr (TakesSlots<C>)
					if (p.bias != 0) add_bias(p, bounds, s, task.batch, task.head, first_row(), col + lane % 4 * 2);
				if (bounds.masked) mask_general<Step>(s, col);
				if constexpr (TakesSlots<C>)
					if (p.mask != 0) take_mask(p, bounds, s, task.batch, task.head, first_row(), col + lane % 4 * 2);
				if (p.max_logits != 0) raise_top(bounds.top, s, first_row(), bounds.rows.used);
			} else if constexpr (Masked) {
				mask<Step>(s, col);
			}
			if (exact) update_row_max<Step>(s);
			const uint32_t top = far ? softmax_p<Step, true>(s, w, sum) : softmax_p<Step, false>(s, w, sum);
			const uint32_t from = C::RoundedSums ? E::pack(0, 1 << RescaleThreshold) : most;
			const bool over = exact ? unset != 0 : top << 16 >= from || top >= from;
			again = !exact;
			exact = __any_sync(~0u, over);
			again &= exact;
			if (!C::RoundedSums && again) {
				again = exact = heavy<Step>(w);
				settle();
			}
		} while (again);
		if (first) refill();
#pragma unroll
		for (int i = 0; i < MFragments; i++) l[i][0] += sum[i][0], l[i][1] += sum[i][1];
		if constexpr (TakesSlots<C>) {
			if constexpr (C::RoundedSums) { // sums are without dropout
#pragma unroll
				for (int c = 0; c < Step / 16; c++)
#pragma unroll
					for (int i = 0; i < MFragments; i++) E::mma(rounded_sum[i], w[i][c], E::ones, E::ones);
			}
			if (p.drop_threshold != 0) drop(p, w, uint32_t(task.batch) * p.Hq + task.head, first_row(), col + lane % 4 * 2, lane);
		}
#pragma unroll
		for (int c = 0; c < Step / 16; c++) {
			if constexpr (C::RoundedSums && !TakesSlots<C>) {
#pragma unroll
				for (int i = 0; i < MFragments; i++) E::mma(rounded_sum[i], w[i][c], E::ones, E::ones);
			}
#pragma unroll
			for (int n = 0; n < Dv / 16; n++) {
				uint32_t b[4];
				ldmatrix_transposed(b, vt + slice_at<Dv>(v_at, n) + c * 16 * Dv * 2);
#pragma unroll
				for (int i = 0; i < MFragments; i++) {
					E::mma(o[i][2 * n], w[i][c], b[0], b[1]);
					E::mma(o[i][2 * n + 1], w[i][c], b[2], b[3]);
				}
			}
		}
	}

	// Whether elements of O are stored one by one.
	__device__ __forceinline__ bool unaligned() const {
		if constexpr (C::General) return p.unaligned != 0;
		else return C::Any;
	}

	// The rows of the sequence.
	__device__ __forceinline__ int row_count() const {
		if constexpr (C::General) return bounds.rows.used;
		else return p.Sq;
	}

	// The lane's first row.
	__device__ __forceinline__ int first_row() const { return task.row + warp * C::WarpRows + lane / 4; }

	// Reports whether the thread's chunks of a V tile hold an infinity or a NaN.
	static __device__ __forceinline__ bool odd_values(uint32_t vt) {
		uint32_t found = 0;
		TiledCopy<C, Dv, C::Cols>::each(vt, [&](uint32_t at) {
			const uint4 v = loadShared(at);
			found |= notFinite<E::infinity>(v);
		});
		return found;
	}

	// A masked key has P = 0, but 0 times an infinity or a NaN of V is NaN. If a V tile has such values, they are
	// added to O of the rows that attend to their keys, and replaced by 0 before P V.
	__device__ __forceinline__ void take_odd_values(uint32_t vt, int col) {
#pragma unroll 1
		for (int c = 0; c < C::Cols; c++) {
#pragma unroll
			for (int n = 0; n < Dv / 8; n++) {
				const uint32_t pair = loadSharedWord(vt + chunk_at<Dv>(c, n) + lane % 4 * 4);
				const uint32_t found = notFinite<E::infinity>(pair);
				if (found) {
					const float low = found & 0x8000 ? E::low(pair) : 0, high = found >> 31 ? E::low(pair >> 16) : 0;
#pragma unroll
					for (int i = 0; i < MFragments; i++)
#pragma unroll
						for (int j = 0; j < 2; j++) {
							bool attends;
							if constexpr (C::General) attends = bounds.attends(p, task.batch, task.head, first_row() + i * 16 + j * 8, col + c);
							else attends = limit[i][j] + lane % 4 * 2 >= col + c;
							if (attends) {
								o[i][n][2 * j] += low;
								o[i][n][2 * j + 1] += high;
							}
						}
				}
			}
		}
		__syncthreads();
		TiledCopy<C, Dv, C::Cols>::each(vt, [&](uint32_t at) {
			uint4 v = loadShared(at);
			uint32_t *word = &v.x;
#pragma unroll
			for (int i = 0; i < 4; i++) {
				const uint32_t found = notFinite<E::infinity>(word[i]);
				word[i] &= ~((found & 0x8000 ? 0xffff : 0) | (found >> 31 ? 0xffff0000 : 0));
			}
			storeShared(at, v);
		});
		__syncthreads();
	}

	// Releases the current stage and advances to the next tile.
	__device__ __forceinline__ void leave() {
		__syncwarp();
		if (lane == 0) barrier_arrive(free(stage_at));
		tile++;
		stage_at = following(stage_at);
		turn ^= stage_at == 0;
	}

	// Loads Q from global memory as the A operand. Elements past Sq and p.D are zeros. A negative scale moves its sign to Q.
	__device__ __forceinline__ void load_q(const char *from) {
		const uint32_t flip = p.scale_log2 < 0 ? 0x80008000 : 0;
#pragma unroll
		for (int i = 0; i < MFragments; i++)
#pragma unroll
			for (int d = 0; d < C::QRegs; d++)
#pragma unroll
				for (int e = 0; e < 4; e++) {
					const int row = warp * C::WarpRows + i * 16 + e % 2 * 8 + lane / 4, col = d * 16 + e / 2 * 8 + lane % 4 * 2;
					const bool there = task.row + row < p.Sq && col < p.D;
					q[i][d][e] = there ? *(const uint32_t *)(from + (row * p.q.row + col) * 2) ^ flip : 0;
				}
	}

	// Copies Q and the first KV tiles in a call with options, as start does.
	__device__ __forceinline__ void start_general() {
		const int kv = task.head / (p.Hq / p.Hkv), batch_q = p.cu_q != 0 ? 0 : task.batch, batch_k = p.cu_k != 0 || p.table != 0 ? 0 : task.batch;
		next_k = (const char *)p.k.base + (batch_k * p.k.batch + kv * p.k.head + bounds.keys.first * p.k.row) * 2 + K::lane() * 16;
		next_v = (const char *)p.v.base + (batch_k * p.v.batch + kv * p.v.head + bounds.keys.first * p.v.row) * 2 + V::lane() * 16;
		next_left = bounds.keys.used - bounds.first_key;
		using Q = TiledCopy<C, D, C::Rows>;
		const char *from = (const char *)p.q.base + (batch_q * p.q.batch + task.head * p.q.head + int64_t(bounds.rows.first + task.row) * p.q.row) * 2 + Q::lane() * 16;
#pragma unroll
		for (int i = 0; i < Q::Passes; i++) {
			const int row = Q::row() + i * Q::PassRows;
			const bool there = task.row + row < bounds.rows.used;
#pragma unroll
			for (int g = 0; g < Q::Groups; g++)
				copy_chunk(shared + C::QAt + Q::slot() + i * Q::PassRows * D * 2 + g * Q::Lanes * 16, from + (there ? row : 0) * p.q.row * 2 + g * Q::Lanes * 16, there,
					   (g * Q::Lanes + Q::lane()) * 8, p.D, p.unaligned);
		}
	}

	__device__ __forceinline__ void start(int end) {
		const int kv = task.head / (p.Hq / p.Hkv);
		const char *from_q = (const char *)p.q.base + (task.batch * p.q.batch + task.head * p.q.head + task.row * p.q.row) * 2;
		next_k = (const char *)p.k.base + (task.batch * p.k.batch + kv * p.k.head) * 2;
		next_v = (const char *)p.v.base + (task.batch * p.v.batch + kv * p.v.head) * 2;
		next_left = p.Sk;
		whole_from = p.D == D && p.Dv == Dv ? C::Cols : INT_MAX;
		next_k += K::row() * p.k.row * 2 + K::lane() * 16;
		next_v += V::row() * p.v.row * 2 + V::lane() * 16;
		k_slot = heldValue(shared + K::slot());
		v_slot = D == Dv ? k_slot + C::KBytes : heldValue(shared + C::KBytes + V::slot());
		if constexpr (C::General) end = max(end - bounds.first_key, 0);
		tiles = (end + C::Cols - 1) / C::Cols;
		todo = tiles;
		tile = stage_at = next_at = turn = 0;
		if (threadIdx.x == 0) {
#pragma unroll
			for (int i = 0; i < C::Stages; i++) {
				barrier_init(landed(i * C::StageBytes), C::Threads);
				barrier_init(free(i * C::StageBytes), C::Warps);
			}
		}

		if constexpr (C::General) {
			start_general();
		} else if constexpr (C::QDirect) {
			load_q(from_q);
		} else {
			using Q = TiledCopy<C, D, C::Rows>;
			from_q += Q::row() * p.q.row * 2 + Q::lane() * 16;
			Q::template fetch<false>(shared + C::QAt + Q::slot(), from_q, p.q.row * 2, p.Sq - task.row, p.D);
		}
		__syncthreads(); // the mbarriers are initialized
		prefetch();
		if constexpr (!C::QPasses) {
#pragma unroll
			for (int i = 1; i < C::Stages - 1; i++) prefetch();
		}
	}

	__device__ __forceinline__ void run() {
		warp = threadIdx.x / 32;
		lane = threadIdx.x % 32;
		task = find_task<C>(p);

		// All rows of the CTA attend to keys [0, open). No row attends to keys from `end` on.
		int open = p.Sk, end = p.Sk;
		if constexpr (C::General) {
			bounds.of_sequence(p, task.batch, task.head);
			if (task.row >= bounds.rows.used) return;
			bounds.of_rows(task.row);
			end = bounds.end;
		}
		if constexpr (C::Causal) {
			const int64_t first = int64_t(task.row) + p.causal_offset + 1;
			const int64_t last = int64_t(min(task.row + C::Rows, p.Sq)) + p.causal_offset;
			open = int(min(max(first, int64_t(0)), int64_t(p.Sk)));
			end = int(min(max(last, int64_t(0)), int64_t(p.Sk)));
		}
		start(end);

		q_at = heldValue(shared + C::QAt + warp * C::WarpRows * D * 2 + chunk_at<D>(lane % 16, lane / 16));
		k_at = heldValue(shared + chunk_at<D>(lane % 8 + lane / 16 * 8, lane / 8 % 2));
		v_at = heldValue(shared + C::KBytes + chunk_at<Dv>(lane % 16, lane / 16));
		scale = fabsf(p.scale_log2);
		unset = (1u << (2 * MFragments)) - 1;
		exact = true;
		far = false;
		const int row = task.row + warp * C::WarpRows + lane / 4;
#pragma unroll
		for (int i = 0; i < MFragments; i++) {
#pragma unroll
			for (int j = 0; j < 2; j++) {
				row_max[i][j] = l[i][j] = rounded_sum[i][j] = rounded_sum[i][2 + j] = 0;
				int64_t last = p.Sk - 1;
				if constexpr (C::Causal) last = min(last, int64_t(row) + i * 16 + j * 8 + p.causal_offset);
				limit[i][j] = int(max(last, int64_t(-1))) - lane % 4 * 2;
			}
#pragma unroll
			for (int n = 0; n < Dv / 8; n++)
#pragma unroll
				for (int e = 0; e < 4; e++) o[i][n][e] = 0;
		}

		if (!C::QDirect && p.scale_log2 < 0) { // the sign moves to Q
			copy_wait_all();
			TiledCopy<C, D, C::Rows>::each(shared + C::QAt, [&](uint32_t at) {
				uint4 v = loadShared(at);
				v.x ^= 0x80008000, v.y ^= 0x80008000, v.z ^= 0x80008000, v.w ^= 0x80008000;
				storeShared(at, v);
			});
			__syncthreads();
		}
		if constexpr (C::QRegs > 0 && !C::QDirect) {
			if (tiles > 0) barrier_wait(landed(0), 0); // Q was copied before the tile, so it has landed too
#pragma unroll
			for (int i = 0; i < MFragments; i++)
#pragma unroll
				for (int d = 0; d < C::QRegs; d++) ldmatrix(q[i][d], slice_at<D>(q_at, d) + i * 16 * D * 2);
			if constexpr (C::QPasses) {
				__syncthreads();
#pragma unroll
				for (int i = 1; i < C::Stages - 1; i++) prefetch();
			}
		}

		if constexpr (C::General) {
			walk_general();
			if (p.max_logits != 0) store_top(p, task.head, bounds.top, lane); // in finish, in front of a loop, nvcc 12.4 would not unroll it
		} else {
			walk(open);
		}
		copy_wait_all(); // without tiles nothing has waited for the copy of Q
		__syncthreads();
		finish(row);
	}

	// The loop over all tiles. All rows attend to keys [0, open).
	__device__ __forceinline__ void walk(int open) {
		const int open_tiles = open / C::Cols;
		while (tile < open_tiles) {
			barrier_wait(landed(stage_at), turn);
			const int at = stage_at;
#pragma unroll 1
			for (int c = 0; c < C::Cols; c += C::Step) step<false, C::Step>(at + c * D * 2, at + c * Dv * 2, 0, c == 0);
			leave();
		}
		while (tile < tiles) {
			const int col = tile * C::Cols;
			const int64_t reach = int64_t(task.row) + (warp + 1) * C::WarpRows - 1 + p.causal_offset;
			barrier_wait(landed(stage_at), turn);
			refill();
			if constexpr (C::Causal) {
				const uint32_t vt = shared + stage_at + C::KBytes;
				if (__syncthreads_or(odd_values(vt))) take_odd_values(vt, col);
			}
			// The warp stops at the first step whose keys none of its rows attend to.
			const int at = stage_at;
#pragma unroll 1
			for (int c = 0; c < C::Cols; c += C::MaskedStep) {
				if (C::Causal && reach < col + c) break;
				step<true, C::MaskedStep>(at + c * D * 2, at + c * Dv * 2, col + c, false);
			}
			leave();
		}
	}

	// The same for a call with options.
	__device__ __forceinline__ void walk_general() {
		const int row = task.row + warp * C::WarpRows, to = row + C::WarpRows - 1 + bounds.right, from = row - bounds.left; // keys of the warp
		while (tile < tiles) {
			const int col = bounds.first_key + tile * C::Cols, at = stage_at;
			bounds.masked = TakesSlots<C> && p.mask != 0 || col < bounds.open || col + C::Cols > bounds.close;
			barrier_wait(landed(at), turn);
			if (bounds.masked) {
				refill();
				const uint32_t vt = shared + at + C::KBytes;
				if (__syncthreads_or(odd_values(vt))) take_odd_values(vt, col);
			}
#pragma unroll 1
			for (int c = 0; c < C::Cols; c += C::Step) {
				const bool first = !bounds.masked && c == 0;
				if (row < bounds.rows.used && !(bounds.masked && (col + c > to || col + c + C::Step <= from))) {
					step<false, C::Step>(at + c * D * 2, at + c * Dv * 2, col + c, first);
				} else if (first) {
					refill();
				}
			}
			leave();
		}
	}

	__device__ __forceinline__ void finish(int row) {
		const uint32_t tile = shared + warp * C::WarpRows * Dv * 2;
#pragma unroll
		for (int i = 0; i < MFragments; i++) {
#pragma unroll
			for (int j = 0; j < 2; j++) {
				const float sum = quadSum(l[i][j]);
				float inverse = sum == 0 ? 0 : 1 / (C::RoundedSums ? rounded_sum[i][2 * j] : sum);
				const int r = row + i * 16 + j * 8;
				if constexpr (C::General) {
					float lse = -INFINITY;
					if (sum != 0) lse = fmaf(row_max[i][j], p.unit_high, fmaf(row_max[i][j], p.unit_low, logf(sum)));
					if (TakesSlots<C> && p.bias != 0) lse = huge_lse(lse);
					if (p.sinks != 0) inverse *= take_sink(((const float *)p.sinks)[task.head], lse);
					if (TakesSlots<C> && p.drop_threshold != 0) inverse *= p.drop_scale;
					if (p.lse && lane % 4 == 0 && r < row_count())
						((float *)p.lse)[(p.cu_q != 0 ? int64_t(task.head) * p.total_q + bounds.rows.first : (int64_t(task.batch) * p.Hq + task.head) * p.Sq) + r] = lse;
				} else if (p.lse && lane % 4 == 0 && r < p.Sq) {
					const float top = row_max[i][j];
					const float lse = sum == 0 ? -INFINITY : fmaf(top, p.unit_high, fmaf(top, p.unit_low, logf(sum)));
					((float *)p.lse)[(int64_t(task.batch) * p.Hq + task.head) * p.Sq + r] = lse;
				}
#pragma unroll
				for (int n = 0; n < Dv / 8; n++) {
					const uint32_t pair = E::pack(o[i][n][2 * j] * inverse, o[i][n][2 * j + 1] * inverse);
					storeSharedWord(tile + chunk_at<Dv>(i * 16 + j * 8 + lane / 4, n) + lane % 4 * 4, pair);
				}
			}
		}
		__syncwarp();
		constexpr int Chunks = Dv / 8;
		char *go = (char *)p.o.base + (task.batch * p.o.batch + task.head * p.o.head) * 2;
		if constexpr (C::General)
			go = (char *)p.o.base + ((p.cu_q != 0 ? 0 : task.batch) * p.o.batch + task.head * p.o.head + bounds.rows.first * p.o.row) * 2;
		const bool any = unaligned();
#pragma unroll
		for (int i = lane; i < C::WarpRows * Chunks; i += 32) {
			const int r = i / Chunks, chunk = i % Chunks, at = task.row + warp * C::WarpRows + r;
			if (at >= row_count() || chunk * 8 >= p.Dv) {
				continue;
			}
			const uint4 v = loadShared(tile + chunk_at<Dv>(r, chunk));
			char *to = go + (at * p.o.row + chunk * 8) * 2;
			if (any) {
				const uint32_t word[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
				for (int e = 0; e < 8; e++)
					if (chunk * 8 + e < p.Dv) ((unsigned short *)to)[e] = word[e / 2] >> (e % 2 * 16);
			} else {
				*(uint4 *)to = v;
			}
		}
	}
};

template <class C> __device__ __forceinline__ void forward(const typename C::Params &p) {
	extern __shared__ __align__(128) char memory[];
	Forward<C> f{p};
	f.shared = uint32_t(__cvta_generic_to_shared(memory));
	f.run();
}

} // namespace fa2
