// FlashAttention-3 for sm_90a in 48 KiB of shared memory, the limit for a kernel launched from a Vulkan command
// buffer (VK_NVX_binary_import).
//
// Row ownership, scheduler, producer, consumers, barriers and epilogue are those of fa3.cu, whose header explains
// them. Two things differ:
//   - Q is in registers, as the A operand of wgmma. Each consumer loads its 64 rows from global memory.
//   - K and V may share one ring of tiles.
//
// Modules with CUBIN_OPTIONS take calls with lengths or a window instead (fa3_options.h): the tile of a causal kernel, whose producer is that of
// fa3, and whose consumers read what they need of a row block from the list of warp 3.
//
// The build passes the tiles as macros (see build/cubin.go) and compiles one cubin per (dtype, head dims):
//   CUBIN_NAME            of the entries, without the kind
//   ATTN_BF16=0|1         storage type
//   ATTN_D, ATTN_DV       head dims; smaller ones are padded with zeros
//   CUBIN_OPTIONS=1       for calls with lengths or a window, of any mask
//   CUBIN_PAGED=0|1       with CUBIN_OPTIONS: K and V are paged
//   CUBIN_<KIND>_<FIELD>  tile of each kind of kernel: FULL, not with CUBIN_OPTIONS, CAUSAL and, where there is one, SHORT (causal)
// Entries: attn_cubin_<f16|bf16>_d<D>_<full|causal|short>(map k, map v, AttnParams), with CUBIN_OPTIONS
// attn_cubin_<f16|bf16>_d<D>_<general|paged> with _short or without(map k, map v, AttnGeneralParams). Bases, strides and head dims are
// multiples of 16 bytes. Any grid gives the same bits; one CTA per multiprocessor is intended.
#include "cubin_consume.h"
#include "cubin_produce.h"
#if CUBIN_OPTIONS
#include "fa3_options.h"

// A causal tile that takes lengths and windows, of paged K and V or others.
template <class Base_> struct CubinOptionsTile : WithOptions<Base_, CUBIN_PAGED> {
	static constexpr int PRODUCER_REGISTERS = Base_::WARPGROUPS == 2 ? 40 : 32, CONSUMER_REGISTERS = Base_::WARPGROUPS == 2 ? 232 : Base_::CONSUMER_REGISTERS;
};
#endif

template <class T, class Params> __device__ __forceinline__ void attend(const TensorMap *mapK, const TensorMap *mapV, const Params &p) {
	extern __shared__ __align__(1024) char tiles[];
	const uint32_t shared = sharedAddress(tiles);
	const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
	if (threadIdx.x == 0) {
		prefetchMap(mapK), prefetchMap(mapV);
		const int releases = 4 * T::WARPGROUPS; // one per warp
		initKeyRings<T>(shared, tiles, releases);
		for (int i = 0; i < T::WORKS; i++) {
			barrierInit(shared + T::WORK_FULL + 8 * i, 1);
			barrierInit(shared + T::WORK_EMPTY + 8 * i, T::WORK_READERS);
		}
		barrierInitFence();
	}
	__syncthreads();
	if (warp < 4) {
		giveRegisters<T::PRODUCER_REGISTERS>();
		if (warp == 0) {
			if (threadIdx.x == 0) {
				if constexpr (T::OPTIONS) produce<T>(mapK, mapK, mapV, p, shared);
				else produceCubin<T>(mapK, mapV, p, shared, tiles);
			}
		} else if (T::OPTIONS && warp > T::SCANNERS) {
			if constexpr (T::OPTIONS) listBlocks<T>(p, shared);
		} else if (T::CAUSAL) {
			scan<T>(p, shared, tiles);
		}
	} else {
		takeRegisters<T::CONSUMER_REGISTERS>();
		consumeCubin<T>(p, shared, tiles, warp / 4 - 1);
	}
}

#define DENSE_TILE(kind, causal)                                                                                                       \
	CubinTile<ATTN_D, ATTN_DV, CUBIN_##kind##_WARPGROUPS, CUBIN_##kind##_COLS, CUBIN_##kind##_STAGES, CUBIN_##kind##_ONE_RING,     \
		  CUBIN_##kind##_PINGPONG, CUBIN_##kind##_AHEAD, causal>
#if CUBIN_OPTIONS
#define TILE(kind, causal) CubinOptionsTile<DENSE_TILE(kind, causal)>
#define PARAMS AttnGeneralParams
#else
#define TILE(kind, causal) DENSE_TILE(kind, causal)
#define PARAMS AttnParams
#endif
#define KERNEL(name, kind, causal)                                                                                                     \
	extern "C" __global__ void __launch_bounds__(TILE(kind, causal)::THREADS, 1)                                                   \
		name(const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v, const __grid_constant__ PARAMS p) {     \
		using T = TILE(kind, causal);                                                                                          \
		static_assert(T::SHARED_BYTES == CUBIN_##kind##_SHARED, "cubin.json says otherwise");                                  \
		attend<T>(&k, &v, p);                                                                                                  \
	}
#define JOIN(a, b) a##b
#define NAME(a, b) JOIN(a, b)

#if CUBIN_OPTIONS
KERNEL(CUBIN_NAME, CAUSAL, true)
#else
KERNEL(NAME(CUBIN_NAME, _full), FULL, false)
KERNEL(NAME(CUBIN_NAME, _causal), CAUSAL, true)
#endif
#ifdef CUBIN_SHORT_WARPGROUPS
KERNEL(NAME(CUBIN_NAME, _short), SHORT, true)
#endif
