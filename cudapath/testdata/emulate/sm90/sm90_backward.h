// The operations of kernels/sm90_backward.h for programs of this folder.
#pragma once
#include "sm90_wgmma.h"

template <int N, int T> struct WgmmaFirst {
	static void ss(float (&d)[N / 2], uint32_t a, uint32_t b) { product<N>(d, nullptr, a, T, b, false, false); }
};
template <int N, int ACROSS> struct WgmmaTransposed {
	static void ss(float (&d)[N / 2], uint32_t a, uint32_t b, bool add) { product<N>(d, nullptr, a, true, b, ACROSS, add); }
};
template <int N> struct WgmmaAcross {
	static void add(float (&d)[N / 2], uint32_t a, uint32_t b) { product<N>(d, nullptr, a, false, b, true, true); }
};
static inline void storeTransposed(uint32_t to, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
	static uint32_t regs[16][32][4], at[16][32];
	const int w = running / 32, l = running % 32;
	regs[w][l][0] = a, regs[w][l][1] = b, regs[w][l][2] = c, regs[w][l][3] = d;
	at[w][l] = to;
	meet(warpMeet[w], 32, [&] {
		for (int t = 0; t < 32; t++)
			for (int m = 0; m < 4; m++)
				for (int e = 0; e < 2; e++) {
					const uint16_t x = uint16_t(regs[w][t][m] >> 16 * e);
					memcpy(sharedAt(at[w][8 * m + 2 * (t % 4) + e] + t / 4 * 2), &x, 2);
				}
	});
}

static inline void storeFloats(uint32_t to, float a, float b, float c, float d) { storeSharedAs(to, float4{a, b, c, d}); }

static inline void copyBytes(uint32_t to, const void *from, int bytes, uint32_t bar) {
	if (to % 16 || uint64_t(from) % 16 || bytes % 16) refuse("unaligned copy", to);
	memcpy(sharedAt(to), from, bytes);
	barrierComplete(bar, bytes);
}
static inline void waitTurn(const int *turn, int mine) {
	while (*turn < mine) pause();
	if (*turn > mine) refuse("a turn that has passed", uint64_t(turn)); // of overlapping sequences too
}
static inline void passTurn(int *turn) {
	++*turn;
	progress++;
}
static inline void waitForKernelBefore() {}
static inline void allowNextKernel() {}
static inline void globalProxyFence() {}
static inline void storeBytes(void *to, uint32_t from, int bytes) {
	if (from % 16 || uint64_t(to) % 16 || bytes % 16) refuse("unaligned store", from);
	memcpy(to, sharedAt(from), bytes);
}
static inline void addBytes(float *to, uint32_t from, int bytes, bool store) {
	if (from % 16 || uint64_t(to) % 16) refuse("unaligned addition", from);
	for (int i = 0; i < bytes / 4; i++) {
		float x;
		memcpy(&x, sharedAt(from + 4 * i), 4);
		to[i] = store ? x : to[i] + x;
	}
}
static inline void bulkCommit() {}
static inline void bulkWaitRead() { pause(); }
static inline void bulkWait() { pause(); }
static inline int threadHere() { return running; }
static inline bool electLane() { return running % 32 == 0; }

static inline float4 loadCached(const float4 *from) { return *from; }
static inline void waitShortly() {}
static inline uint32_t transposeMatrix(uint32_t x) {
	const int lane = running % 32, row = lane / 4, column = 2 * (lane % 4);
	auto element = [&](int r, int c) {
		const uint32_t y = shfl(x, r * 4 + c / 2);
		return c % 2 ? y >> 16 : y & 0xffff;
	};
	const uint32_t low = element(column, row), high = element(column + 1, row);
	return low | high << 16;
}
