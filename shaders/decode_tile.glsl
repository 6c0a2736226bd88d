// One tile of keys, number j of the walk of a subgroup: the body of both loops of decode_coopmat.comp. With MASKED
// some row may not see some key of it, or its scores depend on the place.
{
    const bool more = after < tiles;
    if (AHEAD > 1 && more) {
        FETCH_K(kAhead)
        FETCH_V(vAhead)
    }
    FragC S[KEY_TILES];
    [[unroll]] for (uint t = 0; t < KEY_TILES; ++t) S[t] = FragC(0.0);
    [[unroll]] for (uint b = 0; b < QK_BLOCKS; ++b) {
        uvec4 now[K_KEYS];
        TAKE_K(now, b)
        [[unroll]] for (uint i = 0; i < 2; ++i) {
            FragA Qi;
            if (Q_STAGED != 0) coopMatLoad(Qi, tile, Q_FIRST + 2 * (2 * b + i), Q_STRIDE, gl_CooperativeMatrixLayoutRowMajor);
            else Qi = Q[Q_STAGED != 0 ? 0 : 2 * b + i];
            [[unroll]] for (uint t = 0; t < KEY_TILES; ++t) {
                FragB Kt;
                operandB(Kt, K_WORD(0, 0), K_WORD(0, 1), K_WORD(1, 0), K_WORD(1, 1))
                S[t] = coopMatMulAdd(Qi, Kt, S[t]);
            }
        }
    }
    if (AHEAD < 2 && more) {
        FETCH_K(kPart)
        if (AHEAD > 0) FETCH_V(vAhead)
    }
    if (SCORE_SHARES > 1) {
        coopMatStore(S[0], tile, SCORES_OF(gl_SubgroupID), SCORES_STRIDE, gl_CooperativeMatrixLayoutRowMajor);
        barrier(); // who is here has read the scores before these
        S[0] = FragC(0.0);
        [[unroll]] for (uint n = 0; n < SCORE_SHARES; ++n) {
            FragC part;
            coopMatLoad(part, tile, SCORES_OF(n), SCORES_STRIDE, gl_CooperativeMatrixLayoutRowMajor);
            S[0] += part;
        }
        turn ^= 1;
    }
    SCALE_SCORES(S, 0)
    [[unroll]] for (uint t = 0; t < KEY_TILES; ++t) modifyFragment(S[t], work.row0, TILE * BLOCK_COLS, t * 16, MASKED)
    RAISE_SCORES(S, 0)
    MOVE_SHIFTS(S)
    WEIGHTS(P, S, 0)
    FragPt Pt[KEY_TILES];
    [[unroll]] for (uint t = 0; t < KEY_TILES; ++t) {
        transposeP(Pt[t], P[t])
        if (!ROW_SCALES) rowWeight[0] = coopMatMulAdd(FragA(1.0), Pt[t], rowWeight[0]);
    }
    [[unroll]] for (uint b = 0; b < OUT_BLOCKS; ++b) {
        uvec4 now[V_KEYS];
        TAKE_V(now, b)
        // A masked slot has P = 0, but 0 x Inf is NaN: V is multiplied without such values, they are added at the end.
        if (MASKED != 0 && MASKS && KV_TYPE != INT8) {
            [[unroll]] for (uint n = 0; n < V_KEYS; ++n)
                if (dropNonFinite(now[n])) atomicOr(nonFiniteSeen, 1);
        }
        [[unroll]] for (uint i = 0; i < 4; ++i) {
            [[unroll]] for (uint t = 0; t < KEY_TILES; ++t) {
                FragA Vt;
                operandA(Vt, V_LOW(0), V_LOW(2), V_HIGH(0), V_HIGH(2))
                O[4 * b + i] = coopMatMulAdd(Vt, Pt[t], O[4 * b + i]);
            }
        }
    }
    [[unroll]] for (uint n = 0; n < (AHEAD > 1 ? K_ALL : 0); ++n) kPart[n] = kAhead[n];
    [[unroll]] for (uint n = 0; n < (AHEAD > 0 ? V_ALL : 0); ++n) vPart[n] = vAhead[n];
    j = after;
    if (more) {
        if (AHEAD == 0) FETCH_V(vPart)
        NAME_COLUMNS
        TAKE_SCALES
        after = nextTile(walk, j + WALKERS, lastRow);
        if (after < tiles) LOOK_UP(after)
    }
}
