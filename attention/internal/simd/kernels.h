// The kernels of the CPU tier, one set for each instruction set that they are
// compiled for. body.h is their source; tier.go computes a call with them.
#ifndef VKATTN_SIMD_KERNELS_H
#define VKATTN_SIMD_KERNELS_H

#include <stdint.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "tensors are little-endian, and the kernels read them as they lie"
#endif

enum { SIMD_KEYS = 128 }; // of a KV tile

// Storage types of rows.
enum { SIMD_F16, SIMD_BF16, SIMD_F32, SIMD_INT8, SIMD_FP8, SIMD_Q8_0, SIMD_Q4_0 };

// A simd_tile is what a group of query rows has to do with a KV tile. Keys are
// counted from the tile's first one.
typedef struct {
	int32_t d, dv;              // head dims
	int32_t vectors;            // of lanes in use
	int32_t from, to;           // keys that any lane attends to
	int32_t full_from, full_to; // of these, keys that every lane attends to
	int32_t bias, mask, alibi;  // whether there are any
	int64_t k_stride, v_stride; // elements from key to key
	float scale, softcap;
} simd_tile;

// State of a group: arrays of one element for each lane, in this order. A row sum is
// SIMD_SUM less SIMD_CARRY, the rounding errors of its additions (Kahan).
enum { SIMD_MAX, SIMD_FRACTION, SIMD_SUM, SIMD_CARRY, SIMD_STARTED, SIMD_SLOPE, SIMD_SINK, SIMD_LSE, SIMD_STATES };

typedef struct {
	const char *name;
	int32_t lanes, vector; // query rows of a group, of a vector

	void (*pack_q)(float *q, const uint8_t *base, const int64_t *at, int32_t vectors, int32_t d, int32_t type);
	void (*attend)(const simd_tile *t, const float *q, float *o, float *s, float *state, const int32_t *span,
		const double *position, const float *k, const float *v, const int32_t *keys, const int32_t *slots, const float *bias,
		const int32_t *mask);
	void (*finish)(float *o, float *state, uint8_t *base, const int64_t *at, int32_t rows, int32_t vectors, int32_t dv,
		int32_t type);
	void (*widen)(float *dst, const uint8_t *base, const int64_t *at, const float *scales, int32_t rows, int32_t d,
		int32_t type);
	void (*read_bias)(float *dst, const uint8_t *base, const int64_t *at, const int32_t *keys, int32_t vectors, int32_t n,
		int32_t type);
	int32_t (*read_mask)(int32_t *dst, const uint8_t *base, const int64_t *at, const int32_t *keys, int32_t vectors,
		int32_t n);
	int32_t (*read_blocks)(int32_t *dst, const uint8_t *base, const int64_t *at, const int32_t *keys, int32_t vectors,
		int32_t n, int32_t shift);
	void (*exps)(float *x, int32_t vectors);
	void (*tanhs)(float *x, int32_t vectors);
} simd_kernels;

// simd_set is set i of those that this CPU runs, best first, or NULL past the last.
const simd_kernels *simd_set(int32_t i);

extern const simd_kernels simd_avx512, simd_avx2, simd_neon, simd_plain;

#endif
