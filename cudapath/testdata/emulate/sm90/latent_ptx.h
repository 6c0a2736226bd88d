// kernels/latent_ptx.h for programs of this folder.
#pragma once
#include "sm90.h"
static inline void copyBoxOnce(uint32_t to, const TensorMap *map, uint32_t bar, int column, int row, int head, int batch) { copyBox(to, map, bar, column, row, head, batch); }
static inline void copyChunk(uint32_t to, const void *from, bool there) {
	if (uint64_t(from) % 16) refuse("unaligned copy", uint64_t(from));
	uint4 x = {0, 0, 0, 0};
	if (there) memcpy(&x, from, sizeof x);
	storeSharedAs(to, x);
}
static inline void waitChunks() {}
static inline void arriveWhenCopied(uint32_t bar) { barrierArrive(bar); }
