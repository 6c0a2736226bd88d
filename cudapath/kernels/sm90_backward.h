// Inline PTX for sm_90a that only the backward kernels use: forms of wgmma in addition to those of sm90_wgmma.h,
// transposition, bulk copies and additions by TMA, and turns of CTAs.
#pragma once
#include "sm90_wgmma.h"

#define WGMMA_W8(o) "=f"(d[o]), "=f"(d[o + 1]), "=f"(d[o + 2]), "=f"(d[o + 3]), "=f"(d[o + 4]), "=f"(d[o + 5]), "=f"(d[o + 6]), "=f"(d[o + 7])
#define WGMMA_W16 WGMMA_W8(0), WGMMA_W8(8)
#define WGMMA_W24 WGMMA_W16, WGMMA_W8(16)
#define WGMMA_W32 WGMMA_W24, WGMMA_W8(24)
#define WGMMA_W40 WGMMA_W32, WGMMA_W8(32)
#define WGMMA_W48 WGMMA_W40, WGMMA_W8(40)
#define WGMMA_W64 WGMMA_W48, WGMMA_W8(48), WGMMA_W8(56)

// The first product of a sum: d = A B^T, or with TRANSPOSED d = A^T B^T. The accumulators are outputs only. As inputs,
// which a sum has, their old values would occupy registers up to here.
template <int N, int TRANSPOSED> struct WgmmaFirst;

#define WGMMA_FIRST(N, TRANSPOSED, D, OPERANDS, A0, A1, A2) \
	template <> struct WgmmaFirst<N, TRANSPOSED> { \
		static __device__ __forceinline__ void ss(float (&d)[N / 2], uint32_t a, uint32_t b) { \
			asm volatile("{\n.reg .pred add;\n.reg .b64 a, b;\nmov.b64 a, {" A0 ", " A2 "};\nmov.b64 b, {" A1 ", " A2 "};\nsetp.ne.b32 add, 0, 0;\nwgmma.mma_async.sync.aligned.m64n" #N "k16." \
						 WGMMA_TYPES " {" D "}, a, b, add, 1, 1, " #TRANSPOSED ", 0;\n}\n" \
						 : OPERANDS : "r"(a), "r"(b), "n"(MATRIX_HIGH)); \
		} \
	};

WGMMA_FIRST(32, 0, WGMMA_D16, WGMMA_W16, "%16", "%17", "%18")
WGMMA_FIRST(32, 1, WGMMA_D16, WGMMA_W16, "%16", "%17", "%18")
WGMMA_FIRST(48, 0, WGMMA_D24, WGMMA_W24, "%24", "%25", "%26")
WGMMA_FIRST(48, 1, WGMMA_D24, WGMMA_W24, "%24", "%25", "%26")
WGMMA_FIRST(64, 0, WGMMA_D32, WGMMA_W32, "%32", "%33", "%34")
WGMMA_FIRST(64, 1, WGMMA_D32, WGMMA_W32, "%32", "%33", "%34")
WGMMA_FIRST(80, 0, WGMMA_D40, WGMMA_W40, "%40", "%41", "%42")
WGMMA_FIRST(80, 1, WGMMA_D40, WGMMA_W40, "%40", "%41", "%42")
WGMMA_FIRST(96, 0, WGMMA_D48, WGMMA_W48, "%48", "%49", "%50")
WGMMA_FIRST(96, 1, WGMMA_D48, WGMMA_W48, "%48", "%49", "%50")
WGMMA_FIRST(128, 0, WGMMA_D64, WGMMA_W64, "%64", "%65", "%66")

// d = A^T B^T (depth along the rows of B, K-major) or d = A^T B (depth across the rows of B, MN-major), with A and B in
// shared memory and depth across the rows of A; add: d += the product.
template <int N, int ACROSS> struct WgmmaTransposed;

#define WGMMA_TRANSPOSED(N, ACROSS, D, OPERANDS, A0, A1, A2, A3) \
	template <> struct WgmmaTransposed<N, ACROSS> { \
		static __device__ __forceinline__ void ss(float (&d)[N / 2], uint32_t a, uint32_t b, bool add) { \
			asm volatile("{\n.reg .pred add;\n.reg .b64 a, b;\nmov.b64 a, {" A0 ", " A3 "};\nmov.b64 b, {" A1 ", " A3 "};\nsetp.ne.b32 add, " A2 ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N "k16." \
						 WGMMA_TYPES " {" D "}, a, b, add, 1, 1, 1, " #ACROSS ";\n}\n" \
						 : OPERANDS : "r"(a), "r"(b), "r"(int(add)), "n"(MATRIX_HIGH)); \
		} \
	};

WGMMA_TRANSPOSED(48, 0, WGMMA_D24, WGMMA_O24, "%24", "%25", "%26", "%27")
WGMMA_TRANSPOSED(64, 0, WGMMA_D32, WGMMA_O32, "%32", "%33", "%34", "%35")
WGMMA_TRANSPOSED(80, 0, WGMMA_D40, WGMMA_O40, "%40", "%41", "%42", "%43")
WGMMA_TRANSPOSED(96, 0, WGMMA_D48, WGMMA_O48, "%48", "%49", "%50", "%51")
WGMMA_TRANSPOSED(64, 1, WGMMA_D32, WGMMA_O32, "%32", "%33", "%34", "%35")
WGMMA_TRANSPOSED(128, 1, WGMMA_D64, WGMMA_O64, "%64", "%65", "%66", "%67")

// Stores four 8x8 matrices of 16-bit elements, transposed. Lane i passes the address of column i % 8 of matrix i / 8.
__device__ __forceinline__ void storeTransposed(uint32_t to, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
	asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}

// Transposes an 8x8 matrix of 16-bit elements. Lane i has two elements of row i / 4.
__device__ __forceinline__ uint32_t transposeMatrix(uint32_t x) {
	uint32_t y;
	asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
	return y;
}

// ---- Barriers and copies ------------------------------------------------------------------------

// A named barrier that returns whether x is true in any of the threads.
__device__ __forceinline__ bool namedOr(int id, int threads, bool x) {
	int any;
	asm volatile("{\n.reg .pred x, any;\nsetp.ne.s32 x, %3, 0;\nbar.red.or.pred any, %1, %2, x;\nselp.s32 %0, 1, 0, any;\n}\n"
		     : "=r"(any)
		     : "r"(id), "r"(threads), "r"(int(x))
		     : "memory");
	return any != 0;
}

// Copies contiguous bytes, a multiple of 16, to shared memory by TMA. The mbarrier counts them.
__device__ __forceinline__ void copyBytes(uint32_t to, const void *from, int bytes, uint32_t bar) {
	asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from), "r"(bytes), "r"(bar)
		     : "memory");
}

// ---- Programmatic dependent launch ----------------------------------------------------------------

// Waits until the kernel before this one on the stream is complete and its writes are visible. allowNextKernel() lets the next
// kernel start when all CTAs of this one have called it or ended. Both concern kernels that are launched with the attribute for
// programmatic stream serialization, and otherwise do nothing.
__device__ __forceinline__ void waitForKernelBefore() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ __forceinline__ void allowNextKernel() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

// ---- Memory shared by CTAs ------------------------------------------------------------------------

// Loads 16 bytes that CTAs of a running kernel have written.
__device__ __forceinline__ float4 loadCached(const float4 *from) { return __ldcg(from); }
__device__ __forceinline__ void waitShortly() { __nanosleep(200); }

// Waits until a counter is at least mine. passTurn() adds 1 to it.
__device__ __forceinline__ void waitTurn(const int *turn, int mine) {
	for (int seen = -1; seen < mine;) seen = loadAcquire(turn);
}
__device__ __forceinline__ void passTurn(int *turn) { asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(turn) : "memory"); }

// Orders this thread's generic accesses to global memory and those of TMA.
__device__ __forceinline__ void globalProxyFence() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

// Stores contiguous bytes, a multiple of 16, from shared memory by TMA. The next bulkCommit() includes it.
__device__ __forceinline__ void storeBytes(void *to, uint32_t from, int bytes) {
	asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes) : "memory");
}

// Stores contiguous floats from shared memory by TMA, or adds them to memory. The next bulkCommit() includes it.
__device__ __forceinline__ void addBytes(float *to, uint32_t from, int bytes, bool store) {
	if (store)
		asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes) : "memory");
	else
		asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void bulkCommit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Waits until TMA has read shared memory, or until its writes are complete, for all groups that were committed.
__device__ __forceinline__ void bulkWaitRead() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
__device__ __forceinline__ void bulkWait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

__device__ __forceinline__ void storeFloats(uint32_t to, float a, float b, float c, float d) {
	asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(a), "f"(b), "f"(c), "f"(d) : "memory");
}

// ---- Registers ------------------------------------------------------------------------------------

// Returns whether this is the lane that the warp has chosen. All lanes call it.
__device__ __forceinline__ bool electLane() {
	uint32_t chosen;
	asm volatile("{\n.reg .pred chosen;\nelect.sync _|chosen, 0xffffffff;\nselp.u32 %0, 1, 0, chosen;\n}\n" : "=r"(chosen)::"memory");
	return chosen != 0;
}

// Returns threadIdx.x. The assembler reads it again at each call instead of holding it in a register.
__device__ __forceinline__ int threadHere() {
	int x;
	asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
	return x;
}

// A half of a word of two 16-bit values as float32.
template <bool BFLOAT> __device__ __forceinline__ float widenHalf(uint32_t word, int half) {
	const uint32_t bits = half ? word >> 16 : word & 0xffff;
	if constexpr (BFLOAT) return __uint_as_float(bits << 16);
	float x;
	asm("{.reg .b16 h; cvt.u16.u32 h, %1; cvt.f32.f16 %0, h;}" : "=f"(x) : "r"(bits));
	return x;
}
