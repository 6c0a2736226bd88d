/* The kernels of latent attention compiled by the host's compiler, for tests without a GPU. Compile it in a folder that has the
 * kernels' files, and the headers of this folder in place of theirs. */
#define LATENT_NAME attendCTA
#define LATENT_COMBINE combineCTA
#define LATENT_SHARED LatentTile::SHARED_BYTES
#define LATENT_COMBINE_SHARED CombineTile::SHARED_BYTES
#include "block.h"
#include "latent.cu"

// Runs the kernel in `ctas` CTAs, with a map of K whose boxes have `box` rows, and the combine kernel with groups of threads. Returns what failed.
extern "C" const char *emulate(const AttnLatentParams *params, const Mapped *k, int batches, int box, int ctas, int groups, int reversed) {
	const AttnLatentParams p = *params;
	const TensorMap map = mapOf(*k, batches, box);
	failure[0] = 0;
	auto run = [&](unsigned x, unsigned y, int threads, int shared, std::function<void()> f) {
		gridDim = {x, y, 1};
		for (unsigned n = 0; n < x * y && !failure[0]; n++) {
			const unsigned at = reversed ? x * y - 1 - n : n;
			blockIdx = {at % x, at / x, 0};
			runBlock(threads, shared, reversed, f);
		}
	};
#if LATENT_TOKENS || LATENT_FP8
	run(ctas, 1, LatentTile::THREADS, LatentTile::SHARED_BYTES, [&] { attendCTA(p); });
#else
	run(ctas, 1, LatentTile::THREADS, LatentTile::SHARED_BYTES, [&] { attendCTA(map, p); });
#endif
	if (p.parts > 1 && !p.whole) run(latentRowTiles(p) * COMBINE_CHUNKS, LatentSplit::used(p) ? std::min(p.parts, LatentSequence::count(p)) : LatentSequence::count(p), 128 * groups, groups > 1 ? CombineTile::SHARED_BYTES : CombineTile::STATES, [&] { combineCTA(p); });
	return failure;
}
