// The instructions of kernels/sm90.h on the CPU, for emulate.cc: mbarriers, TMA copies and named barriers, and where threads
// meet. An asynchronous operation is complete when it is issued.
#pragma once
#include <functional>
#include "ptx.h"

struct Index {
	unsigned x, y, z;
};
extern Index threadIdx, blockIdx, gridDim, blockDim;
#define __device__
#define __host__
#define __global__
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __shared__
extern char tiles[];

struct alignas(64) TensorMap {
	const uint16_t *base;
	long strides[3];
	int sizes[4], rows;
};

extern int running;

// A barrier of n threads. The last one runs a function before the others go on.
struct Meet {
	int count = 0, gen = 0;
};
template <class F> void meet(Meet &m, int n, F last) {
	int g = m.gen;
	if (++m.count == n) {
		last();
		m.count = 0;
		m.gen++;
		progress++;
	} else {
		while (m.gen == g) pauseWhile(&m.gen, g);
	}
}
extern Meet warpMeet[20], groupMeet[5], ctaMeet, namedMeet[16];
extern bool namedAny[16], namedOut[16];
extern uint64_t slot[2][20][32][2];
static inline void __syncwarp() { meet(warpMeet[running / 32], 32, [] {}); }
extern int ctaThreads;
static inline void __syncthreads() { meet(ctaMeet, ctaThreads, [] {}); }
// Calls of a warp take the slots in turn: all lanes have read them before the next call but one writes them.
template <class T> const uint64_t (*exchange(T x))[2] {
	const int w = running / 32;
	auto *slots = slot[warpMeet[w].gen & 1][w];
	memcpy(slots[running % 32], &x, sizeof x);
	__syncwarp();
	return slots;
}
template <class T> T shfl(T x, int from) {
	T y;
	memcpy(&y, exchange(x)[from & 31], sizeof y);
	return y;
}
template <class T> T __shfl_xor_sync(unsigned, T x, int n) { return shfl(x, (running % 32) ^ n); }
template <class T> T __shfl_sync(unsigned, T x, int n) { return shfl(x, n); }
template <class T> T __shfl_up_sync(unsigned, T x, int n) { return shfl(x, max(running % 32 - n, 0)); }
static inline uint32_t __ballot_sync(unsigned, bool x) {
	auto *slots = exchange(uint64_t(x));
	uint32_t all = 0;
	for (int i = 0; i < 32; i++) all |= uint32_t(slots[i][0]) << i;
	return all;
}
static inline bool __any_sync(unsigned, bool x) { return __ballot_sync(~0u, x) != 0; }
static inline int __popc(uint32_t x) { return __builtin_popcount(x); }
template <class T> T __ldcs(const T *p) { return *p; }

// ---- mbarriers ------------------------------------------------------------------------------------

struct Bar {
	int expected = 0, pending = 0, tx = 0, phase = 0;
};
extern std::map<uint32_t, Bar> bars;
static inline uint32_t sharedAddress(const void *p) { return uint32_t((const char *)p - tiles); }
static inline void barCheck(Bar &b) {
	if (b.pending != 0 || b.tx != 0) return;
	b.phase ^= 1;
	b.pending = b.expected;
	progress++;
}
static inline void barrierInit(uint32_t bar, int n) {
	if (bar % 8) abort();
	bars[bar] = Bar{n, n, 0, 0};
}
static inline void barrierInitFence() {}
static inline Bar &barAt(uint32_t bar) {
	auto i = bars.find(bar);
	if (i == bars.end()) refuse("no mbarrier", bar);
	return i->second;
}
static inline void barrierArrive(uint32_t bar) {
	Bar &b = barAt(bar);
	if (b.pending <= 0) refuse("too many arrivals", bar);
	b.pending--;
	barCheck(b);
	pause();
}
static inline void barrierExpect(uint32_t bar, int bytes) {
	Bar &b = barAt(bar);
	b.tx += bytes;
	b.pending--;
	barCheck(b);
}
static inline void barrierComplete(uint32_t bar, int bytes) {
	Bar &b = barAt(bar);
	b.tx -= bytes;
	barCheck(b);
}
extern uint32_t waitingFor[1024];
static inline void barrierWait(uint32_t bar, uint32_t parity) {
	waitingFor[running] = bar;
	while ((barAt(bar).phase & 1) == parity) pauseWhile(&barAt(bar).phase, parity, 1);
	waitingFor[running] = 0;
}
static inline void prefetchMap(const TensorMap *) {}
static inline uint32_t swizzled(uint32_t a) { return a ^ ((a >> 7 & 7) << 4); }
static inline void copyBox(uint32_t to, const TensorMap *m, uint32_t bar, int column, int row, int head, int batch) {
	if (to % 1024) refuse("unaligned tile", to);
	for (int r = 0; r < m->rows; r++)
		for (int c = 0; c < 64; c++) {
			uint16_t x = 0;
			if (column + c < m->sizes[0] && row + r < m->sizes[1] && row + r >= 0 && head < m->sizes[2] && batch >= 0 && batch < m->sizes[3])
				x = m->base[column + c + (row + r) * m->strides[0] + head * m->strides[1] + batch * m->strides[2]];
			memcpy(sharedAt(swizzled(to + r * 128 + c * 2)), &x, 2);
		}
	barrierComplete(bar, m->rows * 128);
}
static inline void proxyFence() {}
static inline bool namedOr(int id, int threads, bool x) {
	namedAny[id] |= x;
	meet(namedMeet[id], threads, [&] { namedOut[id] = namedAny[id]; namedAny[id] = false; });
	return namedOut[id];
}
static inline void namedSync(int id, int threads) { namedOr(id, threads, false); }
static inline void namedArrive(int id, int threads) {
	Meet &m = namedMeet[id];
	if (++m.count < threads) return;
	namedOut[id] = namedAny[id], namedAny[id] = false;
	m.count = 0;
	m.gen++;
	progress++;
}
// Registers that a thread starts with. To take fewer, or to give some for more, is an illegal instruction.
static inline int startRegisters() { return min(65536 / ctaThreads / 8 * 8, 256); }
template <int N> void takeRegisters() {
	if (N < startRegisters()) refuse("takes fewer registers", N);
}
template <int N> void giveRegisters() {
	if (N > startRegisters()) refuse("gives more registers", N);
}
