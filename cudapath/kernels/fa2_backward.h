// FlashAttention-2's backward pass on mma.sync, for sm_80 and up: five products, dQ in a fixed order, no atomics on floats.
//
// A CTA owns Keys keys of a KV head and loops over the query heads of the group and their blocks of Rows rows. K and V
// stay in shared memory, Q and dO pass through Stages tiles (fa2_backward_copy.h). dK and dV of the keys stay in registers
// until the unit ends.
//   - S^T = K Q^T and dP^T = V dO^T: a warp computes KeyFragments * 16 keys x RowSlices * 16 rows, in registers.
//   - dV += P^T dO and dK += dS^T Q: a warp computes the same keys and a part of the dims. Its own P^T and dS^T are operands
//     in registers. Those of the other rows come from shared memory, so a warp multiplies its own first and then waits for
//     the others at an mbarrier.
//   - In kernels of bfloat16 for any alignment, dS is a sum of two terms (BackwardConfig), and dK and dQ take a product for each.
//   - dQ = dS K: dS^T comes from shared memory, all keys of it. The accumulators start as dQ of the earlier key blocks,
//     loaded from float32 memory in their own layout, and go back there. The last key block scales dQ and rounds it.
// fa2_backward_work.h defines the order. The only barrier of a step is the mbarrier after dS has been stored.
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

	// score * scale + less, capped.
	template <bool Careful> __device__ __forceinline__ float of(float score, float less, float &slope) const {
		if (C::Softcap && cap != 0) return cappedExponent(score * scale, cap, less, slope);
		slope = 1;
		return exponentOf<Careful>(score, scale, less);
	}
};

template <class C> struct Backward {
	using E = typename C::Element;
	static constexpr int KF = C::KeyFragments, RS = C::RowSlices, D = C::D, Dv = C::Dv;
	using Scores = float[KF][2 * RS][4];
	using Words = uint32_t[KF][RS][4]; // P^T or dS^T as the A operand of dV or dK

	const AttnBackwardParams &p;
	const TiledSequence<C> &s;
	const Unit &unit;
	const Span &rows;
	const uint32_t shared;
	int lane, warp, key_warp, row_warp;
	int key;                  // first of the unit
	int least, most;          // first rows of blocks without masked slots: from, and up to
	uint32_t a_k, a_v;        // addresses for ldmatrix: K and V as A operands, first slice
	uint32_t b_q, b_do;       // Q and dO as B operands of S and dP, in stage 0
	uint32_t t_q, t_do;       // Q and dO as transposed B operands of dK and dV, in stage 0, from the first row on
	uint32_t t_k;             // K as the transposed B operand of dQ
	uint32_t a_p, a_ds;       // P^T as the A operand of dV, from the first row on; dS^T as the A operand of dQ
	uint32_t own;             // offset of the warp's keys and rows in P^T and dS^T, as the thread stores them
	float dK[KF][2 * C::KSlices][4], dV[KF][2 * C::VSlices][4];
	bool odd_keys, odd_rows;  // Inf or NaN in K; in Q or dO of a tile with masked slots

	__device__ __forceinline__ Backward(const AttnBackwardParams &params, const TiledSequence<C> &sequence, const Unit &u, const Span &span, uint32_t at)
		: p(params), s(sequence), unit(u), rows(span), shared(at) {
		lane = threadIdx.x % 32;
		warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
		key_warp = warp / C::RowWarps;
		row_warp = warp % C::RowWarps;
		key = unit.block * C::Keys;
		const int low = lane % 16, high = lane / 16, low8 = lane % 8 + lane / 16 * 8, high8 = lane / 8 % 2; // see ldmatrix
		const int first_key = key_warp * KF * 16, first_row = row_warp * RS * 16;
		a_k = shared + chunk_at<D>(first_key + low, high);
		a_v = shared + C::VAt + chunk_at<Dv>(first_key + low, high);
		b_q = shared + C::QAt + chunk_at<D>(first_row + low8, high8);
		b_do = shared + C::DOAt + chunk_at<Dv>(first_row + low8, high8);
		t_q = shared + C::QAt + slice_at<D>(chunk_at<D>(low, high), row_warp);
		t_do = shared + C::DOAt + slice_at<Dv>(chunk_at<Dv>(low, high), row_warp);
		t_k = shared + slice_at<D>(chunk_at<D>(low, high), warp % C::DQDimWarps);
		a_p = chunk_at<C::Rows>(first_key + low, high);
		a_ds = shared + C::DSAt + slice_at<C::Rows>(chunk_at<C::Rows>(low8, high8), warp / C::DQDimWarps * C::DQFragments);
		own = chunk_at<C::Rows>(first_key + lane / 4, row_warp * RS * 2) + lane % 4 * 4;
		const int64_t from = key + C::Keys - 1 - s.right, to = min(key + s.left + 1, int64_t(s.rows.used)) - C::Rows;
		least = int(min(max(from, int64_t(0)), int64_t(INT_MAX)));
		most = key + C::Keys > s.keys.used ? -1 : int(max(to, int64_t(-1)));
		odd_keys = odd_rows = false;
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

	// sum += A B, with K slices of 16 in depth. load_a(k, a) loads M fragments, load_b(k, n, b) one of 16 columns. Fragments
	// are loaded while the products of the previous ones run, those of A only with two buffers.
	template <int K, int M, int N, int ABuffers, class LoadA, class LoadB> static __device__ __forceinline__ void multiply(float (&sum)[M][2 * N][4], LoadA load_a, LoadB load_b) {
		uint32_t a[ABuffers][M][4], b[2][4];
		load_a(0, a[0]);
		load_b(0, 0, b[0]);
#pragma unroll
		for (int k = 0; k < K; k++) {
#pragma unroll
			for (int n = 0; n < N; n++) {
				const int now = (k * N + n) % 2;
				if (n + 1 < N) {
					load_b(k, n + 1, b[now ^ 1]);
				} else if (k + 1 < K) {
					load_b(k + 1, 0, b[now ^ 1]);
					if (ABuffers == 2) load_a(k + 1, a[(k + 1) % ABuffers]);
				}
#pragma unroll
				for (int i = 0; i < M; i++) {
					E::mma(sum[i][2 * n], a[k % ABuffers][i], b[now][0], b[now][1]);
					E::mma(sum[i][2 * n + 1], a[k % ABuffers][i], b[now][2], b[now][3]);
				}
			}
			if (ABuffers == 1 && k + 1 < K) load_a(k + 1, a[0]);
		}
	}

	// x = A B^T, with A of the warp's keys and B of its rows.
	template <int Dim> static __device__ __forceinline__ void scores(Scores &x, uint32_t a_at, uint32_t b_at) {
		clear(x);
		multiply<Dim / 16, KF, RS, 2>(
			x,
			[&](int d, uint32_t (&a)[KF][4]) {
#pragma unroll
				for (int i = 0; i < KF; i++) ldmatrix(a[i], slice_at<Dim>(a_at, d) + i * 16 * Dim * 2);
			},
			[&](int d, int n, uint32_t (&b)[4]) { ldmatrix(b, slice_at<Dim>(b_at, d) + n * 16 * Dim * 2); });
	}

	// sum += A B for the warp's own rows, with A in registers and B of all rows at b_at.
	template <int Dim, int Slices> __device__ __forceinline__ void add_own(float (&sum)[KF][2 * Slices][4], const Words &words, uint32_t b_at) const {
		const uint32_t own_at = b_at + row_warp * RS * 16 * Dim * 2;
		multiply<RS, KF, Slices, 1>(
			sum,
			[&](int k, uint32_t (&a)[KF][4]) {
#pragma unroll
				for (int i = 0; i < KF; i++)
#pragma unroll
					for (int e = 0; e < 4; e++) a[i][e] = words[i][k][e];
			},
			[&](int k, int n, uint32_t (&b)[4]) { ldmatrix_transposed(b, slice_at<Dim>(own_at, n * C::RowWarps) + k * 16 * Dim * 2); });
	}

	// sum += A B for the rows of the other warps, with A in shared memory.
	template <int Dim, int Slices> __device__ __forceinline__ void add_others(float (&sum)[KF][2 * Slices][4], uint32_t tile, uint32_t b_at) const {
		if constexpr (C::RowWarps > 1) {
			auto slice_of = [&](int k) { return (row_warp ^ (1 + k / RS)) * RS + k % RS; };
			multiply<(C::RowWarps - 1) * RS, KF, Slices, 1>(
				sum,
				[&](int k, uint32_t (&a)[KF][4]) {
#pragma unroll
					for (int i = 0; i < KF; i++) ldmatrix(a[i], slice_at<C::Rows>(tile + a_p, slice_of(k)) + i * 16 * C::Rows * 2);
				},
				[&](int k, int n, uint32_t (&b)[4]) { ldmatrix_transposed(b, slice_at<Dim>(b_at, n * C::RowWarps) + slice_of(k) * 16 * Dim * 2); });
		}
	}

	__device__ __forceinline__ void store(const Words &words, uint32_t tile) const {
#pragma unroll
		for (int i = 0; i < KF; i++)
#pragma unroll
			for (int n = 0; n < RS; n++)
#pragma unroll
				for (int e = 0; e < 4; e++) storeSharedWord((tile + own ^ (2 * n + e / 2) * 16) + (i * 16 + e % 2 * 8) * C::Rows * 2, words[i][n][e]);
	}

	// P^T from S^T: words are P. With FloatP, x becomes P, times the derivative of a softcap. Careful: the tile may have masked
	// slots, keys with Inf or NaN, and rows with a large LSE. row is the first of the tile.
	template <bool Careful> __device__ __forceinline__ void probs(Scores &x, Words &words, uint32_t record, int row) const {
		const Exponent<C> exponent(p);
		const int in_tile = row_warp * RS * 16 + lane % 4 * 2, key_here = key_warp * KF * 16 + lane / 4;
#pragma unroll
		for (int n = 0; n < 2 * RS; n++) {
			const float2 less = loadSharedPair(record + (in_tile + 8 * n) * 4);
			float2 rest;
			int from[2], to[2]; // keys that the thread's rows attend to, relative to its first key
			if constexpr (Careful) {
				rest = loadSharedPair(record + (2 * C::Rows + in_tile + 8 * n) * 4);
#pragma unroll
				for (int e = 0; e < 2; e++) {
					const int64_t r = row + in_tile + 8 * n + e, first = key + key_here;
					from[e] = int(min(max(r - s.left - first, int64_t(-1)), int64_t(C::Keys)));
					to[e] = r < s.rows.used ? int(min(max(min(r + s.right, int64_t(s.keys.used) - 1) - first, int64_t(-1)), int64_t(C::Keys))) : -1;
				}
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
							if (odd_keys && loadSharedByte(shared + C::OddKeysAt + key_here + c)) P[e] = __int_as_float(0x7fffffff);
							if (c < from[e] || c > to[e]) P[e] = 0;
						}
						if (C::FloatP) x[i][n][2 * h + e] = P[e] * slope[e];
					}
					words[i][n / 2][n % 2 * 2 + h] = E::pack(P[0], P[1]);
				}
			}
		}
	}

	// dS^T = P (dP - delta), without the factor scale. words are its terms. Without FloatP, P is that of the product for dV. With FloatP, x is P, times
	// the derivative of a softcap. Without a softcap P is then rounded once more, so that the words of probs() need no registers
	// during the product for dP. Careful: a product with 0 is 0.
	template <bool Careful> __device__ __forceinline__ void gradients(const Scores &x, Words &P, const Scores &dP, Words (&words)[C::Terms], uint32_t record) const {
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
					uint32_t &two = words[0][i][n / 2][n % 2 * 2 + h];
					two = E::pack(low, high);
					// The rest of Inf and NaN is 0.
					if constexpr (C::Terms == 2) {
						const uint32_t odd = notFinite<E::infinity>(two);
						words[1][i][n / 2][n % 2 * 2 + h] = E::pack(odd & 0x8000 ? 0 : low - E::low(two), odd >> 16 ? 0 : high - E::low(two >> 16));
					}
				}
			}
		}
	}

	// The warp's part of dQ of a step, and where it lies in the workspace.
	struct DQ {
		static constexpr int F = C::DQFragments, N = 2 * C::DQSlices;
		float x[F][N][4];
		float *held;
		bool ends; // no other key block follows
	};

	// Loads the sum of the earlier key blocks.
	__device__ __forceinline__ void load_dq(DQ &dQ, const Step &step) const {
		const Span keys = s.key_blocks(step.block);
		const Workspace<C> space(p);
		dQ.held = space.dQ + space.index(p, s, step.head, step.block) * space.DQFloats + (warp * DQ::F * DQ::N * 32 + lane) * 4;
		dQ.ends = keys.first == unit.block;
		const bool follows = p.dQ.base != 0 && keys.end - 1 != unit.block;
#pragma unroll
		for (int i = 0; i < DQ::F; i++)
#pragma unroll
			for (int n = 0; n < DQ::N; n++) {
				const float4 x = load_l2_if(follows, dQ.held + (i * DQ::N + n) * 128);
				dQ.x[i][n][0] = x.x, dQ.x[i][n][1] = x.y, dQ.x[i][n][2] = x.z, dQ.x[i][n][3] = x.w;
			}
	}

	// Adds dS K of a step and stores the sum.
	__device__ __forceinline__ void add_dq(DQ &dQ, const Step &step, uint32_t ds_at) const {
		constexpr int F = DQ::F, N = DQ::N;
#pragma unroll 1 // unrolled, terms spill at head dim 256
		for (int term = 0; term < C::Terms; term++)
			multiply<C::Keys / 16, F, C::DQSlices, 2>(
				dQ.x,
				[&](int k, uint32_t (&a)[F][4]) {
#pragma unroll
					for (int i = 0; i < F; i++) ldmatrix_transposed(a[i], slice_at<C::Rows>(ds_at, i) + term * C::ProbBytes + k * 16 * C::Rows * 2);
				},
				[&](int k, int n, uint32_t (&b)[4]) { ldmatrix_transposed(b, slice_at<D>(t_k, n * C::DQDimWarps) + k * 16 * D * 2); });
		if (p.dQ.base == 0) return; // not requested, which is rare: a branch around the products would cost registers
		if (!dQ.ends) {
#pragma unroll
			for (int i = 0; i < F; i++)
#pragma unroll
				for (int n = 0; n < N; n++) store_l2(dQ.held + (i * N + n) * 128, make_float4(dQ.x[i][n][0], dQ.x[i][n][1], dQ.x[i][n][2], dQ.x[i][n][3]));
			return;
		}
		char *out = s.rowsOf(p, p.dQ, step.head);
#pragma unroll
		for (int i = 0; i < F; i++) {
#pragma unroll
			for (int h = 0; h < 2; h++) {
				const int row = step.block * C::Rows + (warp / C::DQDimWarps * F + i) * 16 + h * 8 + lane / 4;
				if (row >= s.rows.used) continue;
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
	__device__ __forceinline__ void store_keys(const float (&sum)[KF][2 * Slices][4], const AttnTensor &t, uint32_t tile, int dims, float scale, bool none) const {
		if (t.base == 0 || (none && p.accumulate & 1)) return;
		typename E::type *const out = (typename E::type *)s.keysOf(p, t, unit.head);
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
		if (unit.block == unit.blocks - 1 && key + C::Keys < end) {
			for (int64_t i = threadIdx.x; i < int64_t(end - key - C::Keys) * dims; i += C::Threads)
				((uint16_t *)out)[(key + C::Keys + i / dims) * t.row + i % dims] = 0;
		}
	}

#include "fa2_backward_odd.h"

	__device__ __forceinline__ void run() {
		const int group = p.Hq / p.Hkv, steps = group * (rows.end - rows.first);
		const bool ordered = p.dQ.base != 0;
		Step step = {unit.head * group, rows.first};
		if (steps > 0) {
			copy_keys<C>(p, shared, s, unit);
			copy_rows<C>(p, shared, s, step, 0);
			if (C::Stages == 2 && steps > 1) copy_rows<C>(p, shared, s, step.next(rows), 1);
			barrier_wait(shared + C::KeysFull, 0);
			if (rows.first * C::Rows < least || (rows.end - 1) * C::Rows > most) odd_keys = clear_keys();
		}
#pragma unroll 1
		for (int count = 0; count < steps; count++) {
			const int stage = count % C::Stages, buffer = count % C::Buffers, row = step.block * C::Rows;
			const uint32_t record = shared + C::RecordsAt + stage * C::RecordBytes, q = stage * C::QBytes, dO = stage * C::DOBytes;
			const uint32_t p_tile = shared + C::PAt + buffer * C::ProbBytes, ds = buffer * C::DSBytes, ds_tile = shared + C::DSAt + ds;
			const bool masked = row < least || row > most;
			barrier_wait(shared + C::RowsFull + 8 * stage, count / C::Stages % 2);
			const bool careful = masked || odd_keys || loadSharedWord(record + 3 * C::Rows * 4);
			bool turn = true; // a look in advance, which seldom has to be repeated
			if (ordered && threadIdx.x == 0) turn = Turn<C>(p, s, unit, step).here;
			Words P, dS[C::Terms];
			{
				Scores x, y;
				scores<D>(x, a_k, b_q + q);
				careful ? probs<true>(x, P, record, row) : probs<false>(x, P, record, row);
				if (C::Buffers == 1 && count > 0) join(C::Threads); // all have read P and dS of the previous step
				store(P, p_tile);
				scores<Dv>(y, a_v, b_do + dO);
				careful ? gradients<true>(x, P, y, dS, record) : gradients<false>(x, P, y, dS, record);
#pragma unroll
				for (int term = 0; term < C::Terms; term++) store(dS[term], ds_tile + term * C::ProbBytes);
			}
			if (masked) clear_rows(shared + C::QAt + q, shared + C::DOAt + dO);
			if (!turn) Turn<C>(p, s, unit, step).wait();
			__syncwarp();
			if (lane == 0) barrier_arrive(shared + C::Stored + 8 * buffer);
			add_own<Dv, C::VSlices>(dV, P, t_do + dO);
#pragma unroll
			for (int term = 0; term < C::Terms; term++) add_own<D, C::KSlices>(dK, dS[term], t_q + q);
			barrier_wait(shared + C::Stored + 8 * buffer, count / C::Buffers % 2);
			// All have finished the previous step.
			if (count > 0) {
				if (ordered && threadIdx.x == C::Threads - 32) Turn<C>::pass(p, s, unit, step.previous(rows));
				if (C::Stages == 2 && count + 1 < steps) copy_rows<C>(p, shared, s, step.next(rows), stage ^ 1);
			}
			DQ dQ;
			add_others<Dv, C::VSlices>(dV, p_tile, t_do + dO);
			load_dq(dQ, step); // it arrives while the next products run
#pragma unroll 1
			for (int term = 0; term < C::Terms; term++) add_others<D, C::KSlices>(dK, ds_tile + term * C::ProbBytes, t_q + q);
			add_dq(dQ, step, a_ds + ds);
			if (C::Stages == 1 && count + 1 < steps) {
				join(C::Threads);
				copy_rows<C>(p, shared, s, step.next(rows), 0);
			}
			step = step.next(rows);
		}
		join(C::Threads); // all have read the tiles
		if (ordered && steps > 0 && threadIdx.x == 0) Turn<C>::pass(p, s, unit, step.previous(rows));
		if (odd_rows) add_odd_rows();
		store_keys<D, C::KSlices>(dK, p.dK, shared, p.D, p.scale, steps == 0);
		store_keys<Dv, C::VSlices>(dV, p.dV, shared + C::VAt, p.Dv, 1, steps == 0);
	}
};

template <class C> __device__ __forceinline__ void backward(const AttnBackwardParams &p) {
	extern __shared__ __align__(128) char memory[];
	const uint32_t shared = uint32_t(__cvta_generic_to_shared(memory));
	if (threadIdx.x == 0) {
		barrier_init(shared + C::KeysFull, Arrival<C>::Copies);
		for (int i = 0; i < C::Stages; i++) barrier_init(shared + C::RowsFull + 8 * i, Arrival<C>::Copies);
		for (int i = 0; i < C::Buffers; i++) barrier_init(shared + C::Stored + 8 * i, C::Warps);
		storeSharedWord(shared + C::UnitAt, atomicAdd(Workspace<C>(p).ticket, 1));
	}
	__syncthreads();
	const Unit unit = unit_of<C>(p, loadSharedWord(shared + C::UnitAt));
	const TiledSequence<C> s(p, unit.batch);
	if (unit.block * C::Keys >= s.keys.extent) return;
	const Span rows = s.row_blocks(unit.block);
	Backward<C>(p, s, unit, rows, shared).run();
}

} // namespace fa2
