// The backward kernels of one module of family fa2, for one storage type and one bucket of head dims: stats and main, main
// with softcap, and both for any alignment, with a smaller tile. fa2_backward_tile.h has the tiles. A static_assert compares
// the bytes of shared memory with fa2_backward.json.
//
// Read fa2_backward.h first: the idea and the main loop. fa2_backward_tile.h has the sizes and the shared memory,
// fa2_backward_work.h the units of work and the workspace, fa2_backward_plan.h what steps need of their unit,
// fa2_backward_copy.h the copies and the turns, fa2_backward_odd.h Inf and NaN, fa2_backward_rows.h the stats kernel.
//
// The build compiles this file once per module: FA2_ELEMENT is Half or Bfloat, FA2_D and FA2_DV are the bucket.
#include "fa2_backward_rows.h"

using Tiles = fa2::BackwardTiles<FA2_D, FA2_DV>;
using Main = fa2::BackwardConfig<FA2_ELEMENT, FA2_D, FA2_DV, Tiles::Main, false, false>;
using Softcap = fa2::BackwardConfig<FA2_ELEMENT, FA2_D, FA2_DV, Tiles::Main, true, false>;
using Any = fa2::BackwardConfig<FA2_ELEMENT, FA2_D, FA2_DV, Tiles::Any, true, true>;
#ifdef FA2_SHARED
static_assert(Main::Shared == FA2_SHARED && Any::Shared == FA2_ANY_SHARED, "build/fa2_backward.go says otherwise");
#endif

#define JOIN(a, b) a##b
#define NAME(a, b) JOIN(a, b)
#define MAIN(name, Config)                                                                                                                     \
	extern "C" __global__ void __launch_bounds__(Config::Threads, 1) NAME(FA2_NAME, name)(const __grid_constant__ AttnBackwardParams p) {   \
		fa2::backward<Config>(p);                                                                                                      \
	}
#define STATS(name, Config)                                                                                                                    \
	extern "C" __global__ void __launch_bounds__(fa2::RowsThreads, 2) NAME(FA2_NAME, name)(const __grid_constant__ AttnBackwardParams p) { \
		fa2::stats<Config>(p);                                                                                                         \
	}

STATS(_stats, Softcap)
MAIN(_main, Main)
MAIN(_main_softcap, Softcap)
STATS(_stats_any, Any)
MAIN(_main_any, Any)
