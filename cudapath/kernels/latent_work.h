// How CTAs of latent.cu share the keys of all sequences.
//
// The KV tiles of all sequences form one list, which is cut into parts of equal size: each CTA has a part and a row tile, and
// all CTAs take equally long whatever the lengths, which the host does not know. A part has one or more pieces, each of one
// sequence. A sequence that lies in several parts has a partial state in the workspace for each of them, which the combine
// kernel adds up in the order of the parts. If the longest part grows by little, parts end with sequences: there are fewer states then,
// and a CTA has one piece. Which parts there are depends on the lengths and the number of CTAs alone.
//
// Row i of a sequence is query i / Hq of head i % Hq. A row tile has 64 of them.
//
// With token lists each query is a sequence of its own: of one query, whose keys are the entries of its list. A list with offsets
// is a part of its own: only the device knows lengths, and a sum over those of all rows would take longer than it saves.
#pragma once
#include "backward_sequence.h"
#include "latent_tile.h"
#include "sm90_backward.h"

__device__ __forceinline__ int clampLatent(int n, int most) { return max(min(n, most), 0); }

// The keys to which a query attends, from the first on.
__device__ __forceinline__ int latentKeysOf(int query, int right, int used) { return max(min(query + right + 1, used), 0); }

// A sequence: its rows and keys, and which of them attend to each other. The host limits lengths to 2^29.
struct LatentSequence {
	int batch;
	Extent rows, keys;
	int right; // row r attends to keys [0, r + right] of those in use. With token lists there is one row, which attends to all in use

	// Sequence `at` of those that have tiles.
	__device__ __forceinline__ LatentSequence(const AttnLatentParams &p, int at) {
		batch = LatentTile::TOKENS ? batchOf(p, at) : at;
		rows = Extent::of(p.cu_q, p.used_q, batch, p.total_q, p.Sq, clampLatent);
		keys = keysOf(p, batch);
		right = min(p.right, 1 << 29) + (p.bottom_right ? keys.used - rows.used : 0);
		if (LatentTile::TOKENS) {
			const int query = p.cu_q != 0 ? at - rows.first : at - batch * p.Sq;
			const bool there = query >= 0 && query < rows.used;
			rows.first += query, rows.used = there, keys.used = there ? latentKeysOf(query, right, keys.used) : 0, right = 1 << 29;
		}
	}
	// The sequence of a query: of packed rows the last one that begins at it or before it.
	static __device__ __forceinline__ int batchOf(const AttnLatentParams &p, int query) {
		if (p.cu_q == 0) return query / p.Sq;
		int low = 0, high = p.B - 1;
		while (low < high) {
			const int middle = (low + high + 1) / 2;
			if (reinterpret_cast<const int32_t *>(p.cu_q)[middle] <= query) low = middle;
			else high = middle - 1;
		}
		return low;
	}
	static __device__ __forceinline__ Extent keysOf(const AttnLatentParams &p, int batch) {
		return Extent::of(p.cu_k, p.used_k, batch, p.total_k, p.Sk, clampLatent);
	}
	// The entries of the list of query `at`. Without offsets `first` is not used.
	static __device__ __forceinline__ Extent listOf(const AttnLatentParams &p, int at) {
		if (!LatentTile::OFFSETS) return {0, p.topk, p.topk};
		const int *offsets = reinterpret_cast<const int *>(p.offsets) + at;
		const int first = clampLatent(offsets[0], p.entries), n = max(clampLatent(offsets[1], p.entries) - first, 0);
		return {first, n, n};
	}
	// KV tiles in the list. A sequence without keys has one too, so that a part stores its O.
	static __device__ __forceinline__ int tilesOf(int keys) { return max((keys + LatentTile::KEYS - 1) / LatentTile::KEYS, 1); }
	static __device__ __forceinline__ int tilesOf(const AttnLatentParams &p, int at) { return tilesOf(LatentTile::TOKENS ? listOf(p, at).used : keysOf(p, at).used); }
	static __device__ __forceinline__ int count(const AttnLatentParams &p) {
		return !LatentTile::TOKENS ? p.B : p.cu_q != 0 ? p.total_q : p.B * p.Sq;
	}
};

__device__ __forceinline__ int latentRowTiles(const AttnLatentParams &p) { return ((LatentTile::TOKENS ? 1 : p.Sq) * p.Hq + LatentTile::ROWS - 1) / LatentTile::ROWS; }

// The sum of a number over sequences [0, end). All lanes of a warp call it.
template <class Number> __device__ __forceinline__ int latentSum(int end, Number number) {
	int sum = 0;
#pragma unroll 4
	for (int at = threadIdx.x % 32; at < end; at += 32) sum += number(at);
#pragma unroll
	for (int n = 16; n > 0; n /= 2) sum += __shfl_xor_sync(~0u, sum, n);
	return sum;
}

// The KV tiles of sequences [0, end).
__device__ __forceinline__ int latentTilesBefore(const AttnLatentParams &p, int end) {
	if (LatentTile::TOKENS) return end * LatentSequence::tilesOf(p.topk);
	return latentSum(end, [&](int at) { return LatentSequence::tilesOf(p, at); });
}

// The division of the tiles of all sequences into parts. All lanes of a warp make it.
struct LatentParts {
	static constexpr int LEAST = 2; // tiles of a part: a state takes the combine kernel as long as half a tile
	int count;
	int target;       // 0, or parts end with sequences: a sequence has a part for each `target` tiles, rounded
	int unit;         // otherwise parts consist of units, a tile or a list:
	int each, longer; // the first `longer` have one more than the others

	__device__ __forceinline__ LatentParts(const AttnLatentParams &p) {
		if (LatentTile::OFFSETS) {
			count = LatentSequence::count(p), target = 0, unit = each = 1, longer = 0;
			return;
		}
		const int sequences = LatentSequence::count(p), total = latentTilesBefore(p, sequences);
		count = min(p.parts, max(total / LEAST, 1));
		unit = LatentTile::TOKENS && p.whole ? LatentSequence::tilesOf(p.topk) : 1;
		each = total / unit / count, longer = total / unit % count, target = 0;
		if (LatentTile::TOKENS || total == 0) return;
		target = (total + count - 1) / count;
		const int most = target + target / 16; // tiles of a part that ends with its sequence
		const int ended = latentSum(sequences, [&](int at) { const int n = LatentSequence::tilesOf(p, at), parts = partsOf(n); return (n + parts - 1) / parts > most ? p.parts + 1 : min(parts, p.parts + 1); });
		if (ended > p.parts) target = 0;
		else count = ended;
	}
	__device__ __forceinline__ int partsOf(int tiles) const { return max((2 * tiles + target) / (2 * target), 1); }
	__device__ __forceinline__ int firstOf(int part) const { return (part * each + min(part, longer)) * unit; }
	__device__ __forceinline__ int partOf(int tile) const {
		const int at = tile / unit, inLonger = longer * (each + 1);
		return at < inLonger ? at / (each + 1) : longer + (at - inLonger) / each;
	}
	// The parts of a sequence.
	__device__ __forceinline__ Span of(const AttnLatentParams &p, int at) const {
		const int tiles = LatentSequence::tilesOf(p, at);
		if (target == 0) {
			const int begin = latentTilesBefore(p, at);
			return {partOf(begin), partOf(begin + tiles - 1) + 1};
		}
		const int begin = latentSum(at, [&](int before) { return partsOf(LatentSequence::tilesOf(p, before)); });
		return {begin, begin + partsOf(tiles)};
	}
	// The end of the parts of a sequence that begins in a part, after `before` tiles of other sequences.
	__device__ __forceinline__ int endOf(int part, int before, int tiles) const { return target == 0 ? partOf(before + tiles - 1) + 1 : part + partsOf(tiles); }
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
	return reinterpret_cast<float *>(p.lse) + (p.cu_q != 0 ? int64_t(head) * p.total_q + firstRow : (int64_t(batch) * p.Hq + head) * p.Sq + firstRow) + query;
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

// What the combine kernel knows of a sequence that lies in several parts, 32 bytes in the workspace behind all states. Where sequences
// are few it computes this itself, before the main kernel has ended: at 8 sequences a split costs 1 us, at 128 it saves 18 (H200). Split n
// is of sequence n. If there are more sequences than parts, it is of the one that begins in part n and goes on in the next, the last of the part.
struct LatentSplit {
	static constexpr int FIELDS = LatentPiece::RIGHT + 1 - LatentPiece::BATCH; // of its piece, and the end of its parts, 0 if it lies in one
	static constexpr int FIRST = LatentPiece::ROW_TILE;                        // has the first of its parts
	static_assert(FIELDS == 7, "latentSplitBytes in latent.go");
	int *at;
	__device__ __forceinline__ LatentSplit(const AttnLatentParams &p, int n) : at(reinterpret_cast<int *>(LatentState(p, 2 * p.parts, 0).at) + (FIELDS + 1) * n) {}
	static __device__ __forceinline__ bool used(const AttnLatentParams &p) { return !LatentTile::TOKENS && 3 * int64_t(p.B) >= p.parts; }
	static __device__ __forceinline__ bool ofParts(const AttnLatentParams &p) { return LatentSequence::count(p) > p.parts; }
	__device__ __forceinline__ int operator[](int field) const { return at[field - LatentPiece::BATCH]; }
	__device__ __forceinline__ int end() const { return at[FIELDS]; }
	__device__ __forceinline__ void setNone() const { at[FIELDS] = 0; }
	// A warp does it.
	__device__ __forceinline__ void set(const LatentPiece &piece, int part, int end) const {
		const int lane = threadIdx.x % 32, field = LatentPiece::BATCH + lane;
		if (lane <= FIELDS) at[lane] = lane == FIELDS ? end : field == FIRST ? part : piece[field];
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

// Copies rows of fp8_ds_mla (latent_convert.h).
__device__ __forceinline__ void copyLatentRows(const AttnLatentParams &p, uint32_t shared, const LatentPiece &w, Ring<LatentTile::STAGES> &k, int half);

// Lists the pieces of a CTA in shared memory. A warp does it, which also copies half of the rows of fp8_ds_mla of each.
__device__ __forceinline__ void listLatentPieces(const AttnLatentParams &p, uint32_t shared) {
	using T = LatentTile;
	const int lane = threadIdx.x % 32, rowTiles = latentRowTiles(p);
	const LatentParts parts(p);
	Ring<T::PIECES> ring;
	Ring<T::STAGES> k;
	auto begin = [&] {
		barrierWait(shared + T::PIECE_EMPTY + 8 * ring.stage, ring.parity ^ 1);
		return LatentPiece{shared + T::PIECE + ring.stage * T::PIECE_BYTES};
	};
	auto end = [&] {
		if (lane == 0) barrierArrive(shared + T::PIECE_FULL + 8 * ring.stage);
		__syncwarp();
		ring.advance();
	};
	const bool splits = p.partial != 0 && LatentSplit::used(p), ofParts = LatentSplit::ofParts(p);
	for (int part = parts.count + lane; splits && ofParts && blockIdx.x == 0 && part < p.parts; part += 32) LatentSplit(p, part).setNone();
	for (int unit = blockIdx.x; unit < rowTiles * parts.count; unit += gridDim.x) {
		// Row tiles of the same keys are neighbors, so that K of the second comes from L2.
		const int rowTile = unit % rowTiles, part = unit / rowTiles;
		int last = parts.firstOf(part + 1), at = parts.target == 0 ? parts.firstOf(part) : part, batch = 0, before = 0; // before: tiles of sequences [0, batch)
		if (parts.target == 0 && at == last) {
			if (splits && ofParts && rowTile == 0) LatentSplit(p, part).setNone();
			continue;
		}
		// Finds the sequence of tile `at`, or of part `at`.
		if (T::OFFSETS) batch = part, at = 0, last = LatentSequence::tilesOf(p, batch);
		else if (T::TOKENS) batch = at / LatentSequence::tilesOf(p.topk), before = latentTilesBefore(p, batch);
		for (; !T::TOKENS; batch += 32) {
			int mine = batch + lane < p.B ? LatentSequence::tilesOf(p, batch + lane) : 0;
			if (parts.target != 0 && mine > 0) mine = parts.partsOf(mine);
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
		if (parts.target != 0) {
			const int tiles = LatentSequence::tilesOf(p, batch), n = parts.partsOf(tiles), i = at - before;
			at = int(int64_t(tiles) * i / n), last = int(int64_t(tiles) * (i + 1) / n), before = 0; // of this sequence
		}
		while (at < last) {
			const LatentSequence of(p, batch);
			const int tiles = LatentSequence::tilesOf(p, batch), first = at - before, until = min(last - before, tiles);
			const int row = rowTile * T::ROWS, low = row / p.Hq, high = min((row + T::ROWS - 1) / p.Hq, of.rows.used - 1);
			const int whole = latentKeysOf(low, of.right, of.keys.used), any = low <= high ? latentKeysOf(high, of.right, of.keys.used) : 0;
			const LatentPiece piece = begin();
			if (lane == 0) {
				piece.set(LatentPiece::STEPS, T::TOKENS ? (any > 0 ? until - first : 0) : max(min(until, (any + T::KEYS - 1) / T::KEYS) - first, 0));
				piece.set(LatentPiece::MASKED, max(whole / T::KEYS - first, 0));
				piece.set(LatentPiece::FIRST_KEY, first * T::KEYS);
				piece.set(LatentPiece::WHOLE, whole), piece.set(LatentPiece::ANY, any);
				piece.set(LatentPiece::BATCH, of.batch);
				piece.set(LatentPiece::ROW_TILE, rowTile);
				piece.set(LatentPiece::FIRST_ROW, of.rows.first), piece.set(LatentPiece::ROWS, of.rows.used);
				piece.set(LatentPiece::FIRST_KEY_ROW, of.keys.first), piece.set(LatentPiece::KEYS, of.keys.used);
				piece.set(LatentPiece::RIGHT, of.right);
				piece.set(LatentPiece::SLOT, first == 0 && until == tiles ? -1 : 2 * part + (first == 0));
			}
			end();
			if constexpr (T::FP8) copyLatentRows(p, shared, piece, k, 0);
			at = before + until;
			if (splits && rowTile == 0 && (ofParts ? at == last : first == 0)) LatentSplit(p, ofParts ? part : batch).set(piece, part, first == 0 && until < tiles ? parts.endOf(part, before, tiles) : 0);
			if (until == tiles) batch++, before += tiles;
		}
	}
	const LatentPiece piece = begin();
	if (lane == 0) piece.set(LatentPiece::STEPS, -1);
	end();
}
