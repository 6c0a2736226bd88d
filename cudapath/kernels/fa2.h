// FlashAttention-2 on mma.sync, for sm_80 and up.
//
// A block owns Rows = Warps * RowTiles * 16 rows of one head and walks over K and V
// in tiles of Cols columns. A warp owns RowTiles * 16 of the rows whole: their
// scores, statistics and output live in its registers, so warps never exchange
// anything. K and V arrive by cp.async in a ring of Stages tiles of shared memory;
// rows there are swizzled by 16-byte chunks, which keeps ldmatrix free of bank
// conflicts. Q is held in registers, or read from shared memory for every tile
// where registers do not reach.
//
// No barrier makes warps walk in step: each stage has one that counts the threads
// whose copies have landed, and one that counts the warps that are done with it.
// A warp waits for the second after its scores, when the others are most likely
// past their previous tile, and then asks for its share of a later tile.
//
// Within a tile columns are taken Step at a time: S = Q K^T, P = exp2(S * scale -
// shift), O += P V, and the sum of P beside it. A shift moves when a weight comes to
// more than all before it together, or to more than 2^Slack, which the packed P tell
// with one instruction for two to four of them, and then the step is done again with
// exact maxima. It moves to the row's maximum, and on by a whole number that makes
// the sum of P about 1: weights of all rows can be held against one bound, and that
// of the maximum is a power of two. So rounding to 16 bits never changes the weight
// of a key that decides a row, which would show in O, divided by the sum of P before
// that. A row moves by its own scores alone, so no row's bits depend on another's.
//
// Tiles without a masked slot, and the others, run in loops of their own.
#pragma once
#include "fa2_tile.h"
#include <limits.h>

namespace fa2 {

// What a block computes.
struct Task {
	int batch, head, row;
};

// Blocks of causal kernels differ in length. Those of more than a quarter of the rows run first, section
// by section of a few heads, so that the K and V of a section stay in the L2, and the longest of a section
// first. The others, which read little, run after all of them, so that the end is filled with short ones
// whatever the sections come to.
template <class C> __device__ __forceinline__ Task find_task(const AttnParams &p) {
	if constexpr (!C::Causal) {
		return {int(blockIdx.z), int(blockIdx.y), int(blockIdx.x) * C::Rows};
	}
	const uint32_t heads = gridDim.y * gridDim.z, blocks = gridDim.x, brief = blocks / 4;
	const uint32_t bytes = uint32_t(min(int64_t(p.Sk) * (C::D + C::Dv) * 2, int64_t(1) << 24));
	const uint32_t fit = min(heads, (1u << 24) / bytes * (p.Hq / p.Hkv)), sections = (heads + fit - 1) / fit;
	const uint32_t linear = blockIdx.x + blocks * (blockIdx.y + gridDim.y * blockIdx.z);
	const uint32_t before = heads * (blocks - brief); // blocks that are not brief
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
	static constexpr int Slack = 8; // 2^8 in f16 is far from overflow, and so are sums of it in float32
	static constexpr float Less = E::ones == Half::ones ? 1 - 0x1p-9f : 1 - 0x1p-6f; // times this, a number is less in E too
	static constexpr float Near = 2048; // the rounding of a shift up to here does not show in P, nor in O
	template <int Step> using Scores = float[RowTiles][Step / 8][4];
	template <int Step> using Weights = uint32_t[RowTiles][Step / 16][4]; // P as the left operand of P V

	const AttnParams &p;
	uint32_t shared;
	Task task;
	int lane, warp;
	float scale;               // of the scores, above 0
	uint32_t q_at, k_at, v_at; // where the lane's row of the first 16-wide slice is, in the first stage
	uint32_t q[RowTiles][C::QRegs ? C::QRegs : 1][4];
	float o[RowTiles][Dv / 8][4];
	float l[RowTiles][2];      // the lane's part of the sums of P
	float weight[RowTiles][4]; // of RoundedSums: sums of P as packed, of the rows that o's elements belong to
	float shift[RowTiles][2];
	uint32_t most;          // a weight below which no row of the lane has to move, in the upper half
	uint32_t unset;         // bit 2 i + j: shift[i][j] has met no score yet
	bool exact;             // the next step takes exact maxima
	bool far;               // a row of the warp is, see weigh
	int limit[RowTiles][2]; // last column a row attends to, less the lane's first

	// The ring: where the present tile is, and the parity of the ring's round.
	int tile, tiles, stage_at, turn;
	// The next tile to ask for: the thread's first chunk of it, where it goes, the rows
	// that are left, and the least number of them such that all of the tile exists.
	const char *next_k, *next_v;
	int todo, next_at, next_left, whole_from;
	uint32_t k_slot, v_slot; // of the thread's first chunk, in the first stage

	// Address of 16-wide slice i of a row, from that of the first.
	template <int Dim> static __device__ __forceinline__ uint32_t slice(uint32_t at, int i) {
		constexpr int Slices = Dim % 64 == 0 ? 4 : 2;
		return (at ^ i % Slices * 32) + i / Slices * Slices * 32;
	}

	// Barriers of the stage at that offset.
	__device__ __forceinline__ uint32_t landed(int at) const { return shared + C::BarriersAt + at / C::StageBytes * 16; }
	__device__ __forceinline__ uint32_t free(int at) const { return landed(at) + 8; }

	static __device__ __forceinline__ int following(int at) { return at == (C::Stages - 1) * C::StageBytes ? 0 : at + C::StageBytes; }

	using K = Share<C, D, C::Cols>;
	using V = Share<C, Dv, C::Cols>;

	// Asks for the thread's share of the next tile, if there is one.
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

	// Weight of a score.
	//
	// That of a row's maximum must be a power of two exactly: else, where one key has all the weight, rounding P
	// makes O a unit off, since the sums are of P before it is rounded. In far rows the rounding of the shift is
	// large enough for that, and they subtract it from the product rounded alike.
	template <bool Far> __device__ __forceinline__ float weight_of(float score, float less) {
		const bool apart = Far && fabsf(less) > Near;
		return exp2_approx(apart ? __fadd_rn(__fmul_rn(score, scale), -less) : fmaf(score, scale, -less));
	}

	// Of a sum of P, that of all lanes of the row.
	static __device__ __forceinline__ float total(float part) {
		part += __shfl_xor_sync(~0u, part, 1);
		return part + __shfl_xor_sync(~0u, part, 2);
	}

	// The largest weight that a row with that sum takes without being moved.
	static __device__ __forceinline__ float bound(float sum) {
		constexpr float Most = 1 << Slack;
		return C::RoundedSums ? Most : fminf(sum, Most);
	}

	// Brings `most` up to date. Sums only grow between moves, so that those of some steps ago err on the safe side.
	__device__ __forceinline__ void settle() {
		float least = INFINITY;
#pragma unroll
		for (int i = 0; i < RowTiles; i++)
#pragma unroll
			for (int j = 0; j < 2; j++) least = fminf(least, bound(total(l[i][j])));
		most = E::pack(0, least);
	}

	// Whether a weight is too much for its row; `most` tells only of the lane's rows together.
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

	// Moves the shift of rows that are new or have a score of too much weight.
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
				if constexpr (!C::RoundedSums) { // the row's sum after this step, should it move
#pragma unroll
					for (int n = 0; n < Step / 8; n++)
						sum += exp2_approx(fmaf(s[i][n][2 * j], scale, -next)) + exp2_approx(fmaf(s[i][n][2 * j + 1], scale, -next));
					sum = total(sum) + (fresh ? 0 : before * exp2_approx(shift[i][j] - next));
				}
				if (fresh ? top > -INFINITY : weight_of<true>(top, shift[i][j]) > bound(before)) {
					// Where the host put a tiny number for a scale of 0 a shift counts for nothing in LSE.
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
		if (!C::RoundedSums) most = E::pack(0, 0x1.6p-1f); // less than any sum of a row that has moved
	}

	// P from S, packed; the largest of a lane, of either half; the lane's sums.
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

	// Which halves of a pair are infinite or NaN: their highest bit.
	static __device__ __forceinline__ uint32_t odd(uint32_t pair) {
		constexpr uint32_t least = E::ones == Half::ones ? 0x04000400 : 0x00800080; // lowest bit of the exponents
		return ((pair & E::infinity) + least) & 0x80008000;
	}

	// Does the thread's share of a tile of V hold an infinity or a NaN?
	static __device__ __forceinline__ bool odd_values(uint32_t vt) {
		uint32_t found = 0;
		Share<C, Dv, C::Cols>::each(vt, [&](uint32_t at) {
			const uint4 v = load_shared(at);
			found |= odd(v.x) | odd(v.y) | odd(v.z) | odd(v.w);
		});
		return found;
	}

	// A masked slot has P = 0, and 0 times an infinity or a NaN of V would still spoil
	// the row. So where V has any, rows that attend to them take them by addition, and
	// P V runs without them.
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

	// The warp is done with the present tile.
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
		__syncthreads(); // the barriers are there
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

		// Columns [0, open) are attended to by all rows of the block, those from end on by none.
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
			if (tiles > 0) barrier_wait(landed(0), 0); // Q was asked for before
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
			// The warp's rows may attend to nothing of some steps.
			const int at = stage_at;
#pragma unroll 1
			for (int c = 0; c < C::Cols; c += C::MaskedStep) {
				if (C::Causal && reach < col + c) break;
				step<true, C::MaskedStep>(at + c * D * 2, at + c * Dv * 2, col + c, false);
			}
			leave();
		}
		copy_wait_all(); // Q of a block without tiles
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
