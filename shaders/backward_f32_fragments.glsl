// Fragments of the backward kernels of float32: scratch, places of elements, gradients to memory. The kernel defines smem
// before.
#define TILE_KEY(col) 0 // of sparse tokens, which these kernels do not take
#include "fragment_ops.glsl"
#define ROW_MAJOR gl_CooperativeMatrixLayoutRowMajor
#define COLUMN_MAJOR gl_CooperativeMatrixLayoutColumnMajor
#include "backward_places.glsl"
#include "backward_store_fragments.glsl"
#include "backward_rare.glsl"
