// The states of warps and splits in decode.cu, and what combines them into O and LSE.
#pragma once
#include "decode_tile.h"
#include "fa2_general.h"

extern __shared__ __align__(128) char memory[];

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
	float by = invalid ? __uint_as_float(0x7fc00000) : sum == 0 ? 0 : 1 / sum;
	if constexpr (T::TYPE == SAME)
		if (column >= p.headDim) return;
	typename T::Element::type *to = (typename T::Element::type *)p.o.base + own.batch * p.o.batch + (own.head + r) * p.o.head + own.row * p.o.row + column;
	float lse = 0;
	if (p.lse || T::TYPE == SAME && p.sinks) lse = invalid ? __uint_as_float(0x7fc00000) : sum == 0 ? -INFINITY : fmaf(high, p.unitHigh, fmaf(high, p.unitLow, logf(sum)));
	if constexpr (T::TYPE == SAME)
		if (p.sinks) by *= fa2::take_sink(((const float *)p.sinks)[own.head + r], lse);
	const uint32_t low = T::Element::pack(x.x * by + 0.0f, x.y * by + 0.0f), high2 = T::Element::pack(x.z * by + 0.0f, x.w * by + 0.0f);
	*(uint64_t *)to = low | uint64_t(high2) << 32;
	if (p.lse && column == 0) {
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
