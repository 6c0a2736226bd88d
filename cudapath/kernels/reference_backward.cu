// The validation kernels of the backward pass: gradients of plain attention for any head dims up to 256, any
// strides and sizes, in float32 arithmetic on inputs widened from the storage type.
//
//   stats   a CTA owns 64 rows of a query head and stores LSE, delta = rowsum(dO * O) and dLSE
//   dq      a CTA owns 64 rows of a query head and loops over tiles of 64 keys
//   dkdv    a CTA owns 64 keys of a KV head. It loops over the query heads of the group, and for each of them
//           over tiles of 64 rows
//
// A CTA has 16 x 16 threads. Each thread keeps 4 x 4 elements of S and dP and 4 rows x 8 columns of a gradient in
// registers. Shared memory holds 16 dims of two matrices for S and dP, then P and dS of the tile, then 16 rows of
// the matrix they multiply. A __syncthreads precedes and follows every load into shared memory. For head dims
// above 128 a kernel makes one pass per 128 columns of the gradient, and each pass computes S and dP again. All
// three kernels compute S and dP by the same function, so P has the same bits in each.
//
// Rounding an LSE of 10,000 to float32 changes it by up to 0.0005, and every P of the row by the same fraction.
// Where a tile has a row with a large |LSE|, stats therefore makes a pass over the keys. It computes
// rest = log(sum of exp(S - LSE)) and delta = sum of P dP of all its rows, and P becomes exp(S - LSE - rest). In rows whose
// LSE is small, terms as large may have cancelled, and forward may have added them in another order. An LSE of more keys than
// the call has, as in ring attention, is taken as it is.
//
// With seqused a sequence may use fewer rows and keys than it has in the tensors. Gradients past the used length
// are 0.
//
// The build compiles this file once per type: ELEMENT is the storage type, TYPE its name in the entries.
#include "attn_backward.h"
#include "element.h"

#define JOIN(a, b, c, d) a##b##c##d
#define NAME(type, step) JOIN(attn_ref_, type, _backward_, step)
#define ENTRY(step) extern "C" __global__ void __launch_bounds__(256) NAME(TYPE, step)(const __grid_constant__ AttnBackwardParams p)

// Rows and keys of a tile; columns of a gradient per pass; dims or rows per load.
constexpr int Tile = 64, Slice = 128, Depth = 16;
constexpr int Threads = 256;
// From this |LSE| on, rounding LSE costs as much as rounding a product to the storage type.
constexpr float LargeLSE = sizeof(ELEMENT) == 2 ? 256 : 16;

typedef float ProbTile[Tile][Tile + 4];
typedef float Part[2][Depth][Tile + 4]; // two matrices, transposed: [dim][row]; reused for Depth rows of Slice columns
static_assert(sizeof(Part) >= Depth * Slice * sizeof(float), "");

struct RowStats { float lse, rest, delta, dLSE; };

// One head of a tensor. Elements outside of [rows, dims] read as 0.
struct Matrix {
	const ELEMENT *first;
	int64_t stride;
	int rows, dims;
	__device__ float at(int64_t row, int dim) const { return row < rows && dim < dims ? widen(first[row * stride + dim]) : 0; }
};

// The rows of a sequence in its tensors: index of the first, number of rows, and number of rows in use.
struct Range { int first, extent, used; };

__device__ inline int clamped(int n, int most) { return n < 0 ? 0 : n < most ? n : most; }

__device__ inline Range rangeOf(uint64_t cu, uint64_t used, int b, int total, int most) {
	Range r = {0, most, most};
	if (cu) {
		r.first = clamped(((const int32_t *)cu)[b], total);
		const int end = clamped(((const int32_t *)cu)[b + 1], total);
		r.extent = end > r.first ? end - r.first : 0;
		r.used = r.extent < most ? r.extent : most;
	}
	if (used) r.used = clamped(((const int32_t *)used)[b], r.used);
	return r;
}

// One query head of a sequence with its KV head.
struct Head {
	Range rows, keys;
	int64_t left, right; // row r attends to keys [r - left, r + right]
	Matrix q, k, v, o, dO;
	int64_t firstStat;   // index of row 0 in LSE, dLSE and stats
};

__device__ inline const ELEMENT *baseOf(const AttnTensor &t, bool packed, int b, int head, int first) {
	return (const ELEMENT *)t.base + (packed ? 0 : b) * t.batch + head * t.head + first * t.row;
}

__device__ inline Head headOf(const AttnBackwardParams &p, int b, int head) {
	Head h;
	h.rows = rangeOf(p.cu_q, p.used_q, b, p.total_q, p.Sq);
	h.keys = rangeOf(p.cu_k, p.used_k, b, p.total_k, p.Sk);
	const int64_t offset = p.bottom_right ? int64_t(h.keys.used) - h.rows.used : 0;
	h.left = p.left - offset;
	h.right = p.right + offset;
	const int kv = head / (p.Hq / p.Hkv);
	h.q = {baseOf(p.q, p.cu_q, b, head, h.rows.first), p.q.row, h.rows.used, p.D};
	h.o = {baseOf(p.o, p.cu_q, b, head, h.rows.first), p.o.row, h.rows.used, p.Dv};
	h.dO = {baseOf(p.dO, p.cu_q, b, head, h.rows.first), p.dO.row, h.rows.used, p.Dv};
	h.k = {baseOf(p.k, p.cu_k, b, kv, h.keys.first), p.k.row, h.keys.used, p.D};
	h.v = {baseOf(p.v, p.cu_k, b, kv, h.keys.first), p.v.row, h.keys.used, p.Dv};
	h.firstStat = p.cu_q ? int64_t(head) * p.total_q + h.rows.first : (int64_t(b) * p.Hq + head) * p.Sq;
	return h;
}

// Key tiles [first, end) that rows row to row + 63 attend to.
struct Span { int first, end; };

__device__ inline Span keyTiles(const Head &h, int64_t row) {
	const int64_t last = min(row + Tile, int64_t(h.rows.used)) - 1; // less than row if no row of the tile is in use
	const int64_t from = max(row - h.left, int64_t(0)), to = min(last + h.right + 1, int64_t(h.keys.used));
	if (last < row || to <= from) return {0, 0};
	return {int(from / Tile), int((to + Tile - 1) / Tile)};
}

// Row tiles [first, end) that attend to keys key to key + 63.
__device__ inline Span rowTiles(const Head &h, int64_t key) {
	const int64_t last = min(key + Tile, int64_t(h.keys.used)) - 1;
	const int64_t from = max(key - h.right, int64_t(0)), to = min(last + h.left + 1, int64_t(h.rows.used));
	if (last < key || to <= from) return {0, 0};
	return {int(from / Tile), int((to + Tile - 1) / Tile)};
}

__device__ inline int threadX() { return threadIdx.x % 16; }
__device__ inline int threadY() { return threadIdx.x / 16; }

// s[i][j] = sum over d of a[row + 4 y + i][d] * b[key + 4 x + j][d], with d ascending.
__device__ inline void product(float (&s)[4][4], Part &part, const Matrix &a, int64_t row, const Matrix &b, int64_t key) {
	for (int i = 0; i < 4; i++)
		for (int j = 0; j < 4; j++) s[i][j] = 0;
	for (int d = 0; d < a.dims; d += Depth) {
		__syncthreads();
		for (int i = threadIdx.x; i < Tile * Depth; i += Threads) {
			part[0][i % Depth][i / Depth] = a.at(row + i / Depth, d + i % Depth);
			part[1][i % Depth][i / Depth] = b.at(key + i / Depth, d + i % Depth);
		}
		__syncthreads();
		for (int e = 0; e < Depth; e++) {
			const float *rows = &part[0][e][4 * threadY()], *keys = &part[1][e][4 * threadX()];
			for (int i = 0; i < 4; i++)
				for (int j = 0; j < 4; j++) s[i][j] = fmaf(rows[i], keys[j], s[i][j]);
		}
	}
}

// A thread's elements of a tile: P, dP and the derivative of the softcap. P is 0 where the row does not attend to
// the key.
struct Slots { float P[4][4], dP[4][4], slope[4][4]; };

__device__ inline void compute(Slots &s, const AttnBackwardParams &p, const Head &h, Part &part, const RowStats *stats, int64_t row, int64_t key) {
	product(s.P, part, h.q, row, h.k, key);
	product(s.dP, part, h.dO, row, h.v, key);
	for (int i = 0; i < 4; i++) {
		const RowStats t = stats[4 * threadY() + i];
		const int64_t r = row + 4 * threadY() + i;
		for (int j = 0; j < 4; j++) {
			const int64_t c = key + 4 * threadX() + j;
			const bool attends = r < h.rows.used && c < h.keys.used && c >= r - h.left && c <= r + h.right;
			s.slope[i][j] = 1;
			float exponent;
			if (p.softcap != 0) {
				const float y = s.P[i][j] * p.scale / p.softcap, e = expf(-2 * fabsf(y));
				exponent = p.softcap * tanhf(y) - t.lse;
				s.slope[i][j] = 4 * e / ((1 + e) * (1 + e)); // equals 1 - tanh(y)^2, which would cancel for large |y|
			} else if (fabsf(t.lse) < 8388608) {
				exponent = fmaf(s.P[i][j], p.scale, -t.lse);
			} else { // LSE is a rounded score here, so the score is rounded too: the exact difference may be hundreds
				exponent = __fmul_rn(s.P[i][j], p.scale) - t.lse;
			}
			s.P[i][j] = attends ? expf(exponent - t.rest) : 0;
		}
	}
}

// Returns dS without the factor scale. The tests for 0 keep a NaN or an infinity of dP out where P or the slope is 0.
__device__ inline float gradientOf(const Slots &s, int i, int j, const RowStats &t) {
	if (s.P[i][j] == 0) return 0;
	const float dX = s.P[i][j] * (s.dP[i][j] - t.delta + t.dLSE);
	return dX == 0 || s.slope[i][j] == 0 ? 0 : dX * s.slope[i][j];
}

// sum[i][n] += sum over c of P[c][4 y + i] * m[row + c][column n of the thread], with c ascending. P is the
// tile of P or dS in shared memory, which the caller has just stored. The first barrier makes it visible.
__device__ inline void add(float (&sum)[4][8], Part &part, const ProbTile &P, const Matrix &m, int64_t row, int slice) {
	auto values = reinterpret_cast<float(*)[Slice]>(&part);
	for (int c = 0; c < Tile; c += Depth) {
		__syncthreads();
		for (int i = threadIdx.x; i < Depth * Slice; i += Threads) {
			values[i / Slice][i % Slice] = m.at(row + c + i / Slice, slice + i % Slice);
		}
		__syncthreads();
		for (int e = 0; e < Depth; e++) {
			for (int i = 0; i < 4; i++) {
				const float w = P[c + e][4 * threadY() + i];
				if (w == 0) continue; // skip masked elements: 0 * NaN would be NaN
				for (int n = 0; n < 8; n++) {
					sum[i][n] = fmaf(w, values[e][n / 4 * 64 + 4 * threadX() + n % 4], sum[i][n]);
				}
			}
		}
	}
}

// Stores the thread's columns of rows row + 4 y to row + 4 y + 3 of a head's gradient, or adds to them.
__device__ inline void store(const AttnTensor &t, const AttnBackwardParams &p, bool packed, int b, int head, const Range &range, int64_t row, int slice, int dims,
	const float (&sum)[4][8], float scale) {
	ELEMENT *first = (ELEMENT *)baseOf(t, packed, b, head, range.first);
	for (int i = 0; i < 4; i++) {
		const int64_t r = row + 4 * threadY() + i;
		if (r >= range.extent || p.accumulate & 1 && r >= range.used) continue;
		for (int n = 0; n < 8; n++) {
			const int d = slice + n / 4 * 64 + 4 * threadX() + n % 4;
			if (d >= dims) continue;
			ELEMENT *to = &first[r * t.row + d];
			const float x = sum[i][n] * scale;
			narrow(to, p.accumulate & 1 ? widen(*to) + x : x);
		}
	}
}

// Loads the statistics of rows row to row + 63. Rows not in use get LSE = inf, so that their P is 0.
__device__ inline void load(RowStats *stats, const AttnBackwardParams &p, const Head &h, int64_t row) {
	__syncthreads(); // all threads have read the previous statistics
	if (threadIdx.x < Tile) {
		const int64_t r = row + threadIdx.x;
		stats[threadIdx.x] = r < h.rows.used ? ((const RowStats *)p.stats)[h.firstStat + r] : RowStats{INFINITY, 0, 0, 0};
	}
	__syncthreads();
}

ENTRY(stats) {
	__shared__ Part part;
	__shared__ float sums[2][Tile][16]; // row sums of P and of P dP, one of each per thread of the row
	__shared__ RowStats stats[Tile];
	__shared__ int anyLarge;

	const Head h = headOf(p, p.first + blockIdx.z, blockIdx.y);
	for (int64_t row = int64_t(blockIdx.x) * Tile; row < h.rows.used; row += int64_t(gridDim.x) * Tile) {
		__syncthreads(); // all threads have stored the previous rows
		if (threadIdx.x == 0) anyLarge = 0;
		__syncthreads();
		const int64_t r = row + threadIdx.x;
		const bool owns = threadIdx.x < Tile && r < h.rows.used;
		if (threadIdx.x < Tile) {
			RowStats s = {INFINITY, 0, 0, 0};
			const float lse = owns ? ((const float *)p.lse)[h.firstStat + r] : -INFINITY;
			if (lse != -INFINITY) { // a row that attends to no key ignores dO and dLSE
				s.lse = lse;
				// Same order as in product: if O is V of a single key, delta has the bits of dP.
				for (int d = 0; d < p.Dv; d++) s.delta = fmaf(h.dO.at(r, d), h.o.at(r, d), s.delta);
				if (p.dLSE) s.dLSE = ((const float *)p.dLSE)[h.firstStat + r];
				if (fabsf(lse) >= LargeLSE && fabsf(lse) < INFINITY && (p.accumulate & 2) == 0) anyLarge = 1;
			}
			stats[threadIdx.x] = s;
		}
		__syncthreads();
		if (anyLarge) {
			float sum[4] = {}, deltaSum[4] = {};
			const Span tiles = keyTiles(h, row);
			for (int tile = tiles.first; tile < tiles.end; tile++) {
				Slots s;
				compute(s, p, h, part, stats, row, int64_t(tile) * Tile);
				for (int i = 0; i < 4; i++)
					for (int j = 0; j < 4; j++) {
						sum[i] += s.P[i][j];
						if (s.P[i][j] != 0) deltaSum[i] = fmaf(s.P[i][j], s.dP[i][j], deltaSum[i]);
					}
			}
			for (int i = 0; i < 4; i++) {
				sums[0][4 * threadY() + i][threadX()] = sum[i];
				sums[1][4 * threadY() + i][threadX()] = deltaSum[i];
			}
			__syncthreads();
			if (threadIdx.x < Tile && fabsf(stats[threadIdx.x].lse) < INFINITY) {
				float all = 0, delta = 0;
				for (int i = 0; i < 16; i++) {
					all += sums[0][threadIdx.x][i];
					delta += sums[1][threadIdx.x][i];
				}
				if (all > 0 && all < INFINITY) {
					stats[threadIdx.x].rest = logf(all);
					stats[threadIdx.x].delta = delta / all;
				}
			}
		}
		if (owns) ((RowStats *)p.stats)[h.firstStat + r] = stats[threadIdx.x];
	}
}

ENTRY(dq) {
	__shared__ Part part;
	__shared__ ProbTile dS; // [key][row]
	__shared__ RowStats stats[Tile];

	const int b = p.first + blockIdx.z, head = blockIdx.y;
	const Head h = headOf(p, b, head);
	for (int64_t row = int64_t(blockIdx.x) * Tile; row < h.rows.extent; row += int64_t(gridDim.x) * Tile) {
		load(stats, p, h, row);
		const Span tiles = keyTiles(h, row);
		for (int slice = 0; slice < p.D; slice += Slice) {
			float sum[4][8] = {};
			for (int tile = tiles.first; tile < tiles.end; tile++) {
				const int64_t key = int64_t(tile) * Tile;
				Slots s;
				compute(s, p, h, part, stats, row, key);
				for (int i = 0; i < 4; i++)
					for (int j = 0; j < 4; j++) {
						dS[4 * threadX() + j][4 * threadY() + i] = gradientOf(s, i, j, stats[4 * threadY() + i]);
					}
				add(sum, part, dS, h.k, key, slice);
			}
			store(p.dQ, p, p.cu_q, b, head, h.rows, row, slice, p.D, sum, p.scale);
		}
	}
}

ENTRY(dkdv) {
	__shared__ Part part;
	__shared__ ProbTile P, dS; // [row][key]
	__shared__ RowStats stats[Tile];

	const int b = p.first + blockIdx.z, kv = blockIdx.y, group = p.Hq / p.Hkv;
	const Range keys = rangeOf(p.cu_k, p.used_k, b, p.total_k, p.Sk);
	const int columns = max(p.dK.base ? p.D : 0, p.dV.base ? p.Dv : 0);
	for (int64_t key = int64_t(blockIdx.x) * Tile; key < keys.extent; key += int64_t(gridDim.x) * Tile) {
		for (int slice = 0; slice < columns; slice += Slice) {
			float sumK[4][8] = {}, sumV[4][8] = {};
			const bool ofK = p.dK.base && slice < p.D, ofV = p.dV.base && slice < p.Dv;
			for (int g = 0; g < group; g++) {
				const Head h = headOf(p, b, kv * group + g);
				const Span tiles = rowTiles(h, key);
				for (int tile = tiles.first; tile < tiles.end; tile++) {
					const int64_t row = int64_t(tile) * Tile;
					load(stats, p, h, row);
					Slots s;
					compute(s, p, h, part, stats, row, key);
					for (int i = 0; i < 4; i++)
						for (int j = 0; j < 4; j++) {
							P[4 * threadY() + i][4 * threadX() + j] = s.P[i][j];
							dS[4 * threadY() + i][4 * threadX() + j] = gradientOf(s, i, j, stats[4 * threadY() + i]);
						}
					if (ofV) add(sumV, part, P, h.dO, row, slice);
					if (ofK) add(sumK, part, dS, h.q, row, slice);
				}
			}
			if (ofK) store(p.dK, p, p.cu_k, b, kv, keys, key, slice, p.D, sumK, p.scale);
			if (ofV) store(p.dV, p, p.cu_k, b, kv, keys, key, slice, p.Dv, sumV, 1);
		}
	}
}
