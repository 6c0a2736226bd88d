// wgmma and the other operations of sm90_backward.h for emulate.cc. A product is computed when all threads of the warpgroup
// have issued it.
#pragma once
#include "sm90.h"
#ifndef ATTN_BF16
#define ATTN_BF16 0
#endif
constexpr uint32_t matrixPanels(uint32_t panel) { return panel >> 4 << 16; }
constexpr uint32_t matrixOffset(uint32_t bytes) { return bytes >> 4; }
static inline void wgmmaFence() {}
static inline void wgmmaCommit() {}
template <int P> void wgmmaWait() {}
template <int N> void touch(float (&)[N]) {}
template <int N> void touch(uint32_t (&)[N]) {}
template <bool B> float widenHalf(uint32_t w, int half) {
	const uint16_t x = uint16_t(half ? w >> 16 : w);
	if constexpr (B) return __bfloat162float(__nv_bfloat16{x});
	else return __half2float(__half{x});
}
static inline float value(uint16_t x) { return widenHalf<bool(ATTN_BF16)>(x, 0); }

// An element of a matrix that a descriptor describes: along the rows of shared memory, or across them.
static inline float elem(uint32_t start, int mn, int k, bool across) {
	uint32_t base = (start & 0x3fff) << 4, panel = (start >> 16 & 0x3fff) << 4;
	uint32_t a = across ? base + mn / 64 * panel + k / 8 * 1024 + k % 8 * 128 + mn % 64 * 2 : base + mn / 8 * 1024 + mn % 8 * 128 + k * 2;
	if (across && mn >= 64 && panel == 0) refuse("no panel", base);
	uint16_t x;
	memcpy(&x, sharedAt(swizzled(a)), 2);
	return value(x);
}
extern float *accs[4][128];
extern uint32_t aregs[4][128][4];

// All 128 threads of a warpgroup.
template <int N> void product(float *d, const uint32_t *a, uint32_t aStart, bool aAcross, uint32_t bStart, bool bAcross, bool add) {
	int g = running / 128, t = running % 128;
	accs[g][t] = d;
	if (a) memcpy(aregs[g][t], a, 16);
	meet(groupMeet[g], 128, [&] {
		static float A[64][16], B[N][16];
		for (int m = 0; m < 64; m++)
			for (int k = 0; k < 16; k++) {
				if (a) {
					const int th = m / 16 * 32 + m % 8 * 4 + k % 8 / 2;
					A[m][k] = widenHalf<bool(ATTN_BF16)>(aregs[g][th][k / 8 * 2 + m % 16 / 8], k % 2);
				} else {
					A[m][k] = elem(aStart, m, k, aAcross);
				}
			}
		for (int n = 0; n < N; n++)
			for (int k = 0; k < 16; k++) B[n][k] = elem(bStart, n, k, bAcross);
		for (int th = 0; th < 128; th++)
			for (int i = 0; i < N / 2; i++) {
				const int m = th / 32 * 16 + th % 32 / 4 + i / 2 % 2 * 8, n = i / 4 * 8 + th % 4 * 2 + i % 2;
				float s = add ? accs[g][th][i] : 0;
				for (int k = 0; k < 16; k++) s += A[m][k] * B[n][k];
				accs[g][th][i] = s;
			}
	});
}
template <int N> struct Wgmma {
	static void ss(float (&d)[N / 2], uint32_t a, uint32_t b, bool add) { product<N>(d, nullptr, a, false, b, false, add); }
	static void rs(float (&d)[N / 2], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b) {
		const uint32_t a[4] = {a0, a1, a2, a3};
		product<N>(d, a, 0, false, b, true, true);
	}
};
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
