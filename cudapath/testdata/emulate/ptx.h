/* The instructions of kernels/ptx.h on the CPU, and the types and functions of CUDA C++ that kernels of warps use. Shared
 * memory is an array of emulate.cc; an address is an offset in it. */
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <vector>
using std::max;
using std::min;

#define __forceinline__ inline

struct uint4 { uint32_t x, y, z, w; };
struct int4 { int x, y, z, w; };
struct float4 { float x, y, z, w; };
struct float2 { float x, y; };
static inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
static inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline float __int_as_float(uint32_t x) { return floatOf(x); }
static inline float __uint_as_float(uint32_t x) { return floatOf(x); }
static inline uint32_t __float_as_uint(float x) { return bitsOf(x); }
static inline int __float_as_int(float x) { return (int)bitsOf(x); }
static inline float __fdividef(float a, float b) { return a / b; }
static inline float __fmul_rn(float a, float b)
{
	volatile float c = a * b; /* rounded, not part of a fused operation */
	return c;
}
static inline float __fadd_rn(float a, float b)
{
	volatile float c = a + b;
	return c;
}
static inline int atomicAdd(int *to, int x) { return (*to += x) - x; }
static inline void atomicMax(int *to, int x) { *to = x > *to ? x : *to; }
static inline void atomicMin(unsigned *to, unsigned x) { *to = x < *to ? x : *to; }

extern long progress; /* grows with everything that another thread may wait for */
void pause();         /* lets other threads run */
void pauseWhile(const int *at, int value, int mask = ~0); /* the same until *at & mask is another value */
[[noreturn]] void refuse(const char *what, uint64_t at); /* ends the CTA */

static inline float exp2Approx(float x) { return x < -126 ? 0 : exp2f(x); }
template <bool BF16> static inline uint32_t pack(float low, float high)
{
	auto one = [](float x) -> uint32_t { if constexpr (BF16) return __float2bfloat16_rn(x).bits; else return __float2half_rn(x).bits; };
	return one(low) | one(high) << 16;
}

char *sharedAt(uint32_t address); /* refuses an address outside of the kernel's shared memory */
template <class T> static inline T loadSharedAs(uint32_t address)
{
	T x;
	if (address % sizeof x) refuse("unaligned load", address);
	memcpy(&x, sharedAt(address), sizeof x);
	return x;
}
template <class T> static inline void storeSharedAs(uint32_t address, T x)
{
	if (address % sizeof x) refuse("unaligned store", address);
	memcpy(sharedAt(address), &x, sizeof x);
}
static inline uint4 loadShared(uint32_t address) { return loadSharedAs<uint4>(address); }
static inline float2 loadSharedPair(uint32_t address) { return loadSharedAs<float2>(address); }
static inline uint32_t loadSharedWord(uint32_t address) { return loadSharedAs<uint32_t>(address); }
static inline uint32_t loadSharedByte(uint32_t address) { return loadSharedAs<uint8_t>(address); }
static inline void storeShared(uint32_t address, uint4 x) { storeSharedAs(address, x); }
static inline void storeSharedWord(uint32_t address, uint32_t x) { storeSharedAs(address, x); }
static inline void storeSharedByte(uint32_t address, uint32_t x) { storeSharedAs<uint8_t>(address, x); }

static inline int loadAcquire(const int *from) { return pause(), *from; }
static inline void storeRelease(int *to, int x)
{
	*to = x;
	progress++;
}
