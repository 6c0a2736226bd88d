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
// Files: fa3_tile.h (sizes, shared memory, mbarriers), fa3_work.h (row blocks of a CTA), fa3_produce.h (copies, scan of
// V), fa3_consume.h (softmax, main loop, epilogue).
//
// Compile one cubin per (dtype, head dims): nvcc -std=c++17 -O3 -gencode=arch=compute_90a,code=sm_90a -cubin with
//   -DATTN_BF16=0|1                   storage type
//   -DATTN_D=64|96|128|192|256        head dim of Q and K; the tensor maps pad smaller ones with zeros
//   -DATTN_DV=128                     head dim of V and O, if not ATTN_D
//   -DFA3_SHARED_FULL=, _CAUSAL=      `shared` of fa3.json, compared by a static_assert (optional)
// Entries: attn_fa3_<f16|bf16>_d<D>[x<DV>]_<full|causal>(map q, map k, map v, AttnParams). fa3.json has
// the launch parameters. Any grid gives the same bits; one CTA per multiprocessor is intended.
#include "fa3_consume.h"
#include "fa3_names.h"
#include "fa3_produce.h"

template <class T>
__device__ __forceinline__ void attend(const TensorMap *mapQ, const TensorMap *mapK, const TensorMap *mapV, const AttnParams &p) {
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
		barrierInitFence();
	}
	__syncthreads();
	if (warp < 4) {
		giveRegisters<T::PRODUCER_REGISTERS>();
		if (warp == 0) {
			if (threadIdx.x == 0) produce<T>(mapQ, mapK, mapV, p, shared);
		} else if (T::CAUSAL) {
			scan<T>(p, shared, tiles);
		}
	} else {
		takeRegisters<T::CONSUMER_REGISTERS>();
		consume<T>(p, shared, tiles, warp / 4 - 1);
	}
}

// Tiles by head dim: warpgroups and keys of a KV tile, full, then causal. All have two stages. Chosen on an H200
// (docs/log/cuda-fa3.md). fa3.json repeats them for the host; FA3_SHARED_* lets the build check that they agree.
#if ATTN_D == 64
#define FA3_TABLE 3, 128, 3, 128
#elif ATTN_D == 96
#define FA3_TABLE 3, 96, 3, 96
#elif ATTN_D == 128
#define FA3_TABLE 3, 80, 2, 128
#elif ATTN_D == 192 && ATTN_DV == 128
#define FA3_TABLE 2, 128, 2, 128
#elif ATTN_D == 192
#define FA3_TABLE 2, 112, 2, 112
#elif ATTN_D == 256
#define FA3_TABLE 2, 64, 2, 64
#endif
#define FIRST_(a, b, c, d) a, b
#define LAST_(a, b, c, d) c, d
#define FIRST(...) FIRST_(__VA_ARGS__)
#define LAST(...) LAST_(__VA_ARGS__)
#ifndef FA3_FULL
#define FA3_FULL FIRST(FA3_TABLE)
#endif
#ifndef FA3_CAUSAL
#define FA3_CAUSAL LAST(FA3_TABLE)
#endif
#ifndef FA3_STAGES
#define FA3_STAGES 2
#endif
#ifndef FA3_PINGPONG
#define FA3_PINGPONG true
#endif

#define JOIN_(a, b, c, d) attn_fa3_##a##_d##b##c##_##d
#define JOIN(a, b, c, d) JOIN_(a, b, c, d)

using Full = Tile<ATTN_D, ATTN_DV, FA3_FULL, FA3_STAGES, FA3_PINGPONG, false>;
using Causal = Tile<ATTN_D, ATTN_DV, FA3_CAUSAL, FA3_STAGES, FA3_PINGPONG, true>;
#ifdef FA3_SHARED_FULL
static_assert(Full::SHARED_BYTES == FA3_SHARED_FULL && Causal::SHARED_BYTES == FA3_SHARED_CAUSAL, "fa3.json says otherwise");
#endif

#define KERNEL(kind, Kind)                                                                                                             \
	extern "C" __global__ void __launch_bounds__(Kind::THREADS, 1)                                                                 \
		JOIN(TYPE_NAME, ATTN_D, DV_NAME, kind)(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k,       \
						       const __grid_constant__ TensorMap v, const __grid_constant__ AttnParams p) {    \
		attend<Kind>(&q, &k, &v, p);                                                                                           \
	}

KERNEL(full, Full)
KERNEL(causal, Causal)
