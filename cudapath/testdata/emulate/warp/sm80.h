/* The instructions of kernels/sm80.h and kernels/fa2_backward_ptx.h on the CPU. The lanes of a warp meet at each
 * instruction that they execute together; the last to come computes for all. */
#pragma once
#include "ptx.h"

#define __noinline__


extern char memory[]; /* dynamic shared memory; an address is an offset */
static inline uint64_t __cvta_generic_to_shared(const void *p) { return (const char *)p - memory; }
static inline void *__cvta_shared_to_generic(uint64_t address) { return memory + address; }

/* Waits until all 32 lanes of the warp are here. f computes from the arguments of all lanes, once. */
void meet(const char *what, void *argument, void (*f)(void **arguments));
void meetAll(unsigned threads, bool &any); /* of the first threads of the CTA */

static inline void __syncwarp() { meet("syncwarp", nullptr, [](void **) {}); }

struct Shuffle { uint32_t in, out; int lane; };
static inline uint32_t shuffle(uint32_t x, int from)
{
	Shuffle s = {x, 0, from};
	meet("shfl", &s, [](void **all) {
		for (int i = 0; i < 32; i++) {
			Shuffle *one = (Shuffle *)all[i];
			one->out = ((Shuffle *)all[one->lane])->in;
		}
	});
	return s.out;
}
static inline uint32_t __shfl_xor_sync(unsigned, uint32_t x, int mask) { return shuffle(x, (threadIdx.x % 32) ^ mask); }
static inline float __shfl_xor_sync(unsigned, float x, int mask) { return floatOf(shuffle(bitsOf(x), (threadIdx.x % 32) ^ mask)); }
struct Vote { bool in, out; };
static inline bool __any_sync(unsigned, bool x)
{
	Vote v = {x, false};
	meet("any", &v, [](void **all) {
		bool any = false;
		for (int i = 0; i < 32; i++) any |= ((Vote *)all[i])->in;
		for (int i = 0; i < 32; i++) ((Vote *)all[i])->out = any;
	});
	return v.out;
}
template <class T> static inline T __shfl_sync(unsigned, T x, int lane) { return (T)shuffle((uint32_t)x, lane); }

/* The larger of two elements, or the one that is a number. */
template <float (*Widen)(uint32_t)> static inline uint32_t larger(uint32_t a, uint32_t b)
{
	uint32_t r = 0;
	for (int h = 0; h < 32; h += 16) {
		const uint32_t x = a >> h & 0xffff, y = b >> h & 0xffff;
		const float wx = Widen(x), wy = Widen(y);
		r |= (wx >= wy || wy != wy ? x : y) << h;
	}
	return r;
}

struct Product { float *d; const uint32_t *a; uint32_t b0, b1; };
template <float (*Widen)(uint32_t)> static void product(void **all)
{
	float a[16][16], b[16][8];
	for (int i = 0; i < 32; i++) {
		Product *one = (Product *)all[i];
		int row = i / 4, col = i % 4 * 2;
		for (int e = 0; e < 4; e++)
			for (int h = 0; h < 2; h++) a[row + e % 2 * 8][col + e / 2 * 8 + h] = Widen(one->a[e] >> 16 * h & 0xffff);
		for (int h = 0; h < 2; h++) {
			b[col + h][row] = Widen(one->b0 >> 16 * h & 0xffff);
			b[col + 8 + h][row] = Widen(one->b1 >> 16 * h & 0xffff);
		}
	}
	for (int i = 0; i < 32; i++) {
		Product *one = (Product *)all[i];
		for (int e = 0; e < 4; e++) {
			float sum = 0;
			for (int k = 0; k < 16; k++) sum += a[i / 4 + e / 2 * 8][k] * b[k][i % 4 * 2 + e % 2];
			one->d[e] += sum;
		}
	}
}

struct Half {
	using type = __half;
	static constexpr uint32_t ones = 0x3c003c00, infinity = 0x7c007c00;
	static uint32_t pack(float low, float high) { return ::pack<false>(low, high); }
	static float low(uint32_t a) { return __half2float({(uint16_t)a}); }
	static uint32_t max(uint32_t a, uint32_t b) { return larger<low>(a, b); }
	static void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
	{
		Product one = {d, a, b0, b1};
		meet("mma", &one, product<low>);
	}
};

struct Bfloat {
	using type = __nv_bfloat16;
	static constexpr uint32_t ones = 0x3f803f80, infinity = 0x7f807f80;
	static uint32_t pack(float low, float high) { return ::pack<true>(low, high); }
	static float low(uint32_t a) { return floatOf(a << 16); }
	static uint32_t max(uint32_t a, uint32_t b) { return larger<low>(a, b); }
	static void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
	{
		Product one = {d, a, b0, b1};
		meet("mma", &one, product<low>);
	}
};

struct Matrices { uint32_t *r, address; };
static inline uint16_t elementAt(void **all, int matrix, int row, int col)
{
	uint16_t x;
	memcpy(&x, memory + ((Matrices *)all[8 * matrix + row])->address + 2 * col, 2);
	return x;
}
static inline void ldmatrix(uint32_t (&r)[4], uint32_t address)
{
	Matrices one = {r, address};
	meet("ldmatrix", &one, [](void **all) {
		for (int i = 0; i < 32; i++)
			for (int m = 0; m < 4; m++)
				((Matrices *)all[i])->r[m] = elementAt(all, m, i / 4, i % 4 * 2) | (uint32_t)elementAt(all, m, i / 4, i % 4 * 2 + 1) << 16;
	});
}
static inline void ldmatrix_transposed(uint32_t (&r)[4], uint32_t address)
{
	Matrices one = {r, address};
	meet("ldmatrix.trans", &one, [](void **all) {
		for (int i = 0; i < 32; i++)
			for (int m = 0; m < 4; m++)
				((Matrices *)all[i])->r[m] = elementAt(all, m, i % 4 * 2, i / 4) | (uint32_t)elementAt(all, m, i % 4 * 2 + 1, i / 4) << 16;
	});
}

/* The test chooses whether kernels use stmatrix. */
#ifndef STORES_MATRICES
#define STORES_MATRICES true
#endif
constexpr bool StoresMatrices = STORES_MATRICES;
struct Stores { const uint32_t *r; uint32_t address; };
static inline void stmatrix(uint32_t address, const uint32_t (&r)[4])
{
	Stores one = {r, address};
	if (address % 16) refuse("unaligned store", address);
	meet("stmatrix", &one, [](void **all) {
		for (int i = 0; i < 32; i++)
			for (int m = 0; m < 4; m++) memcpy(sharedAt(((Stores *)all[8 * m + i / 4])->address) + 4 * (i % 4), &((Stores *)all[i])->r[m], 4);
	});
}

/* A copy is done as late as it may be. */
struct Copy { uint32_t to, bytes; const void *from; };
extern std::vector<Copy> copies[];
static inline void copy_async(uint32_t to, const void *from, uint32_t bytes) { copies[threadIdx.x].push_back({to, bytes, from}); }
static inline void copy_async(uint32_t to, const void *from) { copy_async(to, from, 16); }

struct Phase { uint32_t expected, left, parity; };
static inline void barrier_init(uint32_t barrier, uint32_t arrivals) { storeSharedAs<uint64_t>(barrier, arrivals << 1 | (uint64_t)arrivals << 32); }
static inline void barrier_arrive(uint32_t barrier)
{
	uint64_t x = loadSharedAs<uint64_t>(barrier) - (1ull << 32);
	if (x >> 32 == 0) x = (x ^ 1) | (x >> 1 & 0x7fffffff) << 32;
	storeSharedAs(barrier, x);
}
static inline void copy_wait_all()
{
	for (const Copy &c : copies[threadIdx.x]) {
		memset(memory + c.to, 0, 16);
		memcpy(memory + c.to, c.from, c.bytes);
	}
	copies[threadIdx.x].clear();
}
static inline void barrier_arrive_copies(uint32_t barrier)
{
	copy_wait_all();
	barrier_arrive(barrier);
}
static inline void barrier_wait(uint32_t barrier, uint32_t parity)
{
	while ((loadSharedAs<uint64_t>(barrier) & 1) == parity) pauseWhile((const int *)sharedAt(barrier), parity, 1);
}

static inline bool join_any(uint32_t threads, bool x)
{
	meetAll(threads, x);
	return x;
}
static inline void join(uint32_t threads) { join_any(threads, false); }
static inline float4 load_l2_if(bool x, const float *from) { return x ? *(const float4 *)from : float4{}; }
static inline void store_l2(float *to, float4 x) { *(float4 *)to = x; }
static inline uint32_t heldValue(uint32_t x) { return x; }
static inline const char *plus(const char *a, int64_t b) { return a + b; }
