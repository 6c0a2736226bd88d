// The products of decode.cu: S = Q K^T and O^T += V^T P^T, with K and V as they are stored, which lanes convert.
#pragma once
#include "decode_tile.h"

// Bytes 0 and 2, and 1 and 3, of a word of int8. In float16 a byte is added to 1024, in bfloat16 its low seven bits to 128.
template <bool BF16> __device__ __forceinline__ void widenBytes(uint32_t w, uint32_t &even, uint32_t &odd) {
	if constexpr (BF16) {
		const uint32_t other = w >> 8;
		even = subtractPairs<true>(maskFlip(w, 0x007f007f, 0x43004300), maskFlip(w, 0x00800080, 0x43004300));
		odd = subtractPairs<true>(maskFlip(other, 0x007f007f, 0x43004300), maskFlip(other, 0x00800080, 0x43004300));
	} else {
		even = subtractPairs<false>(maskFlip(w, 0x00ff00ff, 0x64806480), 0x64806480);
		odd = subtractPairs<false>(maskFlip(w >> 8, 0x00ff00ff, 0x64806480), 0x64806480);
	}
}
// The same of the low or high halves of bytes, less 8. In float16 a high half is added to 1024 where it is, 16 times as large.
template <bool BF16, bool HIGH> __device__ __forceinline__ void widenNibbles(uint32_t w, uint32_t &even, uint32_t &odd) {
	if constexpr (HIGH && !BF16) {
		const uint32_t sixteenth = 0x2c002c00, less = 0xd480d480; // 64 + 8
		even = fusePairs<false>(maskFlip(w, 0x00f000f0, 0x64006400), sixteenth, less);
		odd = fusePairs<false>(maskFlip(w >> 8, 0x00f000f0, 0x64006400), sixteenth, less);
		return;
	}
	if (HIGH) w >>= 4;
	const uint32_t one = BF16 ? 0x43004300 : 0x64006400, eight = BF16 ? 0x43084308 : 0x64086408;
	even = subtractPairs<BF16>(maskFlip(w, 0x000f000f, one), eight);
	odd = subtractPairs<BF16>(maskFlip(w >> 8, 0x000f000f, one), eight);
}
// Two float8 in the low half of a word.
template <bool BF16> __device__ __forceinline__ uint32_t widenPair(uint32_t two) {
	const uint32_t halves = widenFloat8(two);
	if constexpr (!BF16) return halves;
	return Bfloat::pack(Half::low(halves), Half::low(halves >> 16));
}

// The scales of two blocks. In bfloat16 a scale, of 11 bits, is the sum of two numbers, so that a product is rounded once.
template <bool BF16> struct ScalePair {
	uint32_t high, low;
	__device__ __forceinline__ explicit ScalePair(uint32_t halves) : high(halves), low(0) {
		if constexpr (BF16) {
			const float a = Half::low(halves), b = Half::low(halves >> 16);
			high = Bfloat::pack(a, b);
			const float restA = a - Bfloat::low(high), restB = b - Bfloat::low(high >> 16);
			low = Bfloat::pack(restA == restA ? restA : 0, restB == restB ? restB : 0); // Inf less Inf
		}
	}
	__device__ __forceinline__ uint32_t times(uint32_t x) const {
		if constexpr (BF16) return fusePairs<true>(x, high, multiplyPairs<true>(x, low));
		return multiplyPairs<false>(x, high);
	}
};

// S of eight keys whose rows begin at `row`, the lane's: of key g.
template <class T> __device__ __forceinline__ void multiplyK(float (&s)[4], const uint32_t (&q)[T::D / 16][2], uint32_t rows, int key, int t) {
	s[0] = s[1] = s[2] = s[3] = 0;
	auto multiply = [&](int step, uint32_t b0, uint32_t b1) {
		const uint32_t a[4] = { q[step][0], 0, q[step][1], 0 };
		T::Element::mma(s, a, b0, b1);
	};
	if constexpr (T::TYPE == SAME) {
#pragma unroll
		for (int h = 0; h < T::D / 32; h++) {
			const uint4 w = loadShared(rows + T::chunkAt(key, h * 4 + t));
			multiply(2 * h, w.x, w.y);
			multiply(2 * h + 1, w.z, w.w);
		}
	} else if constexpr (T::SCALED) {
#pragma unroll
		for (int h = 0; h < T::D / 64; h++) {
			const uint4 w = loadShared(rows + T::chunkAt(key, h * 4 + t));
			const uint32_t words[4] = { w.x, w.y, w.z, w.w };
#pragma unroll
			for (int i = 0; i < 4; i++) {
				uint32_t b0, b1;
				if constexpr (T::TYPE == INT8) widenBytes<T::BF16>(words[i], b0, b1);
				else b0 = widenPair<T::BF16>(words[i]), b1 = widenPair<T::BF16>(words[i] >> 16);
				multiply(h * 4 + i, b0, b1);
			}
		}
	} else {
		// A lane has a block of each four, or half of one. The numbers of even blocks begin in the middle of a word.
		constexpr int BLOCKS = T::D >= 128 ? T::D / 128 : 1, LANES = T::D == 64 ? 2 : 1, WORDS = (T::UNIT - 2) / 4 / LANES;
#pragma unroll
		for (int h = 0; h < BLOCKS; h++) {
			const int block = h * 4 + t / LANES;
			const bool odd = block & 1;
			const uint32_t start = rows + key * T::ROW + (block * T::UNIT & ~3), from = start + t % LANES * WORDS * 4;
			uint32_t w[WORDS + 1];
#pragma unroll
			for (int i = 0; i <= WORDS; i++) w[i] = loadSharedWord(from + i * 4);
			const uint32_t which = odd ? 0x7654 : 0x5432;
			const ScalePair<T::BF16> scale(pickBytes(LANES == 1 ? w[0] : loadSharedWord(start), 0, odd ? 0x3232 : 0x1010));
#pragma unroll
			for (int i = 0; i < WORDS; i++) {
				const uint32_t x = pickBytes(w[i], w[i + 1], which);
				uint32_t b0, b1;
				if constexpr (T::TYPE == Q8_0) {
					widenBytes<T::BF16>(x, b0, b1);
					multiply(h * 8 + i, scale.times(b0), scale.times(b1));
				} else {
					widenNibbles<T::BF16, false>(x, b0, b1);
					multiply(h * 8 + i * 2, scale.times(b0), scale.times(b1));
					widenNibbles<T::BF16, true>(x, b0, b1);
					multiply(h * 8 + i * 2 + 1, scale.times(b0), scale.times(b1));
				}
			}
		}
	}
}

// O^T += V^T P^T of 16 keys.
template <class T> __device__ __forceinline__ void multiplyV(float (&o)[T::FRAGMENTS][4], const uint32_t (&p)[2], uint32_t rows, int g, int t) {
	if constexpr (T::TYPE == SAME) { // fragment f has columns 16 f and on
		const int lane = 4 * g + t;
#pragma unroll
		for (int f = 0; f < T::FRAGMENTS; f++) {
			uint32_t a[4];
			ldmatrix_transposed(a, rows + T::chunkAt(lane % 8 + lane / 16 * 8, 2 * f + lane / 8 % 2));
			T::Element::mma(o[f], a, p[0], p[1]);
		}
		return;
	}
	// a[column][pair of keys] of four columns
	auto multiply = [&](int pair, const uint32_t (&a)[4][2]) {
		const uint32_t low[4] = { a[0][0], a[1][0], a[0][1], a[1][1] }, high[4] = { a[2][0], a[3][0], a[2][1], a[3][1] };
		T::Element::mma(o[2 * pair], low, p[0], p[1]);
		T::Element::mma(o[2 * pair + 1], high, p[0], p[1]);
	};
	auto keyOf = [&](int u) { return 2 * t + u % 2 + u / 2 * 8; };
	constexpr int HALVES = T::D == 256 ? 2 : 1;
	if constexpr (T::SCALED) {
		constexpr int WORDS = T::D == 64 ? 2 : 4;
#pragma unroll
		for (int h = 0; h < HALVES; h++) {
			uint32_t w[4][WORDS];
#pragma unroll
			for (int u = 0; u < 4; u++) {
				if constexpr (T::D == 64) {
					const float2 x = loadSharedPair(rows + T::chunkAt(keyOf(u), g / 2) + g % 2 * 8);
					w[u][0] = __float_as_uint(x.x), w[u][1] = __float_as_uint(x.y);
				} else {
					const uint4 x = loadShared(rows + T::chunkAt(keyOf(u), h * 8 + g));
					w[u][0] = x.x, w[u][1] = x.y, w[u][2] = x.z, w[u][3] = x.w;
				}
			}
#pragma unroll
			for (int i = 0; i < WORDS; i++) {
				uint32_t a[4][2];
#pragma unroll
				for (int u = 0; u < 2; u++) {
					if constexpr (T::TYPE == INT8) {
						widenBytes<T::BF16>(pickBytes(w[2 * u][i], w[2 * u + 1][i], 0x5410), a[0][u], a[1][u]);
						widenBytes<T::BF16>(pickBytes(w[2 * u][i], w[2 * u + 1][i], 0x7632), a[2][u], a[3][u]);
					} else {
						const uint32_t low = pickBytes(w[2 * u][i], w[2 * u + 1][i], 0x5140), high = pickBytes(w[2 * u][i], w[2 * u + 1][i], 0x7362);
						a[0][u] = widenPair<T::BF16>(low), a[1][u] = widenPair<T::BF16>(low >> 16);
						a[2][u] = widenPair<T::BF16>(high), a[3][u] = widenPair<T::BF16>(high >> 16);
					}
				}
				multiply(h * 4 + i, a);
			}
		}
	} else {
		constexpr int LANES = T::D == 64 ? 4 : 2, WORDS = (T::UNIT - 2) / 4 / LANES; // lanes of a block
		constexpr int STEPS = T::TYPE == Q4_0 ? 2 * WORDS : WORDS;
#pragma unroll
		for (int h = 0; h < HALVES; h++) {
			const int block = h * 4 + g / LANES;
			const bool odd = block & 1;
			const uint32_t which = odd ? 0x7654 : 0x5432;
			uint32_t w[4][WORDS], scale[4];
#pragma unroll
			for (int u = 0; u < 4; u++) {
				const uint32_t start = rows + keyOf(u) * T::ROW + (block * T::UNIT & ~3), from = start + g % LANES * WORDS * 4;
				scale[u] = pickBytes(loadSharedWord(start), 0, odd ? 0x3232 : 0x1010);
				uint32_t before = loadSharedWord(from);
#pragma unroll
				for (int i = 0; i < WORDS; i++) {
					const uint32_t next = loadSharedWord(from + i * 4 + 4);
					w[u][i] = pickBytes(before, next, which);
					before = next;
				}
			}
			const ScalePair<T::BF16> scales[2] = { ScalePair<T::BF16>(pickBytes(scale[0], scale[1], 0x5410)), ScalePair<T::BF16>(pickBytes(scale[2], scale[3], 0x5410)) };
#pragma unroll
			for (int i = 0; i < STEPS; i++) {
				uint32_t a[4][2];
#pragma unroll
				for (int u = 0; u < 2; u++) {
					const int at = T::TYPE == Q4_0 ? i / 2 : i;
					const uint32_t low = pickBytes(w[2 * u][at], w[2 * u + 1][at], 0x5410), high = pickBytes(w[2 * u][at], w[2 * u + 1][at], 0x7632);
					if constexpr (T::TYPE == Q8_0) widenBytes<T::BF16>(low, a[0][u], a[1][u]), widenBytes<T::BF16>(high, a[2][u], a[3][u]);
					else if (i % 2 == 0) widenNibbles<T::BF16, false>(low, a[0][u], a[1][u]), widenNibbles<T::BF16, false>(high, a[2][u], a[3][u]);
					else widenNibbles<T::BF16, true>(low, a[0][u], a[1][u]), widenNibbles<T::BF16, true>(high, a[2][u], a[3][u]);
#pragma unroll
					for (int k = 0; k < 4; k++) a[k][u] = scales[u].times(a[k][u]);
				}
				multiply(h * STEPS + i, a);
			}
		}
	}
}

// The numbers of a key: K's scale times that of the scores, e, m and 2^-e of V's scale (see the top). An infinite scale of K
// is NaN: elements times it are Inf of both signs, whose products with Q add up to NaN. A scale of V that is Inf or NaN, or
// small, is m itself, so that P in the row sum stays what it is.
__device__ __forceinline__ uint4 scaleNumbers(float k, float v, float scaleLog2) {
	constexpr int LeastExponent = -30, MostExponent = 96;
	const int exponent = int(__float_as_uint(v) >> 23 & 255) - 127;
	const int e = exponent == 128 ? 0 : max(max(min(exponent, MostExponent), exponent - 6), LeastExponent);
	const uint32_t down = uint32_t(127 - e) << 23;
	if ((__float_as_uint(k) & 0x7f800000) == 0x7f800000) k = __uint_as_float(0x7fc00000);
	return make_uint4(__float_as_uint(k * scaleLog2), __float_as_uint(float(e)), __float_as_uint(v * __uint_as_float(down)), down);
}
