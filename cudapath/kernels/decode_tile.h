// Parameters of decode.cu, and what lies where in its shared memory.
#pragma once
#include <type_traits>

#include "decode_ptx.h"

// Mirrored by the host. Strides of Q and O are in elements, of K and V in bytes; batch is a page's if there is a table.
struct DecodeTensor {
	uint64_t base;
	int64_t batch, head, row;
};

struct DecodeParams {
	DecodeTensor q, k, v, o;
	uint64_t kScale, vScale; // float32 [batches or pages, Hkv, scaleGroups]; int8 and float8 only
	uint64_t lse;            // float32 [B, Hq, Sq], packed [Hq, totalQ]; 0: not requested
	uint64_t cuQ, cuK;       // int32 [B + 1]: where sequences begin in packed rows and keys; 0: not packed
	uint64_t usedQ, usedK;   // int32 [B]: rows and keys of a sequence; 0: all of its range
	uint64_t table;          // int32 [B, tableStride]: pages of a sequence; 0: not paged
	uint64_t counters;       // uint32, one of each row tile, 0
	uint64_t partial;        // float32 [row tile, split, row, D + 4]: O, row max, row sum
	int32_t B, Hq, Hkv, Sq, Sk;   // Sq and Sk: the most of a sequence
	int32_t totalQ, totalK;       // packed rows and keys
	int32_t causal;               // 0: none; 1: row r is at key r; 2: the last row is at the last key
	int32_t splits;
	int32_t pageSize, pages, tableStride; // keys of a page, a multiple of 16
	int32_t scaleGroups, scaleBlock;      // entries of a KV head and batch or page; keys of an entry
	int32_t wideK, wideV;                 // 1: 16 bytes a copy; otherwise 4
	float scaleLog2;                      // score scale times log2(e), not 0
	float unitHigh, unitLow;              // as in attn.h
	uint32_t kRow, vRow, kPage, vPage;    // strides of rows, and of pages: 0 without a table
	uint32_t scalePage;                   // scales of a page
	// Of K and V stored as Q only:
	int32_t headDim;          // at most the kernel's, a multiple of 8
	uint64_t alibi, sinks;    // float32 [Hq], slopes alibiBatch apart for each sequence; 0: none
	int32_t left, right;      // row r attends to keys [r - left, r + right], moved by the alignment; INT32_MAX: no limit. They take the place of causal
	int32_t bottomRight;      // 1: the last row is at the last key; 0: row r is at key r
	int32_t changes;          // 1: scores are in natural units, by the next two and alibi; scaleLog2 is then log2(e)
	float scoreScale, softcap; // scale, or scale / softcap; 0: none
	int32_t alibiBatch, unused;
};
static_assert(sizeof(DecodeParams) == 360, "DecodeParams is mirrored by the host");

enum KVType { SAME = 0, INT8 = 1, FP8 = 2, Q8_0 = 3, Q4_0 = 4 };

constexpr float RowMaxInit = -3.4028234663852886e38f;
constexpr float Lag = 8; // the row max is exceeded by as many powers of two before it is renewed
constexpr int Sub = 16;  // keys of a product

template <bool BF16_, int TYPE_, int D_, int WARPS_, int STAGES_, int KEYS_> struct DecodeTile {
	static constexpr bool BF16 = BF16_;
	static constexpr int TYPE = TYPE_, D = D_, WARPS = WARPS_, STAGES = STAGES_, KEYS = KEYS_;
	using Element = typename std::conditional<BF16, Bfloat, Half>::type;
	static constexpr bool SCALED = TYPE == INT8 || TYPE == FP8;       // a scale per key, not per block
	static constexpr bool CHUNKED = SCALED || TYPE == SAME;           // chunks of rows are swizzled, and rows may lie anywhere
	static constexpr int UNIT = TYPE == SAME ? 64 : TYPE == Q8_0 ? 34 : TYPE == Q4_0 ? 18 : 32; // bytes of 32 elements
	static constexpr int ROW = D / 32 * UNIT;
	static constexpr int TILE = KEYS * ROW, STAGE = 2 * TILE + (SCALED ? 2 * 4 * KEYS : 0);
	static constexpr int RING = STAGES * STAGE, AREA = RING + (SCALED ? 16 * Sub : 0); // of a warp, with the numbers of scales
	static constexpr int PITCH = D + 4;                                                // of O in shared memory, float32
	static constexpr int OUTPUT = WARPS * 8 * (4 * PITCH + 8);
	static constexpr int SHARED = WARPS * AREA > OUTPUT ? WARPS * AREA : OUTPUT;
	static constexpr int FRAGMENTS = D / 16;
	static_assert(KEYS % Sub == 0 && STAGE % 16 == 0 && (D == 64 || D == 128 || D == 256), "tile");

	// Bytes of chunk `chunk` of row `key` of 16 keys.
	static __device__ __forceinline__ int chunkAt(int key, int chunk) {
		const int swizzled = TYPE == SAME ? chunk ^ key % 8 / 2 ^ key % 2 * 4 : D == 64 ? chunk ^ key % 8 / 2 % 4 : chunk ^ key % 8 / 2 * 2 ^ key % 2 * 4;
		return key * ROW + swizzled * 16;
	}

	// Column of Q and K that number k (0 to 3) of quad lane t of product `step` holds.
	static __device__ __forceinline__ int column(int step, int t, int k) {
		if (TYPE == SAME) return step / 2 * 32 + 8 * t + step % 2 * 4 + k;
		if (SCALED) return step / 4 * 64 + 16 * t + step % 4 * 4 + k;
		if (TYPE == Q8_0) return D == 64 ? t / 2 * 32 + t % 2 * 16 + step * 4 + k : step / 8 * 128 + 32 * t + step % 8 * 4 + k;
		if (D == 64) return t / 2 * 32 + step % 2 * 16 + t % 2 * 8 + step / 2 * 4 + k;
		return step / 8 * 128 + 32 * t + step % 2 * 16 + step % 8 / 2 * 4 + k;
	}
	// First of the four columns of V and O that fragments 2 `pair` and 2 `pair` + 1 hold in lanes of row g.
	static __device__ __forceinline__ int columnsOfO(int pair, int g) {
		if (TYPE != Q4_0) return D == 64 ? 8 * g + pair * 4 : pair / 4 * 128 + 16 * g + pair % 4 * 4;
		if (D == 64) return g / 4 * 32 + pair % 2 * 16 + g % 4 * 4;
		return pair / 4 * 128 + g / 2 * 32 + pair % 2 * 16 + g % 2 * 8 + pair % 4 / 2 * 4;
	}
};
