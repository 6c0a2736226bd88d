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
