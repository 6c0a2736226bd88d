/* The fa3 forward kernel with options, compiled by the host's compiler, for tests without a GPU. Compile it in a folder that has the
 * kernels' files, and the headers of this folder in place of theirs. */
#define FA3_OPTIONS 1
#define FA3_KERNELS
#include "block.h"
#include "fa3.cu"

// Runs the kernel in `ctas` CTAs with maps of Q, K and V. Returns what failed.
extern "C" const char *emulate(const AttnGeneralParams *params, const Mapped *mapped, int ctas, int reversed) {
	using T = OptionsTile<ATTN_D, ATTN_DV, FA3_WARPGROUPS, FA3_COLS>;
	const AttnGeneralParams p = *params;
	TensorMap maps[3];
	for (int i = 0; i < 3; i++) maps[i] = mapOf(mapped[i], p.B, i == 0 ? T::BM : T::BN);
	failure[0] = 0;
	gridDim = {unsigned(ctas), 1, 1};
	for (int n = 0; n < ctas && !failure[0]; n++) {
		blockIdx = {unsigned(reversed ? ctas - 1 - n : n), 0, 0};
		runBlock(T::THREADS, T::SHARED_BYTES, reversed, [&] { attend<T>(&maps[0], &maps[1], &maps[2], p); });
	}
	return failure;
}
