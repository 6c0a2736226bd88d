// FlashAttention-3 for sm_90a in 48 KiB of shared memory, the limit for a kernel launched from a Vulkan command
// buffer (VK_NVX_binary_import).
//
// Row ownership, scheduler, producer, consumers, barriers and epilogue are those of fa3.cu, whose header explains
// them. Two things differ:
//   - Q is in registers, as the A operand of wgmma. Each consumer loads its 64 rows from global memory.
//   - K and V may share one ring of tiles.
//
// Compile one cubin per (dtype, head dim): nvcc -std=c++17 -O3 -gencode=arch=compute_90a,code=sm_90a -cubin with
//   -DATTN_BF16=0|1         storage type
//   -DATTN_D=64|96|128      head dim; smaller ones are padded with zeros
//   -DCUBIN_FULL=, _CAUSAL= another tile: warpgroups, keys of a KV tile, stages, one ring, ping-pong (optional)
// Entries: attn_cubin_<f16|bf16>_d<D>_<full|causal>(map k, map v, AttnParams). Bases, strides and head dims are multiples
// of 16 bytes. Any grid gives the same bits; one CTA per multiprocessor is intended.
#include "cubin_tile.h"
#include "fa3_consume.h"
#include "fa3_produce.h"

#ifndef ATTN_D
#define ATTN_D 128
#endif

template <class T> __device__ __forceinline__ void attend(const TensorMap *mapK, const TensorMap *mapV, const AttnParams &p) {
	extern __shared__ __align__(1024) char tiles[];
	const uint32_t shared = sharedAddress(tiles);
	const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
	if (threadIdx.x == 0) {
		prefetchMap(mapK), prefetchMap(mapV);
		const int releases = 4 * T::WARPGROUPS; // one per warp
		for (int i = 0; i < T::STAGES; i++) {
			barrierInit(shared + T::K_FULL + 8 * i, 1);
			barrierInit(shared + T::K_EMPTY + 8 * i, releases);
			if (!T::ONE_RING) {
				barrierInit(shared + T::V_FULL + 8 * i, 1);
				barrierInit(shared + T::V_EMPTY + 8 * i, releases);
			}
			barrierInit(shared + T::V_RAW + 8 * i, 1);
			*reinterpret_cast<uint32_t *>(tiles + T::MARKS + 4 * i) = 0;
		}
		barrierInitFence();
	}
	__syncthreads();
	if (warp < 4) {
		giveRegisters<T::PRODUCER_REGISTERS>();
		if (warp == 0) {
			if (threadIdx.x == 0) produce<T>(nullptr, mapK, mapV, p, shared);
		} else if (T::CAUSAL) {
			scan<T>(p, shared, tiles);
		}
	} else {
		takeRegisters<T::CONSUMER_REGISTERS>();
		consume<T>(p, shared, tiles, warp / 4 - 1);
	}
}

// Tiles by head dim, full and causal: warpgroups, keys of a KV tile, stages, one ring, ping-pong. Chosen on an H200
// (docs/cubin-log.md). cubin.json repeats them for the host; CUBIN_SHARED_* lets the build check that they agree.
#if ATTN_D == 64
#define CUBIN_TABLE_FULL 3, 80, 2, false, true
#define CUBIN_TABLE_CAUSAL 4, 48, 7, true, true
#elif ATTN_D == 96
#define CUBIN_TABLE_FULL 3, 48, 3, true, false
#define CUBIN_TABLE_CAUSAL CUBIN_TABLE_FULL
#else
#define CUBIN_TABLE_FULL 3, 32, 2, false, false
#define CUBIN_TABLE_CAUSAL CUBIN_TABLE_FULL
#endif
#ifndef CUBIN_FULL
#define CUBIN_FULL CUBIN_TABLE_FULL
#endif
#ifndef CUBIN_CAUSAL
#define CUBIN_CAUSAL CUBIN_TABLE_CAUSAL
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

#define KERNEL(kind, Kind)                                                                                                             \
	extern "C" __global__ void __launch_bounds__(Kind::THREADS, 1)                                                                 \
		JOIN(TYPE_NAME, ATTN_D, kind)(const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v,                \
					      const __grid_constant__ AttnParams p) {                                                  \
		attend<Kind>(&k, &v, p);                                                                                               \
	}

KERNEL(full, Full)
KERNEL(causal, Causal)
