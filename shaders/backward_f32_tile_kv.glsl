// Part of main of backward_coopmat_f32_kv.comp: row tile n. MASKED 1 masks it: some row may not attend to some key.
{
    const uint row0 = work.row0;
    SPLIT_ROWS(MASKED)
    barrier(); // all subgroups have finished the last tile
    STORE_ROWS
    barrier(); // the tile is complete
    PREFETCH_ROWS(rowTileAt(tiles, min(n + 1, tiles.count - 1))) // behind the last tile it again: no branch to meet again
#if MASKED // a pair whose keys no row attends to has nothing to add, but barriers to meet
    const bool attended = keyBase < visibleEnd(min(row0 + ROW_TILE, work.rows) - 1);
#else
    const bool attended = true;
#endif
    if (attended) {
        multiplyOwn(firstBase);
        if (!isSecond()) COMPUTE_P(bool(MASKED), keyBase, row0)
    }
    barrier(); // P is complete
#if MASKED
    if ((seen & SEEN_NON_FINITE) != 0) {
        dropNonFiniteTerms();
        barrier();
    }
#endif
    if (attended) {
        if (isSecond()) {
            [[unroll]] for (uint f = 0; f < M_FRAGS * ROW_FRAGS; ++f) {
                FragC prob, negDelta;
                LOAD_ELEMENTS(prob, exchangeAt(f))
                coopMatLoad(negDelta, smem, STAT_AT(2, f % ROW_FRAGS), 0, ROW_MAJOR);
                [[unroll]] for (uint e = 0; e < X[f].length(); ++e)
                    X[f][e] = bool(MASKED) && prob[e] == 0.0 ? 0.0 : prob[e] * (X[f][e] + negDelta[e]);
                if (STORE_DS != 0) {
                    [[unroll]] for (uint h = 0; h < 2; ++h)
                        storeScratchVec(p.addrCuQ, dsVec((keyBase - CHUNK_FIRST_KEY) / FRAG_M + f / ROW_FRAGS, row0 / FRAG_N + f % ROW_FRAGS, h),
                                        floatBitsToUint(vec4(X[f][4 * h], X[f][4 * h + 1], X[f][4 * h + 2], X[f][4 * h + 3])));
                }
            }
        }
        if (isSecond() ? HAS_DK != 0 : HAS_DV != 0) addGradient(secondBase);
    }
    ++n;
}
