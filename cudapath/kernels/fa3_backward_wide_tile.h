// The tile of a backward fa3 kernel of head dims above 128: its shared-memory layout and its barriers.
#pragma once
#include "fa3_backward_tile.h"
#include "sm90_backward_wide.h"

// A tile of 64 query rows and 64 keys, with head dims D of Q and K and DV of V. Consumer warpgroup 0 has the first dims of
// all gradients and of dQ, warpgroup 1 the others (fa3_backward_wide.h).
template <int D_, int DV_, bool CAUSAL_> struct WideTileData {
	static constexpr int D = D_, DV = DV_, BM = 64, BN = 64, WARPGROUPS = 2;
	static constexpr int COUNTERS = WARPGROUPS; // each warpgroup adds its dims of dQ in turns of its own
	static constexpr bool CAUSAL = CAUSAL_, WIDE = true, OPTIONS = false, CONVERTS = false;
	// At head dim 256 only one tile of dO fits. dV, the last product that reads it, is therefore the first of a step.
	static constexpr int Q_STAGES = D + DV <= 320 ? 3 : 2, DO_STAGES = DV == 256 ? 1 : 2;
	static constexpr int THREADS = 128 * (WARPGROUPS + 1);
	static constexpr int PRODUCER_REGISTERS = 24, CONSUMER_REGISTERS = 240;
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
	// dQ leaves the CTA in pieces of PIECE_DIMS dims. At head dim 256 a warpgroup has two buffers for four pieces, else one for each.
	static constexpr int PIECE_DIMS = D == 256 ? 32 : 64, DQ_FLOATS = PIECE_DIMS * BM, DQ_BYTES = 4 * DQ_FLOATS, ADDERS = WARPGROUPS;
	static constexpr __host__ __device__ int piecesOf(int group) { return dimsOf(group, D) / PIECE_DIMS; }
	static constexpr __host__ __device__ int buffersOf(int group) { return D == 256 ? 2 : piecesOf(group); }
	static constexpr int DQ_BUFFERS = D == 256 ? 4 : D / PIECE_DIMS, DQ_WAITS = DQ_BUFFERS;
	static constexpr __host__ __device__ int bufferOf(int group, int piece) { return group * buffersOf(0) + piece % buffersOf(group); }
	// Parity of the phase in which a piece of step n fills its buffer.
	static constexpr __host__ __device__ uint32_t parityOf(int group, uint32_t n, int piece) {
		return (n * (piecesOf(group) / buffersOf(group)) + piece / buffersOf(group)) & 1;
	}
	// Statistics of a block of rows, as in BackwardTile.
	static constexpr int LSE_FLOATS = 2 * BM + 4, LSE_BYTES = 4 * LSE_FLOATS, DELTA_BYTES = 4 * BM;
	// Offsets in shared memory. dS has two buffers, as in BackwardTile.
	static constexpr int K = 0, V = K + K_BYTES, Q = V + V_BYTES, DO = Q + Q_STAGES * Q_BYTES, DS = DO + DO_STAGES * DO_BYTES, P = DS + 2 * DS_BYTES,
			     DQ = P + P_BYTES, LSE = DQ + DQ_BUFFERS * DQ_BYTES, DELTA = LSE + Q_STAGES * LSE_BYTES, BARRIERS = DELTA + DO_STAGES * DELTA_BYTES;
	static_assert(D % 64 == 0 && DV % 64 == 0 && D <= 256 && DV <= D && DV >= 128, "tile");
};

// Warpgroup 0 notes the keys with Inf or NaN in K (KEY_FLAGS).
template <int D, int DV, bool CAUSAL> struct WideTile : BackwardBarriers<WideTileData<D, DV, CAUSAL>> {};

// Ids of named barriers of all consumers, in addition to those of fa3_backward_tile.h. P_STORED: P of a step is in shared memory. TILE_CHECKED: both warpgroups know
// whether S or dP of a masked tile has Inf or NaN.
enum { P_STORED = 4, TILE_CHECKED = 5 };
