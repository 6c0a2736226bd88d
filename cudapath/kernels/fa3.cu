// Attention in the manner of FlashAttention-3 for sm_90a: TMA, wgmma, specialised warpgroups.
//
// A CTA takes BM = 64 * WARPGROUPS rows of Q of one head and walks the keys downwards in steps of
// BN. It is persistent: fa3_work.h says which row blocks it takes and in which order.
//   - Warpgroup 0 produces. One thread issues tensor copies of Q, K and V into shared memory; K and V
//     go through rings of STAGES tiles. In causal kernels its other three warps scan V (below).
//   - The others consume, 64 rows each. S = Q K^T takes both operands from shared memory, O += P V takes
//     P from registers and V as it lies. S, P, O and the statistics live in registers.
//   - Within a warpgroup the next step's S is issued before this step's P V, so that exponentials of one
//     run beside the multiplications of the other; between warpgroups, named barriers make them take
//     turns in issuing (PINGPONG), so that one takes exponentials while the other multiplies.
//   - O goes from registers to global memory in 16-byte stores, after a transposition within quads of lanes.
//
// Shared memory: tiles are panels of 64 columns, a row of a panel is 128 bytes in the 128-byte swizzle.
//
// Masked slots never matter. TMA fills with zeros what lies past Sk (and past D, Dv), scores of masked
// slots become -inf by selection, so that their weight is 0. But 0 * NaN is NaN: a V that is not finite
// would leak from keys that only some rows of the block see. So in every step that the causal mask
// crosses three warps of the producer look through the V tile before the consumers get it, put zeros where
// values are not finite, and mark the step; after the last step the consumers add such values of marked
// row blocks to the rows that do see them, read from global memory again.
//
// Compile one cubin a (dtype, D): nvcc -gencode=arch=compute_90a,code=sm_90a -cubin with
//   -DATTN_BF16=0|1     storage type
//   -DATTN_D=64|128|256 head dim of Q and K; smaller ones are filled with zeros by the tensor maps
//   -DATTN_DV=...       head dim of V and O, if not ATTN_D
// Entries: attn_fa3_<f16|bf16>_d<D>[x<DV>]_<full|causal>(map q, map k, map v, AttnParams). fa3.json says
// how each is launched.
#include <cstdint>

#include "attn.h"
#include "fa3_work.h"
#include "sm90.h"
#include "sm90_wgmma.h"

#ifndef ATTN_D
#define ATTN_D 128
#endif
#ifndef ATTN_DV
#define ATTN_DV ATTN_D
#endif

// The tile of a kernel; fa3.json repeats BM, BN and what follows from them.
template <int D_, int DV_, int WARPGROUPS_, int BN_, int STAGES_, bool PINGPONG_, bool CAUSAL_> struct Tile {
	static constexpr int D = D_, DV = DV_, WARPGROUPS = WARPGROUPS_, BN = BN_, STAGES = STAGES_;
	static constexpr bool PINGPONG = PINGPONG_, CAUSAL = CAUSAL_;
	static constexpr int BM = 64 * WARPGROUPS;
	static constexpr int THREADS = 128 * (WARPGROUPS + 1);
	static constexpr int PRODUCER_REGISTERS = WARPGROUPS == 2 ? 24 : 32;
	static constexpr int CONSUMER_REGISTERS = WARPGROUPS == 2 ? 240 : 160;
	static constexpr int PANELS = (D + 63) / 64, V_PANELS = (DV + 63) / 64;
	// Bytes of a panel of Q and of K or V, and of whole tiles.
	static constexpr int Q_PANEL = BM * 128, K_PANEL = BN * 128;
	static constexpr int Q_BYTES = PANELS * Q_PANEL, K_BYTES = PANELS * K_PANEL, V_BYTES = V_PANELS * K_PANEL;
	// Offsets in shared memory. A barrier is 8 bytes.
	static constexpr int Q = 0, K = Q + Q_BYTES, V = K + STAGES * K_BYTES, BARRIERS = V + STAGES * V_BYTES;
	static constexpr int Q_FULL = BARRIERS, Q_EMPTY = Q_FULL + 8, K_FULL = Q_EMPTY + 8, K_EMPTY = K_FULL + 8 * STAGES,
			     V_FULL = K_EMPTY + 8 * STAGES, V_EMPTY = V_FULL + 8 * STAGES, V_RAW = V_EMPTY + 8 * STAGES,
			     MARKS = V_RAW + 8 * STAGES; // a word a stage, a byte of it a scanning warp
	static constexpr int SHARED_BYTES = MARKS + 4 * STAGES;
	static constexpr int SCANNERS = 3; // warps
	static_assert(D % 32 == 0 && DV % 32 == 0 && BN % 16 == 0 && BN <= 256 && SHARED_BYTES <= 227 * 1024, "tile");
};

constexpr bool BF16 = ATTN_BF16;

#ifndef FA3_LAG
#define FA3_LAG 8
#endif
constexpr bool LAGGED = FA3_LAG > 0;
#ifndef FA3_PIN
#define FA3_PIN 1
#endif
#ifndef FA3_POLYNOMIAL
#define FA3_POLYNOMIAL 0
#endif

// Exponent bits of two 16-bit values, and one in the last place of each exponent: their sum has a
// value's top bit set where it is not finite.
constexpr uint32_t EXPONENTS = BF16 ? 0x7f807f80 : 0x7c007c00, EXPONENT_UNITS = BF16 ? 0x00800080 : 0x04000400;

__device__ __forceinline__ uint32_t notFinite(uint32_t two) { return ((two & EXPONENTS) + EXPONENT_UNITS) & 0x80008000; }

// Named barriers; TURN and OWN are one a consumer warpgroup. 0 is __syncthreads.
enum { SCAN = 1, TURN = 2, OWN = 5 };

template <bool B> struct Bool { static constexpr bool value = B; };

// ---- Producer ------------------------------------------------------------------------------------

template <class T>
__device__ __forceinline__ void produce(const TensorMap *mapQ, const TensorMap *mapK, const TensorMap *mapV, const AttnParams &p, uint32_t shared) {
	Ring<T::STAGES> k, v;
	uint32_t emptyQ = 1; // parity to wait for
	const int group = p.Hq / p.Hkv;
	Walk<T::BM, T::BN, T::CAUSAL> walk(p);
	Work w;
	while (walk.next(w)) {
		if (w.steps == 0) continue;
		const int headKV = w.head / group;
		auto loadK = [&](int block) {
			const uint32_t full = shared + T::K_FULL + 8 * k.stage, to = shared + T::K + k.stage * T::K_BYTES;
			barrierWait(shared + T::K_EMPTY + 8 * k.stage, k.parity ^ 1);
			barrierExpect(full, T::K_BYTES);
#pragma unroll
			for (int i = 0; i < T::PANELS; i++) copyBox(to + i * T::K_PANEL, mapK, full, 64 * i, block * T::BN, headKV, w.batch);
			k.advance();
		};
		auto loadV = [&](int block) {
			// Tiles of masked steps go to the scanners first, who then fill V_FULL.
			const bool raw = T::CAUSAL && w.top - block < w.masked;
			const uint32_t full = shared + (raw ? T::V_RAW : T::V_FULL) + 8 * v.stage, to = shared + T::V + v.stage * T::V_BYTES;
			barrierWait(shared + T::V_EMPTY + 8 * v.stage, v.parity ^ 1);
			barrierExpect(full, T::V_BYTES);
#pragma unroll
			for (int i = 0; i < T::V_PANELS; i++) copyBox(to + i * T::K_PANEL, mapV, full, 64 * i, block * T::BN, headKV, w.batch);
			v.advance();
		};
		loadK(w.top);
		barrierWait(shared + T::Q_EMPTY, emptyQ);
		emptyQ ^= 1;
		barrierExpect(shared + T::Q_FULL, T::Q_BYTES);
#pragma unroll
		for (int i = 0; i < T::PANELS; i++) copyBox(shared + T::Q + i * T::Q_PANEL, mapQ, shared + T::Q_FULL, 64 * i, w.row, w.head, w.batch);
		for (int block = w.top; block > 0; block--) {
			loadK(block - 1);
			loadV(block);
		}
		loadV(0);
	}
}

// Looks through the V tiles of masked steps and hands them to the consumers.
template <class T> __device__ __forceinline__ void scan(const AttnParams &p, uint32_t shared, char *tiles) {
	const int warp = threadIdx.x / 32 - 1, lane = threadIdx.x % 32;
	int step = 0;     // of V, over all row blocks
	uint32_t raw = 0; // parity of V_RAW, a bit a stage
	Walk<T::BM, T::BN, T::CAUSAL> walk(p);
	Work w;
	while (walk.next(w)) {
		for (int i = 0; i < w.masked; i++) {
			const int stage = (step + i) % T::STAGES;
			barrierWait(shared + T::V_RAW + 8 * stage, raw >> stage & 1);
			raw ^= 1 << stage;
			uint4 *tile = reinterpret_cast<uint4 *>(tiles + T::V + stage * T::V_BYTES);
			bool any = false;
#pragma unroll 2
			for (int at = warp * 32 + lane; at < T::V_BYTES / 16; at += 32 * T::SCANNERS) {
				uint4 x = tile[at];
				if ((notFinite(x.x) | notFinite(x.y) | notFinite(x.z) | notFinite(x.w)) != 0) {
					any = true;
					uint32_t words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
					for (int j = 0; j < 4; j++) {
						const uint32_t bad = notFinite(words[j]);
						words[j] &= ~(bad | bad - (bad >> 15));
					}
					tile[at] = make_uint4(words[0], words[1], words[2], words[3]);
				}
			}
			proxyFence();
			any = __any_sync(~0u, any);
			if (lane == 0) tiles[T::MARKS + 4 * stage + warp] = any;
			namedSync(SCAN, 32 * T::SCANNERS);
			if (threadIdx.x == 32) barrierArrive(shared + T::V_FULL + 8 * stage);
		}
		step += w.steps;
	}
}

// ---- Consumers -----------------------------------------------------------------------------------

// The statistics of a thread's two rows: r = 0 is row g of its warp's 16, r = 1 row g + 8.
struct Rows {
	float top[2];   // maximum of the scores so far, as they come from Q K^T; -inf before the first
	float shift[2]; // top * scale, what is subtracted in the exponent; 0 while top is -inf
	float sum[2];   // this thread's part of the sum of weights
	float factor[2];
};

__device__ __forceinline__ float quadMax(float x) {
	x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
	return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
__device__ __forceinline__ float quadSum(float x) {
	x += __shfl_xor_sync(~0u, x, 1);
	return x + __shfl_xor_sync(~0u, x, 2);
}

// Scores of columns past the row's last become -inf. `last` is relative to the thread's first column.
template <int N> __device__ __forceinline__ void mask(float (&s)[N], int last0, int last1) {
#pragma unroll
	for (int j = 0; j < N / 4; j++) {
#pragma unroll
		for (int c = 0; c < 2; c++) {
			if (8 * j + c > last0) s[4 * j + c] = -INFINITY;
			if (8 * j + c > last1) s[4 * j + 2 + c] = -INFINITY;
		}
	}
}

// Scores to weights, in place. Returns whether O must be multiplied by the rows' factors.
//
// The shift of a row moves only when a score passes it by more than LAG in log2 units (weights stay below
// 2^LAG, sums and O in float32 do not mind), which a vote without shuffles finds out. Whether a row's shift
// moves depends on that row alone, so its bits do not depend on its neighbours.
template <int POLYNOMIAL, int N> __device__ __forceinline__ bool weigh(float (&s)[N], Rows &rows, float scale, float lag) {
	float top[2] = {s[0], s[2]};
#pragma unroll
	for (int j = 0; j < N / 4; j++) {
#pragma unroll
		for (int r = 0; r < 2; r++) top[r] = fmaxf(top[r], fmaxf(s[4 * j + 2 * r], s[4 * j + 2 * r + 1]));
	}
	const bool moved = !LAGGED || __any_sync(~0u, top[0] > rows.top[0] + lag || top[1] > rows.top[1] + lag);
	if (moved) {
#pragma unroll
		for (int r = 0; r < 2; r++) {
			const float reached = quadMax(top[r]);
			const bool moves = reached > rows.top[r] + lag;
			const float shift = moves ? reached * scale : rows.shift[r];
			rows.factor[r] = rows.top[r] == -INFINITY ? 1 : exp2Fast(rows.shift[r] - shift);
			rows.top[r] = moves ? reached : rows.top[r];
			rows.shift[r] = shift;
			rows.sum[r] *= rows.factor[r];
		}
	}
#pragma unroll
	for (int r = 0; r < 2; r++) {
#pragma unroll
		for (int j = 0; j < N / 4; j++) {
#pragma unroll
			for (int c = 0; c < 2; c++) {
				float &x = s[4 * j + 2 * r + c];
				const float exponent = fmaf(x, scale, -rows.shift[r]);
				x = POLYNOMIAL > 0 && (2 * j + c) % max(POLYNOMIAL, 1) == 0 ? exp2Polynomial(exponent) : exp2Fast(exponent);
				rows.sum[r] += x;
			}
		}
	}
	return moved;
}

template <int N> __device__ __forceinline__ void packWeights(const float (&s)[N], uint32_t (&weights)[N / 2]) {
#pragma unroll
	for (int i = 0; i < N / 2; i++) weights[i] = pack<BF16>(s[2 * i], s[2 * i + 1]);
}

template <int N> __device__ __forceinline__ void rescale(float (&o)[N], const Rows &rows) {
#pragma unroll
	for (int i = 0; i < N; i++) o[i] *= rows.factor[i / 2 % 2];
}

template <class T> __device__ __forceinline__ void issueScores(float (&s)[T::BN / 2], uint64_t q, uint64_t k) {
	touch(s);
	wgmmaFence();
#pragma unroll
	for (int d = 0; d < T::D; d += 16)
		Wgmma<T::BN>::ss(s, advanced(q, d / 64 * T::Q_PANEL + d % 64 * 2), advanced(k, d / 64 * T::K_PANEL + d % 64 * 2), d != 0);
	wgmmaCommit();
	touch(s);
}

template <class T> __device__ __forceinline__ void issueOutput(float (&o)[T::DV / 2], uint32_t (&weights)[T::BN / 4], uint64_t v) {
	touch(o);
	touch(weights);
	wgmmaFence();
#pragma unroll
	for (int key = 0; key < T::BN; key += 16)
		Wgmma<T::DV>::rs(o, weights[key / 4], weights[key / 4 + 1], weights[key / 4 + 2], weights[key / 4 + 3], advanced(v, key * 128));
	wgmmaCommit();
	touch(o);
}

// Lane c of a quad holds word c of four 16-byte groups; afterwards it holds group c whole.
__device__ __forceinline__ void transposeQuad(uint32_t (&x)[4], int c) {
	uint32_t give0 = c & 1 ? x[0] : x[1], give1 = c & 1 ? x[2] : x[3];
	give0 = __shfl_xor_sync(~0u, give0, 1), give1 = __shfl_xor_sync(~0u, give1, 1);
	if (c & 1) x[0] = give0, x[2] = give1;
	else x[1] = give0, x[3] = give1;
	give0 = c & 2 ? x[0] : x[2], give1 = c & 2 ? x[1] : x[3];
	give0 = __shfl_xor_sync(~0u, give0, 2), give1 = __shfl_xor_sync(~0u, give1, 2);
	if (c & 2) x[0] = give0, x[1] = give1;
	else x[2] = give0, x[3] = give1;
}

// Adds to O the values of V that are not finite, of keys from..below end that the row sees: what scan took out.
template <class T>
__device__ void addNotFinite(float (&o)[T::DV / 2], const AttnParams &p, const Work &w, int from, int end, int last0, int last1, int c) {
	const char *v = reinterpret_cast<const char *>(p.v.base) + 2 * (w.batch * p.v.batch + w.head / (p.Hq / p.Hkv) * p.v.head + 2 * c);
	for (int key = from; key < end; key++) {
		const char *row = v + 2 * (key * p.v.row);
#pragma unroll
		for (int j = 0; j < T::DV / 8; j++) {
			if (8 * j >= p.Dv) break;
			const uint32_t two = *reinterpret_cast<const uint32_t *>(row + 16 * j), bad = notFinite(two);
			if (bad == 0) continue;
#pragma unroll
			for (int half = 0; half < 2; half++) {
				if ((bad >> 16 * half & 0x8000) == 0) continue;
				// Infinity or NaN of either type, as float32: sign, exponent of ones, and whether any bit of the fraction is set.
				const uint32_t value = two >> 16 * half & 0xffff;
				const float x = __uint_as_float((value & 0x8000) << 16 | 0x7f800000 | ((value & ~EXPONENTS & 0x7fff) != 0 ? 1 << 22 : 0));
				if (key <= last0) o[4 * j + half] += x;
				if (key <= last1) o[4 * j + 2 + half] += x;
			}
		}
	}
}

template <class T> __device__ __forceinline__ void consume(const AttnParams &p, uint32_t shared, const char *tiles, int group) {
	const int lane = threadIdx.x % 32, c = lane % 4;
	const int rowInBlock = 64 * group + threadIdx.x % 128 / 32 * 16 + lane / 4;
	const float scale = fabsf(p.scale_log2), lag = FA3_LAG / scale;
	auto turnWait = [&] { if (T::PINGPONG) namedSync(TURN + group, 256); };
	auto turnPass = [&] { if (T::PINGPONG) namedArrive(TURN + (group + 1 == T::WARPGROUPS ? 0 : group + 1), 256); };
	auto release = [&](uint32_t bar) {
		__syncwarp();
		if (lane == 0) barrierArrive(bar);
	};
	const uint64_t q = swizzledMatrix(shared + T::Q + 64 * group * 128, 16, 1024);
	const uint64_t k0 = swizzledMatrix(shared + T::K, 16, 1024), v0 = swizzledMatrix(shared + T::V, T::K_PANEL, 1024);
	if (T::PINGPONG && group == T::WARPGROUPS - 1) turnPass();

	Ring<T::STAGES> k, v;
	uint32_t fullQ = 0; // parity to wait for
	Walk<T::BM, T::BN, T::CAUSAL> walk(p);
	Work w;
	while (walk.next(w)) {
		float o[T::DV / 2];
#pragma unroll
		for (int i = 0; i < T::DV / 2; i++) o[i] = 0;
		Rows rows = {{-INFINITY, -INFINITY}, {0, 0}, {0, 0}, {0, 0}};
		uint32_t marked = 0;
		const int row = w.row + rowInBlock;
		// The last key each row sees.
		const int last0 = T::CAUSAL ? int(min(int64_t(row) + p.causal_offset, int64_t(p.Sk - 1))) : p.Sk - 1;
		const int last1 = T::CAUSAL ? int(min(int64_t(row) + 8 + p.causal_offset, int64_t(p.Sk - 1))) : p.Sk - 1;
		if (w.steps > 0) {
			float s[T::BN / 2];
			uint32_t weights[T::BN / 4];
			auto waitV = [&](bool scanned) {
				barrierWait(shared + T::V_FULL + 8 * v.stage, v.parity);
				if (T::CAUSAL && scanned) marked |= *reinterpret_cast<const uint32_t *>(tiles + T::MARKS + 4 * v.stage);
			};
			barrierWait(shared + T::Q_FULL, fullQ);
			fullQ ^= 1;
			if (p.scale_log2 < 0) {
				// scale < 0 is |scale| with -Q.
				uint4 *mine = reinterpret_cast<uint4 *>(const_cast<char *>(tiles) + T::Q + 64 * group * 128);
#pragma unroll 1
				for (int i = threadIdx.x % 128; i < T::PANELS * 512; i += 128) {
					uint4 &x = mine[i / 512 * (T::Q_PANEL / 16) + i % 512];
					x.x ^= 0x80008000, x.y ^= 0x80008000, x.z ^= 0x80008000, x.w ^= 0x80008000;
				}
				proxyFence();
				namedSync(OWN + group, 128);
			}
			barrierWait(shared + T::K_FULL + 8 * k.stage, k.parity);
			issueScores<T>(s, q, advanced(k0, k.stage * T::K_BYTES));
			wgmmaWait<0>();
			touch(s);
			release(shared + T::K_EMPTY + 8 * k.stage);
			k.advance();
			if (T::CAUSAL ? w.masked > 0 : w.steps * T::BN > p.Sk) mask(s, last0 - w.top * T::BN - 2 * c, last1 - w.top * T::BN - 2 * c);
			weigh<0>(s, rows, scale, lag);
			packWeights(s, weights);

			auto step = [&](int i, auto masked) {
				barrierWait(shared + T::K_FULL + 8 * k.stage, k.parity);
				turnWait();
				issueScores<T>(s, q, advanced(k0, k.stage * T::K_BYTES));
				waitV(i <= w.masked);
				issueOutput<T>(o, weights, advanced(v0, v.stage * T::V_BYTES));
				turnPass();
				wgmmaWait<1>();
				touch(s);
				release(shared + T::K_EMPTY + 8 * k.stage);
				k.advance();
				if constexpr (masked.value) mask(s, last0 - (w.top - i) * T::BN - 2 * c, last1 - (w.top - i) * T::BN - 2 * c);
				const bool moved = weigh<masked.value ? 0 : FA3_POLYNOMIAL>(s, rows, scale, lag);
#if FA3_PIN
				// Never stores: without it the assembler moves the wait up before the exponentials.
				asm volatile("{\n.reg .pred never;\nsetp.lt.f32 never, %0, 0f00000000;\n@never st.shared.f32 [%1], %0;\n}\n" ::"f"(
						     rows.sum[0] + rows.sum[1]),
					     "r"(shared + T::MARKS)
					     : "memory");
#endif
				wgmmaWait<0>();
				touch(o);
				release(shared + T::V_EMPTY + 8 * v.stage);
				v.advance();
				if (moved) rescale(o, rows);
				packWeights(s, weights);
			};
			int i = 1;
			if (T::CAUSAL) {
#pragma unroll 1
				for (; i < w.masked; i++) step(i, Bool<true>());
			}
#pragma unroll 1
			for (; i < w.steps; i++) step(i, Bool<false>());
			release(shared + T::Q_EMPTY);
			waitV(w.steps <= w.masked);
			issueOutput<T>(o, weights, advanced(v0, v.stage * T::V_BYTES));
			wgmmaWait<0>();
			touch(o);
			release(shared + T::V_EMPTY + 8 * v.stage);
			v.advance();
		}

		// Rows that see nothing give 0 and -inf whatever was computed for them.
		const float sum0 = quadSum(rows.sum[0]), sum1 = quadSum(rows.sum[1]);
		const float scale0 = last0 < 0 ? 0 : 1 / sum0, scale1 = last1 < 0 ? 0 : 1 / sum1;
#pragma unroll
		for (int i = 0; i < T::DV / 2; i++) o[i] *= i & 2 ? scale1 : scale0;
		if (T::CAUSAL && marked != 0) {
			const int end = (w.top + 1) * T::BN;
			addNotFinite<T>(o, p, w, end - w.masked * T::BN, min(end, p.Sk), last0, last1, c);
		}
		if (p.lse != 0 && c == 0) {
			float *lse = reinterpret_cast<float *>(p.lse) + (int64_t(w.batch) * p.Hq + w.head) * p.Sq + row;
			if (row < p.Sq) lse[0] = last0 < 0 ? -INFINITY : fmaf(rows.shift[0], p.unit_high, fmaf(rows.shift[0], p.unit_low, logf(sum0)));
			if (row + 8 < p.Sq) lse[8] = last1 < 0 ? -INFINITY : fmaf(rows.shift[1], p.unit_high, fmaf(rows.shift[1], p.unit_low, logf(sum1)));
		}
		char *out = reinterpret_cast<char *>(p.o.base) + 2 * (w.batch * p.o.batch + w.head * p.o.head + row * p.o.row);
#pragma unroll
		for (int r = 0; r < 2; r++) {
#pragma unroll
			for (int j = 0; j < T::DV / 8; j += 4) {
				uint32_t x[4];
#pragma unroll
				for (int n = 0; n < 4; n++) x[n] = pack<BF16>(o[4 * (j + n) + 2 * r], o[4 * (j + n) + 2 * r + 1]);
				transposeQuad(x, c);
				if (row + 8 * r < p.Sq && 8 * (j + c) < p.Dv)
					*reinterpret_cast<uint4 *>(out + 16 * r * p.o.row + 16 * (j + c)) = make_uint4(x[0], x[1], x[2], x[3]);
			}
		}
	}
}

// ---- Kernels ---------------------------------------------------------------------------------------

template <class T>
__device__ __forceinline__ void attend(const TensorMap *mapQ, const TensorMap *mapK, const TensorMap *mapV, const AttnParams &p) {
	extern __shared__ __align__(1024) char tiles[];
	const uint32_t shared = sharedAddress(tiles);
	const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
	if (threadIdx.x == 0) {
		prefetchMap(mapQ), prefetchMap(mapK), prefetchMap(mapV);
		const int releases = 4 * T::WARPGROUPS; // one a warp
		barrierInit(shared + T::Q_FULL, 1);
		barrierInit(shared + T::Q_EMPTY, releases);
		for (int i = 0; i < T::STAGES; i++) {
			barrierInit(shared + T::K_FULL + 8 * i, 1);
			barrierInit(shared + T::K_EMPTY + 8 * i, releases);
			barrierInit(shared + T::V_FULL + 8 * i, 1);
			barrierInit(shared + T::V_EMPTY + 8 * i, releases);
			barrierInit(shared + T::V_RAW + 8 * i, 1);
			*reinterpret_cast<uint32_t *>(tiles + T::MARKS + 4 * i) = 0;
		}
		barrierInitFence();
	}
	__syncthreads();
	if (warp < 4) {
		giveRegisters<T::PRODUCER_REGISTERS>();
		if (warp == 0) {
			if (threadIdx.x == 0) produce<T>(mapQ, mapK, mapV, p, shared);
		} else if (T::CAUSAL) {
			scan<T>(p, shared, tiles);
		}
	} else {
		takeRegisters<T::CONSUMER_REGISTERS>();
		consume<T>(p, shared, tiles, warp / 4 - 1);
	}
}

// Warpgroups, keys of a step (full, causal), stages and turns by head dim.
#ifndef FA3_WARPGROUPS
#define FA3_WARPGROUPS (ATTN_D == 64 ? 3 : 2)
#endif
#ifndef FA3_BN_FULL
#define FA3_BN_FULL (ATTN_D == 256 ? 80 : ATTN_D == 192 && ATTN_DV == 192 ? 112 : ATTN_D == 192 || ATTN_D == 64 ? 128 : 176)
#endif
#ifndef FA3_BN_CAUSAL
#define FA3_BN_CAUSAL (ATTN_D == 256 ? 80 : ATTN_D == 192 && ATTN_DV == 192 ? 112 : 128)
#endif
#ifndef FA3_STAGES
#define FA3_STAGES 2
#endif
#ifndef FA3_PINGPONG
#define FA3_PINGPONG (ATTN_D <= 128)
#endif

#define JOIN_(a, b, c, d) attn_fa3_##a##_d##b##c##_##d
#define JOIN(a, b, c, d) JOIN_(a, b, c, d)
#if ATTN_BF16
#define TYPE_NAME bf16
#else
#define TYPE_NAME f16
#endif
#if ATTN_D == ATTN_DV
#define DV_NAME
#else
#define DV_NAME_(v) x##v
#define DV_NAME__(v) DV_NAME_(v)
#define DV_NAME DV_NAME__(ATTN_DV)
#endif

#define KERNEL(kind, bn, causal)                                                                                                       \
	extern "C" __global__ void __launch_bounds__(128 * (FA3_WARPGROUPS + 1), 1)                                                    \
		JOIN(TYPE_NAME, ATTN_D, DV_NAME, kind)(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k,       \
						       const __grid_constant__ TensorMap v, const __grid_constant__ AttnParams p) {    \
		attend<Tile<ATTN_D, ATTN_DV, FA3_WARPGROUPS, bn, FA3_STAGES, FA3_PINGPONG, causal>>(&q, &k, &v, p);                    \
	}

KERNEL(full, FA3_BN_FULL, false)
KERNEL(causal, FA3_BN_CAUSAL, true)
