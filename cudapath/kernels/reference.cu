// The validation kernel: plain attention with any head dims, strides and sizes, float32
// arithmetic on values widened from the storage type, natural exponentials, and an exact
// row max for every tile.
//
// A CTA of 16 x 16 threads owns 64 rows of one head and loops over tiles of 64 columns. A
// thread has 4 x 4 scores, which go to shared memory as P, and O of 4 rows x 8 columns of
// V. Head dims of V over 128 are computed 128 at a time, with scores computed again. The
// causal mask is a run-time parameter: causal_offset is INT32_MAX without a mask.
//
// Compiled once for each type: ELEMENT is the storage type, ENTRY the name of the kernel.
#include "attn.h"
#include "element.h"

constexpr int Tile = 64, Slice = 128, Depth = 32; // rows and columns, dims of V, dims of Q and K at a time

// Element [row, dim] of a head's matrix, 0 outside of it.
__device__ inline float element(const ELEMENT *m, int64_t stride, int row, int rows, int dim, int dims) {
	return row < rows && dim < dims ? widen(m[row * stride + dim]) : 0;
}

extern "C" __global__ void __launch_bounds__(256) ENTRY(const __grid_constant__ AttnParams p) {
	__shared__ float part[2][Depth][Tile + 4]; // of Q and K, transposed; then of V
	__shared__ float weight[Tile][Tile + 4];   // P, transposed: [column][row]
	auto values = reinterpret_cast<float(*)[Slice]>(part);
	static_assert(sizeof(part) >= Depth * Slice * sizeof(float), "");

	const int x = threadIdx.x % 16, y = threadIdx.x / 16;
	const int head = blockIdx.y, batch = blockIdx.z, kv = head / (p.Hq / p.Hkv);
	const int first = blockIdx.x * Tile;
	const ELEMENT *q = (const ELEMENT *)p.q.base + batch * p.q.batch + head * p.q.head;
	const ELEMENT *k = (const ELEMENT *)p.k.base + batch * p.k.batch + kv * p.k.head;
	const ELEMENT *v = (const ELEMENT *)p.v.base + batch * p.v.batch + kv * p.v.head;
	ELEMENT *o = (ELEMENT *)p.o.base + batch * p.o.batch + head * p.o.head;

	// Rows are y * 4 + i. Row i attends to columns [0, end[i]).
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

			// Columns are x * 4 + j: the 16 threads of a row share it.
			for (int i = 0; i < 4; i++) {
				float most = top[i];
				for (int j = 0; j < 4; j++) {
					s[i][j] = col + x * 4 + j < end[i] ? s[i][j] * p.scale : -INFINITY;
					most = fmaxf(most, s[i][j]);
				}
				for (int lane = 1; lane < 16; lane *= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, lane));
				const float shift = most == -INFINITY ? 0 : most;
				const float factor = top[i] == -INFINITY ? 1 : expf(top[i] - shift); // 1: nothing to rescale yet
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
						if (col + c + e < end[i]) { // V of a masked slot is ignored
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
