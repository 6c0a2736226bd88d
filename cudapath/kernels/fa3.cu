// FlashAttention-3 for sm_90a: TMA, wgmma, warp specialization.
//
// A CTA computes BM = 64 * WARPGROUPS query rows of one head and loops over the keys downwards in steps
// of BN. It is persistent: fa3_work.h has its row blocks and their order.
//   - Warpgroup 0 is the producer. One thread issues TMA copies of Q, K and V to shared memory; K and V
//     go through rings of STAGES tiles. In causal kernels its other three warps scan V (see below).
//   - The other warpgroups are consumers with 64 rows each. S = Q K^T reads both operands from shared
//     memory; O += P V reads P from registers and V from shared memory. S, P, O and the row statistics
//     are in registers.
//   - A consumer issues S of the next step before P V of this step, so that the exponentials of one
//     overlap with the wgmma of the other. Named barriers make the consumers take turns in issuing
//     (PINGPONG), so that one computes exponentials while the other multiplies.
//   - Epilogue: O is transposed within quads of lanes and stored from registers, 16 bytes per lane.
//
// Shared memory: a tile consists of panels of 64 columns; a row of a panel has 128 bytes, in the 128-byte
// swizzle.
//
// A masked slot does not change the result. TMA fills with zeros what is past Sk (and past D, Dv). Scores
// of masked slots are set to -inf, so that P is 0. But 0 * NaN is NaN: a non-finite element of V would
// leak from keys that only some rows of the block attend to. Therefore, in every step that the causal mask
// crosses, three warps of the producer scan the V tile before the consumers get it, replace non-finite
// elements by zeros and mark the step. After the last step the consumers of a marked row block read those
// elements from global memory again and add them to the rows that attend to them.
//
// Compile one cubin per (dtype, head dims): nvcc -std=c++17 -O3 -gencode=arch=compute_90a,code=sm_90a -cubin with
//   -DATTN_BF16=0|1                   storage type
//   -DATTN_D=64|96|128|192|256        head dim of Q and K; smaller ones are filled up with zeros by the tensor maps
//   -DATTN_DV=128                     head dim of V and O, if not ATTN_D
//   -DFA3_SHARED_FULL=, _CAUSAL=      `shared` of fa3.json, to be checked (optional)
// Entries: attn_fa3_<f16|bf16>_d<D>[x<DV>]_<full|causal>(map q, map k, map v, AttnParams). fa3.json has
// the launch parameters. Any grid gives the same bits; the intended one is a CTA per multiprocessor.
#include "fa3_consume.h"
#include "fa3_produce.h"

#ifndef ATTN_D
#define ATTN_D 128
#endif
#ifndef ATTN_DV
#define ATTN_DV ATTN_D
#endif

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
		for (int i = 0; i < T::STAGES; i++) {
			barrierInit(shared + T::K_FULL + 8 * i, 1);
			barrierInit(shared + T::K_EMPTY + 8 * i, releases);
			barrierInit(shared + T::V_FULL + 8 * i, 1);
			barrierInit(shared + T::V_EMPTY + 8 * i, releases);
			barrierInit(shared + T::V_RAW + 8 * i, 1);
			*reinterpret_cast<uint32_t *>(tiles + T::MARKS + 4 * i) = 0;
		}
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

// Warpgroups and keys of a step, full and causal, by head dim; two stages everywhere. Chosen on an H200
// (docs/cuda-fa3-log.md). fa3.json says the same to whoever launches, and the build checks it (FA3_SHARED_*).
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
#if ATTN_BF16
#define TYPE_NAME bf16
#else
#define TYPE_NAME f16
#endif
#if ATTN_D == ATTN_DV
#define DV_NAME
#else
#define DV_NAME_(v) x##v
#define DV_NAME__(v) DV_NAME_(v)
#define DV_NAME DV_NAME__(ATTN_DV)
#endif

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
