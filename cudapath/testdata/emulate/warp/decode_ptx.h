/* The instructions of kernels/decode_ptx.h on the CPU. */
#pragma once
#include "sm80.h"
#include <type_traits>

static inline float __shfl_sync(unsigned, float x, int lane) { return floatOf(shuffle(bitsOf(x), lane)); }

/* A copy is done as late as it may be: when its thread waits for its group. */
struct Part { uint32_t to, size, bytes; const void *from; };
static std::vector<std::vector<Part>> groups[1024];
static std::vector<Part> begun[1024];
template <int SIZE> static inline void copyPart(uint32_t to, const void *from, uint32_t bytes)
{
	if (to % SIZE || bytes > SIZE || (bytes && (uintptr_t)from % SIZE)) refuse("unaligned copy", to);
	begun[threadIdx.x].push_back({to, SIZE, bytes, from});
}
static inline void copyWhole(uint32_t to, const void *from) { copyPart<16>(to, from, 16); }
static inline void endCopies()
{
	groups[threadIdx.x].push_back(begun[threadIdx.x]);
	begun[threadIdx.x].clear();
}
template <int N> static inline void waitCopies()
{
	auto &list = groups[threadIdx.x];
	while (list.size() > N) {
		for (const Part &c : list.front()) {
			memset(sharedAt(c.to), 0, c.size);
			memcpy(sharedAt(c.to), c.from, c.bytes);
		}
		list.erase(list.begin());
	}
}

static inline int laneNow() { return threadIdx.x % 32; }
static inline int blockNow() { return blockIdx.x; }

static inline uint32_t pickBytes(uint32_t a, uint32_t b, uint32_t which)
{
	const uint64_t both = a | (uint64_t)b << 32;
	uint32_t r = 0;
	for (int i = 0; i < 4; i++) r |= (uint32_t)(both >> 8 * (which >> 4 * i & 7) & 0xff) << 8 * i;
	return r;
}
static inline uint32_t maskFlip(uint32_t x, uint32_t mask, uint32_t flip) { return (x & mask) ^ flip; }

template <bool BF16> static inline float lowOf(uint32_t a) { return BF16 ? floatOf(a << 16) : __half2float({(uint16_t)a}); }
template <bool BF16, class F> static inline uint32_t ofPairs(uint32_t a, uint32_t b, F f)
{
	return pack<BF16>(f(lowOf<BF16>(a), lowOf<BF16>(b)), f(lowOf<BF16>(a >> 16), lowOf<BF16>(b >> 16)));
}
template <bool BF16> static inline uint32_t subtractPairs(uint32_t a, uint32_t b)
{
	return ofPairs<BF16>(a, b, [](float x, float y) { return x - y; });
}
template <bool BF16> static inline uint32_t multiplyPairs(uint32_t a, uint32_t b)
{
	return ofPairs<BF16>(a, b, [](float x, float y) { return x * y; });
}
template <bool BF16> static inline uint32_t fusePairs(uint32_t a, uint32_t b, uint32_t c)
{
	auto one = [](uint32_t x, uint32_t y, uint32_t z) { return (float)((double)lowOf<BF16>(x) * lowOf<BF16>(y) + lowOf<BF16>(z)); };
	return pack<BF16>(one(a, b, c), one(a >> 16, b >> 16, c >> 16));
}
static inline uint32_t widenFloat8(uint32_t two)
{
	auto one = [](uint32_t x) -> uint32_t {
		if ((x & 0x7f) == 0x7f) return 0x7fff;
		const float magnitude = (x & 0x78) ? ldexpf(8 + (x & 7), (int)(x >> 3 & 15) - 10) : ldexpf(x & 7, -9);
		return __float2half_rn(x & 0x80 ? -magnitude : magnitude).bits;
	};
	return one(two & 0xff) | one(two >> 8 & 0xff) << 16;
}

static inline void storeL2(float *to, float4 x) { *(float4 *)to = x; }
static inline float4 loadL2(const float *from) { return *(const float4 *)from; }
static inline uint32_t countArrival(uint32_t *counter) { return (*counter)++; }
