// The kernels for one instruction set. The file that includes this defines
//
//   NAME            the simd_kernels to define
//   V, U            vectors of float and int32, VL elements each
//   VECTORS         vectors of lanes of a full group
//   BROADCASTS      rows of a product's other operand that fit the registers
//   SPLAT(x)        a vector of x
//   FMA(a, b, c)    a*b+c
//   FMA_EXACT       the same, rounded once in every set
//   MAX(a, b)       a > b ? a : b, so b if one is NaN
//   M               the result of comparisons: LT and LE of floats, INT_LT, INT_LE and
//                   INT_NE, and AND, OR and NOT of them
//   SELECT(m, a, b) m ? a : b
//   FMA_WHERE(m, a, b, c)  m ? a*b+c : c
//   ANY(m)          whether any lane is set
//   WIDEN_F16, NARROW_F16  one vector of binary16 in memory
//
// Each query row is a lane. Q, S and O of a group are transposed: Q[d][lane],
// S[key][lane], O[dv][lane]. A lane sums in one fixed order, over d in a score and over
// keys in its row sum and in O, and never reads other lanes. So the bits of a row do not
// depend on the other rows of its group, on the sizes of groups and tiles, or on the
// instruction set, if that has fused multiply-add. pairs.h has products of bfloat16 by
// another instruction, to the same bits.
//
// The size of KV tiles changes no bit because the rescaling of the online softmax is
// exact. Weights are P = 2^(x log2(e) - fraction - m). m is an integer near the row max,
// so moving it multiplies by a power of two. The fraction comes from the first key that
// the row attends to, so that a row of one key has weight 1.
//
// Rows whose largest score exceeds FAR in magnitude use expf of the difference to the row
// max instead, one lane at a time, because float32 holds no fraction of such a score.

#include <math.h>
#include <stdbool.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#ifdef __clang__
#define SHUFFLE(a, b, i, j, k, l) __builtin_shufflevector(a, b, i, j, k, l)
#else
#define SHUFFLE(a, b, i, j, k, l) __builtin_shuffle(a, b, (I){i, j, k, l})
#endif
#define NOINLINE __attribute__((noinline))
#define UNROLL _Pragma("GCC unroll 32")

enum { LANES = VECTORS * VL };

#define LOG2E 0x1.715476p+0f
#define LOG2E_LOW 0x1.4ae0cp-26f
#define LN2 0x1.62e42fefa39efp-1
#define FAR 0x1p18f
#define ROUNDING 0x1.8p23f // adding and subtracting it rounds to an integer

INLINE V splat(float x) { return SPLAT(x); }
INLINE U splat_int(int32_t x) { return (U){0} + x; }
INLINE V load(const float *p) {
	V v;
	memcpy(&v, p, sizeof v);
	return v;
}
INLINE U load_int(const int32_t *p) {
	U v;
	memcpy(&v, p, sizeof v);
	return v;
}
INLINE void store(float *p, V v) { memcpy(p, &v, sizeof v); }
INLINE V magnitude(V x) { return (V)((U)x & splat_int(0x7fffffff)); }

typedef uint16_t H __attribute__((vector_size(2 * VL)));
typedef uint32_t W __attribute__((vector_size(4 * VL)));

INLINE V widen_bf16(const uint8_t *p) {
	H h;
	memcpy(&h, p, sizeof h);
	return (V)(__builtin_convertvector(h, W) << 16);
}
// round_bf16 is x rounded to nearest even; the lower 16 bits are anything.
INLINE W round_bf16(V x) {
	W b = (W)x;
	return (W)SELECT(LE(x, x), (V)(b + (b >> 16 & 1) + 0x7fff), (V)(b | 0x400000));
}
INLINE void narrow_bf16(uint8_t *p, V x) {
	H h = __builtin_convertvector(round_bf16(x) >> 16, H);
	memcpy(p, &h, sizeof h);
}

// exp2_poly is 2^r for |r| up to 0.51, within 2^-27; 1 for 0.
INLINE V exp2_poly(V r) {
	V p = splat(0x1.441e52p-13f);
	p = FMA(p, r, splat(0x1.5f1822p-10f));
	p = FMA(p, r, splat(0x1.3b2a4ap-7f));
	p = FMA(p, r, splat(0x1.c6af56p-5f));
	p = FMA(p, r, splat(0x1.ebfbep-3f));
	p = FMA(p, r, splat(0x1.62e43p-1f));
	return FMA(p, r, splat(1));
}

// power is 2^k for integers k up to 0, 0 below the normal range.
INLINE V power(V k) {
	k = MAX(splat(-127), k); // keeps a NaN
	return (V)((U)(k + splat(127 + ROUNDING)) << 23);
}

// fraction_of is x log2(e) less the integer n next to it, for |x| up to FAR.
INLINE V fraction_of(V x, V n) { return FMA(x, splat(LOG2E_LOW), FMA_EXACT(x, splat(LOG2E), -n)); }

// exponent is the integer next to x log2(e) - fraction.
INLINE V exponent(V x, V fraction) { return (FMA(x, splat(LOG2E), -fraction) + splat(ROUNDING)) - splat(ROUNDING); }

// ceiling is exponent, rounded up, so that no weight is above 1.
INLINE V ceiling(V x, V fraction) {
	return (FMA(x, splat(LOG2E), splat(0.5f) - fraction) + splat(ROUNDING)) - splat(ROUNDING);
}

// weight is 2^(x log2(e) - fraction - m); NaN for NaN.
INLINE V weight(V x, V fraction, V m) {
	V n = exponent(x, fraction);
	return exp2_poly(fraction_of(x, n) - fraction) * power(n - m);
}

static void exps(float *x, int32_t vectors) {
	for (int i = 0; i < vectors; i++) {
		V v = MAX(splat(-150), load(x + i * VL));
		store(x + i * VL, weight(v, splat(0), splat(0)));
	}
}

// tanh_of is within 2 units in the last place.
INLINE V tanh_of(V x) {
	V a = magnitude(x);
	V z = a * a;
	V p = splat(0x1.335ad6p-9f);
	p = FMA(p, z, splat(-0x1.12e222p-7f));
	p = FMA(p, z, splat(0x1.64e15ep-6f));
	p = FMA(p, z, splat(-0x1.ba0c1ep-5f));
	p = FMA(p, z, splat(0x1.1110f2p-3f));
	p = FMA(p, z, splat(-0x1.555556p-2f));
	V low = FMA(a * z, p, a);
	V e = weight(MAX(splat(-40), a * splat(-2)), splat(0), splat(0));
	V high = (splat(1) - e) / (splat(1) + e);
	V t = SELECT(LT(a, splat(0.6f)), low, high);
	return (V)((U)t | ((U)x & splat_int((int32_t)0x80000000)));
}

static void tanhs(float *x, int32_t vectors) {
	for (int i = 0; i < vectors; i++) store(x + i * VL, tanh_of(load(x + i * VL)));
}

// scores sets keys [from, to) of S to scale times K Q, n keys at a time.
INLINE void scores_of(const int nv, const int n, int32_t d, float scale, const float *q, const float *k, int64_t stride,
	float *s) {
	V sum[BROADCASTS][VECTORS];
	UNROLL for (int j = 0; j < n; j++) UNROLL for (int v = 0; v < nv; v++) sum[j][v] = splat(0);
	for (int32_t i = 0; i < d; i++) {
		V a[VECTORS];
		UNROLL for (int v = 0; v < nv; v++) a[v] = load(q + (int64_t)i * LANES + v * VL);
		UNROLL for (int j = 0; j < n; j++) {
			V b = splat(k[j * stride + i]);
			UNROLL for (int v = 0; v < nv; v++) sum[j][v] = FMA(b, a[v], sum[j][v]);
		}
	}
	UNROLL for (int j = 0; j < n; j++)
		UNROLL for (int v = 0; v < nv; v++) store(s + j * LANES + v * VL, sum[j][v] * splat(scale));
}

INLINE void scores(const int nv, const simd_tile *t, const float *q, const float *k, float *s) {
	int32_t key = t->from;
	for (; key + BROADCASTS <= t->to; key += BROADCASTS)
		scores_of(nv, BROADCASTS, t->d, t->scale, q, k + key * t->k_stride, t->k_stride, s + key * LANES);
	for (; key + 4 <= t->to; key += 4)
		scores_of(nv, 4, t->d, t->scale, q, k + key * t->k_stride, t->k_stride, s + key * LANES);
	for (; key < t->to; key++)
		scores_of(nv, 1, t->d, t->scale, q, k + key * t->k_stride, t->k_stride, s + key * LANES);
}

// accumulate adds the weighted values of keys [from, to) to n columns of O. They are summed
// first: many small terms added to a large O may all be rounded the same way. The weights
// of masked slots are -0, which no other weight is. They are skipped, because 0 times the
// content of such a slot may be NaN.
INLINE void accumulate_of(const int nv, const int n, const bool masked, int32_t from, int32_t to, const float *p, const float *v,
	int64_t stride, float *o) {
	V sum[BROADCASTS][VECTORS];
	UNROLL for (int j = 0; j < n; j++) UNROLL for (int i = 0; i < nv; i++) sum[j][i] = splat(0);
	for (int32_t key = from; key < to; key++) {
		const float *row = v + key * stride;
		V a[VECTORS];
		M seen[VECTORS];
		UNROLL for (int i = 0; i < nv; i++) {
			a[i] = load(p + key * LANES + i * VL);
			if (masked) seen[i] = INT_NE((U)a[i], splat_int((int32_t)0x80000000));
		}
		UNROLL for (int j = 0; j < n; j++) {
			V b = splat(row[j]);
			UNROLL for (int i = 0; i < nv; i++)
				sum[j][i] = masked ? FMA_WHERE(seen[i], a[i], b, sum[j][i]) : FMA(a[i], b, sum[j][i]);
		}
	}
	UNROLL for (int j = 0; j < n; j++)
		UNROLL for (int i = 0; i < nv; i++) store(o + j * LANES + i * VL, load(o + j * LANES + i * VL) + sum[j][i]);
}

INLINE void accumulate(const int nv, const bool masked, int32_t from, int32_t to, int32_t dv, const float *p, const float *v,
	int64_t stride, float *o) {
	int32_t j = 0;
	for (; j + BROADCASTS <= dv; j += BROADCASTS)
		accumulate_of(nv, BROADCASTS, masked, from, to, p, v + j, stride, o + j * LANES);
	for (; j + 4 <= dv; j += 4) accumulate_of(nv, 4, masked, from, to, p, v + j, stride, o + j * LANES);
	for (; j < dv; j++) accumulate_of(nv, 1, masked, from, to, p, v + j, stride, o + j * LANES);
}

// modify applies softcap, bias and ALiBi to scores, in this order.
static void modify(const simd_tile *t, float *s, const float *slope, const double *position, const int32_t *keys,
	const float *bias) {
	const int32_t lanes = t->vectors * VL;
	for (int32_t key = t->from; key < t->to; key++) {
		float *x = s + key * LANES;
		if (t->softcap != 0) {
			const V cap = splat(t->softcap);
			for (int32_t i = 0; i < lanes; i += VL) store(x + i, cap * tanh_of(load(x + i) / cap));
		}
		if (t->bias)
			for (int32_t i = 0; i < lanes; i++) x[i] += bias[key * LANES + i];
		if (t->alibi)
			for (int32_t i = 0; i < lanes; i++) x[i] -= slope[i] * (float)fabs(position[i] - keys[key]);
	}
}

#include "quantized.h"

// widen_row widens n elements. Quantized ones are multiplied by scale.
static void widen_row(float *dst, const uint8_t *src, int32_t n, int32_t type, float scale) {
	int32_t i = 0;
	switch (type) {
	case SIMD_F32:
		for (; i + VL <= n; i += VL) memcpy(dst + i, src + 4 * (int64_t)i, sizeof(V));
		for (; i < n; i++) memcpy(dst + i, src + 4 * (int64_t)i, 4);
		break;
	case SIMD_F16:
		for (; i + VL <= n; i += VL) store(dst + i, WIDEN_F16(src + 2 * (int64_t)i));
		if (i < n) {
			uint8_t last[2 * VL] = {0};
			memcpy(last, src + 2 * (int64_t)i, 2 * (size_t)(n - i));
			V x = WIDEN_F16(last);
			memcpy(dst + i, &x, 4 * (size_t)(n - i));
		}
		break;
	case SIMD_BF16:
		for (; i + VL <= n; i += VL) store(dst + i, widen_bf16(src + 2 * (int64_t)i));
		if (i < n) {
			uint8_t last[2 * VL] = {0};
			memcpy(last, src + 2 * (int64_t)i, 2 * (size_t)(n - i));
			V x = widen_bf16(last);
			memcpy(dst + i, &x, 4 * (size_t)(n - i));
		}
		break;
	default:
		widen_quantized(dst, src, n, type, scale);
	}
}

INLINE void narrow_vector(uint8_t *dst, V x, int32_t type) {
	if (type == SIMD_F16)
		NARROW_F16(dst, x);
	else
		narrow_bf16(dst, x);
}

// narrow_row rounds n elements to nearest even.
static void narrow_row(uint8_t *dst, const float *src, int32_t n, int32_t type) {
	int32_t i = 0;
	if (type == SIMD_F32) {
		for (; i + VL <= n; i += VL) memcpy(dst + 4 * i, src + i, sizeof(V));
		for (; i < n; i++) memcpy(dst + 4 * i, src + i, 4);
		return;
	}
	for (; i + VL <= n; i += VL) narrow_vector(dst + 2 * i, load(src + i), type);
	if (i == n) return;
	float last[VL] = {0};
	uint8_t narrow[2 * VL];
	for (int32_t c = i; c < n; c++) last[c - i] = src[c];
	narrow_vector(narrow, load(last), type);
	memcpy(dst + 2 * i, narrow, 2 * (size_t)(n - i));
}

// transpose sets dst[c][r] to src[r][c] for r < rows and c < columns.
static void transpose(float *dst, int32_t dst_stride, const float *src, int32_t src_stride, int32_t rows, int32_t columns) {
	typedef float F __attribute__((vector_size(16)));
	typedef int32_t I __attribute__((vector_size(16)));
	int32_t c = 0;
	for (; c + 4 <= columns; c += 4) {
		int32_t r = 0;
		for (; r + 4 <= rows; r += 4) {
			F x[4];
			for (int i = 0; i < 4; i++) memcpy(&x[i], src + (r + i) * src_stride + c, sizeof x[i]);
			const F a = SHUFFLE(x[0], x[1], 0, 4, 1, 5), b = SHUFFLE(x[2], x[3], 0, 4, 1, 5);
			const F e = SHUFFLE(x[0], x[1], 2, 6, 3, 7), f = SHUFFLE(x[2], x[3], 2, 6, 3, 7);
			x[0] = SHUFFLE(a, b, 0, 1, 4, 5);
			x[1] = SHUFFLE(a, b, 2, 3, 6, 7);
			x[2] = SHUFFLE(e, f, 0, 1, 4, 5);
			x[3] = SHUFFLE(e, f, 2, 3, 6, 7);
			for (int i = 0; i < 4; i++) memcpy(dst + (c + i) * dst_stride + r, &x[i], sizeof x[i]);
		}
		for (; r < rows; r++)
			for (int i = 0; i < 4; i++) dst[(c + i) * dst_stride + r] = src[r * src_stride + c + i];
	}
	for (; c < columns; c++)
		for (int32_t r = 0; r < rows; r++) dst[c * dst_stride + r] = src[r * src_stride + c];
}

// pack_q widens rows of Q and transposes them.
static int32_t pack_q(float *q, const uint8_t *base, const int64_t *at, int32_t vectors, int32_t d, int32_t type) {
	const int32_t lanes = vectors * VL;
	float rows[LANES][64];
	for (int32_t j = 0; j < d; j += 64) {
		const int32_t n = d - j < 64 ? d - j : 64;
		for (int32_t i = 0; i < lanes; i++)
			widen_row(rows[i], base + at[i] + (int64_t)j * (type == SIMD_F32 ? 4 : 2), n, type, 1);
		transpose(q + j * LANES, LANES, rows[0], 64, lanes, n);
	}
	return 0;
}

// widen converts rows of K or V to float32; scales is NULL for types without scales.
static int32_t widen(float *dst, const uint8_t *base, const int64_t *at, const float *scales, int32_t rows, int32_t d,
	int32_t type) {
	for (int32_t i = 0; i < rows; i++) widen_row(dst + (int64_t)i * d, base + at[i], d, type, scales ? scales[i] : 1);
	return 0;
}

// read_bias gathers the biases of a group at n keys: dst[key][lane].
static void read_bias(float *dst, const uint8_t *base, const int64_t *at, const int32_t *keys, int32_t vectors, int32_t n,
	int32_t type) {
	const int64_t size = type == SIMD_F32 ? 4 : 2;
	for (int32_t key = 0; key < n;) {
		int32_t run = 1; // consecutive keys
		while (run < 64 && key + run < n && keys[key + run] == keys[key] + run) run++;
		for (int32_t i = 0; i < vectors * VL; i++) {
			float row[64];
			widen_row(row, base + at[i] + keys[key] * size, run, type, 1);
			for (int32_t c = 0; c < run; c++) dst[(key + c) * LANES + i] = row[c];
		}
		key += run;
	}
}

// read_mask gathers the byte mask of a group at n keys and returns whether it allows any.
static int32_t read_mask(int32_t *dst, const uint8_t *base, const int64_t *at, const int32_t *keys, int32_t vectors, int32_t n) {
	int32_t any = 0;
	for (int32_t key = 0; key < n; key++)
		for (int32_t i = 0; i < vectors * VL; i++) any |= dst[key * LANES + i] = base[at[i] + keys[key]];
	return any;
}

// read_blocks is read_mask of a bitmap with a bit for every 2^shift keys.
static int32_t read_blocks(int32_t *dst, const uint8_t *base, const int64_t *at, const int32_t *keys, int32_t vectors, int32_t n,
	int32_t shift) {
	int32_t any = 0;
	for (int32_t key = 0; key < n; key++) {
		const int32_t bit = keys[key] >> shift;
		for (int32_t i = 0; i < vectors * VL; i++) {
			uint32_t word;
			memcpy(&word, base + at[i] + (int64_t)4 * (bit / 32), 4);
			any |= dst[key * LANES + i] = word >> bit % 32 & 1;
		}
	}
	return any;
}

// visible returns the lanes that attend to a key.
INLINE M visible(const simd_tile *t, const int32_t *span, const int32_t *keys, const int32_t *mask, int32_t key, int v) {
	const U at = splat_int(keys[key]);
	M m = AND(INT_LE(load_int(span + v * VL), at), INT_LT(at, load_int(span + LANES + v * VL)));
	return t->mask ? AND(m, INT_NE(load_int(mask + key * LANES + v * VL), splat_int(0))) : m;
}

// level is the natural logarithm that a row's weights are relative to.
INLINE double level(float most, float fraction, float m) {
	return fabsf(most) <= FAR ? ((double)m + fraction) * LN2 : most;
}

// far_weights computes the weights of a lane in float64 and adds them to its row sum.
static void far_weights(const simd_tile *t, int lane, const float *from, float *s, float *sum, float *carry, float most,
	double level, const int32_t *span, const int32_t *keys, const int32_t *mask) {
	for (int32_t key = t->from; key < t->to; key++) {
		const float x = from[key * LANES + lane];
		float p = -0.0f;
		if (span[lane] <= keys[key] && keys[key] < span[LANES + lane] && (!t->mask || mask[key * LANES + lane])) {
			p = most == -INFINITY ? (x == x ? 0 : x) : (float)exp((double)x - level);
			const float y = p - *carry, next = *sum + y;
			*carry = (next - *sum) - y;
			*sum = next;
		}
		s[key * LANES + lane] = p;
	}
}

// softmax turns scores into weights, and rescales sums and O to a new row maximum.
INLINE void softmax(const int nv, const simd_tile *t, float *o, float *s, float *state, const int32_t *span,
	const int32_t *keys, const int32_t *mask) {
	float *most = state + SIMD_MAX * LANES, *fraction = state + SIMD_FRACTION * LANES, *sum = state + SIMD_SUM * LANES,
	      *carry = state + SIMD_CARRY * LANES, *started = state + SIMD_STARTED * LANES;
	V largest[VECTORS], first[VECTORS], m[VECTORS], total[VECTORS], error[VECTORS], least[VECTORS];

	// The largest scores; NaN counts as none.
	UNROLL for (int v = 0; v < nv; v++) largest[v] = load(most + v * VL);
	for (int32_t key = t->from; key < t->to; key++) {
		const bool full = t->full_from <= key && key < t->full_to;
		UNROLL for (int v = 0; v < nv; v++) {
			V x = load(s + key * LANES + v * VL);
			if (!full) x = SELECT(visible(t, span, keys, mask, key, v), x, splat(-INFINITY));
			largest[v] = MAX(x, largest[v]);
		}
	}

	// Set the fractions of rows that see their first key.
	UNROLL for (int v = 0; v < nv; v++) {
		V begun = load(started + v * VL);
		first[v] = load(fraction + v * VL);
		for (int32_t key = t->from; key < t->to && ANY(LT(begun, splat(1))); key++) {
			M fresh = AND(LT(begun, splat(1)), visible(t, span, keys, mask, key, v));
			V x = load(s + key * LANES + v * VL);
			V f = SELECT(LE(magnitude(x), splat(FAR)), fraction_of(x, exponent(x, splat(0))), splat(0));
			first[v] = SELECT(fresh, f, first[v]);
			begun = SELECT(fresh, splat(1), begun);
		}
		store(started + v * VL, begun);
		store(fraction + v * VL, first[v]);
	}

	// The factors that rescale sums and O, and the rows beyond FAR.
	float shrink[LANES], is_far[LANES], before[LANES], sums[LANES], carries[LANES], m_old[LANES], m_new[LANES];
	bool far = false, moved = false;
	UNROLL for (int v = 0; v < nv; v++) {
		V old = load(most + v * VL);
		M fresh = LE(old, splat(-INFINITY));
		V was = ceiling(old, first[v]);
		m[v] = ceiling(largest[v], first[v]);
		least[v] = largest[v] - splat(150);
		V c = SELECT(fresh, splat(1), power(was - m[v]));
		M out = AND(LT(splat(0), load(started + v * VL)), OR(NOT(LE(magnitude(largest[v]), splat(FAR))),
			AND(NOT(fresh), NOT(LE(magnitude(old), splat(FAR))))));
		far |= ANY(out);
		moved |= ANY(LT(c, splat(1)));
		total[v] = load(sum + v * VL);
		error[v] = load(carry + v * VL);
		store(sums + v * VL, total[v]);
		store(carries + v * VL, error[v]);
		total[v] = total[v] * c;
		error[v] = error[v] * c;
		store(shrink + v * VL, c);
		store(is_far + v * VL, SELECT(out, splat(1), splat(0)));
		store(before + v * VL, old);
		store(m_old + v * VL, was);
		store(m_new + v * VL, m[v]);
		store(most + v * VL, largest[v]);
	}
	float far_scores[SIMD_KEYS * LANES];
	if (far) memcpy(far_scores, s, sizeof(float) * LANES * t->to);

	// The weights. Kahan's sum: small ones added to a large sum may all be rounded the same way.
	for (int32_t key = t->from; key < t->to; key++) {
		const bool full = t->full_from <= key && key < t->full_to;
		UNROLL for (int v = 0; v < nv; v++) {
			float *at = s + key * LANES + v * VL;
			V p = weight(MAX(least[v], load(at)), first[v], m[v]);
			V y = p - error[v], next = total[v] + y, off = (next - total[v]) - y;
			if (!full) {
				M in = visible(t, span, keys, mask, key, v);
				p = SELECT(in, p, splat(-0.0f));
				next = SELECT(in, next, total[v]);
				off = SELECT(in, off, error[v]);
			}
			total[v] = next;
			error[v] = off;
			store(at, p);
		}
	}
	UNROLL for (int v = 0; v < nv; v++) {
		store(sum + v * VL, total[v]);
		store(carry + v * VL, error[v]);
	}
	for (int i = 0; far && i < nv * VL; i++) {
		if (is_far[i] == 0) continue;
		const double to = level(most[i], fraction[i], m_new[i]);
		shrink[i] = before[i] == -INFINITY ? 1 : (float)exp(level(before[i], fraction[i], m_old[i]) - to);
		sum[i] = sums[i] * shrink[i];
		carry[i] = carries[i] * shrink[i];
		far_weights(t, i, far_scores, s, sum + i, carry + i, most[i], to, span, keys, mask);
	}
	if (far || moved) {
		float *rounded = state + SIMD_ROUNDED * LANES;
		UNROLL for (int v = 0; v < nv; v++) store(rounded + v * VL, load(rounded + v * VL) * load(shrink + v * VL));
		for (int32_t j = 0; j < t->dv; j++)
			UNROLL for (int v = 0; v < nv; v++)
				store(o + j * LANES + v * VL, load(o + j * LANES + v * VL) * load(shrink + v * VL));
	}
}

#include "dropout.h"

// drop sets the weights of dropped slots to -0, the weight of masked slots. The row sums
// have them already.
INLINE void drop(const int nv, const simd_tile *t, float *s, const uint32_t *slots, const int32_t *keys) {
	for (int v = 0; v < nv; v++) {
		W words[4];
		int32_t quad = -1;
		for (int32_t key = t->from; key < t->to; key++) {
			if (keys[key] / 4 != quad) {
				quad = keys[key] / 4;
				const uint32_t *rows = slots + v * VL;
				dropout_words(&t->dropout, splat_word((uint32_t)quad), load_word(rows), load_word(rows + LANES), words);
			}
			float *p = s + key * LANES + v * VL;
			store(p, SELECT(keeps(&t->dropout, words[keys[key] % 4]), load(p), splat(-0.0f)));
		}
	}
}

// round_weights rounds P to bfloat16. O is divided by the sum of the rounded P, so that a row with one large P is not
// wrong by its rounding.
static void round_weights(const simd_tile *t, float *s, float *state) {
	for (int32_t i = 0; i < t->vectors * VL; i += VL) {
		float *rounded = state + SIMD_ROUNDED * LANES + i;
		V sum = load(rounded);
		for (int32_t key = t->from; key < t->to; key++) {
			float *at = s + key * LANES + i;
			const V p = (V)(round_bf16(load(at)) & splat_word(0xffff0000));
			store(at, p);
			sum = sum + p;
		}
		store(rounded, sum);
	}
}

// sum_end is the end of the sum of values that begins with a key.
INLINE int32_t sum_end(const simd_tile *t, const int32_t *keys, int32_t from) {
	int32_t to = from + 1;
	while (to < t->to && keys[to] / SIMD_SUMMED == keys[from] / SIMD_SUMMED) to++;
	return to;
}

// STEPS defines the steps of attend for groups of nv vectors as separate functions: inlined
// into one, they compete for registers.
#define STEPS(suffix, nv) \
	static NOINLINE void scores_##suffix(const simd_tile *t, const float *q, const float *k, float *s) { \
		scores(nv, t, q, k, s); \
	} \
	static NOINLINE void softmax_##suffix(const simd_tile *t, float *o, float *s, float *state, const int32_t *span, \
		const int32_t *keys, const int32_t *mask) { \
		softmax(nv, t, o, s, state, span, keys, mask); \
	} \
	static NOINLINE void drop_##suffix(const simd_tile *t, float *s, const uint32_t *slots, const int32_t *keys) { \
		drop(nv, t, s, slots, keys); \
	} \
	static NOINLINE void masked_##suffix(const simd_tile *t, int32_t from, int32_t to, const float *p, const float *v, float *o) { \
		accumulate(nv, true, from, to, t->dv, p, v, t->v_stride, o); \
	} \
	static NOINLINE void full_##suffix(const simd_tile *t, int32_t from, int32_t to, const float *p, const float *v, float *o) { \
		accumulate(nv, false, from, to, t->dv, p, v, t->v_stride, o); \
	} \
	static void values_##suffix(const simd_tile *t, float *s, float *state, const float *v, const int32_t *keys, float *o) { \
		const bool skips = t->dropout.threshold != 0; \
		for (int32_t from = t->from, to; from < t->to; from = to) { \
			to = sum_end(t, keys, from); \
			(!skips && t->full_from <= from && to <= t->full_to ? full_##suffix : masked_##suffix)(t, from, to, s, v, o); \
		} \
	}

// ATTEND defines a function attend of groups of nv vectors by its two products, and by whether it rounds P before
// dropout and PV.
#define ATTEND(name, suffix, scores_of_tile, rounds, values_of_tile) \
	static void name##_##suffix(const simd_tile *t, const float *q, float *o, float *s, float *state, const int32_t *span, \
		const double *position, const float *k, const float *v, const int32_t *keys, const float *bias, const int32_t *mask, \
		const uint32_t *slots) { \
		if (t->stage != SIMD_REST) { \
			scores_of_tile(t, q, k, s); \
			if (t->softcap != 0 || t->bias || t->alibi) modify(t, s, state + SIMD_SLOPE * LANES, position, keys, bias); \
		} \
		if (t->stage == SIMD_SCORES) return; \
		softmax_##suffix(t, o, s, state, span, keys, mask); \
		if (rounds(t)) round_weights(t, s, state); \
		if (t->dropout.threshold != 0) drop_##suffix(t, s, slots, keys); \
		values_of_tile(t, s, state, v, keys, o); \
	}

STEPS(one, 1)
STEPS(all, VECTORS)
INLINE bool rounds_p(const simd_tile *t) { return t->round_p; }
ATTEND(attend, one, scores_one, rounds_p, values_one)
ATTEND(attend, all, scores_all, rounds_p, values_all)

// attend adds the keys of a tile to the rows of a group.
static void attend(const simd_tile *t, const float *q, float *o, float *s, float *state, const int32_t *span,
	const double *position, const float *k, const float *v, const int32_t *keys, const float *bias, const int32_t *mask,
	const uint32_t *slots) {
	(t->vectors == 1 ? attend_one : attend_all)(t, q, o, s, state, span, position, k, v, keys, bias, mask, slots);
}

// one_nan is x, with one NaN for all. Which of several a sum keeps depends on lanes that are masked.
static float one_nan(float x) { return x == x ? x : NAN; }

// finish divides O by the row sums, a sink's share in them and, with dropout, the probability
// that a weight remains (else 1), and stores its rows.
static void finish(float *o, float *state, uint8_t *base, const int64_t *at, int32_t rows, int32_t vectors, int32_t dv,
	int32_t type, float keep) {
	const float *most = state + SIMD_MAX * LANES, *fraction = state + SIMD_FRACTION * LANES, *sum = state + SIMD_SUM * LANES,
	            *rounded = state + SIMD_ROUNDED * LANES, *sinks = state + SIMD_SINK * LANES;
	float m[LANES], divisor[LANES];
	for (int32_t v = 0; v < vectors; v++) store(m + v * VL, ceiling(load(most + v * VL), load(fraction + v * VL)));
	for (int32_t i = 0; i < vectors * VL; i++) {
		// A sink of +Inf takes all weight from all keys and has no logarithm.
		const double sink = sinks[i] == INFINITY ? NAN : sinks[i];
		double lse = level(most[i], fraction[i], m[i]) + log(sum[i]);
		divisor[i] = rounded[i] == 0 ? sum[i] : rounded[i];
		if (sum[i] == 0) {
			// Values of keys with score -Inf may have left NaN in O.
			for (int32_t j = 0; j < dv; j++) o[j * LANES + i] = sink == sink ? 0 : NAN;
			divisor[i] = 1;
			lse = sink;
		} else if (sink != -INFINITY) {
			divisor[i] = (float)(divisor[i] * (1 + exp(sink - lse)));
			lse = lse > sink ? lse + log1p(exp(sink - lse)) : sink + log1p(exp(lse - sink));
		}
		divisor[i] *= keep;
		state[SIMD_LSE * LANES + i] = one_nan((float)lse);
	}
	for (int32_t j = 0; j < dv; j++)
		for (int32_t v = 0; v < vectors; v++) {
			float *x = o + j * LANES + v * VL;
			store(x, load(x) / load(divisor + v * VL));
		}
	float turned[LANES][64];
	for (int32_t j = 0; j < dv; j += 64) {
		const int32_t n = dv - j < 64 ? dv - j : 64;
		transpose(turned[0], 64, o + j * LANES, LANES, n, rows);
		for (int32_t i = 0; i < rows; i++) {
			for (int32_t k = 0; k < n; k++) turned[i][k] = one_nan(turned[i][k]);
			narrow_row(base + at[i] + (int64_t)j * (type == SIMD_F32 ? 4 : 2), turned[i], n, type);
		}
	}
}

#include "backward.h"

// KERNELS are the kernels that every set of this source has.
#define KERNELS \
	.lanes = LANES, \
	.vector = VL, \
	.finish = finish, \
	.read_bias = read_bias, \
	.read_mask = read_mask, \
	.read_blocks = read_blocks, \
	.backward_keys = backward_keys, \
	.backward_rows = backward_rows, \
	.backward_delta = backward_delta, \
	.backward_tile = backward_tile, \
	.backward_sums = backward_sums, \
	.backward_query = backward_query, \
	.backward_bias = backward_bias, \
	.backward_bias_sum = backward_bias_sum, \
	.backward_fold = backward_fold, \
	.backward_store = backward_store, \
	.backward_store_keys = backward_store_keys, \
	.backward_read_bias = backward_read_bias, \
	.backward_read_mask = backward_read_mask, \
	.backward_read_blocks = backward_read_blocks, \
	.exps = exps, \
	.tanhs = tanhs

const simd_kernels NAME = {
	.name = ISA,
	.pack_q = pack_q,
	.attend = attend,
	.widen = widen,
	KERNELS,
};
