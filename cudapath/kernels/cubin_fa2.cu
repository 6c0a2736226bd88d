// FlashAttention-2 in 48 KiB of shared memory for sm_80 and sm_89: the kernels of fa2.h for launches from a Vulkan command
// buffer (VK_NVX_binary_import) on GPUs without wgmma. A CTA has the multiprocessor's shared memory for itself. Q goes
// directly to registers, so that only K and V take shared memory.
//
// The build passes the tile as macros (see build/cubin.go) and compiles one cubin per (dtype, head dim).
// Entries: attn_cubin_fa2_<f16|bf16>_d<D>_<full|causal>(AttnParams), with the grid (row blocks, heads, batch).
#include "fa2.h"

#define JOIN(a, b) a##b
#define NAME(a, b) JOIN(a, b)
#define KERNEL(kind, causal)                                                                                                           \
	extern "C" __global__ void __launch_bounds__(CUBIN_WARPS * 32, 1) NAME(CUBIN_NAME, kind)(const __grid_constant__ AttnParams p) { \
		using C = fa2::Config<CUBIN_ELEMENT, CUBIN_D, CUBIN_DV, CUBIN_WARPS, CUBIN_MFRAGMENTS, CUBIN_COLS, CUBIN_STEP, CUBIN_D / 16, \
				      CUBIN_STAGES, 1, CUBIN_ROUNDED, causal, false, true>;                                      \
		static_assert(C::Shared == CUBIN_SHARED && C::Shared <= 47 * 1024, "cubin.json says otherwise");                               \
		fa2::forward<C>(p);                                                                                                    \
	}

KERNEL(_full, false)
KERNEL(_causal, true)
