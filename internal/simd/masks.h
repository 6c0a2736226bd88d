// Masks that are vectors of 0 and -1, as vector extensions of C compare.
#define INT_LT(a, b) ((M)((a) < (b)))
#define INT_LE(a, b) ((M)((a) <= (b)))
#define INT_NE(a, b) ((M)((a) != (b)))
#define AND(a, b) ((M)((a) & (b)))
#define OR(a, b) ((M)((a) | (b)))
#define NOT(a) ((M) ~(a))
#define FMA_WHERE(m, a, b, c) SELECT(m, FMA(a, b, c), c)
