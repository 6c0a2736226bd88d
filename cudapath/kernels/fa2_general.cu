// The kernels of family fa2 for calls with options, for one storage type and one bucket of head dims: without options of slots, and with
// them. They take any alignment. The build passes their tiles as macros (see build/fa2.go). A static_assert compares their shared memory
// with fa2.json.
#include "fa2.h"

#define JOIN(a, b) a##b
#define NAME(a, b) JOIN(a, b)
#define KERNEL(name, slots, kind)                                                                                                                                       \
	extern "C" __global__ void __launch_bounds__(FA2_##kind##_WARPS * 32, FA2_##kind##_BLOCKS) NAME(FA2_NAME, name)(const __grid_constant__ AttnGeneralParams p) {          \
		using C = fa2::GeneralConfig<fa2::Config<FA2_ELEMENT, FA2_D, FA2_DV, FA2_##kind##_WARPS, FA2_##kind##_MFRAGMENTS, FA2_##kind##_COLS, FA2_##kind##_STEP,          \
							 FA2_##kind##_QREGS, FA2_##kind##_STAGES, FA2_##kind##_BLOCKS, FA2_##kind##_ROUNDED, false, false>,                      \
					     slots>;                                                                                                                          \
		static_assert(C::Shared == FA2_##kind##_SHARED, "fa2.json says otherwise");                                                                                       \
		fa2::forward<C>(p);                                                                                                                                                \
	}

KERNEL(, false, GENERAL)
KERNEL(_slots, true, SLOTS)
