// The kernels of the CPU tier, one set for each instruction set that they are
// compiled for. body.h is their source; tier.go computes a call with them.
#ifndef VKATTN_SIMD_KERNELS_H
#define VKATTN_SIMD_KERNELS_H

#include <stdint.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "tensors are little-endian, and the kernels read them as they lie"
#endif

enum {
	SIMD_KEYS = 128,  // of a KV tile
	SIMD_SUMMED = 32, // consecutive keys of a sequence whose values are summed before they are added to O
};

// Storage types of rows. The quantized types of quantized.h follow.
enum { SIMD_F16, SIMD_BF16, SIMD_F32, SIMD_QUANTIZED };

// How sets with pairs keep rows of bfloat16, see pairs.h: pairs along a row, and pairs of rows.
enum { SIMD_PAIRS = -1, SIMD_ROW_PAIRS = -2 };

// How the keys of a tile lie: as float32, as pairs whose products are exact in pairs, as other pairs.
enum { SIMD_SINGLE, SIMD_PAIRED, SIMD_PAIRED_FMA };

// The least sum of the exponents of factors whose sums of products are no subnormal numbers: -126 + 14.
enum { SIMD_EXACT = -112 };

// A simd_dropout is the dropout mask of a call, see package dropout.
typedef struct {
	uint32_t seed[2];
	uint32_t offset;
	uint32_t threshold; // 0: no dropout
	float scale;        // of the weights that remain
} simd_dropout;

// Stages of a KV tile: a caller that modifies the scores asks for them, and then for what follows them.
enum { SIMD_ALL, SIMD_SCORES, SIMD_REST };

// A simd_tile is what a group of query rows has to do with a KV tile. Keys are
// counted from the tile's first one.
typedef struct {
	int32_t d, dv;              // head dims
	int32_t vectors;            // of lanes in use
	int32_t from, to;           // keys that any lane attends to
	int32_t full_from, full_to; // of these, keys that every lane attends to
	int32_t bias, mask, alibi;  // whether there are any
	int32_t stage;              // SIMD_ALL, or a part of it
	int32_t round_p;            // whether P is rounded to bfloat16 for PV
	int32_t k_pairs;            // SIMD_SINGLE, or how pairs are multiplied
	int32_t v_pairs, v_least;   // whether V lies in pairs, and what widen has returned
	int64_t k_stride, v_stride; // elements from key to key, of pairs of keys from pair to pair
	float scale, softcap;
	simd_dropout dropout;
} simd_tile;

// State of a group: arrays of one element for each lane, in this order. A row sum is
// SIMD_SUM less SIMD_CARRY, the rounding errors of its additions (Kahan). SIMD_ROUNDED is the sum of rounded P, 0 if P is
// not rounded.
enum { SIMD_MAX, SIMD_FRACTION, SIMD_SUM, SIMD_CARRY, SIMD_ROUNDED, SIMD_STARTED, SIMD_SLOPE, SIMD_SINK, SIMD_LSE, SIMD_STATES };

// Rows and keys of a tile of the backward pass.
enum { SIMD_ROWS = 64, SIMD_COLUMNS = 64 };

// A simd_backward is a tile of the backward pass: a block of query rows and a block of
// keys. Its arrays lie in a slab of memory, at these offsets in elements.
typedef struct {
	int32_t q, dO;       // [row][d], [row][dv]
	int32_t k;           // [key][stride]
	int32_t kt, vt;      // [d][key], [dv][key]
	int32_t dkt, dvt;    // the same, sums
	int32_t s, ds;       // [row][key]
	int32_t scratch;     // [key][larger head dim] or [row][key]
	int32_t d, dv;       // head dims
	int32_t stride;      // d, rounded up to whole vectors
	int32_t rows;        // in use
	int32_t vectors;     // of keys in use
	int32_t full;        // whether every row attends to every key
	int32_t rows_finite; // whether Q and dO are finite
	int32_t keys_finite; // whether K is finite
	int32_t bias, mask, alibi; // whether there are any
	int32_t want_k, want_v;    // gradients to compute
	int32_t accumulate;        // add to what dK and dV hold
	int32_t stage;             // SIMD_ALL, or a part of it
	float scale, softcap;
	simd_dropout dropout;
} simd_backward;

// A simd_row is a query row of a tile of the backward pass.
typedef struct {
	double position;    // among the keys, for ALiBi
	float lse, delta;   // delta is rowsum(dO * O) - dLSE
	int32_t first, end; // keys that the row attends to
	float slope;        // for ALiBi
	float factor;       // of the weights: corrects the rounding of a large LSE
	uint32_t row, head; // for dropout: the row in its sequence, and b*Hq + h
} simd_row;

// SIMD_KERNELS lists the kernels of a set: X(result, name, (parameters), (arguments)). pack_q and widen return the least
// exponent of pairs.
#define SIMD_KERNELS(X) \
	X(int32_t, pack_q, (float *q, const uint8_t *base, const int64_t *at, int32_t vectors, int32_t d, int32_t type), \
		(q, base, at, vectors, d, type)) \
	X(void, attend, (const simd_tile *t, const float *q, float *o, float *s, float *state, const int32_t *span, \
		const double *position, const float *k, const float *v, const int32_t *keys, const float *bias, \
		const int32_t *mask, const uint32_t *slots), (t, q, o, s, state, span, position, k, v, keys, bias, mask, \
		slots)) \
	X(void, finish, (float *o, float *state, uint8_t *base, const int64_t *at, int32_t rows, int32_t vectors, \
		int32_t dv, int32_t type, float keep), (o, state, base, at, rows, vectors, dv, type, keep)) \
	X(int32_t, widen, (float *dst, const uint8_t *base, const int64_t *at, const float *scales, int32_t rows, \
		int32_t d, int32_t type), (dst, base, at, scales, rows, d, type)) \
	X(void, read_bias, (float *dst, const uint8_t *base, const int64_t *at, const int32_t *keys, int32_t vectors, \
		int32_t n, int32_t type), (dst, base, at, keys, vectors, n, type)) \
	X(int32_t, read_mask, (int32_t *dst, const uint8_t *base, const int64_t *at, const int32_t *keys, int32_t vectors, \
		int32_t n), (dst, base, at, keys, vectors, n)) \
	X(int32_t, read_blocks, (int32_t *dst, const uint8_t *base, const int64_t *at, const int32_t *keys, \
		int32_t vectors, int32_t n, int32_t shift), (dst, base, at, keys, vectors, n, shift)) \
	X(int32_t, backward_keys, (const simd_backward *t, float *slab, const uint8_t *k, const int64_t *k_at, \
		const uint8_t *v, const int64_t *v_at, int32_t n, int32_t type), (t, slab, k, k_at, v, v_at, n, type)) \
	X(void, backward_rows, (const simd_backward *t, float *slab, const uint8_t *q, const int64_t *q_at, \
		const uint8_t *dO, const int64_t *dO_at, int32_t type), (t, slab, q, q_at, dO, dO_at, type)) \
	X(int32_t, backward_delta, (const simd_backward *t, float *slab, double *sums, const uint8_t *o, \
		const int64_t *o_at, int32_t type), (t, slab, sums, o, o_at, type)) \
	X(void, backward_tile, (const simd_backward *t, float *slab, const simd_row *row, const int32_t *keys, \
		const float *count, const float *bias, const int32_t *mask, int32_t n), (t, slab, row, keys, count, bias, \
		mask, n)) \
	X(void, backward_sums, (const simd_backward *t, float *slab, const simd_row *row, const int32_t *keys, \
		const float *count, const float *bias, const int32_t *mask, int32_t n, double *sums), (t, slab, row, keys, \
		count, bias, mask, n, sums)) \
	X(void, backward_query, (const simd_backward *t, const float *slab, const simd_row *row, const int32_t *keys, \
		float *dq, int32_t n), (t, slab, row, keys, dq, n)) \
	X(void, backward_bias, (const simd_backward *t, const float *slab, float *base, const int64_t *at, \
		const int32_t *keys, int32_t n), (t, slab, base, at, keys, n)) \
	X(void, backward_bias_sum, (const simd_backward *t, const float *slab, double *sums, int32_t first, int32_t n), \
		(t, slab, sums, first, n)) \
	X(void, backward_fold, (float *total, float *part, int32_t n), (total, part, n)) \
	X(void, backward_store, (const float *x, int64_t stride, uint8_t *base, const int64_t *at, int32_t n, int32_t d, \
		float scale, int32_t accumulate, int32_t type), (x, stride, base, at, n, d, scale, accumulate, type)) \
	X(void, backward_store_keys, (const simd_backward *t, float *slab, const float *x, uint8_t *base, \
		const int64_t *at, int32_t n, int32_t d, float scale, int32_t type), (t, slab, x, base, at, n, d, scale, \
		type)) \
	X(void, backward_read_bias, (const simd_backward *t, float *dst, const uint8_t *base, const int64_t *at, \
		const int32_t *keys, int32_t n, int32_t type), (t, dst, base, at, keys, n, type)) \
	X(int32_t, backward_read_mask, (const simd_backward *t, int32_t *dst, const uint8_t *base, const int64_t *at, \
		const int32_t *keys, int32_t n), (t, dst, base, at, keys, n)) \
	X(int32_t, backward_read_blocks, (const simd_backward *t, int32_t *dst, const uint8_t *base, const int64_t *at, \
		const int32_t *keys, int32_t n, int32_t shift), (t, dst, base, at, keys, n, shift))

typedef struct {
	const char *name;
	int32_t lanes, vector; // query rows of a group, of a vector
	int32_t pairs;         // whether pack_q and widen take SIMD_PAIRS and SIMD_ROW_PAIRS

#define SIMD_FIELD(type, name, parameters, arguments) type (*name) parameters;
	SIMD_KERNELS(SIMD_FIELD)
	void (*exps)(float *x, int32_t vectors);
	void (*tanhs)(float *x, int32_t vectors);
} simd_kernels;

// simd_set is set i of those that this CPU runs, best first, or NULL past the last.
const simd_kernels *simd_set(int32_t i);

#if defined(__x86_64__) && (defined(__clang__) || __GNUC__ >= 10)
#define SIMD_HAS_PAIRS
// simd_pairs_in_order reports whether this CPU adds a pair of products as two fused multiply-adds.
int32_t simd_pairs_in_order(void);
#endif

extern const simd_kernels simd_avx512_bf16, simd_avx512, simd_avx2, simd_neon, simd_plain;

#endif
