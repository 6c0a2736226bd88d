// What the kernels of fa2.h do in addition in a call with options: lengths, masks, changes of a score, paged K and V, sinks, and any
// alignment. All are decided at run time, by branches that a CTA takes as one, so that one kernel takes every combination.
//
// The host refuses more than MaxLength rows or keys a sequence, so that sums of positions and windows fit 32 bits.
#pragma once
#include "attn_general.h"
#include "backward_sequence.h"
#include "fa2_tile.h"

namespace fa2 {

constexpr int MaxLength = 1 << 29;

// A Config for calls with options.
template <class Base> struct GeneralConfig : Base {
	using Params = AttnGeneralParams;
	static constexpr bool General = true;
};

// The rows and keys of a CTA in a call with options.
template <class C, bool = C::General> struct Bounds {};

template <class C> struct Bounds<C, true> {
	Extent rows, keys;
	int left, right; // row r attends to keys [r - left, r + right] of those in use
	int offset;      // row r is at key r + offset
	int first_key;   // of the first KV tile
	int open, close; // all rows attend to keys [open, close)
	int end;         // no row attends to keys from here on
	float slope;     // of ALiBi
	bool masked;     // the current tile has keys that a row does not attend to

	__device__ __forceinline__ void of_sequence(const AttnGeneralParams &p, int batch, int head) {
		auto clamp = [](int n, int most) { return max(min(n, most), 0); };
		rows = Extent::of(p.cu_q, p.used_q, batch, p.total_q, p.Sq, clamp);
		keys = Extent::of(p.cu_k, p.used_k, batch, p.total_k, p.Sk, clamp);
		offset = p.bottom_right ? keys.used - rows.used : 0;
		left = min(min(p.left, MaxLength) - offset, MaxLength);
		right = min(min(p.right, MaxLength) + offset, MaxLength);
		slope = p.alibi != 0 ? ((const float *)p.alibi)[head] : 0;
	}

	// Sets the keys of the rows from `row` on.
	__device__ __forceinline__ void of_rows(int row) {
		const int last = min(row + C::Rows, rows.used) - 1;
		first_key = max(row - left, 0) / C::Cols * C::Cols;
		end = min(keys.used, last + right + 1);
		open = max(last - left, 0);
		close = min(keys.used, row + right + 1);
	}

	__device__ __forceinline__ bool attends(int row, int key) const { return key < keys.used && key <= row + right && key >= row - left; }
};

// Copies a chunk of 16 bytes to shared memory, or zeros.
__device__ __forceinline__ void copy_chunk(uint32_t to, const char *from, bool there, int col, int dim, bool unaligned) {
	if (unaligned) store_chunk(to, from, there, col, dim);
	else copy_async(to, from, there && col < dim ? 16 : 0);
}

// softcap * tanh(y). Near 0 a polynomial, as 1 - e cancels there.
__device__ __forceinline__ float capped(float y, float softcap) {
	const float e = exp2Approx(-2 * 1.44269504f * fabsf(y)), z = y * y;
	const float t = copysignf(__fdividef(1 - e, 1 + e), y);
	return softcap * (fabsf(y) < 0.05f ? y * (1 - z * (0.33333333f - z * 0.13333333f)) : t);
}

// Changes scores to natural units, by softcap and ALiBi. `at` is the position of the lane's first row relative to its first key.
template <int MFragments, int N> __device__ __forceinline__ void change_scores(const AttnGeneralParams &p, float slope, float (&s)[MFragments][N][4], int at) {
	const float scale = p.score_scale;
	if (p.softcap != 0) {
#pragma unroll
		for (int i = 0; i < MFragments; i++)
#pragma unroll
			for (int n = 0; n < N; n++)
#pragma unroll
				for (int e = 0; e < 4; e++) s[i][n][e] = capped(s[i][n][e] * scale, p.softcap);
	} else {
#pragma unroll
		for (int i = 0; i < MFragments; i++)
#pragma unroll
			for (int n = 0; n < N; n++)
#pragma unroll
				for (int e = 0; e < 4; e++) s[i][n][e] *= scale;
	}
	if (p.alibi == 0) return;
	const float first = float(at);
#pragma unroll
	for (int i = 0; i < MFragments; i++)
#pragma unroll
		for (int n = 0; n < N; n++)
#pragma unroll
			for (int e = 0; e < 4; e++) s[i][n][e] = fmaf(-slope, fabsf(first + float(i * 16 + e / 2 * 8 - n * 8 - e % 2)), s[i][n][e]);
}

// Adds a sink to lse, which may be -INFINITY. Returns the share of the keys in the row sum. A sink of NaN or +Inf makes its rows NaN.
__device__ __forceinline__ float take_sink(float sink, float &lse) {
	if (!(sink < INFINITY)) return lse = NAN;
	const float keys = lse, highest = fmaxf(keys, sink);
	if (keys != keys || highest == -INFINITY) return 1;
	lse = highest + logf(expf(keys - highest) + expf(sink - highest));
	return keys == -INFINITY ? 1 : 1 / (1 + expf(sink - keys));
}

} // namespace fa2
