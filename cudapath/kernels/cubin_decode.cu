// Decode over quantized K and V for sm_90a, launched from a Vulkan command buffer: few query rows, many keys.
//
// A CTA owns up to eight query heads of one KV head, at one row of a sequence, and one split of the keys. All of them attend
// to the same keys, the first `limit` of the sequence: no mask is needed, and what lies behind becomes zeros when it is
// copied. Each warp takes KV tiles of KEYS keys in turn, with an online softmax of its own:
//   registers      Q (A of S = Q K^T, rows 8 to 15 zero); O^T (accumulator of O^T += V^T P^T); row max, row sum
//   shared memory  of each warp a ring of STAGES tiles as stored, and their scales, which cp.async fills
//   global memory  partial states of the splits and a counter of each row tile. The CTA that counts last combines them
//                  and leaves the counter at 0.
// P^T as B operand has the layout of S as accumulator, so P needs no exchange. A row of K or V in shared memory is read in
// words; lanes convert them to pairs of 16-bit numbers in an order of columns that costs nothing, the same for Q and K, and
// the epilogue puts O in order. Chunks of rows of int8 and float8 are swizzled against bank conflicts.
//
// int8 and float8 are multiplied without their scales: S is multiplied by K's. V's is m 2^e, 1 <= m < 2: e is added to the
// score, so that the row max knows it, P is multiplied by m, and the row sum takes P 2^-e. Blocks of q8_0 and q4_0 are
// multiplied by their scale as they are converted, rounded once.
//
// Barriers: a warp waits for its own copies only. The CTA meets three times behind the loop: when the rings are free for O,
// when O of all warps is there, and around the counter.
//
// The build passes the tiles as macros (see build/cubin.go). Entries: attn_cubin_decode_<f16|bf16>_d<D>_<KV type>
// (DecodeParams), with the grid (row tiles times splits, KV heads, batch).
#include <type_traits>

#include "decode_ptx.h"

// Mirrored by the host. Strides of Q and O are in elements, of K and V in bytes; batch is a page's if there is a table.
struct DecodeTensor {
	uint64_t base;
	int64_t batch, head, row;
};

struct DecodeParams {
	DecodeTensor q, k, v, o;
	uint64_t kScale, vScale; // float32 [batches or pages, Hkv, scaleGroups]; int8 and float8 only
	uint64_t lse;            // float32 [B, Hq, Sq], packed [Hq, totalQ]; 0: not requested
	uint64_t cuQ, cuK;       // int32 [B + 1]: where sequences begin in packed rows and keys; 0: not packed
	uint64_t usedQ, usedK;   // int32 [B]: rows and keys of a sequence; 0: all of its range
	uint64_t table;          // int32 [B, tableStride]: pages of a sequence; 0: not paged
	uint64_t counters;       // uint32, one of each row tile, 0
	uint64_t partial;        // float32 [row tile, split, row, D + 4]: O, row max, row sum
	int32_t B, Hq, Hkv, Sq, Sk;   // Sq and Sk: the most of a sequence
	int32_t totalQ, totalK;       // packed rows and keys
	int32_t causal;               // 0: none; 1: row r is at key r; 2: the last row is at the last key
	int32_t splits;
	int32_t pageSize, pages, tableStride; // keys of a page, a multiple of 16
	int32_t scaleGroups, scaleBlock;      // entries of a KV head and batch or page; keys of an entry
	int32_t wideK, wideV;                 // 1: 16 bytes a copy; otherwise 4
	float scaleLog2;                      // score scale times log2(e), not 0
	float unitHigh, unitLow;              // as in attn.h
	uint32_t kRow, vRow, kPage, vPage;    // strides of rows, and of pages: 0 without a table
	uint32_t scalePage;                   // scales of a page
};
static_assert(sizeof(DecodeParams) == 304, "DecodeParams is mirrored by the host");

enum KVType { INT8 = 1, FP8 = 2, Q8_0 = 3, Q4_0 = 4 };

constexpr float RowMaxInit = -3.4028234663852886e38f;
constexpr float Lag = 8; // the row max is exceeded by as many powers of two before it is renewed
constexpr int Sub = 16;  // keys of a product

template <bool BF16_, int TYPE_, int D_, int WARPS_, int STAGES_, int KEYS_> struct DecodeTile {
	static constexpr bool BF16 = BF16_;
	static constexpr int TYPE = TYPE_, D = D_, WARPS = WARPS_, STAGES = STAGES_, KEYS = KEYS_;
	using Element = typename std::conditional<BF16, Bfloat, Half>::type;
	static constexpr bool SCALED = TYPE == INT8 || TYPE == FP8;       // a scale per key, not per block
	static constexpr int UNIT = TYPE == Q8_0 ? 34 : TYPE == Q4_0 ? 18 : 32; // bytes of 32 elements
	static constexpr int ROW = D / 32 * UNIT;
	static constexpr int TILE = KEYS * ROW, STAGE = 2 * TILE + (SCALED ? 2 * 4 * KEYS : 0);
	static constexpr int RING = STAGES * STAGE, AREA = RING + (SCALED ? 16 * Sub : 0); // of a warp, with the numbers of scales
	static constexpr int PITCH = D + 4;                                                // of O in shared memory, float32
	static constexpr int OUTPUT = WARPS * 8 * (4 * PITCH + 8);
	static constexpr int SHARED = WARPS * AREA > OUTPUT ? WARPS * AREA : OUTPUT;
	static constexpr int FRAGMENTS = D / 16;
	static_assert(KEYS % Sub == 0 && STAGE % 16 == 0 && (D == 64 || D == 128 || D == 256), "tile");

	// Bytes of chunk `chunk` of row `key` of 16 keys.
	static __device__ __forceinline__ int chunkAt(int key, int chunk) {
		const int swizzled = D == 64 ? chunk ^ key % 8 / 2 % 4 : chunk ^ key % 8 / 2 * 2 ^ key % 2 * 4;
		return key * ROW + swizzled * 16;
	}

	// Column of Q and K that number k (0 to 3) of quad lane t of product `step` holds.
	static __device__ __forceinline__ int column(int step, int t, int k) {
		if (SCALED) return step / 4 * 64 + 16 * t + step % 4 * 4 + k;
		if (TYPE == Q8_0) return D == 64 ? t / 2 * 32 + t % 2 * 16 + step * 4 + k : step / 8 * 128 + 32 * t + step % 8 * 4 + k;
		if (D == 64) return t / 2 * 32 + step % 2 * 16 + t % 2 * 8 + step / 2 * 4 + k;
		return step / 8 * 128 + 32 * t + step % 2 * 16 + step % 8 / 2 * 4 + k;
	}
	// First of the four columns of V and O that fragments 2 `pair` and 2 `pair` + 1 hold in lanes of row g.
	static __device__ __forceinline__ int columnsOfO(int pair, int g) {
		if (TYPE != Q4_0) return D == 64 ? 8 * g + pair * 4 : pair / 4 * 128 + 16 * g + pair % 4 * 4;
		if (D == 64) return g / 4 * 32 + pair % 2 * 16 + g % 4 * 4;
		return pair / 4 * 128 + g / 2 * 32 + pair % 2 * 16 + g % 2 * 8 + pair % 4 / 2 * 4;
	}
};

// ---- Numbers ------------------------------------------------------------------------------------

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

// ---- Copies -------------------------------------------------------------------------------------

// Where 16 keys begin: their page, 0 without pages, and the row in it.
struct Place {
	int page, row;
};

// What a lane adds to the place of 16 keys, in memory and in shared memory, for its first copy of 16 bytes. In shared memory
// of blocks it is 16 bytes a lane.
template <class T> __device__ __forceinline__ uint64_t laneFrom(int lane, uint32_t rowStride) {
	constexpr int IN_ROW = T::ROW / 16;
	return T::SCALED ? uint64_t(uint32_t(lane / IN_ROW)) * rowStride + lane % IN_ROW * 16 : lane * 16;
}
template <class T> __device__ __forceinline__ uint32_t laneTo(int lane) {
	constexpr int IN_ROW = T::ROW / 16;
	return T::chunkAt(lane / IN_ROW, lane % IN_ROW);
}

// Copies 16 keys of K or V, 16 bytes a copy. The first `left` exist, and the others become zeros.
template <class T> __device__ __forceinline__ void copyWide(uint32_t to, uint32_t toLane, const char *from, uint32_t rowStride, int left) {
	constexpr int CHUNKS = Sub * T::ROW / 16, IN_ROW = T::ROW / 16;
	if constexpr (T::SCALED) {
		constexpr int STEP = 32 / IN_ROW; // keys
#pragma unroll
		for (int i = 0; i < Sub / STEP; i++) {
			const uint32_t chunkTo = to + i * STEP * T::ROW + (toLane ^ T::chunkAt(i * STEP, 0) % T::ROW); // the swizzle is linear
			copyPart<16>(chunkTo, from, laneNow() / IN_ROW + i * STEP < left ? 16 : 0);
			from += uint64_t(rowStride) * STEP;
		}
	} else { // rows are adjacent
		to += 16 * laneNow();
#pragma unroll
		for (int i = 0; i < (CHUNKS + 31) / 32; i++) {
			if ((i + 1) * 32 > CHUNKS && laneNow() >= CHUNKS - i * 32) break;
			if (left >= Sub) copyWhole(to + i * 512, from + i * 512);
			else copyPart<16>(to + i * 512, from + i * 512, min(max(left * T::ROW - (i * 32 + laneNow()) * 16, 0), 16));
		}
	}
}

// The same, four bytes a copy.
template <class T> __device__ __forceinline__ void copyNarrow(uint32_t to, const char *from, uint32_t rowStride, int left) {
	from -= laneFrom<T>(laneNow(), rowStride);
#pragma unroll 1
	for (int w = laneNow(); w < Sub * T::ROW / 4; w += 32) {
		const int key = w / (T::ROW / 4), word = w % (T::ROW / 4);
		const uint32_t wordTo = to + (T::SCALED ? T::chunkAt(key, word / 4) + word % 4 * 4 : w * 4);
		copyPart<4>(wordTo, from + uint64_t(uint32_t(key)) * rowStride + word * 4, key < left ? 4 : 0);
	}
}

// Copies 16 keys of K or V at a place. `first` is what the lane copies of the first page's first keys.
template <class T>
__device__ __forceinline__ void copyKeys(uint32_t to, uint32_t toLane, const char *first, uint32_t pageStride, uint32_t rowStride, Place at, int left, bool wide) {
	const char *from = first + uint64_t(uint32_t(at.page)) * pageStride + uint64_t(uint32_t(at.row)) * rowStride;
	if (!wide) copyNarrow<T>(to, from, rowStride, left);
	else copyWide<T>(to, toLane, from, rowStride, left);
}

// ---- Products -----------------------------------------------------------------------------------

// S of eight keys whose rows begin at `row`, the lane's: of key g.
template <class T> __device__ __forceinline__ void multiplyK(float (&s)[4], const uint32_t (&q)[T::D / 16][2], uint32_t rows, int key, int t) {
	s[0] = s[1] = s[2] = s[3] = 0;
	auto multiply = [&](int step, uint32_t b0, uint32_t b1) {
		const uint32_t a[4] = { q[step][0], 0, q[step][1], 0 };
		T::Element::mma(s, a, b0, b1);
	};
	if constexpr (T::SCALED) {
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

extern __shared__ __align__(128) char memory[];

// ---- States -------------------------------------------------------------------------------------

// Row max and row sum; the sum's exponent goes to the max, since with exponents of V's scales in it the sum may be so small
// that times a weight it vanishes, while O does not.
struct State {
	float high, sum;
};
template <bool SCALED> __device__ __forceinline__ State normalize(float high, float sum, float &factor) {
	const uint32_t bits = __float_as_uint(sum);
	factor = 1;
	if (!SCALED || sum == 0 || (bits & 0x7f800000) == 0x7f800000) return { high, sum };
	const int e = int(bits >> 23) - 127;
	factor = __uint_as_float(bits & 0x7fffff | 0x3f800000) / sum;
	return { high + float(e), __uint_as_float(bits & 0x7fffff | 0x3f800000) };
}

// Adds four columns of a state with a weight. Of one without weight they may be anything.
__device__ __forceinline__ void addWeighted(float4 &to, float weight, float4 x) {
	if (weight == 0) return;
	to.x = fmaf(weight, x.x, to.x), to.y = fmaf(weight, x.y, to.y), to.z = fmaf(weight, x.z, to.z), to.w = fmaf(weight, x.w, to.w);
}

// What a CTA owns: query heads, a row of Q and O, and a split.
template <int D> struct Own {
	int head, heads, batch, row, split, partSize; // batch of Q and O; partSize: float32 of a partial state
	int64_t tile;                                 // row tile, of all
	__device__ __forceinline__ explicit Own(const DecodeParams &p) {
		const int group = p.Hq / p.Hkv, headTiles = (group + 7) / 8, x = blockNow(), tileOfRows = x / p.splits;
		split = x % p.splits;
		row = tileOfRows / headTiles;
		batch = p.cuQ ? 0 : blockIdx.z;
		head = blockIdx.y * group + tileOfRows % headTiles * 8;
		heads = min(8, int(blockIdx.y + 1) * group - head);
		tile = (int64_t(blockIdx.z) * p.Hkv + blockIdx.y) * (gridDim.x / p.splits) + tileOfRows;
		partSize = min(group, 8) * (D + 4);
	}
};

// Stores four columns of row r of O, and LSE with the first of them.
template <class T> __device__ __forceinline__ void storeRow(const DecodeParams &p, const Own<T::D> &own, int r, int column, float4 x, float high, float sum) {
	const bool invalid = (__float_as_uint(sum) & 0x7f800000) == 0x7f800000;
	const float by = invalid ? __uint_as_float(0x7fc00000) : sum == 0 ? 0 : 1 / sum;
	typename T::Element::type *to = (typename T::Element::type *)p.o.base + own.batch * p.o.batch + (own.head + r) * p.o.head + own.row * p.o.row + column;
	const uint32_t low = T::Element::pack(x.x * by + 0.0f, x.y * by + 0.0f), high2 = T::Element::pack(x.z * by + 0.0f, x.w * by + 0.0f);
	*(uint64_t *)to = low | uint64_t(high2) << 32;
	if (p.lse && column == 0) {
		const float lse = invalid ? __uint_as_float(0x7fc00000) : sum == 0 ? -INFINITY : fmaf(high, p.unitHigh, fmaf(high, p.unitLow, logf(sum)));
		((float *)p.lse)[(int64_t(own.batch) * p.Hq + own.head + r) * (p.cuQ ? p.totalQ : p.Sq) + own.row] = lse;
	}
}

// Combines the states of the warps, and the last CTA of a row tile those of its splits.
template <class T> __device__ __forceinline__ void combine(const DecodeParams &p, const float *all, const State *states) {
	constexpr int D = T::D, WARPS = T::WARPS;
	const Own<T::D> own(p);
	float *part = (float *)p.partial + (own.tile * p.splits + own.split) * own.partSize;
#pragma unroll 1
	for (int at = threadIdx.x; at < own.heads * D / 4; at += WARPS * 32) {
		const int r = at / (D / 4), column = at % (D / 4) * 4;
		float high = RowMaxInit, sum = 0;
		float4 x = make_float4(0, 0, 0, 0);
#pragma unroll
		for (int w = 0; w < WARPS; w++) high = fmaxf(high, states[w * 8 + r].high);
#pragma unroll
		for (int w = 0; w < WARPS; w++) {
			const State s = states[w * 8 + r];
			const float weight = s.sum == 0 ? 0 : exp2Approx(s.high - high);
			sum = fmaf(weight, s.sum, sum);
			addWeighted(x, weight, *(const float4 *)&all[(w * 8 + r) * T::PITCH + column]);
		}
		if (p.splits == 1) {
			storeRow<T>(p, own, r, column, x, high, sum);
		} else {
			storeL2(part + r * (D + 4) + column, x);
			if (column == 0) storeL2(part + r * (D + 4) + D, make_float4(high, sum, 0, 0));
		}
	}
	if (p.splits == 1) return;

	__syncthreads();
	uint32_t *arrival = (uint32_t *)memory;
	if (threadIdx.x == 0) {
		uint32_t *counter = (uint32_t *)p.counters + own.tile;
		*arrival = countArrival(counter);
		if (*arrival + 1 == p.splits) *counter = 0;
	}
	__syncthreads();
	if (*arrival + 1 != p.splits) return;
	const float *parts = (const float *)p.partial + own.tile * p.splits * own.partSize;
#pragma unroll 1
	for (int at = threadIdx.x; at < own.heads * D / 4; at += WARPS * 32) {
		const int r = at / (D / 4), column = at % (D / 4) * 4;
		constexpr int Loads = 8;
		float high = RowMaxInit, sum = 0;
		float4 x = make_float4(0, 0, 0, 0);
#pragma unroll 1
		for (int first = 0; first < p.splits; first += Loads) {
			float4 loaded[Loads], stats[Loads];
			float renewed = high;
#pragma unroll
			for (int i = 0; i < Loads; i++) {
				const float *from = parts + int64_t(min(first + i, p.splits - 1)) * own.partSize + r * (D + 4);
				loaded[i] = loadL2(from + column), stats[i] = loadL2(from + D);
				if (first + i >= p.splits) stats[i].x = RowMaxInit, stats[i].y = 0;
				renewed = fmaxf(renewed, stats[i].x);
			}
			const float before = exp2Approx(high - renewed);
			high = renewed, sum *= before, x.x *= before, x.y *= before, x.z *= before, x.w *= before;
#pragma unroll
			for (int i = 0; i < Loads; i++) {
				const float weight = stats[i].y == 0 ? 0 : exp2Approx(stats[i].x - high);
				sum = fmaf(weight, stats[i].y, sum);
				addWeighted(x, weight, loaded[i]);
			}
		}
		storeRow<T>(p, own, r, column, x, high, sum);
	}
}

// ---- Sequences ----------------------------------------------------------------------------------

// Numbers of memory are clamped, whatever they are.
__device__ __forceinline__ int clampTo(int n, int most) { return min(max(n, 0), most); }

// The rows or keys of a sequence.
struct Range {
	int first, count;
};
__device__ __forceinline__ Range rangeOf(const int32_t *cu, const int32_t *used, int sequence, int total, int most) {
	Range r = { 0, most };
	if (cu) {
		r.first = clampTo(cu[sequence], total);
		r.count = clampTo(clampTo(cu[sequence + 1], total) - r.first, most);
	}
	if (used) r.count = clampTo(used[sequence], r.count);
	return r;
}

// The last sequence that begins at a packed row or before it.
__device__ __forceinline__ int sequenceOf(const int32_t *cu, int sequences, int row, int total) {
	int low = 0, high = sequences - 1;
	while (low < high) {
		const int middle = (low + high + 1) / 2;
		if (clampTo(cu[middle], total) <= row) low = middle;
		else high = middle - 1;
	}
	return low;
}

// ---- Kernel -------------------------------------------------------------------------------------

template <class T> __device__ __forceinline__ void decode(const DecodeParams &p) {
	constexpr int D = T::D, WARPS = T::WARPS, STAGES = T::STAGES, KEYS = T::KEYS, SUBS = KEYS / Sub;
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
	const int kvHead = blockIdx.y;
	const Own<T::D> own(p);
	const uint32_t area = (uint32_t)__cvta_generic_to_shared(memory) + warp * T::AREA, scaleNumbersAt = area + T::RING;

	// The sequence, the row in it and in Q and O, and how many keys the row attends to.
	const int32_t *cuQ = (const int32_t *)p.cuQ, *cuK = (const int32_t *)p.cuK;
	const int batch = cuQ ? sequenceOf(cuQ, p.B, own.row, p.totalQ) : blockIdx.z;
	const Range rows = rangeOf(cuQ, (const int32_t *)p.usedQ, batch, p.totalQ, p.Sq), keys = rangeOf(cuK, (const int32_t *)p.usedK, batch, p.totalK, p.Sk);
	const int row = own.row - rows.first;
	if (row < 0 || row >= rows.count) return; // a padding row
	int limit = keys.count;
	if (p.causal) limit = max(min(limit, row + 1 + (p.causal == 2 ? keys.count - rows.count : 0)), 0);
	const int tiles = (limit + KEYS - 1) / KEYS;
	const int first = int(int64_t(tiles) * own.split / p.splits), last = int(int64_t(tiles) * (own.split + 1) / p.splits);

	// Where lane i < SUBS finds the 16 keys i of a tile. It is asked one tile ahead of the copies.
	const int64_t batchOfK = p.table || cuK ? 0 : batch;
	const char *kFirst = (const char *)p.k.base + batchOfK * p.k.batch + kvHead * p.k.head + uint64_t(uint32_t(keys.first)) * p.kRow + laneFrom<T>(lane, p.kRow);
	const char *vFirst = (const char *)p.v.base + batchOfK * p.v.batch + kvHead * p.v.head + uint64_t(uint32_t(keys.first)) * p.vRow + laneFrom<T>(lane, p.vRow);
	const uint32_t toLane = laneTo<T>(lane);
	const float *scales = nullptr; // lanes 0 to 15: of K
	if constexpr (T::SCALED) scales = (const float *)(lane < Sub ? p.kScale : p.vScale) + (batchOfK * p.Hkv + kvHead) * p.scaleGroups;
	Place next;
	auto find = [&](int tile) {
		const int key = tile * KEYS + (SUBS > 1 ? min(lane, SUBS - 1) * Sub : 0);
		next = { 0, key };
		if (p.table) {
			next.row = 0;
			if (tile < last && key < limit) {
				const int page = ((const int32_t *)p.table)[int64_t(batch) * p.tableStride + key / p.pageSize];
				next = { uint32_t(page) < uint32_t(p.pages) ? page : 0, key % p.pageSize };
			}
		}
	};
	auto copy = [&](int tile, int stage) {
		if (tile < last) {
			const uint32_t to = area + stage * T::STAGE;
#pragma unroll
			for (int sub = 0; sub < SUBS; sub++) {
				Place at = next;
				if (SUBS > 1) at = { __shfl_sync(~0u, next.page, sub), __shfl_sync(~0u, next.row, sub) };
				const int left = limit - tile * KEYS - sub * Sub;
				copyKeys<T>(to + sub * Sub * T::ROW, toLane, kFirst, p.kPage, p.kRow, at, left, p.wideK);
				copyKeys<T>(to + T::TILE + sub * Sub * T::ROW, toLane, vFirst, p.vPage, p.vRow, at, left, p.wideV);
				if constexpr (T::SCALED) {
					const int key = laneNow() % Sub;
					int entry = keys.first + at.row + key;
					if (p.scaleBlock != 1) entry /= p.scaleBlock;
					const float *from = scales + uint64_t(uint32_t(at.page)) * p.scalePage + entry;
					copyPart<4>(to + 2 * T::TILE + sub * 2 * 4 * Sub + 4 * laneNow(), from, key < left ? 4 : 0);
				}
			}
		}
		endCopies();
		find(tile + WARPS);
	};

	int tile = first + warp;
	find(tile);
	for (int s = 0; s < STAGES - 1; s++) copy(tile + s * WARPS, s);

	uint32_t q[D / 16][2]; // of row g, an order of columns that is K's
	{
		using Type = typename T::Element::type;
		const Type *from = (const Type *)p.q.base + own.batch * p.q.batch + (own.head + (g < own.heads ? g : 0)) * p.q.head + own.row * p.q.row;
#pragma unroll
		for (int step = 0; step < D / 16; step++) {
			uint32_t x[4];
#pragma unroll
			for (int k = 0; k < 4; k++) x[k] = g < own.heads ? ((const uint16_t *)from)[T::column(step, t, k)] : 0;
			constexpr bool inOrder = T::TYPE == FP8;
			q[step][0] = x[0] | x[inOrder ? 1 : 2] << 16, q[step][1] = x[inOrder ? 2 : 1] | x[3] << 16;
		}
	}

	float o[T::FRAGMENTS][4] = {}, rowMax = RowMaxInit, rowSum = 0; // max and sum of row g, the lane's keys
	int stage = 0;
#pragma unroll 1
	for (; tile < last; tile += WARPS) {
		if constexpr (STAGES > 1) waitCopies<STAGES - 2>();
		__syncwarp(); // and all lanes have read the stage that is free
		copy(tile + (STAGES - 1) * WARPS, (stage + STAGES - 1) % STAGES);
		if constexpr (STAGES == 1) { // the other warps of the multiprocessor compute meanwhile
			waitCopies<0>();
			__syncwarp();
		}
#pragma unroll 1
		for (int sub = 0; sub < SUBS; sub++) {
			const uint32_t stageAt = area + stage * T::STAGE, kAt = stageAt + sub * Sub * T::ROW;
			if constexpr (T::SCALED) {
				if (lane < Sub) {
					const uint32_t at = stageAt + 2 * T::TILE + sub * 2 * 4 * Sub + 4 * lane;
					storeShared(scaleNumbersAt + 16 * lane,
						    scaleNumbers(__uint_as_float(loadSharedWord(at)), __uint_as_float(loadSharedWord(at + 4 * Sub)), p.scaleLog2));
				}
				__syncwarp();
			}
			float s[2][4];
			float high = RowMaxInit;
			const int left = limit - tile * KEYS - sub * Sub;
#pragma unroll
			for (int n = 0; n < 2; n++) {
				multiplyK<T>(s[n], q, kAt, n * 8 + g, t);
#pragma unroll
				for (int i = 0; i < 2; i++) {
					const int key = n * 8 + 2 * t + i;
					if constexpr (T::SCALED) {
						const float2 ofScore = loadSharedPair(scaleNumbersAt + 16 * key);
						s[n][i] = fmaf(s[n][i], ofScore.x, ofScore.y);
					} else {
						s[n][i] *= p.scaleLog2;
					}
					if (key >= left) s[n][i] = -INFINITY;
					high = fmaxf(high, s[n][i]);
				}
			}
			if (__any_sync(~0u, high > rowMax + Lag)) {
				high = fmaxf(high, __shfl_xor_sync(~0u, high, 1));
				high = fmaxf(high, __shfl_xor_sync(~0u, high, 2));
				const float renewed = fmaxf(rowMax, high), factor = exp2Approx(rowMax - renewed);
				rowMax = renewed, rowSum *= factor;
				const float even = __shfl_sync(~0u, factor, 8 * t), odd = __shfl_sync(~0u, factor, 8 * t + 4); // of O's rows
#pragma unroll
				for (int f = 0; f < T::FRAGMENTS; f++) o[f][0] *= even, o[f][1] *= odd, o[f][2] *= even, o[f][3] *= odd;
			}
			uint32_t weights[2];
#pragma unroll
			for (int n = 0; n < 2; n++) {
				float x[2];
#pragma unroll
				for (int i = 0; i < 2; i++) {
					x[i] = exp2Approx(s[n][i] - rowMax);
					if constexpr (T::SCALED) {
						const float2 ofP = loadSharedPair(scaleNumbersAt + 16 * (n * 8 + 2 * t + i) + 8);
						rowSum = fmaf(x[i], ofP.y, rowSum);
						x[i] *= ofP.x;
					} else {
						rowSum += x[i];
					}
				}
				weights[n] = T::Element::pack(x[0], x[1]);
			}
			multiplyV<T>(o, weights, kAt + T::TILE, laneNow() / 4, laneNow() % 4);
			if constexpr (T::SCALED) __syncwarp(); // the numbers of scales are read
		}
		stage = stage + 1 == STAGES ? 0 : stage + 1;
	}
	waitCopies<0>();
	rowSum += __shfl_xor_sync(~0u, rowSum, 1);
	rowSum += __shfl_xor_sync(~0u, rowSum, 2);

	// O of all warps in shared memory, float32 [WARPS][8][PITCH], then their states.
	__syncthreads();
	float *all = (float *)memory;
	State *states = (State *)(all + WARPS * 8 * T::PITCH);
	float factor;
	const State state = normalize<T::SCALED>(rowMax, rowSum, factor);
	const float even = __shfl_sync(~0u, factor, 8 * t), odd = __shfl_sync(~0u, factor, 8 * t + 4);
#pragma unroll
	for (int pair = 0; pair < T::FRAGMENTS / 2; pair++)
#pragma unroll
		for (int r = 0; r < 2; r++) {
			const float by = r ? odd : even;
			const float(&x)[4] = o[2 * pair], (&y)[4] = o[2 * pair + 1];
			*(float4 *)&all[(warp * 8 + 2 * t + r) * T::PITCH + T::columnsOfO(pair, g)] = make_float4(x[r] * by, x[2 + r] * by, y[r] * by, y[2 + r] * by);
		}
	if (t == 0) states[warp * 8 + g] = state;
	__syncthreads();
	combine<T>(p, all, states);
}

#define JOIN(a, b) a##b
#define NAME(a, b) JOIN(a, b)
#define KERNEL(name, type)                                                                                                                      \
	extern "C" __global__ void __launch_bounds__(DECODE_##type##_WARPS * 32, DECODE_##type##_BLOCKS)                                        \
	    NAME(DECODE_NAME, name)(const __grid_constant__ DecodeParams p) {                                                                   \
		using T = DecodeTile<DECODE_BF16, type, DECODE_D, DECODE_##type##_WARPS, DECODE_##type##_STAGES, DECODE_##type##_KEYS>;         \
		static_assert(T::SHARED == DECODE_##type##_SHARED && T::SHARED <= 47 * 1024, "cubin.json says otherwise");                      \
		decode<T>(p);                                                                                                                   \
	}

KERNEL(_int8, INT8)
KERNEL(_fp8, FP8)
KERNEL(_q8_0, Q8_0)
KERNEL(_q4_0, Q4_0)
