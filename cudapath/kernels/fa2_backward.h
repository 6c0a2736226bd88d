// FlashAttention-2's backward pass on mma.sync, for sm_80 and up: five products, dQ in a fixed order, no atomics on floats.
//
// A CTA owns Keys keys of a KV head and loops over the query heads of the group and their blocks of Rows rows. K and V
// stay in shared memory, Q and dO pass through Stages tiles (fa2_backward_copy.h). dK and dV of the keys stay in registers
// until the unit ends.
//   - S^T = K Q^T and dP^T = V dO^T: a warp computes KeyFragments * 16 keys x RowSlices * 16 rows, in registers.
//   - dV += P^T dO and dK += dS^T Q: a warp computes the same keys and a part of the dims. Its own P^T and dS^T are operands
//     in registers. Those of the other rows come from shared memory, so a warp multiplies its own first and then waits for
//     the others at an mbarrier.
//   - dQ = dS K: dS^T comes from shared memory, all keys of it. The accumulators start as dQ of the earlier key blocks,
//     loaded from float32 memory in their own layout, and go back there. The last key block scales dQ and rounds it.
// fa2_backward_work.h defines the order. The only barrier of a step is the mbarrier after dS has been stored. With one buffer of P
// and dS, each warp also arrives at an mbarrier when it has read them, and waits there before it stores P of the next step. The
// products for S and the exponentials lie between.
//
// The sums, P and dS take nearly all registers. So the numbers of a unit are in shared memory, where each step reads what it needs
// (fa2_backward_plan.h), and the lengths and strides of the call are only read when a unit begins and ends.
//
// Masked slots have P = dS = 0. Rows past the end and rows that attend to no key have -LSE = -inf. Elements past an end are
// filled with zeros. Tiles that a mask crosses, and blocks with a large LSE, take a careful path through the exponentials.
// fa2_backward_odd.h keeps Inf and NaN from rows and keys that do not attend to them.
#pragma once
#include "backward_exponent.h"
#include "fa2_backward_copy.h"
#include "not_finite.h"

namespace fa2 {

// The exponent of a score in log2 units, without the row's LSE, and the derivative of the softcap.
template <class C> struct Exponent {
	float scale, cap; // scale of the score; softcap in log2 units

	__device__ __forceinline__ explicit Exponent(const AttnBackwardParams &p) {
		const bool capped = C::Softcap && p.softcap != 0;
		cap = capped ? p.softcap * LOG2E : 0;
		scale = capped ? p.scale / p.softcap : p.scale * LOG2E;
	}

	// score * scale + less, capped. Careful: it is exponentOf<true>() in two instructions, since the factors are those of a row.
	template <bool Careful> __device__ __forceinline__ float of(float score, float less, float &slope) const {
		if (C::Softcap && cap != 0) return cappedExponent(score * scale, cap, less, slope);
		slope = 1;
		if (!Careful) return exponentOf<false>(score, scale, less);
		const bool rounded = fabsf(less) >= 8388608;
		return fmaf(__fmul_rn(score, rounded ? scale : 1), rounded ? 1 : scale, less);
	}
};

template <class C> struct Backward {
	using E = typename C::Element;
	static constexpr int KF = C::KeyFragments, RS = C::RowSlices, D = C::D, Dv = C::Dv;
	using Scores = float[KF][2 * RS][4];
	using Words = uint32_t[KF][RS][4]; // P^T or dS^T as the A operand of dV or dK

	const AttnBackwardParams &p;
	Plan<C> &plan; // of the unit, in shared memory
	const uint32_t shared;
	int lane, warp, key_warp, row_warp;
	uint32_t a_k, a_v;        // addresses for ldmatrix: K and V as A operands, first slice
	uint32_t b_q, b_do;       // Q and dO as B operands of S and dP, in stage 0
	uint32_t t_q, t_do;       // Q and dO as transposed B operands of dK and dV, in stage 0, from the first row on
	uint32_t t_k;             // K as the transposed B operand of dQ
	uint32_t a_p;             // offset of P^T as the A operand of dV, first slice of the warp's own rows
	uint32_t a_ds;            // dS^T as the A operand of dQ
	uint32_t own;             // without stmatrix: offset of the thread's first word of the warp's own P^T
	float dK[KF][2 * C::KSlices][4], dV[KF][2 * C::VSlices][4];

	__device__ __forceinline__ Backward(const AttnBackwardParams &params, Plan<C> &of_unit, uint32_t at) : p(params), plan(of_unit), shared(at) {
		lane = threadIdx.x % 32;
		warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
		key_warp = warp / C::RowWarps;
		row_warp = warp % C::RowWarps;
		const int low = lane % 16, high = lane / 16, low8 = lane % 8 + lane / 16 * 8, high8 = lane / 8 % 2; // see ldmatrix
		const int first_key = key_warp * KF * 16, first_row = row_warp * RS * 16;
		// The compiler would compute these addresses again in each step. Each costs a register instead of up to ten instructions.
		a_k = heldValue(shared + chunk_at<D>(first_key + low, high));
		a_v = D == Dv ? a_k + C::VAt : shared + C::VAt + chunk_at<Dv>(first_key + low, high);
		b_q = heldValue(shared + C::QAt + chunk_at<D>(first_row + low8, high8));
		b_do = D == Dv ? b_q + C::DOAt - C::QAt : shared + C::DOAt + chunk_at<Dv>(first_row + low8, high8);
		t_q = heldValue(shared + C::QAt + slice_at<D>(chunk_at<D>(low, high), row_warp));
		t_do = D == Dv ? t_q + C::DOAt - C::QAt : shared + C::DOAt + slice_at<Dv>(chunk_at<Dv>(low, high), row_warp);
		t_k = heldValue(shared + slice_at<D>(chunk_at<D>(low, high), warp % C::DQDimWarps));
		a_p = heldValue(chunk_at<C::Rows>(first_key + low, high) ^ row_warp * RS * 32);
		a_ds = heldValue(shared + C::DSAt + slice_at<C::Rows>(chunk_at<C::Rows>(low8, high8), warp / C::DQDimWarps * C::DQFragments));
		own = chunk_at<C::Rows>(first_key + lane / 4, row_warp * RS * 2) + lane % 4 * 4;
		clear(dK);
		clear(dV);
	}

	template <int M, int N> static __device__ __forceinline__ void clear(float (&x)[M][N][4]) {
#pragma unroll
		for (int i = 0; i < M; i++)
#pragma unroll
			for (int n = 0; n < N; n++)
#pragma unroll
				for (int e = 0; e < 4; e++) x[i][n][e] = 0;
	}

	// The first operands of a product: M fragments of A, and one of B.
	template <int M> struct Operands {
		uint32_t a[M][4], b[4];
	};

	template <class Product> static __device__ __forceinline__ Operands<Product::M> first_of(const Product &product) {
		Operands<Product::M> first;
		product.a(0, first.a);
		product.b(0, 0, first.b);
		return first;
	}

	// sum += A B. A product has K slices of 16 in depth and N of 16 columns. Its a(k, x) loads M fragments of A, and b(k, n, x) one of B.
	// `first` holds the first of them. The others are loaded while the products of those before run. ahead() is called before the
	// last of these, and loads the first operands of the next product.
	template <class Product, class Ahead>
	static __device__ __forceinline__ void multiply(float (&sum)[Product::M][2 * Product::N][4], const Product &product, const Operands<Product::M> &first, Ahead ahead) {
		constexpr int K = Product::K, M = Product::M, N = Product::N;
		uint32_t a[2][M][4], b[2][4];
#pragma unroll
		for (int e = 0; e < 4; e++) {
			b[0][e] = first.b[e];
#pragma unroll
			for (int i = 0; i < M; i++) a[0][i][e] = first.a[i][e];
		}
#pragma unroll
		for (int k = 0; k < K; k++) {
#pragma unroll
			for (int n = 0; n < N; n++) {
				const int now = (k * N + n) % 2;
				if (n + 1 < N) {
					product.b(k, n + 1, b[now ^ 1]);
				} else if (k + 1 < K) {
					product.b(k + 1, 0, b[now ^ 1]);
					product.a(k + 1, a[(k + 1) % 2]);
				} else {
					ahead();
				}
#pragma unroll
				for (int i = 0; i < M; i++) {
					E::mma(sum[i][2 * n], a[k % 2][i], b[now][0], b[now][1]);
					E::mma(sum[i][2 * n + 1], a[k % 2][i], b[now][2], b[now][3]);
				}
			}
		}
	}

	// A B^T, with A of the warp's keys and B of its rows: S^T or dP^T.
	template <int Dim> struct ScoreProduct {
		static constexpr int K = Dim / 16, M = KF, N = RS;
		uint32_t a_at, b_at;

		__device__ __forceinline__ void a(int d, uint32_t (&x)[M][4]) const {
#pragma unroll
			for (int i = 0; i < M; i++) ldmatrix(x[i], slice_at<Dim>(a_at, d) + i * 16 * Dim * 2);
		}
		__device__ __forceinline__ void b(int d, int n, uint32_t (&x)[4]) const { ldmatrix(x, slice_at<Dim>(b_at, d) + n * 16 * Dim * 2); }
	};

	// A part of dV or dK: A is P^T or dS^T of the warp's own rows, in registers, and B is dO or Q.
	template <int Dim> struct OwnProduct {
		static constexpr int K = RS, M = KF, N = Dim / 16 / C::RowWarps;
		const Words &words;
		uint32_t b_at;

		__device__ __forceinline__ OwnProduct(const Backward &x, const Words &w, uint32_t tile) : words(w), b_at(tile + x.row_warp * RS * 16 * Dim * 2) {}
		__device__ __forceinline__ void a(int k, uint32_t (&x)[M][4]) const {
#pragma unroll
			for (int i = 0; i < M; i++)
#pragma unroll
				for (int e = 0; e < 4; e++) x[i][e] = words[i][k][e];
		}
		__device__ __forceinline__ void b(int k, int n, uint32_t (&x)[4]) const {
			ldmatrix_transposed(x, slice_at<Dim>(b_at, n * C::RowWarps) + k * 16 * Dim * 2);
		}
	};

	// The other part: A is P^T or dS^T of the rows of the other warps, in shared memory.
	template <int Dim> struct OtherProduct {
		static constexpr int K = (C::RowWarps - 1) * RS, M = KF, N = Dim / 16 / C::RowWarps;
		uint32_t a_at, a_own, b_at;
		int row;

		__device__ __forceinline__ OtherProduct(const Backward &x, uint32_t a_tile, uint32_t b_tile) : a_at(a_tile), a_own(x.a_p), b_at(b_tile), row(x.row_warp * RS) {}
		// The number of slice k differs from that of a slice of the warp's own in these bits.
		static __device__ __forceinline__ int other(int k) { return (1 + k / RS) * RS; }
		__device__ __forceinline__ void a(int k, uint32_t (&x)[M][4]) const {
#pragma unroll
			for (int i = 0; i < M; i++) ldmatrix(x[i], slice_at<C::Rows>(a_at + (a_own ^ other(k) * 32), k % RS) + i * 16 * C::Rows * 2);
		}
		__device__ __forceinline__ void b(int k, int n, uint32_t (&x)[4]) const {
			ldmatrix_transposed(x, slice_at<Dim>(b_at + (row ^ other(k)) * 16 * Dim * 2, n * C::RowWarps) + k % RS * 16 * Dim * 2);
		}
	};

	// dS K: the warp's part of dQ.
	struct DQProduct {
		static constexpr int K = C::Keys / 16, M = C::DQFragments, N = C::DQSlices;
		uint32_t a_at, b_at;

		__device__ __forceinline__ void a(int k, uint32_t (&x)[M][4]) const {
#pragma unroll
			for (int i = 0; i < M; i++) ldmatrix_transposed(x[i], slice_at<C::Rows>(a_at, i) + k * 16 * C::Rows * 2);
		}
		__device__ __forceinline__ void b(int k, int n, uint32_t (&x)[4]) const {
			ldmatrix_transposed(x, slice_at<D>(b_at, n * C::DQDimWarps) + k * 16 * D * 2);
		}
	};

	// Stores the warp's own part of P^T or dS^T.
	__device__ __forceinline__ void store(const Words &words, uint32_t tile) const {
#pragma unroll
		for (int i = 0; i < KF; i++)
#pragma unroll
			for (int n = 0; n < RS; n++)
				if constexpr (StoresMatrices) {
					stmatrix(slice_at<C::Rows>(tile + a_p, n) + i * 16 * C::Rows * 2, words[i][n]);
				} else {
#pragma unroll
					for (int e = 0; e < 4; e++) storeSharedWord((tile + own ^ (2 * n + e / 2) * 16) + (i * 16 + e % 2 * 8) * C::Rows * 2, words[i][n][e]);
				}
	}

	// P^T from S^T: words are P. With FloatP, x becomes P, times the derivative of a softcap. Careful: the tile may have masked
	// slots, keys with Inf or NaN, and rows with a large LSE. row is the first of the tile.
	template <bool Careful> __device__ __forceinline__ void probs(Scores &x, Words &words, uint32_t record, int row) const {
		const Exponent<C> exponent(p);
		const int in_tile = row_warp * RS * 16 + lane % 4 * 2, key_here = key_warp * KF * 16 + lane / 4;
		int from, to, last; // keys that the thread's first row attends to, and the last in use, relative to the thread's first key
		int rows;           // in use, from the thread's first on
		if constexpr (Careful) {
			if (plan.odd_keys) spoil(x);
			// Numbers past the tile need not be exact.
			auto clamp = [](int64_t key) { return int(min(max(key, int64_t(-65536)), int64_t(65536))); };
			from = clamp(row + plan.from) + in_tile - key_here;
			to = clamp(row + plan.to) + in_tile - key_here;
			last = plan.last - key_here;
			rows = plan.used - row - in_tile;
		}
#pragma unroll
		for (int n = 0; n < 2 * RS; n++) {
			const float2 less = loadSharedPair(record + (in_tile + 8 * n) * 4);
			float2 rest;
			int most[2]; // last key that the row attends to
			if constexpr (Careful) {
				rest = loadSharedPair(record + (2 * C::Rows + in_tile + 8 * n) * 4);
#pragma unroll
				for (int e = 0; e < 2; e++) most[e] = 8 * n + e < rows ? min(to + 8 * n + e, last) : -1;
			}
#pragma unroll
			for (int i = 0; i < KF; i++) {
#pragma unroll
				for (int h = 0; h < 2; h++) {
					float P[2], slope[2];
#pragma unroll
					for (int e = 0; e < 2; e++) {
						float power = exponent.template of<Careful>(x[i][n][2 * h + e], e ? less.y : less.x, slope[e]);
						if constexpr (Careful) power -= e ? rest.y : rest.x;
						P[e] = exp2Approx(power);
						if constexpr (Careful) {
							const int c = i * 16 + h * 8;
							if (c - (8 * n + e) < from || c > most[e]) P[e] = slope[e] = 0;
						}
						if (C::FloatP) x[i][n][2 * h + e] = P[e] * slope[e];
					}
					words[i][n / 2][n % 2 * 2 + h] = E::pack(P[0], P[1]);
				}
			}
		}
	}

	// dS^T = P (dP - delta), without the factor scale. Without FloatP, P is that of the product for dV. With FloatP, x is P, times the
	// derivative of a softcap. Without a softcap P is then rounded once more, so that the words of probs() need no registers during
	// the product for dP. Careful: a product with 0 is 0.
	template <bool Careful> __device__ __forceinline__ void gradients(const Scores &x, Words &P, const Scores &dP, Words &words, uint32_t record) const {
		const int in_tile = row_warp * RS * 16 + lane % 4 * 2;
#pragma unroll
		for (int n = 0; n < 2 * RS; n++) {
			const float2 less = loadSharedPair(record + (C::Rows + in_tile + 8 * n) * 4);
#pragma unroll
			for (int i = 0; i < KF; i++) {
#pragma unroll
				for (int h = 0; h < 2; h++) {
					uint32_t &pair = P[i][n / 2][n % 2 * 2 + h];
					const float p0 = C::FloatP ? x[i][n][2 * h] : E::low(pair), p1 = C::FloatP ? x[i][n][2 * h + 1] : E::low(pair >> 16);
					float low = p0 * (dP[i][n][2 * h] + less.x), high = p1 * (dP[i][n][2 * h + 1] + less.y);
					if constexpr (Careful) {
						if (p0 == 0) low = 0;
						if (p1 == 0) high = 0;
					}
					if (C::FloatP && !C::Softcap) pair = E::pack(p0, p1);
					words[i][n / 2][n % 2 * 2 + h] = E::pack(low, high);
				}
			}
		}
	}

	// The warp's part of dQ of a step, and its place in the workspace.
	struct DQ {
		static constexpr int F = C::DQFragments, N = 2 * C::DQSlices;
		float x[F][N][4];
		float *held;
	};

	// Loads the sum of the earlier key blocks.
	__device__ __forceinline__ void load_dq(DQ &dQ, const Step &step) const {
		dQ.held = plan.dQ + uint64_t(plan.index(step)) * Workspace<C>::DQFloats + (warp * DQ::F * DQ::N * 32 + lane) * 4;
		const bool follows = plan.later_blocks(step.block) > 0;
#pragma unroll
		for (int i = 0; i < DQ::F; i++)
#pragma unroll
			for (int n = 0; n < DQ::N; n++) {
				const float4 x = load_l2_if(follows, dQ.held + (i * DQ::N + n) * 128);
				dQ.x[i][n][0] = x.x, dQ.x[i][n][1] = x.y, dQ.x[i][n][2] = x.z, dQ.x[i][n][3] = x.w;
			}
	}

	// Stores dQ in the workspace, or as a result if no earlier key block follows.
	__device__ __forceinline__ void store_dq(const DQ &dQ, const Step &step) const {
		constexpr int F = DQ::F, N = DQ::N;
		if (!plan.ends_at(step.block)) {
#pragma unroll
			for (int i = 0; i < F; i++)
#pragma unroll
				for (int n = 0; n < N; n++) store_l2(dQ.held + (i * N + n) * 128, make_float4(dQ.x[i][n][0], dQ.x[i][n][1], dQ.x[i][n][2], dQ.x[i][n][3]));
			return;
		}
		if (p.dQ.base == 0) return; // not requested, which is rare: a branch around the products would cost registers
		char *const out = plan.out + 2 * (step.head * p.dQ.head);
#pragma unroll
		for (int i = 0; i < F; i++) {
#pragma unroll
			for (int h = 0; h < 2; h++) {
				const int row = step.block * C::Rows + (warp / C::DQDimWarps * F + i) * 16 + h * 8 + lane / 4;
				if (row >= plan.used) continue;
				typename E::type *const to = (typename E::type *)out + row * p.dQ.row;
#pragma unroll
				for (int n = 0; n < N; n++) {
					const int col = ((n / 2 * C::DQDimWarps + warp % C::DQDimWarps) * 2 + n % 2) * 8 + lane % 4 * 2;
					store_pair(to, col, p.D, dQ.x[i][n][2 * h] * p.scale, dQ.x[i][n][2 * h + 1] * p.scale);
				}
			}
		}
	}

	// Stores two elements of a gradient, or adds to them.
	__device__ __forceinline__ void store_pair(typename E::type *to, int col, int dims, float low, float high) const {
		auto held = [&](int i) { return E::low(((const uint16_t *)to)[i]); };
		if (col >= dims) return;
		const bool both = col + 1 < dims; // only head dims of Any are odd
		if (p.accumulate & 1) {
			low += held(col);
			if (both) high += held(col + 1);
		}
		const uint32_t pair = E::pack(low, high);
		if (!C::Any) {
			*(uint32_t *)(to + col) = pair;
		} else {
			((uint16_t *)to)[col] = pair;
			if (both) ((uint16_t *)to)[col + 1] = pair >> 16;
		}
	}

	// Stores dK or dV through the tile of K or V. Keys past the end of a sequence get 0, and 0 times a negative scale is -0: so 0 is
	// added to each product.
	template <int Dim, int Slices>
	__device__ __forceinline__ void store_keys(const Work<C> &work, const float (&sum)[KF][2 * Slices][4], const AttnTensor &t, uint32_t tile, int dims, float scale) const {
		const TiledSequence<C> &s = work.s;
		const int key = work.key;
		if (t.base == 0 || (work.rows.first == work.rows.end && p.accumulate & 1)) return;
		typename E::type *const out = (typename E::type *)s.keysOf(p, t, work.unit.head);
		const int end = p.accumulate & 1 ? s.keys.used : s.keys.extent;
		if (p.accumulate & 1) {
#pragma unroll
			for (int i = 0; i < KF; i++)
#pragma unroll
				for (int h = 0; h < 2; h++) {
					const int row = key + (key_warp * KF + i) * 16 + h * 8 + lane / 4;
					if (row >= end) continue;
#pragma unroll
					for (int n = 0; n < 2 * Slices; n++) {
						const int col = ((n / 2 * C::RowWarps + row_warp) * 2 + n % 2) * 8 + lane % 4 * 2;
						store_pair(out + row * t.row, col, dims, sum[i][n][2 * h] * scale, sum[i][n][2 * h + 1] * scale);
					}
				}
			return;
		}
#pragma unroll
		for (int i = 0; i < KF; i++)
#pragma unroll
			for (int h = 0; h < 2; h++)
#pragma unroll
				for (int n = 0; n < 2 * Slices; n++) {
					const int chunk = (n / 2 * C::RowWarps + row_warp) * 2 + n % 2;
					storeSharedWord(tile + chunk_at<Dim>((key_warp * KF + i) * 16 + h * 8 + lane / 4, chunk) + lane % 4 * 4,
							  E::pack(fmaf(sum[i][n][2 * h], scale, 0), fmaf(sum[i][n][2 * h + 1], scale, 0)));
				}
		join(C::Threads);
		constexpr int Chunks = Dim / 8;
#pragma unroll 1
		for (int i = threadIdx.x; i < C::Keys * Chunks; i += C::Threads) {
			const int row = i / Chunks, chunk = i % Chunks;
			if (key + row >= end || chunk * 8 >= dims) continue;
			const uint4 v = loadShared(tile + chunk_at<Dim>(row, chunk));
			typename E::type *const to = out + (key + row) * t.row + chunk * 8;
			if constexpr (C::Any) {
				const uint32_t word[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
				for (int e = 0; e < 8; e++)
					if (chunk * 8 + e < dims) ((uint16_t *)to)[e] = word[e / 2] >> (e % 2 * 16);
			} else {
				*(uint4 *)to = v;
			}
		}
		// Keys of a packed sequence that is longer than the longest is said to be.
		if (work.unit.block == work.unit.blocks - 1 && key + C::Keys < end) {
			for (int64_t i = threadIdx.x; i < int64_t(end - key - C::Keys) * dims; i += C::Threads)
				((uint16_t *)out)[(key + C::Keys + i / dims) * t.row + i % dims] = 0;
		}
	}

#include "fa2_backward_odd.h"

	// Starts the copies of K, V and the first rows, computes the plan, and waits for K and V. Returns the number of steps.
	__device__ __forceinline__ int begin(const Work<C> &work, RowCopy<C> &rows) {
		const int steps = p.Hq / p.Hkv * (work.rows.end - work.rows.first);
		if (steps > 0) copy_keys<C>(p, shared, work);
		if (threadIdx.x == 0) plan = Plan<C>(p, work);
		join(C::Threads);
		if (steps == 0) return 0;
		Step step = {0, work.rows.first};
		rows.fetch(p, plan, shared, step, 0);
		if (C::Stages == 2 && steps > 1) rows.fetch(p, plan, shared, step.next(work.rows), 1);
		barrier_wait(shared + C::KeysFull, 0);
		if (work.rows.first * C::Rows < plan.least || (work.rows.end - 1) * C::Rows > plan.most) clear_keys();
		return steps;
	}

	// Computes the sums of all steps.
	__device__ __forceinline__ void run(int steps, RowCopy<C> &rows) {
		Step step = {0, plan.rows.first};
#pragma unroll 1
		for (int count = 0; count < steps; count++) {
			const int stage = count % C::Stages, buffer = count % C::Buffers, row = step.block * C::Rows;
			const uint32_t record = shared + C::RecordsAt + stage * C::RecordBytes, q = stage * C::QBytes, dO = stage * C::DOBytes;
			const uint32_t p_tile = shared + C::PAt + buffer * C::ProbBytes, ds = buffer * C::ProbBytes, ds_tile = shared + C::DSAt + ds;
			barrier_wait(shared + C::RowsFull + 8 * stage, count / C::Stages % 2);
			const bool masked = (row < plan.least) | (row > plan.most);
			const bool careful = masked | (plan.odd_keys | loadSharedWord(record + 3 * C::Rows * 4)) != 0;
			int turn = 1; // a look in advance, which seldom has to be repeated
			if (threadIdx.x == 0) turn = Turn<C>(plan, step).here;
			Words P, dS;
			Operands<KF> first, next;
			const OwnProduct<Dv> dV_own(*this, P, t_do + dO);
			const OwnProduct<D> dK_own(*this, dS, t_q + q);
			{
				Scores x, y;
				const ScoreProduct<D> S = {a_k, b_q + q};
				const ScoreProduct<Dv> dP = {a_v, b_do + dO};
				clear(x), clear(y);
				multiply(x, S, first_of(S), [] {});
				careful ? probs<true>(x, P, record, row) : probs<false>(x, P, record, row);
				if (C::Buffers == 1 && count > 0) barrier_wait(shared + C::Taken, (count - 1) % 2);
				first = first_of(dP); // they arrive while P is stored
				store(P, p_tile);
				multiply(y, dP, first, [] {});
				careful ? gradients<true>(x, P, y, dS, record) : gradients<false>(x, P, y, dS, record);
				dV_own.b(0, 0, first.b);
				store(dS, ds_tile);
			}
			if (masked) {
				clear_rows(shared + C::QAt + q, shared + C::DOAt + dO);
				dV_own.b(0, 0, first.b); // once more, from the changed tile
			}
			if (!turn) Turn<C>(plan, step).wait();
			__syncwarp();
			if (lane == 0) barrier_arrive(shared + C::Stored + 8 * buffer);
			const OtherProduct<Dv> dV_other(*this, p_tile, t_do + dO);
			const OtherProduct<D> dK_other(*this, ds_tile, t_q + q);
			const DQProduct dQ_all = {a_ds + ds, t_k};
			dV_own.a(0, first.a), dK_own.a(0, next.a);
			multiply(dV, dV_own, first, [&] { dK_own.b(0, 0, next.b); });
			multiply(dK, dK_own, next, [&] { dV_other.b(0, 0, first.b); });
			barrier_wait(shared + C::Stored + 8 * buffer, count / C::Buffers % 2);
			// All have finished the previous step.
			if (count > 0) {
				if (threadIdx.x == C::Threads - 32) Turn<C>::pass(plan, step.previous(plan.rows));
				if (C::Stages == 2 && count + 1 < steps) rows.fetch(p, plan, shared, step.next(plan.rows), stage ^ 1);
			}
			dV_other.a(0, first.a);
			DQ dQ;
			Operands<DQProduct::M> first_of_dq;
			multiply(dV, dV_other, first, [&] { next = first_of(dK_other); });
			load_dq(dQ, step); // it arrives while the next products run
			multiply(dK, dK_other, next, [&] { first_of_dq = first_of(dQ_all); });
			multiply(dQ.x, dQ_all, first_of_dq, [] {});
			if (C::Buffers == 1) {
				__syncwarp();
				if (lane == 0) barrier_arrive(shared + C::Taken);
			}
			store_dq(dQ, step);
			if (C::Stages == 1 && count + 1 < steps) {
				join(C::Threads);
				rows.fetch(p, plan, shared, step.next(plan.rows), 0);
			}
			step = step.next(plan.rows);
		}
		join(C::Threads); // all have read the tiles
		if (steps > 0 && threadIdx.x == 0) Turn<C>::pass(plan, step.previous(plan.rows));
	}

	// Stores dK and dV.
	__device__ __forceinline__ void end(const Work<C> &work) {
		if (plan.odd_rows) add_odd_rows(work);
		store_keys<D, C::KSlices>(work, dK, p.dK, shared, p.D, p.scale);
		store_keys<Dv, C::VSlices>(work, dV, p.dV, shared + C::VAt, p.Dv, 1);
	}
};

template <class C> __device__ __forceinline__ void backward(const AttnBackwardParams &p) {
	extern __shared__ __align__(128) char memory[];
	const uint32_t shared = heldValue(uint32_t(__cvta_generic_to_shared(memory))); // so that it is not computed again in each step
	if (threadIdx.x == 0) {
		barrier_init(shared + C::KeysFull, Arrival<C>::Copies);
		for (int i = 0; i < C::Stages; i++) barrier_init(shared + C::RowsFull + 8 * i, Arrival<C>::Copies);
		for (int i = 0; i < C::Buffers; i++) barrier_init(shared + C::Stored + 8 * i, C::Warps);
		barrier_init(shared + C::Taken, C::Warps);
		storeSharedWord(shared + C::UnitAt, atomicAdd(Workspace<C>(p).ticket, 1));
	}
	__syncthreads();
	Backward<C> kernel(p, plan_of<C>(shared), shared);
	{
		const Work<C> work(p, loadSharedWord(shared + C::UnitAt));
		if (work.key >= work.s.keys.extent) return;
		RowCopy<C> rows(p, work);
		kernel.run(kernel.begin(work, rows), rows);
	}
	// The unit once more, from the ticket, so that no registers hold it during the steps.
	kernel.end(Work<C>(p, loadSharedWord(shared + C::UnitAt)));
}

} // namespace fa2
