// FlashAttention-3 for sm_90a within the shared memory that a launch from a Vulkan command buffer has
// (VK_NVX_binary_import): 48 KiB. It needs no tensor map, which only a CUDA context can encode.
//
// Scheduler, consumers and epilogue are those of fa3.cu, which explains them. The differences:
//   - Q is in registers, as the A operand of wgmma. Each consumer loads its 64 rows from global memory.
//   - K and V come by cp.async, in 16-byte chunks that the producer places in the 128-byte swizzle. Two warps
//     load K, two load V; each goes through a ring of STAGES tiles.
//   - In the steps that the causal mask crosses, the threads that load V scan it for non-finite elements.
//
// Compile one cubin per (dtype, head dim): nvcc -std=c++17 -O3 -gencode=arch=compute_90a,code=sm_90a -cubin with
//   -DATTN_BF16=0|1         storage type
//   -DATTN_D=64|96|128      head dim; zeros stand for what smaller ones lack
//   -DCUBIN_FULL=, _CAUSAL= other tiles: warpgroups, keys of a step, stages, take turns (optional)
// Entries: attn_cubin_<f16|bf16>_d<D>_<full|causal>(AttnParams). Bases, strides and head dims are multiples of 16
// bytes. Any grid gives the same bits; the intended one is a CTA per multiprocessor.
#include "cubin_produce.h"
#include "fa3_consume.h"

#ifndef ATTN_D
#define ATTN_D 128
#endif

template <class T> __device__ __forceinline__ void attend(const AttnParams &p) {
	extern __shared__ __align__(1024) char tiles[];
	const uint32_t shared = sharedAddress(tiles);
	const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
	if (threadIdx.x == 0) {
		const int releases = 4 * T::WARPGROUPS; // one per warp
		for (int i = 0; i < T::STAGES; i++) {
			barrierInit(shared + T::K_FULL + 8 * i, T::LOADERS);
			barrierInit(shared + T::K_EMPTY + 8 * i, releases);
			barrierInit(shared + T::V_FULL + 8 * i, T::LOADERS);
			barrierInit(shared + T::V_EMPTY + 8 * i, releases);
			*reinterpret_cast<uint32_t *>(tiles + T::MARKS + 4 * i) = 0;
		}
		barrierInitFence();
	}
	__syncthreads();
	if (warp < 4) {
		giveRegisters<T::PRODUCER_REGISTERS>();
		if (warp < 2) produceK<T>(p, shared);
		else produceV<T>(p, shared, tiles);
	} else {
		takeRegisters<T::CONSUMER_REGISTERS>();
		consume<T>(p, shared, tiles, warp / 4 - 1);
	}
}

// Warpgroups, keys of a step, stages and whether the warpgroups take turns, by head dim: the fastest of the experiment
// with tensor maps (docs/cubin-log.md), on an H200 and an H100. cubin.json repeats them.
#if ATTN_D == 64
#define CUBIN_TABLE 3, 80, 2, true
#else
#define CUBIN_TABLE 3, 32, 2, false
#endif
#ifndef CUBIN_FULL
#define CUBIN_FULL CUBIN_TABLE
#endif
#ifndef CUBIN_CAUSAL
#define CUBIN_CAUSAL CUBIN_TABLE
#endif

using Full = CubinTile<ATTN_D, ATTN_D, CUBIN_FULL, false>;
using Causal = CubinTile<ATTN_D, ATTN_D, CUBIN_CAUSAL, true>;
#ifdef CUBIN_SHARED_FULL
static_assert(Full::SHARED_BYTES == CUBIN_SHARED_FULL && Causal::SHARED_BYTES == CUBIN_SHARED_CAUSAL, "cubin.json says otherwise");
#endif

#define JOIN_(type, d, kind) attn_cubin_##type##_d##d##_##kind
#define JOIN(type, d, kind) JOIN_(type, d, kind)
#if ATTN_BF16
#define TYPE_NAME bf16
#else
#define TYPE_NAME f16
#endif

#define KERNEL(kind, Kind) \
	extern "C" __global__ void __launch_bounds__(Kind::THREADS, 1) JOIN(TYPE_NAME, ATTN_D, kind)(const __grid_constant__ AttnParams p) { attend<Kind>(p); }

KERNEL(full, Full)
KERNEL(causal, Causal)
