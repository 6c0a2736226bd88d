// The tile of a kernel of fa2.h: its sizes, its shared-memory layout, and its copies from global memory.
#pragma once
#include "attn.h"
#include "sm80.h"

namespace fa2 {

template <class Element_, int D_, int Dv_, int Warps_, int MFragments_, int Cols_, int Step_, int QRegs_, int Stages_, int Blocks_, bool RoundedSums_, bool Causal_, bool Any_, bool QDirect_ = false>
struct Config {
	using Element = Element_;
	static constexpr int D = D_, Dv = Dv_;      // bucket of head dims
	static constexpr int Warps = Warps_;
	static constexpr int MFragments = MFragments_; // 16-row M fragments per warp
	static constexpr int Cols = Cols_;          // keys of a KV tile in shared memory
	static constexpr int Step = Step_;          // keys of a KV step, whose scores are in registers
	static constexpr int QRegs = QRegs_;        // 16-wide slices of Q held in registers
	static constexpr int Stages = Stages_;      // KV tiles in shared memory
	static constexpr int Blocks = Blocks_;      // resident CTAs per multiprocessor, for __launch_bounds__
	// true: O is divided by row sums of the rounded P, which tensor cores compute; only LSE uses sums before
	// rounding. false: both use sums before rounding. Which is faster depends on the compiler (docs/log/cuda-fa2.md).
	static constexpr bool RoundedSums = RoundedSums_;
	// KV step in tiles with masked keys: smaller, so that fewer masked scores are computed.
	static constexpr int MaskedStep = Step > 32 ? 32 : Step;
	static constexpr bool Causal = Causal_;
	static constexpr bool Any = Any_;           // any alignment: loads and stores single elements
	static constexpr bool General = false;      // takes options of a call: see fa2_general.h
	using Params = AttnParams;

	static constexpr bool QDirect = QDirect_;   // Q goes from global memory to registers, all of it, and takes no shared memory

	static constexpr int Threads = Warps * 32;
	static constexpr int WarpRows = MFragments * 16, Rows = Warps * WarpRows;
	static constexpr int KBytes = Cols * D * 2, VBytes = Cols * Dv * 2, StageBytes = KBytes + VBytes;
	static constexpr int QBytes = QDirect ? 0 : Rows * D * 2, OBytes = Rows * Dv * 2;
	// If all of Q is in registers, it passes through the stages after the first before they hold K and V.
	static constexpr bool QPasses = !QDirect && QRegs == D / 16 && QBytes <= (Stages - 1) * StageBytes;
	static constexpr int QAt = QPasses ? StageBytes : Stages * StageBytes;
	static constexpr int Loop = Stages * StageBytes + (QPasses ? 0 : QBytes);
	static constexpr int BarriersAt = Loop > OBytes ? Loop : OBytes; // two mbarriers per stage: landed, free
	static constexpr int Shared = BarriersAt + Stages * 16;

	static_assert(D % 32 == 0 && Dv % 32 == 0 && Step % 16 == 0 && Cols % Step == 0 && Stages >= 2, "");
	static_assert(!QDirect || QRegs == D / 16, "");
};

// Returns the swizzled offset in bytes of a 16-byte chunk in a tile whose rows have Dim elements.
template <int Dim> __device__ __forceinline__ uint32_t chunk_at(int row, int chunk) {
	return row * (Dim * 2) + ((chunk ^ (Dim % 64 == 0 ? row & 7 : (row >> 1) & 3)) << 4);
}

// Returns the swizzled address of 16-wide slice i of a row, given the address of slice 0. The order of calls may be
// changed as long as the slices have no bit in common.
template <int Dim> __device__ __forceinline__ uint32_t slice_at(uint32_t at, int i) {
	constexpr int Slices = Dim % 64 == 0 ? 4 : 2;
	return (at ^ i % Slices * 32) + i / Slices * Slices * 32;
}

// Stores a chunk element by element, for any alignment. Elements from column `dim` on are zeros; `col` is the chunk's first.
__device__ __forceinline__ void store_chunk(uint32_t to, const char *from, bool there, int col, int dim) {
	uint32_t word[4];
#pragma unroll
	for (int e = 0; e < 4; e++) {
		const unsigned short *x = (const unsigned short *)from + 2 * e;
		const uint32_t low = there && col + 2 * e < dim ? x[0] : 0;
		const uint32_t high = there && col + 2 * e + 1 < dim ? x[1] : 0;
		word[e] = low | high << 16;
	}
	storeShared(to, make_uint4(word[0], word[1], word[2], word[3]));
}

// Copy of a Rows x Dim tile by all threads of a CTA, in chunks of 16 bytes. Lanes threads copy a row. A thread
// copies every Lanes-th chunk of every PassRows-th row.
template <class C, int Dim, int Rows> struct TiledCopy {
	static constexpr int Lanes = Dim % 64 == 0 ? 8 : 4;
	static constexpr int Groups = Dim / 8 / Lanes;
	static constexpr int PassRows = C::Threads / Lanes;
	static constexpr int Passes = Rows / PassRows;
	static_assert(PassRows % 8 == 0 && Rows % PassRows == 0, "");

	static __device__ __forceinline__ int row() { return threadIdx.x / Lanes; }
	static __device__ __forceinline__ int lane() { return threadIdx.x % Lanes; }
	static __device__ __forceinline__ uint32_t slot() { return chunk_at<Dim>(row(), lane()); } // offset of the first chunk

	// Calls f with the shared-memory address of each of the thread's chunks.
	template <class F> static __device__ __forceinline__ void each(uint32_t tile, F f) {
#pragma unroll
		for (int i = 0; i < Passes; i++)
#pragma unroll
			for (int g = 0; g < Groups; g++) f(tile + slot() + i * PassRows * Dim * 2 + g * Lanes * 16);
	}

	// Copies a tile and returns the source address of the next one. The thread's first chunk is at `from`. Elements
	// past `rows` and `dim` are filled with zeros. Whole: there are none, so nothing is tested.
	template <bool Whole> static __device__ __forceinline__ const char *fetch(uint32_t tile, const char *from, int64_t stride, int rows, int dim) {
		const int64_t pass = PassRows * stride;
#pragma unroll
		for (int i = 0; i < Passes; i++) {
#pragma unroll
			for (int g = 0; g < Groups; g++) {
				const uint32_t to = tile + i * PassRows * Dim * 2 + g * Lanes * 16;
				const char *at = from + g * Lanes * 16;
				const int r = row() + i * PassRows, col = (g * Lanes + lane()) * 8;
				if constexpr (C::Any) {
					store_chunk(to, at, r < rows, col, dim);
				} else if constexpr (Whole) {
					copy_async(to, at);
				} else {
					copy_async(to, at, r < rows && col < dim ? 16 : 0);
				}
			}
			from = plus(from, pass);
		}
		return from;
	}
};

} // namespace fa2
