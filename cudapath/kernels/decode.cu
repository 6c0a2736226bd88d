// Decode for sm_90a: few query rows, many keys. K and V are quantized, or, on tier cuda, stored as Q. Tier cubin launches the kernels from a
// Vulkan command buffer.
//
// A CTA owns up to eight query heads of one KV head, at one row of a sequence, and one split of the keys. All of them attend
// to the same keys, [begin, limit) of the sequence: what lies outside becomes zeros when it is copied, and scores are masked.
// Quantized K and V have begin 0. Each warp takes KV tiles of KEYS keys in turn, with an online softmax of its own:
//   registers      Q (A of S = Q K^T, rows 8 to 15 zero); O^T (accumulator of O^T += V^T P^T); row max, row sum
//   shared memory  of each warp a ring of STAGES tiles as stored, and their scales, which cp.async fills
//   global memory  partial states of the splits and a counter of each row tile. The CTA that counts last combines them
//                  and leaves the counter at 0.
// P^T as B operand has the layout of S as accumulator, so P needs no exchange. A row of K or V in shared memory is read in
// words; lanes convert them to pairs of 16-bit numbers in an order of columns that costs nothing, the same for Q and K, and
// the epilogue puts O in order. Chunks of rows of int8 and float8 are swizzled against bank conflicts.
//
// int8 and float8 are multiplied without their scales: S is multiplied by K's. V's is m 2^e, 1 <= m < 2: e is added to the
// score, so that the row max knows it, P is multiplied by m, and the row sum takes P 2^-e. Blocks of q8_0 and q4_0 are
// multiplied by their scale as they are converted, rounded once. K and V as Q need no conversion; V is transposed by ldmatrix.
//
// Barriers: a warp waits for its own copies only. The CTA meets three times behind the loop: when the rings are free for O,
// when O of all warps is there, and around the counter.
//
// The build passes the tiles as macros (see build/decode.go). Entries: attn_[cubin_]decode_<f16|bf16>_d<D>_<KV type>
// (DecodeParams), with the grid (row tiles times splits, KV heads, batch).
#include "decode_combine.h"
#include "decode_copy.h"
#include "decode_products.h"

// ---- Sequences ----------------------------------------------------------------------------------

// Numbers of memory are clamped, whatever they are.
__device__ __forceinline__ int clampTo(int n, int most) { return min(max(n, 0), most); }

// The rows or keys of a sequence.
struct Range {
	int first, count;
};
__device__ __forceinline__ Range rangeOf(const int32_t *cu, const int32_t *used, int sequence, int total, int most) {
	Range r = { 0, most };
	if (cu) {
		r.first = clampTo(cu[sequence], total);
		r.count = clampTo(clampTo(cu[sequence + 1], total) - r.first, most);
	}
	if (used) r.count = clampTo(used[sequence], r.count);
	return r;
}

// The last sequence that begins at a packed row or before it.
__device__ __forceinline__ int sequenceOf(const int32_t *cu, int sequences, int row, int total) {
	int low = 0, high = sequences - 1;
	while (low < high) {
		const int middle = (low + high + 1) / 2;
		if (clampTo(cu[middle], total) <= row) low = middle;
		else high = middle - 1;
	}
	return low;
}

// ---- Kernel -------------------------------------------------------------------------------------

template <class T> __device__ __forceinline__ void decode(const DecodeParams &p) {
	constexpr int D = T::D, WARPS = T::WARPS, STAGES = T::STAGES, KEYS = T::KEYS, SUBS = KEYS / Sub;
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
	const int kvHead = blockIdx.y;
	const Own<T::D> own(p);
	const uint32_t area = (uint32_t)__cvta_generic_to_shared(memory) + warp * T::AREA, scaleNumbersAt = area + T::RING;

	// The sequence, the row in it and in Q and O, and how many keys the row attends to.
	const int32_t *cuQ = (const int32_t *)p.cuQ, *cuK = (const int32_t *)p.cuK;
	const int batch = cuQ ? sequenceOf(cuQ, p.B, own.row, p.totalQ) : blockIdx.z;
	const Range rows = rangeOf(cuQ, (const int32_t *)p.usedQ, batch, p.totalQ, p.Sq), keys = rangeOf(cuK, (const int32_t *)p.usedK, batch, p.totalK, p.Sk);
	const int row = own.row - rows.first;
	if (row < 0 || row >= rows.count) return; // a padding row
	int limit = keys.count, begin = 0, position = 0; // position of the row among the keys
	if constexpr (T::TYPE == SAME) {
		constexpr int Most = 1 << 29; // of rows and keys: sums fit 32 bits
		position = row + (p.bottomRight ? keys.count - rows.count : 0);
		limit = max(min(limit, position + min(p.right, Most) + 1), 0);
		begin = min(max(position - min(p.left, Most), 0), limit);
	} else if (p.causal) {
		limit = max(min(limit, row + 1 + (p.causal == 2 ? keys.count - rows.count : 0)), 0);
	}
	const int before = begin / KEYS, tiles = (limit + KEYS - 1) / KEYS - before;
	const int first = before + int(int64_t(tiles) * own.split / p.splits), last = before + int(int64_t(tiles) * (own.split + 1) / p.splits);

	// Where lane i < SUBS finds the 16 keys i of a tile. It is asked one tile ahead of the copies.
	const int64_t batchOfK = p.table || cuK ? 0 : batch;
	const char *kFirst = (const char *)p.k.base + batchOfK * p.k.batch + kvHead * p.k.head + uint64_t(uint32_t(keys.first)) * p.kRow + laneFrom<T>(lane, p.kRow);
	const char *vFirst = (const char *)p.v.base + batchOfK * p.v.batch + kvHead * p.v.head + uint64_t(uint32_t(keys.first)) * p.vRow + laneFrom<T>(lane, p.vRow);
	const uint32_t toLane = laneTo<T>(lane);
	const float *scales = nullptr; // lanes 0 to 15: of K
	if constexpr (T::SCALED) scales = (const float *)(lane < Sub ? p.kScale : p.vScale) + (batchOfK * p.Hkv + kvHead) * p.scaleGroups;
	Place next;
	auto find = [&](int tile) {
		const int key = tile * KEYS + (SUBS > 1 ? min(lane, SUBS - 1) * Sub : 0);
		next = { 0, key };
		if (p.table) {
			next.row = 0;
			if (tile < last && key < limit) {
				const int page = ((const int32_t *)p.table)[int64_t(batch) * p.tableStride + key / p.pageSize];
				next = { uint32_t(page) < uint32_t(p.pages) ? page : 0, key % p.pageSize };
			}
		}
	};
	auto copy = [&](int tile, int stage) {
		if (tile < last) {
			const uint32_t to = area + stage * T::STAGE;
#pragma unroll
			for (int sub = 0; sub < SUBS; sub++) {
				Place at = next;
				if (SUBS > 1) at = { __shfl_sync(~0u, next.page, sub), __shfl_sync(~0u, next.row, sub) };
				const int left = limit - tile * KEYS - sub * Sub;
				int skip = begin - tile * KEYS - sub * Sub;
				if (T::TYPE == SAME && laneNow() % (T::ROW / 16) * 8 >= p.headDim) skip = Sub;
				copyKeys<T>(to + sub * Sub * T::ROW, toLane, kFirst, p.kPage, p.kRow, at, skip, left, p.wideK);
				copyKeys<T>(to + T::TILE + sub * Sub * T::ROW, toLane, vFirst, p.vPage, p.vRow, at, skip, left, p.wideV);
				if constexpr (T::SCALED) {
					const int key = laneNow() % Sub;
					int entry = keys.first + at.row + key;
					if (p.scaleBlock != 1) entry /= p.scaleBlock;
					const float *from = scales + uint64_t(uint32_t(at.page)) * p.scalePage + entry;
					copyPart<4>(to + 2 * T::TILE + sub * 2 * 4 * Sub + 4 * laneNow(), from, key < left ? 4 : 0);
				}
			}
		}
		endCopies();
		find(tile + WARPS);
	};

	int tile = first + warp;
	find(tile);
	for (int s = 0; s < STAGES - 1; s++) copy(tile + s * WARPS, s);

	uint32_t q[D / 16][2]; // of row g, an order of columns that is K's
	{
		using Type = typename T::Element::type;
		const Type *from = (const Type *)p.q.base + own.batch * p.q.batch + (own.head + (g < own.heads ? g : 0)) * p.q.head + own.row * p.q.row;
#pragma unroll
		for (int step = 0; step < D / 16; step++) {
			uint32_t x[4];
#pragma unroll
			for (int k = 0; k < 4; k++) {
				const int column = T::column(step, t, k);
				x[k] = g < own.heads && (T::TYPE != SAME || column < p.headDim) ? ((const uint16_t *)from)[column] : 0;
			}
			constexpr bool inOrder = T::TYPE == FP8 || T::TYPE == SAME;
			q[step][0] = x[0] | x[inOrder ? 1 : 2] << 16, q[step][1] = x[inOrder ? 2 : 1] | x[3] << 16;
		}
	}

	float o[T::FRAGMENTS][4] = {}, rowMax = RowMaxInit, rowSum = 0; // max and sum of row g, the lane's keys
	float slope = 0;                                              // of ALiBi, of row g
	if constexpr (T::TYPE == SAME)
		if (p.alibi) slope = ((const float *)p.alibi)[int64_t(batch) * p.alibiBatch + own.head + (g < own.heads ? g : 0)];
	int stage = 0;
#pragma unroll 1
	for (; tile < last; tile += WARPS) {
		if constexpr (STAGES > 1) waitCopies<STAGES - 2>();
		__syncwarp(); // and all lanes have read the stage that is free
		copy(tile + (STAGES - 1) * WARPS, (stage + STAGES - 1) % STAGES);
		if constexpr (STAGES == 1) { // the other warps of the multiprocessor compute meanwhile
			waitCopies<0>();
			__syncwarp();
		}
#pragma unroll 1
		for (int sub = 0; sub < SUBS; sub++) {
			const uint32_t stageAt = area + stage * T::STAGE, kAt = stageAt + sub * Sub * T::ROW;
			if constexpr (T::SCALED) {
				if (lane < Sub) {
					const uint32_t at = stageAt + 2 * T::TILE + sub * 2 * 4 * Sub + 4 * lane;
					storeShared(scaleNumbersAt + 16 * lane,
						    scaleNumbers(__uint_as_float(loadSharedWord(at)), __uint_as_float(loadSharedWord(at + 4 * Sub)), p.scaleLog2));
				}
				__syncwarp();
			}
			float s[2][4];
			float high = RowMaxInit;
			const int left = limit - tile * KEYS - sub * Sub;
#pragma unroll
			for (int n = 0; n < 2; n++) {
				multiplyK<T>(s[n], q, kAt, n * 8 + g, t);
#pragma unroll
				for (int i = 0; i < 2; i++) {
					const int key = n * 8 + 2 * t + i;
					if constexpr (T::SCALED) {
						const float2 ofScore = loadSharedPair(scaleNumbersAt + 16 * key);
						s[n][i] = fmaf(s[n][i], ofScore.x, ofScore.y);
					} else {
						if constexpr (T::TYPE == SAME)
							if (p.changes) {
								s[n][i] *= p.scoreScale;
								if (p.softcap != 0) s[n][i] = fa2::capped(s[n][i], p.softcap);
								s[n][i] = fmaf(-slope, fabsf(float(position - (tile * KEYS + sub * Sub + key))), s[n][i]);
							}
						s[n][i] *= p.scaleLog2;
					}
					if (key >= left || T::TYPE == SAME && tile * KEYS + sub * Sub + key < begin) s[n][i] = -INFINITY;
					high = fmaxf(high, s[n][i]);
				}
			}
			if (__any_sync(~0u, high > rowMax + Lag)) {
				high = fmaxf(high, __shfl_xor_sync(~0u, high, 1));
				high = fmaxf(high, __shfl_xor_sync(~0u, high, 2));
				const float renewed = fmaxf(rowMax, high), factor = exp2Approx(rowMax - renewed);
				rowMax = renewed, rowSum *= factor;
				const float even = __shfl_sync(~0u, factor, 8 * t), odd = __shfl_sync(~0u, factor, 8 * t + 4); // of O's rows
#pragma unroll
				for (int f = 0; f < T::FRAGMENTS; f++) o[f][0] *= even, o[f][1] *= odd, o[f][2] *= even, o[f][3] *= odd;
			}
			uint32_t weights[2];
#pragma unroll
			for (int n = 0; n < 2; n++) {
				float x[2];
#pragma unroll
				for (int i = 0; i < 2; i++) {
					x[i] = exp2Approx(s[n][i] - rowMax);
					if constexpr (T::SCALED) {
						const float2 ofP = loadSharedPair(scaleNumbersAt + 16 * (n * 8 + 2 * t + i) + 8);
						rowSum = fmaf(x[i], ofP.y, rowSum);
						x[i] *= ofP.x;
					} else {
						rowSum += x[i];
					}
				}
				weights[n] = T::Element::pack(x[0], x[1]);
			}
			multiplyV<T>(o, weights, kAt + T::TILE, laneNow() / 4, laneNow() % 4);
			if constexpr (T::SCALED) __syncwarp(); // the numbers of scales are read
		}
		stage = stage + 1 == STAGES ? 0 : stage + 1;
	}
	waitCopies<0>();
	rowSum += __shfl_xor_sync(~0u, rowSum, 1);
	rowSum += __shfl_xor_sync(~0u, rowSum, 2);

	// O of all warps in shared memory, float32 [WARPS][8][PITCH], then their states.
	__syncthreads();
	float *all = (float *)memory;
	State *states = (State *)(all + WARPS * 8 * T::PITCH);
	float factor;
	const State state = normalize<T::SCALED>(rowMax, rowSum, factor);
	const float even = __shfl_sync(~0u, factor, 8 * t), odd = __shfl_sync(~0u, factor, 8 * t + 4);
	if constexpr (T::TYPE == SAME) {
#pragma unroll
		for (int f = 0; f < T::FRAGMENTS; f++)
#pragma unroll
			for (int r = 0; r < 2; r++) {
				float *to = &all[(warp * 8 + 2 * t + r) * T::PITCH + 16 * f + g];
				to[0] = o[f][r] * (r ? odd : even), to[8] = o[f][2 + r] * (r ? odd : even);
			}
	} else {
#pragma unroll
		for (int pair = 0; pair < T::FRAGMENTS / 2; pair++)
#pragma unroll
			for (int r = 0; r < 2; r++) {
				const float by = r ? odd : even;
				const float(&x)[4] = o[2 * pair], (&y)[4] = o[2 * pair + 1];
				*(float4 *)&all[(warp * 8 + 2 * t + r) * T::PITCH + T::columnsOfO(pair, g)] = make_float4(x[r] * by, x[2 + r] * by, y[r] * by, y[2 + r] * by);
			}
	}
	if (t == 0) states[warp * 8 + g] = state;
	__syncthreads();
	combine<T>(p, all, states);
}

#define JOIN(a, b) a##b
#define NAME(a, b) JOIN(a, b)
#define KERNEL(name, type)                                                                                                                      \
	extern "C" __global__ void __launch_bounds__(DECODE_##type##_WARPS * 32, DECODE_##type##_BLOCKS)                                        \
	    NAME(DECODE_NAME, name)(const __grid_constant__ DecodeParams p) {                                                                   \
		using T = DecodeTile<DECODE_BF16, type, DECODE_D, DECODE_##type##_WARPS, DECODE_##type##_STAGES, DECODE_##type##_KEYS>;         \
		static_assert(T::SHARED == DECODE_##type##_SHARED && T::SHARED <= DECODE_MOST_SHARED, "the table says otherwise");              \
		decode<T>(p);                                                                                                                   \
	}

#ifdef DECODE_SAME_WARPS
KERNEL(_same, SAME)
#endif
KERNEL(_int8, INT8)
KERNEL(_fp8, FP8)
KERNEL(_q8_0, Q8_0)
KERNEL(_q4_0, Q4_0)
