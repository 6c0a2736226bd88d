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
