// FlashAttention-2 on mma.sync, for sm_80 and up.
//
// A block owns Rows = Warps * RowTiles * 16 rows of one head and walks over K and V
// in tiles of Cols columns. A warp owns RowTiles * 16 of the rows whole: their
// scores, statistics and output live in its registers, so warps never exchange
// anything. K and V arrive by cp.async in a ring of Stages tiles of shared memory,
// one barrier a tile; rows there are swizzled by 16-byte chunks, which keeps
// ldmatrix free of bank conflicts. Q is held in registers, or read from shared
// memory for every tile where registers do not reach.
//
// Within a tile columns are taken Step at a time: S = Q K^T, P = exp2(S * scale -
// shift), O += P V, L += P 1 (by mma too: cheaper than additions). The shift of a
// row is the maximum that it had when it last moved; it moves when a score is more
// than 2^Slack over it, which the packed P tell with one instruction for two of
// them, and then the step is done again with exact maxima. A row moves by its own
// scores alone, so no row's bits depend on another's.
//
// Tiles without a masked slot, and the others, run in loops of their own.
#pragma once
#include "attn.h"
#include "ptx.h"

namespace fa2 {

template <class Element_, int D_, int Dv_, int Warps_, int RowTiles_, int Cols_, int Step_, int QRegs_, int Stages_, int Blocks_, int Test_, bool Causal_, bool Any_>
struct Config {
	using Element = Element_;
	static constexpr int D = D_, Dv = Dv_;      // bucket of head dims
	static constexpr int Warps = Warps_;
	static constexpr int RowTiles = RowTiles_;  // 16-row tiles of a warp
	static constexpr int Cols = Cols_;          // columns of a tile in shared memory
	static constexpr int Step = Step_;          // columns of which a warp holds scores
	static constexpr int QRegs = QRegs_;        // 16-wide slices of Q held in registers
	static constexpr int Stages = Stages_;      // tiles in flight
	static constexpr int Blocks = Blocks_;      // blocks a multiprocessor should hold
	static constexpr int Test = Test_;
	static constexpr bool Causal = Causal_;
	static constexpr bool Any = Any_;           // any alignment: loads and stores by element

	static constexpr int Threads = Warps * 32;
	static constexpr int WarpRows = RowTiles * 16, Rows = Warps * WarpRows;
	static constexpr int KBytes = Cols * D * 2, VBytes = Cols * Dv * 2, StageBytes = KBytes + VBytes;
	static constexpr int QBytes = Rows * D * 2, OBytes = Rows * Dv * 2;
	// Q that is wholly in registers only passes through the stages after the first.
	static constexpr bool QPasses = QRegs == D / 16 && QBytes <= (Stages - 1) * StageBytes;
	static constexpr int QAt = QPasses ? StageBytes : Stages * StageBytes;
	static constexpr int Loop = Stages * StageBytes + (QPasses ? 0 : QBytes);
	static constexpr int Shared = Loop > OBytes ? Loop : OBytes;

	static_assert(D % 32 == 0 && Dv % 32 == 0 && Step % 16 == 0 && Cols % Step == 0 && Stages >= 2, "");
};

// Where 16-byte chunk `chunk` of row `row` lies in a tile whose rows have Dim elements.
template <int Dim> __device__ __forceinline__ uint32_t swizzle(int row) {
	return Dim % 64 == 0 ? row & 7 : (row >> 1) & 3;
}

template <int Dim> __device__ __forceinline__ uint32_t chunk_at(int row, int chunk) {
	return row * (Dim * 2) + ((chunk ^ swizzle<Dim>(row)) << 4);
}

// The part of a Rows x Dim tile that a thread copies: chunk column of some rows.
template <class C, int Dim, int Rows> struct Share {
	static constexpr int Lanes = Dim % 64 == 0 ? 8 : 4; // threads side by side in a row
	static constexpr int Groups = Dim / 8 / Lanes;      // chunks of a row that one thread copies
	static constexpr int PassRows = C::Threads / Lanes;
	static constexpr int Passes = (Rows + PassRows - 1) / PassRows;
	static_assert(PassRows % 8 == 0, "");

	template <class F> static __device__ __forceinline__ void each(F f) {
		const int row = threadIdx.x / Lanes, lane = threadIdx.x % Lanes;
		const uint32_t at = chunk_at<Dim>(row, lane);
#pragma unroll
		for (int pass = 0; pass < Passes; pass++) {
			if (Rows % PassRows && pass == Passes - 1 && row + pass * PassRows >= Rows) {
				break;
			}
#pragma unroll
			for (int group = 0; group < Groups; group++) {
				f(row + pass * PassRows, (group * Lanes + lane) * 8, at + pass * PassRows * Dim * 2 + group * Lanes * 16);
			}
		}
	}
};

// Copies rows [0, Rows) of a tensor to a tile. Rows from `rows` on, and columns from
// `dim` on, become zero.
template <class C, int Dim, int Rows>
__device__ __forceinline__ void fetch(uint32_t tile, const char *from, int64_t stride, int rows, int dim) {
	using S = Share<C, Dim, Rows>;
	if constexpr (C::Any) {
		S::each([&](int row, int col, uint32_t at) {
			uint32_t word[4];
#pragma unroll
			for (int i = 0; i < 4; i++) {
				const unsigned short *e = (const unsigned short *)(from + row * stride) + col + 2 * i;
				const uint32_t low = row < rows && col + 2 * i < dim ? e[0] : 0;
				const uint32_t high = row < rows && col + 2 * i + 1 < dim ? e[1] : 0;
				word[i] = low | high << 16;
			}
			store_shared(tile + at, make_uint4(word[0], word[1], word[2], word[3]));
		});
	} else if (rows >= Rows && dim == Dim) {
		S::each([&](int row, int col, uint32_t at) { copy_async(tile + at, from + row * stride + col * 2); });
	} else {
		S::each([&](int row, int col, uint32_t at) {
			copy_async(tile + at, from + row * stride + col * 2, row < rows && col < dim ? 16 : 0);
		});
	}
}

// What a block computes.
struct Task {
	int batch, head, row;
};

// Blocks of causal kernels start with the longest rows of a few heads, so that short
// ones fill the end; few enough heads that their K and V stay in the L2.
template <class C> __device__ __forceinline__ Task task(const AttnParams &p) {
	if constexpr (!C::Causal) {
		return {int(blockIdx.z), int(blockIdx.y), int(blockIdx.x) * C::Rows};
	}
	const uint32_t heads = gridDim.y * gridDim.z, blocks = gridDim.x;
	const uint32_t bytes = uint32_t(min(int64_t(p.Sk) * (C::D + C::Dv) * 2, int64_t(1) << 24));
	const uint32_t share = min(heads, (1u << 24) / bytes * (p.Hq / p.Hkv));
	const uint32_t linear = blockIdx.x + blocks * (blockIdx.y + gridDim.y * blockIdx.z);
	const uint32_t section = linear / (share * blocks), first = section * share;
	const uint32_t rest = linear - section * share * blocks, width = min(share, heads - first);
	const uint32_t head = first + rest % width;
	return {int(head / gridDim.y), int(head % gridDim.y), int(blocks - 1 - rest / width) * C::Rows};
}

template <class C> struct Forward {
	using E = typename C::Element;
	static constexpr int RowTiles = C::RowTiles, Step = C::Step, D = C::D, Dv = C::Dv;
	static constexpr float Slack = C::Test == 0 ? 8 : 1;
	static constexpr float Head = C::Test == 0 ? 0 : sizeof(E) && E::ones == 0x3c003c00 ? 2 : 7;

	const AttnParams &p;
	uint32_t shared;
	int lane;
	float scale;                      // of the scores, above 0
	uint32_t q_at[4], k_at[4], v_at[4]; // lane addresses within a tile, by 16-wide slice of 128 bytes
	uint32_t q[RowTiles][C::QRegs ? C::QRegs : 1][4];
	float o[RowTiles][Dv / 8][4];
	float l[RowTiles][4];
	float shift[RowTiles][2];
	uint32_t unset; // bit 2 i + j: shift[i][j] has met no score yet
	bool exact;     // the next step takes exact maxima
	int limit[RowTiles][2]; // last column a row attends to, less the lane's first

	// Address of 16-wide slice i of a row, from the addresses of the first slices.
	template <int Dim> static __device__ __forceinline__ uint32_t slice(const uint32_t (&at)[4], int i) {
		constexpr int Slices = Dim % 64 == 0 ? 4 : 2;
		return at[i % Slices] + i / Slices * Slices * 32;
	}

	template <int Dim> static __device__ __forceinline__ void lane_addresses(uint32_t (&at)[4], int row, int high) {
#pragma unroll
		for (int i = 0; i < 4; i++) {
			at[i] = chunk_at<Dim>(row, (Dim % 64 == 0 ? 2 * i : 2 * (i & 1)) + high);
		}
	}

	__device__ __forceinline__ void scores(float (&s)[RowTiles][Step / 8][4], uint32_t kt, uint32_t qt) {
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
					ldmatrix(a[i], qt + slice<D>(q_at, d) + i * 16 * D * 2);
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

	// Moves the shift of rows that are new or have grown past the slack.
	__device__ __forceinline__ void move(const float (&s)[RowTiles][Step / 8][4]) {
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
				if (fresh ? top > -INFINITY : fmaf(top, scale, -shift[i][j]) > Slack) {
					const float next = fmaf(top, scale, Head);
					const float factor = fresh ? 1 : exp2_approx(shift[i][j] - next);
					shift[i][j] = next;
					unset &= ~bit;
					l[i][2 * j] *= factor;
					l[i][2 * j + 1] *= factor;
#pragma unroll
					for (int n = 0; n < Dv / 8; n++) {
						o[i][n][2 * j] *= factor;
						o[i][n][2 * j + 1] *= factor;
					}
				}
			}
		}
	}

	template <bool Masked> __device__ __forceinline__ void step(uint32_t kt, uint32_t vt, uint32_t qt, int col) {
		uint32_t w[RowTiles][Step / 16][4]; // P, as the left operand of P V
		for (;;) {
			float s[RowTiles][Step / 8][4];
			scores(s, kt, qt);
			if constexpr (Masked) {
#pragma unroll
				for (int i = 0; i < RowTiles; i++)
#pragma unroll
					for (int n = 0; n < Step / 8; n++)
#pragma unroll
						for (int e = 0; e < 4; e++)
							if (limit[i][e / 2] - col < n * 8 + e % 2) s[i][n][e] = -INFINITY;
			}
			if (exact) {
				move(s);
			}
			uint32_t top = 0;
#pragma unroll
			for (int i = 0; i < RowTiles; i++) {
#pragma unroll
				for (int n = 0; n < Step / 8; n++) {
					float e[4];
#pragma unroll
					for (int k = 0; k < 4; k++) e[k] = exp2_approx(fmaf(s[i][n][k], scale, -shift[i][k / 2]));
					const uint32_t first = E::pack(e[0], e[1]), second = E::pack(e[2], e[3]);
					w[i][n / 2][n % 2 * 2] = first;
					w[i][n / 2][n % 2 * 2 + 1] = second;
					top = C::Test == 0 ? E::max(E::max(top, first), second) : top | first | second;
				}
			}
			if (exact) {
				exact = __any_sync(~0u, unset != 0);
				break;
			}
			bool over;
			if constexpr (C::Test == 0) {
				constexpr uint32_t bits = E::ones == 0x3c003c00 ? 0x5c00 : 0x4380; // 2^8
				over = (top & 0xffff) >= bits || top >= bits << 16;
			} else {
				over = top & 0x40004000; // 2 and more have it
			}
			if (!__any_sync(~0u, over)) {
				break;
			}
			exact = true;
		}
#pragma unroll
		for (int c = 0; c < Step / 16; c++) {
#pragma unroll
			for (int i = 0; i < RowTiles; i++) E::mma(l[i], w[i][c], E::ones, E::ones);
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

	// Does the thread's share of a tile of V hold an infinity or a NaN?
	static __device__ __forceinline__ bool odd_values(uint32_t vt) {
		uint32_t found = 0;
		Share<C, Dv, C::Cols>::each([&](int, int, uint32_t at) {
			const uint4 v = load_shared(vt + at);
			found |= odd(v.x) | odd(v.y) | odd(v.z) | odd(v.w);
		});
		return found;
	}

	// Which halves of a pair are infinite or NaN: their highest bit.
	static __device__ __forceinline__ uint32_t odd(uint32_t pair) {
		const uint32_t low = E::infinity & 0xffff & ~(E::infinity << 1 & 0xffff & E::infinity); // lowest bit of an exponent
		return ((pair & E::infinity) + (low | low << 16)) & 0x80008000;
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
		Share<C, Dv, C::Cols>::each([&](int, int, uint32_t at) {
			uint4 v = load_shared(vt + at);
			uint32_t *word = &v.x;
#pragma unroll
			for (int i = 0; i < 4; i++) {
				const uint32_t found = odd(word[i]);
				word[i] &= ~((found & 0x8000 ? 0xffff : 0) | (found >> 31 ? 0xffff0000 : 0));
			}
			store_shared(vt + at, v);
		});
		__syncthreads();
	}

	__device__ __forceinline__ void run() {
		const int warp = threadIdx.x / 32;
		lane = threadIdx.x % 32;
		const Task t = task<C>(p);
		const int kv = t.head / (p.Hq / p.Hkv);
		const char *gq = (const char *)p.q.base + (t.batch * p.q.batch + t.head * p.q.head + t.row * p.q.row) * 2;
		const char *gk = (const char *)p.k.base + (t.batch * p.k.batch + kv * p.k.head) * 2;
		const char *gv = (const char *)p.v.base + (t.batch * p.v.batch + kv * p.v.head) * 2;
		const int64_t ks = p.k.row * 2, vs = p.v.row * 2;

		// Columns [0, open) are attended to by all rows of the block, those from end on by none.
		int open = p.Sk, end = p.Sk;
		if constexpr (C::Causal) {
			const int64_t first = int64_t(t.row) + p.causal_offset + 1;
			const int64_t last = int64_t(min(t.row + C::Rows, p.Sq)) + p.causal_offset;
			open = int(min(max(first, int64_t(0)), int64_t(p.Sk)));
			end = int(min(max(last, int64_t(0)), int64_t(p.Sk)));
		}
		const int tiles = (end + C::Cols - 1) / C::Cols, open_tiles = open / C::Cols;

		int fetched = 0;
		uint32_t to = shared;
		auto next_tile = [&]() {
			if (fetched < tiles) {
				const int left = p.Sk - fetched * C::Cols;
				fetch<C, D, C::Cols>(to, gk, ks, left, p.D);
				fetch<C, Dv, C::Cols>(to + C::KBytes, gv, vs, left, p.Dv);
				gk += C::Cols * ks;
				gv += C::Cols * vs;
				fetched++;
				to = to + C::StageBytes == shared + C::Stages * C::StageBytes ? shared : to + C::StageBytes;
			}
			copy_commit();
		};
		fetch<C, D, C::Rows>(shared + C::QAt, gq, p.q.row * 2, p.Sq - t.row, p.D);
		copy_commit();
		next_tile();

		lane_addresses<D>(q_at, lane % 16, lane / 16);
		lane_addresses<D>(k_at, lane % 8 + lane / 16 * 8, lane / 8 % 2);
		lane_addresses<Dv>(v_at, lane % 16, lane / 16);
		scale = fabsf(p.scale_log2);
		unset = (1u << (2 * RowTiles)) - 1;
		exact = true;
		const int row = t.row + warp * C::WarpRows + lane / 4;
#pragma unroll
		for (int i = 0; i < RowTiles; i++) {
#pragma unroll
			for (int j = 0; j < 2; j++) {
				shift[i][j] = 0;
				int64_t last = p.Sk - 1;
				if constexpr (C::Causal) last = min(last, int64_t(row) + i * 16 + j * 8 + p.causal_offset);
				limit[i][j] = int(max(last, int64_t(-1))) - lane % 4 * 2;
			}
#pragma unroll
			for (int e = 0; e < 4; e++) l[i][e] = 0;
#pragma unroll
			for (int n = 0; n < Dv / 8; n++)
#pragma unroll
				for (int e = 0; e < 4; e++) o[i][n][e] = 0;
		}

		copy_wait<1>();
		if (p.scale_log2 < 0) { // the sign moves to Q
			Share<C, D, C::Rows>::each([&](int, int, uint32_t at) {
				uint4 v = load_shared(shared + C::QAt + at);
				v.x ^= 0x80008000, v.y ^= 0x80008000, v.z ^= 0x80008000, v.w ^= 0x80008000;
				store_shared(shared + C::QAt + at, v);
			});
		}
		const uint32_t qt = shared + C::QAt + warp * C::WarpRows * D * 2;
		if constexpr (C::QRegs > 0) {
			__syncthreads();
#pragma unroll
			for (int i = 0; i < RowTiles; i++)
#pragma unroll
				for (int d = 0; d < C::QRegs; d++) ldmatrix(q[i][d], qt + slice<D>(q_at, d) + i * 16 * D * 2);
		}
		if constexpr (C::Stages > 2) {
			if constexpr (C::QPasses) __syncthreads();
#pragma unroll
			for (int i = 2; i < C::Stages; i++) next_tile();
		}

		uint32_t kt = shared;
		int tile = 0;
		for (; tile < open_tiles; tile++) {
			copy_wait<C::Stages - 2>();
			__syncthreads();
			next_tile();
#pragma unroll 1
			for (int c = 0; c < C::Cols; c += Step) step<false>(kt + c * D * 2, kt + C::KBytes + c * Dv * 2, qt, 0);
			kt = kt + C::StageBytes == shared + C::Stages * C::StageBytes ? shared : kt + C::StageBytes;
		}
		for (; tile < tiles; tile++) {
			copy_wait<C::Stages - 2>();
			bool found = false;
			if constexpr (C::Causal) found = odd_values(kt + C::KBytes);
			const bool spoilt = __syncthreads_or(found);
			next_tile();
			const int col = tile * C::Cols;
			if (C::Causal && spoilt) take_odd_values(kt + C::KBytes, col);
#pragma unroll 1
			for (int c = 0; c < C::Cols; c += Step) {
				// Nothing of this step may be attended to by the warp.
				if (C::Causal && int64_t(t.row) + (warp + 1) * C::WarpRows - 1 + p.causal_offset < col + c) break;
				step<true>(kt + c * D * 2, kt + C::KBytes + c * Dv * 2, qt, col + c);
			}
			kt = kt + C::StageBytes == shared + C::Stages * C::StageBytes ? shared : kt + C::StageBytes;
		}
		copy_wait<0>();
		__syncthreads();
		finish(t, warp, row);
	}

	__device__ __forceinline__ void finish(const Task &t, int warp, int row) {
		const uint32_t tile = shared + warp * C::WarpRows * Dv * 2;
#pragma unroll
		for (int i = 0; i < RowTiles; i++) {
#pragma unroll
			for (int j = 0; j < 2; j++) {
				const float sum = l[i][2 * j];
				const float inverse = sum == 0 ? 0 : 1 / sum;
				const int r = row + i * 16 + j * 8;
				if (p.lse && lane % 4 == 0 && r < p.Sq) {
					const float top = shift[i][j] - Head;
					const float lse = sum == 0 ? -INFINITY : fmaf(top, p.unit_high, fmaf(top, p.unit_low, logf(sum) + Head * 0.6931471806f));
					((float *)p.lse)[(int64_t(t.batch) * p.Hq + t.head) * p.Sq + r] = lse;
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
		char *go = (char *)p.o.base + (t.batch * p.o.batch + t.head * p.o.head) * 2;
#pragma unroll
		for (int i = lane; i < C::WarpRows * Chunks; i += 32) {
			const int r = i / Chunks, chunk = i % Chunks, at = t.row + warp * C::WarpRows + r;
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
