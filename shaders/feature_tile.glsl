// One tile of keys, number j of the walk, as coopmat_tile.glsl has it for modules without FEATURES: the body of
// both loops of forward_coopmat.comp. With MASKED some row may not see some key of it, or its scores depend on
// the place. With REUSE, V takes K's place in shared memory once the scores are there, at the cost of two more
// barriers: twice as many workgroups fit, and it is loads on their way that decoding lives on.
{
    barrier(); // everyone has finished with the last tile
    after = PAGES_AHEAD && MAP_ROWS != 0 ? beyond : nextTile(walk, j + 1, lastRow);
    if (PAGES_AHEAD) beyond = nextTile(walk, after + 1, lastRow);
    if (KEPT != 0) {
        [[unroll]] for (uint i = 0; i < KEY_PARTS; ++i)
            if (i * LOCAL_SIZE + tid < BLOCK_COLS) keyOfColumn[i * LOCAL_SIZE + tid] = keyPart[i];
    }
    const uint firstStep = FIRST_STEP;
#define LOOK_AT(S, s)                                                                               \
    SCALE_SCORES(S, (firstStep + s) * STEP_COLS)                                                 \
    [[unroll]] for (uint f = 0; f < ROW_TILES * KEY_TILES; ++f)                                     \
        modifyFragment(S[f], myRow + f / KEY_TILES * TILE_M, TILE * BLOCK_COLS,                     \
                       (firstStep + s) * STEP_COLS + f % KEY_TILES * TILE_N, MASKED)                \
    RAISE_SCORES(S, (firstStep + s) * STEP_COLS)
    STORE_K
    STORE_SCALES
    if (REUSE != 0) {
        barrier(); // K is complete
        if (after < tiles) FETCH_K(tileAt(walk, after))
        [[unroll]] for (uint r = 0; r < ROW_TILES; ++r) loadShift(r);
        FragC S[ROW_TILES * KEY_TILES];
        SCORES(S, firstStep * STEP_COLS)
        barrier(); // everyone has finished with K
        STORE_V(MASKED)
        barrier(); // V is complete
        if (after < tiles) FETCH_V(tileAt(walk, after))
        if (PAGES_AHEAD) LOOK_UP(tileAt(walk, beyond))
        LOOK_AT(S, 0)
        MOVE_SHIFTS(S)
        WEIGHTS(P, S, firstStep * STEP_COLS)
        ADD_VALUES(P, firstStep * STEP_COLS)
    } else {
        STORE_V(MASKED)
        barrier(); // the tile is complete
        if (after < tiles) {
            FETCH_K(tileAt(walk, after))
            FETCH_V(tileAt(walk, after))
        }
        if (PAGES_AHEAD) LOOK_UP(tileAt(walk, beyond))
        if (mine && (MASKED == 0 || TILE * BLOCK_COLS < myEnd)) {
            [[unroll]] for (uint r = 0; r < ROW_TILES; ++r) loadShift(r);
            FragC S[ROW_TILES * KEY_TILES];
            SCORES(S, firstStep * STEP_COLS)
            [[unroll]] for (uint s = 0; s < TILE_STEPS; ++s) {
                LOOK_AT(S, s)
                MOVE_SHIFTS(S)
                FragC next[ROW_TILES * KEY_TILES];
                if (s + 1 < TILE_STEPS) SCORES(next, (s + 1) * STEP_COLS)
                WEIGHTS(P, S, (firstStep + s) * STEP_COLS)
                ADD_VALUES(P, (firstStep + s) * STEP_COLS)
                if (s + 1 < TILE_STEPS) {
                    [[unroll]] for (uint f = 0; f < ROW_TILES * KEY_TILES; ++f) S[f] = next[f];
                }
            }
        }
    }
#undef LOOK_AT
}
