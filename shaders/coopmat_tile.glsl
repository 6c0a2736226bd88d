// One tile of keys, j: the body of both loops of forward_coopmat.comp. With MASKED some row may not
// see some key of it.
{
    if (ABLATE != ABLATE_BARRIER) barrier(); // everyone has finished with the last tile
    if (ABLATE != ABLATE_LOAD || j == 0) {
        [[unroll]] for (uint i = 0; i < K_PARTS; ++i) {
            uint at = PART_OF(K_PARTS, i);
            if (BLOCK_COLS * K_ROW8 % LOCAL_SIZE == 0 || at < BLOCK_COLS * K_ROW8)
                tile[at / K_ROW8 * K_STRIDE + at % K_ROW8] = kPart[i];
        }
        [[unroll]] for (uint i = 0; i < V_PARTS; ++i) {
            uint at = PART_OF(V_PARTS, i);
            if (BLOCK_COLS * V_ROW8 % LOCAL_SIZE == 0 || at < BLOCK_COLS * V_ROW8) {
#if MASKED
                // A masked slot has P = 0, but 0 x Inf is NaN: multiply without such values, add them at the end.
                if (CAUSAL != 0 && dropNonFinite(vPart[i])) atomicOr(nonFiniteSeen, 1);
#endif
                tile[V_FIRST + at / V_ROW8 * V_STRIDE + at % V_ROW8] = vPart[i];
            }
        }
    }
    if (ABLATE != ABLATE_BARRIER) barrier(); // the tile is complete
#if MASKED
    if (ABLATE != ABLATE_LOAD && j + 1 < tiles) FETCH_TILE(j + 1, 1)
#else
    if (ABLATE != ABLATE_LOAD && (CHECK_FETCH == 0 || j + 1 < tiles)) FETCH_TILE(j + 1, 0)
#endif

#if MASKED
    if (CAUSAL == 0 || j * BLOCK_COLS < myEnd)
#endif
    {
        [[unroll]] for (uint r = 0; r < ROW_TILES; ++r) loadShift(r);
        FragC S[ROW_TILES * KEY_TILES];
        SCORES(S, 0)
        [[unroll]] for (uint s = 0; s < STEPS; ++s) {
#if MASKED
            [[unroll]] for (uint f = 0; f < ROW_TILES * KEY_TILES; ++f)
                maskFragment(S[f], int(myRow + f / KEY_TILES * TILE_M),
                             int(j * BLOCK_COLS + s * STEP_COLS + f % KEY_TILES * TILE_N), p.causalOffset, int(p.Sk));
#endif
            if (ABLATE != ABLATE_SOFTMAX) MOVE_SHIFTS(S)
            FragC next[ROW_TILES * KEY_TILES];
            if (s + 1 < STEPS) SCORES(next, (s + 1) * STEP_COLS)
            WEIGHTS(P, S, 0)
            ADD_VALUES(P, s * STEP_COLS)
            if (s + 1 < STEPS) {
                [[unroll]] for (uint f = 0; f < ROW_TILES * KEY_TILES; ++f) S[f] = next[f];
            }
        }
    }
}
