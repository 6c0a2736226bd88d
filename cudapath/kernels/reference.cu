// The validation kernel: plain attention for any head dims, strides and sizes, in float32 arithmetic on inputs
// widened from the storage type. It uses natural exponentials and an exact row max in every tile.
//
// A CTA of 16 x 16 threads owns 64 query rows of one head and loops over KV tiles of 64 keys. Each thread keeps
// 4 x 4 scores and 4 rows x 8 columns of O in registers. Shared memory holds 32 dims of the Q and K tiles, then
// P of the tile, then 32 keys of V. A __syncthreads precedes and follows every load into shared memory. For Dv
// above 128 the kernel makes one pass over the keys per 128 columns of V, and each pass computes the scores
// again.
//
// The causal mask is a run-time parameter: causal_offset is INT32_MAX without a mask.
//
// The build compiles this file once per type: ELEMENT is the storage type, ENTRY the name of the kernel.
#include "attn.h"
#include "element.h"

// Rows and keys of a tile; columns of O per pass; dims of Q and K, or keys of V, per load.
constexpr int Tile = 64, Slice = 128, Depth = 32;

// Returns element [row, dim] of a head's matrix, 0 outside of the matrix.
__device__ inline float element(const ELEMENT *m, int64_t stride, int row, int rows, int dim, int dims) {
	return row < rows && dim < dims ? widen(m[row * stride + dim]) : 0;
}

extern "C" __global__ void __launch_bounds__(256) ENTRY(const __grid_constant__ AttnParams p) {
	__shared__ float part[2][Depth][Tile + 4]; // Q and K, transposed: [dim][row]; reused for V: [key][dim]
	__shared__ float weight[Tile][Tile + 4];   // P, transposed: [key][row]
	auto values = reinterpret_cast<float(*)[Slice]>(part);
	static_assert(sizeof(part) >= Depth * Slice * sizeof(float), "");

	const int x = threadIdx.x % 16, y = threadIdx.x / 16;
	const int head = blockIdx.y, batch = blockIdx.z, kv = head / (p.Hq / p.Hkv);
	const int first = blockIdx.x * Tile;
	const ELEMENT *q = (const ELEMENT *)p.q.base + batch * p.q.batch + head * p.q.head;
	const ELEMENT *k = (const ELEMENT *)p.k.base + batch * p.k.batch + kv * p.k.head;
	const ELEMENT *v = (const ELEMENT *)p.v.base + batch * p.v.batch + kv * p.v.head;
	ELEMENT *o = (ELEMENT *)p.o.base + batch * p.o.batch + head * p.o.head;

	// The thread has rows y * 4 + i of the tile. Row i attends to keys [0, end[i]).
	int end[4];
	for (int i = 0; i < 4; i++) {
		end[i] = int(max(min(int64_t(first) + y * 4 + i + p.causal_offset + 1, int64_t(p.Sk)), int64_t(0)));
	}
	const int columns = int(max(min(int64_t(first) + Tile + p.causal_offset, int64_t(p.Sk)), int64_t(0)));

	for (int slice = 0; slice < p.Dv; slice += Slice) {
		float acc[4][8] = {}, top[4], sum[4] = {};
		for (int i = 0; i < 4; i++) top[i] = -INFINITY;

		for (int col = 0; col < columns; col += Tile) {
			float s[4][4] = {};
			for (int d = 0; d < p.D; d += Depth) {
				__syncthreads();
				for (int i = threadIdx.x; i < Tile * Depth; i += 256) {
					part[0][i % Depth][i / Depth] = element(q, p.q.row, first + i / Depth, p.Sq, d + i % Depth, p.D);
					part[1][i % Depth][i / Depth] = element(k, p.k.row, col + i / Depth, p.Sk, d + i % Depth, p.D);
				}
				__syncthreads();
				for (int e = 0; e < Depth; e++) {
					const float4 a = *(const float4 *)&part[0][e][y * 4], b = *(const float4 *)&part[1][e][x * 4];
					const float rows[4] = {a.x, a.y, a.z, a.w}, cols[4] = {b.x, b.y, b.z, b.w};
					for (int i = 0; i < 4; i++)
						for (int j = 0; j < 4; j++) s[i][j] += rows[i] * cols[j];
				}
			}

			// Online softmax. The thread has keys x * 4 + j of the tile; 16 threads reduce each row by shuffles.
			for (int i = 0; i < 4; i++) {
				float most = top[i];
				for (int j = 0; j < 4; j++) {
					s[i][j] = col + x * 4 + j < end[i] ? s[i][j] * p.scale : -INFINITY;
					most = fmaxf(most, s[i][j]);
				}
				for (int lane = 1; lane < 16; lane *= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, lane));
				const float shift = most == -INFINITY ? 0 : most;
				const float factor = top[i] == -INFINITY ? 1 : expf(top[i] - shift); // 1: O and the sum are still 0
				top[i] = most;
				sum[i] *= factor;
				for (int n = 0; n < 8; n++) acc[i][n] *= factor;
				for (int j = 0; j < 4; j++) {
					const float w = expf(s[i][j] - shift);
					sum[i] += w;
					weight[x * 4 + j][y * 4 + i] = w;
				}
			}

			for (int c = 0; c < Tile; c += Depth) {
				__syncthreads();
				for (int i = threadIdx.x; i < Depth * Slice; i += 256) {
					values[i / Slice][i % Slice] = element(v, p.v.row, col + c + i / Slice, p.Sk, slice + i % Slice, p.Dv);
				}
				__syncthreads();
				for (int e = 0; e < Depth; e++) {
					const float4 a = *(const float4 *)&weight[c + e][y * 4];
					const float4 b = *(const float4 *)&values[e][x * 4], b2 = *(const float4 *)&values[e][64 + x * 4];
					const float w[4] = {a.x, a.y, a.z, a.w};
					const float vs[8] = {b.x, b.y, b.z, b.w, b2.x, b2.y, b2.z, b2.w};
					for (int i = 0; i < 4; i++) {
						if (col + c + e < end[i]) { // skip masked keys: 0 * NaN would be NaN
							for (int n = 0; n < 8; n++) acc[i][n] += w[i] * vs[n];
						}
					}
				}
			}
		}

		for (int i = 0; i < 4; i++) {
			for (int lane = 1; lane < 16; lane *= 2) sum[i] += __shfl_xor_sync(~0u, sum[i], lane);
			const int row = first + y * 4 + i;
			if (row >= p.Sq) {
				continue;
			}
			for (int n = 0; n < 8; n++) {
				const int d = slice + n / 4 * 64 + x * 4 + n % 4;
				if (d < p.Dv) narrow(&o[row * p.o.row + d], sum[i] == 0 ? 0 : acc[i][n] / sum[i]);
			}
			if (p.lse && slice == 0 && x == 0) {
				((float *)p.lse)[(int64_t(batch) * p.Hq + head) * p.Sq + row] = sum[i] == 0 ? -INFINITY : top[i] + logf(sum[i]);
			}
		}
	}
}
