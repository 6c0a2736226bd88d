// The tile of a fa3 kernel: its shared-memory layout and its barriers.
#pragma once
#include "fa3_element.h"
#include "sm90.h"
#include "sm90_wgmma.h"

// A BM x BN tile. fa3.json repeats the sizes for the host.
template <int D_, int DV_, int WARPGROUPS_, int BN_, bool CAUSAL_> struct Tile {
	static constexpr int D = D_, DV = DV_, WARPGROUPS = WARPGROUPS_, BN = BN_, STAGES = 2;
	static constexpr bool PINGPONG = WARPGROUPS > 1, CAUSAL = CAUSAL_, ONE_RING = false, PARTIAL_LAST = false, OPTIONS = false, PAGED = false;
	static constexpr int BM = 64 * WARPGROUPS;
	static constexpr int THREADS = 128 * (WARPGROUPS + 1);
	static constexpr int PRODUCER_REGISTERS = WARPGROUPS == 1 ? 56 : WARPGROUPS == 2 ? 24 : 32;
	static constexpr int CONSUMER_REGISTERS = WARPGROUPS == 1 ? 256 : WARPGROUPS == 2 ? 240 : 160;
	static constexpr int PANELS = (D + 63) / 64, V_PANELS = (DV + 63) / 64;
	// Sizes in bytes. A panel is 64 columns of a tile; panels of K and V are equal.
	static constexpr int Q_PANEL = BM * 128, K_PANEL = BN * 128;
	static constexpr int Q_BYTES = PANELS * Q_PANEL, K_BYTES = PANELS * K_PANEL, V_BYTES = V_PANELS * K_PANEL;
	// Q has two buffers if they fit.
	static constexpr int Q_STAGES = 2 * Q_BYTES + STAGES * (K_BYTES + V_BYTES) + 256 <= 227 * 1024 ? 2 : 1;
	// Offsets in shared memory. An mbarrier is 8 bytes.
	static constexpr int Q = 0, K = Q + Q_STAGES * Q_BYTES, V = K + STAGES * K_BYTES, BARRIERS = V + STAGES * V_BYTES;
	static constexpr int Q_FULL = BARRIERS, Q_EMPTY = Q_FULL + 8 * Q_STAGES, K_FULL = Q_EMPTY + 8 * Q_STAGES, K_EMPTY = K_FULL + 8 * STAGES,
			     V_FULL = K_EMPTY + 8 * STAGES, V_EMPTY = V_FULL + 8 * STAGES, V_RAW = V_EMPTY + 8 * STAGES,
			     MARKS = V_RAW + 8 * STAGES; // one word per stage, one byte per scanning warp
	static constexpr int SHARED_BYTES = MARKS + 4 * STAGES;
	static constexpr int SCANNERS = 3; // warps
	static constexpr int MAX_SHARED = 227 * 1024;
	static constexpr bool Q_SHARED = true; // the producer copies Q
	static_assert(D % 32 == 0 && DV % 32 == 0 && BN % 16 == 0 && BN <= 256 && SHARED_BYTES <= MAX_SHARED, "tile");
};

// A row max is updated only if a score exceeds it by more than this, in log2 units.
constexpr float RESCALE_THRESHOLD = 8;

// Ids of named barriers; 0 is __syncthreads. SCAN: the scanning warps. TURN + group: ping-pong turn of a consumer
// warpgroup. GROUP + group: all threads of one consumer warpgroup.
enum { SCAN = 1, TURN = 2, GROUP = 5 };
