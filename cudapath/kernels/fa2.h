// FlashAttention-2 on mma.sync, for sm_80 and up.
//
// A CTA owns Rows = Warps * RowTiles * 16 query rows of one head and loops over K and V
// in tiles of Cols keys. A warp owns RowTiles * 16 of the rows: their scores, row
// statistics and output are in its registers, so warps exchange nothing. cp.async copies
// K and V into a ring of Stages tiles in shared memory. Its rows are swizzled by 16-byte
// chunks, so that ldmatrix has no bank conflicts. Q is in registers, or, if there are not
// enough, in shared memory and read for every tile.
//
// No barrier synchronizes all warps in the loop. Each stage has two mbarriers: one counts
// the threads whose copies have landed, the other the warps that have read the stage. A
// warp waits for the second after computing its scores, when the other warps have most
// likely finished their previous tile, and then copies its share of a later tile.
//
// A tile is processed in steps of Step keys: S = Q K^T, P = exp2(S * scale - shift),
// O += P V, and the row sum of P. shift is a lagged row max. It is updated when an element
// of P exceeds the sum of all before it, or 2^Slack. The packed P show that with one
// instruction for two to four elements, and the step is then repeated with exact maxima.
// The new shift is the row max plus an integer that makes the row sum about 1. Then one
// bound serves all rows, and P of the maximum is a power of two: rounding P to 16 bits
// cannot change the element of a key that dominates its row. (It would show in O, which
// is divided by the sum of P before rounding.) Only a row's own scores update its shift,
// so that its bits do not depend on other rows.
//
// Tiles with and without masked slots have separate loops.
#pragma once
#include "fa2_tile.h"
#include <limits.h>

namespace fa2 {

// The rows that a CTA computes.
struct Task {
	int batch, head, row;
};

// Row blocks of causal kernels differ in length. The longer three quarters run first, in sections of a few
// heads whose K and V fit the L2, the longest block of a section first. The shortest quarter of all heads
// runs last, to fill the multiprocessors at the end.
template <class C> __device__ __forceinline__ Task find_task(const AttnParams &p) {
	if constexpr (!C::Causal) {
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
	static constexpr int RowTiles = C::RowTiles, D = C::D, Dv = C::Dv;
	static constexpr int Slack = 8; // 2^8 does not overflow f16, nor do its sums overflow float32
	static constexpr float Less = E::ones == Half::ones ? 1 - 0x1p-9f : 1 - 0x1p-6f; // a factor that makes a number less after rounding to E too
	static constexpr float Near = 2048; // up to here the rounding of a shift is not visible in P and O
	template <int Step> using Scores = float[RowTiles][Step / 8][4];
	template <int Step> using Weights = uint32_t[RowTiles][Step / 16][4]; // P as the left operand of P V

	const AttnParams &p;
	uint32_t shared;
	Task task;
	int lane, warp;
	float scale;               // of the scores in log2 units, above 0
	uint32_t q_at, k_at, v_at; // address of the lane's row of the first 16-wide slice, in the first stage
	uint32_t q[RowTiles][C::QRegs ? C::QRegs : 1][4];
	float o[RowTiles][Dv / 8][4];
	float l[RowTiles][2];      // row sums of P over the lane's columns
	float weight[RowTiles][4]; // with RoundedSums: row sums of P as rounded, for the rows of o's elements
	float shift[RowTiles][2];  // lagged row max
	uint32_t most;          // bound of P in the upper half: below it no row of the lane updates its shift
	uint32_t unset;         // bit 2 i + j: row [i][j] has had no score yet
	bool exact;             // the next step computes exact maxima
	bool far;               // a row of the warp is far: see weight_of
	int limit[RowTiles][2]; // last column that a row attends to, relative to the lane's first

	// The ring: offset of the current tile's stage, and parity of the ring's round.
	int tile, tiles, stage_at, turn;
	// The next tile to copy: the thread's first chunk of it, its destination, the number of
	// rows left, and the least number with which the whole tile exists.
	const char *next_k, *next_v;
	int todo, next_at, next_left, whole_from;
	uint32_t k_slot, v_slot; // of the thread's first chunk, in the first stage

	// Address of 16-wide slice i of a row, from that of the first.
	template <int Dim> static __device__ __forceinline__ uint32_t slice(uint32_t at, int i) {
		constexpr int Slices = Dim % 64 == 0 ? 4 : 2;
		return (at ^ i % Slices * 32) + i / Slices * Slices * 32;
	}

	// The mbarriers of the stage at an offset.
	__device__ __forceinline__ uint32_t landed(int at) const { return shared + C::BarriersAt + at / C::StageBytes * 16; }
	__device__ __forceinline__ uint32_t free(int at) const { return landed(at) + 8; }

	static __device__ __forceinline__ int following(int at) { return at == (C::Stages - 1) * C::StageBytes ? 0 : at + C::StageBytes; }

	using K = Share<C, D, C::Cols>;
	using V = Share<C, Dv, C::Cols>;

	// Starts the copy of the thread's share of the next tile, if there is one.
	__device__ __forceinline__ void ask() {
		if (todo <= 0) return;
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

	// Asks for a tile in the place of the previous one, once every warp is done with that.
	__device__ __forceinline__ void refill() {
		if (todo <= 0) return;
		if (tile > 0) barrier_wait(free(next_at), turn ^ (stage_at == 0));
		ask();
	}

	template <int Step> __device__ __forceinline__ void scores(Scores<Step> &s, uint32_t kt) {
#pragma unroll
		for (int i = 0; i < RowTiles; i++)
#pragma unroll
			for (int n = 0; n < Step / 8; n++)
#pragma unroll
				for (int e = 0; e < 4; e++) s[i][n][e] = 0;
#pragma unroll
		for (int d = 0; d < D / 16; d++) {
			uint32_t a[RowTiles][4];
#pragma unroll
			for (int i = 0; i < RowTiles; i++) {
				if (d < C::QRegs) {
#pragma unroll
					for (int e = 0; e < 4; e++) a[i][e] = q[i][d][e];
				} else {
					ldmatrix(a[i], slice<D>(q_at, d) + i * 16 * D * 2);
				}
			}
#pragma unroll
			for (int n = 0; n < Step / 16; n++) {
				uint32_t b[4];
				ldmatrix(b, kt + slice<D>(k_at, d) + n * 16 * D * 2);
#pragma unroll
				for (int i = 0; i < RowTiles; i++) {
					E::mma(s[i][2 * n], a[i], b[0], b[1]);
					E::mma(s[i][2 * n + 1], a[i], b[2], b[3]);
				}
			}
		}
	}

	template <int Step> __device__ __forceinline__ void mask(Scores<Step> &s, int col) {
#pragma unroll
		for (int i = 0; i < RowTiles; i++)
#pragma unroll
			for (int n = 0; n < Step / 8; n++)
#pragma unroll
				for (int e = 0; e < 4; e++)
					if (limit[i][e / 2] - col < n * 8 + e % 2) s[i][n][e] = -INFINITY;
	}

	// Element of P of a score.
	//
	// P of the row max must be exactly a power of two. Otherwise rounding P changes O by a unit in the last place
	// if one key dominates the row, since row sums are of P before rounding. A row is far if its shift is so large
	// that fma, which does not round the product, would miss the power of two: there the product is rounded too.
	template <bool Far> __device__ __forceinline__ float weight_of(float score, float less) {
		const bool separate = Far && fabsf(less) > Near;
		return exp2_approx(separate ? __fadd_rn(__fmul_rn(score, scale), -less) : fmaf(score, scale, -less));
	}

	// Row sum over all lanes of the row.
	static __device__ __forceinline__ float total(float part) {
		part += __shfl_xor_sync(~0u, part, 1);
		return part + __shfl_xor_sync(~0u, part, 2);
	}

	// The largest element of P that does not update the shift of a row with this sum.
	static __device__ __forceinline__ float bound(float sum) {
		constexpr float Most = 1 << Slack;
		return C::RoundedSums ? Most : fminf(sum, Most);
	}

	// Updates `most`. Sums only grow between updates of the shift, so that older sums give a lower bound, which is safe.
	__device__ __forceinline__ void settle() {
		float least = INFINITY;
#pragma unroll
		for (int i = 0; i < RowTiles; i++)
#pragma unroll
			for (int j = 0; j < 2; j++) least = fminf(least, bound(total(l[i][j])));
		most = E::pack(0, least);
	}

	// Whether an element of P exceeds the bound of its row; `most` is the bound of all rows of the lane.
	template <int Step> __device__ __forceinline__ bool heavy(const Weights<Step> &w) {
		bool found = false;
#pragma unroll
		for (int i = 0; i < RowTiles; i++) {
#pragma unroll
			for (int j = 0; j < 2; j++) {
				uint32_t top = 0;
#pragma unroll
				for (int c = 0; c < Step / 16; c++) top = E::max(E::max(top, w[i][c][j]), w[i][c][2 + j]);
				found |= fmaxf(E::low(top), E::low(top >> 16)) > bound(total(l[i][j])) * Less;
			}
		}
		return __any_sync(~0u, found);
	}

	// Updates the shift of rows that have none yet or whose P exceeds the bound.
	template <int Step> __device__ __forceinline__ void move(const Scores<Step> &s) {
		bool any = false;
#pragma unroll
		for (int i = 0; i < RowTiles; i++) {
#pragma unroll
			for (int j = 0; j < 2; j++) {
				float top = -INFINITY;
#pragma unroll
				for (int n = 0; n < Step / 8; n++) top = fmaxf(top, fmaxf(s[i][n][2 * j], s[i][n][2 * j + 1]));
				top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
				top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
				const uint32_t bit = 1u << (2 * i + j);
				const bool fresh = unset & bit;
				const float before = total(l[i][j]);
				float next = top * scale, sum = 0;
				if constexpr (!C::RoundedSums) { // the row sum after this step if the shift is updated
#pragma unroll
					for (int n = 0; n < Step / 8; n++)
						sum += exp2_approx(fmaf(s[i][n][2 * j], scale, -next)) + exp2_approx(fmaf(s[i][n][2 * j + 1], scale, -next));
					sum = total(sum) + (fresh ? 0 : before * exp2_approx(shift[i][j] - next));
				}
				if (fresh ? top > -INFINITY : weight_of<true>(top, shift[i][j]) > bound(before)) {
					// For a scale of 0 the host passes a tiny number, and the shift does not change LSE.
					if (!C::RoundedSums && scale > 0x1p-100f) {
						const float lift = float((__float_as_int(sum * 0x1.6ap0f) >> 23) - 127), lifted = next + lift;
						if (fabsf(next) <= Near || lifted - next == lift) next = lifted;
					}
					const float factor = fresh ? 1 : exp2_approx(shift[i][j] - next);
					shift[i][j] = next;
					unset &= ~bit;
					l[i][j] *= factor;
					if constexpr (C::RoundedSums) weight[i][2 * j] *= factor;
#pragma unroll
					for (int n = 0; n < Dv / 8; n++) {
						o[i][n][2 * j] *= factor;
						o[i][n][2 * j + 1] *= factor;
					}
				}
				any |= fabsf(shift[i][j]) > Near;
			}
		}
		far = __any_sync(~0u, any);
		if (!C::RoundedSums) most = E::pack(0, 0x1.6p-1f); // less than any row sum after an update
	}

	// Computes packed P from S, the largest P of the lane in each half, and the lane's row sums.
	template <int Step, bool Far> __device__ __forceinline__ uint32_t weigh(const Scores<Step> &s, Weights<Step> &w, float (&sum)[RowTiles][2]) {
		uint32_t top = 0;
#pragma unroll
		for (int i = 0; i < RowTiles; i++) {
			sum[i][0] = sum[i][1] = 0;
#pragma unroll
			for (int n = 0; n < Step / 8; n++) {
				float e[4];
#pragma unroll
				for (int k = 0; k < 4; k++) e[k] = weight_of<Far>(s[i][n][k], shift[i][k / 2]);
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
		Weights<Step> w;
		float sum[RowTiles][2];
		bool again;
		do {
			Scores<Step> s;
			scores<Step>(s, kt);
			if constexpr (Masked) mask<Step>(s, col);
			if (exact) move<Step>(s);
			const uint32_t top = far ? weigh<Step, true>(s, w, sum) : weigh<Step, false>(s, w, sum);
			const uint32_t from = C::RoundedSums ? E::pack(0, 1 << Slack) : most;
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
		for (int i = 0; i < RowTiles; i++) l[i][0] += sum[i][0], l[i][1] += sum[i][1];
#pragma unroll
		for (int c = 0; c < Step / 16; c++) {
			if constexpr (C::RoundedSums) {
#pragma unroll
				for (int i = 0; i < RowTiles; i++) E::mma(weight[i], w[i][c], E::ones, E::ones);
			}
#pragma unroll
			for (int n = 0; n < Dv / 16; n++) {
				uint32_t b[4];
				ldmatrix_transposed(b, vt + slice<Dv>(v_at, n) + c * 16 * Dv * 2);
#pragma unroll
				for (int i = 0; i < RowTiles; i++) {
					E::mma(o[i][2 * n], w[i][c], b[0], b[1]);
					E::mma(o[i][2 * n + 1], w[i][c], b[2], b[3]);
				}
			}
		}
	}

	// The highest bit of each half of a pair that is infinite or NaN.
	static __device__ __forceinline__ uint32_t odd(uint32_t pair) {
		constexpr uint32_t least = E::ones == Half::ones ? 0x04000400 : 0x00800080; // lowest bit of the exponents
		return ((pair & E::infinity) + least) & 0x80008000;
	}

	// Whether the thread's share of a tile of V has an infinity or a NaN.
	static __device__ __forceinline__ bool odd_values(uint32_t vt) {
		uint32_t found = 0;
		Share<C, Dv, C::Cols>::each(vt, [&](uint32_t at) {
			const uint4 v = load_shared(at);
			found |= odd(v.x) | odd(v.y) | odd(v.z) | odd(v.w);
		});
		return found;
	}

	// A masked slot has P = 0, but 0 times an infinity or a NaN of V is NaN. If a tile of V
	// has such values, they are replaced by 0 for P V, and added to the rows that attend to
	// them.
	__device__ __forceinline__ void take_odd_values(uint32_t vt, int col) {
#pragma unroll 1
		for (int c = 0; c < C::Cols; c++) {
#pragma unroll
			for (int n = 0; n < Dv / 8; n++) {
				const uint32_t pair = load_shared_word(vt + chunk_at<Dv>(c, n) + lane % 4 * 4);
				const uint32_t found = odd(pair);
				if (found) {
					const float low = found & 0x8000 ? E::low(pair) : 0, high = found >> 31 ? E::low(pair >> 16) : 0;
#pragma unroll
					for (int i = 0; i < RowTiles; i++)
#pragma unroll
						for (int j = 0; j < 2; j++)
							if (limit[i][j] + lane % 4 * 2 >= col + c) {
								o[i][n][2 * j] += low;
								o[i][n][2 * j + 1] += high;
							}
				}
			}
		}
		__syncthreads();
		Share<C, Dv, C::Cols>::each(vt, [&](uint32_t at) {
			uint4 v = load_shared(at);
			uint32_t *word = &v.x;
#pragma unroll
			for (int i = 0; i < 4; i++) {
				const uint32_t found = odd(word[i]);
				word[i] &= ~((found & 0x8000 ? 0xffff : 0) | (found >> 31 ? 0xffff0000 : 0));
			}
			store_shared(at, v);
		});
		__syncthreads();
	}

	// The warp has finished the current tile.
	__device__ __forceinline__ void leave() {
		__syncwarp();
		if (lane == 0) barrier_arrive(free(stage_at));
		tile++;
		stage_at = following(stage_at);
		turn ^= stage_at == 0;
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
		k_slot = kept(shared + K::slot());
		v_slot = D == Dv ? k_slot + C::KBytes : kept(shared + C::KBytes + V::slot());
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

		using Q = Share<C, D, C::Rows>;
		from_q += Q::row() * p.q.row * 2 + Q::lane() * 16;
		Q::template fetch<false>(shared + C::QAt + Q::slot(), from_q, p.q.row * 2, p.Sq - task.row, p.D);
		__syncthreads(); // the mbarriers are initialized
		ask();
		if constexpr (!C::QPasses) {
#pragma unroll
			for (int i = 1; i < C::Stages - 1; i++) ask();
		}
	}

	__device__ __forceinline__ void run() {
		warp = threadIdx.x / 32;
		lane = threadIdx.x % 32;
		task = find_task<C>(p);

		// All rows of the block attend to columns [0, open), none to columns from end on.
		int open = p.Sk, end = p.Sk;
		if constexpr (C::Causal) {
			const int64_t first = int64_t(task.row) + p.causal_offset + 1;
			const int64_t last = int64_t(min(task.row + C::Rows, p.Sq)) + p.causal_offset;
			open = int(min(max(first, int64_t(0)), int64_t(p.Sk)));
			end = int(min(max(last, int64_t(0)), int64_t(p.Sk)));
		}
		start(end);

		q_at = kept(shared + C::QAt + warp * C::WarpRows * D * 2 + chunk_at<D>(lane % 16, lane / 16));
		k_at = kept(shared + chunk_at<D>(lane % 8 + lane / 16 * 8, lane / 8 % 2));
		v_at = kept(shared + C::KBytes + chunk_at<Dv>(lane % 16, lane / 16));
		scale = fabsf(p.scale_log2);
		unset = (1u << (2 * RowTiles)) - 1;
		exact = true;
		far = false;
		const int row = task.row + warp * C::WarpRows + lane / 4;
#pragma unroll
		for (int i = 0; i < RowTiles; i++) {
#pragma unroll
			for (int j = 0; j < 2; j++) {
				shift[i][j] = l[i][j] = weight[i][j] = weight[i][2 + j] = 0;
				int64_t last = p.Sk - 1;
				if constexpr (C::Causal) last = min(last, int64_t(row) + i * 16 + j * 8 + p.causal_offset);
				limit[i][j] = int(max(last, int64_t(-1))) - lane % 4 * 2;
			}
#pragma unroll
			for (int n = 0; n < Dv / 8; n++)
#pragma unroll
				for (int e = 0; e < 4; e++) o[i][n][e] = 0;
		}

		if (p.scale_log2 < 0) { // the sign moves to Q
			copy_wait_all();
			Share<C, D, C::Rows>::each(shared + C::QAt, [&](uint32_t at) {
				uint4 v = load_shared(at);
				v.x ^= 0x80008000, v.y ^= 0x80008000, v.z ^= 0x80008000, v.w ^= 0x80008000;
				store_shared(at, v);
			});
			__syncthreads();
		}
		if constexpr (C::QRegs > 0) {
			if (tiles > 0) barrier_wait(landed(0), 0); // the copy of Q was started before that of the tile
#pragma unroll
			for (int i = 0; i < RowTiles; i++)
#pragma unroll
				for (int d = 0; d < C::QRegs; d++) ldmatrix(q[i][d], slice<D>(q_at, d) + i * 16 * D * 2);
			if constexpr (C::QPasses) {
				__syncthreads();
#pragma unroll
				for (int i = 1; i < C::Stages - 1; i++) ask();
			}
		}

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
			// The warp's rows may attend to no key of some steps.
			const int at = stage_at;
#pragma unroll 1
			for (int c = 0; c < C::Cols; c += C::MaskedStep) {
				if (C::Causal && reach < col + c) break;
				step<true, C::MaskedStep>(at + c * D * 2, at + c * Dv * 2, col + c, false);
			}
			leave();
		}
		copy_wait_all(); // the copy of Q, in a block without tiles
		__syncthreads();
		finish(row);
	}

	__device__ __forceinline__ void finish(int row) {
		const uint32_t tile = shared + warp * C::WarpRows * Dv * 2;
#pragma unroll
		for (int i = 0; i < RowTiles; i++) {
#pragma unroll
			for (int j = 0; j < 2; j++) {
				const float sum = total(l[i][j]);
				const float inverse = sum == 0 ? 0 : 1 / (C::RoundedSums ? weight[i][2 * j] : sum);
				const int r = row + i * 16 + j * 8;
				if (p.lse && lane % 4 == 0 && r < p.Sq) {
					const float top = shift[i][j];
					const float lse = sum == 0 ? -INFINITY : fmaf(top, p.unit_high, fmaf(top, p.unit_low, logf(sum)));
					((float *)p.lse)[(int64_t(task.batch) * p.Hq + task.head) * p.Sq + r] = lse;
				}
#pragma unroll
				for (int n = 0; n < Dv / 8; n++) {
					const uint32_t pair = E::pack(o[i][n][2 * j] * inverse, o[i][n][2 * j + 1] * inverse);
					store_shared_word(tile + chunk_at<Dv>(i * 16 + j * 8 + lane / 4, n) + lane % 4 * 4, pair);
				}
			}
		}
		__syncwarp();
		constexpr int Chunks = Dv / 8;
		char *go = (char *)p.o.base + (task.batch * p.o.batch + task.head * p.o.head) * 2;
#pragma unroll
		for (int i = lane; i < C::WarpRows * Chunks; i += 32) {
			const int r = i / Chunks, chunk = i % Chunks, at = task.row + warp * C::WarpRows + r;
			if (at >= p.Sq || chunk * 8 >= p.Dv) {
				continue;
			}
			const uint4 v = load_shared(tile + chunk_at<Dv>(r, chunk));
			char *to = go + (at * p.o.row + chunk * 8) * 2;
			if constexpr (C::Any) {
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

template <class C> __device__ __forceinline__ void forward(const AttnParams &p) {
	extern __shared__ __align__(128) char memory[];
	Forward<C> f{p};
	f.shared = uint32_t(__cvta_generic_to_shared(memory));
	f.run();
}

} // namespace fa2
