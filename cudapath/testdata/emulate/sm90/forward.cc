/* The forward kernel of fa3.cu or cubin.cu with options, compiled by the host's compiler, for tests without a GPU. Compile it in a
 * folder that has the kernels' files, and the headers of this folder in place of theirs. */
#define FA3_OPTIONS 1
#define FA3_KERNELS
#define CUBIN_OPTIONS 1
#define CUBIN_NAME kernel
#ifndef CUBIN_PAGED
#define CUBIN_PAGED 0
#endif
#include "block.h"
#include SOURCE

#ifdef FA3_COLS
using T = OptionsTile<ATTN_D, ATTN_DV, FA3_WARPGROUPS, FA3_COLS>;
static void run(const TensorMap *maps, const AttnGeneralParams &p) { attend<T>(&maps[0], &maps[1], &maps[2], p); }
#else
using T = TILE(CAUSAL, true);
static void run(const TensorMap *maps, const AttnGeneralParams &p) { attend<T>(&maps[1], &maps[2], p); }
#endif

// Runs the kernel in `ctas` CTAs with maps of Q, K and V. Returns what failed.
extern "C" const char *emulate(const AttnGeneralParams *params, const Mapped *mapped, int ctas, int reversed) {
	const AttnGeneralParams p = *params;
	TensorMap maps[3];
	for (int i = 0; i < 3; i++) {
		Mapped m = mapped[i];
		const bool paged = i > 0 && T::PAGED;
		if (paged) m.rows = p.page_size;
		maps[i] = mapOf(m, paged ? p.pages : p.B, i == 0 ? T::BM : paged && p.page_size % T::BN != 0 ? 16 : T::BN);
	}
	failure[0] = 0;
	gridDim = {unsigned(ctas), 1, 1};
	for (int n = 0; n < ctas && !failure[0]; n++) {
		blockIdx = {unsigned(reversed ? ctas - 1 - n : n), 0, 0};
		runBlock(T::THREADS, T::SHARED_BYTES, reversed, [&] { run(maps, p); });
	}
	return failure;
}
