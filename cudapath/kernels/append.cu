// Appends rows to a KV cache of the storage type, and rotates rows: new K, V and Q in one launch. It computes what shaders/append.comp
// does, with the bits of tier cpu.
//
// A warp takes rows, and its lanes the pairs of the rotation and then the other elements. A lane loads all that it stores before it stores
// it, so that rows may be stored where they were loaded. There is no shared memory and no barrier. Numbers from memory are compared
// with the sizes of the tensors. Products are not contracted.
#include "attn_append.h"
#include "element.h"

constexpr int Warps = 8; // of a CTA, see append.json

// The last sequence that starts at or before a packed row; earlier ones with the same start are empty.
__device__ inline int sequence_of(const int32_t *first, int sequences, int row) {
	int low = 0, high = sequences;
	while (high - low > 1) {
		const int middle = (low + high) / 2;
		if (first[middle] <= row) low = middle;
		else high = middle;
	}
	return low;
}

__device__ inline float cos_sin(const AttnAppendParams &p, uint64_t from, int64_t i) {
	return p.cos_sin_of_type ? widen(((const ELEMENT *)from)[i]) : ((const float *)from)[i];
}

// Finds the position of a new row in its sequence, and where the cache has it. False if the row does not exist or is skipped.
__device__ inline bool find_row(const AttnAppendParams &p, const AttnAppendTask &t, int batch, int row, int64_t &position, int64_t &out_batch, int64_t &out_row) {
	int sequence = batch;
	position = out_row = row, out_batch = batch;
	if (t.lengths) {
		const int32_t *lengths = (const int32_t *)t.lengths;
		if (p.packed) {
			sequence = sequence_of(lengths, p.sequences, row);
			const int first = lengths[sequence];
			if (first < 0 || row < first || row >= lengths[sequence + 1]) return false;
			position -= first;
		} else if (row >= lengths[sequence]) {
			return false;
		}
	}
	if (t.at_used) position = 0;
	if (p.used) {
		const int used = ((const int32_t *)p.used)[sequence];
		if (used < 0) return false;
		position += used;
	}
	if (position >= t.limit) return false;
	if (!t.to_cache) return true;
	out_batch = sequence, out_row = position;
	if (!p.table) return true;
	out_batch = ((const int32_t *)p.table)[int64_t(sequence) * p.table_stride + position / p.page_rows];
	out_row = position % p.page_rows;
	return out_batch >= 0 && out_batch < p.pages;
}

extern "C" __global__ void __launch_bounds__(Warps * 32) ENTRY(const __grid_constant__ AttnAppendParams p) {
	const AttnAppendTask &t = p.tasks[blockIdx.y];
	const int lane = threadIdx.x % 32, first = p.rotary_first;
	const int64_t rows = int64_t(p.batches) * t.heads * t.rows;
	for (int64_t number = int64_t(blockIdx.x) * Warps + threadIdx.x / 32; number < rows; number += int64_t(gridDim.x) * Warps) {
		const int row = int(number % t.rows), head = int(number / t.rows % t.heads), batch = int(number / t.rows / t.heads);
		int64_t position, out_batch, out_row;
		if (!find_row(p, t, batch, row, position, out_batch, out_row)) continue;
		const ELEMENT *from = (const ELEMENT *)t.in.base + batch * t.in.batch + head * t.in.head + row * t.in.row;
		ELEMENT *to = (ELEMENT *)t.out.base + out_batch * t.out.batch + head * t.out.head + out_row * t.out.row;
		for (int i = lane; i < t.dim - t.pairs; i += 32) {
			if (i < t.pairs) {
				const int a = first + (p.half_split ? i : 2 * i), b = a + (p.half_split ? t.pairs : 1);
				const float c = cos_sin(p, p.cos, position * t.pairs + i), s = cos_sin(p, p.sin, position * t.pairs + i);
				const float x = widen(from[a]), y = widen(from[b]);
				narrow(to + a, __fsub_rn(__fmul_rn(x, c), __fmul_rn(y, s)));
				narrow(to + b, __fadd_rn(__fmul_rn(y, c), __fmul_rn(x, s)));
			} else {
				const int e = i - t.pairs, at = e < first ? e : e + 2 * t.pairs;
				narrow(to + at, widen(from[at])); // a NaN becomes quiet
			}
		}
	}
}
