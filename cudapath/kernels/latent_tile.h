// The tile of latent.cu: its shared-memory layout and its barriers.
#pragma once
#include "attn_latent.h"
#include "fa3_consume.h"

#ifndef LATENT_TOKENS
#define LATENT_TOKENS 0
#endif
#ifndef LATENT_FP8
#define LATENT_FP8 0
#endif

struct LatentTile {
	static constexpr bool TOKENS = LATENT_TOKENS, OFFSETS = LATENT_TOKENS == 2; // each query row has a list of its keys; lists have offsets
	static constexpr bool FP8 = LATENT_FP8; // K has rows of fp8_ds_mla, see latent_convert.h
	static constexpr int D = 576, DV = 512, ROWS = 64, KEYS = 64, STAGES = 2;
	static constexpr int THREADS = 512; // producer, scores, and two warpgroups of O with half of its columns each
	// A thread starts with 128. The instruction that takes more is illegal for fewer.
	static constexpr int PRODUCER_REGISTERS = 40, SCORES_REGISTERS = 120, OUTPUT_REGISTERS = 176;
	static constexpr int PANELS = D / 64, HALF_PANELS = DV / 128, HALF = DV / 2;
	// The last panels of Q are in registers. S = Q K^T with both operands in shared memory reads 128 bytes a cycle, all that
	// shared memory gives.
	static constexpr int Q_REGISTER_PANELS = 2;
	// P of a tile is passed in parts: O begins with the first keys while the exponentials of the last ones are computed.
	static constexpr int P_PARTS = 2;
	// Sizes in bytes. A panel is 64 columns of a tile.
	static constexpr int PANEL = 64 * 128, K_BYTES = PANELS * PANEL, P_BYTES = ROWS * KEYS * 2;
	// Panels that arrive together, and whether what has arrived was written by copies of threads that did not wait for them.
	static constexpr int FULL_PANELS = FP8 ? 2 : TOKENS ? HALF_PANELS : 1;
	static constexpr bool FENCES = TOKENS && !FP8;
	// A stage is freed in three groups of panels: left and right half of V, and what is K alone.
	static constexpr int GROUPS = 3, KEYS_ONLY = 2;
	static constexpr int PIECES = 2, PIECE_BYTES = 64; // see LatentPiece
	static constexpr int GATHER_WARPS = 2; // of token lists. Each copies 32 keys of a tile
	// Of rows of fp8_ds_mla: warps that convert, and what is copied in turn, four chunks of float8 and then ROTARY, with the scales.
	static constexpr int CONVERT_WARPS = 2, ROTARY = 4, ROW_PARTS = ROTARY + 1, SCALE_BYTES = 16 * KEYS;
	static constexpr int K = 0, Q = K + STAGES * K_BYTES, P = Q + PANELS * PANEL, SCALES = P + P_BYTES, FACTORS = SCALES + (FP8 ? STAGES * SCALE_BYTES : 0), PIECE = FACTORS + 4 * ROWS;
	static constexpr int LISTED = PIECE + PIECES * PIECE_BYTES; // of each stage and gathering warp: a bit for each of its keys that is one
	static constexpr int BARRIERS = LISTED + STAGES * GATHER_WARPS * 4;
	static constexpr int K_FULL = BARRIERS, K_EMPTY = K_FULL + 8 * STAGES * PANELS, P_FULL = K_EMPTY + 8 * STAGES * GROUPS, P_EMPTY = P_FULL + 8 * P_PARTS,
			     PIECE_FULL = P_EMPTY + 8, PIECE_EMPTY = PIECE_FULL + 8 * PIECES;
	static constexpr int ROWS_FULL = PIECE_EMPTY + 8 * PIECES, SHARED_BYTES = ROWS_FULL + (FP8 ? 8 * STAGES * ROW_PARTS : 0);
	static constexpr int PIECE_READERS = 12 + (FP8 ? 1 + CONVERT_WARPS : TOKENS ? GATHER_WARPS : 1); // warps: the producer, scores and O
	static_assert(SHARED_BYTES <= 227 * 1024, "tile");
	static_assert(SCORES_REGISTERS <= 128 && OUTPUT_REGISTERS >= 128 && PRODUCER_REGISTERS + SCORES_REGISTERS + 2 * OUTPUT_REGISTERS == 512, "registers");
};

// Ids of named barriers; 0 is __syncthreads. LATENT_OUTPUT + half: a warpgroup of O.
enum { LATENT_SCORES = 1, LATENT_OUTPUT = 2 };
