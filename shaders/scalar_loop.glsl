// What the KV loop of the scalar forward kernels does with a tile: S = Q K^T, softmax, O += P V.

// -- S = Q K^T ------------------------------------------------------------------------------------
// S = Q K^T of the scalar kernels, in chunks of CHUNK_D columns; and exchange of one value per row and invocation.

// S += Q K^T over the chunk in shared memory.
void multiplyChunk() {
    [[dont_unroll]] for (uint d = 0; d < CHUNK_D / 4; d += 2) {
        vec4 low[ROWS], high[ROWS];
        [[unroll]] for (uint i = 0; i < ROWS; i++) {
            low[i] = smem[rowOf(i) * D_ROW + d];
            high[i] = smem[rowOf(i) * D_ROW + d + 1];
        }
        [[unroll]] for (uint j = 0; j < KEYS; j++) {
            const vec4 k = smem[KV_BASE + (x + j * THREADS_X) * D_ROW + d];
            const vec4 l = smem[KV_BASE + (x + j * THREADS_X) * D_ROW + d + 1];
            [[unroll]] for (uint i = 0; i < ROWS; i++) {
                // A sum of eight products first: a large score is then rounded once per eight.
                float dot8 = fma(low[i].w, k.w, fma(low[i].z, k.z, fma(low[i].y, k.y, low[i].x * k.x)));
                dot8 = fma(high[i].w, l.w, fma(high[i].z, l.z, fma(high[i].y, l.y, fma(high[i].x, l.x, dot8))));
                S[i][j] += dot8;
            }
        }
    }
}

void computeScores(Slice qBlock, KVTile tileK, uint rowsQ, uint rowsK) {
    [[unroll]] for (uint i = 0; i < ROWS; i++)
        [[unroll]] for (uint j = 0; j < KEYS; j++) S[i][j] = 0.0;
    [[dont_unroll]] for (uint d0 = 0; d0 < HEAD_DIM; d0 += CHUNK_D) {
        barrier(); // the last chunk is used
        if (D_CHUNKS > 1) stageQ(qBlock, rowsQ, d0);
        stageK(tileK, rowsK, d0);
        barrier();
        multiplyChunk();
    }
}

// One value per row and invocation is stored behind P; all invocations of a row load all of them.
void sharePartial(uint i, float value) {
    smemP[rowOf(i) * P_ROW + (KV_TILE + x) / 4][(KV_TILE + x) % 4] = value;
}

vec4 partials(uint i, uint quad) {
    return smemP[rowOf(i) * P_ROW + KV_TILE / 4 + quad];
}

// -- softmax --------------------------------------------------------------------------------------
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

// -- O += P V -------------------------------------------------------------------------------------
// O += P V of the scalar kernels, in chunks of CHUNK_V keys. The kernel defines STAGE_V(key), which loads the chunk
// at `key` of the tile, and ATTENDS(i, kk): row i attends to key kk of four.

// O += P V over the chunk in shared memory, keys `key` and on of the tile.
void accumulateChunk(uint firstCol, uint key, bool masked) {
    [[dont_unroll]] for (uint k = 0; k < CHUNK_V; k += 4) {
        vec4 prob[ROWS];
        [[unroll]] for (uint i = 0; i < ROWS; i++) prob[i] = smemP[rowOf(i) * P_ROW + (key + k) / 4];
        [[unroll]] for (uint kk = 0; kk < 4; kk++) {
            [[unroll]] for (uint n = 0; n < DV_QUADS; n++) {
                const vec4 v = smem[KV_BASE + (k + kk) * V_ROW + x + n * THREADS_X];
                [[unroll]] for (uint i = 0; i < ROWS; i++) {
                    const vec4 sum = fma(vec4(prob[i][kk]), v, O[i][n]);
                    // 0 * NaN is NaN: V of a key that the row does not attend to is skipped.
                    if (!masked || ATTENDS(i, kk)) O[i][n] = sum;
                }
            }
        }
    }
}

void accumulateOutput(KVTile tileV, uint firstCol, uint col0, bool masked) {
    [[dont_unroll]] for (uint key = 0; key < KV_TILE; key += CHUNK_V) {
        if (key > 0) barrier(); // the last chunk is used
        STAGE_V(key)
        barrier(); // the chunk is stored; before the first one P too
        accumulateChunk(firstCol, key, masked);
    }
}
