// Rows of quantized K and V, a part of body.h. Formats are as package quant defines them.

// In the order of quant.Formats.
enum {
	SIMD_INT8 = SIMD_QUANTIZED,
	SIMD_FP8,
	SIMD_Q8_0,
	SIMD_Q4_0,
	SIMD_Q4_1,
	SIMD_Q5_0,
	SIMD_Q5_1,
	SIMD_IQ4_NL,
	SIMD_FP8_E5M2,
	SIMD_FP8_DS_MLA,
};

static float half_at(const uint8_t *p) {
	uint8_t vector[2 * VL] = {p[0], p[1]};
	const V x = WIDEN_F16(vector);
	return x[0];
}

// widen_blocks widens blocks of bytes with two codes, after a scale, a minimum if there is one, and the fifth bits of
// codes likewise. A code is a number less zero, or its index in a table.
INLINE void widen_blocks(float *dst, const uint8_t *src, int32_t n, bool has_min, bool has_fifth, int32_t zero, const int8_t *table) {
	const int32_t header = 2 + (has_min ? 2 : 0) + (has_fifth ? 4 : 0);
	for (int32_t i = 0; i < n; i += 32, src += header + 16) {
		const float scale = half_at(src), least = has_min ? half_at(src + 2) : 0;
		uint32_t fifth = 0;
		if (has_fifth) memcpy(&fifth, src + header - 4, 4);
		for (int32_t j = 0; j < 16; j++) {
			int32_t low = src[header + j] & 15, high = src[header + j] >> 4;
			if (has_fifth) low |= (int32_t)(fifth >> j & 1) << 4, high |= (int32_t)(fifth >> (j + 16) & 1) << 4;
			const float x = scale * (float)(table ? table[low] : low - zero), y = scale * (float)(table ? table[high] : high - zero);
			dst[i + j] = has_min ? x + least : x;
			dst[i + j + 16] = has_min ? y + least : y;
		}
	}
}

static void widen_fp8(float *dst, const uint8_t *src, int32_t n, float scale) {
	for (int32_t i = 0; i < n; i++) {
		// 4 bits of exponent and 3 of fraction, the exponent short by 127 - 7.
		const uint32_t size = src[i] & 0x7f, sign = (uint32_t)(src[i] & 0x80) << 24;
		const uint32_t moved = size << 20;
		float x;
		memcpy(&x, &moved, 4);
		x = size == 0x7f ? NAN : x * 0x1p120f;
		uint32_t bits;
		memcpy(&bits, &x, 4);
		bits |= sign;
		memcpy(&x, &bits, 4);
		dst[i] = scale * x;
	}
}

// widen_quantized widens n elements. Those with a scale outside of the row are multiplied by scale.
static void widen_quantized(float *dst, const uint8_t *src, int32_t n, int32_t type, float scale) {
	static const int8_t iq4_nl[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
	switch (type) {
	case SIMD_INT8:
		for (int32_t i = 0; i < n; i++) dst[i] = scale * (float)(int8_t)src[i];
		break;
	case SIMD_FP8:
		widen_fp8(dst, src, n, scale);
		break;
	case SIMD_FP8_DS_MLA: // 512 float8, their scales of 128 each, bfloat16; V has the first 512
		for (int32_t i = 0; i < 512; i += 128) {
			memcpy(&scale, src + 512 + i / 32, 4);
			widen_fp8(dst + i, src + i, 128, scale);
		}
		for (int32_t i = 512; i < n; i++) {
			const uint8_t *bf16 = src + 528 + 2 * (i - 512);
			const uint32_t bits = (uint32_t)bf16[0] << 16 | (uint32_t)bf16[1] << 24;
			memcpy(dst + i, &bits, 4);
		}
		break;
	case SIMD_FP8_E5M2: // the upper bytes of float16
		for (int32_t i = 0; i < n; i += VL) {
			uint8_t halves[2 * VL] = {0};
			const int32_t count = n - i < VL ? n - i : VL;
			for (int32_t j = 0; j < count; j++) halves[2 * j + 1] = src[i + j];
			const V x = scale * WIDEN_F16(halves);
			memcpy(dst + i, &x, 4 * (size_t)count);
		}
		break;
	case SIMD_Q8_0:
		for (int32_t i = 0; i < n; i += 32, src += 34) {
			scale = half_at(src);
			for (int32_t j = 0; j < 32; j++) dst[i + j] = scale * (float)(int8_t)src[2 + j];
		}
		break;
	case SIMD_Q4_0:
		widen_blocks(dst, src, n, false, false, 8, NULL);
		break;
	case SIMD_Q4_1:
		widen_blocks(dst, src, n, true, false, 0, NULL);
		break;
	case SIMD_Q5_0:
		widen_blocks(dst, src, n, false, true, 16, NULL);
		break;
	case SIMD_Q5_1:
		widen_blocks(dst, src, n, true, true, 0, NULL);
		break;
	case SIMD_IQ4_NL:
		widen_blocks(dst, src, n, false, false, 0, iq4_nl);
		break;
	}
}
