// Part of main of decode_coopmat.comp: tile j of the KV loop. MASKED 1: some row may not attend to some key of it, or
// scores depend on row and key. SWAPPED 1: the arrays of vectors have changed roles. The tile's vectors are K_TILE and
// V_TILE, and with PREFETCH the vectors of the next tile are loaded into K_NEXT and V_NEXT.
#if SWAPPED
#define K_TILE kNext
#define V_TILE vNext
#define K_NEXT kVec
#define V_NEXT vVec
#else
#define K_TILE kVec
#define V_TILE vVec
#define K_NEXT kNext
#define V_NEXT vNext
#endif
{
    const bool more = next < tiles;
    if (PREFETCH > 1 && more) {
        LOAD_K(K_NEXT)
        LOAD_V(V_NEXT)
    }

    MARK_NAN_KEYS
    // S = Q K^T. Fragments Qi and Kt have columns in the same order, whichever it is.
    [[unroll]] for (uint t = 0; t < KV_FRAGS; ++t) S[t] = FragC(0.0);
    [[unroll]] for (uint b = 0; b < QK_BLOCKS; ++b) {
        uvec4 words[K_LANE_KEYS];
        CONVERT_K(words, b)
        [[unroll]] for (uint i = 0; i < 2; ++i) {
            FragA Qi;
            if (Q_SMEM_CHUNKS != 0) coopMatLoad(Qi, smem, Q_BASE + 2 * (2 * b + i), Q_STRIDE, gl_CooperativeMatrixLayoutRowMajor);
            else Qi = Q[Q_SMEM_CHUNKS != 0 ? 0 : 2 * b + i];
            [[unroll]] for (uint t = 0; t < KV_FRAGS; ++t) {
                FragB Kt;
                operandB(Kt, K_WORD(0, 0), K_WORD(0, 1), K_WORD(1, 0), K_WORD(1, 1))
                S[t] = coopMatMulAdd(Qi, Kt, S[t]);
            }
        }
    }
    if (PREFETCH < 2 && more) {
        LOAD_K(K_TILE)
        if (PREFETCH > 0) LOAD_V(V_NEXT)
    }
    if (QK_SPLIT > 1) { // add the partial scores of the subgroups
        coopMatStore(S[0], smem, QK_PARTIAL(gl_SubgroupID), QK_PARTIAL_STRIDE, gl_CooperativeMatrixLayoutRowMajor);
        barrier(); // whoever passes has read the other buffer
        S[0] = FragC(0.0);
        [[unroll]] for (uint n = 0; n < QK_SPLIT; ++n) {
            FragC partial;
            coopMatLoad(partial, smem, QK_PARTIAL(n), QK_PARTIAL_STRIDE, gl_CooperativeMatrixLayoutRowMajor);
            S[0] += partial;
        }
        parity ^= 1;
    }

    scaleS(0);
    [[unroll]] for (uint t = 0; t < KV_FRAGS; ++t) applyMaskAndBias(S[t], work.row0, CURRENT_TILE * KV_TILE, t * 16, MASKED)
    addVExponent(0);
    UPDATE_ROW_MAX
    softmaxP(0);

    NOTE_NAN_VALUES
    // O^T += V^T P^T
    FragPt Pt[KV_FRAGS];
    [[unroll]] for (uint t = 0; t < KV_FRAGS; ++t) {
        transposeP(Pt[t], P[t])
        if (!KEY_SCALES) rowSum[0] = coopMatMulAdd(FragA(1.0), Pt[t], rowSum[0]);
    }
    [[unroll]] for (uint b = 0; b < DV_BLOCKS; ++b) {
        uvec4 words[V_LANE_KEYS];
        CONVERT_V(words, b)
        // P of a masked key is 0, but 0 x Inf is NaN: see non_finite.glsl.
        if (MASKED != 0 && ROW_MASKS && MAY_BE_NON_FINITE) {
            [[unroll]] for (uint n = 0; n < V_LANE_KEYS; ++n)
                if (dropNonFinite(words[n])) atomicOr(nonFiniteSeen, 1);
        }
        [[unroll]] for (uint i = 0; i < 4; ++i) {
            [[unroll]] for (uint t = 0; t < KV_FRAGS; ++t) {
                FragA Vt;
                operandA(Vt, V_LOW(0), V_LOW(2), V_HIGH(0), V_HIGH(2))
                O[4 * b + i] = coopMatMulAdd(Vt, Pt[t], O[4 * b + i]);
            }
        }
    }

    if (MASKED != 0 || !TWO_TILES) COPY_NEXT_VECS
    j = next;
    if (more) {
        if (PREFETCH == 0) LOAD_V(V_TILE)
        STORE_KEY_INDICES
        STORE_KV_SCALES
        next = nextKVTile(kv, j + KV_LOOPS, lastRow);
        if (next < tiles) RESOLVE_KV_ROWS(next)
    }
}
#undef K_TILE
#undef V_TILE
#undef K_NEXT
#undef V_NEXT
#undef SWAPPED
