// How CTAs of latent.cu share the keys of all sequences.
//
// The KV tiles of all sequences form one list, which is cut into parts of equal size: each CTA has a part and a row tile, and
// all CTAs take equally long whatever the lengths, which the host does not know. A part has one or more pieces, each of one
// sequence. A sequence that lies in several parts has a partial state in the workspace for each of them, which the combine
// kernel adds up in the order of the parts. Which parts there are depends on the lengths and the number of CTAs alone.
//
// Row i of a sequence is query i / Hq of head i % Hq. A row tile has 64 of them.
#pragma once
#include "backward_sequence.h"
#include "latent_tile.h"
#include "sm90_backward.h"

__device__ __forceinline__ int clampLatent(int n, int most) { return max(min(n, most), 0); }

// A sequence: its rows and keys, and which of them attend to each other. The host limits lengths to 2^29.
struct LatentSequence {
	Extent rows, keys;
	int right; // row r attends to keys [0, r + right] of those in use

	__device__ __forceinline__ LatentSequence(const AttnLatentParams &p, int batch) {
		rows = Extent::of(p.cu_q, p.used_q, batch, p.total_q, p.Sq, clampLatent);
		keys = keysOf(p, batch);
		right = min(p.right, 1 << 29) + (p.bottom_right ? keys.used - rows.used : 0);
	}
	static __device__ __forceinline__ Extent keysOf(const AttnLatentParams &p, int batch) {
		return Extent::of(p.cu_k, p.used_k, batch, p.total_k, p.Sk, clampLatent);
	}
	// KV tiles in the list. A sequence without keys has one too, so that a part stores its O.
	static __device__ __forceinline__ int tilesOf(const Extent &keys) { return max((keys.used + LatentTile::KEYS - 1) / LatentTile::KEYS, 1); }
};

// The keys to which a query attends, from the first on.
__device__ __forceinline__ int latentKeysOf(int query, int right, int used) { return max(min(query + right + 1, used), 0); }

// The KV tiles of sequences [0, end). All lanes of a warp call it.
__device__ __forceinline__ int latentTilesBefore(const AttnLatentParams &p, int end) {
	int sum = 0;
	for (int b = threadIdx.x % 32; b < end; b += 32) sum += LatentSequence::tilesOf(LatentSequence::keysOf(p, b));
#pragma unroll
	for (int n = 16; n > 0; n /= 2) sum += __shfl_xor_sync(~0u, sum, n);
	return sum;
}

__device__ __forceinline__ int latentRowTiles(const AttnLatentParams &p) { return (p.Sq * p.Hq + LatentTile::ROWS - 1) / LatentTile::ROWS; }

// The division of `total` tiles into parts: the first `longer` have a tile more than the others.
struct LatentParts {
	int each, longer;
	__device__ __forceinline__ LatentParts(const AttnLatentParams &p, int total) : each(total / p.parts), longer(total % p.parts) {}
	__device__ __forceinline__ int firstOf(int part) const { return part * each + min(part, longer); }
	__device__ __forceinline__ int partOf(int tile) const {
		const int inLonger = longer * (each + 1);
		return tile < inLonger ? tile / (each + 1) : longer + (tile - inLonger) / each;
	}
};

// A state in the workspace: O of the rows before it is divided by their sums, in the order of the accumulators, and row max and
// row sum. A part has two for each row tile: slot 2 part of a sequence that began in an earlier part, and slot 2 part + 1 of one
// that ends in a later part.
struct LatentState {
	static constexpr int FLOATS = LatentTile::ROWS * LatentTile::DV + 2 * LatentTile::ROWS;
	float *at;
	__device__ __forceinline__ LatentState(const AttnLatentParams &p, int slot, int rowTile)
		: at(reinterpret_cast<float *>(p.partial) + (int64_t(slot) * latentRowTiles(p) + rowTile) * FLOATS) {}
	// Four accumulators of a thread of warpgroup `half`: columns 8 j + 2 c and the next, of rows g and g + 8.
	__device__ __forceinline__ float4 *accumulators(int half, int j) const { return reinterpret_cast<float4 *>(at) + (half * 32 + j) * 128 + threadIdx.x % 128; }
	__device__ __forceinline__ float *top(int row) const { return at + LatentTile::ROWS * LatentTile::DV + row; }
	__device__ __forceinline__ float *sum(int row) const { return top(row) + LatentTile::ROWS; }
};

// LSE of row r with a row sum, as finish() of fa3_consume.h computes it.
__device__ __forceinline__ float lseOf(const AttnParams &p, const Rows &rows, int r, float sum, float scale) {
	if (rows.isFar(r, scale)) return fmaf(rows.top[r], fabsf(p.scale), logf(sum));
	const float rowMax = rows.rowMax(r, scale);
	return fmaf(rowMax, p.unit_high, fmaf(rowMax, p.unit_low, logf(sum)));
}

// LSE of a row, float32 [B, Hq, Sq], or [Hq, total_q] of packed rows.
__device__ __forceinline__ float *lseOfLatent(const AttnLatentParams &p, int batch, int firstRow, int query, int head) {
	return reinterpret_cast<float *>(p.lse) + (p.cu_q != 0 ? int64_t(head) * p.total_q + firstRow : (int64_t(batch) * p.Hq + head) * p.Sq) + query;
}

// A piece of a part: consecutive KV tiles of a sequence, for the rows of a row tile. It lies in shared memory, so that it takes
// no registers beside the accumulators. A field is loaded where it is used.
struct LatentPiece {
	uint32_t at;

	enum Field {
		STEPS,         // KV tiles; negative: there are no more pieces
		MASKED,        // the first step in which some row does not attend to a key
		FIRST_KEY,     // of the first step
		WHOLE, ANY,    // all rows of the tile attend to keys [0, WHOLE), none to keys from ANY on
		BATCH,
		ROW_TILE,
		FIRST_ROW, ROWS, // index of the sequence's first row in packed tensors, and its rows
		FIRST_KEY_ROW, KEYS,
		RIGHT,
		SLOT,  // of its state in the workspace; negative: it has all keys of the sequence
		FIELDS
	};
	static_assert(4 * FIELDS <= LatentTile::PIECE_BYTES, "piece");
	__device__ __forceinline__ int operator[](int field) const { return int(loadSharedWord(at + 4 * field)); }
	__device__ __forceinline__ void set(int field, int x) const { storeSharedWord(at + 4 * field, x); }
	__device__ __forceinline__ int keysOf(int query) const { return latentKeysOf(query, (*this)[RIGHT], (*this)[KEYS]); }
	// The last key that a row of the tile attends to; negative: none, as of rows that the sequence has not.
	__device__ __forceinline__ int lastKeyOf(const AttnLatentParams &p, int row) const {
		const int query = ((*this)[ROW_TILE] * LatentTile::ROWS + row) / p.Hq;
		return query < (*this)[ROWS] ? keysOf(query) - 1 : -1;
	}
};

// A reader of the ring of pieces. All lanes of a warp go through it.
struct LatentReader {
	uint32_t shared;
	Ring<LatentTile::PIECES> ring;
	__device__ __forceinline__ LatentPiece piece() const { return {shared + LatentTile::PIECE + ring.stage * LatentTile::PIECE_BYTES}; }
	// Waits for the next piece. Returns its steps.
	__device__ __forceinline__ int next() {
		barrierWait(shared + LatentTile::PIECE_FULL + 8 * ring.stage, ring.parity);
		return piece()[LatentPiece::STEPS];
	}
	__device__ __forceinline__ void release() {
		__syncwarp();
		if (threadIdx.x % 32 == 0) barrierArrive(shared + LatentTile::PIECE_EMPTY + 8 * ring.stage);
		ring.advance();
	}
};

// Lists the pieces of a CTA in shared memory. A warp does it.
__device__ __forceinline__ void listLatentPieces(const AttnLatentParams &p, uint32_t shared) {
	using T = LatentTile;
	const int lane = threadIdx.x % 32, total = latentTilesBefore(p, p.B), rowTiles = latentRowTiles(p);
	const LatentParts parts(p, total);
	Ring<T::PIECES> ring;
	auto begin = [&] {
		barrierWait(shared + T::PIECE_EMPTY + 8 * ring.stage, ring.parity ^ 1);
		return LatentPiece{shared + T::PIECE + ring.stage * T::PIECE_BYTES};
	};
	auto end = [&] {
		if (lane == 0) barrierArrive(shared + T::PIECE_FULL + 8 * ring.stage);
		__syncwarp();
		ring.advance();
	};
	for (int unit = blockIdx.x; unit < rowTiles * p.parts; unit += gridDim.x) {
		// Row tiles of the same keys are neighbors, so that K of the second comes from L2.
		const int rowTile = unit % rowTiles, part = unit / rowTiles, last = parts.firstOf(part + 1);
		int at = parts.firstOf(part), batch = 0, before = 0; // before: tiles of sequences [0, batch)
		if (at == last) continue;
		// Finds the sequence of tile `at`.
		for (;; batch += 32) {
			const int mine = batch + lane < p.B ? LatentSequence::tilesOf(LatentSequence::keysOf(p, batch + lane)) : 0;
			int sum = mine; // of lanes up to this one
#pragma unroll
			for (int n = 1; n < 32; n *= 2) {
				const int other = __shfl_up_sync(~0u, sum, n);
				if (lane >= n) sum += other;
			}
			int ended = before + sum <= at; // sequences of this round before the tile
#pragma unroll
			for (int n = 16; n > 0; n /= 2) ended += __shfl_xor_sync(~0u, ended, n);
			if (ended < 32) {
				before += __shfl_sync(~0u, sum - mine, ended);
				batch += ended;
				break;
			}
			before += __shfl_sync(~0u, sum, 31);
		}
		while (at < last) {
			const LatentSequence of(p, batch);
			const int tiles = LatentSequence::tilesOf(of.keys), first = at - before, until = min(last - before, tiles);
			const int row = rowTile * T::ROWS, low = row / p.Hq, high = min((row + T::ROWS - 1) / p.Hq, of.rows.used - 1);
			const int whole = latentKeysOf(low, of.right, of.keys.used), any = low <= high ? latentKeysOf(high, of.right, of.keys.used) : 0;
			const LatentPiece piece = begin();
			if (lane == 0) {
				piece.set(LatentPiece::STEPS, max(min(until, (any + T::KEYS - 1) / T::KEYS) - first, 0));
				piece.set(LatentPiece::MASKED, max(whole / T::KEYS - first, 0));
				piece.set(LatentPiece::FIRST_KEY, first * T::KEYS);
				piece.set(LatentPiece::WHOLE, whole), piece.set(LatentPiece::ANY, any);
				piece.set(LatentPiece::BATCH, batch);
				piece.set(LatentPiece::ROW_TILE, rowTile);
				piece.set(LatentPiece::FIRST_ROW, of.rows.first), piece.set(LatentPiece::ROWS, of.rows.used);
				piece.set(LatentPiece::FIRST_KEY_ROW, of.keys.first), piece.set(LatentPiece::KEYS, of.keys.used);
				piece.set(LatentPiece::RIGHT, of.right);
				piece.set(LatentPiece::SLOT, first == 0 && until == tiles ? -1 : 2 * part + (first == 0));
			}
			end();
			at = before + until;
			if (until == tiles) batch++, before += tiles;
		}
	}
	const LatentPiece piece = begin();
	if (lane == 0) piece.set(LatentPiece::STEPS, -1);
	end();
}
