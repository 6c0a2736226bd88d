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
