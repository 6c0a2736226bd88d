// Functions of the row and column of an element.

// x[i][j] = f(i, j, x[i][j], a, b). Without VK_NV_cooperative_matrix2, elements learn their row and column from a table in
// shared memory, which is loaded as a fragment: fragments of one type have one order. The kernel defines PLACES_BASE, calls
// storePlaces() and has a barrier before it computes fragments.
#if NV2
void storePlaces() {}
#define PER_ELEMENT(x, f, a, b) coopMatPerElementNV(x, x, f, a, b);
#else
const float PLACES_ZERO = 8388608.0; // 2^23: the low bits of PLACES_ZERO + n are n
void storePlaces() {
    for (uint n = gl_LocalInvocationIndex; n < FRAG_M * FRAG_N; n += LOCAL_SIZE)
        smem[PLACES_BASE + n / 4][n % 4] = floatBitsToUint(PLACES_ZERO + float(n));
}
#define PER_ELEMENT(x, f, a, b)                                                                     \
    {                                                                                               \
        FragC places;                                                                               \
        coopMatLoad(places, smem, PLACES_BASE, FRAG_N / 4, ROW_MAJOR);                              \
        [[unroll]] for (uint e_ = 0; e_ < x.length(); ++e_) {                                       \
            const uint n_ = floatBitsToUint(places[e_]) & 0xffffu;                                  \
            x[e_] = f(n_ / FRAG_N, n_ % FRAG_N, x[e_], a, b);                                       \
        }                                                                                           \
    }
#endif
