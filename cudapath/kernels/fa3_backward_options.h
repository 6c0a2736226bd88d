// Options of a call in the backward fa3 kernels: sequences of different lengths, windows and softcap.
//
// OptionsTile is a tile whose kernels take them. With CAPPED they take calls with a softcap, and no others: its code in the main loop would
// cost the others registers. The kernels of the other tiles contain none of this code.
//
// A unit of work belongs to a sequence (backward_sequence.h). TMA copies tiles of whole tensors, so the rows and keys of a
// tile past the end of a sequence hold whatever follows there. Their slots are masked like those outside of the window.
// The copying thread leaves the limits of the unmasked slots of each tile in shared memory.
//
// The order of the additions to dQ, up to head dim 128. A row block and a key block meet if any row of the one attends to any key of the
// other: if c - r is in [-left, right] for some r and c in use. c - r takes all values from the least to the greatest,
// so this compares the ends of both blocks. rowBlocks() and keyBlocks() solve the same inequalities for one block or the
// other, and agree for any lengths, 0 included. So the units that add to dQ of a row block are the key blocks in
// keyBlocks() and no others, and a unit knows its turn without knowing what other units do: tiles that a window leaves
// out are in neither. A unit waits for units of lower tickets only, which have started. waitTurn() waits for at least as
// many additions as come before. If sequences overlap, because cu_seqlens does not ascend, they share counters, which
// then grow faster: gradients are wrong, as dQ is shared too, but no wait lasts forever.
#pragma once
#include "backward_exponent.h"
#include "backward_sequence.h"
#include "fa3_backward_tile.h"

template <class Plain, bool CAPPED_> struct OptionsTile : Plain {
	static constexpr bool OPTIONS = true, CAPPED = CAPPED_, CONVERTS = false; // the kernel after it converts dQ, by the rows of each sequence
	// Whether dS takes P in float32. In bf16 rounded P makes the error of dK too large where few rows or keys add up, as those of
	// short sequences. At head dim 64 the registers of S hold it until dS is stored.
	static constexpr bool FLOAT_P = BF16 && Plain::D == 64;
	// P in float32 leaves no registers for statistics that are loaded ahead. What the main loop of the consumers can spare goes to the producers.
	static constexpr int AHEAD = FLOAT_P ? 0 : Plain::AHEAD;
	static constexpr int PRODUCER_REGISTERS = FLOAT_P || Plain::D != 64 ? 24 : CAPPED ? 40 : 56, CONSUMER_REGISTERS = consumerRegisters(PRODUCER_REGISTERS);
	// A Limits per Q tile. With wide heads the words that pass from warpgroup 0 to 1 with a softcap (SharedWords).
	// Units of work have their sequences.
	static constexpr int LIMITS = (Plain::SHARED_BYTES + 15) / 16 * 16, SLOPED_P = LIMITS + 16 * Plain::Q_STAGES,
			     WORK = SLOPED_P + (Plain::WIDE ? 2 * Plain::BM * Plain::BN : 0), UNIT_BYTES = 80, SHARED_BYTES = WORK + 2 * UNIT_BYTES;
	static_assert(Plain::CAUSAL && SHARED_BYTES <= 227 * 1024, "tile");
};

// The unmasked slots of a tile: of row i < rows and key j < keys with low <= i - j <= high.
struct alignas(16) Limits {
	int rows, keys, low, high;
};

__device__ __forceinline__ Sequence sequenceOf(const AttnBackwardParams &p, int batch) {
	return Sequence::of(p, batch, [](int n, int most) { return min(max(n, 0), most); });
}

// The limits of the tile that begins at a row and a key. low and high are clamped to where they exclude all slots or none.
template <class T> __device__ __forceinline__ Limits limitsOf(const Sequence &s, int row, int key) {
	auto within = [](int64_t x) { return int(min(max(x, int64_t(-T::BN)), int64_t(T::BM))); };
	return {min(s.rows.used - row, T::BM), min(s.keys.used - key, T::BN), within(key - s.right - row), within(key + s.left - row)};
}

// The key blocks that rows of a block attend to, and the row blocks that attend to keys of a block.
template <class T> __device__ __forceinline__ Span keyBlocksOf(const Sequence &s, int block) { return s.keyBlocks<T::BM, T::BN>(int64_t(block) * T::BM); }
template <class T> __device__ __forceinline__ Span rowBlocksOf(const Sequence &s, int block) { return s.rowBlocks<T::BM, T::BN>(int64_t(block) * T::BN); }

// Blocks of rows of a head in all sequences, and the number of a block among those of all heads.
template <class T> __device__ __forceinline__ int blocksOfHead(const AttnBackwardParams &p) {
	return p.cu_q != 0 ? p.total_q / T::BM + p.B : p.B * ((p.Sq + T::BM - 1) / T::BM);
}
template <class T> __device__ __forceinline__ int64_t blockIndex(const AttnBackwardParams &p, const Sequence &s, int head, int block) {
	const int first = s.firstBlock<T::BM>(p);
	return int64_t(head) * blocksOfHead<T>(p) + first + block;
}

// Whether some slots of a tile are masked.
template <class T> __device__ __forceinline__ bool isMasked(const Limits &x) {
	return x.rows < T::BM || x.keys < T::BN || x.low > 1 - T::BN || x.high < T::BM - 1;
}

// Sets the elements of masked slots to 0. Keys of the thread begin at firstKey of the tile.
template <class T> __device__ __forceinline__ void clearOutside(float (&s)[T::BM / 2], const Limits &x, int firstKey) {
	const int thread = threadHere() % 128, key = firstKey + thread / 32 * 16 + thread % 32 / 4, column = 2 * (thread % 4);
	int from[2], end[2]; // of the columns of each of the thread's keys that are not masked, less that of the thread
#pragma unroll
	for (int r = 0; r < 2; r++) {
		from[r] = x.low + key + 8 * r - column;
		end[r] = key + 8 * r < x.keys ? min(x.rows, x.high + key + 8 * r + 1) - column : 0;
	}
#pragma unroll
	for (int i = 0; i < T::BM / 2; i++)
		if (8 * (i / 4) + i % 2 < from[i / 2 % 2] || 8 * (i / 4) + i % 2 >= end[i / 2 % 2]) s[i] = 0;
}

// P times the derivative of the softcap, two rounded to a word: in local memory, or in shared memory, where a thread of another
// warpgroup reads it. A thread's words lie at a distance of 512 bytes, one for each of 128 threads.
struct SharedWords {
	uint32_t at;

	__device__ __forceinline__ uint32_t operator[](int i) const { return loadSharedWord(at + 512 * i); }
};
__device__ __forceinline__ void setWord(volatile uint32_t *words, int i, uint32_t x) { words[i] = x; }
__device__ __forceinline__ void setWord(const SharedWords &words, int i, uint32_t x) { storeSharedWord(words.at + 512 * i, x); }

// Sets the halves of the words of P where P is NaN. spoilKeys() has spoiled P of whole keys, but not P times the
// derivative. The other half is another row's, which may be past the end of its sequence.
template <class T, class Words> __device__ __forceinline__ void spoilWords(Words &&words, const float (&P)[T::BM / 2]) {
#pragma unroll
	for (int i = 0; i < T::BM / 4; i++) {
		const uint32_t nan = (P[2 * i] != P[2 * i] ? 0x7fff : 0) | (P[2 * i + 1] != P[2 * i + 1] ? 0x7fff0000 : 0);
		if (nan != 0) setWord(words, i, words[i] | nan);
	}
}

// Softcap: the exponent of P in log2 units and the derivative of the capped score.
struct Softcap {
	float scale, cap;

	__device__ __forceinline__ explicit Softcap(const AttnBackwardParams &p) : scale(p.scale / p.softcap), cap(p.softcap * LOG2E) {}

	__device__ __forceinline__ float exponent(float score, float less, float &slope) const { return cappedExponent(score * scale, cap, less, slope); }
};

// P^T as computeP() and, with SCALE, scaleP() compute it, with a softcap. Returns P^T times the derivative in words:
// computeDS() takes it for P. With FLOAT_P it is in s, and P^T in words.
template <class T, bool SCALE, class Words> __device__ __forceinline__ void computeCappedP(float (&s)[T::BM / 2], Words &&words, uint32_t lse, const Softcap &softcap) {
#pragma unroll
	for (int j = 0; j < T::BM / 8; j++) {
		const float2 less = loadSharedPair(lse + 32 * j), factor = SCALE ? loadSharedPair(lse + 4 * T::BM + 32 * j) : float2{1, 1};
#pragma unroll
		for (int r = 0; r < 2; r++) {
			const int i = 4 * j + 2 * r;
			float slope[2];
			s[i] = exp2Approx(softcap.exponent(s[i], less.x, slope[0])) * factor.x;
			s[i + 1] = exp2Approx(softcap.exponent(s[i + 1], less.y, slope[1])) * factor.y;
			if constexpr (T::FLOAT_P) {
				setWord(words, i / 2, pack<BF16>(s[i], s[i + 1]));
				s[i] *= slope[0], s[i + 1] *= slope[1];
			} else {
				setWord(words, i / 2, pack<BF16>(s[i] * slope[0], s[i + 1] * slope[1]));
			}
		}
	}
}
