// The kernels of one module of family fa2, for one storage type and one bucket of head dims: full and causal, each
// also in a variant for any alignment. The build passes the tiles as macros (see build/fa2.go). A static_assert
// compares the shared memory of each tile with fa2.json.
#include "fa2.h"

#define TILE(kind) FA2_##kind##_WARPS, FA2_##kind##_MFRAGMENTS, FA2_##kind##_COLS, FA2_##kind##_STEP, FA2_##kind##_QREGS, FA2_##kind##_STAGES, FA2_##kind##_BLOCKS, FA2_##kind##_ROUNDED
#define JOIN(a, b) a##b
#define NAME(a, b) JOIN(a, b)

#define KERNEL(name, tile, causal, any)                                                                               \
	extern "C" __global__ void __launch_bounds__(FA2_##tile##_WARPS * 32, FA2_##tile##_BLOCKS)                     \
	    NAME(FA2_NAME, name)(const __grid_constant__ AttnParams p) {                                               \
		using C = fa2::Config<FA2_ELEMENT, FA2_D, FA2_DV, TILE(tile), causal, any>;                         \
		static_assert(C::Shared == FA2_##tile##_SHARED, "fa2.json says otherwise");                            \
		fa2::forward<C>(p);                                                                                    \
	}

KERNEL(_full, FULL, false, false)
KERNEL(_causal, CAUSAL, true, false)
KERNEL(_full_any, FULL_ANY, false, true)
KERNEL(_causal_any, CAUSAL_ANY, true, true)
