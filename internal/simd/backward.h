// The kernels of the backward pass, a part of body.h. They compute one tile: a block of
// SIMD_ROWS query rows and up to SIMD_COLUMNS keys.
//
// Here keys are the lanes, because a block of keys stays while the rows go by: K and V are
// transposed once, Q and dO are read as they lie, and a bias, a mask and dBias are read
// along their rows.
//
//	S  [row][key]  = scale Q K^T    rows of Q times columns of K^T
//	dP [row][key]  = dO V^T         rows of dO times columns of V^T
//	P  = exp(S - LSE) factor   dS = P (dP - delta)   dX = dS times the slope of the softcap
//	dV^T [dv][key] += dO^T P        columns of dO times rows of P
//	dK^T [d][key]  += Q^T dX        columns of Q times rows of dX
//	dQ   [row][d]  += dX K          rows of dX times rows of K
//
// Dropout multiplies dP by the mask and its scale, and P of dV.
//
// Each sum has one order in every instruction set: over d; over the rows of a block, and
// then over blocks; over the keys of a tile, and then over tiles. Rounding errors grow with
// the length of a block and with the number of blocks, not with their product.
//
// P and dX of a masked slot are 0, which adds 0 to a sum if the rows that it meets are
// finite. If a row of a tile is not, slots of 0 are skipped.

enum { ROWS = SIMD_ROWS, COLUMNS = SIMD_COLUMNS };

// What a product does with the sums.
enum { SET, ADD };

// product_of computes n rows of C by nv vectors of columns: the sums over k < depth of
// A[j][k] B[k][column], with element [j][k] of A at j * a_row + k * a_column.
INLINE void product_of(const int nv, const int n, const int mode, const bool skip, int32_t depth, float scale, const float *a,
	int64_t a_row, int64_t a_column, const float *b, int64_t b_row, float *c, int64_t c_row) {
	V sum[BROADCASTS][VECTORS];
	UNROLL for (int j = 0; j < n; j++) UNROLL for (int v = 0; v < nv; v++) sum[j][v] = splat(0);
	for (int32_t k = 0; k < depth; k++) {
		V x[VECTORS];
		M used[VECTORS];
		UNROLL for (int v = 0; v < nv; v++) {
			x[v] = load(b + k * b_row + v * VL);
			if (skip) used[v] = INT_NE((U)x[v], splat_int(0));
		}
		UNROLL for (int j = 0; j < n; j++) {
			V y = splat(a[j * a_row + k * a_column]);
			UNROLL for (int v = 0; v < nv; v++)
				sum[j][v] = skip ? FMA_WHERE(used[v], y, x[v], sum[j][v]) : FMA(y, x[v], sum[j][v]);
		}
	}
	UNROLL for (int j = 0; j < n; j++)
		UNROLL for (int v = 0; v < nv; v++) {
			float *to = c + j * c_row + v * VL;
			store(to, mode == SET ? sum[j][v] * splat(scale) : load(to) + sum[j][v]);
		}
}

INLINE void product_rows(const int nv, const int mode, const bool skip, int32_t rows, int32_t depth, float scale, const float *a,
	int64_t a_row, int64_t a_column, const float *b, int64_t b_row, float *c, int64_t c_row) {
	int32_t j = 0;
	for (; j + BROADCASTS <= rows; j += BROADCASTS)
		product_of(nv, BROADCASTS, mode, skip, depth, scale, a + j * a_row, a_row, a_column, b, b_row, c + j * c_row, c_row);
	for (; j + 4 <= rows; j += 4)
		product_of(nv, 4, mode, skip, depth, scale, a + j * a_row, a_row, a_column, b, b_row, c + j * c_row, c_row);
	for (; j < rows; j++)
		product_of(nv, 1, mode, skip, depth, scale, a + j * a_row, a_row, a_column, b, b_row, c + j * c_row, c_row);
}

// A range of rows or of keys of a tile.
typedef struct {
	int32_t from, to;
} range;

// ranges are the parts of a tile that are computed: those with a slot that a row attends
// to, as far as panels of VECTORS vectors of keys and single rows tell.
typedef struct {
	range rows[COLUMNS / VL]; // of each panel
	range keys[ROWS];         // of each row
} ranges;

// set_ranges sets the ranges of a tile of n keys, which ascend.
static void set_ranges(const simd_backward *t, const simd_row *row, const int32_t *keys, int32_t n, ranges *in) {
	for (int32_t v = 0; v < t->vectors; v += VECTORS) {
		const int32_t last = (v + VECTORS) * VL < n ? (v + VECTORS) * VL : n;
		const int32_t low = keys[v * VL], high = keys[last - 1];
		range *r = &in->rows[v / VECTORS];
		*r = (range){0, t->rows};
		if (t->full) continue;
		while (r->from < r->to && (row[r->from].first > high || row[r->from].end <= low)) r->from++;
		while (r->from < r->to && (row[r->to - 1].first > high || row[r->to - 1].end <= low)) r->to--;
	}
	for (int32_t r = 0; r < t->rows; r++) {
		range *k = &in->keys[r];
		*k = (range){0, n};
		if (t->full) continue;
		while (k->from < k->to && keys[k->from] < row[r].first) k->from++;
		while (k->from < k->to && keys[k->to - 1] >= row[r].end) k->to--;
	}
}

// set_tile sets C to scale times rows of A times B, a tile of scores or of dP.
static NOINLINE void set_tile(const ranges *in, int32_t vectors, int32_t depth, float scale, const float *a, const float *b, float *c) {
	for (int32_t v = 0; v < vectors; v += VECTORS) {
		const range r = in->rows[v / VECTORS];
		const float *from = a + (int64_t)r.from * depth;
		float *to = c + r.from * COLUMNS;
		if (v + VECTORS <= vectors)
			product_rows(VECTORS, SET, false, r.to - r.from, depth, scale, from, depth, 1, b + v * VL, COLUMNS, to + v * VL, COLUMNS);
		else
			for (int32_t i = v; i < vectors; i++)
				product_rows(1, SET, false, r.to - r.from, depth, scale, from, depth, 1, b + i * VL, COLUMNS, to + i * VL, COLUMNS);
	}
}

INLINE void add_tile(const bool skip, const ranges *in, int32_t vectors, int32_t d, const float *a, const float *tile, float *c) {
	for (int32_t v = 0; v < vectors; v += VECTORS) {
		const range r = in->rows[v / VECTORS];
		const float *rows = a + (int64_t)r.from * d, *from = tile + r.from * COLUMNS;
		if (v + VECTORS <= vectors)
			product_rows(VECTORS, ADD, skip, d, r.to - r.from, 1, rows, 1, d, from + v * VL, COLUMNS, c + v * VL, COLUMNS);
		else
			for (int32_t i = v; i < vectors; i++)
				product_rows(1, ADD, skip, d, r.to - r.from, 1, rows, 1, d, from + i * VL, COLUMNS, c + i * VL, COLUMNS);
	}
}

// add_keys adds A^T times a tile to C, which is dV^T or dK^T.
static NOINLINE void add_keys(const ranges *in, int32_t vectors, int32_t d, const float *a, const float *tile, float *c) {
	add_tile(false, in, vectors, d, a, tile, c);
}

// add_keys_skip is add_keys that skips slots of 0.
static NOINLINE void add_keys_skip(const ranges *in, int32_t vectors, int32_t d, const float *a, const float *tile, float *c) {
	add_tile(true, in, vectors, d, a, tile, c);
}

INLINE void add_rows_of(const int nv, const int n, const ranges *in, int32_t row, const float *tile, const float *k, int64_t stride,
	float *c) {
	range keys = in->keys[row];
	for (int i = 1; i < n; i++) {
		const range other = in->keys[row + i];
		if (other.from < keys.from) keys.from = other.from;
		if (other.to > keys.to) keys.to = other.to;
	}
	product_of(nv, n, ADD, false, keys.to - keys.from, 1, tile + row * COLUMNS + keys.from, COLUMNS, 1, k + keys.from * stride, stride,
		c + row * stride, stride);
}

INLINE void add_rows_panel(const int nv, const ranges *in, int32_t rows, const float *tile, const float *k, int64_t stride, float *c) {
	int32_t r = 0;
	for (; r + BROADCASTS <= rows; r += BROADCASTS) add_rows_of(nv, BROADCASTS, in, r, tile, k, stride, c);
	for (; r + 4 <= rows; r += 4) add_rows_of(nv, 4, in, r, tile, k, stride, c);
	for (; r < rows; r++) add_rows_of(nv, 1, in, r, tile, k, stride, c);
}

// add_rows adds a tile times rows of K to C, which is dQ.
static NOINLINE void add_rows(const ranges *in, int32_t rows, int32_t vectors, const float *tile, const float *k, int64_t stride,
	float *c) {
	int32_t v = 0;
	for (; v + VECTORS <= vectors; v += VECTORS) add_rows_panel(VECTORS, in, rows, tile, k + v * VL, stride, c + v * VL);
	for (; v < vectors; v++) add_rows_panel(1, in, rows, tile, k + v * VL, stride, c + v * VL);
}

// add_rows_skip is add_rows that skips slots of 0.
static NOINLINE void add_rows_skip(const ranges *in, int32_t rows, int32_t vectors, const float *tile, const float *k,
	int64_t stride, float *c) {
	for (int32_t r = 0; r < rows; r++)
		for (int32_t v = 0; v < vectors; v++) {
			V sum = splat(0);
			for (int32_t key = in->keys[r].from; key < in->keys[r].to; key++) {
				const float x = tile[r * COLUMNS + key];
				if (x != 0) sum = FMA(splat(x), load(k + key * stride + v * VL), sum);
			}
			float *to = c + r * stride + v * VL;
			store(to, load(to) + sum);
		}
}

// tanh_slope is tanh_of with its derivative, 1 - tanh^2 = 4e / (1 + e)^2.
INLINE V tanh_slope(V x, V *slope) {
	V e = weight(MAX(splat(-150), magnitude(x) * splat(-2)), splat(0), splat(0));
	V one = splat(1) + e;
	*slope = (splat(4) * e) / (one * one);
	return tanh_of(x);
}

// quads are the groups of four keys, by position, that have a key of a tile: a row takes the
// random words of each of them once.
typedef struct {
	int32_t n;
	uint32_t quad[COLUMNS];
	int32_t at[COLUMNS]; // of each key: its word in an array [4][COLUMNS]
} quads;

// set_quads sets the groups of a tile's keys.
static void set_quads(const int32_t *keys, int32_t n, quads *in) {
	memset(in, 0, sizeof *in);
	for (int32_t c = 0; c < n; c++) {
		const uint32_t quad = (uint32_t)keys[c] / 4;
		if (in->n == 0 || in->quad[in->n - 1] != quad) in->quad[in->n++] = quad;
		in->at[c] = keys[c] % 4 * COLUMNS + in->n - 1;
	}
}

// set_kept sets keep[c] to whether a row keeps key c of a tile.
static void set_kept(const simd_backward *t, const simd_row *row, const quads *in, int32_t *keep) {
	uint32_t array[4 * COLUMNS];
	for (int32_t q = 0; q < in->n; q += VL) {
		W words[4];
		dropout_words(&t->dropout, load_word(in->quad + q), splat_word(row->row), splat_word(row->head), words);
		for (int i = 0; i < 4; i++) memcpy(array + i * COLUMNS + q, &words[i], sizeof words[i]);
	}
	for (int32_t c = 0; c < t->vectors * VL; c++) keep[c] = array[in->at[c]] >= t->dropout.threshold;
}

// weigh turns S and dP of a tile into P and dS, and with a softcap sets dX. With dropout, which
// has groups of keys, P and dP are those behind it, and dS has the P in front of it.
INLINE void weigh_tile(const bool plain, const simd_backward *t, const simd_row *row, const int32_t *keys, const float *count,
	const float *bias, const int32_t *mask, const quads *groups, float *s, float *ds, float *dx) {
	int32_t keep[COLUMNS];
	for (int32_t r = 0; r < t->rows; r++) {
		if (groups) set_kept(t, row + r, groups, keep);
		const V lse = splat(row[r].lse), delta = splat(row[r].delta), factor = splat(row[r].factor);
		float *p = s + r * COLUMNS, *g = ds + r * COLUMNS;
		for (int32_t c = 0; c < t->vectors * VL; c += VL) {
			V x = load(p + c), slope = splat(1);
			if (!plain) {
				const V more = t->bias ? load(bias + r * COLUMNS + c) : splat(0);
				if (t->softcap != 0) {
					const V cap = splat(t->softcap);
					x = FMA(cap, tanh_slope(x / cap, &slope), more);
				} else {
					x = x + more;
				}
				if (t->alibi) {
					float distance[VL];
					for (int i = 0; i < VL; i++) distance[i] = (float)fabs(row[r].position - keys[c + i]);
					x = FMA(splat(-row[r].slope), load(distance), x);
				}
			}
			V w = weight(MAX(splat(-150), x - lse), splat(0), splat(0)) * factor;
			if (!plain) {
				if (count) w = w * load(count + c);
				if (!t->full) {
					const U at = load_int(keys + c);
					M in = AND(INT_LE(splat_int(row[r].first), at), INT_LT(at, splat_int(row[r].end)));
					if (t->mask) in = AND(in, INT_NE(load_int(mask + r * COLUMNS + c), splat_int(0)));
					w = SELECT(in, w, splat(0));
				}
			}
			// dP and the slope may be NaN where the weight is 0.
			const M used = INT_NE((U)w, splat_int(0));
			V change_p = load(g + c), dropped = w;
			if (groups) {
				const M in = INT_NE(load_int(keep + c), splat_int(0));
				const V factor_kept = splat(t->dropout.scale);
				change_p = SELECT(in, change_p * factor_kept, splat(0));
				dropped = SELECT(in, w * factor_kept, splat(0));
			}
			const V change = w * (change_p - delta);
			store(p + c, dropped);
			store(g + c, SELECT(used, change, splat(0)));
			if (!plain && t->softcap != 0) store(dx + r * COLUMNS + c, SELECT(used, change * slope, splat(0)));
		}
	}
}

static NOINLINE void weigh_plain(const simd_backward *t, const simd_row *row, float *s, float *ds) {
	weigh_tile(true, t, row, NULL, NULL, NULL, NULL, NULL, s, ds, NULL);
}

static NOINLINE void weigh(const simd_backward *t, const simd_row *row, const int32_t *keys, const float *count, const float *bias,
	const int32_t *mask, const quads *groups, float *s, float *ds, float *dx) {
	weigh_tile(false, t, row, keys, count, bias, mask, groups, s, ds, dx);
}

// all_finite reports whether all elements of an array are.
static int32_t all_finite(const float *x, int32_t n) {
	int32_t i = 0;
	for (; i + VL <= n; i += VL)
		if (ANY(INT_LE(splat_int(0x7f800000), (U)magnitude(load(x + i))))) return 0;
	for (; i < n; i++)
		if (!(fabsf(x[i]) < INFINITY)) return 0;
	return 1;
}

// backward_keys reads n keys: K as rows and transposed, V transposed. It returns whether K
// is finite. Columns past the last key and elements past the last column become 0.
static int32_t backward_keys(const simd_backward *t, float *slab, const uint8_t *k, const int64_t *k_at, const uint8_t *v,
	const int64_t *v_at, int32_t n, int32_t type) {
	float *rows = slab + t->k, *kt = slab + t->kt, *vt = slab + t->vt;
	memset(rows, 0, sizeof(float) * COLUMNS * (size_t)t->stride);
	memset(kt, 0, sizeof(float) * COLUMNS * (size_t)t->d);
	memset(vt, 0, sizeof(float) * COLUMNS * (size_t)t->dv);
	int32_t is_finite = 1;
	for (int32_t i = 0; i < n; i++) {
		widen_row(rows + i * t->stride, k + k_at[i], t->d, type, 1);
		is_finite &= all_finite(rows + i * t->stride, t->d);
	}
	transpose(kt, COLUMNS, rows, t->stride, n, t->d);
	float *values = slab + t->scratch;
	for (int32_t i = 0; i < n; i++) widen_row(values + i * t->dv, v + v_at[i], t->dv, type, 1);
	transpose(vt, COLUMNS, values, t->dv, n, t->dv);
	return is_finite;
}

// backward_rows reads rows of Q and dO; a row at a negative offset becomes 0.
static void backward_rows(const simd_backward *t, float *slab, const uint8_t *q, const int64_t *q_at, const uint8_t *dO,
	const int64_t *dO_at, int32_t type) {
	for (int32_t r = 0; r < t->rows; r++) {
		float *to = slab + t->q + (int64_t)r * t->d, *to_dO = slab + t->dO + (int64_t)r * t->dv;
		if (q_at[r] < 0) {
			memset(to, 0, sizeof(float) * (size_t)t->d);
			memset(to_dO, 0, sizeof(float) * (size_t)t->dv);
			continue;
		}
		widen_row(to, q + q_at[r], t->d, type, 1);
		widen_row(to_dO, dO + dO_at[r], t->dv, type, 1);
	}
}

// backward_delta sets sums[row] to dO times O of the rows that backward_rows has read and
// returns whether these rows are finite. What dO holds where O is 0 adds nothing.
static int32_t backward_delta(const simd_backward *t, float *slab, double *sums, const uint8_t *o, const int64_t *o_at,
	int32_t type) {
	enum { PARTS = 16 };
	float *values = slab + t->scratch;
	for (int32_t r = 0; r < t->rows; r++) {
		const float *dO = slab + t->dO + (int64_t)r * t->dv;
		float part[PARTS] = {0};
		sums[r] = 0;
		if (o_at[r] < 0) continue;
		widen_row(values, o + o_at[r], t->dv, type, 1);
		int32_t i = 0;
		for (; i + PARTS <= t->dv; i += PARTS)
			for (int j = 0; j < PARTS; j += VL) {
				V x = load(values + i + j);
				store(part + j, FMA(x, SELECT(INT_NE((U)magnitude(x), splat_int(0)), load(dO + i + j), splat(0)), load(part + j)));
			}
		double sum = 0;
		for (; i < t->dv; i++)
			if (values[i] != 0) sum += (double)values[i] * dO[i];
		for (int j = 0; j < PARTS; j++) sum += part[j];
		sums[r] = sum;
	}
	return all_finite(slab + t->q, t->rows * t->d) & all_finite(slab + t->dO, t->rows * t->dv);
}

// changes is where dX of a tile lies.
INLINE int32_t changes(const simd_backward *t) { return t->softcap != 0 || t->stage != SIMD_ALL ? t->scratch : t->ds; }

// backward_tile computes P, dS and dX of a tile of n keys, and adds to dV^T and dK^T. Between SIMD_SCORES, which leaves
// scaled products and dP, and SIMD_REST the caller does what weigh does (gokernels.BackwardWeigh).
static void backward_tile(const simd_backward *t, float *slab, const simd_row *row, const int32_t *keys, const float *count,
	const float *bias, const int32_t *mask, int32_t n) {
	ranges in;
	set_ranges(t, row, keys, n, &in);
	float *s = slab + t->s, *ds = slab + t->ds, *dx = slab + changes(t);
	if (t->stage != SIMD_REST) {
		set_tile(&in, t->vectors, t->d, t->scale, slab + t->q, slab + t->kt, s);
		set_tile(&in, t->vectors, t->dv, 1, slab + t->dO, slab + t->vt, ds);
	}
	if (t->stage == SIMD_SCORES) return;
	quads groups;
	const bool drops = t->dropout.threshold != 0;
	if (drops) set_quads(keys, n, &groups);
	if (t->stage == SIMD_ALL) {
		if (t->full && t->softcap == 0 && !t->bias && !t->alibi && !count && !drops)
			weigh_plain(t, row, s, ds);
		else
			weigh(t, row, keys, count, bias, mask, drops ? &groups : NULL, s, ds, dx);
	}
	if (t->want_v) (t->rows_finite ? add_keys : add_keys_skip)(&in, t->vectors, t->dv, slab + t->dO, s, slab + t->dvt);
	if (t->want_k) (t->rows_finite ? add_keys : add_keys_skip)(&in, t->vectors, t->d, slab + t->q, dx, slab + t->dkt);
}

// backward_sums adds the weights of a tile of n keys to the sum of each row.
static void backward_sums(const simd_backward *t, float *slab, const simd_row *row, const int32_t *keys, const float *count,
	const float *bias, const int32_t *mask, int32_t n, double *sums) {
	ranges in;
	set_ranges(t, row, keys, n, &in);
	float *s = slab + t->s, *ds = slab + t->ds;
	set_tile(&in, t->vectors, t->d, t->scale, slab + t->q, slab + t->kt, s);
	memset(ds, 0, sizeof(float) * ROWS * COLUMNS);
	weigh(t, row, keys, count, bias, mask, NULL, s, ds, slab + t->scratch);
	for (int32_t r = 0; r < t->rows; r++)
		for (int32_t c = 0; c < n; c++) sums[r] += s[r * COLUMNS + c];
}

// backward_query adds a tile of n keys to dQ, rows at the stride of K.
static void backward_query(const simd_backward *t, const float *slab, const simd_row *row, const int32_t *keys, float *dq, int32_t n) {
	ranges in;
	set_ranges(t, row, keys, n, &in);
	const float *dx = slab + changes(t);
	(t->keys_finite ? add_rows : add_rows_skip)(&in, t->rows, (int32_t)(t->stride / VL), dx, slab + t->k, t->stride, dq);
}

// backward_bias adds dS of a tile of n keys to dBias. Row r begins at at[r].
static void backward_bias(const simd_backward *t, const float *slab, float *base, const int64_t *at, const int32_t *keys, int32_t n) {
	const float *ds = slab + t->ds;
	for (int32_t r = 0; r < t->rows; r++) {
		float *to = base + at[r];
		for (int32_t c = 0; c < n; c++)
			if (ds[r * COLUMNS + c] != 0) to[keys[c]] += ds[r * COLUMNS + c];
	}
}

// backward_bias_sum adds dS of a tile to sums over the rows of each head: sums[head][key].
// Rows of a block take turns in the heads, beginning with head first of n.
static void backward_bias_sum(const simd_backward *t, const float *slab, double *sums, int32_t first, int32_t n) {
	const float *ds = slab + t->ds;
	for (int32_t r = 0; r < t->rows; r++) {
		double *to = sums + (int64_t)((first + r) % n) * COLUMNS;
		for (int32_t c = 0; c < t->vectors * VL; c++)
			if (ds[r * COLUMNS + c] != 0) to[c] += ds[r * COLUMNS + c];
	}
}

// backward_fold adds n partial sums to their totals and clears them.
static void backward_fold(float *total, float *part, int32_t n) {
	for (int32_t i = 0; i < n; i += VL) {
		store(total + i, load(total + i) + load(part + i));
		store(part + i, splat(0));
	}
}

// store_row stores scale times x, rounded once, added to what the row holds if asked for.
static void store_row(uint8_t *to, const float *x, int32_t d, float scale, int32_t accumulate, int32_t type) {
	float out[64];
	for (int32_t j = 0; j < d; j += 64) {
		const int32_t n = d - j < 64 ? d - j : 64;
		uint8_t *at = to + (int64_t)j * (type == SIMD_F32 ? 4 : 2);
		memset(out, 0, sizeof out); // and 0 + -0 is 0
		if (accumulate) widen_row(out, at, n, type, 1);
		for (int32_t c = 0; c < n; c += VL) {
			float last[VL] = {0};
			memcpy(last, x + j + c, sizeof(float) * (size_t)(n - c < VL ? n - c : VL));
			store(out + c, FMA(load(last), splat(scale), load(out + c)));
		}
		narrow_row(at, out, n, type);
	}
}

// backward_store stores n rows of a gradient.
static void backward_store(const float *x, int64_t stride, uint8_t *base, const int64_t *at, int32_t n, int32_t d, float scale,
	int32_t accumulate, int32_t type) {
	for (int32_t i = 0; i < n; i++) store_row(base + at[i], x + i * stride, d, scale, accumulate, type);
}

// backward_store_keys stores a transposed gradient of n keys.
static void backward_store_keys(const simd_backward *t, float *slab, const float *x, uint8_t *base, const int64_t *at, int32_t n,
	int32_t d, float scale, int32_t type) {
	float *rows = slab + t->scratch;
	transpose(rows, d, x, COLUMNS, d, n);
	backward_store(rows, d, base, at, n, d, scale, t->accumulate, type);
}

// backward_read_bias gathers the bias of the rows at n keys.
static void backward_read_bias(const simd_backward *t, float *dst, const uint8_t *base, const int64_t *at, const int32_t *keys,
	int32_t n, int32_t type) {
	const int64_t size = type == SIMD_F32 ? 4 : 2;
	for (int32_t key = 0; key < n;) {
		int32_t run = 1; // consecutive keys
		while (key + run < n && keys[key + run] == keys[key] + run) run++;
		for (int32_t r = 0; r < t->rows; r++)
			widen_row(dst + r * COLUMNS + key, base + at[r] + keys[key] * size, run, type, 1);
		key += run;
	}
}

// backward_read_mask gathers the byte mask of the rows and returns whether it allows any slot.
static int32_t backward_read_mask(const simd_backward *t, int32_t *dst, const uint8_t *base, const int64_t *at,
	const int32_t *keys, int32_t n) {
	int32_t any = 0;
	for (int32_t r = 0; r < t->rows; r++)
		for (int32_t key = 0; key < n; key++) any |= dst[r * COLUMNS + key] = base[at[r] + keys[key]];
	return any;
}

// backward_read_blocks is backward_read_mask of a bitmap with a bit for every 2^shift keys.
static int32_t backward_read_blocks(const simd_backward *t, int32_t *dst, const uint8_t *base, const int64_t *at,
	const int32_t *keys, int32_t n, int32_t shift) {
	int32_t any = 0;
	for (int32_t r = 0; r < t->rows; r++)
		for (int32_t key = 0; key < n; key++) {
			const int32_t bit = keys[key] >> shift;
			uint32_t word;
			memcpy(&word, base + at[r] + (int64_t)4 * (bit / 32), 4);
			any |= dst[r * COLUMNS + key] = word >> bit % 32 & 1;
		}
	return any;
}
