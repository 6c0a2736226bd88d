// A kernel of family fa2 for calls with options, for one storage type and one bucket of head dims. It takes any alignment. The build
// passes the tile as macros (see build/fa2.go). A static_assert compares its shared memory with fa2.json.
#include "fa2.h"

extern "C" __global__ void __launch_bounds__(FA2_WARPS * 32, FA2_BLOCKS) FA2_NAME(const __grid_constant__ AttnGeneralParams p) {
	using C = fa2::GeneralConfig<fa2::Config<FA2_ELEMENT, FA2_D, FA2_DV, FA2_WARPS, FA2_MFRAGMENTS, FA2_COLS, FA2_STEP, FA2_QREGS, FA2_STAGES, FA2_BLOCKS, FA2_ROUNDED, false, false>>;
	static_assert(C::Shared == FA2_SHARED, "fa2.json says otherwise");
	fa2::forward<C>(p);
}
