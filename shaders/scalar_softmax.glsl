// Online softmax of the scalar kernels (Milakov 2018, Dao 2022): S becomes P, O and the row sum are rescaled to the
// new row max. The kernel defines MASK_AND_MAX(i, j, top), which masks S[i][j] and takes its maximum with top
// (selecting, not adding, as a masked score may be NaN), and CLEAR_MASKED(i, j, prob), which sets P of a masked score
// to 0.

void softmax(WorkTile w, uint firstCol, bool masked) {
    [[unroll]] for (uint i = 0; i < ROWS; i++) {
        float top = ROW_MAX_INIT;
        [[unroll]] for (uint j = 0; j < KEYS; j++) {
            MASK_AND_MAX(i, j, top)
        }
        sharePartial(i, top);
    }
    barrier(); // the partial maxima are stored, and K is used
    [[unroll]] for (uint i = 0; i < ROWS; i++) {
        float top = rowMax[i];
        [[unroll]] for (uint quad = 0; quad < THREADS_X / 4; quad++) {
            const vec4 four = partials(i, quad);
            top = max(top, max(max(four.x, four.y), max(four.z, four.w)));
        }
        const float factor = exp2(TO_LOG2(rowMax[i] - top));
        rowMax[i] = top;
        rowSum[i] *= factor;
        [[unroll]] for (uint n = 0; n < DV_QUADS; n++) O[i][n] *= factor;
        [[unroll]] for (uint j = 0; j < KEYS; j++) {
            // fma subtracts the row max from the exact product; but see LARGE_SCORE.
            const float exponent = NATURAL_SCORES ? (S[i][j] - top) * LOG2E
                : abs(top) < LARGE_SCORE ? fma(S[i][j], SCORE_SCALE, -top) : roundedDifference(S[i][j], SCORE_SCALE, top);
            // exp2 need not keep a NaN: SwiftShader's makes it infinity.
            float prob = isnan(exponent) ? exponent : exp2(exponent);
            CLEAR_MASKED(i, j, prob)
            rowSum[i] += prob;
            const uint col = x + j * THREADS_X;
            smemP[rowOf(i) * P_ROW + col / 4][col % 4] = prob;
        }
    }
}
