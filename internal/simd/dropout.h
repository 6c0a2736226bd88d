// The dropout mask, a part of body.h: Philox4x32-10 in all lanes at once. Package dropout defines
// it. Integers have the same bits in every instruction set.

typedef uint64_t D __attribute__((vector_size(4 * VL)));

INLINE W splat_word(uint32_t x) { return (W){0} + x; }
INLINE W load_word(const uint32_t *p) {
	W w;
	memcpy(&w, p, sizeof w);
	return w;
}

// multiply_words sets the halves of the products of a and b, in pairs of lanes.
INLINE void multiply_words(W a, uint32_t b, W *high, W *low) {
	const D lower = (D){0} + 0xffffffff;
	const D even = ((D)a & lower) * b, odd = ((D)a >> 32) * b;
	*low = (W)((even & lower) | odd << 32);
	*high = (W)(even >> 32 | (odd & ~lower));
}

// dropout_words sets words to the random words of four keys: word j of lane i belongs to key
// 4 * quad[i] + j.
INLINE void dropout_words(const simd_dropout *d, W quad, W row, W head, W words[4]) {
	W a = quad, b = row, c = head, e = splat_word(d->offset);
	uint32_t key0 = d->seed[0], key1 = d->seed[1];
	for (int round = 0; round < 10; round++) {
		W high0, low0, high1, low1;
		multiply_words(a, 0xd2511f53, &high0, &low0);
		multiply_words(c, 0xcd9e8d57, &high1, &low1);
		a = high1 ^ b ^ key0;
		b = low1;
		c = high0 ^ e ^ key1;
		e = low0;
		key0 += 0x9e3779b9;
		key1 += 0xbb67ae85;
	}
	words[0] = a, words[1] = b, words[2] = c, words[3] = e;
}

// keeps returns the lanes whose words are at least the threshold. Flipping the top bit makes the
// signed comparison an unsigned one.
INLINE M keeps(const simd_dropout *d, W words) {
	return INT_LE(splat_int((int32_t)(d->threshold ^ 0x80000000)), (U)(words ^ 0x80000000));
}
