// The tile of a cubin kernel, its shared-memory layout and its barriers. Names are those of fa3_tile.h, as both use
// fa3_consume.h.
#pragma once
#include "fa3_tile.h"

template <int D_, int DV_, int WARPGROUPS_, int BN_, int STAGES_, bool PINGPONG_, bool CAUSAL_> struct CubinTile {
	static constexpr int D = D_, DV = DV_, WARPGROUPS = WARPGROUPS_, BN = BN_, STAGES = STAGES_;
	static constexpr bool PINGPONG = PINGPONG_, CAUSAL = CAUSAL_, Q_IN_REGISTERS = true;
	static constexpr int BM = 64 * WARPGROUPS;
	static constexpr int THREADS = 128 * (WARPGROUPS + 1);
	static constexpr int PRODUCER_REGISTERS = WARPGROUPS == 2 ? 40 : 32;
	static constexpr int CONSUMER_REGISTERS = WARPGROUPS == 2 ? 232 : 160;
	static constexpr int PANELS = (D + 63) / 64, V_PANELS = (DV + 63) / 64;
	static constexpr int K_PANEL = BN * 128, K_BYTES = PANELS * K_PANEL, V_BYTES = V_PANELS * K_PANEL;
	static constexpr int Q_STAGES = 2; // Q of the next row block is loaded before the epilogue of this one
	static constexpr int K = 0, V = K + STAGES * K_BYTES, BARRIERS = V + STAGES * V_BYTES;
	static constexpr int K_FULL = BARRIERS, K_EMPTY = K_FULL + 8 * STAGES, V_FULL = K_EMPTY + 8 * STAGES, V_EMPTY = V_FULL + 8 * STAGES,
			     MARKS = V_EMPTY + 8 * STAGES; // a word per stage, a byte of it per warp that loads V
	static constexpr int SHARED_BYTES = MARKS + 4 * STAGES;
	static constexpr int LOADERS = 64; // threads that load K, and as many that load V
	// A launch from Vulkan has 48 KiB, one of which the system reserves; 48000 bytes ran on an H200.
	static_assert(D % 32 == 0 && DV % 32 == 0 && BN % 16 == 0 && BN <= 256 && SHARED_BYTES <= 48000, "tile");
};
