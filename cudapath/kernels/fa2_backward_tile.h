// The tile of a kernel of fa2_backward.h: its sizes and its shared-memory layout.
#pragma once
#include "attn_backward.h"
#include "fa2_backward_ptx.h"
#include "fa2_tile.h"
#include "not_finite.h"

namespace fa2 {

// A tile of Rows query rows and Keys keys.
template <int Warps_, int Rows_, int Keys_, int KeyWarps_, int DQRowWarps_, int Stages_, int Buffers_> struct BackwardTile {
	static constexpr int Warps = Warps_, Rows = Rows_, Keys = Keys_;
	static constexpr int KeyWarps = KeyWarps_, DQRowWarps = DQRowWarps_; // see BackwardConfig
	static constexpr int Stages = Stages_;   // tiles of Q and dO in shared memory
	static constexpr int Buffers = Buffers_; // of P and dS. With 1, a step waits until all have read those of the previous one
};

// The tiles of a bucket of head dims, chosen on an H100 among those of docs/log/cuda-backward.md. Main is for aligned tensors.
// Any fits the GPUs with the least shared memory, 99 KB a CTA.
template <int D, int Dv> struct BackwardTiles;
template <> struct BackwardTiles<64, 64> {
	using Main = BackwardTile<8, 128, 128, 4, 4, 2, 1>;
	using Any = BackwardTile<8, 32, 64, 4, 2, 2, 1>;
};
template <> struct BackwardTiles<96, 96> {
	using Main = BackwardTile<8, 64, 128, 4, 4, 2, 2>;
	using Any = BackwardTile<4, 32, 64, 2, 2, 2, 1>;
};
template <> struct BackwardTiles<128, 128> {
	using Main = BackwardTile<8, 64, 128, 4, 2, 2, 2>;
	using Any = BackwardTile<8, 32, 64, 4, 2, 2, 1>;
};
template <> struct BackwardTiles<192, 128> {
	using Main = BackwardTile<8, 64, 64, 2, 2, 2, 2>;
	using Any = BackwardTile<4, 32, 32, 2, 2, 2, 1>;
};
template <> struct BackwardTiles<192, 192> {
	using Main = BackwardTile<8, 64, 64, 2, 2, 2, 2>;
	using Any = BackwardTile<4, 32, 32, 2, 2, 2, 1>;
};
template <> struct BackwardTiles<256, 256> {
	using Main = BackwardTile<8, 64, 64, 2, 2, 2, 1>;
	using Any = BackwardTile<4, 32, 32, 2, 2, 1, 1>;
};

template <class Element_, int D_, int Dv_, class Tile, bool Softcap_, bool Any_> struct BackwardConfig {
	using Element = Element_;
	static constexpr int D = D_, Dv = Dv_; // bucket of head dims
	static constexpr int Rows = Tile::Rows, Keys = Tile::Keys, Warps = Tile::Warps, Threads = 32 * Warps, Stages = Tile::Stages, Buffers = Tile::Buffers;
	static constexpr bool Softcap = Softcap_;
	static constexpr bool Any = Any_; // any alignment: loads and stores single elements
	// bfloat16 has 8 bits, and its rounding shows in blocks with few slots. So dS takes P in float32, not as rounded for dV.
	static constexpr bool FloatP = Softcap_ || Element_::infinity == BFLOAT_EXPONENTS;
	// S, dP: KeyWarps x RowWarps warps; a warp has KeyFragments * 16 keys and RowSlices * 16 rows.
	static constexpr int KeyWarps = Tile::KeyWarps, RowWarps = Warps / KeyWarps, KeyFragments = Keys / KeyWarps / 16, RowSlices = Rows / RowWarps / 16;
	// dK, dV: the same keys. The RowWarps warps of these keys share the dims.
	static constexpr int KSlices = D / 16 / RowWarps, VSlices = Dv / 16 / RowWarps;
	// dQ: DQRowWarps x DQDimWarps warps.
	static constexpr int DQRowWarps = Tile::DQRowWarps, DQDimWarps = Warps / DQRowWarps, DQFragments = Rows / DQRowWarps / 16, DQSlices = D / 16 / DQDimWarps;

	// The record of a block of rows: -LSE in log2 units, dLSE - rowsum(dO * O), and what is subtracted from exponents in
	// blocks with a large LSE; then a word that says whether it is one, and padding.
	static constexpr int RecordFloats = 3 * Rows + 4, RecordBytes = 4 * RecordFloats;
	static constexpr int PlanBytes = 144; // see Plan

	// Offsets in shared memory.
	static constexpr int KBytes = Keys * D * 2, VBytes = Keys * Dv * 2, QBytes = Rows * D * 2, DOBytes = Rows * Dv * 2, ProbBytes = Keys * Rows * 2;
	static constexpr int VAt = KBytes, QAt = VAt + VBytes, DOAt = QAt + Stages * QBytes, PAt = DOAt + Stages * DOBytes,
			     DSAt = PAt + Buffers * ProbBytes, RecordsAt = DSAt + Buffers * ProbBytes;
	static constexpr int PlanAt = RecordsAt + Stages * RecordBytes, KeysFull = PlanAt + PlanBytes, RowsFull = KeysFull + 8, Stored = RowsFull + 8 * Stages,
			     Taken = Stored + 8 * Buffers, UnitAt = Taken + 8, OddKeysAt = UnitAt + 8, Shared = OddKeysAt + Keys;
	static_assert(Keys % (16 * KeyWarps) == 0 && Rows % (16 * RowWarps) == 0 && Rows % (16 * DQRowWarps) == 0, "");
	static_assert(D % (16 * RowWarps) == 0 && Dv % (16 * RowWarps) == 0 && D % (16 * DQDimWarps) == 0 && D % 32 == 0 && Dv % 32 == 0, "");
	static_assert(Stages == 1 || Stages == 2, "");
};

// Copy of a Rows x Dim tile by all threads of a CTA, in chunks of 16 bytes. Lanes threads copy a row. A thread copies every
// Lanes-th chunk of every PassRows-th row.
template <class C, int Dim, int Rows> struct BackwardCopy {
	static constexpr int Lanes = Dim % 64 == 0 ? 8 : 4, Groups = Dim / 8 / Lanes, PassRows = C::Threads / Lanes, Passes = (Rows + PassRows - 1) / PassRows;
	static_assert(PassRows % 8 == 0, "");

	static __device__ __forceinline__ int row() { return threadIdx.x / Lanes; }
	static __device__ __forceinline__ int chunk() { return threadIdx.x % Lanes; }

	// Returns the thread's first chunk of the tile whose first row is at `from`.
	static __device__ __forceinline__ const char *start(const char *from, int64_t stride) { return from + row() * stride + chunk() * 16; }

	// Starts the thread's copies. Its first chunk is at `from`, and `pass` bytes are between those of two passes. Elements past `rows` and
	// `dim` are filled with zeros. Whole: there are none, so nothing is tested.
	template <bool Whole> static __device__ __forceinline__ void fetch(uint32_t tile, const char *from, int64_t pass, int rows, int dim) {
		if (PassRows > Rows && row() >= Rows) return;
		tile += chunk_at<Dim>(row(), chunk());
		const int left = rows - row();
#pragma unroll
		for (int i = 0; i < Passes; i++) {
			const bool there = i * PassRows < left;
#pragma unroll
			for (int g = 0; g < Groups; g++) {
				const uint32_t to = tile + i * PassRows * Dim * 2 + g * Lanes * 16;
				const char *const at = from + g * Lanes * 16;
				const int col = (g * Lanes + chunk()) * 8;
				if constexpr (C::Any) {
					store_chunk(to, at, there, col, dim);
				} else if constexpr (Whole) {
					copy_async(to, at);
				} else {
					copy_async(to, at, there && col < dim ? 16 : 0);
				}
			}
			from = plus(from, pass);
		}
	}
};

} // namespace fa2
