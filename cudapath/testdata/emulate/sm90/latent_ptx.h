// kernels/latent_ptx.h for programs of this folder.
#pragma once
#include "sm90.h"
static inline void copyBoxOnce(uint32_t to, const TensorMap *map, uint32_t bar, int column, int row, int head, int batch) { copyBox(to, map, bar, column, row, head, batch); }

// A copy is done as late as it may be: when its thread waits for it, or arrives because of it.
struct Chunk {
	uint32_t to;
	const void *from;
	bool there;
};
static std::vector<Chunk> chunks[512];
static inline void copyChunk(uint32_t to, const void *from, bool there) {
	if (uint64_t(from) % 16) refuse("unaligned copy", uint64_t(from));
	chunks[running].push_back({to, from, there});
}
static inline void waitChunks() {
	for (const Chunk &c : chunks[running]) {
		uint4 x = {0, 0, 0, 0};
		if (c.there) memcpy(&x, c.from, sizeof x);
		storeSharedAs(c.to, x);
	}
	chunks[running].clear();
}
static inline void arriveWhenCopied(uint32_t bar) {
	waitChunks();
	barrierArrive(bar);
}

template <bool HIGH> static inline uint32_t widenFloat8(uint32_t four) {
	auto one = [](uint32_t x) -> uint32_t {
		if ((x & 0x7f) == 0x7f) return 0x7fff;
		const float magnitude = (x & 0x78) ? ldexpf(8 + (x & 7), (int)(x >> 3 & 15) - 10) : ldexpf(x & 7, -9);
		return __float2half_rn(x & 0x80 ? -magnitude : magnitude).bits;
	};
	if (HIGH) four >>= 16;
	return one(four & 0xff) | one(four >> 8 & 0xff) << 16;
}
