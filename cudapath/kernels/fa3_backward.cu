// Backward pass for sm_90a: TMA, wgmma, warp specialization; dQ in a fixed order.
//
// Three kernels on a stream:
//   stats   delta = rowsum(dO * O) - dLSE and LSE in log2 units, for each row; sums of P where LSE is large
//   main    dK and dV, and in the workspace dQ in float32, or dS above head dim 128
//   dq      scales dQ and rounds it to the storage type. At head dim 64, without options, idle warps of main do so
//           (fa3_backward_convert.h). Above head dim 128 it multiplies dS with K (fa3_backward_wide_dq.h)
//
// Those without options may be launched with programmatic stream serialization. A kernel then starts before the one before it
// ends, and waits itself for what it needs:
//   - main starts when all CTAs of stats have started, and waits for the end of stats before it reads or writes the workspace.
//   - dq starts when all CTAs of main have started, on multiprocessors that have no unit left. A CTA of dq waits for the counters
//     of its rows, above head dim 128 for that of its KV head, and no CTA of main waits for dq. So no wait lasts forever.
//   - A CTA of dq waits for the end of main, which stores dK and dV of its last units late. So the end of dq means that all
//     gradients are in memory: what follows on the stream, and is launched plainly, sees them.
// Launched plainly, they run one after the other and wait for nothing.
//
// Main, up to head dim 128: a CTA owns BN = 128 keys of a KV head and loops over the query heads of the group and their blocks of BM rows.
// CTAs are persistent; fa3_backward_work.h defines their units of work and the order of the additions to dQ.
//   - Warpgroup 0 is the producer. One warp draws tickets and issues the TMA copies: K and V once a unit, Q and dO
//     through rings. One or two others add dQ of each step to float32 memory by TMA, in a fixed order.
//   - Two consumer warpgroups of 64 keys each compute S^T = K Q^T and dP^T = V dO^T, so that P^T and dS^T are operands
//     in registers of dV += P^T dO and dK += dS^T Q. dS goes through shared memory to dQ^T = K^T dS^T, of which each
//     warpgroup computes a half, over all 128 keys.
//   - A step issues dV, S of the next rows and dQ, with which the exponentials overlap, and then dK and dP of the next rows. One named barrier
//     a step joins the consumers, after dS has been stored.
//   - The consumers leave dQ in shared memory, in the layout of the accumulators. They wait only until TMA has read dQ of
//     the step before. The first contribution is stored, so memory need not be cleared.
//
// Masked slots have P = dS = 0. Rows past Sq and rows that attend to no key have -LSE = -inf. TMA fills elements past Sq,
// Sk, D and Dv with zeros. fa3_backward_rare.h keeps Inf and NaN from rows and keys that do not attend to them.
//
// Files: fa3_backward_tile.h (sizes, shared memory, mbarriers), fa3_backward_work.h (units of work, workspace, turns),
// fa3_backward_produce.h (copies, additions to dQ), fa3_backward_consume.h (the main loop), fa3_backward_p.h (P and dS by the
// mode of a kernel), fa3_backward_rows.h and fa3_backward_lse.h (the kernels before and after).
//
// Compile one cubin per (dtype, head dim): nvcc -std=c++17 -O3 -gencode=arch=compute_90a,code=sm_90a -cubin with
//   -DATTN_BF16=0|1     storage type
//   -DATTN_D=64|128|192|256   head dim; the tensor maps pad smaller ones with zeros
//   -DATTN_DV=128             head dim of V and O, if not ATTN_D
//   -DATTN_OPTIONS=0|1        1: kernels that take lengths and windows, and main kernels with a softcap and without (fa3_backward_options.h),
//                             instead of those that take none
// Head dims above 128 have other consumers, which store dS instead of adding dQ (fa3_backward_wide.h), and a kernel that multiplies it with K
// (fa3_backward_wide_dq.h). Both are launched for some of the units at a time.
#include "fa3_backward_consume.h"
#include "fa3_backward_convert.h"
#include "fa3_backward_produce.h"
#include "fa3_backward_options_rows.h"
#include "fa3_backward_rows.h"
#include "fa3_backward_wide.h"
#include "fa3_backward_wide_dq.h"
#include "fa3_names.h"

template <class T>
__device__ __forceinline__ void attendBackward(const TensorMap *mapQ, const TensorMap *mapK, const TensorMap *mapV, const TensorMap *mapDO,
	const AttnBackwardParams &p) {
	extern __shared__ __align__(1024) char tiles[];
	const uint32_t shared = sharedAddress(tiles);
	const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
	if (threadIdx.x == 0) {
		prefetchMap(mapQ), prefetchMap(mapK), prefetchMap(mapV), prefetchMap(mapDO);
		constexpr int CONSUMER_WARPS = 4 * T::WARPGROUPS;
		barrierInit(shared + T::K_FULL, 1);
		barrierInit(shared + T::V_FULL, 1);
		barrierInit(shared + T::KEYS_EMPTY, CONSUMER_WARPS);
		for (int i = 0; i < T::Q_STAGES; i++) {
			barrierInit(shared + T::Q_FULL + 8 * i, 1);
			barrierInit(shared + T::Q_EMPTY + 8 * i, CONSUMER_WARPS);
		}
		for (int i = 0; i < T::DO_STAGES; i++) {
			barrierInit(shared + T::DO_FULL + 8 * i, 1);
			barrierInit(shared + T::DO_EMPTY + 8 * i, CONSUMER_WARPS);
		}
		for (int i = 0; i < T::DQ_BUFFERS; i++) barrierInit(shared + T::DQ_FULL + 8 * i, 4);
		for (int i = 0; i < T::DQ_WAITS; i++) barrierInit(shared + T::DQ_EMPTY + 8 * i, 1);
		for (int i = 0; i < 2; i++) {
			barrierInit(shared + T::WORK_FULL + 8 * i, 1);
			barrierInit(shared + T::WORK_EMPTY + 8 * i, CONSUMER_WARPS + T::ADDERS);
		}
		barrierInitFence();
	}
	__syncthreads();
	if constexpr (!T::OPTIONS) waitForKernelBefore(), allowNextKernel();
	if constexpr (T::WIDE) {
		const Workspace space = Workspace::of<T>(p);
		if (blockIdx.x == 0 && threadIdx.x == 0) *space.ticketOfDQ<T>(p, 1) = 0;
	}
	if (warp < 4) {
		giveRegisters<T::PRODUCER_REGISTERS>();
		if (warp == COPIER) {
			if (threadIdx.x == 0) copyTiles<T>(mapQ, mapK, mapV, mapDO, p, shared);
		} else if constexpr (T::WIDE) {
			if (warp == ADDER) storeScores<T>(p, shared);
		} else if (warp < ADDER + T::ADDERS) {
			addTiles<T>(p, shared, warp - ADDER);
		} else if constexpr (T::CONVERTS) {
			convertTiles<T>(p, warp - FIRST_CONVERTER);
		}
	} else {
		takeRegisters<T::CONSUMER_REGISTERS>();
		if constexpr (T::WIDE) {
			if (warp < 8) consumeWide<T, 0>(p, shared);
			else consumeWide<T, 1>(p, shared);
		} else {
			consumeRows<T>(p, shared, warp / 4 - 1);
		}
	}
}

#define JOIN_(a, b, v, c, d) attn_fa3_##a##_d##b##v##_backward_##c##d
#define JOIN(a, b, v, c, d) JOIN_(a, b, v, c, d)

#if ATTN_D <= 128
constexpr int ROWS = ATTN_D == 64 ? 128 : 64;
using Full = BackwardTile<ATTN_D, ROWS, false>;
using Causal = BackwardTile<ATTN_D, ROWS, true>;
#else
using Full = WideTile<ATTN_D, ATTN_DV, false>;
using Causal = WideTile<ATTN_D, ATTN_DV, true>;
#endif

using Options = OptionsTile<Causal, false>;
using Capped = OptionsTile<Causal, true>;

#ifdef FA3_BACKWARD_SHARED
#if ATTN_OPTIONS
static_assert(Options::SHARED_BYTES == FA3_BACKWARD_SHARED && Capped::SHARED_BYTES == FA3_BACKWARD_SHARED, "build/fa3_backward.go says otherwise");
#else
static_assert(Full::SHARED_BYTES == FA3_BACKWARD_SHARED && Causal::SHARED_BYTES == FA3_BACKWARD_SHARED, "build/fa3_backward.go says otherwise");
#endif
static_assert(LseTile<Full>::SHARED_BYTES == FA3_BACKWARD_STATS_SHARED, "build/fa3_backward.go says otherwise");
#ifdef FA3_BACKWARD_DQ_SHARED
static_assert(DQTile<Full>::SHARED_BYTES == FA3_BACKWARD_DQ_SHARED, "build/fa3_backward.go says otherwise");
#endif
#endif

// A thread of the stats kernel has all its loads in flight: 64 bytes each of O and dO, and 128 with wide heads.
constexpr int STATS_CTAS = Full::WIDE ? 2 : 4; // of a multiprocessor

#define STATS_KERNEL(kind, Kind, stats)                                                                                                        \
	extern "C" __global__ void __launch_bounds__(ROWS_THREADS, STATS_CTAS) JOIN(TYPE_NAME, ATTN_D, DV_NAME, stats_, kind)(const __grid_constant__ AttnBackwardParams p) { \
		stats<Kind>(p);                                                                                                                \
	}

#define MAIN_KERNEL(kind, Kind)                                                                                                                \
	extern "C" __global__ void __launch_bounds__(Kind::THREADS, 1)                                                                         \
		JOIN(TYPE_NAME, ATTN_D, DV_NAME, main_, kind)(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k,                 \
						     const __grid_constant__ TensorMap v, const __grid_constant__ TensorMap dO,                \
						     const __grid_constant__ AttnBackwardParams p) {                                           \
		attendBackward<Kind>(&q, &k, &v, &dO, p);                                                                                      \
	}

#define KERNELS(kind, Kind, stats)                                                                                                             \
	STATS_KERNEL(kind, Kind, stats)                                                                                                        \
	MAIN_KERNEL(kind, Kind)

#define DQ_KERNEL(kind, Kind, dq)                                                                                                              \
	static_assert(!Kind::CONVERTS, "the main kernel converts dQ");                                                                         \
	extern "C" __global__ void __launch_bounds__(ROWS_THREADS) JOIN(TYPE_NAME, ATTN_D, DV_NAME, dq_, kind)(const __grid_constant__ AttnBackwardParams p) { \
		dq<Kind>(p);                                                                                                                   \
	}

#define WIDE_DQ_KERNEL(kind, Kind)                                                                                                             \
	extern "C" __global__ void __launch_bounds__(DQTile<Kind>::THREADS, 1)                                                                 \
		JOIN(TYPE_NAME, ATTN_D, DV_NAME, dq_, kind)(const __grid_constant__ TensorMap k, const __grid_constant__ AttnBackwardParams p) {        \
		multiplyScores<Kind>(&k, p);                                                                                                   \
	}

#if ATTN_OPTIONS
KERNELS(options, Options, computeSequenceStats)
MAIN_KERNEL(softcap, Capped)
#if ATTN_D <= 128
DQ_KERNEL(options, Options, storeSequenceDQ)
#else
WIDE_DQ_KERNEL(options, Options)
#endif
#elif ATTN_D == 64
KERNELS(full, Full, computeStats)
KERNELS(causal, Causal, computeStats)
static_assert(Full::CONVERTS && Causal::CONVERTS, "no kernel of dQ");
#elif ATTN_D == 128
KERNELS(full, Full, computeStats)
DQ_KERNEL(full, Full, storeDQ)
KERNELS(causal, Causal, computeStats)
DQ_KERNEL(causal, Causal, storeDQ)
#else
KERNELS(full, Full, computeStats)
WIDE_DQ_KERNEL(full, Full)
KERNELS(causal, Causal, computeStats)
WIDE_DQ_KERNEL(causal, Causal)
#endif
