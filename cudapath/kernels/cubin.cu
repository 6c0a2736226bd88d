// FlashAttention-3 for sm_90a in 48 KiB of shared memory, the limit for a kernel launched from a Vulkan command
// buffer (VK_NVX_binary_import).
//
// Row ownership, scheduler, producer, consumers, barriers and epilogue are those of fa3.cu, whose header explains
// them. Two things differ:
//   - Q is in registers, as the A operand of wgmma. Each consumer loads its 64 rows from global memory.
//   - K and V may share one ring of tiles.
//
// The build passes the tiles as macros (see build/cubin.go) and compiles one cubin per (dtype, head dims):
//   CUBIN_NAME            of the entries, without the kind
//   ATTN_BF16=0|1         storage type
//   ATTN_D, ATTN_DV       head dims; smaller ones are padded with zeros
//   CUBIN_<KIND>_<FIELD>  tile of each kind of kernel: FULL, CAUSAL and, where there is one, SHORT (causal)
// Entries: attn_cubin_<f16|bf16>_d<D>_<full|causal|short>(map k, map v, AttnParams). Bases, strides and head dims are
// multiples of 16 bytes. Any grid gives the same bits; one CTA per multiprocessor is intended.
#include "cubin_consume.h"
#include "cubin_produce.h"

template <class T> __device__ __forceinline__ void attend(const TensorMap *mapK, const TensorMap *mapV, const AttnParams &p) {
	extern __shared__ __align__(1024) char tiles[];
	const uint32_t shared = sharedAddress(tiles);
	const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
	if (threadIdx.x == 0) {
		prefetchMap(mapK), prefetchMap(mapV);
		const int releases = 4 * T::WARPGROUPS; // one per warp
		initKeyRings<T>(shared, tiles, releases);
		for (int i = 0; i < T::WORKS; i++) {
			barrierInit(shared + T::WORK_FULL + 8 * i, 1);
			barrierInit(shared + T::WORK_EMPTY + 8 * i, releases);
		}
		barrierInitFence();
	}
	__syncthreads();
	if (warp < 4) {
		giveRegisters<T::PRODUCER_REGISTERS>();
		if (warp == 0) {
			if (threadIdx.x == 0) produceCubin<T>(mapK, mapV, p, shared, tiles);
		} else if (T::CAUSAL) {
			scan<T>(p, shared, tiles);
		}
	} else {
		takeRegisters<T::CONSUMER_REGISTERS>();
		consumeCubin<T>(p, shared, tiles, warp / 4 - 1);
	}
}

#define TILE(kind, causal)                                                                                                             \
	CubinTile<ATTN_D, ATTN_DV, CUBIN_##kind##_WARPGROUPS, CUBIN_##kind##_COLS, CUBIN_##kind##_STAGES, CUBIN_##kind##_ONE_RING,     \
		  CUBIN_##kind##_PINGPONG, CUBIN_##kind##_AHEAD, causal>
#define KERNEL(name, kind, causal)                                                                                                     \
	extern "C" __global__ void __launch_bounds__(TILE(kind, causal)::THREADS, 1)                                                   \
		name(const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v, const __grid_constant__ AttnParams p) { \
		using T = TILE(kind, causal);                                                                                          \
		static_assert(T::SHARED_BYTES == CUBIN_##kind##_SHARED, "cubin.json says otherwise");                                  \
		attend<T>(&k, &v, p);                                                                                                  \
	}
#define JOIN(a, b) a##b
#define NAME(a, b) JOIN(a, b)

KERNEL(NAME(CUBIN_NAME, _full), FULL, false)
KERNEL(NAME(CUBIN_NAME, _causal), CAUSAL, true)
#ifdef CUBIN_SHORT_WARPGROUPS
KERNEL(NAME(CUBIN_NAME, _short), SHORT, true)
#endif
