// The tile of a backward fa3 kernel of head dims above 128: its shared-memory layout and its barriers.
#pragma once
#include "fa3_backward_tile.h"
#include "sm90_backward_wide.h"

// A tile of 64 query rows and 64 keys, with head dims D of Q and K and DV of V. Consumer warpgroup 0 has the first dims of
// dK and dV, warpgroup 1 the others (fa3_backward_wide.h).
template <int D_, int DV_, bool CAUSAL_> struct WideTileData {
	static constexpr int D = D_, DV = DV_, BM = 64, BN = 64, WARPGROUPS = 2;
	static constexpr bool CAUSAL = CAUSAL_, WIDE = true, OPTIONS = false, CAPPED = false, CONVERTS = false;
	// Q of a step is read until dK is complete, when S of the next rows has been issued and P is computed. With two tiles S would wait for the
	// copy. dO is read until dV is complete, and dP of the next rows follows dK, so at head dim 256 one tile has to do.
	static constexpr int Q_STAGES = 3, DO_STAGES = D == 256 ? 1 : 2;
	static constexpr int THREADS = 128 * (WARPGROUPS + 1);
	static constexpr int PRODUCER_REGISTERS = 56, CONSUMER_REGISTERS = consumerRegisters(PRODUCER_REGISTERS);
	static constexpr int AHEAD = 8; // pairs of statistics, as in BackwardTile
	static constexpr int STAT_LANES = DV <= 128 ? 16 : 32; // that read a row of O and dO

	// How many of `dims` dims a warpgroup has, and the first of them. With 128 columns a product reads less shared memory
	// per operation than with 64, so 192 dims are divided into 128 and 64.
	static constexpr __host__ __device__ int dimsOf(int group, int dims) {
		const int first = dims == 192 ? 128 : dims / 2;
		return group == 0 ? first : dims - first;
	}
	static constexpr __host__ __device__ int firstOf(int group, int dims) { return group == 0 ? 0 : dimsOf(0, dims); }

	// Sizes in bytes. A panel is 64 columns of a tile: dims of Q, dO, K and V, keys of dS. P is in the order of the threads.
	static constexpr int PANELS = D / 64, VALUE_PANELS = DV / 64, ROW_PANEL = BM * 128, KEY_PANEL = BN * 128;
	static constexpr int Q_BYTES = PANELS * ROW_PANEL, DO_BYTES = VALUE_PANELS * ROW_PANEL, K_BYTES = PANELS * KEY_PANEL, V_BYTES = VALUE_PANELS * KEY_PANEL;
	static constexpr int DS_BYTES = ROW_PANEL, P_BYTES = 2 * BM * BN;
	// The barriers that tiles of head dims up to 128 have for dQ are for the buffers of dS: a warp copies them to memory.
	static constexpr int DS_BUFFERS = 2, DQ_BUFFERS = DS_BUFFERS, DQ_WAITS = DS_BUFFERS, ADDERS = 1;
	// Statistics of a block of rows, as in BackwardTile.
	static constexpr int LSE_FLOATS = 2 * BM + 4, LSE_BYTES = 4 * LSE_FLOATS, DELTA_BYTES = 4 * BM;
	// Offsets in shared memory.
	static constexpr int K = 0, V = K + K_BYTES, Q = V + V_BYTES, DO = Q + Q_STAGES * Q_BYTES, DS = DO + DO_STAGES * DO_BYTES,
			     P = DS + DS_BUFFERS * DS_BYTES, LSE = P + P_BYTES, DELTA = LSE + Q_STAGES * LSE_BYTES, BARRIERS = DELTA + DO_STAGES * DELTA_BYTES;
	static_assert(D % 64 == 0 && DV % 64 == 0 && D <= 256 && DV <= D && DV >= 128, "tile");
};

// Warpgroup 0 notes the keys with Inf or NaN in K (KEY_FLAGS).
template <int D, int DV, bool CAUSAL> struct WideTile : BackwardBarriers<WideTileData<D, DV, CAUSAL>> {};

// Ids of named barriers of all consumers, in addition to those of fa3_backward_tile.h. P_STORED: P of a step is in shared memory. TILE_CHECKED: both warpgroups know
// whether S or dP of a masked tile has Inf or NaN.
enum { P_STORED = 4, TILE_CHECKED = 5 };
