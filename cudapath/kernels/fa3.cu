// FlashAttention-3 for sm_90a: TMA, wgmma, warp specialization.
//
// A CTA owns BM = 64 * WARPGROUPS query rows of one head and loops over the keys from last to first, BN keys per KV
// step. CTAs are persistent; fa3_work.h defines their row blocks and the order.
//   - Warpgroup 0 is the producer. One of its threads issues the TMA copies of Q, K and V to shared memory. K and V
//     have rings of STAGES tiles. In causal kernels its other three warps scan V (see below).
//   - The other warpgroups are consumers of 64 rows each. They keep S, P, O and the row statistics in registers.
//     S = Q K^T reads both operands from shared memory. O += P V reads P from registers and V from shared memory.
//   - An mbarrier pair per buffer, full and empty, connects producer and consumers. The loop has no CTA-wide barrier.
//   - A consumer issues S of the next step before P V of the current one, so its exponentials overlap with wgmma.
//     With PINGPONG, named barriers make the consumers take turns in issuing: one computes exponentials while
//     another multiplies.
//   - The epilogue transposes O within quads of lanes and stores it from registers, 16 bytes per lane.
//
// A tile in shared memory consists of panels of 64 columns. A row of a panel has 128 bytes, in the 128-byte swizzle.
//
// Masked keys do not change the result. TMA fills elements past Sk, D and Dv with zeros. Masked scores are set to
// -inf, so their P is 0. But 0 * NaN is NaN: where only some rows of a block attend to a key, a NaN or an infinity in
// its V would reach the other rows. In every step that the causal mask crosses, the three scanning warps therefore
// check the V tile before the consumers read it. They replace non-finite elements by zeros and mark the stage. In the
// epilogue the consumers of a marked row block read these elements from global memory and add them to O of the rows
// that attend to them.
//
// Modules with FA3_OPTIONS take calls with lengths or a window instead (fa3_options.h).
//
// Files: fa3_tile.h (sizes, shared memory, mbarriers), fa3_work.h (row blocks of a CTA), fa3_produce.h (copies, scan of
// V), fa3_consume.h (softmax, main loop, epilogue), fa3_options.h.
//
// The build compiles one cubin per (dtype, head dims), with these macros (see build/fa3.go):
//   ATTN_BF16=0|1      storage type
//   ATTN_D, ATTN_DV    head dims; the tensor maps pad smaller ones with zeros
//   FA3_OPTIONS=1      for calls with lengths or a window, of any mask
//   FA3_KERNELS        KERNEL(name, warpgroups, keys of a KV tile, causal, bytes of shared memory) of each entry
// Entries: name(map q, map k, map v, AttnParams), with FA3_OPTIONS AttnGeneralParams. fa3.json has the launch parameters.
// Any grid gives the same bits, and so do tiles with the same number of keys; one CTA per multiprocessor is intended.
#include "fa3_consume.h"
#include "fa3_produce.h"
#if FA3_OPTIONS
#include "fa3_options.h"
#endif

template <class T, class Params> __device__ __forceinline__ void attend(const TensorMap *mapQ, const TensorMap *mapK, const TensorMap *mapV, const Params &p) {
	extern __shared__ __align__(1024) char tiles[];
	const uint32_t shared = sharedAddress(tiles);
	const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
	if (threadIdx.x == 0) {
		prefetchMap(mapQ), prefetchMap(mapK), prefetchMap(mapV);
		const int releases = 4 * T::WARPGROUPS; // one per warp
		for (int i = 0; i < T::Q_STAGES; i++) {
			barrierInit(shared + T::Q_FULL + 8 * i, 1);
			barrierInit(shared + T::Q_EMPTY + 8 * i, releases);
		}
		initKeyRings<T>(shared, tiles, releases);
		if constexpr (T::OPTIONS) {
			for (int i = 0; i < T::WORKS; i++) {
				barrierInit(shared + T::WORK_FULL + 8 * i, 1);
				barrierInit(shared + T::WORK_EMPTY + 8 * i, T::WORK_READERS);
			}
		}
		barrierInitFence();
	}
	__syncthreads();
	if (warp < 4) {
		giveRegisters<T::PRODUCER_REGISTERS>();
		if (warp == 0) {
			if (threadIdx.x == 0) produce<T>(mapQ, mapK, mapV, p, shared);
		} else if (T::OPTIONS && warp > T::SCANNERS) {
			if constexpr (T::OPTIONS) listBlocks<T>(p, shared);
		} else if (T::CAUSAL) {
			scan<T>(p, shared, tiles);
		}
	} else {
		takeRegisters<T::CONSUMER_REGISTERS>();
		consume<T>(p, shared, tiles, warp / 4 - 1);
	}
}

#if FA3_OPTIONS
#define TILE(warpgroups, cols, causal) OptionsTile<ATTN_D, ATTN_DV, warpgroups, cols>
#define PARAMS AttnGeneralParams
#else
#define TILE(warpgroups, cols, causal) Tile<ATTN_D, ATTN_DV, warpgroups, cols, causal>
#define PARAMS AttnParams
#endif
#define KERNEL(name, warpgroups, cols, causal, shared)                                                                                  \
	extern "C" __global__ void __launch_bounds__(128 * (warpgroups + 1), 1)                                                        \
		name(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v,    \
		     const __grid_constant__ PARAMS p) {                                                                               \
		using T = TILE(warpgroups, cols, causal);                                                                              \
		static_assert(T::SHARED_BYTES == shared, "build/fa3.go says otherwise");                                               \
		attend<T>(&q, &k, &v, p);                                                                                              \
	}

FA3_KERNELS
