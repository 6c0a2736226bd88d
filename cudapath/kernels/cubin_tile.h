// The tile of a cubin kernel: its shared-memory layout and its mbarriers. Members have the names of fa3_tile.h, since
// fa3_produce.h and fa3_consume.h serve both.
#pragma once
#include "fa3_tile.h"

// K and V have a ring of STAGES tiles each. With ONE_RING they share one ring of STAGES tiles, in the order K of step
// 0, K of step 1, V of step 0, K of step 2, V of step 1, and so on.
template <int D_, int DV_, int WARPGROUPS_, int BN_, int STAGES_, bool ONE_RING_, bool PINGPONG_, int AHEAD_, bool CAUSAL_> struct CubinTile {
	static constexpr int D = D_, DV = DV_, WARPGROUPS = WARPGROUPS_, BN = BN_, STAGES = STAGES_;
	static constexpr bool ONE_RING = ONE_RING_, PINGPONG = PINGPONG_, CAUSAL = CAUSAL_, PARTIAL_LAST = true, OPTIONS = false, PAGED = false;
	static constexpr int AHEAD = AHEAD_; // KV tiles that the producer prefetches into L2 ahead of those it copies
	static constexpr bool EARLY_Q = WARPGROUPS < 4; // Q is loaded during the last softmax of the previous row block; 112 registers do not suffice for that
	static constexpr int BM = 64 * WARPGROUPS;
	static constexpr int THREADS = 128 * (WARPGROUPS + 1);
	static constexpr int PRODUCER_REGISTERS = WARPGROUPS == 3 ? 32 : 24;
	static constexpr int CONSUMER_REGISTERS = WARPGROUPS == 2 ? 240 : WARPGROUPS == 3 ? 160 : 112;
	static constexpr int PANELS = (D + 63) / 64, V_PANELS = (DV + 63) / 64;
	static constexpr int K_PANEL = BN * 128, K_BYTES = PANELS * K_PANEL, V_BYTES = V_PANELS * K_PANEL;
	static constexpr int Q_STAGES = 2; // the consumers load Q of the next row block before the epilogue of the current one
	static constexpr int K = 0, V = ONE_RING ? K : K + STAGES * K_BYTES, BARRIERS = V + STAGES * V_BYTES;
	static constexpr int K_FULL = BARRIERS, K_EMPTY = K_FULL + 8 * STAGES, V_FULL = ONE_RING ? K_FULL : K_EMPTY + 8 * STAGES,
			     V_EMPTY = V_FULL + 8 * STAGES, V_RAW = V_EMPTY + 8 * STAGES,
			     MARKS = V_RAW + 8 * STAGES; // one word per stage, one byte per scanning warp
	// The ring of row blocks that the producer passes on.
	static constexpr int WORKS = 4, WORK = (MARKS + 4 * STAGES + 15) / 16 * 16, WORK_FULL = WORK + WORKS * 32, WORK_EMPTY = WORK_FULL + 8 * WORKS;
	static constexpr int WORK_READERS = 4 * WARPGROUPS; // warps
	static constexpr int SHARED_BYTES = WORK_EMPTY + 8 * WORKS;
	static constexpr int SCANNERS = 3; // warps
	static constexpr bool Q_SHARED = false;
	static constexpr int MAX_SHARED = 47 * 1024; // a launch from Vulkan has 48 KiB, of which the system reserves 1 KiB
	static_assert(D % 32 == 0 && DV % 32 == 0 && BN % 16 == 0 && BN <= 256 && SHARED_BYTES <= MAX_SHARED, "tile");
	static_assert(!ONE_RING || K_BYTES == V_BYTES, "the tiles of one ring are equal");
};
