// Inf and NaN among 16-bit elements, two to a word. EXPONENTS has the exponent bits of both: Half::infinity or
// Bfloat::infinity.
#pragma once
#include "ptx.h"

constexpr uint32_t HALF_EXPONENTS = 0x7c007c00, BFLOAT_EXPONENTS = 0x7f807f80;

// Returns the top bit of each element that is infinite or NaN. Adding one in the lowest bit of an exponent carries into the
// top bit exactly if all exponent bits are 1.
template <uint32_t EXPONENTS> __device__ __forceinline__ uint32_t notFinite(uint32_t two) {
	constexpr uint32_t LOWEST = EXPONENTS & ~(EXPONENTS << 1);
	return ((two & EXPONENTS) + LOWEST) & 0x80008000;
}

// Not 0 if any of eight elements is infinite or NaN.
template <uint32_t EXPONENTS> __device__ __forceinline__ uint32_t notFinite(const uint4 &x) {
	return notFinite<EXPONENTS>(x.x) | notFinite<EXPONENTS>(x.y) | notFinite<EXPONENTS>(x.z) | notFinite<EXPONENTS>(x.w);
}

// Whether the thread's share of `bytes` bytes of shared memory holds Inf or NaN. THREADS threads have 16 bytes each, one after
// the other; the thread's first are at offset `at`. With CLEAR the elements become 0, and the byte of each row of ROW_BYTES
// bytes with any becomes 1, if flags is not 0.
template <uint32_t EXPONENTS, int THREADS, int ROW_BYTES, bool CLEAR>
__device__ __forceinline__ bool scanTile(uint32_t tile, int at, int bytes, uint32_t flags = 0) {
	bool found = false;
#pragma unroll 2
	for (; at < bytes; at += 16 * THREADS) {
		uint4 x = loadShared(tile + at);
		if (notFinite<EXPONENTS>(x) == 0) continue;
		found = true;
		if constexpr (CLEAR) {
			auto clear = [](uint32_t &two) { two &= ~((notFinite<EXPONENTS>(two) >> 15) * 0xffff); };
			clear(x.x), clear(x.y), clear(x.z), clear(x.w);
			storeShared(tile + at, x);
			if (flags != 0) storeSharedByte(flags + at / ROW_BYTES, 1);
		}
	}
	return found;
}
