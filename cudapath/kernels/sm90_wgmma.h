// wgmma: a warpgroup multiplies 64 rows of A (in shared memory or registers) by N columns of B (in shared memory),
// with depth 16, and adds the product to float32 accumulators in registers.
//
// Layout of the accumulators d of thread t, with w = t / 32, g = t % 32 / 4 and c = t % 4:
//
//   d[4j], d[4j + 1]       row 16w + g,     columns 8j + 2c and 8j + 2c + 1
//   d[4j + 2], d[4j + 3]   row 16w + g + 8, the same columns
//
// Packed to 16 bits, the accumulators of two consecutive j are the four words of an A operand of depth 16. The
// kernels use P as an operand of P V this way, without a shuffle.
#pragma once
#include <cstdint>

#ifndef ATTN_BF16
#define ATTN_BF16 0
#endif
#if ATTN_BF16
#define WGMMA_TYPES "f32.bf16.bf16"
#else
#define WGMMA_TYPES "f32.f16.f16"
#endif

// The functions below take the lower word of a matrix descriptor; the upper word is the same for all matrices. Rows
// of a matrix have 128 bytes in the 128-byte swizzle. 8 rows are an atom of 1024 bytes, and atoms are contiguous.
// If the depth runs across rows, `panel` is the stride in bytes between panels of 64 columns.
//
// Offsets are constants, added to the lower word in 32 bits. The uniform datapath that builds descriptors is slow:
// 64-bit additions made a kernel 5 % slower (H200).
constexpr uint32_t MATRIX_HIGH = 1u << 30 | 1024 >> 4; // 128-byte swizzle, stride between atoms

__device__ __forceinline__ constexpr uint32_t matrixPanels(uint32_t panel) { return panel >> 4 << 16; }
__device__ __forceinline__ constexpr uint32_t matrixOffset(uint32_t bytes) { return bytes >> 4; }

__device__ __forceinline__ void wgmmaFence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmmaCommit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING> __device__ __forceinline__ void wgmmaWait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory"); }

// Tells the compiler that these registers change here: wgmma reads and writes them asynchronously.
template <int N> __device__ __forceinline__ void touch(float (&d)[N]) {
#pragma unroll
	for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}
template <int N> __device__ __forceinline__ void touch(uint32_t (&d)[N]) {
#pragma unroll
	for (int i = 0; i < N; i++) asm volatile("" : "+r"(d[i])::"memory");
}

template <int N> struct Wgmma;

// ss: d = A * B^T with A and B in shared memory, depth along rows (K-major); add: d += A * B^T.
// rs: d += A * B with A in registers and B in shared memory, depth across rows (MN-major).
// rsk: d = A * B^T with A in registers and B in shared memory, depth along rows (K-major); ADD: d += A * B^T.
#define WGMMA_DEFINE(N, D, OPERANDS, A0, A1, A2, A3, A4, A5) \
	template <> struct Wgmma<N> { \
		static __device__ __forceinline__ void ss(float (&d)[N / 2], uint32_t a, uint32_t b, bool add) { \
			asm volatile("{\n.reg .pred add;\n.reg .b64 a, b;\nmov.b64 a, {" A0 ", " A3 "};\nmov.b64 b, {" A1 ", " A3 "};\nsetp.ne.b32 add, " A2 ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N "k16." \
						 WGMMA_TYPES " {" D "}, a, b, add, 1, 1, 0, 0;\n}\n" \
						 : OPERANDS : "r"(a), "r"(b), "r"(int(add)), "n"(MATRIX_HIGH)); \
		} \
		static __device__ __forceinline__ void rs(float (&d)[N / 2], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, \
												  uint32_t b) { \
			asm volatile("{\n.reg .pred add;\n.reg .b64 b;\nmov.b64 b, {" A4 ", " A5 "};\nsetp.eq.u32 add, 0, 0;\nwgmma.mma_async.sync.aligned.m64n" #N "k16." WGMMA_TYPES \
						 " {" D "}, {" A0 ", " A1 ", " A2 ", " A3 "}, b, add, 1, 1, 1;\n}\n" \
						 : OPERANDS : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b), "n"(MATRIX_HIGH)); \
		} \
		template <bool ADD> static __device__ __forceinline__ void rsk(float (&d)[N / 2], const uint32_t (&a)[4], uint32_t b) { \
			if constexpr (ADD) \
				asm volatile("{\n.reg .pred add;\n.reg .b64 b;\nmov.b64 b, {" A4 ", " A5 "};\nsetp.eq.u32 add, 0, 0;\nwgmma.mma_async.sync.aligned.m64n" #N "k16." WGMMA_TYPES \
							 " {" D "}, {" A0 ", " A1 ", " A2 ", " A3 "}, b, add, 1, 1, 0;\n}\n" \
							 : OPERANDS : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "n"(MATRIX_HIGH)); \
			else \
				asm volatile("{\n.reg .pred add;\n.reg .b64 b;\nmov.b64 b, {" A4 ", " A5 "};\nsetp.ne.u32 add, 0, 0;\nwgmma.mma_async.sync.aligned.m64n" #N "k16." WGMMA_TYPES \
							 " {" D "}, {" A0 ", " A1 ", " A2 ", " A3 "}, b, add, 1, 1, 0;\n}\n" \
							 : OPERANDS : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "n"(MATRIX_HIGH)); \
		} \
	};

#define WGMMA_D8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define WGMMA_D16 WGMMA_D8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define WGMMA_D24 WGMMA_D16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define WGMMA_D32 WGMMA_D24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define WGMMA_D40 WGMMA_D32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define WGMMA_D48 WGMMA_D40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define WGMMA_D56 WGMMA_D48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define WGMMA_D64 WGMMA_D56 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define WGMMA_D72 WGMMA_D64 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define WGMMA_D80 WGMMA_D72 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define WGMMA_D88 WGMMA_D80 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define WGMMA_D96 WGMMA_D88 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define WGMMA_D104 WGMMA_D96 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define WGMMA_D112 WGMMA_D104 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define WGMMA_D120 WGMMA_D112 ", %112, %113, %114, %115, %116, %117, %118, %119"
#define WGMMA_D128 WGMMA_D120 ", %120, %121, %122, %123, %124, %125, %126, %127"

#define WGMMA_O8 "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
#define WGMMA_O16 WGMMA_O8, "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
#define WGMMA_O24 WGMMA_O16, "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23])
#define WGMMA_O32 WGMMA_O24, "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
#define WGMMA_O40 WGMMA_O32, "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39])
#define WGMMA_O48 WGMMA_O40, "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47])
#define WGMMA_O56 WGMMA_O48, "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55])
#define WGMMA_O64 WGMMA_O56, "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
#define WGMMA_O72 WGMMA_O64, "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71])
#define WGMMA_O80 WGMMA_O72, "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79])
#define WGMMA_O88 WGMMA_O80, "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87])
#define WGMMA_O96 WGMMA_O88, "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95])
#define WGMMA_O104 WGMMA_O96, "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103])
#define WGMMA_O112 WGMMA_O104, "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111])
#define WGMMA_O120 WGMMA_O112, "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119])
#define WGMMA_O128 WGMMA_O120, "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])

WGMMA_DEFINE(16, WGMMA_D8, WGMMA_O8, "%8", "%9", "%10", "%11", "%12", "%13")
WGMMA_DEFINE(32, WGMMA_D16, WGMMA_O16, "%16", "%17", "%18", "%19", "%20", "%21")
WGMMA_DEFINE(48, WGMMA_D24, WGMMA_O24, "%24", "%25", "%26", "%27", "%28", "%29")
WGMMA_DEFINE(64, WGMMA_D32, WGMMA_O32, "%32", "%33", "%34", "%35", "%36", "%37")
WGMMA_DEFINE(80, WGMMA_D40, WGMMA_O40, "%40", "%41", "%42", "%43", "%44", "%45")
WGMMA_DEFINE(96, WGMMA_D48, WGMMA_O48, "%48", "%49", "%50", "%51", "%52", "%53")
WGMMA_DEFINE(112, WGMMA_D56, WGMMA_O56, "%56", "%57", "%58", "%59", "%60", "%61")
WGMMA_DEFINE(128, WGMMA_D64, WGMMA_O64, "%64", "%65", "%66", "%67", "%68", "%69")
WGMMA_DEFINE(144, WGMMA_D72, WGMMA_O72, "%72", "%73", "%74", "%75", "%76", "%77")
WGMMA_DEFINE(160, WGMMA_D80, WGMMA_O80, "%80", "%81", "%82", "%83", "%84", "%85")
WGMMA_DEFINE(176, WGMMA_D88, WGMMA_O88, "%88", "%89", "%90", "%91", "%92", "%93")
WGMMA_DEFINE(192, WGMMA_D96, WGMMA_O96, "%96", "%97", "%98", "%99", "%100", "%101")
WGMMA_DEFINE(208, WGMMA_D104, WGMMA_O104, "%104", "%105", "%106", "%107", "%108", "%109")
WGMMA_DEFINE(224, WGMMA_D112, WGMMA_O112, "%112", "%113", "%114", "%115", "%116", "%117")
WGMMA_DEFINE(256, WGMMA_D128, WGMMA_O128, "%128", "%129", "%130", "%131", "%132", "%133")
