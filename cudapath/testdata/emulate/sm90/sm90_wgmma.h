// wgmma of kernels/sm90_wgmma.h for programs of this folder. A product is computed when all threads of the warpgroup have issued
// it.
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
extern float *accs[5][128];
extern uint32_t aregs[5][128][4];

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
	template <bool ADD> static void rsk(float (&d)[N / 2], const uint32_t (&a)[4], uint32_t b) { product<N>(d, a, 0, false, b, false, ADD); }
};
