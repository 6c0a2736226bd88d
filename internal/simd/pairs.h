// The products of bfloat16 by VDPBF16PS, a part of avx512.c. A dword holds two bfloat16, and the
// instruction adds both products of two dwords to a float32, twice as many as an FMA does:
//
//   S: pairs along the head dim, Q[pair][lane] and K[key][pair]
//   O: pairs of keys, P[pair][lane] and V[pair][dv], with P rounded to bfloat16
//
// The instruction is two fused multiply-adds, the upper halves first, but takes subnormal
// numbers for 0. The upper half therefore holds the first element of a pair, and the bits are
// those of the other sets as long as no sum can be subnormal: the product of two bfloat16
// with exponents a and b is a multiple of 2^(a+b-14), and so are their sums. pack_q and widen
// return the least exponent of what they pack. Where two of them fall below SIMD_EXACT, and where V
// has NaN or Inf, which meets P of masked slots, the halves are multiplied by FMA.

enum { NEVER = -4096 }; // the exponent of rows with a subnormal number and of V with NaN or Inf

INLINE V dot(V sum, V a, V b) { return (V)_mm512_dpbf16_ps((__m512)sum, (__m512bh)(__m512)a, (__m512bh)(__m512)b); }
INLINE V upper(V pair) { return (V)((W)pair & splat_word(0xffff0000)); }
INLINE V lower(V pair) { return (V)((W)pair << 16); }

// simd_pairs_in_order compares dot with two fused multiply-adds.
int32_t simd_pairs_in_order(void) {
	W seed = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
	for (int i = 0; i < 64; i++) {
		W x[3];
		for (int j = 0; j < 3; j++) { // exponents of 123 to 130
			seed = seed * 1664525 + 1013904223;
			x[j] = (seed ^ seed >> 15) & splat_word(0x83ff83ff);
			x[j] = x[j] + splat_word(0x3d803d80);
		}
		const V c = (V)x[0], a = (V)x[1], b = (V)x[2];
		const V want = FMA(lower(a), lower(b), FMA(upper(a), upper(b), c));
		if (ANY(INT_NE((U)dot(c, a, b), (U)want))) return 0;
	}
	return 1;
}

// range_of collects the least and the largest magnitude of words, less 1: 0 counts as large
// in the least, which is of unsigned numbers, and as small in the largest.
typedef struct {
	__m512i least, most;
} range_of;

INLINE range_of no_words(void) { return (range_of){_mm512_set1_epi16(-1), _mm512_set1_epi16(-1)}; }
INLINE void add_words(range_of *r, W words) {
	const __m512i size = _mm512_and_si512((__m512i)words, _mm512_set1_epi16(0x7fff));
	const __m512i less = _mm512_sub_epi16(size, _mm512_set1_epi16(1));
	r->least = _mm512_min_epu16(r->least, less);
	r->most = _mm512_max_epi16(r->most, less);
}

// least_exponent is NEVER for subnormal numbers and, if asked, for NaN and Inf.
static int32_t least_exponent(const range_of *r, bool finite) {
	uint16_t least[2 * VL];
	int16_t most[2 * VL];
	memcpy(least, &r->least, sizeof least);
	memcpy(most, &r->most, sizeof most);
	int32_t low = 0x8000, high = 0;
	for (int i = 0; i < 2 * VL; i++) {
		if (least[i] + 1 < low) low = least[i] + 1;
		if (most[i] + 1 > high) high = most[i] + 1;
	}
	if (low < 0x80 || (finite && high >= 0x7f80)) return NEVER;
	return (low >> 7) - 127;
}

// pair_row copies n elements of bfloat16 as pairs, the first one above, the last with 0.
INLINE void pair_row(float *dst, const uint8_t *src, int32_t n, range_of *r) {
	for (int32_t i = 0; i < n; i += 2 * VL) {
		W x = {0};
		if (i + 2 * VL <= n)
			memcpy(&x, src + 2 * i, sizeof x);
		else
			memcpy(&x, src + 2 * i, 2 * (size_t)(n - i));
		x = x << 16 | x >> 16;
		add_words(r, x);
		if (i + 2 * VL <= n)
			memcpy(dst + i / 2, &x, sizeof x);
		else
			memcpy(dst + i / 2, &x, 4 * (size_t)((n - i + 1) / 2));
	}
}

static int32_t pack_q_pairs(float *q, const uint8_t *base, const int64_t *at, int32_t vectors, int32_t d, int32_t type) {
	if (type != SIMD_PAIRS) return pack_q(q, base, at, vectors, d, type);
	range_of r = no_words();
	float rows[LANES][64];
	for (int32_t j = 0; j < d; j += 128) {
		const int32_t n = d - j < 128 ? d - j : 128;
		for (int32_t i = 0; i < vectors * VL; i++) pair_row(rows[i], base + at[i] + 2 * (int64_t)j, n, &r);
		transpose(q + j / 2 * LANES, LANES, rows[0], 64, vectors * VL, (n + 1) / 2);
	}
	return least_exponent(&r, false);
}

INLINE W load_halves(const uint8_t *p, int32_t n) {
	H h = {0};
	if (n >= VL)
		memcpy(&h, p, sizeof h);
	else
		memcpy(&h, p, 2 * (size_t)n);
	return __builtin_convertvector(h, W);
}

// pair_rows interleaves two rows, the first one above; the second may be NULL.
INLINE void pair_rows(float *dst, const uint8_t *first, const uint8_t *second, int32_t n, range_of *r) {
	for (int32_t i = 0; i < n; i += VL) {
		W x = load_halves(first + 2 * (int64_t)i, n - i) << 16;
		if (second) x |= load_halves(second + 2 * (int64_t)i, n - i);
		add_words(r, x);
		memcpy(dst + i, &x, i + VL <= n ? sizeof x : 4 * (size_t)(n - i));
	}
}

static int32_t widen_pairs(float *dst, const uint8_t *base, const int64_t *at, const float *scales, int32_t rows, int32_t d,
	int32_t type) {
	range_of r = no_words();
	switch (type) {
	case SIMD_PAIRS:
		for (int32_t i = 0; i < rows; i++) pair_row(dst + (int64_t)i * ((d + 1) / 2), base + at[i], d, &r);
		return least_exponent(&r, false);
	case SIMD_ROW_PAIRS:
		for (int32_t i = 0; i < rows; i += 2)
			pair_rows(dst + (int64_t)i / 2 * d, base + at[i], i + 1 < rows ? base + at[i + 1] : NULL, d, &r);
		return least_exponent(&r, true);
	}
	return widen(dst, base, at, scales, rows, d, type);
}

INLINE void pair_scores_of(const int nv, const int n, const bool dots, int32_t pairs, float scale, const float *q, const float *k,
	int64_t stride, float *s) {
	V sum[BROADCASTS][VECTORS];
	UNROLL for (int j = 0; j < n; j++) UNROLL for (int v = 0; v < nv; v++) sum[j][v] = splat(0);
	for (int32_t i = 0; i < pairs; i++) {
		V a[VECTORS];
		UNROLL for (int v = 0; v < nv; v++) a[v] = load(q + (int64_t)i * LANES + v * VL);
		UNROLL for (int j = 0; j < n; j++) {
			const V b = splat(k[j * stride + i]);
			UNROLL for (int v = 0; v < nv; v++)
				sum[j][v] = dots ? dot(sum[j][v], a[v], b) : FMA(lower(b), lower(a[v]), FMA(upper(b), upper(a[v]), sum[j][v]));
		}
	}
	UNROLL for (int j = 0; j < n; j++)
		UNROLL for (int v = 0; v < nv; v++) store(s + j * LANES + v * VL, sum[j][v] * splat(scale));
}

INLINE void pair_scores(const int nv, const bool dots, const simd_tile *t, const float *q, const float *k, float *s) {
	const int64_t stride = t->k_stride;
	const int32_t pairs = (t->d + 1) / 2;
	int32_t key = t->from;
	for (; key + BROADCASTS <= t->to; key += BROADCASTS)
		pair_scores_of(nv, BROADCASTS, dots, pairs, t->scale, q, k + key * stride, stride, s + key * LANES);
	for (; key + 4 <= t->to; key += 4) pair_scores_of(nv, 4, dots, pairs, t->scale, q, k + key * stride, stride, s + key * LANES);
	for (; key < t->to; key++) pair_scores_of(nv, 1, dots, pairs, t->scale, q, k + key * stride, stride, s + key * LANES);
}

// pack_weights rounds P to pairs of keys and returns whether the products with V are exact. If so it adds P to the sum of
// rounded P: without dropout, before which that is due.
INLINE bool pack_weights(const int nv, const simd_tile *t, const float *s, float *state, float *p) {
	// Words 0 to 15 are of the second key and belong below, words 16 to 31 of the first one above.
	const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18,
		2, 17, 1, 16, 0);
	__m512i least = _mm512_set1_epi32(-1); // of the bits less 1, unsigned
	const __m512i one = _mm512_set1_epi32(1);
	const V ones = (V)splat_word(0x3f803f80);
	float *rounded = state + SIMD_ROUNDED * LANES;
	V sum[VECTORS];
	UNROLL for (int v = 0; v < nv; v++) sum[v] = load(rounded + v * VL);
	for (int32_t pair = t->from / 2; pair < (t->to + 1) / 2; pair++)
		UNROLL for (int v = 0; v < nv; v++) {
			const float *at = s + 2 * pair * LANES + v * VL;
			const V first = 2 * pair < t->from ? splat(0) : load(at), second = 2 * pair + 1 < t->to ? load(at + LANES) : splat(0);
			least = _mm512_min_epu32(least, _mm512_sub_epi32((__m512i)first, one));
			least = _mm512_min_epu32(least, _mm512_sub_epi32((__m512i)second, one));
			const __m512i words = (__m512i)_mm512_cvtne2ps_pbh((__m512)first, (__m512)second);
			const V both = (V)_mm512_permutexvar_epi16(order, words);
			store(p + pair * LANES + v * VL, both);
			sum[v] = dot(sum[v], both, ones);
		}
	const int32_t exponent = (int32_t)((uint64_t)(_mm512_reduce_min_epu32(least) + (uint64_t)1) >> 23);
	if (exponent <= 0 || exponent - 127 + t->v_least < SIMD_EXACT) return false;
	if (t->dropout.threshold == 0) UNROLL for (int v = 0; v < nv; v++) store(rounded + v * VL, sum[v]);
	return true;
}

INLINE void pair_values_of(const int nv, const int n, int32_t from, int32_t to, const float *p, const float *v, int64_t stride,
	float *o) {
	V sum[BROADCASTS][VECTORS];
	UNROLL for (int j = 0; j < n; j++) UNROLL for (int i = 0; i < nv; i++) sum[j][i] = splat(0);
	for (int32_t pair = from / 2; pair < (to + 1) / 2; pair++) {
		const float *row = v + pair * stride;
		V a[VECTORS];
		UNROLL for (int i = 0; i < nv; i++) a[i] = load(p + pair * LANES + i * VL);
		// The other key of the first and of the last pair may belong to other sums.
		if (2 * pair < from) UNROLL for (int i = 0; i < nv; i++) a[i] = (V)((W)a[i] & splat_word(0xffff));
		if (2 * pair + 1 >= to) UNROLL for (int i = 0; i < nv; i++) a[i] = upper(a[i]);
		UNROLL for (int j = 0; j < n; j++) {
			const V b = splat(row[j]);
			UNROLL for (int i = 0; i < nv; i++) sum[j][i] = dot(sum[j][i], a[i], b);
		}
	}
	UNROLL for (int j = 0; j < n; j++)
		UNROLL for (int i = 0; i < nv; i++) store(o + j * LANES + i * VL, load(o + j * LANES + i * VL) + sum[j][i]);
}

// pair_values_fma_of is accumulate_of for values in pairs.
INLINE void pair_values_fma_of(const int nv, const int n, int32_t from, int32_t to, const float *p, const float *v, int64_t stride,
	float *o) {
	V sum[BROADCASTS][VECTORS];
	UNROLL for (int j = 0; j < n; j++) UNROLL for (int i = 0; i < nv; i++) sum[j][i] = splat(0);
	for (int32_t key = from; key < to; key++) {
		const float *row = v + key / 2 * stride;
		const W shift = splat_word(key % 2 * 16);
		V a[VECTORS];
		M seen[VECTORS];
		UNROLL for (int i = 0; i < nv; i++) {
			a[i] = load(p + key * LANES + i * VL);
			seen[i] = INT_NE((U)a[i], splat_int((int32_t)0x80000000));
		}
		UNROLL for (int j = 0; j < n; j++) {
			const V b = upper((V)((W)splat(row[j]) << shift));
			UNROLL for (int i = 0; i < nv; i++) sum[j][i] = FMA_WHERE(seen[i], a[i], b, sum[j][i]);
		}
	}
	UNROLL for (int j = 0; j < n; j++)
		UNROLL for (int i = 0; i < nv; i++) store(o + j * LANES + i * VL, load(o + j * LANES + i * VL) + sum[j][i]);
}

INLINE void pair_values(const int nv, const bool dots, int32_t from, int32_t to, int32_t dv, const float *p, const float *v,
	int64_t stride, float *o) {
	int32_t j = 0;
#define ADD_COLUMNS(n) \
	for (; j + n <= dv; j += n) \
		(dots ? pair_values_of : pair_values_fma_of)(nv, n, from, to, p, v + j, stride, o + j * LANES)
	ADD_COLUMNS(BROADCASTS);
	ADD_COLUMNS(4);
	ADD_COLUMNS(1);
#undef ADD_COLUMNS
}

// PAIR_STEPS defines STEPS for pairs.
#define PAIR_STEPS(suffix, nv) \
	static NOINLINE void dot_scores_##suffix(const simd_tile *t, const float *q, const float *k, float *s) { \
		pair_scores(nv, true, t, q, k, s); \
	} \
	static NOINLINE void fma_scores_##suffix(const simd_tile *t, const float *q, const float *k, float *s) { \
		pair_scores(nv, false, t, q, k, s); \
	} \
	static NOINLINE void dot_values_##suffix(const simd_tile *t, int32_t from, int32_t to, const float *p, const float *v, float *o) { \
		pair_values(nv, true, from, to, t->dv, p, v, t->v_stride, o); \
	} \
	static NOINLINE void fma_values_##suffix(const simd_tile *t, int32_t from, int32_t to, const float *p, const float *v, float *o) { \
		pair_values(nv, false, from, to, t->dv, p, v, t->v_stride, o); \
	} \
	static NOINLINE bool pack_weights_##suffix(const simd_tile *t, const float *s, float *state, float *p) { \
		return pack_weights(nv, t, s, state, p); \
	} \
	static void pair_scores_##suffix(const simd_tile *t, const float *q, const float *k, float *s) { \
		(t->k_pairs == SIMD_SINGLE ? scores_##suffix : t->k_pairs == SIMD_PAIRED ? dot_scores_##suffix : fma_scores_##suffix)( \
			t, q, k, s); \
	} \
	static void pair_values_##suffix(const simd_tile *t, float *s, float *state, const float *v, const int32_t *keys, float *o) { \
		if (!t->v_pairs) { \
			values_##suffix(t, s, state, v, keys, o); \
			return; \
		} \
		float p[SIMD_KEYS / 2 * LANES]; \
		const bool exact = pack_weights_##suffix(t, s, state, p); \
		if (!exact && t->dropout.threshold == 0) round_weights(t, s, state); \
		for (int32_t from = t->from, to; from < t->to; from = to) { \
			to = sum_end(t, keys, from); \
			(exact ? dot_values_##suffix : fma_values_##suffix)(t, from, to, exact ? p : s, v, o); \
		} \
	}

PAIR_STEPS(one, 1)
PAIR_STEPS(all, VECTORS)

// Without dropout pair_values rounds P.
INLINE bool rounds_first(const simd_tile *t) { return t->round_p && (!t->v_pairs || t->dropout.threshold != 0); }
ATTEND(attend_pairs, one, pair_scores_one, rounds_first, pair_values_one)
ATTEND(attend_pairs, all, pair_scores_all, rounds_first, pair_values_all)

static void attend_pairs(const simd_tile *t, const float *q, float *o, float *s, float *state, const int32_t *span,
	const double *position, const float *k, const float *v, const int32_t *keys, const float *bias, const int32_t *mask,
	const uint32_t *slots) {
	(t->vectors == 1 ? attend_pairs_one : attend_pairs_all)(t, q, o, s, state, span, position, k, v, keys, bias, mask, slots);
}

const simd_kernels simd_avx512_bf16 = {
	.name = "avx512bf16",
	.pairs = 1,
	.pack_q = pack_q_pairs,
	.attend = attend_pairs,
	.widen = widen_pairs,
	KERNELS,
};
