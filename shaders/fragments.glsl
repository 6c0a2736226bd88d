// Types of fragments, and words of the storage type.

// -- words of the storage type --------------------------------------------------------------------
// Words of two 16-bit storage values: packing, Inf and NaN, interleaving.

// Two float32 rounded to the storage type.
uint pack2(float x, float y) {
#ifdef DTYPE_BF16
    return encode16x2(x, y);
#else
    return packFloat2x16(f16vec2(x, y));
#endif
}

// Inf and NaN: all exponent bits are set.
const uint EXPONENT_MASK = DTYPE == TYPE_BF16 ? 0x7f80u : 0x7c00u;

bool nonFinite(uint half_) { return (half_ & EXPONENT_MASK) == EXPONENT_MASK; }
bool nonFinite(float x) { return (floatBitsToUint(x) & 0x7f800000u) == 0x7f800000u; }

// Replaces Inf and NaN by zero. True if there were any.
bool dropNonFinite(inout uvec4 v) {
    bool any_ = false;
    for (uint i = 0; i < 4; ++i) {
        if (nonFinite(v[i] & 0xffffu)) { v[i] &= 0xffff0000u; any_ = true; }
        if (nonFinite(v[i] >> 16)) { v[i] &= 0xffffu; any_ = true; }
    }
    return any_;
}

// The low halves of two words, and the high halves. Moving them as float16, whatever the type, takes one instruction.
uint lowHalves(uint a, uint b) { return packFloat2x16(f16vec2(unpackFloat2x16(a).x, unpackFloat2x16(b).x)); }
uint highHalves(uint a, uint b) { return packFloat2x16(f16vec2(unpackFloat2x16(a).y, unpackFloat2x16(b).y)); }

// -- types ----------------------------------------------------------------------------------------
// Cooperative-matrix fragments of a subgroup: A is rows of Q or P, B is K^T or V, C accumulates S and O.

#define SCOPE gl_ScopeSubgroup
#if defined(DTYPE_BF16) || defined(TERMS_BF16) // type of operands
#define STORAGE_T bfloat16_t
#else
#define STORAGE_T float16_t
#endif
#define FragA coopmat<STORAGE_T, SCOPE, FRAG_M, FRAG_K, gl_MatrixUseA>
#define FragB coopmat<STORAGE_T, SCOPE, FRAG_K, FRAG_N, gl_MatrixUseB>
#define FragC coopmat<float, SCOPE, FRAG_M, FRAG_N, gl_MatrixUseAccumulator>
#define FragOnes coopmat<STORAGE_T, SCOPE, FRAG_K, SUM_N, gl_MatrixUseB>
#define FragSum coopmat<float, SCOPE, FRAG_M, SUM_N, gl_MatrixUseAccumulator>

// Elements of a fragment of S or P that loops visit. decode_coopmat.comp leaves out the elements of rows that do not
// exist.
#ifndef LIVE_ELEMENTS
#define LIVE_ELEMENTS(x) x.length()
#endif
