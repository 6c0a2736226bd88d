// The copies of decode.cu: 16 keys of K or V to shared memory, by cp.async.
#pragma once
#include "decode_tile.h"

// Where 16 keys begin: their page, 0 without pages, and the row in it.
struct Place {
	int page, row;
};

// What a lane adds to the place of 16 keys, in memory and in shared memory, for its first copy of 16 bytes. In shared memory
// of blocks it is 16 bytes a lane.
template <class T> __device__ __forceinline__ uint64_t laneFrom(int lane, uint32_t rowStride) {
	constexpr int IN_ROW = T::ROW / 16;
	return T::CHUNKED ? uint64_t(uint32_t(lane / IN_ROW)) * rowStride + lane % IN_ROW * 16 : lane * 16;
}
template <class T> __device__ __forceinline__ uint32_t laneTo(int lane) {
	constexpr int IN_ROW = T::ROW / 16;
	return T::chunkAt(lane / IN_ROW, lane % IN_ROW);
}

// Copies 16 keys of K or V, 16 bytes a copy. The first `left` exist, of which the first `skip` are not attended to; what is not attended to
// becomes zeros.
template <class T> __device__ __forceinline__ void copyWide(uint32_t to, uint32_t toLane, const char *from, uint32_t rowStride, int skip, int left) {
	constexpr int CHUNKS = Sub * T::ROW / 16, IN_ROW = T::ROW / 16;
	if constexpr (T::CHUNKED) {
		constexpr int STEP = 32 / IN_ROW; // keys
#pragma unroll
		for (int i = 0; i < Sub / STEP; i++) {
			const uint32_t chunkTo = to + i * STEP * T::ROW + (toLane ^ T::chunkAt(i * STEP, 0) % T::ROW); // the swizzle is linear
			const int key = laneNow() / IN_ROW + i * STEP;
			copyPart<16>(chunkTo, from, key < left && (T::TYPE != SAME || key >= skip) ? 16 : 0);
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
		const uint32_t wordTo = to + (T::CHUNKED ? T::chunkAt(key, word / 4) + word % 4 * 4 : w * 4);
		copyPart<4>(wordTo, from + uint64_t(uint32_t(key)) * rowStride + word * 4, key < left ? 4 : 0);
	}
}

// Copies 16 keys of K or V at a place. `first` is what the lane copies of the first page's first keys.
template <class T>
__device__ __forceinline__ void copyKeys(uint32_t to, uint32_t toLane, const char *first, uint32_t pageStride, uint32_t rowStride, Place at, int skip, int left, bool wide) {
	const char *from = first + uint64_t(uint32_t(at.page)) * pageStride + uint64_t(uint32_t(at.row)) * rowStride;
	if (T::TYPE != SAME && !wide) copyNarrow<T>(to, from, rowStride, left);
	else copyWide<T>(to, toLane, from, rowStride, skip, left);
}
