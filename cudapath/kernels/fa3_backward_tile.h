// The tile of a backward fa3 kernel: its shared-memory layout and its barriers.
#pragma once
#include "attn_backward.h"
#include "fa3_element.h"
#include "sm90.h"
#include "sm90_backward.h"

// The registers that a thread of the two consumer warpgroups can have, given those of a producer. A CTA of three warpgroups starts with 65536 / 384
// for each thread, in multiples of 8. Warpgroups that ask for more than the producers give back would wait forever.
constexpr int consumerRegisters(int producers) { return (3 * (65536 / 384 / 8 * 8) - producers) / 2 / 8 * 8; }

// A tile of BM query rows and BN keys. Each of the two consumer warpgroups owns 64 of the keys.
template <int D_, int BM_, bool CAUSAL_> struct BackwardTileData {
	static constexpr int D = D_, BM = BM_, BN = 128, WARPGROUPS = 2;
	// Q of a step is read until dK is complete, in the middle of the next step. With two tiles S would wait for the copy.
	static constexpr int Q_STAGES = 3, DO_STAGES = 2;
	static constexpr bool CAUSAL = CAUSAL_, WIDE = false, OPTIONS = false, CAPPED = false; // fa3_backward_wide_tile.h, fa3_backward_options.h
	static constexpr int THREADS = 128 * (WARPGROUPS + 1);
	// Whether the main kernel converts dQ to the storage type (fa3_backward_convert.h), not a kernel after it.
	static constexpr bool CONVERTS = D == 64;
	static constexpr int STAT_LANES = D / 8; // that read a row of O and dO
	static constexpr int PRODUCER_REGISTERS = D == 128 ? 24 : 56, CONSUMER_REGISTERS = consumerRegisters(PRODUCER_REGISTERS);
	// How many pairs of statistics of a tile the consumers load ahead, before they issue the product that P or dS waits for.
	static constexpr int AHEAD = 8;
	// dQ^T of a tile has D rows and BM columns. At head dim 128 each consumer warpgroup computes 64 of the rows, at
	// head dim 64 half of the columns.
	static constexpr int PANELS = D / 64, DQ_COLUMNS = D == 128 ? BM : BM / 2;
	static constexpr int DQ_FLOATS = 64 * DQ_COLUMNS, DQ_BYTES = 4 * DQ_FLOATS; // of a warpgroup
	// Sizes in bytes. A panel is 64 columns of a tile: dims of Q, dO, K and V, keys of dS.
	static constexpr int ROW_PANEL = BM * 128, KEY_PANEL = BN * 128;
	static constexpr int ROW_BYTES = PANELS * ROW_PANEL, KEY_BYTES = PANELS * KEY_PANEL, DS_BYTES = BN / 64 * ROW_PANEL;
	static constexpr int VALUE_PANELS = PANELS, Q_BYTES = ROW_BYTES, DO_BYTES = ROW_BYTES, K_BYTES = KEY_BYTES, V_BYTES = KEY_BYTES;
	// Warps that add dQ, in turns: one may wait until its addition is complete while the other waits for dQ of the next step. At head dim 64 the
	// others convert. Each has an mbarrier for each warpgroup's part of dQ.
	static constexpr int ADDERS = D == 128 ? 2 : 1, DQ_BUFFERS = ADDERS * WARPGROUPS, DQ_WAITS = 1;
	// Statistics of a block of rows: -LSE, the factor of P of each row, and a word that says whether any factor is not 1
	// (fa3_backward_lse.h); -delta.
	static constexpr int LSE_FLOATS = 2 * BM + 4, LSE_BYTES = 4 * LSE_FLOATS, DELTA_BYTES = 4 * BM;
	// Offsets in shared memory. dS has two buffers: a warpgroup stores dS of a step while the other reads that of
	// the previous step.
	static constexpr int K = 0, V = K + KEY_BYTES, Q = V + KEY_BYTES, DO = Q + Q_STAGES * ROW_BYTES, DS = DO + DO_STAGES * ROW_BYTES,
			     DQ = DS + 2 * DS_BYTES, LSE = DQ + WARPGROUPS * DQ_BYTES, DELTA = LSE + Q_STAGES * LSE_BYTES, BARRIERS = DELTA + DO_STAGES * DELTA_BYTES;
	static_assert((D == 64 || D == 128) && BM % 64 == 0, "tile");
};

// The mbarriers of a tile, 8 bytes each, and a few words. They follow its data. FULL: the producer has filled a buffer; EMPTY:
// the consumer warps have read it. Exceptions: the consumers fill dQ, and the adding warps empty it; all other warps read WORK.
template <class Data> struct BackwardBarriers : Data {
	static constexpr bool FLOAT_P = false; // fa3_backward_options.h
	static constexpr int Q_BARRIERS = 8 * Data::Q_STAGES, DO_BARRIERS = 8 * Data::DO_STAGES;
	static constexpr int K_FULL = Data::BARRIERS, V_FULL = K_FULL + 8, KEYS_EMPTY = V_FULL + 8, Q_FULL = KEYS_EMPTY + 8, Q_EMPTY = Q_FULL + Q_BARRIERS,
			     DO_FULL = Q_EMPTY + Q_BARRIERS, DO_EMPTY = DO_FULL + DO_BARRIERS, DQ_FULL = DO_EMPTY + DO_BARRIERS, DQ_EMPTY = DQ_FULL + 8 * Data::DQ_BUFFERS,
			     WORK_FULL = DQ_EMPTY + 8 * Data::DQ_WAITS, WORK_EMPTY = WORK_FULL + 16;
	// Words: two units of work; the first row of the Q tiles, negative if masked; for each consumer warp whether masked tiles of
	// the unit have Inf or NaN in K, or in Q or dO; a byte per key with Inf or NaN in K.
	static constexpr int UNIT_BYTES = 32, WORK = WORK_EMPTY + 16, ROW = WORK + 2 * UNIT_BYTES, RARE_KEYS = ROW + 4 * Data::Q_STAGES, RARE_ROWS = RARE_KEYS + 16 * Data::WARPGROUPS,
			     KEY_FLAGS = RARE_ROWS + 16 * Data::WARPGROUPS;
	static constexpr int SHARED_BYTES = KEY_FLAGS + Data::BN;
	static_assert(SHARED_BYTES <= 227 * 1024, "tile");
};

// A tile of head dims up to 128.
template <int D, int BM, bool CAUSAL> struct BackwardTile : BackwardBarriers<BackwardTileData<D, BM, CAUSAL>> {};

// Warps of the producer warpgroup.
enum { COPIER = 0, ADDER = 1, FIRST_CONVERTER = 2, CONVERTERS = 2 };
// Ids of named barriers; 0 is __syncthreads. DS_STORED: the consumers. KEYS_CLEAR + group: a consumer warpgroup.
enum { DS_STORED = 1, KEYS_CLEAR = 2 };
