// What the kernels of fa2.h do in addition in a call with options: lengths, masks, changes of a score, paged K and V, sinks, dropout,
// and any alignment. All are decided at run time, by branches that a CTA takes as one, so that one kernel takes every combination.
//
// The host refuses more than MaxLength rows or keys a sequence, so that sums of positions and windows fit 32 bits.
#pragma once
#include "attn_general.h"
#include "backward_sequence.h"
#include "fa2_tile.h"

namespace fa2 {

constexpr int MaxLength = 1 << 29;

// A Config for calls with options. Slots: with those that a row has for each key, a bias, a mask and dropout, too. They take registers.
template <class Base, bool Slots_> struct GeneralConfig : Base {
	using Params = AttnGeneralParams;
	static constexpr bool General = true, Slots = Slots_;
};

// Whether a Config takes options of slots.
template <class C, bool = C::General> constexpr bool TakesSlots = false;
template <class C> constexpr bool TakesSlots<C, true> = C::Slots;

// The rows and keys of a CTA in a call with options.
template <class C, bool = C::General> struct Bounds {};

template <class C> struct Bounds<C, true> {
	Extent rows, keys;
	int left, right; // row r attends to keys [r - left, r + right] of those in use
	int offset;      // row r is at key r + offset
	int first_key;   // of the first KV tile
	int open, close; // all rows attend to keys [open, close)
	int end;         // no row attends to keys from here on
	float top;       // the largest score of the lane
	bool masked;     // the current tile has keys that a row does not attend to

	__device__ __forceinline__ void of_sequence(const AttnGeneralParams &p, int batch, int head) {
		auto clamp = [](int n, int most) { return max(min(n, most), 0); };
		rows = Extent::of(p.cu_q, p.used_q, batch, p.total_q, p.Sq, clamp);
		keys = Extent::of(p.cu_k, p.used_k, batch, p.total_k, p.Sk, clamp);
		offset = p.bottom_right ? keys.used - rows.used : 0;
		left = min(min(p.left, MaxLength) - offset, MaxLength);
		right = min(min(p.right, MaxLength) + offset, MaxLength);
		top = -INFINITY;
	}

	// Sets the keys of the rows from `row` on.
	__device__ __forceinline__ void of_rows(int row) {
		const int last = min(row + C::Rows, rows.used) - 1;
		first_key = max(row - left, 0) / C::Cols * C::Cols;
		end = min(keys.used, last + right + 1);
		open = max(last - left, 0);
		close = min(keys.used, row + right + 1);
	}

	__device__ __forceinline__ bool attends(const AttnGeneralParams &p, int batch, int head, int row, int key) const {
		if (row >= rows.used || key >= keys.used || key > row + right || key < row - left) return false;
		return !TakesSlots<C> || p.mask == 0 || ((const char *)p.mask)[batch * p.mask_batch + head * p.mask_head + row * p.mask_row + key] != 0;
	}
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

// Changes scores to natural units, by softcap and ALiBi. `at` is the position of the lane's first row relative to its first key. The slope
// is read in each step: a register for it would cost the kernels of slots at head dim 128 a spill.
template <int MFragments, int N>
__device__ __forceinline__ void change_scores(const AttnGeneralParams &p, float (&s)[MFragments][N][4], int batch, int head, int at) {
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
	const float first = float(at), slope = ((const float *)p.alibi)[int64_t(batch) * p.alibi_batch + head];
#pragma unroll
	for (int i = 0; i < MFragments; i++)
#pragma unroll
		for (int n = 0; n < N; n++)
#pragma unroll
			for (int e = 0; e < 4; e++) s[i][n][e] = fmaf(-slope, fabsf(first + float(i * 16 + e / 2 * 8 - n * 8 - e % 2)), s[i][n][e]);
}

// Raises top to the largest of a lane's scores. Padding rows, from `rows` on, and NaN do not count.
template <int MFragments, int N> __device__ __forceinline__ void raise_top(float &top, const float (&s)[MFragments][N][4], int row, int rows) {
#pragma unroll
	for (int i = 0; i < MFragments; i++)
#pragma unroll
		for (int j = 0; j < 2; j++)
			if (row + i * 16 + j * 8 < rows) {
#pragma unroll
				for (int n = 0; n < N; n++) top = fmaxf(top, fmaxf(s[i][n][2 * j], s[i][n][2 * j + 1]));
			}
}

// Calls f(score, at) of the slots of a lane that lie in the sequence. `row` and `key` are its first; `at` is where the row's first key is
// in a tensor of steps, whose elements the host counts in 32 bits, and how much further the slot's is.
template <class C, int N, class F>
__device__ __forceinline__ void each_slot(const Bounds<C> &bounds, float (&s)[C::MFragments][N][4], int row, int key, uint32_t first, uint32_t row_step, F f) {
	const int left = bounds.keys.used - key;
	uint32_t at = first + row * row_step + key;
#pragma unroll
	for (int i = 0; i < C::MFragments; i++)
#pragma unroll
		for (int j = 0; j < 2; j++) {
			if (row + i * 16 + j * 8 < bounds.rows.used) {
#pragma unroll
				for (int n = 0; n < N; n++)
#pragma unroll
					for (int e = 0; e < 2; e++)
						if (n * 8 + e < left) f(s[i][n][2 * j + e], at, n * 8 + e);
			}
			at += 8 * row_step;
		}
}

// A score with its bias. Its product with log2(e), and so the row max, must be finite where the score is: scores beyond HugeScore have
// half their distance from it, and LSE twice (huge_lse). Weights stay what they are, since such scores are equal or far apart.
constexpr float HugeScore = 0x1p126f;

__device__ __forceinline__ float biased(float x, float bias) {
	const float y = x + bias;
	return fabsf(y) > HugeScore ? fmaf(y, 0.5f, copysignf(HugeScore / 2, y)) : y;
}

__device__ __forceinline__ float huge_lse(float lse) {
	if (!(fabsf(lse) > HugeScore && fabsf(lse) < INFINITY)) return lse;
	return copysignf(fminf(fmaf(2, fabsf(lse), -HugeScore), 3.4028234663852886e38f), lse);
}

// Stores the largest score of a warp's lanes in max_logits. All warps of a head do so, in any order.
__device__ __forceinline__ void store_top(const AttnGeneralParams &p, int head, float top, int lane) {
#pragma unroll
	for (int n = 16; n > 0; n /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, n));
	if (lane != 0 || !(top > -INFINITY)) return;
	top = p.changes ? huge_lse(top) : p.scale == 0 ? 0 : top * fabsf(p.scale);
	float *to = (float *)p.max_logits + head;
	if (top >= 0) atomicMax((int *)to, __float_as_int(top + 0.0f));
	else atomicMin((unsigned *)to, __float_as_uint(top));
}

// Adds the bias to scores.
template <class C, int N>
__device__ __forceinline__ void add_bias(const AttnGeneralParams &p, const Bounds<C> &bounds, float (&s)[C::MFragments][N][4], int batch, int head, int row, int key) {
	const uint32_t first = batch * uint32_t(p.bias_batch) + head * uint32_t(p.bias_head);
	if (p.bias_type == BIAS_F32) {
		each_slot(bounds, s, row, key, first, uint32_t(p.bias_row), [&](float &x, uint32_t at, int k) { x = biased(x, ((const float *)p.bias + at)[k]); });
	} else {
		const bool half = p.bias_type == BIAS_F16;
		each_slot(bounds, s, row, key, first, uint32_t(p.bias_row), [&](float &x, uint32_t at, int k) {
			const uint32_t b = ((const unsigned short *)p.bias + at)[k];
			x = biased(x, half ? Half::low(b) : Bfloat::low(b));
		});
	}
}

// Excludes the keys that the mask excludes.
template <class C, int N>
__device__ __forceinline__ void take_mask(const AttnGeneralParams &p, const Bounds<C> &bounds, float (&s)[C::MFragments][N][4], int batch, int head, int row, int key) {
	const uint32_t first = batch * uint32_t(p.mask_batch) + head * uint32_t(p.mask_head);
	each_slot(bounds, s, row, key, first, uint32_t(p.mask_row), [&](float &x, uint32_t at, int k) {
		if (((const char *)p.mask + at)[k] == 0) x = -INFINITY;
	});
}

// The seed and offset of dropout (see Moved in internal/dropout).
struct DropSeed {
	uint64_t seed;
	uint32_t offset;

	__device__ __forceinline__ explicit DropSeed(const AttnGeneralParams &p) : seed(p.drop_seed), offset(p.drop_offset) {
		if (p.drop_state == 0) return;
		const uint32_t *state = (const uint32_t *)p.drop_state;
		const uint64_t sum = offset + (state[2] | uint64_t(state[3]) << 32);
		seed += (state[0] | uint64_t(state[1]) << 32) + (sum >> 32);
		offset = uint32_t(sum);
	}
};

// Philox4x32-10 of four keys of a row: bit i is 1 if key 4 * quad + i keeps its weight (see internal/dropout).
__device__ __forceinline__ uint32_t kept_of_four(const AttnGeneralParams &p, const DropSeed &of, uint32_t head, uint32_t row, uint32_t quad) {
	uint32_t x = quad, y = row, z = head, w = of.offset, low = uint32_t(of.seed), high = uint32_t(of.seed >> 32);
#pragma unroll
	for (int i = 0; i < 10; i++) {
		const uint64_t a = uint64_t(0xd2511f53u) * x, b = uint64_t(0xcd9e8d57u) * z;
		x = uint32_t(b >> 32) ^ y ^ low, y = uint32_t(b), z = uint32_t(a >> 32) ^ w ^ high, w = uint32_t(a);
		low += 0x9e3779b9u, high += 0xbb67ae85u;
	}
	return uint32_t(x >= p.drop_threshold) | uint32_t(y >= p.drop_threshold) << 1 | uint32_t(z >= p.drop_threshold) << 2 | uint32_t(w >= p.drop_threshold) << 3;
}

// Clears the weights that dropout drops. The words of four keys are those of two lanes: of each two rows a lane computes one.
template <int MFragments, int N> __device__ __forceinline__ void drop(const AttnGeneralParams &p, uint32_t (&w)[MFragments][N][4], uint32_t head, int row, int key, int lane) {
	const DropSeed of(p);
	const int odd = lane & 1;
#pragma unroll
	for (int i = 0; i < MFragments; i++)
#pragma unroll
		for (int n = 0; n < 2 * N; n++) {
			const uint32_t mine = kept_of_four(p, of, head, row + i * 16 + odd * 8, (key + n * 8) / 4), other = __shfl_xor_sync(~0u, mine, 1);
			const uint32_t kept[2] = {(odd ? other : mine) >> 2 * odd, (odd ? mine : other) >> 2 * odd};
#pragma unroll
			for (int j = 0; j < 2; j++) w[i][n / 2][n % 2 * 2 + j] &= (kept[j] & 1 ? 0xffff : 0) | (kept[j] & 2 ? 0xffff0000 : 0);
		}
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
