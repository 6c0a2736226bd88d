// One tile of keys, j: the body of both loops of forward_coopmat.comp. With MASKED some row may not
// see some key of it.
{
    barrier(); // everyone has finished with the last tile
    [[unroll]] for (uint i = 0; i < K_PARTS; ++i) {
        uint at = i * LOCAL_SIZE + tid;
        if (BLOCK_COLS * K_ROW8 % LOCAL_SIZE == 0 || at < BLOCK_COLS * K_ROW8)
            tile[at / K_ROW8 * K_STRIDE + at % K_ROW8] = kPart[i];
    }
    [[unroll]] for (uint i = 0; i < V_PARTS; ++i) {
        uint at = i * LOCAL_SIZE + tid;
        if (BLOCK_COLS * V_ROW8 % LOCAL_SIZE == 0 || at < BLOCK_COLS * V_ROW8) {
#if MASKED
            // A masked slot has P = 0, but 0 x Inf is NaN: multiply without such values, add them at the end.
            if (CAUSAL != 0 && dropNonFinite(vPart[i])) atomicOr(nonFiniteSeen, 1);
#endif
            tile[V_FIRST + at / V_ROW8 * V_STRIDE + at % V_ROW8] = vPart[i];
        }
    }
    barrier(); // the tile is complete
    if (j + 1 < tiles) FETCH_TILE(j + 1)

    // S = Q K^T
    FragC S[ROW_TILES * KEY_TILES];
    [[unroll]] for (uint i = 0; i < ROW_TILES * KEY_TILES; ++i) S[i] = FragC(0.0);
    [[unroll]] for (uint i = 0; i < QK_CHUNKS; ++i) {
        [[unroll]] for (uint c = 0; c < KEY_TILES; ++c) {
            FragB Kt;
            coopMatLoad(Kt, tile, c * TILE_N * K_STRIDE + i * TILE_K / 8, K_STRIDE,
                        gl_CooperativeMatrixLayoutColumnMajor);
            [[unroll]] for (uint r = 0; r < ROW_TILES; ++r)
                S[r * KEY_TILES + c] = coopMatMulAdd(Q[r * QK_CHUNKS + i], Kt, S[r * KEY_TILES + c]);
        }
    }
#if MASKED
    [[unroll]] for (uint r = 0; r < ROW_TILES; ++r)
        [[unroll]] for (uint c = 0; c < KEY_TILES; ++c)
            maskFragment(S[r * KEY_TILES + c], int(myRow + r * TILE_M), int(j * BLOCK_COLS + c * TILE_N),
                         p.causalOffset, int(p.Sk));
#endif

    // Move the shift of the rows that need it. The test looks at each lane's own elements only.
    FragC top[ROW_TILES];
    bool passed = false;
    [[unroll]] for (uint r = 0; r < ROW_TILES; ++r) {
        top[r] = S[r * KEY_TILES];
        [[unroll]] for (uint c = 1; c < KEY_TILES; ++c)
            [[unroll]] for (uint e = 0; e < top[r].length(); ++e)
                top[r][e] = max(top[r][e], S[r * KEY_TILES + c][e]);
        [[unroll]] for (uint e = 0; e < top[r].length(); ++e)
            passed = passed || fma(top[r][e], scale, -rowShift[r][e]) > LAG;
    }
    if (subgroupAny(passed)) {
        [[unroll]] for (uint r = 0; r < ROW_TILES; ++r) {
            FragC rowTop, factor;
            rowMax(rowTop, top[r]);
            [[unroll]] for (uint e = 0; e < rowTop.length(); ++e) {
                float t = rowTop[e] * scale;
                float moved = t - rowShift[r][e] > LAG ? t : rowShift[r][e];
                factor[e] = exp2(rowShift[r][e] - moved);
                rowShift[r][e] = moved;
            }
            if (HAS_LSE != 0) rowTotal[r] *= factor;
            FragSum narrowFactor;
            narrow(narrowFactor, factor);
            rowWeight[r] *= narrowFactor;
            [[unroll]] for (uint i = 0; i < OUT_TILES; ++i) O[r * OUT_TILES + i] *= factor;
        }
    }

    // P = 2^(scale S - shift), O += P V. O is divided by the sum of the rounded P, so that what rounding
    // does to a weight cancels; where one key has all the weight the result is that row of V, exactly.
    [[unroll]] for (uint r = 0; r < ROW_TILES; ++r)
        [[unroll]] for (uint c = 0; c < KEY_TILES; ++c) {
            [[unroll]] for (uint e = 0; e < S[r * KEY_TILES + c].length(); ++e)
                S[r * KEY_TILES + c][e] = exp2(fma(S[r * KEY_TILES + c][e], scale, -rowShift[r][e]));
            if (HAS_LSE != 0) rowTotal[r] += S[r * KEY_TILES + c];
        }
    FragA P[ROW_TILES * KEY_TILES];
    [[unroll]] for (uint i = 0; i < ROW_TILES * KEY_TILES; ++i) toOperandA(P[i], S[i]);
    [[unroll]] for (uint c = 0; c < KEY_TILES; ++c) {
        [[unroll]] for (uint r = 0; r < ROW_TILES; ++r)
            rowWeight[r] = coopMatMulAdd(P[r * KEY_TILES + c], FragOnes(1.0), rowWeight[r]);
        [[unroll]] for (uint i = 0; i < OUT_TILES; ++i) {
            FragB Vt;
            coopMatLoad(Vt, tile, V_FIRST + c * TILE_K * V_STRIDE + i * TILE_N / 8, V_STRIDE,
                        gl_CooperativeMatrixLayoutRowMajor);
            [[unroll]] for (uint r = 0; r < ROW_TILES; ++r)
                O[r * OUT_TILES + i] = coopMatMulAdd(P[r * KEY_TILES + c], Vt, O[r * OUT_TILES + i]);
        }
    }
}
