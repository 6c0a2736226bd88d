// Latent attention (MLA) for sm_90a: few query rows of many heads attend to one KV head of 576 columns, of which the first 512
// are V. TMA, wgmma and warp specialization.
//
// A CTA owns 64 rows, of 64 query heads or of fewer heads and several queries, and part of the keys, 64 a step. O of 64 x 512
// float32 takes half of the register file, so it is divided over two warpgroups, and a third one computes S and P:
//   - Warpgroup 0 is the producer. A lane issues the TMA copies of K to a ring of two tiles, 64 columns at a time. Another warp
//     lists the work of the CTA for all others.
//   - Warpgroup 1 keeps S and the row statistics. It loads Q, computes S = Q K^T of a tile as its columns arrive, and then P,
//     which it passes through shared memory, with the factors of rows whose row max has changed.
//   - Warpgroups 2 and 3 keep 256 columns of O each: O += P V, with P in registers and V, the K tile, in shared memory.
// S of the next tile and P V of the current one run at once, and so do the exponentials: at 128 registers of O a thread no
// warpgroup could do both. K is read from memory once for both products.
//
// The keys of all sequences are divided equally over the CTAs, whatever their lengths (latent_work.h). A CTA stores O, or a
// state of part of a sequence's keys in the workspace; the combine kernel adds these up in a fixed order (latent_combine.h).
//
// Shared memory: Q (72 KiB), two K tiles (144 KiB), P (8 KiB), in panels of 64 columns in the 128-byte swizzle. mbarriers: K of
// each panel and stage is full; left half, right half and last panel of a stage are free; each part of P is full, P is free.
//
// Masked keys do not change the result: where only some rows attend to a key, cleanLatentV() makes V finite. FlashMLA of
// DeepSeek also divides O over two warpgroups; there both compute S and P, in turns. docs/log/cuda-latent.md has the numbers.
//
// With token lists, LATENT_TOKENS, each query row attends to the keys of a list. A row tile has heads of one query, and two warps of the
// producer's warpgroup copy the keys one by one, with cp.async, in the order of the list. LATENT_TOKENS 2: lists have offsets.
//
// With LATENT_FP8 K has rows of fp8_ds_mla, with token lists and without: two warps copy them and two convert them in shared memory
// (latent_convert.h).
//
// Files: latent_tile.h (shared memory, barriers), latent_work.h (parts and pieces), latent_produce.h, latent_convert.h, latent_scores.h,
// latent_output.h, latent_combine.h, latent_ptx.h (copies). attn_latent.h is the interface.
//
// The build passes the storage type (see build/latent.go). Entries: attn_fa3_<type>_latent(map k, AttnLatentParams), any grid, one
// CTA per multiprocessor; attn_fa3_<type>_latent_combine(AttnLatentParams), the grid (row tiles * COMBINE_CHUNKS, sequences, or parts if
// these are fewer). Those of token lists and of fp8_ds_mla have no map, and those of lists with offsets no combine kernel.
#include "latent_combine.h"
#include "latent_convert.h"
#include "latent_produce.h"
#include "latent_scores.h"

__device__ __forceinline__ void attendLatent(const TensorMap *mapK, const AttnLatentParams &p) {
	using T = LatentTile;
	extern __shared__ __align__(1024) char tiles[];
	const uint32_t shared = sharedAddress(tiles);
	const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
	if (threadIdx.x == 0) {
		if (!T::TOKENS && !T::FP8) prefetchMap(mapK);
		// With token lists each lane that gathers arrives, at the first panel of a group, and at that of K alone each warp once more.
		for (int i = 0; i < T::STAGES * T::PANELS; i++) barrierInit(shared + T::K_FULL + 8 * i, T::FP8 ? T::CONVERT_WARPS : !T::TOKENS ? 1 : T::GATHER_WARPS * (i % T::PANELS < 2 * T::HALF_PANELS ? 32 : 33));
		for (int i = 0; T::FP8 && i < T::STAGES * T::ROW_PARTS; i++) barrierInit(shared + T::ROWS_FULL + 8 * i, T::GATHER_WARPS * (i % T::ROW_PARTS == T::ROTARY ? 33 : 32));
		for (int i = 0; i < T::STAGES * T::GROUPS; i++) barrierInit(shared + T::K_EMPTY + 8 * i, 4);
		for (int i = 0; i < T::P_PARTS; i++) barrierInit(shared + T::P_FULL + 8 * i, 4);
		barrierInit(shared + T::P_EMPTY, 8);
		for (int i = 0; i < T::PIECES; i++) {
			barrierInit(shared + T::PIECE_FULL + 8 * i, 1);
			barrierInit(shared + T::PIECE_EMPTY + 8 * i, T::PIECE_READERS);
		}
		barrierInitFence();
	}
	__syncthreads();
	if (warp < 4) {
		giveRegisters<T::PRODUCER_REGISTERS>();
		if (T::FP8 && warp == 1) copyLatentPieces(p, shared);
		if (T::FP8 && warp >= 2) convertLatent(p, shared, warp - 2);
		if (!T::FP8 && !T::TOKENS && warp == 0) produceLatent(mapK, p, shared);
		if (!T::FP8 && T::TOKENS && warp >= 2) gatherLatent(p, shared, warp - 2);
		if (warp == (T::FP8 ? 0 : 1)) listLatentPieces(p, shared);
		if (T::FP8 && warp < 2) allowNextKernel(); // the combine kernel, which waits for this one
	} else if (warp < 8) {
		giveRegisters<T::SCORES_REGISTERS>();
		scoreLatent(p, shared);
	} else {
		takeRegisters<T::OUTPUT_REGISTERS>();
		outputLatent(p, shared, warp / 4 - 2);
	}
}

static_assert(LatentTile::SHARED_BYTES == LATENT_SHARED, "build/latent.go says otherwise");
#if LATENT_TOKENS || LATENT_FP8
extern "C" __global__ void __launch_bounds__(LatentTile::THREADS, 1) LATENT_NAME(const __grid_constant__ AttnLatentParams p) { attendLatent(nullptr, p); }
#else
extern "C" __global__ void __launch_bounds__(LatentTile::THREADS, 1) LATENT_NAME(const __grid_constant__ TensorMap k, const __grid_constant__ AttnLatentParams p) { attendLatent(&k, p); }
#endif

#ifdef LATENT_COMBINE
extern "C" __global__ void __launch_bounds__(COMBINE_THREADS) LATENT_COMBINE(const __grid_constant__ AttnLatentParams p) {
	static_assert(CombineTile::SHARED_BYTES == LATENT_COMBINE_SHARED, "build/latent.go says otherwise");
	combineLatent(p);
}
#endif
