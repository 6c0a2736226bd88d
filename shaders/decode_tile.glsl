// One tile of keys, number j of the walk of a subgroup: the body of both loops of decode_coopmat.comp. With MASKED
// some row may not see some key of it, or its scores depend on the place.
{
    const bool more = after < tiles;
    if (KV_TYPE != 0) {
        [[unroll]] for (uint n = 0; n < K_KEYS * QK_BLOCKS; ++n) kPart[n] = decodeRaw16(kPart[n]);
    }
    FragC S[KEY_TILES];
    [[unroll]] for (uint t = 0; t < KEY_TILES; ++t) S[t] = FragC(0.0);
    [[unroll]] for (uint i = 0; i < 2 * QK_BLOCKS; ++i) {
        [[unroll]] for (uint t = 0; t < KEY_TILES; ++t) {
            FragB Kt;
            operandB(Kt, K_WORD(0, 0), K_WORD(0, 1), K_WORD(1, 0), K_WORD(1, 1))
            S[t] = coopMatMulAdd(Q[i], Kt, S[t]);
        }
    }
    if (more) {
        [[unroll]] for (uint b = 0; b < QK_BLOCKS; ++b) FETCH_K(b);
    }
    [[unroll]] for (uint t = 0; t < KEY_TILES; ++t) modifyFragment(S[t], work.row0, TILE * BLOCK_COLS, t * 16, MASKED)
    MOVE_SHIFTS(S)
    WEIGHTS(P, S)
    [[unroll]] for (uint n = 0; n < V_KEYS * OUT_BLOCKS; ++n) {
        if (KV_TYPE != 0) vPart[n] = decodeRaw16(vPart[n]);
        // A masked slot has P = 0, but 0 x Inf is NaN: V is multiplied without such values, they are added at the end.
        if (MASKED != 0 && MASKS && dropNonFinite(vPart[n])) atomicOr(nonFiniteSeen, 1);
    }
    [[unroll]] for (uint t = 0; t < KEY_TILES; ++t)
        rowWeight[0] = coopMatMulAdd(P[t], FragOnes(1.0), rowWeight[0]);
    [[unroll]] for (uint i = 0; i < OUT_TILES; ++i) {
        [[unroll]] for (uint t = 0; t < KEY_TILES; ++t) {
            FragB Vt;
            operandB(Vt, V_LOW(0), V_LOW(2), V_HIGH(0), V_HIGH(2))
            O[i] = coopMatMulAdd(P[t], Vt, O[i]);
        }
    }
    if (more) {
        [[unroll]] for (uint b = 0; b < OUT_BLOCKS; ++b) FETCH_V(b);
    }
    j = after;
    if (more) {
        NAME_COLUMNS
        after = nextTile(walk, j + WALKERS, lastRow);
        if (after < tiles) LOOK_UP(tileAt(walk, after))
    }
}
