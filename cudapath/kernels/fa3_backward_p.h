// P and dS of a tile in the consumers of the backward fa3 kernels, by the modes of a kernel:
//
//   without options   full, or CAUSAL: MaskedTiles compares positions
//   OPTIONS           lengths and windows: it takes the limits of each tile
//   CAPPED            a softcap: dV takes P, and dS P times the derivative
//   FLOAT_P           dS takes P in float32 (fa3_backward_options.h)
//
// The last two decide how P is held between S and the last products: RoundedP, FloatP, CappedP, CappedFloatP. HeldP is the
// one of a kernel. fa3_backward_wide.h, for head dims above 128, takes the functions alone: with MaskedTiles nvcc 12.4 orders
// the instructions of its loop in another way.
#pragma once
#include <type_traits>

#include "fa3_backward_rare.h"
#include "quad.h"

// Sets the elements of masked slots to 0. row is the first row of the tile, negative if it has masked slots.
template <class T> __device__ __forceinline__ void clearMasked(float (&s)[T::BM / 2], const AttnBackwardParams &p, int firstKey, int row) {
	if (row >= 0) return;
	const int thread = threadHere() % 128, key = firstKey + thread / 32 * 16 + thread % 32 / 4;
	const int firstRow = (row & INT32_MAX) + 2 * (thread % 4);
	const int end = p.Sq - firstRow;
	int from[2]; // the first column of each of the thread's keys that is not masked, less that of the thread
#pragma unroll
	for (int r = 0; r < 2; r++) {
		const int64_t attends = key + 8 * r - causalOffset<T>(p) - firstRow;
		from[r] = key + 8 * r >= p.Sk || attends > T::BM ? T::BM : int(max(attends, int64_t(0)));
	}
#pragma unroll
	for (int i = 0; i < T::BM / 2; i++)
		if (8 * (i / 4) + i % 2 < from[i / 2 % 2] || 8 * (i / 4) + i % 2 >= end) s[i] = 0;
}

// A statistic of the thread's pairs of columns, in shared memory.
struct PairsAt {
	uint32_t address; // of the first pair

	__device__ __forceinline__ float2 operator[](int j) const { return loadSharedPair(address + 32 * j); }
};

// The same, the first AHEAD pairs of which are loaded at once: before the product that is waited for is issued, so that it covers the latency.
template <int AHEAD> struct Pairs {
	PairsAt at;
	float2 ahead[AHEAD > 0 ? AHEAD : 1];

	__device__ __forceinline__ explicit Pairs(const PairsAt &from) : at(from) {
#pragma unroll
		for (int j = 0; j < AHEAD; j++) ahead[j] = from[j];
	}
	__device__ __forceinline__ float2 operator[](int j) const { return j < AHEAD ? ahead[j] : at[j]; }
};

// P^T = 2^(S * scale - LSE), in place. lse is -LSE. LARGE: see exponentOf().
template <class T, bool LARGE, class Columns> __device__ __forceinline__ void computeP(float (&s)[T::BM / 2], const Columns &lse, float scale) {
#pragma unroll
	for (int j = 0; j < T::BM / 8; j++) {
		const float2 less = lse[j];
#pragma unroll
		for (int r = 0; r < 2; r++) {
			s[4 * j + 2 * r] = exp2Approx(exponentOf<LARGE>(s[4 * j + 2 * r], scale, less.x));
			s[4 * j + 2 * r + 1] = exp2Approx(exponentOf<LARGE>(s[4 * j + 2 * r + 1], scale, less.y));
		}
	}
}

// Multiplies P^T by the factors of the rows.
template <class T> __device__ __forceinline__ void scaleP(float (&s)[T::BM / 2], const PairsAt &factors) {
#pragma unroll
	for (int j = 0; j < T::BM / 8; j++) {
		const float2 factor = factors[j];
#pragma unroll
		for (int r = 0; r < 2; r++) s[4 * j + 2 * r] *= factor.x, s[4 * j + 2 * r + 1] *= factor.y;
	}
}

// What P^T of a tile takes from the record of its rows.
template <class T> struct RowRecord {
	bool large; // whether P has factors
	Pairs<T::AHEAD> lse;

	// record is its address, column the offset of the thread's first pair.
	__device__ __forceinline__ RowRecord(uint32_t record, uint32_t column) : large(loadSharedWord(record + 8 * T::BM) != 0), lse(PairsAt{record + column}) {}
};

// P^T of a tile.
template <class T> __device__ __forceinline__ void computeScaledP(float (&s)[T::BM / 2], const RowRecord<T> &rows, float scale) {
	if (rows.large) {
		computeP<T, true>(s, rows.lse, scale);
		scaleP<T>(s, PairsAt{rows.lse.at.address + 4 * T::BM});
	} else {
		computeP<T, false>(s, rows.lse, scale);
	}
}

// dS^T = P (dP - delta), in place. P is rounded to the storage type: float32 would need more registers. delta is -delta.
template <class T, class Words, class Columns> __device__ __forceinline__ void computeDS(float (&dP)[T::BM / 2], const Words &P, const Columns &delta) {
#pragma unroll
	for (int j = 0; j < T::BM / 8; j++) {
		const float2 less = delta[j];
#pragma unroll
		for (int r = 0; r < 2; r++) {
			const int i = 4 * j + 2 * r;
			const uint32_t two = P[i / 2];
			dP[i] = widenHalf<BF16>(two, 0) * (dP[i] + less.x);
			dP[i + 1] = widenHalf<BF16>(two, 1) * (dP[i + 1] + less.y);
		}
	}
}

// The same with P in float32.
template <class T, class Float, class Columns> __device__ __forceinline__ void computeDS(float (&dP)[T::BM / 2], Float (&P)[T::BM / 2], const Columns &delta) {
#pragma unroll
	for (int i = 0; i < T::BM / 2; i += 4) {
		const float2 less = delta[i / 4];
		dP[i] = P[i] * (dP[i] + less.x), dP[i + 1] = P[i + 1] * (dP[i + 1] + less.y);
		dP[i + 2] = P[i + 2] * (dP[i + 2] + less.x), dP[i + 3] = P[i + 3] * (dP[i + 3] + less.y);
	}
}

// Whether any accumulator is Inf or NaN.
template <int N> __device__ __forceinline__ bool anyNotFinite(const float (&x)[N]) {
	float sum = 0;
#pragma unroll
	for (int i = 0; i < N; i++) sum = fmaf(x[i], 0, sum);
	return sum != 0;
}

// Rounds accumulators to the storage type, two to a word.
template <int N> __device__ __forceinline__ void packWords(uint32_t (&words)[N / 2], const float (&s)[N]) {
#pragma unroll
	for (int i = 0; i < N / 2; i++) words[i] = pack<BF16>(s[2 * i], s[2 * i + 1]);
}

// The offset of the consumer warp's word among those of all consumer warps.
__device__ __forceinline__ int warpWord() { return 4 * (threadHere() / 32 - 4); }

// The masked slots of the tiles of a unit, for the 64 keys from firstKey on that warpgroup `group` owns.
template <class T> struct MaskedTiles {
	const AttnBackwardParams &p;
	uint32_t shared;
	int firstKey, group;

	// The first row of the Q tile in a stage, negative if it has masked slots.
	__device__ __forceinline__ int rowOf(int stage) const { return int(loadSharedWord(shared + T::ROW + 4 * stage)); }

	// Sets the masked slots of the tile in a stage, whose row is `row`, to 0.
	__device__ __forceinline__ void clear(float (&x)[T::BM / 2], int stage, int row) const {
		if constexpr (T::OPTIONS) {
			if (row >= 0) return;
			const uint4 limits = loadShared(shared + T::LIMITS + 16 * stage);
			clearOutside<T>(x, {int(limits.x), int(limits.y), int(limits.z), int(limits.w)}, 64 * group);
		} else {
			clearMasked<T>(x, p, firstKey, row);
		}
	}

	// Begins a unit: clears its keys if S of the first tile, which has all masked keys, has Inf or NaN. found says so of a
	// tile with masked slots. With options S of the first tile counts whether or not it has masked slots.
	__device__ __forceinline__ void begin(const float (&s)[T::BM / 2], int stage, bool found) const {
		bool rare = false;
		if constexpr (T::OPTIONS) rare = namedOr(KEYS_CLEAR + group, 128, found || anyNotFinite(s)) && clearKeys<T>(shared, group);
		else if (rowOf(stage) < 0) rare = namedOr(KEYS_CLEAR + group, 128, found) && clearKeys<T>(shared, group);
		storeSharedWord(shared + T::RARE_KEYS + warpWord(), rare);
		storeSharedWord(shared + T::RARE_ROWS + warpWord(), 0);
	}

	// Whether P of some keys must become NaN.
	__device__ __forceinline__ bool haveRareKeys() const { return loadSharedWord(shared + T::RARE_KEYS + warpWord()); }

	// Joins the consumers when dS of a tile with masked slots is stored. Clears its Q and dO if one of them has found Inf or
	// NaN in S or dP.
	__device__ __forceinline__ void clearRareRows(int stageQ, int stageDO, bool found) const {
		constexpr int THREADS = 128 * T::WARPGROUPS;
		const uint32_t tileQ = shared + T::Q + stageQ * T::Q_BYTES, tileDO = shared + T::DO + stageDO * T::DO_BYTES;
		if (namedOr(DS_STORED, THREADS, found)) {
			storeSharedWord(shared + T::RARE_ROWS + warpWord(), 1);
			clearTile<THREADS>(tileQ, T::Q_BYTES, threadHere() - 128);
			clearTile<THREADS>(tileDO, T::DO_BYTES, threadHere() - 128);
			proxyFence();
			namedSync(DS_STORED, THREADS);
		}
	}
};

// How a mode holds P^T of a tile between S and the last products. The accumulators s hold S at first; words is P as the
// operand of dV.
//   compute   makes P of S, masked slots included
//   spoil     sets P of the keys that clearKeys() has noted to NaN
//   hold      leaves s and words as dS takes them, when masked slots are 0
//   multiply  makes dS of dP
//   finish    completes words, when dS is stored


// dS and dV take P rounded: words.
template <class T> struct RoundedP {
	using Scores = float[T::BM / 2];
	using Words = uint32_t[T::BM / 4];
	__device__ __forceinline__ void compute(Scores &s, const RowRecord<T> &rows, const AttnBackwardParams &, float scale) { computeScaledP<T>(s, rows, scale); }
	__device__ __forceinline__ void spoil(Scores &s, uint32_t shared, int group) { spoilKeys<T>(s, shared, group); }
	__device__ __forceinline__ void hold(Words &words, const Scores &s) { packWords(words, s); }
	__device__ __forceinline__ void multiply(Scores &dP, Scores &, const Words &words, const Pairs<T::AHEAD> &delta) { computeDS<T>(dP, words, delta); }
	__device__ __forceinline__ void finish(Words &, Scores &, const MaskedTiles<T> &, int, int) {}
};

// dS takes P in float32: s. It is rounded after that.
template <class T> struct FloatP : RoundedP<T> {
	using typename RoundedP<T>::Scores, typename RoundedP<T>::Words;
	__device__ __forceinline__ void hold(Words &, const Scores &) {}
	__device__ __forceinline__ void multiply(Scores &dP, Scores &s, const Words &, const Pairs<T::AHEAD> &delta) { computeDS<T>(dP, s, delta); }
	__device__ __forceinline__ void finish(Words &words, Scores &s, const MaskedTiles<T> &, int, int) { packWords(words, s); }
};

// With a softcap there are no registers for P and for P times the derivative: one of them, rounded, is in local memory. Here
// that is P times the derivative.
template <class T> struct CappedP : RoundedP<T> {
	using typename RoundedP<T>::Scores, typename RoundedP<T>::Words;
	volatile uint32_t sloped[T::BM / 4];

	__device__ __forceinline__ void compute(Scores &s, const RowRecord<T> &rows, const AttnBackwardParams &p, float) {
		computeCappedP<T, true>(s, sloped, rows.lse.at.address, Softcap(p));
	}
	__device__ __forceinline__ void spoil(Scores &s, uint32_t shared, int group) {
		spoilKeys<T>(s, shared, group);
		spoilWords<T>(sloped, s);
	}
	__device__ __forceinline__ void multiply(Scores &dP, Scores &, const Words &, const Pairs<T::AHEAD> &delta) { computeDS<T>(dP, sloped, delta); }
};

// Here P is in local memory, and s is P times the derivative. P is masked when it comes back.
template <class T> struct CappedFloatP : FloatP<T> {
	using typename RoundedP<T>::Scores, typename RoundedP<T>::Words;
	volatile uint32_t plain[T::BM / 4];

	__device__ __forceinline__ void compute(Scores &s, const RowRecord<T> &rows, const AttnBackwardParams &p, float) {
		computeCappedP<T, true>(s, plain, rows.lse.at.address, Softcap(p));
	}
	__device__ __forceinline__ void finish(Words &words, Scores &s, const MaskedTiles<T> &masked, int stage, int row) {
#pragma unroll
		for (int i = 0; i < T::BM / 2; i++) s[i] = widenHalf<BF16>(plain[i / 2], i % 2);
		if (masked.haveRareKeys()) spoilKeys<T>(s, masked.shared, masked.group);
		masked.clear(s, stage, row);
		packWords(words, s);
	}
};

template <class T>
using HeldP = std::conditional_t<T::CAPPED, std::conditional_t<T::FLOAT_P, CappedFloatP<T>, CappedP<T>>, std::conditional_t<T::FLOAT_P, FloatP<T>, RoundedP<T>>>;
