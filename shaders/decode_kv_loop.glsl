// Part of main: the subgroup's KV loop up to tile KV_LOOP_END. MASKED 1: some row may not attend to some key of its
// tiles, or scores depend on row and key.
//
// A turn takes one tile and ends with copies of the next tile's vectors. With TWO_TILES a turn of the unmasked loop takes
// two tiles and the arrays of vectors swap roles in the second, so nothing is copied.
[[dont_unroll]] while (j < KV_LOOP_END) {
#define K_TILE kVec
#define V_TILE vVec
#define K_NEXT kNext
#define V_NEXT vNext
#include "decode_tile.glsl"
#undef K_TILE
#undef V_TILE
#undef K_NEXT
#undef V_NEXT

#if !MASKED
    if (TWO_TILES) {
        if (j >= KV_LOOP_END) {
            COPY_NEXT_VECS
            break;
        }
#define K_TILE kNext
#define V_TILE vNext
#define K_NEXT kVec
#define V_NEXT vVec
#include "decode_tile.glsl"
#undef K_TILE
#undef V_TILE
#undef K_NEXT
#undef V_NEXT
    }
#endif
}
